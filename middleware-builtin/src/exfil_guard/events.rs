//! The guard's own event.

use serde::Serialize;

use super::{Encoding, What};
use crate::shared::inspected_place::Place;
use crate::shared::own_events::own_events;

/// The guard found a secret, a URL to another host, or a value that it cannot check. The event never contains the
/// secret.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct Blocked {
    /// The part of the run in which the secret was found.
    pub place: Place,
    /// The position of the secret: a JSON pointer (RFC 6901) into the value, or the name of the event.
    pub at: String,
    /// The sort of the finding.
    pub what: What,
    /// The encoding in which the secret was found.
    pub encoding: Encoding,
    /// `true` if the guard only evaluates, and so did not stop the secret.
    pub evaluated_only: bool,
}

own_events! { Blocked = "blocked"; }
