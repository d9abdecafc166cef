//! Workflows: named steps that change one state, in an order that the steps decide.
//!
//! ```
//! use emitree_agent_kit::workflow::{Goto, Workflow, ask};
//! use emitree_agent::{Agent, ChatModel, ScriptedModel};
//! use emitree_runtime::{Result, Runnable};
//! use serde::{Deserialize, Serialize};
//!
//! #[derive(Clone, Default, Serialize, Deserialize)]
//! struct Review {
//!     text: String,
//!     notes: Vec<String>,
//! }
//!
//! # #[tokio::main(flavor = "current_thread")]
//! # async fn main() -> Result<()> {
//! let script = ScriptedModel::new("test").text("Too short.").text("ok");
//! let critic = Agent::builder("critic", ChatModel::new(script)?).prompt("Name one fault, or say ok.").build()?;
//! let flow = Workflow::builder("review")
//!     .step("draft", |state: &mut Review, _| {
//!         Box::pin(async move {
//!             state.text.push_str("To be or not. ");
//!             Ok(Goto::Next)
//!         })
//!     })
//!     .step(
//!         "check",
//!         ask(
//!             &critic,
//!             |state: &Review| state.text.clone(),
//!             |state: &mut Review, answer| {
//!                 state.notes.push(answer.text());
//!                 if answer.text() == "ok" { Goto::End } else { Goto::To("draft".into()) }
//!             },
//!         ),
//!     )
//!     .build()?;
//!
//! let done = flow.run(Review::default()).await?;
//! assert_eq!(done.state.notes, ["Too short.", "ok"]);
//! let names: Vec<_> = done.steps.iter().map(|(step, _)| &**step).collect();
//! assert_eq!(names, ["draft", "check", "draft", "check"]);
//! # Ok(())
//! # }
//! ```

mod builder;
mod delegate;
mod events;
mod step;

use std::collections::HashMap;
use std::fmt;
use std::sync::Arc;

use emitree_emitter::Emitter;
use emitree_middleware::durable::OnlySteps;
use emitree_runtime::{Data, Error, Middleware, Result, RunContext, Runnable};
use futures_core::future::BoxFuture;
use serde::{Deserialize, Serialize};

pub use builder::WorkflowBuilder;
pub use delegate::{ask, sub_workflow};
pub use events::{StepFailure, StepStart, StepSuccess};
pub use step::{Goto, Step, StepOutput};

use crate::workflow::builder::listed;
use crate::workflow::step::Repeats;

/// Named steps that change a state of type `S`. Each call is a run of the kind `Workflow`, and each step is a run of the
/// kind [`Step`] below it. Created by [`Workflow::builder`]; the [module](self) has an example. Clones share the steps.
///
/// The input of a run is the state, and the output is a [`WorkflowOutput`]. A step returns a [`Goto`], which decides the
/// step that follows.
///
/// A step changes a copy of the state. When the step succeeds, the copy becomes the state. When it fails, the run of the
/// workflow fails with its error, and with the detail `step`, the name of the step, unless the error has a detail `step`
/// already. If a middleware makes another attempt of the step, such as `Retry`, the attempt begins with the state before
/// the step.
///
/// Because steps are runs, a middleware that selects runs by kind or name applies to them:
/// `for_tree(Runs::named("check").only(Timeout::overall(limit)))` limits the time of the step `check`.
///
/// # As a job
///
/// If the run of the workflow has a key, each step has the key `<number>-<name>` below it, where the number counts the
/// steps of the run from 1. So a workflow that is a job, `flow.run(state).middleware(Durable::new(&store, "order-17"))`,
/// stores its steps and the state after each. After a kill, or with the answer to a question of a step, the next run with
/// the same state goes on at the step that was under way. If this step is neither
/// [idempotent](WorkflowBuilder::step_idempotent) nor made by [`ask`] or [`sub_workflow`], it may have had effects, and
/// is a question of the job.
///
/// # Its own events
///
/// The run emits these events in the namespace `workflow.<name>` (with `_` for each `-` and each space in the name), and
/// only while it has listeners. For each step, they are `start` and then one of `success` and `error`. A run that has no
/// listeners when a step begins emits none of its events. A change that a listener makes to an event reaches later
/// listeners only. If a listener of `start` or `success` fails, the run fails.
///
/// | event | payload | when |
/// |---|---|---|
/// | `start` | [`StepStart`] | before the run of a step |
/// | `success` | [`StepSuccess`] | the step has succeeded, and its [`Goto`] names a step or the end |
/// | `error` | [`StepFailure`] | the step or a listener of `start` has failed, or the step's [`Goto`] leads nowhere |
///
/// The events of the step's own run, with its input and output, lie between `start` and `success`, in the namespace
/// `workflow.<name>.<step>`.
///
/// # Cancel safety
///
/// Dropping or aborting the run ends the step that is at work, without `success` and `error` of the workflow, and no
/// further step begins. A layer that drops an attempt of the run, as `Timeout` does, ends the step at work in the same
/// way. Unless the workflow is a job, the state is lost: a listener of `success` can keep it.
#[derive(Clone)]
pub struct Workflow<S>(Arc<Inner<S>>);

struct Inner<S> {
    emitter: Emitter,
    steps: Vec<Step<S>>,
    /// The index of each step, by its name.
    places: HashMap<Arc<str>, usize>,
    start: usize,
    max_steps: u32,
    middlewares: Vec<Arc<dyn Middleware>>,
}

/// The output of a [`Workflow`].
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct WorkflowOutput<S> {
    /// The state after the last step.
    pub state: S,
    /// The name of each step that ran, in order, with the [`Goto`] that it returned.
    pub steps: Vec<(Arc<str>, Goto)>,
}

impl<S: Data + Clone> Workflow<S> {
    /// Returns a builder for a workflow.
    pub fn builder(name: impl Into<String>) -> WorkflowBuilder<S> {
        WorkflowBuilder::new(name.into())
    }

    /// Runs a step. Returns its output, and the index of the step that follows.
    async fn take(&self, at: usize, number: u32, state: S, ctx: &RunContext) -> Result<(StepOutput<S>, Option<usize>)> {
        let step = &self.0.steps[at];
        // The step's run would begin, with its events, and then end. The run of the workflow returns the abort's reason
        // instead of this error.
        if ctx.is_aborted() {
            return Err(Error::aborted(format!("the workflow was aborted before the step `{}`", step.name())));
        }
        let mut run = step.run(state);
        if ctx.key().is_some() {
            // A step that is repeated in a loop is another one each time.
            run = run.key(format!("{number}-{}", step.name()));
            if step.repeats == Repeats::GoesOn {
                run = run.own_extension(OnlySteps);
            }
        }
        let output = run.await.map_err(|error| in_step(error, step.name()))?;
        let next = self.route(at, &output.next).map_err(|error| in_step(error, step.name()))?;
        Ok((output, next))
    }

    /// Runs a step between its events.
    fn take_between_events<'a>(
        &'a self,
        at: usize,
        number: u32,
        state: S,
        ctx: &'a RunContext,
    ) -> BoxFuture<'a, Result<(StepOutput<S>, Option<usize>)>> {
        Box::pin(async move {
            let step = || self.0.steps[at].shared_name();
            // The step's run owns the state, so listeners of `error` receive a copy.
            let before = Arc::new(state.clone());
            let taken = match ctx.emitter().emit_event(&mut StepStart { step: step(), number }).await {
                Ok(_) => self.take(at, number, state, ctx).await,
                Err(error) => Err(in_step(error.into(), &step())),
            };
            match &taken {
                Ok((output, next)) => {
                    let next = next.map(|next| self.0.steps[next].shared_name());
                    let state = Arc::new(output.state.clone());
                    ctx.emitter().emit_event(&mut StepSuccess { step: step(), next, state }).await?;
                }
                // The abort of a workflow may reach it as the error of its step.
                Err(_) if ctx.is_aborted() => {}
                Err(error) => {
                    let mut failure = StepFailure { step: step(), error: error.report(), state: before };
                    // The error of the step is returned, so the error of a listener is logged.
                    if let Err(error) = ctx.emitter().emit_event(&mut failure).await {
                        tracing::warn!(%error, "a listener of `error` failed after the step had failed");
                    }
                }
            }
            taken
        })
    }

    /// Returns the index of the step that follows, and `None` at the end.
    fn route(&self, at: usize, next: &Goto) -> Result<Option<usize>> {
        let Inner { steps, places, start, .. } = &*self.0;
        match next {
            Goto::Next => Ok(Some(at + 1).filter(|next| *next < steps.len())),
            Goto::Same => Ok(Some(at)),
            Goto::Prev if at == 0 => Err(self.misled(at, "`Goto::Prev`, but is the first step")),
            Goto::Prev => Ok(Some(at - 1)),
            Goto::Start => Ok(Some(*start)),
            Goto::End => Ok(None),
            Goto::To(name) => match places.get(name) {
                Some(place) => Ok(Some(*place)),
                None => Err(self.misled(at, &format!("`Goto::To({name:?})`, but there is no such step"))),
            },
        }
    }

    fn misled(&self, at: usize, fault: &str) -> Error {
        let step = self.0.steps[at].name();
        let flow = self.name();
        Error::new(format!("the step `{step}` of the workflow `{flow}` returned {fault}; {}", listed(&self.0.steps)))
    }

    fn too_many(&self, next: usize) -> Error {
        let Inner { max_steps, steps, .. } = &*self.0;
        Error::new(format!(
            "the workflow `{}` has not ended after {max_steps} steps, and `{}` would follow: allow more with \
             `max_steps`, or return `Goto::End`; {}",
            self.name(),
            steps[next].name(),
            listed(steps)
        ))
    }
}

/// Adds the name of the step to an error. An error that has a detail `step` keeps it: the step of a sub-workflow, or the
/// user's own.
fn in_step(error: Error, step: &str) -> Error {
    if error.details().contains_key("step") { error } else { error.detail("step", step) }
}

impl<S: Data + Clone> Runnable for Workflow<S> {
    type Input = S;
    type Output = WorkflowOutput<S>;

    fn emitter(&self) -> &Emitter {
        &self.0.emitter
    }

    async fn execute(&self, input: &S, ctx: &RunContext) -> Result<WorkflowOutput<S>> {
        let mut done = WorkflowOutput { state: input.clone(), steps: Vec::new() };
        let mut at = Some(self.0.start);
        let mut number = 0;
        while let Some(step) = at {
            if number == self.0.max_steps {
                return Err(self.too_many(step));
            }
            number += 1;
            // Decided once for each step, so that a listener of its end has received its beginning.
            let (output, next) = if ctx.has_listeners() && !ctx.is_aborted() {
                self.take_between_events(step, number, done.state, ctx).await?
            } else {
                self.take(step, number, done.state, ctx).await?
            };
            done.state = output.state;
            done.steps.push((self.0.steps[step].shared_name(), output.next));
            at = next;
        }
        Ok(done)
    }

    fn middlewares(&self) -> &[Arc<dyn Middleware>] {
        &self.0.middlewares
    }
}

impl<S> fmt::Debug for Workflow<S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Inner { emitter, steps, start, max_steps, .. } = &*self.0;
        f.debug_struct("Workflow")
            .field("emitter", emitter)
            .field("steps", steps)
            .field("start", start)
            .field("max_steps", max_steps)
            .finish_non_exhaustive()
    }
}
