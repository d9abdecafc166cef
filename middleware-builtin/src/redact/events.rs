//! The event that a redaction emits about its findings.

use emitree_secrets::Kind;
use serde::Serialize;

use crate::shared::own_events::own_events;
use crate::shared::run_part::RunPart;

/// Secrets were redacted. The event contains their kind, number and part, but not the secrets themselves.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct Redacted {
    /// The part of the run that contained the secrets.
    pub part: RunPart,
    /// The position in the `part`: a JSON pointer (RFC 6901), or the name of the event if the part is an event.
    pub at: String,
    /// The kind of the secrets.
    pub kind: Kind,
    /// The number of secrets.
    pub count: usize,
}

own_events! { Redacted = "redacted"; }

/// Findings that have not been emitted yet, grouped by part, position and kind.
#[derive(Debug, Default)]
pub(super) struct Tally(Vec<Redacted>);

impl Tally {
    pub(super) fn add(&mut self, part: RunPart, at: &str, kind: &Kind) {
        let is_same = |counted: &&mut Redacted| counted.part == part && counted.at == at && counted.kind == *kind;
        match self.0.iter_mut().rev().find(is_same) {
            Some(counted) => counted.count += 1,
            None => self.0.push(Redacted { part, at: at.to_owned(), kind: kind.clone(), count: 1 }),
        }
    }

    pub(super) fn take(&mut self) -> Vec<Redacted> {
        std::mem::take(&mut self.0)
    }
}
