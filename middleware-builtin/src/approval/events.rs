//! An approval's own events.

use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::Request;
use crate::shared::own_events::own_events;

/// A question is about to be asked, by calling the responder or by ending the run with an interrupt.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct Asked {
    /// The id of the question. Pass this id to [`Answers::answer`](emitree_runtime::Answers::answer) to set
    /// the answer.
    pub id: String,
    /// The question.
    pub request: Request,
}

/// A run was approved and continues with its input.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct Approved {
    /// The id of the question.
    pub id: String,
    /// The author of the answer ([`Answer::by`](emitree_runtime::Answer::by)).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub by: Option<String>,
    /// The hash of the run's kind, name and input.
    pub input_hash: String,
    /// `true` if the answer was known and no question was asked.
    pub remembered: bool,
}

/// A run was answered, and ends without being executed.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct Responded {
    /// The id of the question.
    pub id: String,
    /// The author of the answer.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub by: Option<String>,
    /// The hash of the run's kind, name and input.
    pub input_hash: String,
    /// The output of the run, as JSON.
    pub output: Value,
    /// `true` if the answer was known and no question was asked.
    pub remembered: bool,
}

/// A run continues with an edited input.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct Edited {
    /// The id of the question.
    pub id: String,
    /// The author of the edit.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub by: Option<String>,
    /// The hash of the run's kind, name and original input.
    pub input_hash: String,
    /// The edited input. The work receives this input if it fits the input type.
    pub input: Value,
    /// `true` if the answer was known and no question was asked.
    pub remembered: bool,
}

/// A run is denied, because the answer rejected it or the question got no valid answer.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct Rejected {
    /// The id of the question.
    pub id: String,
    /// The author of the answer, if it is valid.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub by: Option<String>,
    /// The hash of the run's kind, name and input.
    pub input_hash: String,
    /// The reason for the denial.
    pub reason: String,
    /// `true` if the answer was known and no question was asked.
    pub remembered: bool,
    /// `true` if the question got no valid answer: the responder failed, denied the run or was too slow, or the answer
    /// is not allowed or does not fit.
    pub failed: bool,
}

own_events! {
    Asked = "asked" { request };
    Approved = "approved" { by } head { by };
    Edited = "edited" { input, by } head { by };
    Rejected = "rejected" { reason, by } head { by };
    Responded = "responded" { output, by } head { by };
}

/// Builds the events about one request.
pub(super) struct RequestEvents<'a> {
    pub(super) request: &'a Request,
    pub(super) remembered: bool,
    /// The author of the answer, once it is known.
    pub(super) by: Option<String>,
}

impl RequestEvents<'_> {
    pub(super) fn asked(&self) -> Asked {
        Asked { id: self.request.id.clone(), request: self.request.clone() }
    }

    pub(super) fn approved(&self) -> Approved {
        let Self { request, remembered, by } = self;
        let (id, input_hash) = (request.id.clone(), request.input_hash.clone());
        Approved { id, by: by.clone(), input_hash, remembered: *remembered }
    }

    pub(super) fn edited(&self, input: &Value) -> Edited {
        let Approved { id, by, input_hash, remembered } = self.approved();
        Edited { id, by, input_hash, input: input.clone(), remembered }
    }

    pub(super) fn responded(&self, output: &Value) -> Responded {
        let Approved { id, by, input_hash, remembered } = self.approved();
        Responded { id, by, input_hash, output: output.clone(), remembered }
    }

    pub(super) fn rejected(&self, reason: &impl ToString, failed: bool) -> Rejected {
        let Approved { id, by, input_hash, remembered } = self.approved();
        Rejected { id, by, input_hash, reason: reason.to_string(), remembered, failed }
    }
}
