//! The state of an agent's loop. Every hook can read the public part, a [`Turn`].

use std::collections::BTreeMap;
use std::ops::Deref;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};

use emitree_runtime::{Result, RunContext};
use parking_lot::Mutex;
use rust_decimal::Decimal;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::agent::answer::Answer;
use crate::agent::own_hooks::OwnHooks;
use crate::message::session::SessionRun;
use crate::model::chunks::{AsyncChunkStage, ChunkStages};
use crate::model::passage::Passage;
use crate::tool::started::WorkStarted;
use crate::{ChatResponse, ChunkStage, History, Session, Usage};

/// The state of an agent's loop.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct Turn {
    /// The number of the turn, from 1; 0 before the first turn.
    pub number: u32,
    /// The input and output tokens of the model calls so far.
    pub usage: Usage,
    /// The cost of the model calls so far; `None` if no response has a cost. See
    /// [`ChatModel::price`](crate::ChatModel::price).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cost: Option<Decimal>,
    /// The number of tool calls so far. The calls of the current turn are included after `turn.action`, if its decision
    /// is to execute them.
    pub tool_calls: u32,
}

impl Turn {
    /// Adds the tokens and the cost of a response.
    pub(crate) fn add_response(&mut self, response: &ChatResponse) {
        if let Some(usage) = response.usage {
            self.usage += usage;
        }
        if let Some(cost) = response.cost {
            self.cost = Some(self.cost.unwrap_or_default().saturating_add(cost));
        }
    }
}

/// The current [`Turn`] of an agent's run. The mutex is needed because tools may read the turn on other threads.
#[derive(Debug, Default)]
pub(crate) struct CurrentTurn(Mutex<Turn>);

impl CurrentTurn {
    pub(crate) fn get(&self) -> Turn {
        *self.0.lock()
    }

    pub(crate) fn change(&self, change: impl FnOnce(&mut Turn)) {
        change(&mut self.0.lock());
    }
}

/// The state of an agent's run. The runs below inherit it as an extension, unless an agent in between has its own
/// state.
#[derive(Debug)]
pub(crate) struct LoopState {
    pub(crate) session: SessionRun,
    pub(crate) turn: CurrentTurn,
    pub(crate) answer: Answer,
    /// `true` if a counter has asked for tokens, so that the calls of the model are measured.
    pub(crate) measures: AtomicBool,
    /// The depth of the agent's run. A run compares this depth with its own to recognize inherited state.
    depth: usize,
    /// The number of the last attempt that has begun, or 0 if the future of that attempt is gone.
    alive: AtomicU32,
    /// The state of middleware before the first attempt.
    before: Mutex<Option<BTreeMap<Arc<str>, Value>>>,
    /// Determines which hooks of the middlewares that are bound to the run are replaced.
    pub(crate) own: Arc<OwnHooks>,
}

impl LoopState {
    /// Creates the state of a run, as an extension that the runs below inherit.
    pub(crate) fn prepare(ctx: &RunContext, own: Arc<OwnHooks>) {
        let session = ctx.own_extension::<Session>().map(|session| Session::clone(&session)).unwrap_or_default();
        let (session, turn, depth) = (SessionRun::new(session), CurrentTurn::default(), ctx.depth());
        let (answer, alive, before) = (Answer::default(), AtomicU32::new(0), Mutex::new(None));
        let measures = AtomicBool::new(false);
        ctx.set_extension(Self { session, turn, answer, measures, depth, alive, before, own });
    }

    /// Returns the state of this run, or `None` if `prepare` has not been called for the run. The inherited state of an
    /// agent above is ignored.
    pub(crate) fn of(ctx: &RunContext) -> Option<Arc<Self>> {
        ctx.extension::<Self>().filter(|state| state.depth == ctx.depth())
    }

    /// Returns the run of the agent's tool that a run belongs to, with the state of the call.
    pub(crate) fn call_around(&self, ctx: &RunContext) -> Option<(RunContext, Arc<WorkStarted>)> {
        let mut runs = std::iter::successors(Some(ctx), |run| run.parent());
        let tool = runs.find(|run| run.depth() <= self.depth + 1)?;
        Some((tool.clone(), tool.own_extension::<WorkStarted>()?))
    }
}

/// The reason for which the tools of a discarded attempt are aborted.
pub(crate) const DISCARDED: &str = "the attempt of the agent was discarded";

/// An attempt of an agent's run. It belongs to the attempt's future.
pub(crate) struct Attempt {
    state: Arc<LoopState>,
    number: u32,
    /// `true` if a layer keeps the future of the previous attempt.
    is_previous_kept: bool,
}

impl Attempt {
    /// Counts another attempt. From now on, the previous attempt can neither start a tool nor change the session.
    pub(crate) fn next(state: Arc<LoopState>) -> Self {
        let number = state.session.next_attempt();
        let is_previous_kept = state.alive.swap(number, Ordering::AcqRel) != 0;
        Self { state, number, is_previous_kept }
    }

    pub(crate) const fn is_first(&self) -> bool {
        self.number == 1
    }

    /// Aborts the tools of the previous attempt, and returns the runs that have to end before this attempt begins.
    pub(crate) fn end_tools(&self, ctx: &RunContext, spawns: bool) -> Vec<RunContext> {
        if self.is_first() {
            return Vec::new();
        }
        let mut tools = ctx.children();
        tools.retain(|run| run.own_extension::<WorkStarted>().is_some());
        tools.iter().for_each(|run| _ = run.abort(DISCARDED));
        if self.is_previous_kept && !spawns {
            // The runs are part of the future that a layer keeps. It may not be polled any more, so they may never end.
            tools.clear();
        }
        tools
    }

    /// Begins an attempt. From the second attempt on, resets the turn, restores the state of middleware, and undoes the
    /// last attempt's changes to the history.
    pub(crate) fn begin(&self) -> Result<()> {
        let before = self.before.lock().take();
        let before = match before {
            Some(before) => {
                // A layer or an output middleware requested another attempt: the changes of the previous attempt are
                // undone.
                self.session.give_up();
                self.answer.forget();
                self.session.slices().restore(&before);
                self.turn.change(|turn| *turn = Turn::default());
                before
            }
            // Serializing the values calls user code, so `before` is not locked here.
            None => self.session.slices().snapshot()?,
        };
        *self.before.lock() = Some(before);
        Ok(())
    }
}

impl Deref for Attempt {
    type Target = LoopState;

    fn deref(&self) -> &LoopState {
        &self.state
    }
}

impl Drop for Attempt {
    fn drop(&mut self) {
        // If another attempt has begun meanwhile, its number stays.
        self.state.alive.compare_exchange(self.number, 0, Ordering::AcqRel, Ordering::Relaxed).ok();
    }
}

/// Extension methods for a [`RunContext`] in the run of an agent or a model, or below.
pub trait AgentContext {
    /// Returns the state of the nearest agent's loop, in this run or a run above. Returns `None` outside agents.
    fn turn(&self) -> Option<Turn>;

    /// Returns the conversation of the nearest agent, in this run or a run above, as it is now: a turn is in it when the
    /// turn has ended. Returns `None` outside agents. The history shares its messages, so this call is cheap.
    fn history(&self) -> Option<History>;

    /// Appends a [`ChunkStage`] to this run of a model, after the stages that the run already has. `make` makes a new
    /// stage for each attempt. See [`ModelRun::chunks`](crate::ModelRun::chunks).
    ///
    /// # Errors
    ///
    /// Returns an error if this is not the run of a [`ChatModel`](crate::ChatModel), or if the work of the run has
    /// begun.
    fn chunks<S: ChunkStage + 'static>(&self, make: impl Fn() -> S + Send + Sync + 'static) -> Result<()>;

    /// Appends an [`AsyncChunkStage`] to this run of a model, as [`chunks`](Self::chunks) appends a stage.
    ///
    /// # Errors
    ///
    /// As for [`chunks`](Self::chunks).
    fn chunks_async<S: AsyncChunkStage + 'static>(&self, make: impl Fn() -> S + Send + Sync + 'static) -> Result<()>;
}

impl AgentContext for RunContext {
    fn turn(&self) -> Option<Turn> {
        self.extension::<LoopState>().map(|state| state.turn.get())
    }

    fn history(&self) -> Option<History> {
        self.extension::<LoopState>().map(|state| state.session.history())
    }

    fn chunks<S: ChunkStage + 'static>(&self, make: impl Fn() -> S + Send + Sync + 'static) -> Result<()> {
        Passage::append(&ChunkStages::default().with(make), self)
    }

    fn chunks_async<S: AsyncChunkStage + 'static>(&self, make: impl Fn() -> S + Send + Sync + 'static) -> Result<()> {
        Passage::append(&ChunkStages::default().with_async(make), self)
    }
}
