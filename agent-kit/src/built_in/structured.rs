//! Answers of a Rust type: [`Structured`].

use std::borrow::Cow;
use std::fmt;
use std::marker::PhantomData;
use std::sync::Arc;

use emitree_emitter::{Emitter, Namespace};
use emitree_middleware::own_events::OwnEvents;
use emitree_runtime::{Error, Result, RunContext, Summary};
use parking_lot::Mutex;
use schemars::{JsonSchema, Schema, SchemaGenerator};
use serde::de::{DeserializeOwned, Error as _};
use serde::{Deserialize, Deserializer};
use serde_json::Value;

use super::partial::WatchReplies;
use emitree_agent::hook::ModelRequest;
use emitree_agent::typed::{from_value, json_in};
use emitree_agent::{
    AgentContext, AgentMiddleware, Hooks, How, Message, ResponseFormat, Tool, ToolChoice, ToolOutput, TurnAction,
    TurnDecision, TurnEnd, tool_fn,
};

/// The id of the middleware.
const ID: &str = "structured";

/// The name of the tool whose result is the answer.
pub(crate) const TOOL: &str = "final_answer";

/// Makes the model answer with JSON that fits a Rust type. [`AgentOutput::structured`](emitree_agent::AgentOutput::structured)
/// returns the value.
///
/// An answer that does not fit goes back to the model with the path and the reason, in the same conversation, at most
/// as often as [`attempts`](Self::attempts) allows. Then the run fails, with the last text in the detail `text`.
///
/// ```
/// use emitree_agent_kit::built_in::Structured;
/// use emitree_agent::{Agent, AgentRun, ChatModel, ScriptedModel};
/// use schemars::JsonSchema;
/// use serde::Deserialize;
///
/// #[derive(Debug, Deserialize, JsonSchema, PartialEq)]
/// struct Person {
///     name: String,
///     born: u32,
/// }
///
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> emitree_runtime::Result<()> {
/// let script = ScriptedModel::new("test").text(r#"{"name": "Ada"}"#).text(r#"{"name": "Ada", "born": 1815}"#);
/// let agent = Agent::builder("historian", ChatModel::new(script)?).build()?;
/// let answer = agent.ask("Who wrote the first program?").with(Structured::of::<Person>()).await?;
/// assert_eq!(answer.structured::<Person>()?, Person { name: "Ada".to_owned(), born: 1815 });
/// # Ok(())
/// # }
/// ```
///
/// # The two ways
///
/// | | the model | default |
/// |---|---|---|
/// | [`by_response_format`](Self::by_response_format) | is asked for a response format with the schema of the type | if the request offers no tools |
/// | [`by_tool`](Self::by_tool) | gets a tool, `final_answer`, whose arguments are the answer, and must call a tool in each turn, unless the options have a `tool_choice` | if the request offers tools, because many servers refuse a format beside tools |
///
/// A text that fits is an answer in both ways, also in a Markdown fence, behind a sentence and behind a thought in `<think>`
/// tags (see [`json_in`]). If the model calls other tools beside `final_answer`, the loop goes on.
/// With the feature `json-schema`, the answer is checked against the schema as well, such as a range.
///
/// # What it remembers
///
/// The answers that did not fit, in the *run*. Another attempt begins without them.
///
/// # Its own events
///
/// While a reply streams, `middleware.structured.partial`, a [`Partial`](super::Partial), for each piece of a string and
/// each complete member of the answer, before it is checked. They are made only if the middleware's
/// [emitter](Self::emitter) or the agent's run has listeners. With the tool, they are emitted before a
/// [`Guardrail`](super::Guardrail) for outputs judges the answer, because it judges no arguments of calls.
/// `middleware.structured.discarded`, a [`PartialDiscarded`](super::PartialDiscarded), if the model's run begins another
/// attempt.
///
/// Each answer that goes back is in the history, with its reason.
///
/// # Order
///
/// Add it after a [`ToolSelector`](super::ToolSelector): it offers its tool at `model.request`. An answer is checked at
/// `turn.action`, as hooks before left it. Output functions may change it later. `CallLimit::tools()` counts calls of
/// `final_answer`.
///
/// # When it fails
///
/// A type whose schema is not an object is an error that quotes the schema. If another middleware ends the loop, or
/// answers, the answer is not checked, and `AgentOutput::structured` returns an error if it does not fit.
#[derive(Clone)]
pub struct Structured {
    /// The tool, which also checks texts, or the reason why the type cannot be an answer.
    tool: Result<Tool>,
    name: String,
    format: ResponseFormat,
    way: Way,
    attempts: u32,
    own_events: OwnEvents,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Way {
    Default,
    ByTool,
    ByResponseFormat,
}

/// The state of a run: an extension of the agent's run.
#[derive(Default)]
struct InRun(Mutex<Answers>);

#[derive(Default)]
struct Answers {
    /// The number of answers that did not fit.
    refused: u32,
    is_by_tool: bool,
}

impl Structured {
    /// Creates the middleware for answers of the type `T`.
    #[must_use]
    pub fn of<T: DeserializeOwned + JsonSchema + 'static>() -> Self {
        let description = "Gives your final answer. Call it alone, when you need no other tool any more.";
        let tool = tool_fn(TOOL, description, |answer: Fitting<T>, _: RunContext| async move {
            Ok(ToolOutput::new(answer.value).answer())
        });
        let tool = tool.map_err(Error::from);
        let name = T::schema_name().into_owned();
        let own_events = OwnEvents::new(Namespace::new("middleware.structured"));
        Self { tool, name, format: ResponseFormat::of::<T>(), way: Way::Default, attempts: 1, own_events }
    }

    /// Asks for a response format, even if the agent has tools.
    #[must_use]
    pub const fn by_response_format(mut self) -> Self {
        self.way = Way::ByResponseFormat;
        self
    }

    /// Offers the tool `final_answer`, even if the agent has no other tools.
    #[must_use]
    pub const fn by_tool(mut self) -> Self {
        self.way = Way::ByTool;
        self
    }

    /// Sets how many answers that do not fit go back to the model, by default 1.
    #[must_use]
    pub const fn attempts(mut self, attempts: u32) -> Self {
        self.attempts = attempts;
        self
    }

    /// Returns the emitter of the middleware, for listeners that receive its events about all runs.
    #[must_use]
    pub const fn emitter(&self) -> &Emitter {
        self.own_events.emitter()
    }

    /// Offers the tool, or sets the response format.
    fn prepare(&self, tool: &Tool, call: &mut ModelRequest, ctx: &RunContext) {
        let request = &mut call.request;
        let is_by_tool = match self.way {
            Way::ByTool => true,
            Way::ByResponseFormat => false,
            Way::Default => request.tools.iter().any(|spec| spec.name != TOOL),
        };
        let is_offered = request.tools.iter().any(|spec| spec.name == TOOL);
        if is_by_tool {
            request.options.tool_choice.get_or_insert(ToolChoice::Required);
            if !is_offered {
                Arc::make_mut(&mut request.tools).push(tool.spec().clone());
            }
        } else {
            request.options.response_format = Some(self.format.clone());
            if is_offered {
                Arc::make_mut(&mut request.tools).retain(|spec| spec.name != TOOL);
            }
        }
        let run = ctx.own_extension_or_default::<InRun>();
        let mut answers = run.0.lock();
        answers.is_by_tool = is_by_tool;
        // Another attempt begins with turn 1 again, and without the refusals of the one before (A7).
        if ctx.turn().is_none_or(|turn| turn.number <= 1) {
            answers.refused = 0;
        }
    }

    /// Sends a text that does not fit back to the model.
    fn check_text(&self, tool: &Tool, action: &mut TurnAction, ctx: &RunContext) -> Result<()> {
        let ends = matches!(action.decision, None | Some(TurnDecision::Natural)) && action.inject.is_empty();
        if !ends || action.response.message.tool_calls().next().is_some() {
            return Ok(());
        }
        let text = action.response.text();
        let Err(fault) = json_in(&text, |value| tool.check(value)) else { return Ok(()) };
        let again = match self.refuse(&fault, text, ctx)? {
            true => format!("Call the tool `{TOOL}` with the whole answer."),
            false => "Answer again, with the whole JSON and nothing else.".to_owned(),
        };
        action.inject.push(Message::user(format!("Your answer does not fit: {fault}. {again}")));
        Ok(())
    }

    /// Counts a turn in which the arguments of the tool did not fit. The model has received the reason as the result.
    fn check_calls(&self, end: &TurnEnd, ctx: &RunContext) -> Result<()> {
        let has_failed = |how| how == How::Failed;
        match end.results.iter().rfind(|result| result.call.name == TOOL && has_failed(result.how)) {
            Some(failed) => self.refuse(&failed.output.text(), failed.call.arguments.to_string(), ctx).map(drop),
            None => Ok(()),
        }
    }

    /// Counts an answer that does not fit. Returns `true` if the model has to call the tool.
    fn refuse(&self, fault: &str, text: String, ctx: &RunContext) -> Result<bool> {
        let run = ctx.own_extension_or_default::<InRun>();
        let mut answers = run.0.lock();
        if answers.refused == self.attempts {
            let error = Error::new(format!("the answer does not fit `{}`: {fault}", self.name));
            return Err(error.detail("text", text));
        }
        answers.refused += 1;
        Ok(answers.is_by_tool)
    }
}

impl AgentMiddleware for Structured {
    fn id(&self) -> &str {
        ID
    }

    fn install(&self, hooks: &mut Hooks) -> Result<()> {
        let tool = self.tool.clone()?;
        hooks.tool(tool.clone());
        let own_events = self.own_events.clone();
        hooks.middleware(move |ctx: &RunContext| {
            ctx.bind_nested(WatchReplies::of(ctx, &own_events));
            Ok(())
        });
        let prepares = self.clone();
        let checks = self.clone();
        let counts = self.clone();
        let checker = tool.clone();
        hooks.on_request(move |call, ctx| prepares.prepare(&tool, call, ctx));
        hooks.on_action(move |action, ctx| checks.check_text(&checker, action, ctx));
        hooks.on_stop(move |end, ctx| counts.check_calls(end, ctx).map(|()| false));
        Ok(())
    }

    fn debug_summary(&self) -> Summary {
        Summary::of(self)
    }
}

impl fmt::Debug for Structured {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let way = match self.way {
            Way::Default => "",
            Way::ByTool => ", by tool",
            Way::ByResponseFormat => ", by response format",
        };
        write!(f, "{}{way}, attempts {}", self.name, self.attempts)
    }
}

/// JSON that fits a type, without the value of the type.
pub(crate) struct Fitting<T> {
    pub(crate) value: Value,
    of: PhantomData<fn() -> T>,
}

impl<'de, T: DeserializeOwned> Deserialize<'de> for Fitting<T> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let value = Value::deserialize(deserializer)?;
        from_value::<T>(&value).map_err(D::Error::custom)?;
        Ok(Self { value, of: PhantomData })
    }
}

impl<T: JsonSchema> JsonSchema for Fitting<T> {
    fn schema_name() -> Cow<'static, str> {
        T::schema_name()
    }

    fn schema_id() -> Cow<'static, str> {
        T::schema_id()
    }

    fn inline_schema() -> bool {
        T::inline_schema()
    }

    fn json_schema(generator: &mut SchemaGenerator) -> Schema {
        T::json_schema(generator)
    }
}
