//! The layers around a step: the outer one answers it or stores its end, the innermost one stores that it begins.

use std::fmt;
use std::mem;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use emitree_runtime::{
    AnyRun, Error, Interrupt, JsonRun, Layer, Middleware, Next, Op, Phase, Result, RunContext, RunKey, Stack, Summary,
};
use parking_lot::Mutex;
use serde_json::Value;

use super::job::Job;
use super::job_layer::{JobRun, other_input};
use super::record::{AfterBegun, Record};
use super::scope::{NoteLayer, Scope, is_of_store};
use super::state::Found;
use super::{Answered, OnlySteps, OwnSteps, inexact};
use crate::shared::own_events::run_label;

/// The middleware of all runs below a job.
pub(super) struct Steps(pub(super) Arc<JobRun>);

impl Middleware for Steps {
    fn bind(&self, ctx: &RunContext) -> Result<()> {
        let Some(above) = ctx.parent() else { return Ok(()) };
        if !OwnSteps::are_of(above, &self.0.durable) {
            return Ok(());
        }
        let job_run = Arc::clone(&self.0);
        ctx.on_end(move |_, _| _ = job_run.live.fetch_sub(1, Ordering::Relaxed));
        self.0.live.fetch_add(1, Ordering::Relaxed);
        let scope = Scope::of(above);
        let Some(key) = ctx.key() else {
            self.watch_remade(above, ctx);
            return Stack::<AnyRun>::builder().layer_in(Phase::Observe, NoteLayer(scope)).build().bind(ctx);
        };
        if let Some(remade) = above.own_extension::<Remade>() {
            remade.has_runs.store(true, Ordering::Relaxed);
        }
        let Some(job) = self.0.job.get() else { return Ok(()) };
        let run = Arc::clone(&self.0);
        let own = Scope::below(scope.clone());
        ctx.set_extension(own.clone());
        let step = Arc::new(Step {
            run,
            job: Arc::clone(job),
            above: scope,
            own,
            key,
            input: Mutex::new(Value::Null),
            has_begun: AtomicBool::new(false),
        });
        Stack::<JsonRun>::builder().layer_in(Phase::Observe, AnswerLayer(Arc::clone(&step))).build().bind(ctx)?;
        Stack::<AnyRun>::builder().innermost_in(Phase::Guard, BeginLayer(step)).build().bind(ctx)
    }

    fn name(&self) -> &str {
        "durable"
    }
}

impl fmt::Debug for Steps {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "steps of {:?}", self.0.durable)
    }
}

impl Steps {
    /// Warns at the end of a run without a key that it is made again after a kill, unless it is repeatable, it is part of
    /// a step, or it has started runs, which are stored or warned of themselves.
    fn watch_remade(&self, above: &RunContext, ctx: &RunContext) {
        let Some(above) = above.own_extension::<Remade>() else { return };
        above.has_runs.store(true, Ordering::Relaxed);
        if ctx.is_idempotent() {
            return;
        }
        let remade = ctx.own_extension_or_default::<Remade>();
        let job = Arc::clone(&self.0.durable.id);
        ctx.on_end(move |ctx, _| {
            // A middleware that was bound later may have given the run a key.
            if ctx.key().is_some() || remade.has_runs.load(Ordering::Relaxed) {
                return;
            }
            let label = run_label(ctx);
            ctx.warn_once("durable.key", || {
                format!(
                    "the run {label} has no key, so the job `{job}` makes it again after a kill: write `.key(\"…\")` on \
                     the run to store it, or `.idempotent()` if it may be made again"
                )
            });
        });
    }
}

/// A run that is made again with its job: the job itself, or a run without a key that is not part of a step.
#[derive(Default)]
pub(super) struct Remade {
    /// `true` once it has started a run below.
    has_runs: AtomicBool,
}

/// A run below a job that has a key.
struct Step {
    run: Arc<JobRun>,
    job: Arc<Job>,
    /// The scope in which the step is started.
    above: Scope,
    own: Scope,
    key: RunKey,
    /// The input that is recorded when the step begins.
    input: Mutex<Value>,
    has_begun: AtomicBool,
}

impl Step {
    async fn call(&self, input: &Value, ctx: &RunContext, next: Next<'_, JsonRun>) -> Result<Value> {
        if next.is_answered() {
            return next.run(input).await;
        }
        if let Some(reason) = next.inexact() {
            return Err(inexact("input of the step", &reason));
        }
        if let Some(halt) = self.run.scope.stopped().filter(Error::is_halted) {
            return Err(halt);
        }
        let found = self.job.state.lock().find(&self.key, input, self.may_repeat(ctx));
        let result = match found {
            Found::New => self.execute(input, ctx, next).await,
            Found::Output(output) => {
                self.emit_answered(ctx, false).await;
                next.check_output(&output).await?;
                Ok(output)
            }
            Found::Error(error) => {
                self.emit_answered(ctx, true).await;
                Err((*error).into())
            }
            Found::Began(question) => self.ask(question, input, ctx, next).await,
            Found::OtherInput(stored) => {
                let halt = other_input(&format!("step `{}`", self.key), &stored, input);
                self.above.stop(&halt);
                Err(halt)
            }
        };
        result.inspect_err(|error| self.above.note(error))
    }

    /// Returns `true` if the step may be executed again after a kill: it is idempotent, or goes on by itself.
    fn may_repeat(&self, ctx: &RunContext) -> bool {
        ctx.is_idempotent() || ctx.own_extension::<OnlySteps>().is_some() || !OwnSteps::are_of(ctx, &self.run.durable)
    }

    /// Executes the step, and stores its end.
    async fn execute(&self, input: &Value, ctx: &RunContext, next: Next<'_, JsonRun>) -> Result<Value> {
        let before = mem::replace(&mut *self.input.lock(), input.clone());
        drop(before);
        let result = next.run(input).await;
        // The work was not executed: a guard or a cache inside has decided.
        if !self.has_begun.load(Ordering::Relaxed) {
            return result;
        }
        // A layer around the work may have dropped it after it had asked, such as a `Timeout`.
        let result = self.own.end(result, ctx, next);
        let key = self.key.to_string();
        let end = match &result {
            Ok(output) => {
                if let Some(reason) = next.inexact() {
                    return Err(inexact("output of the step", &reason));
                }
                Record::Ended { key, output: output.clone() }
            }
            Err(error) if error.is_interrupted() => Record::Waiting { key },
            Err(error) if error.is_aborted() || error.is_retry() || is_of_store(error) => return result,
            Err(error) => Record::Failed { key, error: Box::new(error.report()) },
        };
        match self.job.commit(|state| state.push(end)).await {
            Ok(_) => result,
            Err(failed) => {
                result.inspect_err(|error| next.absorb(error)).err();
                Err(failed)
            }
        }
    }

    /// Goes on with the answer to the question about a step that had begun, or asks it.
    async fn ask(
        &self,
        question: Interrupt,
        input: &Value,
        ctx: &RunContext,
        next: Next<'_, JsonRun>,
    ) -> Result<Value> {
        let answers = self.job.state.lock().answers.clone();
        let Some(answer) = answers.look_up(&question.id) else {
            let others = self.job.state.lock().take_begun_before();
            self.run.scope.add([question.clone()].into_iter().chain(others));
            return Err(Error::interrupted(question));
        };
        let refused = match AfterBegun::read(&answer) {
            Ok(AfterBegun::Again) => return self.execute(input, ctx, next).await,
            Ok(AfterBegun::Output(output)) => match next.check_output(&output).await {
                Ok(()) => {
                    let ended = output.clone();
                    self.job.commit(|state| state.end_step(self.key.as_str(), ended)).await?;
                    return Ok(output);
                }
                Err(error) if error.is_control_flow() => return Err(error),
                Err(error) => error,
            },
            Err(error) => error,
        };
        Err(Error::interrupted(answers.refuse(question, &answer, &refused.to_string())))
    }

    async fn emit_answered(&self, ctx: &RunContext, failed: bool) {
        let answered = || Answered { key: self.key.to_string(), failed };
        self.run.durable.own_events.emit(ctx, answered).await;
    }
}

/// Answers a step from the store, or stores its end.
struct AnswerLayer(Arc<Step>);

impl Layer<JsonRun> for AnswerLayer {
    async fn call(&self, input: &Value, ctx: &RunContext, next: Next<'_, JsonRun>) -> Result<Value> {
        self.0.call(input, ctx, next).await
    }

    fn name(&self) -> &str {
        "durable"
    }

    fn debug_summary(&self) -> Summary {
        "answers from the store".into()
    }
}

impl fmt::Debug for AnswerLayer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "the step `{}`", self.0.key)
    }
}

/// Stores that a step begins, directly before its work, in its first attempt.
struct BeginLayer(Arc<Step>);

impl<O: Op> Layer<O> for BeginLayer {
    async fn call(&self, input: &O::In, ctx: &RunContext, next: Next<'_, O>) -> Result<O::Out> {
        let Step { job, above, own, key, input: recorded, has_begun, .. } = &*self.0;
        if next.is_answered() {
            return next.run(input).await;
        }
        let is_first = !has_begun.load(Ordering::Relaxed);
        if let Some(stop) = own.stopped().or_else(|| above.stopped().filter(|_| is_first)) {
            return Err(stop);
        }
        if is_first {
            let recorded = recorded.lock().clone();
            let may_repeat = self.0.may_repeat(ctx);
            let revision = job.commit(|state| state.begin(key.as_str(), recorded, may_repeat)).await?;
            if let Ok(fence) = revision.get().try_into() {
                ctx.set_fence(fence);
            }
            has_begun.store(true, Ordering::Relaxed);
        }
        own.end(next.run(input).await, ctx, next)
    }

    fn name(&self) -> &str {
        "durable"
    }

    fn debug_summary(&self) -> Summary {
        "stores that the step begins".into()
    }
}

impl fmt::Debug for BeginLayer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "the step `{}`", self.0.key)
    }
}
