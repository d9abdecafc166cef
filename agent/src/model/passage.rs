//! The stages and guards that each reply of a model call passes, also a reply that no model gave (M4).
//!
//! 1. A reply of a provider passes the stages while it arrives. [`Passage::left_stages`] notes the reply.
//! 2. [`Noted`] is called around all guards, and notes each reply that they let pass.
//! 3. [`Checked`] is called around all layers that may answer. It compares the reply that they return with the noted
//!    replies: a reply that has not passed the stages passes them as a whole, and then a reply that has not passed the
//!    guards is checked by each of them. So a reply that nobody changed passes once.
//!
//! All replies of a run are noted, because a layer may call the model several times and return any of the replies.

use std::future::Future;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, LazyLock};

use emitree_runtime::{Error, Layer, Middleware, Next, Phase, Result, RunContext, Stack};
use parking_lot::Mutex;
use uuid::Uuid;

use crate::model::chunks::{ChunkStages, Stages};
use crate::model::incoming::pass_whole;
use crate::{Agent, ChatModel, ChatRequest, ChatResponse, Tool};

/// The stages of one run of a model, and the replies that have passed its stages and guards. Clones share both.
#[derive(Clone, Default)]
pub(crate) struct Passage(Arc<PassageState>);

#[derive(Default)]
struct PassageState {
    /// The stages that only a provider's reply passes, before the others: they read the form that it is written in.
    reads: ChunkStages,
    /// `true` if the agent has no other stages and no guards, so that no replies have to be compared.
    only_reads: bool,
    stages: Mutex<ChunkStages>,
    /// The replies as they left the stages.
    staged: Mutex<Vec<ChatResponse>>,
    /// The replies that the guards let pass.
    guarded: Mutex<Vec<ChatResponse>>,
    is_bound: AtomicBool,
    /// `true` if the stages and guards belong to an agent.
    is_of_agent: bool,
}

static LAYERS: LazyLock<Stack<ChatModel>> = LazyLock::new(|| {
    Stack::builder().innermost_in(Phase::Observe, Checked).innermost_in(Phase::Transform, Noted).build()
});

impl Passage {
    /// Makes the passage of an agent's model call, with the stages of the agent's hooks.
    pub(crate) fn of_agent(reads: ChunkStages, stages: ChunkStages, has_guards: bool) -> Self {
        Self(Arc::new(PassageState {
            reads,
            only_reads: stages.is_empty() && !has_guards,
            stages: Mutex::new(stages),
            is_of_agent: true,
            ..PassageState::default()
        }))
    }

    /// Returns the passage of a model's run, if it has stages or guards of an agent.
    pub(crate) fn of(ctx: &RunContext) -> Option<Self> {
        ctx.own_extension::<Self>().map(|passage| Self::clone(&passage))
    }

    /// Appends stages to a model's run.
    ///
    /// # Errors
    ///
    /// Returns an error if this is not the run of a model, or if its work has begun.
    pub(crate) fn append(stages: &ChunkStages, ctx: &RunContext) -> Result<()> {
        if !ctx.is_run_of_type::<ChatModel>() {
            let of = ctx.creator().map_or("", |creator| creator.kind());
            return Err(Error::new(format!(
                "`chunks` appends a stage to the run of a `ChatModel`, but `{}` is a run of the kind `{of}`",
                ctx.name()
            )));
        }
        let passage = ctx.own_extension_or_default::<Self>();
        passage.0.stages.lock().extend(stages);
        passage.bind(ctx)
    }

    /// Binds the layers that compare replies, unless they are bound already.
    fn bind(&self, ctx: &RunContext) -> Result<()> {
        if self.0.is_bound.swap(true, Ordering::Relaxed) { Ok(()) } else { LAYERS.bind(ctx) }
    }

    /// Makes the stages of a provider's reply.
    pub(crate) fn begin_attempt(&self) -> Stages {
        let mut stages = self.0.reads.begin();
        stages.append(self.begin());
        stages
    }

    /// Makes the stages of a reply that no provider gave.
    fn begin(&self) -> Stages {
        // `make` is user code, so it is called without the lock.
        let stages = self.0.stages.lock().clone();
        stages.begin()
    }

    /// Notes a reply as it left the stages.
    pub(crate) fn left_stages(&self, reply: &ChatResponse) {
        if self.is_bound() {
            self.0.staged.lock().push(reply.clone());
        }
    }

    /// Returns `true` if replies are compared.
    fn is_bound(&self) -> bool {
        self.0.is_bound.load(Ordering::Relaxed)
    }

    /// Returns `true` if a reply has passed both the stages and the guards of the run.
    pub(crate) fn has_passed(&self, reply: &ChatResponse) -> bool {
        !self.is_bound() || (self.has_left_stages(reply) && self.is_guarded(reply))
    }

    fn has_left_stages(&self, reply: &ChatResponse) -> bool {
        self.0.stages.lock().is_empty() || self.0.staged.lock().iter().any(|staged| staged.is_same_reply(reply))
    }

    fn is_guarded(&self, reply: &ChatResponse) -> bool {
        self.0.guarded.lock().iter().any(|guarded| guarded.is_same_reply(reply))
    }
}

/// Binds the layers of an agent's model call that compare replies, and refuses other models below the call.
#[derive(Debug)]
pub(crate) struct PassReplies;

impl Middleware for PassReplies {
    fn bind(&self, ctx: &RunContext) -> Result<()> {
        if let Some(passage) = Passage::of(ctx).filter(|passage| !passage.0.only_reads) {
            passage.bind(ctx)?;
        }
        ctx.bind_nested(RefuseModel);
        Ok(())
    }

    fn name(&self) -> &str {
        "pass_replies"
    }
}

tokio::task_local! {
    /// The id of the run whose reply is passing a stage. A model that a stage asks does not answer in place of the model
    /// of the call.
    static IN_STAGE: Uuid;
}

/// Polls the future of a stage, which may ask other models about the reply of this run.
pub(crate) async fn in_stage<T>(ctx: &RunContext, stage: impl Future<Output = T>) -> T {
    IN_STAGE.scope(ctx.run_id(), stage).await
}

/// Refuses the run of a model below an agent's model call: its tokens would reach listeners without passing the stages
/// and guards of the agent.
#[derive(Debug)]
struct RefuseModel;

impl Middleware for RefuseModel {
    fn bind(&self, ctx: &RunContext) -> Result<()> {
        if !ctx.is_run_of_type::<ChatModel>() {
            return Ok(());
        }
        let is_of_agent = |run: &RunContext| Passage::of(run).is_some_and(|passage| passage.0.is_of_agent);
        // A model that a tool or another agent asks does not answer in place of the model of the call.
        let mut above = std::iter::successors(ctx.parent(), |run| run.parent());
        let call = above.find(|run| run.is_run_of_type::<Agent>() || run.is_run_of_type::<Tool>() || is_of_agent(run));
        match call {
            Some(call) if is_of_agent(call) && IN_STAGE.try_get().ok() != Some(call.run_id()) => {
                Err(Error::new(format!(
                    "the model `{}` was asked inside a call of the model `{}`, but replies of this call must pass the \
                 stages and guards of its agent: make it an alternative with `ChatModel::or`",
                    ctx.name(),
                    call.name()
                )))
            }
            _ => Ok(()),
        }
    }

    fn name(&self) -> &str {
        "refuse_models"
    }
}

/// The layer around all layers that may answer.
#[derive(Debug)]
struct Checked;

impl Layer<ChatModel> for Checked {
    async fn call(&self, input: &ChatRequest, ctx: &RunContext, next: Next<'_, ChatModel>) -> Result<ChatResponse> {
        let mut reply = next.run(input).await?;
        let Some(passage) = Passage::of(ctx) else { return Ok(reply) };
        if !passage.has_left_stages(&reply) {
            reply = pass_whole(reply, passage.begin(), ctx).await?;
            passage.left_stages(&reply);
        }
        if !passage.is_guarded(&reply) {
            next.check_output(&reply).await?;
            passage.0.guarded.lock().push(reply.clone());
        }
        Ok(reply)
    }

    fn name(&self) -> &str {
        "reply.check"
    }
}

/// The layer around all guards.
#[derive(Debug)]
struct Noted;

impl Layer<ChatModel> for Noted {
    async fn call(&self, input: &ChatRequest, ctx: &RunContext, next: Next<'_, ChatModel>) -> Result<ChatResponse> {
        let reply = next.run(input).await?;
        if let Some(passage) = Passage::of(ctx) {
            passage.0.guarded.lock().push(reply.clone());
        }
        Ok(reply)
    }

    fn name(&self) -> &str {
        "reply.note"
    }
}
