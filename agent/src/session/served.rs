//! Sessions that workers go on with (F2, F7).

use std::mem::take;
use std::sync::Arc;
use std::time::Duration;

use emitree_middleware::Durable;
use emitree_middleware::durable::{Adopted, TakenEntry};
use emitree_middleware::store::{Claim, EntryHead, EntryStatus, Journal, Revision, StoreError};
use emitree_runtime::{Error, Interrupt, Result};

use crate::session::Session;
use crate::session::entry::{KIND, Kept, SessionEntry, not_stored};
use crate::session::keys::read_key;
use crate::session::log::Log;
use crate::session::past::Keep;
use crate::session::record::Record;
use crate::session::status::Now;

/// A session that a worker has taken.
struct Taken {
    log: Arc<Log>,
    entry: Arc<SessionEntry>,
}

impl Adopted for Taken {
    fn journal(&self) -> &Journal {
        &self.entry.journal
    }

    fn hand_over(&self) {
        self.entry.known.lock().is_handed_over = true;
        let runs = self.log.lock().runs();
        runs.iter().for_each(|run| _ = run.abort("its worker is shut down"));
    }
}

impl SessionEntry {
    /// Returns the session of an entry that a worker has taken. It is read when a run claims it.
    pub(crate) fn of_taken(taken: &TakenEntry) -> Result<Session> {
        let EntryHead { id, kind, .. } = taken.head();
        if kind != KIND {
            return Err(Error::new(format!("an agent goes on with a `{KIND}`, and has got the {kind} `{id}`")));
        }
        let key = read_key(id).map_err(Error::new)?;
        // Others may have opened it to keep its turns.
        let kept = Kept { store: Arc::clone(taken.store()), lease: taken.lease().clone(), keep: Keep::Everything };
        let session = Self::unread(&key, kept);
        if let Some(entry) = session.log.entry() {
            taken.set_owner(Arc::new(Taken { log: Arc::clone(&session.log), entry: Arc::clone(entry) }));
        }
        Ok(session)
    }

    /// Claims the session that a worker has taken. Returns an error, and releases it, if there is nothing to go on with, or
    /// if a person has to be asked.
    pub(crate) async fn claim_taken(&self, taken: &TakenEntry) -> Result<Claim> {
        taken.adopt().await.map_err(not_stored)?;
        {
            let known = &mut *self.known.lock();
            if known.comes_back {
                // Its time has come.
                (known.ended, known.comes_back) = (EntryStatus::Queued, false);
            }
        }
        let takes_posts = self.can_take_posts(taken.head()).await?;
        if taken.head().posts > 0 && !takes_posts && self.is_at_rest() {
            taken.note_wait();
            let id = self.journal.id();
            return Err(Error::new(format!("the session `{id}` waits, and has no place for the messages to it")));
        }
        let claim = self.claim(false).await?;
        self.known.lock().guards = taken.guards().to_vec();
        let Some(refused) = self.refuse(taken, takes_posts)? else { return Ok(claim) };
        // Unless a person is asked, nothing was tried.
        self.known.lock().is_handed_over = !refused.is_interrupted();
        let released = claim.release().await;
        self.known.lock().is_handed_over = false;
        released.map_err(not_stored)?;
        Err(refused)
    }

    /// Returns the reason for which no run goes on with a session that was taken: it has nothing to go on with, or a person
    /// has to be asked.
    fn refuse(&self, taken: &TakenEntry, takes_posts: bool) -> Result<Option<Error>> {
        let EntryHead { id, revision, .. } = taken.head();
        if self.is_at_rest() {
            return Ok(Some(Error::new(format!("the session `{id}` has nothing to go on with"))));
        }
        let guards = self.log.upgrade().map(|log| log.lock().fold.guards.clone()).unwrap_or_default();
        let Some(question) = taken.stuck(guards.iter().map(String::as_str), None) else { return Ok(None) };
        // The answer of a person may be among the posts: then its attempts are counted from 0 again.
        if takes_posts {
            return Ok(Some(Error::new(format!("the session `{id}` takes what was sent to it first"))));
        }
        let question = question.with_id(format!("{id}/stuck/{revision}"));
        self.push_stuck(&question)?;
        Ok(Some(Error::interrupted(question)))
    }

    /// Returns `true` if some of the posts that wait can be taken over.
    async fn can_take_posts(&self, head: &EntryHead) -> Result<bool> {
        let Some(log) = self.log.upgrade().filter(|_| head.posts > 0) else { return Ok(false) };
        let posts = self.kept.store.posts(&head.id).await.map_err(not_stored)?;
        Ok(posts.iter().any(|post| !self.post_has_to_wait(&log, post)))
    }

    fn push_stuck(&self, question: &Interrupt) -> Result<()> {
        let Some(log) = self.log.upgrade() else { return Ok(()) };
        let record = Record::Stuck { question: Box::new(question.clone()) };
        log.lock().push(log.root(), record).map_err(Error::new)
    }

    /// Returns `true` if workers do not go on with the session now.
    fn is_at_rest(&self) -> bool {
        let Some(log) = self.log.upgrade() else { return true };
        let now = Now::of(&log.lock().fold);
        let known = &*self.known.lock();
        let status = known.status(&now, true);
        known.rest(status, &now.questions, 1, self.journal.now()).due != Some(Duration::ZERO)
    }

    /// Returns `true` if workers serve a queue.
    pub(super) async fn is_served(&self, queue: &str) -> Result<bool, StoreError> {
        let workers = self.kept.store.workers().await?;
        Ok(workers.iter().any(|worker| worker.serves(queue)))
    }

    /// Stores the session if the store does not have it.
    pub(super) async fn store_first(&self) -> Result<(), StoreError> {
        if self.is_stored() {
            return Ok(());
        }
        match self.journal.commit().await {
            // Another process has stored it.
            Err(StoreError::Conflict { current, .. }) if current != Revision::NONE => Ok(()),
            Err(StoreError::Held { .. }) => Ok(()),
            stored => stored.map(drop),
        }
    }

    /// Lets workers go on with the job that has the session in one of its steps: its id is the first part of the key.
    pub(super) async fn wake_job(&self) {
        let Some((job, _)) = self.journal.id().split_once('/') else { return };
        if let Err(error) = Durable::new(&self.kept.store, job).wake().await {
            let session = self.journal.id();
            tracing::warn!(session, %error, "the job of a session is woken when the session is opened again");
        }
    }

    /// Pauses a session that no run uses. Returns `false` if nothing waits in it.
    pub(super) fn pause(&self) -> bool {
        let Some(log) = self.log.upgrade() else { return false };
        let now = Now::of(&log.lock().fold);
        let known = &mut *self.known.lock();
        let status = known.status(&now, self.journal.queue().is_some());
        if matches!(status, EntryStatus::Ended | EntryStatus::Failed | EntryStatus::Paused) {
            return false;
        }
        known.be_paused();
        true
    }

    /// Notes that the runs that use the session, or that are about to, are stopped.
    pub(super) fn note_stop(&self, reason: String) {
        let known = &mut *self.known.lock();
        known.be_paused();
        known.is_stopped = true;
        if known.claiming > 0 {
            known.stops = Some(reason);
        }
    }

    /// Takes the reason with which the session was stopped before its run has begun.
    pub(super) fn take_stop(&self) -> Option<String> {
        take(&mut self.known.lock().stops)
    }
}
