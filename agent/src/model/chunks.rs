//! Stages that the pieces of a reply pass through before listeners receive them.

use std::sync::Arc;

use emitree_runtime::{Result, Run, RunContext};

use crate::model::passage::Passage;
use crate::{ChatModel, Delta};

/// The pieces of a reply that a [`ChunkStage`] receives.
#[derive(Debug)]
#[non_exhaustive]
pub struct Chunks {
    /// The pieces. A stage may change, remove and add pieces. It may also keep pieces back and add them in a later call.
    pub deltas: Vec<Delta>,
    /// `true` if the reply has ended. The stage is then called for the last time, and must add the pieces that it kept
    /// back.
    pub ended: bool,
}

/// A stage that the pieces of a model's reply pass through. Each attempt of a run has its own stage, so the stage can
/// keep state.
///
/// Every closure `FnMut(&mut Chunks, &RunContext) -> Result<()> + Send` is a stage.
pub trait ChunkStage: Send {
    /// Changes the pieces that have arrived.
    ///
    /// # Errors
    ///
    /// An error fails the attempt.
    fn pass(&mut self, chunks: &mut Chunks, ctx: &RunContext) -> Result<()>;
}

impl<F: FnMut(&mut Chunks, &RunContext) -> Result<()> + Send> ChunkStage for F {
    fn pass(&mut self, chunks: &mut Chunks, ctx: &RunContext) -> Result<()> {
        self(chunks, ctx)
    }
}

type MakeStage = Arc<dyn Fn() -> Box<dyn ChunkStage> + Send + Sync>;

/// Extension methods for the runs of models.
///
/// ```
/// use emitree_agent::{ChatModel, Chunks, Delta, ModelRun, ScriptedModel};
/// use emitree_runtime::{RunContext, Runnable};
///
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> emitree_runtime::Result<()> {
/// let loud = || {
///     |chunks: &mut Chunks, _: &RunContext| {
///         for delta in &mut chunks.deltas {
///             if let Delta::Text(text) = delta {
///                 *text = text.to_uppercase();
///             }
///         }
///         Ok(())
///     }
/// };
/// let model = ChatModel::new(ScriptedModel::new("test").text("hello"))?;
/// assert_eq!(model.run("hi".into()).chunks(loud).await?.text(), "HELLO");
/// # Ok(())
/// # }
/// ```
pub trait ModelRun: Sized {
    /// Appends a [`ChunkStage`] to this run, after the stages that the run already has. `make` makes a new stage for
    /// each attempt. A middleware appends a stage with [`AgentContext::chunks`](crate::AgentContext::chunks).
    ///
    /// A reply that is not streamed passes through the same stages, in a single call with the whole reply and `ended`
    /// set. If a listener stops a stream, the stages are called with `ended` as well, so that they can add the pieces
    /// that they kept back.
    #[must_use]
    fn chunks<S: ChunkStage + 'static>(self, make: impl Fn() -> S + Send + Sync + 'static) -> Self;
}

impl ModelRun for Run<'_, ChatModel> {
    fn chunks<S: ChunkStage + 'static>(self, make: impl Fn() -> S + Send + Sync + 'static) -> Self {
        let stages = ChunkStages::default().with(make);
        self.middleware(move |ctx: &RunContext| Passage::append(&stages, ctx))
    }
}

/// Functions that make new stages for each attempt of a model's run.
#[derive(Clone, Default)]
pub(crate) struct ChunkStages(Vec<MakeStage>);

impl ChunkStages {
    /// Appends a function that makes a new stage for each attempt.
    pub(crate) fn with<S: ChunkStage + 'static>(mut self, make: impl Fn() -> S + Send + Sync + 'static) -> Self {
        self.0.push(Arc::new(move || Box::new(make())));
        self
    }

    pub(crate) const fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    pub(crate) fn extend(&mut self, other: &Self) {
        self.0.extend(other.0.iter().cloned());
    }

    pub(crate) fn begin(&self) -> Vec<Box<dyn ChunkStage>> {
        self.0.iter().map(|make| make()).collect()
    }
}
