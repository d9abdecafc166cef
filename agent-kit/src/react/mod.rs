//! Agents whose model calls tools with text: [`ReAct`].

// 1. [`ReAct::write`] is called after all hooks of `model.request`. It turns the request into text: the tools, the
//    calls and their results.
// 2. [`Reader`] reads the reply before all other stages of `model.chunk`, and turns its lines into reasoning, a call
//    and an answer.
// 3. [`AskAgain`] is a layer around the model. It asks again if a reply did not parse.

mod events;
mod prompts;
mod reader;

use std::borrow::Cow;
use std::fmt;
use std::mem::take;
use std::sync::Arc;

use emitree_emitter::{Emitter, Namespace};
use emitree_middleware::own_events::OwnEvents;
use emitree_runtime::{Error, Layer, Next, Phase, Result, RunContext, Summary};
use parking_lot::Mutex;
use serde_json::json;

pub use self::events::{ReActError, ReActPartialUpdate, ReActRetry, ReActStart, ReActSuccess, ReActUpdate};
pub use self::prompts::ReActPrompts;
use self::reader::{Reader, Unread, agent_of};
use crate::parse::{LinePrefixParser, Node, json_object, one_of};
use emitree_agent::hook::ModelRequest;
use emitree_agent::{
    Agent, AgentBuilder, AgentContext, AgentInput, AgentMiddleware, AgentOutput, ChatModel, ChatRequest, ChatResponse,
    Hooks, Message, Part, Role, ToolChoice, ToolSpec,
};

/// The id of the middleware.
const ID: &str = "react";

/// The text before which the model stops.
const STOP: &str = "\nFunction Output:";

const THOUGHT: &str = "thought";
const TOOL_NAME: &str = "tool_name";
const TOOL_INPUT: &str = "tool_input";
const TOOL_OUTPUT: &str = "tool_output";
const FINAL_ANSWER: &str = "final_answer";

/// Makes agents whose model calls tools with text.
#[derive(Clone, Copy, Debug)]
pub enum ReActAgent {}

impl ReActAgent {
    /// Begins with an agent that has the middleware [`ReAct`] with its default options.
    pub fn builder(name: impl Into<String>, model: ChatModel) -> AgentBuilder {
        Agent::builder(name, model).with(ReAct::new())
    }
}

/// Lets a model call tools with text, for models without tool calls of their own: it reasons, and then it acts.
///
/// The model reads the tools in its system prompt, and replies with lines: `Thought:`, and then `Function Name:` and
/// `Function Input:`, or `Final Answer:`. The history has such a reply as that of any model: the thought is reasoning,
/// the call is a tool call, and the answer is text. So gates, limits, approvals and stages apply as in any agent, and
/// another agent can continue the session.
///
/// ```
/// use emitree_agent_kit::react::{ReAct, ReActUpdate};
/// use emitree_agent::{Agent, ChatModel, ScriptedModel, tool_fn};
/// use emitree_runtime::RunContext;
/// use schemars::JsonSchema;
/// use serde::Deserialize;
///
/// #[derive(Deserialize, JsonSchema)]
/// struct City { city: String }
///
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> emitree_runtime::Result<()> {
/// let weather = tool_fn("weather", "Returns the weather", |city: City, _: RunContext| async move {
///     Ok(format!("It rains in {}.", city.city))
/// });
/// let script = ScriptedModel::new("test")
///     .text("Thought: I look it up.\nFunction Name: weather\nFunction Input: {\"city\": \"Lima\"}")
///     .text("Thought: I know it now.\nFinal Answer: Take an umbrella.");
/// let react = ReAct::new();
/// react.emitter().on("update", |update: &mut ReActUpdate, _| println!("{}: {}", update.key, update.value))?;
///
/// let model = ChatModel::new(script.clone())?;
/// let agent = Agent::builder("helper", model).tool(weather).with(react.clone()).build()?;
/// assert_eq!(agent.ask("Do I need an umbrella in Lima?").await?.text(), "Take an umbrella.");
/// assert_eq!(script.requests()[1].messages[2].text(), "Function Output: It rains in Lima.");
/// # Ok(())
/// # }
/// ```
///
/// # What the model sees
///
/// No tools and no tool choice: the system prompt lists the tools, those that a tool choice allows. Calls and results
/// are text, and results come from the user. The model is asked to stop before `Function Output:`; if it writes an
/// observation of its own, its reply ends before it. [`prompts`](Self::prompts) changes the texts. A reply without any
/// prefix is the answer.
///
/// # Replies that do not parse
///
/// The model is asked again, with its reply and what was wrong with it, at most
/// [`max_retries_per_step`](Self::max_retries_per_step) times in a turn and [`total_retries`](Self::total_retries)
/// times in a run. Then the run fails. These texts are only in the requests of that turn: they never enter the history.
/// Listeners receive the lines before the fault, and then the model's event `attempt_discarded`. The tokens are charged
/// to budgets, and are not part of [`AgentOutput::usage`].
///
/// # What it remembers
///
/// The number of retries, in the *run*. Another attempt begins without them.
///
/// # Its own events
///
/// On [`emitter`](Self::emitter), and on the agent's run as `middleware.react.start` and so on:
///
/// | event | payload | when |
/// |---|---|---|
/// | `start` | [`ReActStart`] | the model is about to be asked, once in each turn |
/// | `partial_update` | [`ReActPartialUpdate`] | more text of a line is known |
/// | `update` | [`ReActUpdate`] | a line is complete |
/// | `error` | [`ReActError`] | a reply did not parse |
/// | `retry` | [`ReActRetry`] | the model is asked again |
/// | `success` | [`ReActSuccess`] | the run has an answer |
///
/// The partial updates of a line, joined, are its value. The updates are the same whether or not the reply is streamed.
/// [`on_token`](emitree_agent::AgentRun::on_token) receives the answer as text, and the thoughts as reasoning, which
/// [`NewToken::text`](emitree_agent::NewToken::text) leaves out.
///
/// # Order
///
/// None: requests are turned into text after all hooks of `model.request`, and replies are read before all stages of
/// `model.chunk`. A layer that answers in place of the model answers as any model would, without prefixes. It is a
/// guard: hooks of the builder do not replace it.
#[derive(Clone)]
pub struct ReAct {
    prompts: ReActPrompts,
    max_retries_per_step: u32,
    total_retries: u32,
    events: OwnEvents,
    /// The parser and the prompt of the last request, which the next request with the same tools uses.
    last: Arc<Mutex<Option<ForTools>>>,
}

/// The parser and the system prompt for some tools.
#[derive(Clone)]
struct ForTools {
    tools: Arc<Vec<ToolSpec>>,
    instructions: String,
    system: String,
    parser: LinePrefixParser,
}

/// The state of a run: an extension of the agent's run.
#[derive(Default)]
struct InRun(Mutex<RunState>);

#[derive(Default)]
struct RunState {
    /// The parser of the current turn.
    parser: Option<LinePrefixParser>,
    retries: u32,
}

impl InRun {
    fn begin(&self, turn: u32, parser: LinePrefixParser) {
        let mut run = self.0.lock();
        run.parser = Some(parser);
        if turn <= 1 {
            run.retries = 0;
        }
    }

    fn parser(&self) -> Option<LinePrefixParser> {
        self.0.lock().parser.clone()
    }

    /// Returns `false` if no retry is left.
    fn count_retry(&self, most: u32) -> bool {
        let mut run = self.0.lock();
        let is_left = run.retries < most;
        run.retries += u32::from(is_left);
        is_left
    }
}

/// Returns the number of the turn of an agent's run.
fn turn_of(agent: &RunContext) -> u32 {
    agent.turn().map_or(0, |turn| turn.number)
}

impl Default for ReAct {
    fn default() -> Self {
        Self::new()
    }
}

impl ReAct {
    /// Creates the middleware with its default options.
    #[must_use]
    pub fn new() -> Self {
        let events = OwnEvents::new(Namespace::new("middleware.react"));
        let prompts = ReActPrompts::default();
        Self { prompts, max_retries_per_step: 2, total_retries: 10, events, last: Arc::default() }
    }

    /// Sets the functions that write what the model reads.
    #[must_use]
    pub fn prompts(mut self, prompts: ReActPrompts) -> Self {
        self.prompts = prompts;
        self.last = Arc::default();
        self
    }

    /// Sets how often the model may be asked again in one turn, by default 2.
    #[must_use]
    pub const fn max_retries_per_step(mut self, retries: u32) -> Self {
        self.max_retries_per_step = retries;
        self
    }

    /// Sets how often the model may be asked again in one run, by default 10.
    #[must_use]
    pub const fn total_retries(mut self, retries: u32) -> Self {
        self.total_retries = retries;
        self
    }

    /// Returns the emitter of the middleware's own events, for listeners that receive the events of all runs.
    #[must_use]
    pub const fn emitter(&self) -> &Emitter {
        self.events.emitter()
    }

    /// Returns the parser and the system prompt for these tools.
    fn for_tools(&self, tools: Arc<Vec<ToolSpec>>, instructions: String) -> Result<ForTools> {
        // Tools are compared by address: `last` keeps the list alive, so no other list can have its address.
        let is_same = |last: &&ForTools| Arc::ptr_eq(&last.tools, &tools) && last.instructions == instructions;
        if let Some(last) = self.last.lock().as_ref().filter(is_same) {
            return Ok(last.clone());
        }
        let names = one_of(tools.iter().map(|tool| tool.name.as_str()));
        let parser = LinePrefixParser::builder()
            .node(THOUGHT, Node::new("Thought:").start().next([TOOL_NAME, FINAL_ANSWER]))
            .node(TOOL_NAME, Node::new("Function Name:").next([TOOL_INPUT]).parse(names))
            .node(TOOL_INPUT, Node::new("Function Input:").end().next([TOOL_OUTPUT]).parse(json_object))
            .node(TOOL_OUTPUT, Node::new("Function Output:").end())
            .node(FINAL_ANSWER, Node::new("Final Answer:").start().end())
            .fallback(|text| vec![(FINAL_ANSWER, text)])
            .build()?;
        // The function is user code, so it is called without the lock.
        let system = (self.prompts.system)(&tools, &instructions);
        let made = ForTools { tools, instructions, system, parser };
        *self.last.lock() = Some(made.clone());
        Ok(made)
    }

    /// Turns a request into text.
    async fn write(&self, call: &mut ModelRequest, ctx: &RunContext) -> Result<()> {
        let request = &mut call.request;
        let turn = turn_of(ctx);
        let tools = listed(take(&mut request.tools), request.options.tool_choice.take());
        let (instructions, messages) = self.write_messages(request);
        let ForTools { tools, system, parser, .. } = self.for_tools(tools, instructions)?;
        ctx.own_extension_or_default::<InRun>().begin(turn, parser);
        let stop = &mut request.options.stop;
        if stop.is_empty() {
            // Otherwise the stop text would replace the model's own stop texts.
            stop.clone_from(&call.model.own_options().stop);
        }
        if !stop.iter().any(|text| text == STOP) {
            stop.push(STOP.to_owned());
        }
        request.system = Some(system);
        request.messages = Arc::new(messages);
        let names = || tools.iter().map(|tool| tool.name.clone()).collect();
        self.events.emit(ctx, || ReActStart { turn, tools: names() }).await;
        Ok(())
    }

    /// Returns the instructions of the system prompt, and the messages as text.
    fn write_messages(&self, request: &mut ChatRequest) -> (String, Vec<Arc<Message>>) {
        let mut instructions = request.system.take().unwrap_or_default();
        let mut messages = Vec::with_capacity(request.messages.len());
        let is_result = |message: &Message| message.role == Role::Tool;
        // The results of a turn are one message.
        for group in request.messages.chunk_by(|a, b| is_result(a) && is_result(b)) {
            let [message, ..] = group else { continue };
            match message.role {
                // A hook of `model.wire` has left the system prompt in the messages.
                Role::System if messages.is_empty() => instructions += &message.text(),
                Role::System => messages.push(Arc::clone(message)),
                Role::User => messages.push(written(message, Role::User, (self.prompts.user)(&message.text()))),
                Role::Assistant => messages.push(written(message, Role::Assistant, (self.prompts.assistant)(message))),
                Role::Tool => {
                    let results = group.iter().flat_map(|message| message.tool_results());
                    let texts: Vec<_> = results.map(|result| (self.prompts.output)(result)).collect();
                    messages.push(Arc::new(Message::user(texts.join("\n"))));
                }
                _ => messages.extend(group.iter().cloned()),
            }
        }
        (instructions, messages)
    }
}

/// Returns the tools that a tool choice allows.
fn listed(tools: Arc<Vec<ToolSpec>>, choice: Option<ToolChoice>) -> Arc<Vec<ToolSpec>> {
    match choice {
        Some(ToolChoice::None) => Arc::default(),
        Some(ToolChoice::Tool(name)) => Arc::new(tools.iter().filter(|tool| tool.name == name).cloned().collect()),
        _ => tools,
    }
}

/// Returns a message with another text. Content that is no text, and reasoning that a provider needs back, stay.
fn written(message: &Message, role: Role, text: String) -> Arc<Message> {
    let stays = |part: &&Part| matches!(part, Part::Uri { .. } | Part::Reasoning { extra: Some(_), .. });
    let mut parts: Vec<_> = message.parts.iter().filter(stays).cloned().collect();
    parts.push(Part::Text { content: text });
    Arc::new(Message::new(role, parts))
}

impl AgentMiddleware for ReAct {
    fn id(&self) -> &str {
        ID
    }

    fn install(&self, hooks: &mut Hooks) -> Result<()> {
        let react = Arc::new(self.clone());
        let events = self.events.clone();
        let again = AskAgain(self.clone());
        let succeeds = Succeed(self.events.clone());
        hooks.encode(move |call, ctx| {
            let react = Arc::clone(&react);
            Box::pin(async move { react.write(call, ctx).await })
        });
        hooks.decode(move || Reader::new(events.clone()));
        hooks.model_call(|stack| stack.retry(again));
        hooks.agent_run(|stack| stack.layer_in(Phase::Observe, succeeds));
        Ok(())
    }

    fn is_guard(&self) -> bool {
        true
    }

    fn debug_summary(&self) -> Summary {
        Summary::of(self)
    }
}

impl fmt::Debug for ReAct {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} retries a step, {} in total", self.max_retries_per_step, self.total_retries)
    }
}

/// The layer that asks again if a reply did not parse.
#[derive(Debug)]
struct AskAgain(ReAct);

impl Layer<ChatModel> for AskAgain {
    async fn call(&self, input: &ChatRequest, ctx: &RunContext, next: Next<'_, ChatModel>) -> Result<ChatResponse> {
        let ReAct { prompts, max_retries_per_step, total_retries, events, .. } = &self.0;
        let agent = agent_of(ctx);
        let turn = turn_of(agent);
        let mut request = Cow::Borrowed(input);
        let mut retries = 0;
        loop {
            let failed = match next.run(&request).await {
                Err(failed) => failed,
                reply => return reply,
            };
            // Only a reply that did not parse is asked for again. It is taken, so that the next failure, which may
            // have another cause, is not mistaken for it.
            let unread = ctx.own_extension::<Unread>().and_then(|unread| unread.0.lock().take());
            let Some((text, fault)) = unread else { return Err(failed) };
            let error = fault.to_string();
            events.emit(agent, || ReActError { turn, error: error.clone() }).await;
            let run = agent.own_extension_or_default::<InRun>();
            // The limit of the turn comes first, because `count_retry` uses up a retry of the run.
            if retries == *max_retries_per_step || !run.count_retry(*total_retries) {
                return Err(Error::new(format!("{failed} (after {retries} retries in this turn)")));
            }
            retries += 1;
            ctx.discard_attempt(error.clone(), json!({"by": ID})).await?;
            events.emit(agent, || ReActRetry { turn, error }).await;
            // The reply and its fault are only in this copy of the request: they never enter the history (A19).
            let messages = Arc::make_mut(&mut request.to_mut().messages);
            if !text.trim().is_empty() {
                messages.push(Arc::new(Message::assistant(text)));
            }
            messages.push(Arc::new(Message::user((prompts.fault)(&fault))));
        }
    }

    fn name(&self) -> &str {
        ID
    }
}

/// The layer that emits `success`.
#[derive(Debug)]
struct Succeed(OwnEvents);

impl Layer<Agent> for Succeed {
    async fn call(&self, input: &AgentInput, ctx: &RunContext, next: Next<'_, Agent>) -> Result<AgentOutput> {
        let output = next.run(input).await?;
        self.0.emit(ctx, || ReActSuccess { answer: output.text() }).await;
        Ok(output)
    }

    fn name(&self) -> &str {
        ID
    }
}
