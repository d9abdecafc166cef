//! The layer around the work of a job: claims it, and stores its end.

use std::fmt;
use std::mem;
use std::sync::atomic::AtomicUsize;
use std::sync::{Arc, OnceLock};
use std::time::SystemTime;

use emitree_runtime::{Answers, Error, JsonRun, Layer, Next, Result, RunContext, Summary};
use parking_lot::Mutex;
use serde_json::Value;

use super::job::Job;
use super::record::{FORMAT, Record};
use super::scope::Scope;
use super::state::Start;
use super::{Answered, Durable, Unused, inexact};
use crate::shared::difference::{first_difference, quoted};
use crate::store::{Claim, Holder, StoreError};

/// One run of a job.
pub(super) struct JobRun {
    pub(super) durable: Durable,
    /// Set when the layer of the job is called.
    pub(super) job: OnceLock<Arc<Job>>,
    working: Mutex<Option<Working>>,
    pub(super) scope: Scope,
    /// The number of runs below that are under way.
    pub(super) live: AtomicUsize,
    /// `true` in another job: the claim waits for a process that was killed.
    is_inner: bool,
}

/// A job that is under way in this process, with its claim. When it is dropped, the job is paused, unless it has ended
/// otherwise, and released.
struct Working {
    job: Arc<Job>,
    claim: Option<Claim>,
}

impl JobRun {
    pub(super) fn new(durable: Durable, is_inner: bool) -> Self {
        Self {
            durable,
            job: OnceLock::new(),
            working: Mutex::new(None),
            scope: Scope::default(),
            live: AtomicUsize::new(0),
            is_inner,
        }
    }

    /// Stores the end of the job, and waits until the claim is released. Does nothing if it was released.
    pub(super) async fn release(&self) -> Result<(), StoreError> {
        let working = self.working.lock().take();
        if let Some(working) = &working
            && let Err(error) = working.job.state.lock().note_abort()
        {
            tracing::warn!(%error, "the end of the job `{}` was not stored", self.durable.id);
        }
        let claim = working.and_then(|mut working| working.claim.take());
        // The job is no longer under way, so the release stores its new status.
        match claim {
            Some(claim) => claim.release().await.map(drop),
            None => Ok(()),
        }
    }

    /// Returns the output of a job that has ended.
    ///
    /// # Errors
    ///
    /// Returns a halt if the job has another input.
    fn find(&self, job: &Job, input: &Value) -> Result<Option<Value>> {
        let state = job.state.lock();
        match &state.input {
            Some(stored) if stored != input => Err(other_input(&format!("job `{}`", self.durable.id), stored, input)),
            _ => Ok(state.output.clone()),
        }
    }

    /// Claims the job, and stores that it begins.
    async fn begin(&self, job: &Arc<Job>, input: &Value, ctx: &RunContext) -> Result<Option<Value>> {
        let mut working = Working::begin(job, ctx)?;
        let claim = if self.is_inner { job.journal.claim_when_free().await } else { job.journal.claim().await };
        working.claim = Some(claim?);
        // From here on, the end of the run releases the claim.
        *self.working.lock() = Some(working);
        if !self.durable.is_queued {
            job.state.lock().is_handed_over = false;
        }
        // The job may have been read again.
        if let Some(output) = self.find(job, input)? {
            return Ok(Some(output));
        }
        job.meet_deadlines().await?;
        let revision = job
            .commit(|state| {
                if state.input.is_none() {
                    state.push(Record::Input { format: FORMAT, input: input.clone() })?;
                }
                state.status = state.idle();
                state.ask_again()
            })
            .await?;
        if let Ok(fence) = revision.get().try_into() {
            ctx.set_fence(fence);
        }
        let answers = job.state.lock().answers.clone();
        let answers = answers.on_open(|question, run| Scope::of(run).stop(&Error::interrupted(question.clone())));
        let asked_in = Arc::clone(job);
        let answers = answers.on_deadline(move |question| asked_in.meet_deadline(question));
        // The answers of the job are no answers that the run was given, also if there are no others.
        ctx.set_extension(answers.or(Answers::of(ctx).unwrap_or_default()));
        Ok(None)
    }

    async fn call(&self, input: &Value, ctx: &RunContext, next: Next<'_, JsonRun>) -> Result<Value> {
        if next.is_answered() {
            return next.run(input).await;
        }
        if let Some(reason) = next.inexact() {
            return Err(inexact("input of the job", &reason));
        }
        let opened = self.durable.open().await?;
        let job = self.job.get_or_init(|| opened);
        let ended = match self.find(job, input)? {
            Some(output) => Some(output),
            None => match self.begin(job, input, ctx).await {
                // The job is claimed: it is released with the error.
                Err(error) if self.working.lock().is_some() => return self.end(job, Err(error), ctx, next).await,
                ended => ended?,
            },
        };
        let Some(output) = ended else {
            let result = next.run(input).await;
            return self.end(job, result, ctx, next).await;
        };
        self.release().await?;
        let key = ctx.key().map(|key| key.to_string()).unwrap_or_default();
        self.durable.own_events.emit(ctx, || Answered { key, failed: false }).await;
        next.check_output(&output).await?;
        Ok(output)
    }

    /// Stores the end of the job. If that fails, its error replaces an output and an interrupt, which nobody could find
    /// in the store.
    async fn end(&self, job: &Job, result: Result<Value>, ctx: &RunContext, next: Next<'_, JsonRun>) -> Result<Value> {
        let result = self.scope.end(result, ctx, next).and_then(|output| match next.inexact() {
            Some(reason) => Err(inexact("output of the job", &reason)),
            None => Ok(output),
        });
        if result.is_ok() {
            let keys = job.state.lock().unused();
            if !keys.is_empty() {
                self.durable.own_events.emit(ctx, || Unused { keys }).await;
            }
        }
        let recorded = {
            let mut state = job.state.lock();
            // An error may be the echo of the abort by which its worker hands the job over.
            let is_handed_over = state.is_handed_over && state.start.stops_with.is_none();
            let is_echo = is_handed_over && ctx.is_aborted() && result.is_err();
            if is_echo { Ok(()) } else { state.end(&result, self.scope.asked()) }
        };
        let stored = match recorded {
            Ok(()) => self.release().await.map_err(Error::from),
            Err(error) => Err(error),
        };
        match (result, stored) {
            (Err(error), Err(failed)) if !error.is_interrupted() => {
                tracing::warn!(error = %failed, "the end of the job `{}` was not stored", self.durable.id);
                Err(error)
            }
            (result, Err(failed)) => {
                result.inspect_err(|error| next.absorb(error)).err();
                Err(failed)
            }
            (result, Ok(())) => result,
        }
    }
}

impl Working {
    /// Marks the job as under way.
    ///
    /// # Errors
    ///
    /// Returns [`StoreError::Held`] if it is under way in this process.
    fn begin(job: &Arc<Job>, ctx: &RunContext) -> Result<Self, StoreError> {
        let mut state = job.state.lock();
        if state.start.run.is_some() {
            let own = Holder { by: "another run of this process".to_owned(), until: SystemTime::now() };
            let holder = job.journal.holder().unwrap_or(own);
            return Err(StoreError::Held { id: job.journal.id().to_owned(), holder });
        }
        let start = Start::new(ctx.abort_handle());
        let before = mem::replace(&mut state.start, start);
        drop(state);
        drop(before);
        Ok(Self { job: Arc::clone(job), claim: None })
    }
}

impl Drop for Working {
    fn drop(&mut self) {
        let run = self.job.state.lock().start.run.take();
        drop(run);
    }
}

/// Returns the error of a job or a step that was stored with another input.
pub(super) fn other_input(what: &str, stored: &Value, input: &Value) -> Error {
    let place = first_difference(stored, input);
    let stored = quoted(stored);
    let input = quoted(input);
    Error::halted(
        "durable",
        format!(
            "the {what} was stored with the input {stored}, and is run with {input}: the inputs differ at `{place}`; give it another id or key"
        ),
    )
}

/// Makes a run a job.
pub(super) struct JobLayer(pub(super) Arc<JobRun>);

impl fmt::Debug for JobLayer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?}", self.0.durable)
    }
}

impl Layer<JsonRun> for JobLayer {
    async fn call(&self, input: &Value, ctx: &RunContext, next: Next<'_, JsonRun>) -> Result<Value> {
        self.0.call(input, ctx, next).await
    }

    fn name(&self) -> &str {
        "durable"
    }

    fn debug_summary(&self) -> Summary {
        format!("{:?}", self.0.durable).into()
    }
}
