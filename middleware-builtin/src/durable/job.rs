//! A job that is open in this process, and its journal.

use std::mem;
use std::sync::{Arc, Weak};

use bytes::Bytes;
use emitree_runtime::{Answer, Interrupt, Result};
use parking_lot::Mutex;
use serde_json::Map;

use super::AlreadyAnswered;
use super::state::JobState;
use crate::store::{
    Change, Entry, EntryHead, Journal, Journaled, Lease, Older, OpenEntries, Revision, Store, StoreError,
};

/// The kind of the entries of jobs.
pub(super) const KIND: &str = "job";

static OPEN: OpenEntries<Job> = OpenEntries::new();

pub(super) struct Job {
    pub(super) journal: Journal,
    pub(super) state: Mutex<JobState>,
}

/// Opens a job as it is stored now. A job that is open in this process is the same value.
pub(super) async fn open(store: &Arc<dyn Store>, id: &str, lease: &Lease) -> Result<Arc<Job>> {
    if let Some(job) = OPEN.get(store.store_id(), id) {
        job.journal.refresh().await?;
        return Ok(job);
    }
    let entry = store.load(id).await?;
    let state = entry.as_ref().map_or_else(|| Ok(JobState::new()), JobState::read)?;
    let Entry { head, parts, .. } = entry.unwrap_or_else(|| Entry::new(EntryHead::new(id, KIND), Vec::new()));
    let bytes = parts.iter().map(Bytes::len).sum();
    let job = Arc::new_cyclic(|job: &Weak<Job>| {
        let owner: Weak<dyn Journaled> = job.clone();
        let journal = Journal::new(Arc::clone(store), head, bytes, lease.clone(), owner);
        Job { journal, state: Mutex::new(state) }
    });
    Ok(OPEN.insert_or_get(store.store_id(), id, job))
}

impl Job {
    pub(super) fn questions(&self) -> Vec<Interrupt> {
        self.state.lock().questions().to_vec()
    }

    /// Keeps and stores an answer.
    pub(super) async fn answer(&self, id: &str, answer: &Answer) -> Result<()> {
        let mut is_current = false;
        loop {
            let kept = self.state.lock().answer(id, answer);
            if let Err(error) = &kept
                && (is_current || error.find::<AlreadyAnswered>().is_none())
            {
                return kept;
            }
            match self.journal.commit().await {
                // Another process has changed the job, which was read again.
                Err(StoreError::Conflict { current, .. }) if current != Revision::NONE => {}
                Err(error) => return Err(error.into()),
                Ok(_) if kept.is_ok() => return Ok(()),
                // The first answer is stored now, or another process has given another one.
                Ok(_) => is_current = true,
            }
        }
    }

    /// Stores a change of the state.
    pub(super) async fn commit(&self, change: impl FnOnce(&mut JobState) -> Result<()>) -> Result<Revision> {
        change(&mut self.state.lock())?;
        Ok(self.journal.commit().await?)
    }
}

impl Journaled for Job {
    fn change(&self, whole: bool) -> Result<Option<Change>, StoreError> {
        let mut state = self.state.lock();
        let status = state.listed_status();
        let questions = state.listed_questions();
        let message = || format!("the job `{}` cannot be stored", self.journal.id());
        let everything = if whole { Some(state.whole()) } else { None };
        let everything = everything.transpose().map_err(|error| StoreError::failed(message(), error))?;
        let unstored = state.take_unstored().map_err(|error| StoreError::failed(message(), error))?;
        let is_new = whole || !unstored.is_empty() || state.listed != status;
        state.listed = status;
        let parts = everything.unwrap_or(unstored);
        let older = if whole { Older::Removed } else { Older::Stay };
        Ok(is_new.then(|| Change { status, questions, meta: Map::new(), parts, older }))
    }

    fn reload(&self, entry: &Entry) -> Result<(), StoreError> {
        let mut read = JobState::read(entry)?;
        let mut state = self.state.lock();
        read.start = mem::take(&mut state.start);
        let before = mem::replace(&mut *state, read);
        drop(state);
        drop(before);
        Ok(())
    }

    fn lost(&self, error: &StoreError) {
        let run = self.state.lock().start.run.clone();
        if let Some(run) = run {
            run.abort(error.to_string());
        }
    }
}
