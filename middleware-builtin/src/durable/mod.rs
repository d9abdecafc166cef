//! Jobs that survive a kill: [`Durable`] (M13).
//!
//! 1. The state of a job is the fold of its records (`record`, `state`). A record is applied and queued under one lock,
//!    and stored by the job's journal.
//! 2. A step is called by two layers: the outer one (`step`) answers it or stores its end; the innermost one stores that
//!    it begins, after all guards, directly before its work.
//! 3. A question without an answer stops the job and the step that asked (`scope`). The questions reach it by the job's
//!    [`Answers`](emitree_runtime::Answers), and by the results of the runs below, so code that swallows them hides none.
//! 4. `Working` marks a job that is under way in this process, and has its claim. The layer of the job takes it out at
//!    the end; after an abort or a drop, a listener of `finish` does, so that `shutdown` waits for the release.

mod events;
mod job;
mod job_layer;
mod keep;
mod record;
mod scope;
mod state;
mod step;
mod submit;
mod taken;
mod worker;

use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;
use std::time::SystemTime;

use emitree_emitter::{AnyEvent, Namespace};
use emitree_runtime::{
    Answer, AnyRun, Description, Error, Interrupt, JsonRun, Keeper, Middleware, Phase, Result, RunContext, Stack, Stage,
};

use serde_json::Value;

use crate::shared::built_in::built_in;
use crate::shared::own_events::OwnEvents;
use crate::store::{EntryHead, EntryStatus, Lease, Store, StoreError};

pub use events::{Answered, Unused};
pub use record::STUCK;
pub use submit::Submitted;
pub use taken::{Adopted, TakenEntry};
pub use worker::{RunningWorker, Worker};

use job::{Job, KIND, open};
use job_layer::{JobLayer, JobRun};
use record::Sent;
use scope::StopLayer;
use step::{Remade, Steps};

/// Stores a run as a *job*, and the runs below it that have a [key](emitree_runtime::Run::key) as its *steps*. After a
/// kill of the process, the job is run again with the same id: steps that have ended are answered from the
/// [`Store`], and the others are executed.
///
/// ```
/// use std::sync::Arc;
/// use emitree_middleware::Durable;
/// use emitree_middleware::store::MemoryStore;
/// use emitree_runtime::{Interrupt, RunContext, Runnable, runnable_fn};
/// use serde_json::json;
///
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> emitree_runtime::Result<()> {
/// let write = Arc::new(runnable_fn("write", |row: String, ctx: RunContext| async move {
///     println!("write {row} once for the key {}", ctx.key().unwrap());
///     Ok(())
/// }));
/// let import = runnable_fn("import", move |rows: Vec<String>, ctx: RunContext| {
///     let write = Arc::clone(&write);
///     async move {
///         for (n, row) in rows.iter().enumerate() {
///             write.run(row.clone()).key(format!("row {n}")).idempotent().await?;
///         }
///         let publish: bool = ctx.ask(Interrupt::new("publish", json!({"rows": rows.len()})))?;
///         Ok(if publish { "published" } else { "written" }.to_owned())
///     }
/// });
/// let rows = vec!["Ada".to_owned(), "Bob".to_owned()];
///
/// let job = Durable::new(&MemoryStore::new(), "import-7");
/// let asks = import.run(rows.clone()).middleware(job.clone()).await.unwrap_err();
/// assert!(asks.is_interrupted());
///
/// // Later, perhaps in another process.
/// for question in job.questions().await? {
///     job.answer(&question.id, json!(true)).await?;
/// }
/// // The rows are not written again.
/// assert_eq!(import.run(rows).middleware(job).await?, "published");
/// # Ok(())
/// # }
/// ```
///
/// The function of the job is called again from its start, so everything that it does outside of steps must be
/// repeatable. A run below that has no key is made again as well: unless it is
/// [idempotent](emitree_runtime::Run::idempotent) or has started other runs, one warning says so. The id of the job becomes part of its key, and follows the
/// [rules for keys](emitree_runtime::Run::key).
///
/// # Order of a step
///
/// 1. If the store has its output, the step is answered with it, after the guards have checked it.
/// 2. If it has failed before, it is answered with its error, once per start of the job. If the error is
///    [retryable](Error::is_retryable), or if the job runs the step again, it is executed.
/// 3. If it had begun, has neither ended nor asked, and is not [idempotent](emitree_runtime::Run::idempotent), it is a
///    question of the kind `durable.began`, whose data has the `key`, the `input`, and the time `began`. Its answer is
///    `{"output": …}`, the output of the step, or `"again"`, which executes it again. All such steps of the job are asked
///    about together.
/// 4. After all guards, *began* is stored. [`RunKey::fence`](emitree_runtime::RunKey::fence) of the step's key is the
///    revision of this commit.
/// 5. The work is executed, and its output or its error is stored. A denial by a guard of the input is not stored.
///
/// # Questions
///
/// The job and its steps may [ask](RunContext::ask). A question without an answer stops the job: steps that are stored
/// are still answered, and further questions are collected, so branches of a `join!` ask in one start. But no further
/// step begins, its run gets the interrupt instead, and the job ends with its questions, whatever its function returns.
/// So code that takes the interrupt for a failure compensates nothing, if its compensation is a step. Approvals and
/// agents in the job ask in the same way. The approval of a step that does not begin is asked as well.
///
/// A step that asks ends with the question too, whatever its function returns, and the next start executes it again. Put
/// each effect before the question into a step of its own, below this one.
///
/// Steps that are under way go on to their ends, with the steps in them. `try_join!` and `select!` drop them: a step that
/// was dropped had begun.
///
/// If a question has a [deadline](Interrupt::with_deadline) that has passed when it is asked again, the job stores the
/// deadline's answer, and goes on with it. Nothing starts the job at that time.
///
/// A question ends a [sleep](RunContext::sleep) of the job or of the step that asked, whose end is stored.
///
/// A run that is given other [`Answers`](emitree_runtime::Answers) stops the job only if it ends with its question, and
/// keeps no deadlines. While a start is under way, and after it was killed, the questions of an earlier one cannot be
/// answered: the next start asks them again.
///
/// # The end of the job
///
/// A job that has ended is not executed again: a run with its id returns its output. An interrupted job waits for
/// answers; a job that was aborted or dropped, or that ended with other control flow, is paused; both and a failed job
/// can be run again.
///
/// # Errors
///
/// A run of the job fails
///
/// - with [`StoreError::Held`] if another run, here or in another process, works on the
///   job. [`Error::find`] returns it. If that process was killed, its [`Lease`] runs out;
/// - with a halt by `durable` that names both inputs, if the job or a step was stored with another input. Nothing is
///   changed;
/// - with the error of the store. Nothing is executed that was not stored before;
/// - with the error of the store that a run in it returned, such as an agent whose session is held for longer than
///   [`Lease::wait`]. Unless it is a conflict, it is no result of a step: it stops the job as a question does, and the
///   job is paused.
///
/// If another process takes the job over, because this process did not renew its lease, the run is aborted.
///
/// # Its own events
///
/// `middleware.durable.answered`, an [`Answered`], before a step or an ended job is answered from the store;
/// `middleware.durable.unused`, an [`Unused`], at the success of a job that did not start all stored steps.
#[derive(Clone)]
pub struct Durable {
    store: Arc<dyn Store>,
    id: Arc<str>,
    lease: Lease,
    own_events: OwnEvents,
    /// `true` if a worker runs the job.
    is_queued: bool,
}

/// The store of a job: an extension of its run, and of all runs below, for code that keeps more there, such as the
/// session of an agent in a step. The step's key is [`RunContext::key_around`].
#[derive(Clone, Debug)]
pub struct JobStore {
    store: Arc<dyn Store>,
    lease: Lease,
}

impl JobStore {
    /// Returns the store.
    #[must_use]
    pub fn store(&self) -> &Arc<dyn Store> {
        &self.store
    }

    /// Returns the lease of the job.
    #[must_use]
    pub const fn lease(&self) -> &Lease {
        &self.lease
    }
}

/// An extension of a run that keeps the runs below it itself: they are no steps of the job around it. It is set before
/// the layers of the run are called, for example by [`Middleware::bind`].
///
/// Such a run goes on where it was when it is executed again, as an agent with a stored session and a job in a job do. So
/// as a step it counts as idempotent.
#[derive(Clone, Debug, Default)]
pub struct OwnSteps {
    /// The id of a job.
    job: Option<Arc<str>>,
}

impl OwnSteps {
    /// Creates the extension.
    #[must_use]
    pub const fn new() -> Self {
        Self { job: None }
    }

    /// Returns `true` if the runs below a run are steps of this job.
    fn are_of(run: &RunContext, job: &Durable) -> bool {
        let own = run.extension::<Self>();
        own.is_some_and(|own| own.job.as_ref().is_some_and(|id| Arc::ptr_eq(id, &job.id)))
    }
}

/// An extension of a run alone that has its effects only in steps below it, as a workflow has. So as a step it counts as
/// idempotent: when it is executed again, the steps below that have ended are answered. It is set before the layers of
/// the run are called, for example by [`Middleware::bind`].
#[derive(Clone, Copy, Debug, Default)]
pub struct OnlySteps;

/// An extension of a run alone that cannot be a job: a [`Durable`] that is bound to it later returns the reason as an
/// error, before `start`. An agent has it, because its session keeps its questions.
#[derive(Clone, Debug)]
pub struct NoJob {
    reason: &'static str,
}

impl NoJob {
    /// Creates the extension, with a reason that names what to write instead.
    #[must_use]
    pub const fn new(reason: &'static str) -> Self {
        Self { reason }
    }
}

/// The error of a second answer: the first one is stored. [`Error::find`] returns it from the error of
/// [`Durable::answer`].
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the question `{id}` was answered with {}{}", first.value, by(first))]
#[non_exhaustive]
pub struct AlreadyAnswered {
    /// The id of the question.
    pub id: String,
    /// The first answer.
    pub first: Answer,
}

fn by(answer: &Answer) -> String {
    answer.by.as_ref().map_or_else(String::new, |by| format!(" by {by}"))
}

impl Durable {
    /// Creates the handle of a job. Clones are handles of the same job, also in other processes that use the store.
    #[must_use]
    pub fn new<S: Store + Clone>(store: &S, id: impl Into<Arc<str>>) -> Self {
        Self::with(Arc::new(store.clone()), id.into(), Lease::new())
    }

    /// Creates the handle of a job in a store that is shared already.
    fn with(store: Arc<dyn Store>, id: Arc<str>, lease: Lease) -> Self {
        let own_events = OwnEvents::new(Namespace::new("middleware.durable"));
        Self { store, id, lease, own_events, is_queued: false }
    }

    /// Creates the handle of a worker.
    fn by_worker(store: &Arc<dyn Store>, id: &str, lease: &Lease) -> Self {
        Self { is_queued: true, ..Self::with(Arc::clone(store), id.into(), lease.clone()) }
    }

    /// Sets the lease, which by default is [`Lease::new`].
    #[must_use]
    pub fn lease(mut self, lease: Lease) -> Self {
        self.lease = lease;
        self
    }

    /// Returns the questions that the job waits for, with their deadlines. Those of an agent in it are answered with its
    /// session, which [wakes](Self::wake) the job.
    ///
    /// # Errors
    ///
    /// Returns the error of the store, and an error if the entry with this id is no job.
    pub async fn questions(&self) -> Result<Vec<Interrupt>> {
        Ok(self.open().await?.questions())
    }

    /// Returns the values that the job has [published](RunContext::publish), by their names. A process other than the one
    /// that works on the job gets a value at most a second later.
    ///
    /// # Errors
    ///
    /// As for [`questions`](Self::questions).
    pub async fn published(&self) -> Result<BTreeMap<String, Value>> {
        Ok(self.open().await?.state.lock().published.clone())
    }

    /// Answers a question of the job, and stores the answer. Run the job again to continue; the workers of a job that was
    /// [submitted](Self::submit) do.
    ///
    /// # Errors
    ///
    /// Returns an error that lists the open questions if none has this id, [`AlreadyAnswered`] with the first answer if
    /// it has one, an error that quotes the answer if it is not one of the answers to `durable.began` or `worker.stuck`, and
    /// the error of the store, also for an answer of more than 512 KiB.
    ///
    /// # Cancel safety
    ///
    /// If the future is dropped, the answer may be stored.
    pub async fn answer(&self, id: &str, answer: impl Into<Answer>) -> Result<()> {
        let mut answer = answer.into();
        // The time tells this answer from an equal one of another caller.
        answer.at.get_or_insert_with(SystemTime::now);
        self.open().await?.post_answer(id, &answer).await
    }

    /// Lets the workers of a job that was [submitted](Self::submit) run it again, although it waits for an answer: for code
    /// that keeps its own questions, such as the session of an agent in the job. Does nothing if it does not wait, or if
    /// there is no such job.
    ///
    /// # Errors
    ///
    /// Returns the error of the store.
    ///
    /// # Cancel safety
    ///
    /// If the future is dropped, the job may be run again.
    pub async fn wake(&self) -> Result<(), StoreError> {
        let head = self.store.load(&self.id).await?.map(|entry| entry.head);
        let waits = head.is_some_and(|EntryHead { kind, queue, status, .. }| {
            kind == KIND && queue.is_some() && matches!(status, EntryStatus::Running | EntryStatus::Waiting)
        });
        if waits {
            let wake = Sent::Wake.to_post().map_err(|error| StoreError::failed("a job is not woken", error))?;
            self.store.post(&self.id, &wake).await?;
        }
        Ok(())
    }

    /// Stops the job: aborts its run, in whichever process it is under way. It is paused then. A job that waits, for a worker
    /// or for an answer, is paused at once. The workers of a job that was [submitted](Self::submit) leave it, and
    /// [`ended`](Self::ended) returns the abort, with its reason. Returns `false` if the job has stopped already, or was
    /// never started.
    ///
    /// The process that works on the job gets the abort at most a second later. Nothing waits for the end of its run.
    ///
    /// # Errors
    ///
    /// Returns the error of the store, and an error if the entry with this id is no job.
    ///
    /// # Cancel safety
    ///
    /// If the future is dropped, the job may be stopped.
    pub async fn abort(&self, reason: impl Into<String>) -> Result<bool> {
        let reason = reason.into();
        let post = Sent::Abort { reason: reason.clone() }.to_post()?;
        loop {
            let job = self.open().await?;
            if job.journal.holder().is_some() {
                job.journal.post(&post).await?;
                return Ok(true);
            }
            if !job.state.lock().stop(&reason)? {
                return Ok(false);
            }
            if job.is_stored().await? {
                return Ok(true);
            }
        }
    }

    async fn open(&self) -> Result<Arc<Job>> {
        open(&self.store, &self.id, &self.lease).await
    }

    fn stack(&self, run: &Arc<JobRun>) -> Stack<JsonRun> {
        Stack::builder().layer_in(Phase::Observe, JobLayer(Arc::clone(run))).errors_by(self.own_events.name()).build()
    }
}

built_in!(Durable, |this| this.own_events);

impl Middleware for Durable {
    fn bind(&self, ctx: &RunContext) -> Result<()> {
        if let Some(refused) = ctx.own_extension::<NoJob>() {
            return Err(Error::new(format!("{self:?} cannot be a run of `{}`: {}", ctx.name(), refused.reason)));
        }
        let is_inner = ctx.extension::<JobStore>().is_some();
        if ctx.key().is_none() {
            ctx.take_key(&self.id)?;
        }
        ctx.set_own_extension(Remade::default());
        ctx.set_extension(OwnSteps { job: Some(Arc::clone(&self.id)) });
        ctx.set_extension(JobStore { store: Arc::clone(&self.store), lease: self.lease.clone() });
        let run = Arc::new(JobRun::new(self.clone(), is_inner));
        ctx.set_extension(Keeper::new(Arc::clone(&run) as _));
        self.stack(&run).bind(ctx)?;
        ctx.set_extension(run.scope.clone());
        Stack::<AnyRun>::builder().innermost_in(Phase::Guard, StopLayer(run.scope.clone())).build().bind(ctx)?;
        ctx.bind_nested(Steps(Arc::clone(&run)));
        ctx.emitter().observe_async(Stage::Finish, move |_: &dyn AnyEvent, _| {
            let run = Arc::clone(&run);
            Box::pin(async move { Ok(run.release().await?) })
        })?;
        Ok(())
    }

    fn name(&self) -> &str {
        "durable"
    }

    fn describe(&self) -> Description<'_> {
        Description::of(self).with_layers(|| self.stack(&Arc::new(JobRun::new(self.clone(), false))).layers())
    }
}

/// Shows the id.
impl fmt::Debug for Durable {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "the job `{}`", self.id)
    }
}

/// Returns the error of a value whose JSON is incomplete.
fn inexact(what: &str, reason: &str) -> Error {
    Error::new(format!("the {what} cannot be stored: {reason}"))
}
