//! How far a run has come in its journal.

use std::collections::HashMap;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};

use emitree_runtime::{Error, ErrorKind, Status};
use parking_lot::Mutex;
use uuid::Uuid;

use super::difference::{Call, Difference, first_difference};
use crate::record::{Answer, Entry, Journal};

#[derive(Debug)]
pub(super) struct ReplayProgress {
    journal: Arc<Journal>,
    state: Mutex<ReplayState>,
}

#[derive(Debug, Default)]
struct ReplayState {
    /// Which entries have come.
    taken: Vec<bool>,
    /// Which entry a run is, by its index.
    runs: HashMap<Uuid, usize>,
    /// How many attempts of the run itself are over.
    rounds: u32,
    difference: Option<Box<Difference>>,
    /// Who stops at the first difference.
    waker: Option<Waker>,
}

/// A run that has started.
pub(super) struct StartedRun {
    pub(super) run_id: Uuid,
    pub(super) parent: Option<Uuid>,
    /// What the run is called in which it was started.
    pub(super) within: String,
    pub(super) call: Call,
}

/// What a run below is answered with.
pub(super) enum Reply {
    Answer(Answer),
    /// It was attempted again after this.
    Retried(Answer),
    Fails(Error),
    /// What stopped it will do so again.
    Pends,
}

impl ReplayProgress {
    pub(super) fn of(journal: Arc<Journal>) -> Self {
        let taken = vec![false; journal.entries.len()];
        Self { journal, state: Mutex::new(ReplayState { taken, ..ReplayState::default() }) }
    }

    pub(super) fn entry(&self, index: usize) -> Option<&Entry> {
        self.journal.entries.get(index)
    }

    /// Finds the entry of a run that has started, or the first difference.
    pub(super) fn meet(&self, came: &StartedRun) -> Result<usize, Box<Difference>> {
        let mut state = self.state.lock();
        let parent = came.parent.and_then(|parent| state.runs.get(&parent)).map(|index| *index as u64 + 1);
        let left = |(index, entry): &(usize, &Entry)| entry.parent == parent && !state.taken[*index];
        let is_called = |entry: &Entry| entry.kind == came.call.kind && entry.name == came.call.name;
        let mut same = self.entries().filter(left).filter(|(_, entry)| is_called(entry));
        if let Some((index, _)) = same.find(|(_, entry)| entry.input == came.call.input) {
            state.taken[index] = true;
            state.runs.insert(came.run_id, index);
            return Ok(index);
        }
        let other = self.entries().filter(left).find(|(_, entry)| is_called(entry));
        let next = self.entries().find(left);
        let difference = came.differs(other.map(|(_, entry)| entry), next.map(|(_, entry)| entry));
        drop(state);
        Err(self.differ(difference))
    }

    fn entries(&self) -> impl Iterator<Item = (usize, &Entry)> {
        self.journal.entries.iter().enumerate()
    }

    /// Stops the run that is replayed, if nothing has before; gives what it stops for.
    fn differ(&self, difference: Difference) -> Box<Difference> {
        let mut state = self.state.lock();
        let first = state.difference.get_or_insert_with(|| Box::new(difference)).clone();
        let waker = state.waker.take();
        drop(state);
        waker.into_iter().for_each(Waker::wake);
        first
    }

    pub(super) fn poll_difference(&self, cx: &Context<'_>) -> Poll<Box<Difference>> {
        let mut state = self.state.lock();
        if let Some(difference) = &state.difference {
            return Poll::Ready(difference.clone());
        }
        let before = state.waker.replace(cx.waker().clone());
        drop(state);
        drop(before);
        Poll::Pending
    }

    /// An attempt of the run itself is over: a difference, if a run has not come, or if there was one at the very end.
    pub(super) fn end_of_round(&self, within: &str) -> Option<Box<Difference>> {
        let mut state = self.state.lock();
        let round = state.rounds;
        state.rounds += 1;
        let is_due = |entry: &Entry| entry.parent.is_none() && entry.round <= round;
        let missing = self.entries().find(|(index, entry)| is_due(entry) && !state.taken[*index]);
        let missing = missing.map(|(_, entry)| {
            let (within, expected) = (within.to_owned(), Call::of(entry));
            Box::new(Difference::Missing { within, entry: entry.id, expected })
        });
        state.difference.clone().or(missing)
    }

    /// What a run is answered with, in an attempt counted from 0.
    pub(super) fn reply(&self, index: usize, attempt: usize) -> Result<Reply, Box<Difference>> {
        let Some(entry) = self.entry(index) else { return Ok(Reply::Pends) };
        if let Some(answer) = entry.answers.get(attempt) {
            let is_last = attempt + 1 == entry.answers.len();
            return Ok(if is_last { Reply::Answer(answer.clone()) } else { Reply::Retried(answer.clone()) });
        }
        let (came, entry_id) = (Call::of(entry), entry.id);
        if !entry.was_stopped() {
            return match &entry.error {
                Some(error) if entry.answers.is_empty() => Ok(Reply::Fails(Error::from((**error).clone()))),
                _ => Err(self.differ(Difference::OneMoreAttempt { entry: entry_id, came, attempts: attempt })),
            };
        }
        if is_stopped(self.journal.status) {
            return Err(self.differ(Difference::Ends { entry: entry_id, came }));
        }
        Ok(Reply::Pends)
    }
}

impl StartedRun {
    fn differs(&self, other: Option<&Entry>, next: Option<&Entry>) -> Difference {
        let (within, came) = (self.within.clone(), self.call.clone());
        match other {
            Some(entry) => Difference::OtherInput {
                within,
                came,
                entry: entry.id,
                expected: Call::of(entry),
                place: first_difference(&entry.input, &self.call.input),
            },
            None => {
                let expected = next.map(|entry| (entry.id, Call::of(entry)));
                Difference::Unexpected { within, came, expected }
            }
        }
    }
}

impl Entry {
    /// Whether something stopped its work from outside, so that it came to nothing by itself.
    fn was_stopped(&self) -> bool {
        let stopped = [ErrorKind::Aborted, ErrorKind::TimedOut, ErrorKind::Dropped];
        self.error.as_ref().map_or_else(|| is_stopped(self.status), |error| stopped.contains(&error.kind))
    }
}

/// Not having ended is a way of being stopped: that of the recording.
const fn is_stopped(status: Option<Status>) -> bool {
    matches!(status, None | Some(Status::Aborted | Status::TimedOut | Status::Dropped))
}
