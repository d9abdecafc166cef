//! The guard's own event.

use serde::Serialize;

use super::{Encoding, What};
use crate::shared::own_events::own_events;
use crate::shared::run_part::RunPart;

/// The guard found a secret, a URL to a host that is not allowed, or a value that it cannot check. The event never
/// contains the secret.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct Blocked {
    /// The part of the run that contains the finding.
    pub part: RunPart,
    /// The position of the finding: a JSON pointer (RFC 6901) into the value, or the name of the event. A pointer that
    /// contains a secret is replaced by `…`.
    pub at: String,
    /// The kind of finding.
    pub what: What,
    /// The encoding of the secret or URL; [`Encoding::Plain`] for other findings.
    pub encoding: Encoding,
    /// `true` if the guard only evaluates, and therefore denied nothing.
    pub evaluated_only: bool,
}

own_events! { Blocked = "blocked"; }
