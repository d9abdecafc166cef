//! Steps of workflows, as runs.

use std::fmt;
use std::sync::Arc;

use emitree_emitter::Emitter;
use emitree_runtime::{Data, Result, RunContext, Runnable};
use futures_core::future::BoxFuture;
use serde::{Deserialize, Serialize};

use crate::workflow::delegate::Delegated;

/// The step that follows a step of a [`Workflow`](super::Workflow).
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum Goto {
    /// The next step, in the order of definition. After the last step, the workflow ends.
    Next,
    /// The same step again.
    Same,
    /// The previous step, in the order of definition. In the first step, this is an error.
    Prev,
    /// The step with which the workflow started.
    Start,
    /// No step: the workflow ends.
    End,
    /// The step with this name.
    To(Arc<str>),
}

/// The function of a step.
pub(super) type Work<S> = dyn for<'a> Fn(&'a mut S, &'a RunContext) -> BoxFuture<'a, Result<Goto>> + Send + Sync;

/// A step of a [`Workflow`](super::Workflow), which runs it. Layers and typed listeners of steps name this type.
///
/// The input of a run is the state before the step, and the output is a [`StepOutput`].
pub struct Step<S> {
    pub(super) name: Arc<str>,
    pub(super) emitter: Emitter,
    pub(super) work: Box<Work<S>>,
    pub(super) repeats: Repeats,
}

/// Whether a step may be executed again after a kill, without a question.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Repeats {
    /// It may have had effects.
    Asks,
    /// Another execution has no further effect.
    Idempotent,
    /// It goes on with the run of an agent or of a workflow.
    GoesOn,
}

/// The output of a [`Step`].
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct StepOutput<S> {
    /// The state after the step.
    pub state: S,
    /// The step that follows.
    pub next: Goto,
}

impl<S> StepOutput<S> {
    /// Makes an output, for layers that answer instead of a step.
    #[must_use]
    pub const fn new(state: S, next: Goto) -> Self {
        Self { state, next }
    }
}

impl<S> Step<S> {
    pub(super) fn shared_name(&self) -> Arc<str> {
        Arc::clone(&self.name)
    }
}

impl<S: Data + Clone> Runnable for Step<S> {
    type Input = S;
    type Output = StepOutput<S>;

    fn emitter(&self) -> &Emitter {
        &self.emitter
    }

    async fn execute(&self, input: &S, ctx: &RunContext) -> Result<StepOutput<S>> {
        ctx.set_own_extension(Delegated::default());
        // A copy, so that another attempt (M7) and a failure find the state as it was.
        let mut state = input.clone();
        let next = (self.work)(&mut state, ctx).await?;
        Ok(StepOutput { state, next })
    }

    fn is_idempotent(&self) -> bool {
        self.repeats == Repeats::Idempotent
    }
}

impl<S> fmt::Debug for Step<S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Step({:?})", self.name)
    }
}
