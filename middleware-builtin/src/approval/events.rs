//! What an approval says of itself.

use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::Request;
use crate::shared::own_events::own_events;

/// Something is asked, of a responder or by an interrupt.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct Asked {
    /// What an answer names.
    pub id: String,
    /// What is asked.
    pub request: Request,
}

/// A run goes on with what it was to get.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct Approved {
    /// What was answered.
    pub id: String,
    /// What the answer is bound to.
    pub input_hash: String,
    /// Whether the answer was there already, and nobody was asked now.
    pub remembered: bool,
}

/// A run goes on with another input.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct Edited {
    /// What was answered.
    pub id: String,
    /// What the answer is bound to: the input as it was.
    pub input_hash: String,
    /// What the work gets, if it fits.
    pub input: Value,
    /// Whether the answer was there already, and nobody was asked now.
    pub remembered: bool,
}

/// A run does not go on.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct Rejected {
    /// What was answered, or should have been.
    pub id: String,
    /// What the answer is bound to.
    pub input_hash: String,
    /// Why.
    pub reason: String,
    /// Whether the answer was there already, and nobody was asked now.
    pub remembered: bool,
    /// Whether there was no answer: asking failed, or took too long.
    pub failed: bool,
}

own_events! {
    Asked = "asked" { request };
    Approved = "approved";
    Edited = "edited" { input };
    Rejected = "rejected" { reason };
}

/// What came of a request, as own events.
pub(super) struct RequestEvents<'a> {
    pub(super) request: &'a Request,
    pub(super) remembered: bool,
}

impl RequestEvents<'_> {
    pub(super) fn asked(&self) -> Asked {
        Asked { id: self.request.id(), request: self.request.clone() }
    }

    pub(super) fn approved(&self) -> Approved {
        let Self { request, remembered } = *self;
        Approved { id: request.id(), input_hash: request.input_hash.clone(), remembered }
    }

    pub(super) fn edited(&self, input: &Value) -> Edited {
        let Approved { id, input_hash, remembered } = self.approved();
        Edited { id, input_hash, input: input.clone(), remembered }
    }

    pub(super) fn rejected(&self, reason: &impl ToString, failed: bool) -> Rejected {
        let Approved { id, input_hash, remembered } = self.approved();
        Rejected { id, input_hash, reason: reason.to_string(), remembered, failed }
    }
}
