//! The progress of a run through its journal.

use std::collections::HashMap;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};

use emitree_runtime::{Error, ErrorKind, Status};
use parking_lot::Mutex;
use uuid::Uuid;

use super::difference::{Call, Difference};
use crate::record::{AttemptResult, Entry, RunJournal};
use crate::shared::difference::first_difference;

#[derive(Debug)]
pub(super) struct ReplayProgress {
    journal: Arc<RunJournal>,
    state: Mutex<ReplayState>,
}

#[derive(Debug, Default)]
struct ReplayState {
    /// `true` for each entry that a run was matched with.
    taken: Vec<bool>,
    /// The index of the entry of each matched run, by the run's id.
    runs: HashMap<Uuid, usize>,
    /// The number of attempts of the replayed run that have ended.
    rounds: u32,
    difference: Option<Box<Difference>>,
    /// Wakes the replayed run at the first difference.
    waker: Option<Waker>,
}

/// The data of a started run that [`ReplayProgress::find_entry`] needs.
pub(super) struct StartedRun {
    pub(super) run_id: Uuid,
    pub(super) parent: Option<Uuid>,
    /// The label of the parent run, as `Kind[name]`.
    pub(super) within: String,
    pub(super) call: Call,
}

/// The reply to an attempt of a run below the replayed run.
pub(super) enum Reply {
    Answer(AttemptResult),
    /// The run was attempted again after this answer.
    Retried(AttemptResult),
    Fails(Error),
    /// The recorded work was stopped: the run stays pending until it is stopped in the replay as well.
    Pends,
}

impl ReplayProgress {
    pub(super) fn of(journal: Arc<RunJournal>) -> Self {
        let taken = vec![false; journal.entries.len()];
        Self { journal, state: Mutex::new(ReplayState { taken, ..ReplayState::default() }) }
    }

    pub(super) fn entry(&self, index: usize) -> Option<&Entry> {
        self.journal.entries.get(index)
    }

    /// Finds and takes the entry of a run that has started; if no entry matches, returns the first difference.
    pub(super) fn find_entry(&self, came: &StartedRun) -> Result<usize, Box<Difference>> {
        let mut state = self.state.lock();
        let parent = came.parent.and_then(|parent| state.runs.get(&parent)).map(|index| *index as u64 + 1);
        // Each entry is matched once, and only with a child of the run that matches the parent's entry, so that
        // concurrent runs do not take each other's entries.
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
        // Distinguish a run with another input from a run that the journal does not contain at all.
        let difference = came.differs(other.map(|(_, entry)| entry), next.map(|(_, entry)| entry));
        drop(state);
        Err(self.differ(difference))
    }

    fn entries(&self) -> impl Iterator<Item = (usize, &Entry)> {
        self.journal.entries.iter().enumerate()
    }

    /// Records a difference if it is the first, and stops the replayed run. Returns the first difference.
    fn differ(&self, difference: Difference) -> Box<Difference> {
        let mut state = self.state.lock();
        // Several threads may find a difference at the same time: all runs fail with the first difference.
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
        // Release the lock before dropping the old waker: its drop may call user code.
        let before = state.waker.replace(cx.waker().clone());
        drop(state);
        drop(before);
        Poll::Pending
    }

    /// Ends an attempt of the replayed run; returns the first difference, or else the first run that is missing.
    pub(super) fn end_of_round(&self, within: &str) -> Option<Box<Difference>> {
        let mut state = self.state.lock();
        let round = state.rounds;
        state.rounds += 1;
        // Entries of later attempts of the replayed run are not missing yet.
        let is_due = |entry: &Entry| entry.parent.is_none() && entry.round <= round;
        let missing = self.entries().find(|(index, entry)| is_due(entry) && !state.taken[*index]);
        let missing = missing.map(|(_, entry)| {
            let within = within.to_owned();
            let expected = Call::of(entry);
            Box::new(Difference::Missing { within, entry: entry.id, expected })
        });
        state.difference.clone().or(missing)
    }

    /// Returns the answer to an attempt of a run. Attempts are counted from 0.
    pub(super) fn reply(&self, index: usize, attempt: usize) -> Result<Reply, Box<Difference>> {
        let Some(entry) = self.entry(index) else { return Ok(Reply::Pends) };
        if let Some(answer) = entry.answers.get(attempt) {
            // After every answer except the last, the recorded run was retried. If such an answer is a request for a
            // retry, the replay must make the request again.
            let is_last = attempt + 1 == entry.answers.len();
            return Ok(if is_last { Reply::Answer(answer.clone()) } else { Reply::Retried(answer.clone()) });
        }
        let came = Call::of(entry);
        let entry_id = entry.id;
        if !entry.was_stopped() {
            // A run may fail without an answer, for example in a listener of `start`: then its error is the answer.
            return match &entry.error {
                Some(error) if entry.answers.is_empty() => Ok(Reply::Fails(Error::from((**error).clone()))),
                _ => Err(self.differ(Difference::OneMoreAttempt { entry: entry_id, came, attempts: attempt })),
            };
        }
        // If the recorded run was stopped while this run was under way, the recording ends here.
        if is_stopped(self.journal.status) {
            return Err(self.differ(Difference::Ends { entry: entry_id, came }));
        }
        Ok(Reply::Pends)
    }
}

impl StartedRun {
    fn differs(&self, other: Option<&Entry>, next: Option<&Entry>) -> Difference {
        let within = self.within.clone();
        let came = self.call.clone();
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
    /// Returns `true` if the run's work was stopped from outside, and so has no result.
    fn was_stopped(&self) -> bool {
        let stopped = [ErrorKind::Aborted, ErrorKind::TimedOut, ErrorKind::Dropped];
        self.error.as_ref().map_or_else(|| is_stopped(self.status), |error| stopped.contains(&error.kind))
    }
}

/// Returns `true` if a run was stopped. A run that had not ended when the recording ended counts as stopped.
const fn is_stopped(status: Option<Status>) -> bool {
    matches!(status, None | Some(Status::Aborted | Status::TimedOut | Status::Dropped))
}
