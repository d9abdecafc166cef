//! An entry that a worker has taken: [`TakenEntry`].

use std::fmt;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};

use emitree_runtime::{Error, Interrupt, Layer, Next, Op, Result, RunContext, Summary};
use serde_json::json;
use tokio::time::Instant;

use super::record::STUCK;
use crate::store::{EntryHead, Journal, Lease, Store, StoreError};

/// How often an entry is taken without getting on before a person is asked.
const ATTEMPTS: u32 = 5;

/// The owner of an entry that a [`Worker`](super::Worker) has taken: a job, or the session of an agent.
pub trait Adopted: Send + Sync + 'static {
    /// Returns the journal of the entry.
    fn journal(&self) -> &Journal;

    /// Aborts the run that goes on with the entry, because its worker stops. When it is released, the entry is due at once,
    /// with one [attempt](EntryHead::attempts) less.
    fn hand_over(&self);
}

/// An entry that a [`Worker`](super::Worker) has taken: an extension of the run that goes on with it, unless it is a job.
///
/// When the run is bound, its runnable finds the entry here, and [sets](Self::set_owner) its owner. Otherwise the run fails
/// before its work, because the runnable does not know such entries. Before its work, the run [adopts](Self::adopt) the
/// entry, and claims it. Clones are the same entry.
#[derive(Clone)]
pub struct TakenEntry(Arc<Inner>);

struct Inner {
    store: Arc<dyn Store>,
    lease: Lease,
    head: EntryHead,
    /// When the store had returned it.
    at: Instant,
    /// The guards of the runnable that goes on with it.
    guards: Vec<String>,
    owner: OnceLock<Arc<dyn Adopted>>,
    waits: AtomicBool,
}

impl TakenEntry {
    pub(super) fn new(store: Arc<dyn Store>, lease: Lease, head: EntryHead, at: Instant, guards: Vec<String>) -> Self {
        Self(Arc::new(Inner { store, lease, head, at, guards, owner: OnceLock::new(), waits: AtomicBool::new(false) }))
    }

    /// Returns the store.
    #[must_use]
    pub fn store(&self) -> &Arc<dyn Store> {
        &self.0.store
    }

    /// Returns the lease of the worker.
    #[must_use]
    pub fn lease(&self) -> &Lease {
        &self.0.lease
    }

    /// Returns the head, as the store has returned it.
    #[must_use]
    pub fn head(&self) -> &EntryHead {
        &self.0.head
    }

    /// Returns the names of the guards of the runnable that goes on with it.
    #[must_use]
    pub fn guards(&self) -> &[String] {
        &self.0.guards
    }

    /// Notes that the entry waits for a post, so that its worker takes it again in a second, and counts no attempt.
    pub fn note_wait(&self) {
        self.0.waits.store(true, Ordering::Relaxed);
    }

    pub(super) fn waits(&self) -> bool {
        self.0.waits.load(Ordering::Relaxed)
    }

    /// Sets the owner, which the worker hands over when it stops. The first one stays.
    pub fn set_owner(&self, owner: Arc<dyn Adopted>) {
        _ = self.0.owner.set(owner);
    }

    /// Returns the owner.
    pub(super) fn owner(&self) -> Option<&Arc<dyn Adopted>> {
        self.0.owner.get()
    }

    /// Lets the journal of the owner go on with the entry, under the name of the worker.
    ///
    /// # Errors
    ///
    /// As for [`Journal::adopt`]; also returns an error if there is no owner.
    pub async fn adopt(&self) -> Result<(), StoreError> {
        let Some(owner) = self.0.owner.get() else {
            return Err(StoreError::failed(
                format!("the entry `{}` has no owner", self.0.head.id),
                "`set_owner` comes first",
            ));
        };
        owner.journal().adopt(&self.0.head, &self.0.lease, self.0.at).await
    }

    /// Returns the question to ask a person, instead of going on, if the runnable lacks one of the guards of the submitting
    /// runs, or if the entry was taken 5 times without getting on. `last` is the last error.
    #[must_use]
    pub fn stuck<'a>(&self, guards: impl IntoIterator<Item = &'a str>, last: Option<&Error>) -> Option<Interrupt> {
        let EntryHead { id, attempts, kind, .. } = &self.0.head;
        let lacks: Vec<_> = guards.into_iter().filter(|guard| !self.0.guards.iter().any(|own| own == guard)).collect();
        let problem = match &*lacks {
            [] if *attempts <= ATTEMPTS => return None,
            [] => last.map(Error::explain),
            lacks => Some(format!(
                "it was submitted by runs with the guards `{}`, which the runnable that goes on with it lacks: bind them \
                 to that, for example with `for_tree`, and answer \"again\"",
                lacks.join("`, `")
            )),
        };
        let mut data = json!({kind: id, "attempts": attempts - 1, "error": problem, "choices": ["again", "fail"]});
        if !lacks.is_empty() {
            data["lacks"] = json!(lacks);
        }
        Some(Interrupt::new(STUCK, data).with_id(format!("{id}/stuck")))
    }
}

/// Shows the head.
impl fmt::Debug for TakenEntry {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("TakenEntry").field("head", &self.0.head).finish_non_exhaustive()
    }
}

/// Refuses a run that was not bound to the entry.
pub(super) struct IsAdopted(pub(super) TakenEntry);

impl<O: Op> Layer<O> for IsAdopted {
    async fn call(&self, input: &O::In, ctx: &RunContext, next: Next<'_, O>) -> Result<O::Out> {
        let EntryHead { id, kind, .. } = self.0.head();
        if self.0.owner().is_none() {
            let message = format!("`{}` does not go on with a `{kind}`, and has got the {kind} `{id}`", ctx.name());
            return Err(Error::new(format!("{message}: submit it to a queue that an agent serves")));
        }
        next.run(input).await
    }

    fn name(&self) -> &str {
        "worker"
    }

    fn debug_summary(&self) -> Summary {
        "goes on with an entry that was taken".into()
    }
}

impl fmt::Debug for IsAdopted {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(&self.0, f)
    }
}
