//! The claim of a run: [`Claim`].

use std::fmt;
use std::sync::Arc;

use super::{Inner, Journaled, Revision, StoreError};

/// The claim of a run to an entry, which [`Journal::claim`](super::Journal::claim) returns. While a journal has claims,
/// its process holds the entry.
///
/// # Dropping
///
/// If the last claim of a journal is dropped, the writer releases the entry, and nobody waits for it. Outside a tokio
/// runtime, if the runtime of the writer has ended, the lease runs out instead.
#[must_use = "a claim that is dropped is released"]
pub struct Claim(Option<Held>);

/// The journal, and its owner, which has to be asked for its last changes.
struct Held {
    journal: Arc<Inner>,
    owner: Option<Arc<dyn Journaled>>,
}

impl Claim {
    /// Creates a claim that is counted.
    pub(super) fn new(journal: Arc<Inner>) -> Self {
        let owner = journal.owner.upgrade();
        Self(Some(Held { journal, owner }))
    }

    /// Stores all changes as [`Journal::commit`](super::Journal::commit) does, and releases the entry in the same append
    /// if no other run of the journal has a claim. Returns the revision.
    ///
    /// # Errors
    ///
    /// As [`Journal::commit`](super::Journal::commit) with a claim. If the entry was not released, the lease runs out.
    ///
    /// # Cancel safety
    ///
    /// If the future is dropped, the changes are stored and the entry is released nevertheless.
    pub async fn release(mut self) -> Result<Revision, StoreError> {
        let Some(Held { journal, mut owner }) = self.0.take() else { return Ok(Revision::NONE) };
        let lost = journal.state.lock().give_up(&mut owner);
        if let Some(lost) = lost {
            return Err(lost);
        }
        journal.request(|waiting, reply| waiting.commits.push(reply)).await
    }
}

impl Drop for Claim {
    fn drop(&mut self) {
        let Some(Held { journal, mut owner }) = self.0.take() else { return };
        let lost = journal.state.lock().give_up(&mut owner);
        if lost.is_none() {
            journal.wake_writer();
        }
    }
}

/// Shows the id and the name of the holder.
impl fmt::Debug for Claim {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let journal = self.0.as_ref().map(|held| &held.journal);
        f.debug_struct("Claim")
            .field("id", &journal.map(|journal| &journal.id))
            .field("by", &journal.map(|journal| journal.state.lock().by.clone()))
            .finish()
    }
}
