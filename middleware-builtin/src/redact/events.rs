//! What is said of what was redacted.

use serde::Serialize;

use crate::shared::inspected_place::Place;
use crate::shared::own_events::own_events;
use crate::shared::secrets::Kind;

/// Secrets were redacted: what sort, how many, and where. What they were is not said.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct Redacted {
    /// Where.
    pub place: Place,
    /// Where there: a JSON pointer (RFC 6901); of an event, its name.
    pub at: String,
    /// What sort.
    pub kind: Kind,
    /// How many.
    pub count: usize,
}

own_events! { Redacted = "redacted"; }

/// Counted as they are found.
#[derive(Debug, Default)]
pub(super) struct Tally(Vec<Redacted>);

impl Tally {
    pub(super) fn add(&mut self, place: Place, at: &str, kind: &Kind) {
        let same = |said: &&mut Redacted| said.place == place && said.at == at && said.kind == *kind;
        match self.0.iter_mut().rev().find(same) {
            Some(said) => said.count += 1,
            None => self.0.push(Redacted { place, at: at.to_owned(), kind: kind.clone(), count: 1 }),
        }
    }

    pub(super) fn take(&mut self) -> Vec<Redacted> {
        std::mem::take(&mut self.0)
    }
}
