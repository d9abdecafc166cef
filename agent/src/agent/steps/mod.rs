//! The steps of an agent's loop.

mod action;
mod middleware;
mod reply;
mod request;
mod resume;
mod steering;

use std::future::ready;
use std::sync::Arc;

use emitree_runtime::{Answers, Error, Interrupt, Result, RunContext};
use futures_core::future::BoxFuture;
use serde_json::json;
use uuid::Uuid;

use crate::agent::AgentParts;
use crate::agent::builder::ask_for_tools;
use crate::agent::events::{AgentStart, AgentSuccess, MessageAdded, MessageError, MessageReplaced};
use crate::agent::middleware::{Installed, Joined};
use crate::agent::spec::{AgentSpec, ExpectedTools};
use crate::agent::steps::action::{Acted, TurnOutcome};
use crate::agent::toolset::Toolset;
use crate::agent::turn::{AsksOnce, Attempt, LoopState, Resumes, UntilNext};
use crate::handoff::Source;
use crate::model::{emit, log};
use crate::place::Chains;
use crate::session::run::{Begins, Resumed, no_messages};
use crate::{Agent, AgentInput, AgentOutput, ChatOptions, Message, ToolSpec, Turn};

/// The maximum number of rounds that hooks of `run.end` can start in one attempt.
const MAX_ROUNDS: u32 = 100;

/// The kind of the interrupt with which a run ends because of [`Session::pause`](crate::Session::pause).
pub(crate) const PAUSED: &str = "agent.paused";

/// One attempt of an agent's run.
pub(crate) struct Loop<'a> {
    pub(crate) agent: &'a AgentParts,
    pub(crate) ctx: &'a RunContext,
    /// The agent's middlewares, then the middlewares that are bound to this run.
    installed: Vec<Arc<Installed>>,
    pub(crate) tools: Toolset,
    /// The tools that the current request offers, if a hook of `model.request` has changed them.
    pub(crate) offered: Option<Arc<Vec<ToolSpec>>>,
    /// The tools that middlewares name, and that may still come.
    expected: Option<Arc<ExpectedTools>>,
    /// In a box, because a future of more than 1,032 bytes is allocated slowly.
    options: Box<ChatOptions>,
    state: Attempt,
    warnings: Vec<String>,
    input: &'a AgentInput,
    /// The number of messages of this attempt whose events have been emitted, or skipped because there were no
    /// listeners.
    announced: usize,
    /// The run that had stopped, if this run goes on with it.
    pub(crate) continues: Option<Uuid>,
    /// The number of the last turn before the last message that steering has added, from which `max_steps` counts.
    steered_after: u32,
}

/// The step after a turn: another model call, or the end of the loop.
enum After {
    AskAgain,
    End,
}

impl<'a> Loop<'a> {
    pub(crate) fn begin(agent: &'a AgentParts, input: &'a AgentInput, ctx: &'a RunContext) -> Result<Self> {
        check_depth(agent, ctx)?;
        // These middlewares come after the agent's middlewares, in the order of binding: first the inherited middlewares,
        // then the run's own.
        let joined = ctx.own_extension::<Joined>().map(|joined| joined.all()).unwrap_or_default();
        // The names of the tools are checked, as in `build`, before a message enters the session.
        let tools = Toolset::new(agent, &joined, ctx)?;
        let mut installed = agent.installed.clone();
        installed.extend(joined.iter().cloned());
        // `Prepare` has set the state, unless `execute` was called in a run of another runnable.
        let state = LoopState::of(ctx).ok_or_else(|| {
            Error::new(format!(
                "`execute` of an agent needs the context of the agent's own run, not of `{}`: call `run`",
                ctx.name()
            ))
        })?;
        state.compacting.begin(&installed);
        let state = Attempt::next(state);
        let resumes = state.resumes() != Resumes::No;
        let resumed = if resumes { state.session.stopped_options() } else { None };
        let options = resumed.as_ref().unwrap_or(&input.options);
        if agent.hands_off {
            let streams = options.stream.or(agent.options.stream).or(agent.model.own_options().stream);
            let source = Source { installed: installed.clone(), streams: streams == Some(true) };
            _ = state.handoffs.source.set(source);
        }
        let expected = state.is_first().then(|| check_joined(agent, &joined, &installed, &tools, ctx)).transpose()?;
        Ok(Self {
            options: Box::new(options.or(&agent.options)),
            agent,
            ctx,
            installed,
            tools,
            offered: None,
            expected: expected.flatten(),
            state,
            warnings: Vec::new(),
            input,
            announced: 0,
            continues: None,
            steered_after: 0,
        })
    }

    pub(crate) fn chains(&self) -> impl Iterator<Item = &Chains> {
        self.installed.iter().map(|installed| &installed.hooks.chains)
    }

    pub(crate) fn turn(&self) -> Turn {
        self.state.session.turn()
    }

    pub(crate) fn state(&self) -> &LoopState {
        &self.state
    }

    /// Returns the answers to questions about the calls of this run.
    pub(crate) fn answers(&self) -> &Answers {
        &self.state.answers
    }

    pub(crate) fn installed(&self) -> &[Arc<Installed>] {
        &self.installed
    }

    /// Returns the tools that middlewares name, and that may still come in this run.
    pub(crate) fn expected(&self) -> Option<Arc<ExpectedTools>> {
        self.expected.clone()
    }

    pub(crate) fn run(self) -> UntilNext<'a, AgentOutput> {
        let until_next = self.state.until_next();
        until_next(self.begin_and_take_turns())
    }

    fn begin_and_take_turns(self) -> BoxFuture<'a, Result<AgentOutput>> {
        let tools = self.state.end_tools(self.ctx, self.agent.spawn_tools);
        if tools.is_empty() {
            // The future of most attempts has no state for tools: it is on the stack once for each nested agent.
            return match self.begin_session() {
                Ok(None) => self.take_turns(),
                Ok(Some(resumed)) => self.resume(resumed),
                Err(error) => Box::pin(ready(Err(error))),
            };
        }
        Box::pin(async move {
            for tool in tools {
                tool.ended().await;
            }
            match self.begin_session()? {
                None => self.take_turns().await,
                Some(resumed) => self.resume(resumed).await,
            }
        })
    }

    /// Undoes the previous attempt, if there was one, and adds the messages of the input to the session. A resumed run
    /// takes over what its session has left open instead. If there is nothing to do, the session stays as it is.
    fn begin_session(&self) -> Result<Option<Resumed>> {
        let resumes = self.state.resumes();
        let messages = if resumes == Resumes::No { &self.input.messages[..] } else { &[] };
        self.state.answer.forget();
        self.state.session.begin(Begins {
            ctx: self.ctx,
            messages: messages.iter().cloned().map(Arc::new).collect(),
            options: &self.input.options,
            resumes: resumes != Resumes::No,
            is_inside: resumes == Resumes::Inside,
            once: self.ctx.own_extension::<AsksOnce>().map(|once| once.0.clone()),
        })
    }

    fn check_not_empty(&self) -> Result<()> {
        if self.state.session.history().messages().is_empty() {
            return Err(no_messages(self.ctx));
        }
        Ok(())
    }

    fn take_turns(mut self) -> BoxFuture<'a, Result<AgentOutput>> {
        Box::pin(async move {
            // The input is stored before listeners and hooks act on it (A24, A27).
            if let Some(commit) = self.commit() {
                commit.await?;
            }
            self.report_start(|| self.input.messages.clone()).await?;
            if self.has_starts() {
                self.start().await?;
            }
            self.announce().await?;
            self.go_on(None).await
        })
    }

    /// Emits the event `start`. A session gets a random id here only if somebody listens.
    async fn report_start(&self, messages: impl FnOnce() -> Vec<Message>) -> Result<()> {
        if !self.ctx.has_listeners() {
            return Ok(());
        }
        let session = self.state.session.session().id().to_owned();
        emit(self.ctx, &mut AgentStart { messages: messages(), session }).await
    }

    /// Takes turns until there is an answer. `resumed` is the answer of a turn that an earlier run has left open.
    fn go_on(mut self, mut resumed: Option<(Arc<Message>, After)>) -> BoxFuture<'a, Result<AgentOutput>> {
        Box::pin(async move {
            let mut rounds = 0;
            loop {
                let (answer, after) = match resumed.take() {
                    Some(resumed) => resumed,
                    None => self.take_turn().await?,
                };
                if matches!(after, After::AskAgain) || self.steer_at_end().await? {
                    continue;
                }
                // Even if `turn.stop` ended the loop, hooks of `run.end` may start another round.
                let mut more = Vec::new();
                for chains in self.chains() {
                    chains.end.apply(&mut more, self.ctx).await?;
                }
                if more.is_empty() {
                    // Messages may have arrived while the hooks were called.
                    if self.steer_at_end().await? {
                        continue;
                    }
                    return self.succeed(answer).await;
                }
                rounds += 1;
                if rounds > MAX_ROUNDS {
                    return Err(Error::new(format!(
                        "hooks of `run.end` have started {MAX_ROUNDS} rounds, which is the limit"
                    )));
                }
                // The answer of this round stays in the history, even if the run fails later (A12).
                self.state.answer.forget();
                self.state.session.extend(more)?;
                self.announce().await?;
            }
        })
    }

    /// Emits the events of each message that this attempt has added to the history since the last call of `announce`.
    async fn announce(&mut self) -> Result<()> {
        if !self.ctx.has_listeners() {
            // Listeners that are added later do not receive earlier messages.
            self.announced = self.state.session.count_added();
            return Ok(());
        }
        self.announce_all().await
    }

    fn announce_all(&mut self) -> BoxFuture<'_, Result<()>> {
        Box::pin(async move {
            for (before, after) in self.state.session.take_replaced() {
                emit(self.ctx, &mut MessageReplaced { before: Some(before), after }).await?;
            }
            let messages = self.state.session.added_after(self.announced);
            // Counted before the events, so that no message is announced twice if a listener fails.
            self.announced += messages.len();
            for message in messages {
                emit(self.ctx, &mut MessageAdded { message: Arc::clone(&message) }).await?;
                for result in message.tool_results().filter(|result| result.is_error) {
                    let error = result.response.as_str().map_or_else(|| result.response.to_string(), str::to_owned);
                    emit(self.ctx, &mut MessageError { message: Arc::clone(&message), error }).await?;
                }
            }
            Ok(())
        })
    }

    async fn succeed(self, answer: Arc<Message>) -> Result<AgentOutput> {
        self.state.succeed();
        emit(self.ctx, &mut AgentSuccess { answer: Arc::clone(&answer) }).await?;
        let turn = self.turn();
        Ok(AgentOutput {
            finish_reason: answer.finish_reason.clone(),
            answer: Arc::unwrap_or_clone(answer),
            messages: self.state.session.added(),
            model_answer: None,
            usage: turn.usage,
            cost: turn.cost,
            turns: turn.number,
            last_agent: self.state.handoffs.last_agent(),
            warnings: self.warnings,
            context: serde_json::Map::new(),
        })
    }

    /// Calls the model once, and executes the tool calls of its response unless a hook decides otherwise. Returns the
    /// response as the history keeps it, and the next step.
    fn take_turn(&mut self) -> BoxFuture<'_, Result<(Arc<Message>, After)>> {
        Box::pin(async move {
            // Before the inbox is read: messages that wait are for the run that goes on (A15). The pause of a session
            // above is only read, because the agent there takes it.
            if self.state.is_paused_above() || self.state.session.take_pause() {
                return Err(paused());
            }
            if self.state.session.has_waiting() {
                // Values reach their hooks before messages enter (A15).
                self.deliver().await?;
                let taken = self.state.session.take_steering(self.state.number());
                self.steer(taken).await?;
                self.check_not_empty()?;
            }
            // This has to follow the steering, because `max_steps` counts from the last message that has entered.
            if self.turn().number - self.steered_after == self.agent.max_steps {
                return Err(Error::new(format!(
                    "the agent `{}` has no answer after {} model calls, which is its limit (`max_steps`)",
                    self.ctx.name(),
                    self.agent.max_steps
                )));
            }
            self.state.session.ask();
            if self.agent.hands_off {
                self.state.handoffs.begin_turn();
            }
            let response = self.ask().await?;
            self.warnings.extend(response.warnings.iter().cloned());
            let outcome = match self.act(response).await {
                Ok(Acted::Calls(turn)) => self.make_calls(turn).await,
                Ok(Acted::Ended(outcome)) => Ok(outcome),
                Err(error) => Err(error),
            };
            self.end_turn(outcome).await
        })
    }

    /// Takes the pause of the session, and returns the error with which the run ends.
    pub(crate) fn pause(&self) -> Error {
        self.state.session.take_pause();
        paused()
    }

    /// Ends a turn: announces its messages, and passes it through `turn.stop`.
    async fn end_turn(&mut self, outcome: Result<TurnOutcome>) -> Result<(Arc<Message>, After)> {
        // The commit has the end of the turn, or the questions of an interrupt (A24). An answer is kept before it,
        // so that a resume returns this answer and does not ask the model again (A26).
        let is_stored = match &outcome {
            Ok(TurnOutcome { answer, after: After::End, .. }) => {
                self.state.keep_answer(answer, self.ctx);
                true
            }
            Ok(_) => true,
            Err(error) => error.is_interrupted(),
        };
        if is_stored && let Some(commit) = self.commit() {
            commit.await?;
        }
        // The events are emitted even for a failed turn, because its messages may have entered the history.
        let announced = self.announce().await;
        let TurnOutcome { end, answer, after } = match outcome {
            Ok(outcome) => announced.map(|()| outcome)?,
            Err(error) => {
                log(announced, "message");
                return Err(error);
            }
        };
        let after = self.stop(end, after).await?;
        // A hook of `turn.stop` may have ended a loop that was about to go on, so the answer was not kept above.
        if matches!(after, After::End) {
            self.state.keep_answer(&answer, self.ctx);
        }
        Ok((answer, after))
    }
}

fn paused() -> Error {
    Error::interrupted(Interrupt::new(PAUSED, json!({})))
}

/// Checks the middlewares that joined a run, and returns the tools that may still come in this run.
fn check_joined(
    agent: &AgentParts,
    joined: &[Arc<Installed>],
    installed: &[Arc<Installed>],
    tools: &Toolset,
    ctx: &RunContext,
) -> Result<Option<Arc<ExpectedTools>>> {
    if joined.is_empty() && agent.expected.is_empty() {
        return Ok(None);
    }
    let spec = AgentSpec::new(ctx.name(), Arc::clone(tools.specs()), ask_for_tools(installed));
    joined.iter().try_for_each(|installed| installed.check(&spec))?;
    let expected = spec.into_expected();
    expected.take_over(&agent.expected);
    expected.see(tools.tools());
    Ok((!expected.is_empty()).then(|| Arc::new(expected)))
}

/// Returns an error if the agent's run is nested in too many runs of agents.
fn check_depth(agent: &AgentParts, ctx: &RunContext) -> Result<()> {
    // Runs of other kinds in between, such as runs of tools, do not count.
    let above = std::iter::successors(ctx.parent(), |run| run.parent());
    let agents = above.filter(|run| run.is_run_of_type::<Agent>()).count();
    if agents > agent.max_depth {
        let error = Error::new(format!(
            "the agent `{}` runs inside {agents} other agents, but at most {} are allowed (`max_depth`)",
            ctx.name(),
            agent.max_depth
        ));
        // The error is fatal, because otherwise it would become the result of the tool that runs this agent, and the
        // model would call the tool again.
        return Err(error.fatal(true));
    }
    Ok(())
}
