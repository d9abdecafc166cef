//! The state of a journal, which its lock guards.

use std::sync::Arc;
use std::time::SystemTime;

use bytes::Bytes;
use tokio::time::Instant;
use uuid::Uuid;

use super::writer::Waiting;
use super::{EntryHead, Holder, Journaled, Revision, StoreError};
use crate::store::Append;

/// The number of bytes that may be added to an entry of any size before its parts are replaced.
const ADDED: u64 = 8 * 1024 * 1024;
/// The same for the append that releases the entry: the next process reads it whole.
const ADDED_AT_END: u64 = 64 * 1024;

pub(super) struct State {
    /// The name of this journal as a holder.
    pub(super) by: String,
    /// The head as it was last read or stored.
    pub(super) head: EntryHead,
    /// The number of bytes that were added since the parts were last hidden or replaced.
    added: u64,
    /// Set if another process has changed the entry.
    pub(super) is_stale: bool,
    /// Set if a change that the owner has returned was not stored.
    pub(super) needs_whole: bool,
    /// The number of claims of runs.
    pub(super) claims: usize,
    /// The revision at which a worker has taken the entry, until the first claim has taken it over.
    pub(super) adopted: Option<Revision>,
    /// The error of the claims, if they were lost.
    pub(super) lost: Option<StoreError>,
    /// The append whose outcome is not known yet.
    pub(super) pending: Option<Arc<Append>>,
    /// Set if the append that is pending has failed once: then a revision that the store returns may be a later one.
    pub(super) is_uncertain: bool,
    /// The ids of the posts that the owner has taken over, and that the store still has.
    pub(super) taking: Vec<Uuid>,
    pub(super) waiting: Waiting,
    pub(super) has_writer: bool,
    /// The time of the store's clock, and when it was read.
    clock: Option<(SystemTime, Instant)>,
    /// When the writer renews the lease.
    pub(super) renew_at: Instant,
    /// When the writer looks for posts.
    pub(super) look_at: Instant,
    /// When the writer stores the changes that nobody waits for.
    pub(super) commit_at: Option<Instant>,
}

impl State {
    pub(super) fn new(by: String, head: EntryHead, stored_bytes: usize) -> Self {
        let added = (stored_bytes as u64).saturating_sub(head.whole_bytes);
        Self {
            by,
            head,
            added,
            is_stale: false,
            needs_whole: false,
            claims: 0,
            adopted: None,
            lost: None,
            pending: None,
            is_uncertain: false,
            taking: Vec::new(),
            waiting: Waiting::default(),
            has_writer: false,
            clock: None,
            renew_at: Instant::now(),
            look_at: Instant::now(),
            commit_at: None,
        }
    }

    /// Takes over a time of the store's clock, and when it had arrived.
    pub(super) fn read_clock(&mut self, time: SystemTime, at: Instant) {
        self.clock = Some((time, at));
    }

    pub(super) fn knows_clock(&self) -> bool {
        self.clock.is_some()
    }

    /// Returns the time by the clock of the store, or a little less. Before it was read, by that of this machine.
    pub(super) fn now(&self) -> SystemTime {
        self.clock.map_or_else(SystemTime::now, |(time, read)| time + read.elapsed())
    }

    /// Returns `true` if this process holds the entry, as far as it knows.
    pub(super) fn is_held(&self) -> bool {
        self.head.holder.as_ref().is_some_and(|holder| holder.by == self.by)
    }

    /// Returns the other process that holds the entry, as far as this one knows.
    pub(super) fn other_holder(&self) -> Option<&Holder> {
        self.head.holder.as_ref().filter(|holder| holder.by != self.by)
    }

    /// Returns `true` if runs have a claim that was not lost.
    pub(super) fn is_claimed(&self) -> bool {
        self.claims > 0 && self.lost.is_none()
    }

    /// Takes one claim back. The last one asks the writer to release the entry. Returns the error of a claim that was
    /// lost.
    ///
    /// The writer takes the owner, and keeps it until it has asked it for its last changes. After a loss there are none.
    pub(super) fn give_up(&mut self, owner: &mut Option<Arc<dyn Journaled>>) -> Option<StoreError> {
        self.claims -= 1;
        if self.claims > 0 {
            return self.lost.clone();
        }
        let lost = self.lost.take();
        self.waiting.releases = lost.is_none();
        if lost.is_none() {
            self.waiting.owners.extend(owner.take());
        }
        lost
    }

    /// Returns `true` if the next change hides or replaces all parts. `releases` is `true` if it releases the entry.
    pub(super) fn is_whole_due(&self, releases: bool) -> bool {
        let least = if releases { ADDED_AT_END } else { ADDED };
        self.needs_whole || self.head.revision == Revision::NONE || self.added > least.max(self.head.whole_bytes)
    }

    /// Takes over a head that was read.
    pub(super) fn read(&mut self, head: EntryHead, parts: &[Bytes]) {
        self.added = length(parts).saturating_sub(head.whole_bytes);
        self.head = head;
        self.is_stale = false;
        self.needs_whole = false;
        // The owner has what is stored.
        self.taking.clear();
    }

    /// Takes over an append that was stored.
    pub(super) fn stored(&mut self, append: &Append, revision: Revision) {
        self.adopted = None;
        let is_whole = append.replaces || append.hides_older;
        self.added = if is_whole { 0 } else { self.added + length(&append.parts) };
        self.needs_whole &= !is_whole;
        let holder = append.lease.map(|lease| Holder { by: append.by.clone(), until: SystemTime::now() + lease });
        self.taking.retain(|id| !append.takes.contains(id));
        // Posts that have come since are found by the next look, or by the conflict of the next append.
        self.head = EntryHead { revision, holder, posts: 0, ..append.head.clone() };
        // A repeated append may have returned the revision of a later post.
        self.is_stale |= self.is_uncertain && append.lease.is_none();
    }
}

pub(super) fn length(parts: &[Bytes]) -> u64 {
    parts.iter().map(|part| part.len() as u64).sum()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// S10
    #[test]
    fn all_bytes_that_are_written_are_at_most_three_times_the_bytes_that_were_added() {
        let mut state = State::new("x".to_owned(), EntryHead::new("a", "test"), 0);
        let part = Bytes::from(vec![0; 100_000]);
        let mut total = 0;
        let mut written = 0;
        let mut replaced = 0;
        for n in 1..=2_000 {
            total += part.len() as u64;
            let mut append = Append::new(state.head.clone());
            append.replaces = state.is_whole_due(true);
            append.parts = vec![part.clone(); if append.replaces { n } else { 1 }];
            if append.replaces {
                append.head.whole_bytes = total;
                replaced += 1;
            }
            written += length(&append.parts);
            state.stored(&append, Revision::new(n as u64));
            assert!(written <= 3 * total, "{written} bytes for {total}");
            if n % 100 == 0 {
                // Another process goes on.
                state = State::new("x".to_owned(), state.head.clone(), total as usize);
            }
        }
        assert!(replaced > 2, "{replaced}");
    }
}
