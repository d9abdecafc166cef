//! A job that is open in this process, and its journal.

use std::mem;
use std::sync::{Arc, Weak};
use std::time::Duration;

use bytes::Bytes;
use chrono::{DateTime, Utc};
use emitree_runtime::{Answer, Error, Interrupt, Result};
use parking_lot::Mutex;
use serde_json::Map;
use uuid::Uuid;

use super::AlreadyAnswered;
use super::record::Sent;
use super::state::JobState;
use super::taken::Adopted;
use crate::store::{
    Change, Entry, EntryHead, EntryStatus, Journal, Journaled, Lease, Older, OpenEntries, Post, Posted, Rest, Revision,
    Store, StoreError,
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
    let has_posts = head.posts > 0;
    let job = Arc::new_cyclic(|job: &Weak<Job>| {
        let owner: Weak<dyn Journaled> = job.clone();
        let journal = Journal::new(Arc::clone(store), head, bytes, lease, owner);
        Job { journal, state: Mutex::new(state) }
    });
    let job = OPEN.insert_or_get(store.store_id(), id, job);
    if has_posts {
        job.journal.refresh().await?;
    }
    Ok(job)
}

impl Job {
    pub(super) fn questions(&self) -> Vec<Interrupt> {
        self.state.lock().questions().to_vec()
    }

    /// Returns the time by the clock of the store.
    pub(super) fn now(&self) -> DateTime<Utc> {
        self.journal.now().into()
    }

    /// See [`JobState::meet_deadline`].
    pub(super) fn meet_deadline(&self, question: &mut Interrupt) -> Result<bool> {
        if let Some(deadline) = &mut question.deadline {
            deadline.at = deadline.at.map(|at| self.journal.store_time(at));
        }
        self.state.lock().meet_deadline(question, self.journal.now())
    }

    /// Answers the questions whose deadlines are over, as any process answers them: another one may have been first (F5).
    pub(super) async fn meet_deadlines(&self) -> Result<()> {
        let overdue = self.state.lock().overdue(self.journal.now());
        for (id, answer) in overdue {
            let Ok(key) = self.state.lock().check_answer(&id, &answer) else { continue };
            let sent = Sent::Answer { id: id.clone(), answer: answer.clone() }.to_post()?.key(key);
            match self.journal.post_and_take(&sent).await {
                Ok(Posted::Refused(first)) if serde_json::from_slice::<Sent>(&first.body).is_err() => {}
                Err(StoreError::Full { .. } | StoreError::Invalid { .. }) => {}
                Ok(_) => continue,
                Err(error) => {
                    tracing::warn!(question = id, %error, "the deadline of a question has to wait");
                    continue;
                }
            }
            // Nobody can send an answer: the first one was taken and dropped, or the store takes none.
            _ = self.state.lock().answer(&id, &answer);
        }
        Ok(())
    }

    /// Sends an answer, under the key of its question. If no process works on the job, this one takes it over.
    pub(super) async fn post_answer(&self, id: &str, answer: &Answer) -> Result<()> {
        let sent = Sent::Answer { id: id.to_owned(), answer: answer.clone() };
        let mut before = None;
        loop {
            let checked = self.state.lock().check_answer(id, answer);
            let key = match checked {
                // It was sent before, and its reply was lost.
                Err(error) if error.find::<AlreadyAnswered>().is_some_and(|already| already.first == *answer) => {
                    return Ok(());
                }
                key => key?,
            };
            if before.as_ref() == Some(&key) {
                return Err(Error::new(format!("the question `{id}` has another answer, which was dropped")));
            }
            let posted = self.journal.post_and_take(&sent.to_post()?.key(&*key)).await?;
            let Posted::Refused(first) = posted else { return Ok(()) };
            match serde_json::from_slice(&first.body) {
                Ok(Sent::Answer { answer: first, .. }) if first == *answer => return Ok(()),
                Ok(Sent::Answer { answer: first, .. }) => {
                    return Err(AlreadyAnswered { id: id.to_owned(), first }.into());
                }
                // The job has it. If it did not fit, the question is open again, under another key.
                _ => self.journal.refresh().await?,
            };
            before = Some(key);
        }
    }

    /// Stores what has changed. Returns `false` if another process was faster: then the job has to be opened again.
    pub(super) async fn is_stored(&self) -> Result<bool> {
        match self.journal.commit().await {
            Ok(_) => Ok(true),
            Err(StoreError::Conflict { current, .. }) if current != Revision::NONE => Ok(false),
            Err(StoreError::Held { .. }) => Ok(false),
            Err(error) => Err(error.into()),
        }
    }

    /// Aborts the run of the job. A job without a run is paused.
    fn stop(&self, reason: &str) {
        let run = {
            let mut state = self.state.lock();
            let run = state.start.run.clone();
            match &run {
                Some(_) => state.start.stops_with = Some(reason.to_owned()),
                None => _ = state.stop(reason).inspect_err(|error| tracing::warn!(%error, "a job cannot be stopped")),
            }
            run
        };
        if let Some(run) = run {
            run.abort(reason);
        }
    }

    /// Returns `true` if a worker that has taken the job does not run it now.
    pub(super) fn is_at_rest(&self) -> bool {
        let state = self.state.lock();
        match state.listed_status() {
            // Also if it comes back after a failure: its time has come.
            EntryStatus::Queued | EntryStatus::Running => false,
            _ if state.is_asleep() => false,
            _ => state.rest(0, self.journal.now()).due != Some(Duration::ZERO),
        }
    }

    /// Stores a change of the state.
    pub(super) async fn commit(&self, change: impl FnOnce(&mut JobState) -> Result<()>) -> Result<Revision> {
        change(&mut self.state.lock())?;
        Ok(self.journal.commit().await?)
    }
}

impl Adopted for Job {
    fn journal(&self) -> &Journal {
        &self.journal
    }

    fn hand_over(&self) {
        let run = {
            let mut state = self.state.lock();
            state.is_handed_over = true;
            state.start.run.clone()
        };
        if let Some(run) = run {
            run.abort("its worker is shut down");
        }
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
        let gets_on = state.take_gets_on();
        let queue = state.submission.as_ref().map(|submission| submission.queue.clone());
        Ok(is_new.then(|| Change { status, questions, meta: Map::new(), parts, older, gets_on, queue }))
    }

    fn rest(&self, attempts: u32) -> Rest {
        self.state.lock().rest(attempts, self.journal.now())
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

    fn take(&self, posts: &[Post]) -> Vec<Uuid> {
        for post in posts {
            match serde_json::from_slice(&post.body) {
                Ok(Sent::Answer { id, answer }) => self.state.lock().take_answer(&id, answer, post.key.as_deref()),
                Ok(Sent::Abort { reason }) => self.stop(&reason),
                Ok(Sent::Wake) => self.state.lock().wake(),
                Err(error) => {
                    tracing::warn!(%error, "what was sent to the job `{}` cannot be read", self.journal.id());
                }
            }
        }
        posts.iter().map(|post| post.id).collect()
    }

    fn lost(&self, error: &StoreError) {
        let run = self.state.lock().start.run.clone();
        if let Some(run) = run {
            run.abort(error.to_string());
        }
    }
}
