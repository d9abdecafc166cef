//! What is said of what was stopped.

use serde::Serialize;

use super::{Encoding, What};
use crate::shared::inspected_place::Place;
use crate::shared::own_events::own_events;

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
