//! What is said of what was redacted.

use serde::Serialize;

use crate::shared::own_events::own_events;
use crate::shared::secrets::Kind;

/// Where secrets are looked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum Place {
    /// The input: before others hear it at `start`, and before the work gets it.
    Input,
    /// The output, before `success`.
    Output,
    /// The message, the causes and the details of the error that the run fails with.
    Error,
    /// The context of the run: what it has when it begins, and what is set later.
    Context,
    /// The run's own events: text, JSON, and those whose [type](super::Redact::event) or [text](super::Redact::text_of)
    /// was told.
    Event,
}

impl Place {
    /// All of them.
    pub const ALL: [Self; 5] = [Self::Input, Self::Output, Self::Error, Self::Context, Self::Event];
}

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
