//! Agents: a model, tools, and a loop in which middleware can intercept every step.

pub(crate) mod answer;
pub(crate) mod builder;
pub(crate) mod calls;
pub(crate) mod events;
pub(crate) mod hooks_fn;
pub(crate) mod input;
pub(crate) mod middleware;
pub(crate) mod own_hooks;
pub(crate) mod spec;
mod stack;
pub(crate) mod steps;
pub(crate) mod toolset;
pub(crate) mod turn;

use std::fmt;
use std::sync::Arc;

use emitree_emitter::Emitter;
use emitree_runtime::{Middleware, Result, Run, RunContext, Runnable};
use schemars::JsonSchema;
use serde::Deserialize;

use crate::agent::builder::AgentBuilder;
use crate::agent::middleware::Installed;
use crate::agent::spec::ExpectedTools;
use crate::agent::stack::OnEnoughStack;
use crate::agent::steps::Loop;
use crate::agent::toolset::LastAsked;
use crate::agent::turn::{LoopState, Resumes};
use crate::{AgentInput, AgentOutput, ChatModel, ChatOptions, Session, Tool, ToolError, ToolOutput, ToolSpec, tool_fn};

/// A model that calls tools in a loop until it has an answer. Each call of an agent is a run of the kind `Agent`.
///
/// ```
/// use emitree_agent::{Agent, ChatModel, ScriptedModel, tool_fn};
/// use emitree_runtime::RunContext;
/// use schemars::JsonSchema;
/// use serde::Deserialize;
/// use serde_json::json;
///
/// #[derive(Deserialize, JsonSchema)]
/// struct Text { text: String }
///
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> emitree_runtime::Result<()> {
/// let words = tool_fn("count_words", "Counts the words of a text", |args: Text, _: RunContext| async move {
///     Ok(args.text.split_whitespace().count())
/// });
/// let model = ScriptedModel::new("test").call("count_words", json!({"text": "to be or not"})).text("Four.");
/// let agent = Agent::builder("librarian", ChatModel::new(model)?).prompt("Answer briefly.").tool(words).build()?;
///
/// let answer = agent.ask("How many words has \"to be or not\"?").await?;
/// assert_eq!(answer.text(), "Four.");
/// assert_eq!(answer.tool_calls().count(), 1);
/// # Ok(())
/// # }
/// ```
///
/// # A turn
///
/// Names in brackets are [`Place`](crate::Place)s.
///
/// 1. Before the first turn of a session in this process, `[agent.start]` is called. Values of
///    [`Session::send`](crate::Session::send) arrive at `[agent.message]`, and messages of
///    [`Session::steer`](crate::Session::steer) enter the history through `[steer.inject]`. Then hooks prepare the
///    request: `[model.state]`, `[model.context]`, `[model.prompt]`, `[model.wire]`, `[model.request]`. If a hook of
///    `[model.state]` replaces older messages, `[context.compact]` is called before and after.
/// 2. The model runs inside `[model.call]`, and the pieces of its reply pass through `[model.chunk]`.
/// 3. `[turn.action]` decides how the turn continues after the response.
/// 4. If the run ends after step 3, even in the middle of the turn, the response enters the history together with a
///    result for each call.
/// 5. `[tool.resolve]` may replace a tool call with another call. Then the tool's name and the arguments are checked,
///    and `[tool.gate]` decides on all calls that passed the check, before any of them starts. Calls are checked again
///    after the gate. The history keeps the calls as the model wrote them.
/// 6. The tools run side by side in one task, each inside `[tool.call]`. A tool that blocks the thread delays the other
///    tools. On a multi-threaded runtime, [`spawn_tools`](crate::AgentBuilder::spawn_tools) can avoid this. While an
///    [exclusive](crate::Tool::exclusive) tool runs, no other tool of the turn runs.
/// 7. When all calls have settled, `[tool.result]` receives each result in call order, and `[steer.skip]` the calls that
///    [`Session::interject`](crate::Session::interject) skipped.
/// 8. `[turn.stop]` may end the loop. The loop also ends if the model called no tool and no message was injected, or if
///    all results have [`terminate`](crate::ToolOutput::terminate) set. Then messages that wait in the session, or
///    `[run.end]`, may start another round.
///
/// # Errors of tools
///
/// | a tool | the model receives | the agent |
/// |---|---|---|
/// | fails, panics, takes too long, is aborted without the agent, does not exist, or is called with invalid arguments | an error, with the reason | continues |
/// | is denied | an error, with the explanation | continues |
/// | is interrupted | an error that states whether its function had been called | is interrupted when the other calls have settled: kind `agent.batch`, `data.pending` lists calls and interrupts; `approval::Request::all_of` reads requests for approvals |
/// | is halted, aborted with the agent, or fails with a fatal error | an error | ends with this error when the other calls have settled |
///
/// If several calls end the run, the run returns the error that comes first in this order: halt, fatal error, abort,
/// interrupt. Calls that wait for one of them, because of an [exclusive](crate::Tool::exclusive) tool, are not executed.
///
/// # The result of each call
///
/// After `[turn.action]`, all messages of a turn enter the history together when the turn ends, even if it fails,
/// panics, is aborted or is dropped. A call without a result is answered with an error that states whether the call had
/// begun: "not executed", or "it may have had effects"; a [resume](Self::resume) replaces this result where it stands.
/// A call begins when its tool's function is called, or when a run below the tool's run starts. The work of
/// a layer of `[tool.call]` before that does not count, and may happen again. After "not executed", the function is not
/// called, even if the tool's own task was about to call it. If a call that has begun aborts the agent's run, its result is "it may have had effects".
///
/// If there are hooks of `[tool.result]`, the history keeps a result only once all of them have let it pass. If the run
/// ends before that, or because of such a hook, the result is "the tool was called, but the run ended before its result
/// was checked: it may have had effects", or "not executed" for a call that had not begun.
///
/// # Which calls are executed
///
/// Arguments are checked before the gate, and again after it if a hook is registered there. Calls of one reply with the
/// same id, name and arguments are one call. No call of a reply that was cut off (finish reason `length`) is executed.
/// A call of a tool that the request of the turn did not offer, as the hooks of `[model.request]` left it, is not
/// executed, unless a hook of `[tool.resolve]` or `[tool.gate]` put this call in the place of another.
///
/// # The answer in the history
///
/// When the run has succeeded, the history ends with the answer as layers of `agent.run` and output functions left it.
/// [`AgentOutput::model_answer`](crate::AgentOutput::model_answer) returns the answer of the model. After a denial or a
/// halt, the history has the text "(withheld by \<name\>)" instead. If the run ends in another way without returning its
/// answer, the answer leaves the history, and [`resume`](Self::resume) returns it. If a layer of `agent.run` answers
/// instead of the agent, the question and the answer enter the history, and are the messages of the output. The same
/// holds for a listener of `start` that answers. A listener of `success` does not change the history. The history does
/// not have the secrets that a `Redact` puts back into the output. Output functions see the last answer only: answers of
/// earlier rounds stay as they are.
///
/// # Attempts
///
/// If output middleware requests a retry, or a layer calls the agent again, the previous attempt's changes to the
/// session are undone before the next attempt begins. If middleware requested the retry, its reason is appended to the
/// system prompt of the next attempt, but not to those of later attempts.
///
/// The tools of the previous attempt are aborted, and the next attempt begins when their runs have ended. A tool that
/// ignores its abort, for example because it blocks its thread, delays the next attempt. If a layer makes two attempts at
/// the same time, the first ends with an error when the second has begun. A call that has not begun by then never begins.
/// If a layer keeps the future of a discarded attempt instead of dropping it, the next attempts do not wait for the tools
/// that are part of this future, and if the layer polls it again, it ends with an error. If an attempt of a resumed run
/// is discarded, the next one keeps the results of the turn that was open.
///
/// # Its own events
///
/// The run emits these events in the namespace `agent.<name>`, and only while it has listeners. The events of a turn
/// are emitted in the order of this table, and each attempt emits them again. The events from `answered` to
/// `tool_response` are emitted for one call after the other. If a listener fails, the run fails, except for listeners of
/// `resumed`, `answered`, `unused_answer` and `asked`, whose errors are logged.
///
/// | event | payload | when |
/// |---|---|---|
/// | `start` | [`AgentStart`](crate::AgentStart) | before the first turn, with the id of the session |
/// | `message` | [`MessageAdded`](crate::MessageAdded) | for each message of the input |
/// | `resumed` | [`RunResumed`](crate::RunResumed) | in a [resumed](Self::resume) run instead of `message`, before it goes on |
/// | `message_dropped` | [`MessageDropped`](crate::steering::MessageDropped) | a message of [`Session::send`](crate::Session::send) did not arrive at its middleware |
/// | `iteration` | [`Iteration`](crate::Iteration) | a turn begins |
/// | `tool_call_identified` | [`ToolCallIdentified`](crate::ToolCallIdentified) | for each call, before the gate |
/// | `handoff` | [`HandedOff`](crate::kinds::HandedOff) | the conversation is transferred, before the other agent begins |
/// | `answered` | [`QuestionAnswered`](crate::QuestionAnswered) | a call has taken the answer to its question; for an edit, before the call is made |
/// | `unused_answer` | [`AnswerUnused`](crate::AnswerUnused) | a call has a result, but nobody has asked its answered question again |
/// | `asked` | [`QuestionAsked`](crate::QuestionAsked) | a question has interrupted a call, after all calls have settled |
/// | `tool_response` | [`ToolResponse`](crate::ToolResponse) | for each result, after all calls have settled |
/// | `message` | [`MessageAdded`](crate::MessageAdded) | for the response, each result and each injected message, before `turn.stop` |
/// | `message_error` | [`MessageError`](crate::MessageError) | after the `message` of a result that is an error; instead of the `message` of a response that cannot be used; before the `message` of a response on which a hook of `turn.action` failed |
/// | `success` | [`AgentSuccess`](crate::AgentSuccess) | the loop has an answer, before the output middleware |
/// | `message_replaced` | [`MessageReplaced`](crate::MessageReplaced) | layers or output functions changed the answer, or a guard withholds it |
///
/// A resumed run makes calls that were left open without `iteration` and `tool_call_identified`. It emits
/// `message_replaced` instead of `message` for their results.
///
/// All events of models, tools and agents are declared as data. The text and the reasoning of a reply pass the filters
/// of the model's run, or of the agent's run if a tool gave the answer, after all other stages. The pieces of a call's
/// arguments pass these filters in their events only, so that the call itself stays valid JSON.
///
/// Tokens are events of the model's run. To receive them, use [`on_token`](crate::AgentRun::on_token).
///
/// # Cancel safety
///
/// Dropping or aborting the run ends the model call and the tools that are running. The history of its
/// [`Session`](crate::Session) stays valid: a call that has a result keeps it, and any other call is answered with an
/// error that states whether the tool's function had been called. [`resume`](Self::resume) goes on with the other calls,
/// and replaces these errors.
#[derive(Clone)]
pub struct Agent {
    shared: Arc<AgentParts>,
    middlewares: Vec<Arc<dyn Middleware>>,
}

pub(crate) struct AgentParts {
    pub(crate) emitter: Emitter,
    pub(crate) model: ChatModel,
    pub(crate) prompt: Option<String>,
    pub(crate) options: ChatOptions,
    pub(crate) tools: Arc<Vec<Tool>>,
    /// The tool descriptions that models receive.
    pub(crate) specs: Arc<Vec<ToolSpec>>,
    /// The descriptions of the tools that the last run has asked for.
    pub(crate) last_asked: LastAsked,
    pub(crate) installed: Vec<Arc<Installed>>,
    /// The tools that middlewares name, and that the first run may get.
    pub(crate) expected: ExpectedTools,
    pub(crate) max_steps: u32,
    /// `true` if an empty reply of the model is an answer.
    pub(crate) allow_empty: bool,
    pub(crate) max_depth: usize,
    pub(crate) spawn_tools: bool,
    pub(crate) parallel_tools: bool,
    /// `true` if the model may transfer the conversation to other agents.
    pub(crate) hands_off: bool,
}

#[derive(Deserialize, JsonSchema)]
struct Task {
    /// The task, including all information that is needed for it.
    task: String,
}

impl Agent {
    /// Returns a builder for an agent.
    pub fn builder(name: impl Into<String>, model: ChatModel) -> AgentBuilder {
        AgentBuilder::new(name.into(), model)
    }

    /// Makes a run of the agent with this input.
    pub fn ask(&self, input: impl Into<AgentInput>) -> Run<'_, Self> {
        self.run(input.into())
    }

    /// Makes a run that goes on where the last run of a session has stopped: it was interrupted, paused, aborted or
    /// dropped, it took too long, or it failed.
    ///
    /// Calls that have a result are not executed again, and the model is not asked again for the response with these
    /// calls. A call without a result is executed if its tool's function had not been called, or if the tool is
    /// [idempotent](Tool::idempotent). Otherwise, the model reads that the call may have had effects. A call whose
    /// [questions](Session::questions) have answers takes them. If a question is still open, the run is interrupted again
    /// when the other calls have settled. A sub-agent goes on with its own session. A run that stopped between two turns
    /// goes on with a call of the model. Turns, tokens and costs are counted on.
    ///
    /// The new results take the place of the errors in the history, so
    /// [`AgentOutput::messages`](crate::AgentOutput::messages) does not have them.
    ///
    /// However the run ended, the session keeps the calls of its last turn that have no result yet, unless a message of
    /// the turn was rewritten. A gate that had let a call pass is not called again. A call that ended without a
    /// question counts as called if it had begun. A call is made again with the same key; if a hook of `tool.restore`
    /// refuses it, its result is an error. If a hook of `turn.action` failed, the calls of the response are closed:
    /// they are not made. A model call that had begun, without a response, is made again with the same key.
    ///
    /// The listeners and middlewares of the earlier run are not part of the session: add them again.
    ///
    /// # Errors
    ///
    /// The run fails if there is nothing to do, or if another run of the session has the turn in hand.
    pub fn resume(&self, session: &Session) -> Run<'_, Self> {
        self.run(AgentInput::default()).own_extension(session.clone()).own_extension(Resumes::Session)
    }

    pub(crate) fn installed(&self) -> &[Arc<Installed>] {
        &self.shared.installed
    }

    /// Makes a tool from the agent, for use by other agents. The tool's argument is a task, and its result is the text
    /// of the answer.
    ///
    /// # Errors
    ///
    /// Returns an error if the agent's name cannot be the name of a tool.
    pub fn as_tool(&self, description: impl Into<String>) -> Result<Tool, ToolError> {
        let agent = self.clone();
        let tool = tool_fn(self.name().to_owned(), description, move |Task { task }, _: RunContext| {
            let agent = agent.clone();
            async move { Ok(ToolOutput::new(agent.ask(task).await?.text())) }
        });
        // The agent goes on with its session, which the session above keeps.
        tool.map(Tool::idempotent)
    }
}

impl Runnable for Agent {
    type Input = AgentInput;
    type Output = AgentOutput;

    fn emitter(&self) -> &Emitter {
        &self.shared.emitter
    }

    async fn execute(&self, input: &AgentInput, ctx: &RunContext) -> Result<AgentOutput> {
        if let Some(state) = LoopState::of(ctx) {
            if let Some(claim) = state.claim() {
                claim.await?;
            }
            if let Some(known) = state.asked_once(ctx)? {
                return Ok(known);
            }
        }
        let attempt = Loop::begin(&self.shared, input, ctx)?;
        let expected = attempt.expected();
        let result = OnEnoughStack(attempt.run()).await;
        if let Some(expected) = expected {
            expected.warn(ctx.name());
        }
        result
    }

    fn middlewares(&self) -> &[Arc<dyn Middleware>] {
        &self.middlewares
    }
}

impl fmt::Debug for Agent {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let AgentParts { model, tools, installed, .. } = &*self.shared;
        let installed: Vec<_> = installed.iter().map(|installed| installed.id.as_str()).collect();
        f.debug_struct("Agent")
            .field("name", &self.name())
            .field("model", model)
            .field("tools", tools)
            .field("middlewares", &installed)
            .finish_non_exhaustive()
    }
}

impl fmt::Debug for Installed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Installed").field("id", &self.id).field("hooks", &self.described).finish_non_exhaustive()
    }
}
