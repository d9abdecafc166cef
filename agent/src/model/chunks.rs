//! Stages that the pieces of a reply pass through before listeners receive them.

use std::future::ready;
use std::sync::Arc;

use emitree_runtime::{Result, Run, RunContext};
use futures_core::future::BoxFuture;

use crate::model::passage::{Passage, in_stage};
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

/// A stage that may await, for example to ask a service, or another model, about the pieces that have arrived. While it
/// waits, no further pieces are received.
///
/// Every [`ChunkStage`] is an async stage. Sync and async stages are called in the order in which they were added.
///
/// ```
/// use emitree_agent::reply::AsyncChunkStage;
/// use emitree_agent::{ChatModel, Chunks, Delta, ModelRun, ScriptedModel};
/// use emitree_runtime::{Error, Result, RunContext, Runnable};
/// use futures_util::future::BoxFuture;
///
/// /// Asks a service about the whole text of a reply before any of its pieces leaves.
/// #[derive(Default)]
/// struct Moderate {
///     kept: Vec<Delta>,
/// }
///
/// impl AsyncChunkStage for Moderate {
///     fn pass<'a>(&'a mut self, chunks: &'a mut Chunks, _: &'a RunContext) -> BoxFuture<'a, Result<()>> {
///         Box::pin(async move {
///             self.kept.append(&mut chunks.deltas);
///             if chunks.ended {
///                 if is_harmful(&format!("{:?}", self.kept)).await {
///                     return Err(Error::denied("moderation", "the reply is harmful"));
///                 }
///                 chunks.deltas.append(&mut self.kept);
///             }
///             Ok(())
///         })
///     }
/// }
/// # async fn is_harmful(text: &str) -> bool { text.contains("poison") }
///
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<()> {
/// let model = ChatModel::new(ScriptedModel::new("test").text("Take poison."))?;
/// assert!(model.run("hi".into()).chunks_async(Moderate::default).await.unwrap_err().is_denied());
/// # Ok(())
/// # }
/// ```
pub trait AsyncChunkStage: Send {
    /// Changes the pieces that have arrived. If the run is aborted or dropped, the future is dropped.
    ///
    /// # Errors
    ///
    /// An error fails the attempt.
    fn pass<'a>(&'a mut self, chunks: &'a mut Chunks, ctx: &'a RunContext) -> BoxFuture<'a, Result<()>>;
}

impl<S: ChunkStage> AsyncChunkStage for S {
    fn pass<'a>(&'a mut self, chunks: &'a mut Chunks, ctx: &'a RunContext) -> BoxFuture<'a, Result<()>> {
        Box::pin(ready(ChunkStage::pass(self, chunks, ctx)))
    }
}

/// The stages of one attempt. A sync stage is called without a future, because it is called for each piece.
#[derive(Default)]
pub(crate) struct Stages(Vec<Stage>);

struct Stage {
    /// The name of its hook, for errors.
    name: Option<Arc<str>>,
    kind: StageKind,
}

enum StageKind {
    Sync(Box<dyn ChunkStage>),
    Async(Box<dyn AsyncChunkStage>),
}

impl Stages {
    pub(crate) const fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    pub(crate) fn push(&mut self, stage: impl ChunkStage + 'static) {
        self.0.push(Stage { name: None, kind: StageKind::Sync(Box::new(stage)) });
    }

    pub(crate) fn append(&mut self, mut other: Self) {
        self.0.append(&mut other.0);
    }

    /// Passes pieces through all stages, in order.
    pub(crate) async fn pass(&mut self, deltas: Vec<Delta>, ended: bool, ctx: &RunContext) -> Result<Vec<Delta>> {
        let mut chunks = Chunks { deltas, ended };
        for stage in &mut self.0 {
            let passed = match &mut stage.kind {
                StageKind::Sync(stage) => stage.pass(&mut chunks, ctx),
                StageKind::Async(stage) => in_stage(ctx, stage.pass(&mut chunks, ctx)).await,
            };
            passed.map_err(|error| stage.name.iter().fold(error, |error, name| error.by(name)))?;
            // A stage may have changed `ended`, so it is set again for the next stage.
            chunks.ended = ended;
        }
        Ok(chunks.deltas)
    }
}

type MakeStage = Arc<dyn Fn() -> StageKind + Send + Sync>;

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

    /// Appends an [`AsyncChunkStage`] to this run, as [`chunks`](Self::chunks) appends a stage.
    #[must_use]
    fn chunks_async<S: AsyncChunkStage + 'static>(self, make: impl Fn() -> S + Send + Sync + 'static) -> Self;
}

impl ModelRun for Run<'_, ChatModel> {
    fn chunks<S: ChunkStage + 'static>(self, make: impl Fn() -> S + Send + Sync + 'static) -> Self {
        let stages = ChunkStages::default().with(make);
        self.middleware(move |ctx: &RunContext| Passage::append(&stages, ctx))
    }

    fn chunks_async<S: AsyncChunkStage + 'static>(self, make: impl Fn() -> S + Send + Sync + 'static) -> Self {
        let stages = ChunkStages::default().with_async(make);
        self.middleware(move |ctx: &RunContext| Passage::append(&stages, ctx))
    }
}

/// Functions that make new stages for each attempt of a model's run.
#[derive(Clone, Default)]
pub(crate) struct ChunkStages(Vec<(Option<Arc<str>>, MakeStage)>);

impl ChunkStages {
    /// Appends a function that makes a new stage for each attempt.
    pub(crate) fn with<S: ChunkStage + 'static>(mut self, make: impl Fn() -> S + Send + Sync + 'static) -> Self {
        self.0.push((None, Arc::new(move || StageKind::Sync(Box::new(make())))));
        self
    }

    /// Appends a function that makes a new async stage for each attempt.
    pub(crate) fn with_async<S: AsyncChunkStage + 'static>(
        mut self,
        make: impl Fn() -> S + Send + Sync + 'static,
    ) -> Self {
        self.0.push((None, Arc::new(move || StageKind::Async(Box::new(make())))));
        self
    }

    /// Sets the name of the last stage, which its errors get.
    pub(crate) fn named(mut self, name: &str) -> Self {
        if let Some(last) = self.0.last_mut() {
            last.0 = Some(name.into());
        }
        self
    }

    pub(crate) const fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    pub(crate) fn extend(&mut self, other: &Self) {
        self.0.extend(other.0.iter().cloned());
    }

    pub(crate) fn begin(&self) -> Stages {
        Stages(self.0.iter().map(|(name, make)| Stage { name: name.clone(), kind: make() }).collect())
    }
}
