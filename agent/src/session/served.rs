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
                known.ended = EntryStatus::Queued;
            }
        }
        let claim = self.claim(false).await?;
        self.known.lock().guards = taken.guards().to_vec();
        let guards = self.log.upgrade().map(|log| log.lock().fold.guards.clone()).unwrap_or_default();
        let stuck = taken.stuck(guards.iter().map(String::as_str), None).filter(|_| !self.is_at_rest());
        let refused = match stuck {
            // The answer of a person may be among them: then its attempts are counted from 0 again.
            Some(_) if taken.head().posts > 0 => {
                self.known.lock().is_handed_over = true;
                Error::new(format!("the session `{}` takes what was sent to it first", self.journal.id()))
            }
            Some(question) => {
                let question = question.with_id(format!("{}/stuck/{}", taken.head().id, taken.head().revision));
                self.push_stuck(&question)?;
                Error::interrupted(question)
            }
            None if self.is_at_rest() => {
                Error::new(format!("the session `{}` has nothing to go on with", self.journal.id()))
            }
            None => return Ok(claim),
        };
        claim.release().await.map_err(not_stored)?;
        Err(refused)
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

    /// Returns `true` if a run can go on with the session, because its questions have answers.
    pub(super) fn is_answered(&self) -> bool {
        let Some(log) = self.log.upgrade() else { return false };
        let now = Now::of(&log.lock().fold);
        self.known.lock().status(&now, false) == EntryStatus::Running
    }

    /// Lets workers go on with the job that has the session in one of its steps: its id is the first part of the key.
    pub(super) async fn wake_job(&self) -> Result<(), StoreError> {
        match self.journal.id().split_once('/') {
            Some((job, _)) => Durable::new(&self.kept.store, job).wake().await,
            None => Ok(()),
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
