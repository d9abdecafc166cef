//! The state of an agent's loop. Every hook can read its public part, a [`Turn`].

use std::future::Future;
use std::ops::Deref;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::task::{Context, Poll};

use emitree_middleware::durable::{JobStore, NoJob, OwnSteps, TakenEntry};
use emitree_middleware::store::Claim;
use emitree_runtime::{Answers, Error, Result, RunContext};
use futures_core::future::BoxFuture;
use parking_lot::Mutex;

use crate::agent::answer::Answer;
use crate::agent::middleware::Joined;
use crate::agent::own_hooks::OwnHooks;
use crate::handoff::{HandoffState, Transferred};
use crate::model::chunks::{AsyncChunkStage, ChunkStages};
use crate::model::passage::Passage;
use crate::place::compaction::Compacting;
use crate::place::values::Values;
use crate::session::commits;
use crate::session::entry::SessionEntry;
use crate::session::fold::runs::Once;
use crate::session::run::SessionRun;
use crate::session::turn::CallInTurn;
use crate::{Agent, AgentOutput, ChatModel, ChunkStage, History, Message, Session, Turn};

/// The state of an agent's run. The runs below inherit it as an extension, unless an agent in between has its own
/// state.
#[derive(Debug)]
pub(crate) struct LoopState {
    pub(crate) session: SessionRun,
    resumes: Mutex<Resumes>,
    /// The agent above, if its session keeps the session of this run, and its call is made again after an end.
    outer: Option<Arc<Self>>,
    pub(crate) answer: Answer,
    /// The answers to questions about the calls of the run.
    pub(crate) answers: Answers,
    pub(crate) handoffs: HandoffState,
    /// `true` if a counter has asked for tokens, so that the calls of the model are measured.
    pub(crate) measures: AtomicBool,
    /// The depth of the agent's run. A run compares this depth with its own to recognize inherited state.
    depth: usize,
    /// The number of the last attempt that has begun, or 0 if the future of that attempt is gone.
    alive: AtomicU32,
    /// The numbers of earlier attempts whose futures are not gone, because layers keep them.
    kept: Mutex<Vec<u32>>,
    /// `true` in a job: the claim waits for a process that was killed.
    pub(crate) is_in_job: bool,
    /// The entry of the session, if a worker has taken it.
    pub(crate) taken: Option<TakenEntry>,
    /// The claim of the session, if a store keeps it.
    pub(crate) claim: Mutex<Option<Claim>>,
    /// `true` once the run has claimed the session.
    pub(crate) has_claimed: AtomicBool,
    /// The hooks of `context.compact`.
    pub(crate) compacting: Compacting,
    /// Determines which hooks of the middlewares that are bound to the run are replaced.
    pub(crate) own: Arc<OwnHooks>,
}

/// The answers to the questions of an agent are in its session.
const NO_JOB: NoJob = NoJob::new(
    "an agent is no job, because its session keeps its turns and its questions: write \
     `.session(&Session::open(&store, id).await?)` instead of the `Durable`, or run the agent in a job",
);

impl LoopState {
    /// Creates the state of a run, as an extension that the runs below inherit.
    pub(crate) fn prepare(ctx: &RunContext, own: Arc<OwnHooks>) -> Result<()> {
        let UsedSession { session, resumes, outer } = Self::session_of(ctx)?;
        // The answers of the session are no answers that the run was given, also if there are no others.
        let answers = Answers::new().settling_edits().keeping_values().or(Answers::of(ctx).unwrap_or_default());
        let (asked_in, given) = (session.clone(), answers.clone());
        let answers = answers.on_deadline(move |question| {
            let answer = asked_in.meet_deadline(question);
            Ok(answer.map(|answer| given.answer(question.id.clone(), answer)).is_some())
        });
        let session = SessionRun::new(session);
        let depth = ctx.depth();
        let answer = Answer::default();
        let alive = AtomicU32::new(0);
        let kept = Mutex::default();
        let measures = AtomicBool::new(false);
        let handoffs = HandoffState::of(ctx);
        let claim = Mutex::new(None);
        let has_claimed = AtomicBool::new(false);
        let compacting = Compacting::default();
        let is_stored = session.own_entry().is_some();
        let is_in_job = ctx.extension::<JobStore>().is_some();
        let taken = ctx.own_extension::<TakenEntry>().map(|taken| TakenEntry::clone(&taken));
        ctx.set_extension(Self {
            session,
            resumes: Mutex::new(resumes),
            outer,
            answer,
            answers: answers.clone(),
            handoffs,
            measures,
            depth,
            alive,
            kept,
            is_in_job,
            taken,
            claim,
            has_claimed,
            compacting,
            own,
        });
        ctx.set_extension(answers);
        ctx.set_own_extension(NO_JOB);
        if is_stored {
            // The session goes on where it was, so a job around it does not keep the calls.
            ctx.set_extension(OwnSteps::new());
            commits::release_at_end(ctx)?;
        }
        Ok(())
    }

    /// Returns the session of a run, and how the run uses it.
    fn session_of(ctx: &RunContext) -> Result<UsedSession> {
        if let Some(session) = ctx.own_extension::<Session>() {
            let resumes = ctx.own_extension::<Resumes>().map_or(Resumes::No, |resumes| *resumes);
            return Ok(UsedSession { session: Session::clone(&session), resumes, outer: None });
        }
        if let Some(taken) = ctx.own_extension::<TakenEntry>() {
            let session = SessionEntry::of_taken(&taken)?;
            return Ok(UsedSession { session, resumes: Resumes::Session, outer: None });
        }
        if let Some(transferred) = ctx.own_extension::<Transferred>() {
            let session = transferred.session.clone();
            let resumes = transferred.resumes;
            return Ok(UsedSession { session, resumes, outer: None });
        }
        let above = || std::iter::successors(ctx.parent(), |run| run.parent());
        // The calls of a model or an agent are no steps that are made again: only those below a tool, or another run with
        // a key, are.
        let is_step = |run: &&RunContext| !run.is_run_of_type::<ChatModel>() && !run.is_run_of_type::<Agent>();
        let Some(step) = above().find(|run| run.key().is_some()).filter(is_step) else {
            return Ok(UsedSession::of(Session::default()));
        };
        // The session is found by this key, so a call that is made again goes on with the same session (A22).
        if ctx.key().is_none() {
            ctx.take_key(ctx.name())?;
        }
        let key = ctx.key().ok_or_else(|| Error::new("the run has no key, although it has taken one"))?;
        let Some(call) = step.own_extension::<CallInTurn>() else {
            let Some(job) = ctx.extension::<JobStore>() else {
                return Ok(UsedSession::of(Session::with_key(&key)));
            };
            let session = SessionEntry::below_job(&key, &job);
            return Ok(UsedSession { resumes: Resumes::IfBegun, ..UsedSession::of(session) });
        };
        let (session, has_begun) = call.turn.session_below(call.position, &key, None, Vec::new());
        let resumes = if has_begun { Resumes::Inside } else { Resumes::No };
        // A pause above ends this run only if its call can be made again (A15).
        let outer = step.extension::<Self>().filter(|_| step.is_idempotent());
        Ok(UsedSession { session, resumes, outer })
    }

    /// Returns the state of this run, or `None` if `prepare` has not been called for the run. The inherited state of an
    /// agent above is ignored.
    pub(crate) fn of(ctx: &RunContext) -> Option<Arc<Self>> {
        ctx.extension::<Self>().filter(|state| state.depth == ctx.depth())
    }

    /// Sets the answer: the last message of the last turn in the history. If the run fails, it is taken out or replaced.
    pub(crate) fn keep_answer(&self, message: &Arc<Message>, ctx: &RunContext) {
        self.session.hold_answer();
        self.answer.keep(message, ctx);
    }

    /// Returns how the run uses its session.
    pub(crate) fn resumes(&self) -> Resumes {
        *self.resumes.lock()
    }

    /// The session was read: if a run has begun to use the session of a step, this run goes on with it.
    pub(crate) fn go_on_inside(&self) {
        let resumes = &mut *self.resumes.lock();
        if *resumes == Resumes::IfBegun {
            *resumes = if self.session.is_used() { Resumes::Inside } else { Resumes::No };
        }
    }

    /// Looks for a run that was asked for with the same id ([`AgentRun::once`](crate::AgentRun::once)). Returns its answer,
    /// or lets this run go on with it.
    ///
    /// # Errors
    ///
    /// Returns an error if the run is under way, or if it cannot end any more.
    pub(crate) fn asked_once(&self, ctx: &RunContext) -> Result<Option<AgentOutput>> {
        let Some(once) = ctx.own_extension::<AsksOnce>().filter(|_| !self.session.has_begun()) else { return Ok(None) };
        let id = &once.0;
        if ctx.own_extension::<Session>().is_none() {
            return Err(Error::new(format!(
                "`.once({id:?})` needs a session, which knows the run: add `.session(&session)`"
            )));
        }
        match self.session.once(id) {
            (Once::New, _) => Ok(None),
            (Once::Stopped, _) => {
                *self.resumes.lock() = Resumes::Session;
                Ok(None)
            }
            (Once::Ended(_), Some(answer)) => {
                self.answer.return_known();
                Ok(Some(AgentOutput::new(Message::clone(&answer))))
            }
            (Once::UnderWay, _) => Err(Error::new(format!("the run `{id}` of the session is under way"))),
            (Once::Ended(_), None) => Err(Error::new(format!(
                "the run `{id}` has ended, and the history of the session has its answer no more"
            ))),
            (Once::Left, _) => Err(Error::new(format!(
                "the run `{id}` was left without an answer, or its answer was withheld, and another run has begun since: ask \
                 with another id"
            ))),
        }
    }

    /// Returns `true` if a session above is paused, which keeps the session of this run.
    pub(crate) fn is_paused_above(&self) -> bool {
        let mut above = std::iter::successors(self.outer.as_deref(), |state| state.outer.as_deref());
        above.any(|state| state.session.is_paused())
    }

    /// Returns the agent's run, which is this run or a run above.
    pub(crate) fn agent_run(&self, ctx: &RunContext) -> Option<RunContext> {
        std::iter::successors(Some(ctx), |run| run.parent()).find(|run| run.depth() == self.depth).cloned()
    }

    /// Returns the store of the agent for a run, with the layers of the middlewares that joined the agent's run.
    fn values(&self, ctx: &RunContext) -> Values {
        let joined = self.agent_run(ctx).and_then(|run| run.own_extension::<Joined>());
        let joined = joined.map(|joined| joined.all()).unwrap_or_default();
        Values::new(self.own.values.with_layers(joined.iter().map(|installed| &installed.hooks)), ctx.clone())
    }

    /// Returns the run of the agent's tool that a run belongs to, with the state of the call.
    pub(crate) fn call_around(&self, ctx: &RunContext) -> Option<(RunContext, Arc<CallInTurn>)> {
        let mut runs = std::iter::successors(Some(ctx), |run| run.parent());
        let tool = runs.find(|run| run.depth() <= self.depth + 1)?;
        Some((tool.clone(), tool.own_extension::<CallInTurn>()?))
    }
}

/// The session of a run, and how the run uses it.
struct UsedSession {
    session: Session,
    resumes: Resumes,
    outer: Option<Arc<LoopState>>,
}

impl UsedSession {
    const fn of(session: Session) -> Self {
        Self { session, resumes: Resumes::No, outer: None }
    }
}

/// The id with which several processes ask for a run: an extension of the run alone.
#[derive(Debug)]
pub(crate) struct AsksOnce(pub(crate) String);

/// How a run uses its session. An extension of the run alone, if its caller has set it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Resumes {
    /// The run adds its input.
    No,
    /// The run goes on with what the session has left open.
    Session,
    /// As `Session`, for an agent below a call that is made again: it may have its answer already.
    Inside,
    /// `Inside` if a run has begun to use the session, which is read when the run claims it, and otherwise `No`.
    IfBegun,
}

/// The reason for which the tools of a discarded attempt are aborted.
pub(crate) const DISCARDED: &str = "the attempt of the agent was discarded";

/// An attempt of an agent's run. It belongs to the attempt's future.
pub(crate) struct Attempt {
    state: Arc<LoopState>,
    number: u32,
    /// `true` once the loop has an answer.
    has_answer: AtomicBool,
}

impl Attempt {
    /// Counts another attempt. From now on, the previous attempt can neither start a tool nor change the session.
    pub(crate) fn next(state: Arc<LoopState>) -> Self {
        // The number counts before the swap: from here on the previous attempt is refused, even if a layer keeps its
        // future (A7).
        let number = state.session.next_attempt();
        let previous = state.alive.swap(number, Ordering::AcqRel);
        if previous != 0 {
            state.kept.lock().push(previous);
        }
        Self { state, number, has_answer: AtomicBool::new(false) }
    }

    /// The loop has an answer, so the session keeps nothing to go on with.
    pub(crate) fn succeed(&self) {
        self.has_answer.store(true, Ordering::Relaxed);
    }

    pub(crate) const fn is_first(&self) -> bool {
        self.number == 1
    }

    pub(crate) const fn number(&self) -> u32 {
        self.number
    }

    /// Returns a function that limits the future of this attempt: it ends with an error once another attempt has begun.
    pub(crate) fn until_next<'a, T>(&self) -> impl FnOnce(BoxFuture<'a, Result<T>>) -> UntilNext<'a, T> + use<'a, T> {
        let state = Arc::clone(&self.state);
        let number = self.number;
        move |attempt| UntilNext { attempt, state, number }
    }

    /// Aborts the tools of the attempts before, and returns the runs that have to end before this attempt begins.
    pub(crate) fn end_tools(&self, ctx: &RunContext, spawns: bool) -> Vec<RunContext> {
        if self.is_first() {
            return Vec::new();
        }
        // A tool that is not spawned is part of the future of its attempt. If a layer keeps this future, it may not be
        // polled any more, and the tool's run may never end.
        let kept = if spawns { Vec::new() } else { self.kept.lock().clone() };
        let mut tools = ctx.children();
        tools.retain(|run| {
            let Some(call) = run.own_extension::<CallInTurn>() else { return false };
            run.abort(DISCARDED);
            !kept.contains(&call.attempt())
        });
        tools
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
        self.state.session.free_taken(self.number);
        self.state.session.leave(self.number, *self.has_answer.get_mut());
        // If another attempt has begun meanwhile, its number stays.
        if self.state.alive.compare_exchange(self.number, 0, Ordering::AcqRel, Ordering::Relaxed).is_err() {
            self.state.kept.lock().retain(|kept| *kept != self.number);
        }
    }
}

/// The future of an attempt. A layer may keep and poll it when another attempt has begun: then it ends with an error,
/// because two attempts cannot use one conversation.
pub(crate) struct UntilNext<'a, T> {
    attempt: BoxFuture<'a, Result<T>>,
    state: Arc<LoopState>,
    number: u32,
}

impl<T> Future for UntilNext<'_, T> {
    type Output = Result<T>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Result<T>> {
        if self.state.session.attempt() != self.number {
            // Not an abort: a layer could not return the result of the other attempt instead (M9).
            return Poll::Ready(Err(Error::new(DISCARDED)));
        }
        self.attempt.as_mut().poll(cx)
    }
}

/// Extension methods for a [`RunContext`] in the run of an agent or a model, or below.
pub trait AgentContext {
    /// Returns the state of the nearest agent's loop, in this run or a run above. Returns `None` outside agents.
    fn turn(&self) -> Option<Turn>;

    /// Returns the conversation of the nearest agent, in this run or a run above, as it is now: a turn is in it when the
    /// turn has ended. Returns `None` outside agents. The history shares its messages, so this call is cheap.
    fn history(&self) -> Option<History>;

    /// Returns the session of the nearest agent, in this run or a run above, also if its caller has set none. Returns
    /// `None` outside agents. A hook or a tool can [steer](Session::steer) its agent with it, and a task that a
    /// middleware has started can send its results to the hooks of the middleware ([`Session::send`]).
    ///
    /// Code that keeps the session keeps the conversation and the state of middleware in memory, but not the run.
    fn session(&self) -> Option<Session>;

    /// Returns the key-value store of the nearest agent, in this run or a run above; see
    /// [`AgentBuilder::values`](crate::AgentBuilder::values).
    ///
    /// # Errors
    ///
    /// Returns an error that names the run if it is outside any agent's run.
    fn values(&self) -> Result<Values>;

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
        self.extension::<LoopState>().map(|state| state.session.turn())
    }

    fn history(&self) -> Option<History> {
        self.extension::<LoopState>().map(|state| state.session.history())
    }

    fn session(&self) -> Option<Session> {
        self.extension::<LoopState>().map(|state| state.session.session().clone())
    }

    fn values(&self) -> Result<Values> {
        let state = self.extension::<LoopState>().ok_or_else(|| {
            let name = self.name();
            Error::new(format!(
                "the run `{name}` has no key-value store: it is neither an agent's run nor nested in one"
            ))
        })?;
        Ok(state.values(self))
    }

    fn chunks<S: ChunkStage + 'static>(&self, make: impl Fn() -> S + Send + Sync + 'static) -> Result<()> {
        Passage::append(&ChunkStages::default().with(make), self)
    }

    fn chunks_async<S: AsyncChunkStage + 'static>(&self, make: impl Fn() -> S + Send + Sync + 'static) -> Result<()> {
        Passage::append(&ChunkStages::default().with_async(make), self)
    }
}
