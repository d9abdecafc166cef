//! The facts about a run, and the records that they are read from.

use std::collections::BTreeMap;

use emitree_emitter::EventRecord;
use emitree_sinks::runs::{self, Head, Run};
use rust_decimal::prelude::ToPrimitive;
use serde_json::{Map, Value, json};

use super::messages;
use super::notes::is_end_of;
use super::tokens::Tokens;

/// A fact about a run, which a [`Row`](crate::Row) gives to an attribute.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[non_exhaustive]
pub enum Fact {
    /// This text, for each run of the kind.
    Constant(&'static str),
    /// The kind of the run, such as `Tool`.
    Kind,
    /// The name of the run.
    Name,
    /// The outcome, such as `success` or `denied`.
    Outcome,
    /// The HTTP status that an error has as its detail `status`, or else the kind of the error. Only for spans with an
    /// error.
    ErrorType,
    /// `true` if the run had not ended when the sink was closed.
    IsIncomplete,
    /// The number of events that were lost while the run was open.
    Lost,
    /// The number of attempts that were given up.
    Discarded,
    /// The provider of a model, such as `openai`. An agent has the provider of the first model that it asks.
    Provider,
    /// The host of the model's server.
    ServerAddress,
    /// The port of the model's server.
    ServerPort,
    /// The model that was asked. An agent has the first one.
    RequestModel,
    /// The model that answered.
    ResponseModel,
    /// The provider's id of the response.
    ResponseId,
    /// The reasons why the model stopped, as a list.
    FinishReasons,
    /// The temperature of the request. An agent has the one of the first request, as with all options of a request.
    Temperature,
    /// The maximum number of tokens of the answer.
    MaxTokens,
    /// `true` if the answer was streamed.
    IsStream,
    /// The options of the request that are known, as an object.
    Options,
    /// The seconds from the start of a model's run to the first piece of its answer.
    TimeToFirstChunk,
    /// Tokens of the requests. Those of an agent are the tokens of all models that were asked below it, as with all
    /// counts of tokens.
    InputTokens,
    /// Tokens of the answers.
    OutputTokens,
    /// Tokens of the requests and the answers.
    TotalTokens,
    /// Tokens of the requests that were read from a cache.
    CachedInputTokens,
    /// Tokens of the answers that were spent on reasoning.
    ReasoningTokens,
    /// The cost of the tokens.
    Cost,
    /// `true` if some of the tokens are an estimate, because a provider reported none.
    IsEstimated,
    /// The id of a tool call, also if the call was denied.
    CallId,
    /// The id of the session of an agent, also for the runs below it. Below another agent, the session of the outermost.
    SessionId,
    /// The seed of the request. This and all facts below are content.
    Seed,
    /// The texts at which the model stops.
    StopSequences,
    /// The input of the run. If an approval or a layer has changed it, the input that was executed.
    Input,
    /// The output of the run.
    Output,
    /// The text of the last message of the input.
    InputText,
    /// The text of the answer.
    OutputText,
    /// The system prompt.
    SystemPrompt,
    /// The messages of the input.
    InputMessages,
    /// The system prompt as a message, and the messages of the input.
    Conversation,
    /// The messages that a model or an agent returned.
    OutputMessages,
    /// The descriptions of the tools that a model may call.
    Tools,
    /// The result of a tool, as the model reads it.
    Result,
}

/// The values of the facts about one run.
pub(crate) type Facts = BTreeMap<Fact, Value>;

/// An event, and a fact in its payload.
struct Source {
    /// The kind of the event's creator; `*` for all kinds.
    kind: &'static str,
    event: Stage<'static>,
    /// The place in the payload, as a JSON pointer.
    pointer: &'static str,
    fact: Fact,
    is_content: bool,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Stage<'a> {
    /// The lifecycle event `start`.
    Start,
    /// The lifecycle event `success`.
    Success,
    /// An own event with this name.
    Own(&'a str),
}

const fn own(kind: &'static str, event: &'static str, pointer: &'static str, fact: Fact) -> Source {
    Source { kind, event: Stage::Own(event), pointer, fact, is_content: false }
}

const fn content(kind: &'static str, event: Stage<'static>, pointer: &'static str, fact: Fact) -> Source {
    Source { kind, event, pointer, fact, is_content: true }
}

/// Each fact that a payload contains, with its place. Facts that are no content are in the heads of events.
const SOURCES: &[Source] = &[
    own("ChatModel", "start", "/provider", Fact::Provider),
    own("ChatModel", "start", "/server_address", Fact::ServerAddress),
    own("ChatModel", "start", "/server_port", Fact::ServerPort),
    own("ChatModel", "start", "/model", Fact::RequestModel),
    own("ChatModel", "start", "/request/options/temperature", Fact::Temperature),
    own("ChatModel", "start", "/request/options/max_tokens", Fact::MaxTokens),
    own("ChatModel", "success", "/response/id", Fact::ResponseId),
    own("ChatModel", "success", "/response/model", Fact::ResponseModel),
    own("ChatModel", "success", "/response/message/finish_reason", Fact::FinishReasons),
    own("Tool", "start", "/call_id", Fact::CallId),
    own("Agent", "start", "/session", Fact::SessionId),
    content("ChatModel", Stage::Start, "/input/system", Fact::SystemPrompt),
    content("ChatModel", Stage::Start, "/input/messages", Fact::InputMessages),
    content("ChatModel", Stage::Start, "/input/tools", Fact::Tools),
    content("ChatModel", Stage::Start, "/input/options/seed", Fact::Seed),
    content("ChatModel", Stage::Start, "/input/options/stop", Fact::StopSequences),
    content("ChatModel", Stage::Success, "/output/message", Fact::OutputMessages),
    content("Agent", Stage::Start, "/input/messages", Fact::InputMessages),
    content("Agent", Stage::Success, "/output/answer", Fact::OutputMessages),
    content("Tool", Stage::Success, "/output/content", Fact::Result),
    // Comes after `run.start`, and has what the function of the tool receives.
    content("Tool", Stage::Own("start"), "/input", Fact::Input),
    content("*", Stage::Start, "/input", Fact::Input),
    content("*", Stage::Success, "/output", Fact::Output),
];

/// The event of an approval that has replaced the input of a run.
const EDITED: &str = "approval.edited";

/// Returns `true` if an event is needed whole, because it contains content.
pub(super) fn has_content(kind: &str, event: &str) -> bool {
    matches!(event, "run.start" | "run.success") || (kind, event) == ("Tool", "start")
}

/// Adds the facts that a record of a run contains.
pub(super) fn read(facts: &mut Facts, event: &EventRecord, head: &Head, run_kind: &str, with_content: bool) {
    // A call that is denied does not reach the tool's own `start`, which has the id too.
    if (&head.fact, &*head.kind) == (&runs::Fact::Start, "Tool")
        && let Some(id) = event.context.get("call_id")
    {
        facts.insert(Fact::CallId, id.clone());
    }
    let mut kind = &*head.kind;
    let stage = match head.fact {
        runs::Fact::Start => Stage::Start,
        runs::Fact::Success => Stage::Success,
        runs::Fact::Event if is_end_of(EDITED, &event.path) => {
            // The edited input takes the place of the one that the run was given.
            kind = run_kind;
            Stage::Start
        }
        runs::Fact::Event => Stage::Own(event.name()),
        _ => return,
    };
    let fits = |source: &&Source| {
        let is_of_run = source.kind == "*" || source.kind == kind;
        // A recording has whole payloads, and a live sink without content only heads: both give the same facts (O9).
        source.event == stage && is_of_run && (with_content || !source.is_content)
    };
    let mut sources = SOURCES.iter().filter(fits).peekable();
    if sources.peek().is_none() {
        return;
    }
    let payload = event.to_json();
    // The session of an agent above takes precedence.
    let session = facts.remove(&Fact::SessionId);
    let found = sources.filter_map(|source| Some((source.fact, payload.pointer(source.pointer)?)));
    facts.extend(found.filter(|(_, value)| !value.is_null()).map(|(fact, value)| (fact, shaped(fact, value))));
    facts.extend(session.map(|session| (Fact::SessionId, session)));
}

/// Returns the value of a fact: lists as such, and messages with the fields of the conventions.
fn shaped(fact: Fact, value: &Value) -> Value {
    messages::without_bytes(match fact {
        Fact::InputMessages | Fact::OutputMessages => messages::list(value),
        Fact::FinishReasons => json!([value]),
        _ => value.clone(),
    })
}

/// Adds the facts that the fold of the records knows, with the tokens of the run, and the facts that are derived from
/// others.
pub(super) fn complete(facts: &mut Facts, run: &Run, tokens: &Tokens, is_error: bool) {
    let mut add = |fact, value: Option<Value>| facts.extend(value.map(|value| (fact, value)));
    let known = |text: &str| (!text.is_empty()).then(|| text.into());
    let positive = |number: u64| (number > 0).then(|| number.into());
    add(Fact::Kind, known(&run.kind));
    add(Fact::Name, known(&run.name));
    add(Fact::Outcome, run.outcome.as_deref().map(Into::into));
    add(Fact::ErrorType, is_error.then(|| super::status::error_type(run).into()));
    add(Fact::IsIncomplete, run.is_unfinished().then_some(true.into()));
    add(Fact::Lost, positive(run.lost));
    add(Fact::Discarded, positive(run.discarded.into()));
    // A run without tokens has no attribute for them; a run with some has all three, even if one is 0.
    let total = tokens.input.saturating_add(tokens.output);
    if total > 0 {
        add(Fact::InputTokens, Some(tokens.input.into()));
        add(Fact::OutputTokens, Some(tokens.output.into()));
        add(Fact::TotalTokens, Some(total.into()));
    }
    add(Fact::CachedInputTokens, positive(tokens.cached_input));
    add(Fact::ReasoningTokens, positive(tokens.reasoning));
    add(Fact::IsEstimated, tokens.is_estimated.then_some(true.into()));
    add(Fact::Cost, run.cost.and_then(|cost| cost.to_f64()).map(Into::into));
    derive(facts);
}

fn derive(facts: &mut Facts) {
    if facts.get(&Fact::Kind).is_some_and(|kind| kind == "ChatModel")
        && let Some(name) = facts.get(&Fact::Name).cloned()
    {
        facts.entry(Fact::RequestModel).or_insert(name);
    }
    // The seed and the stop texts are content: without it they are no facts here, and so no options (O9).
    let options: Map<String, Value> =
        OPTIONS.iter().filter_map(|(name, fact)| Some(((*name).to_owned(), facts.get(fact)?.clone()))).collect();
    if !options.is_empty() {
        facts.insert(Fact::Options, options.into());
    }
    for (messages, text) in [(Fact::InputMessages, Fact::InputText), (Fact::OutputMessages, Fact::OutputText)] {
        if let Some(last) = facts.get(&messages).and_then(|messages| text_of(messages.as_array()?.last()?)) {
            facts.insert(text, last);
        }
    }
    if let Some(Value::Array(messages)) = facts.get(&Fact::InputMessages) {
        let system = facts.get(&Fact::SystemPrompt);
        let system = system.map(|text| json!({"role": "system", "parts": [{"type": "text", "content": text}]}));
        let conversation: Vec<Value> = system.into_iter().chain(messages.iter().cloned()).collect();
        facts.insert(Fact::Conversation, conversation.into());
    }
}

/// The options that are part of [`Fact::Options`].
const OPTIONS: &[(&str, Fact)] = &[
    ("temperature", Fact::Temperature),
    ("max_tokens", Fact::MaxTokens),
    ("seed", Fact::Seed),
    ("stop", Fact::StopSequences),
    ("stream", Fact::IsStream),
];

/// Returns the text of a message, or its parts if it has no text.
fn text_of(message: &Value) -> Option<Value> {
    let parts = message.get("parts")?.as_array()?;
    let texts = parts.iter().filter(|part| part["type"] == "text").filter_map(|part| part["content"].as_str());
    let text: String = texts.collect();
    Some(if text.is_empty() { parts.clone().into() } else { text.into() })
}
