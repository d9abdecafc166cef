//! What is said of what was stopped.

use serde::Serialize;

use super::{Encoding, What};
use crate::shared::own_events::own_events;

/// What was looked at.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum Place {
    /// The input: what goes out to the work.
    Input,
    /// The output.
    Output,
    /// The message, the causes or the details of an error, or what it carries: an interrupt, a request for a retry.
    Error,
    /// The text of events that were [declared](super::ExfilGuard::text_of).
    Event,
}

impl Place {
    pub(super) const fn as_str(self) -> &'static str {
        match self {
            Self::Input => "input",
            Self::Output => "output",
            Self::Error => "error",
            Self::Event => "event",
        }
    }
}

/// Something was about to leave: what sort, where, and in which encoding. What it was is not said.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct Blocked {
    /// Where.
    pub place: Place,
    /// Where there: a JSON pointer (RFC 6901); of an event, its name.
    pub at: String,
    /// What sort.
    pub what: What,
    /// How it was written.
    pub encoding: Encoding,
    /// Whether it was only evaluated, and has left.
    pub evaluated_only: bool,
}

own_events! { Blocked = "blocked"; }
