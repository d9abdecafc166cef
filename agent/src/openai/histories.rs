//! 1,000 random histories are sent to each server of the table, and are checked as its documentation says that the
//! server checks them. The checks share nothing with the code that adapts requests.

use std::collections::HashSet;
use std::sync::LazyLock;

use proptest::collection::vec;
use proptest::prelude::*;
use proptest::sample::select;
use serde_json::{Value, json};

use crate::message::history::History;
use crate::openai::signature::{Peer, Received};
use crate::openai::{OpenAi, request};
use crate::{Arguments, ChatRequest, Message, Part, Role, ToolCall, ToolResult};

/// The servers, with a model each. Templates and families count as servers.
const SERVERS: [&str; 18] = [
    "anthropic:claude-x",
    "deepseek:m",
    "gemini:m",
    "groq:m",
    "groq:mistral-saba",
    "llamacpp:m",
    "lmstudio:m",
    "mistral:m",
    "ollama:m",
    "ollama:gemma3",
    "openai:m",
    "openrouter:m",
    "openrouter:mistralai/devstral",
    "together:m",
    "vllm:m",
    "vllm:mistralai/Mistral-7B",
    "vllm:google/gemma-3",
    "xai:m",
];

const IDS: [&str; 8] = [
    "call_PTLP8xhu3uwZk4l3nlnrrJha",
    "abcDEF123",
    "0",
    "functions.get_weather:0",
    "toolu_01A09q90qw90lq917835lq9",
    "fc_0f0e50a1476a6c35006912c58dc9f8819192c25864eb16f07f",
    "1697377797897",
    "größe one",
];

const NAMES: [&str; 7] = ["count", "get-weather", "browser.open<|channel|>json", "two words", "", "$lookup", "größe"];

const ARGUMENTS: [&str; 7] = ["{}", "", "null", "[1]", "{\"a\": 1, \"A\": \"ü\"}", "{\"a\"", "\"a\""];

/// A part of a conversation.
#[derive(Clone, Debug)]
enum Step {
    /// A question, a message that steers, or one after a failed call.
    User(&'static str),
    System,
    /// An answer, which may be empty or only reasoning, with data of one of the servers.
    Answer {
        text: &'static str,
        reasoning: &'static str,
        data_of: Option<usize>,
    },
    /// Calls and their results, which may be errors such as that of a cancelled call, in one message or in several. An
    /// edited call has other arguments than the model wrote.
    Calls {
        text: &'static str,
        calls: Vec<(&'static str, &'static str, &'static str, bool)>,
        are_apart: bool,
        /// The kinds of the parts of each result.
        parts: Vec<&'static str>,
    },
    /// A transfer to another agent, which answers.
    Handoff,
}

fn step() -> impl Strategy<Value = Step> {
    let call = (select(IDS.to_vec()), select(NAMES.to_vec()), select(ARGUMENTS.to_vec()), any::<bool>());
    let text = || select(vec!["", " \n", "Let me look.", "So it is."]);
    prop_oneof![
        3 => select(vec!["Go.", "And now?"]).prop_map(Step::User),
        1 => Just(Step::System),
        3 => (text(), select(vec!["", "Hm."]), proptest::option::of(0..SERVERS.len()))
            .prop_map(|(text, reasoning, data_of)| Step::Answer { text, reasoning, data_of }),
        4 => (text(), vec(call, 1..4), any::<bool>(), vec(select(vec!["text", "image", "audio"]), 0..3))
            .prop_map(|(text, calls, are_apart, parts)| Step::Calls { text, calls, are_apart, parts }),
        1 => Just(Step::Handoff),
    ]
}

fn part(kind: &str) -> Part {
    let (modality, mime_type, uri) = (kind.to_owned(), None, "data:,a".to_owned());
    if kind == "text" { Part::Text { content: "part".to_owned() } } else { Part::Uri { modality, mime_type, uri } }
}

/// Appends the messages of a step.
fn write(messages: &mut Vec<Message>, step: &Step, peers: &[Peer]) {
    match step {
        Step::User(text) => messages.push(Message::user(*text)),
        Step::System => messages.push(Message::system("Be brief.")),
        Step::Answer { text, reasoning, data_of } => {
            let mut message = Message::assistant(*text);
            let extra = data_of.and_then(|at| {
                let mut received = Received::default();
                received.text.add(text);
                received.reasoning.add(reasoning);
                received.add(Some(json!([{"type": "reasoning.encrypted", "data": "x"}])), Some(json!({"google": {}})));
                received.sign(&peers[at])
            });
            if !reasoning.is_empty() || extra.is_some() {
                message.parts.insert(0, Part::reasoning(*reasoning, extra));
            }
            messages.push(message);
        }
        Step::Calls { text, calls, are_apart, parts } => {
            let mut asks = Message::assistant(*text);
            let mut results = Vec::new();
            let mut ids = HashSet::new();
            for (id, name, arguments, is_edited) in calls.iter().filter(|call| ids.insert(call.0)) {
                let mut call = ToolCall::parsed((*id).to_owned(), (*name).to_owned(), arguments, None);
                if *is_edited {
                    call.arguments = Arguments::Json(json!({"edited": true}));
                }
                asks.parts.push(Part::ToolCall(call));
                let mut result = if *is_edited { ToolResult::new(*id, 4) } else { ToolResult::error(*id, "cancelled") };
                result.parts = parts.iter().map(|kind| part(kind)).collect();
                results.push(result);
            }
            messages.push(asks);
            if *are_apart {
                messages.extend(results.into_iter().map(|result| Message::tool([result])));
            } else {
                messages.push(Message::tool(results));
            }
        }
        Step::Handoff => {
            messages.push(Message::assistant("").with_call(ToolCall::new("h", "transfer_to_b", json!({}))));
            messages.push(Message::tool([ToolResult::new("h", "transferred")]));
            messages.push(Message::assistant("I am b."));
        }
    }
}

/// The providers, in the order of `SERVERS`.
static PROVIDERS: LazyLock<Vec<OpenAi>> = LazyLock::new(|| {
    let build = |name: &&str| OpenAi::from_name(name).unwrap().api_key("k").build().unwrap();
    SERVERS.iter().map(build).collect()
});

fn peer(provider: &OpenAi) -> Peer {
    Peer { server: provider.shared.server.address.clone(), model: provider.shared.model.clone() }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 1_000, ..ProptestConfig::default() })]

    #[test]
    fn each_history_is_sent_to_each_server_in_a_form_that_the_server_accepts(
        system in proptest::option::of(Just("You are a.")),
        steps in vec(step(), 0..12),
    ) {
        let peers: Vec<_> = PROVIDERS.iter().map(peer).collect();
        let mut messages = Vec::new();
        for step in &steps {
            write(&mut messages, step, &peers);
        }
        // A model is asked behind a message of the user, or behind results.
        if !matches!(messages.last().map(|last| last.role), Some(Role::User | Role::Tool)) {
            messages.push(Message::user("Go on."));
        }
        prop_assert!(History::try_from(messages.clone()).is_ok());
        let mut request = ChatRequest::new(messages);
        request.system = system.map(str::to_owned);
        for (name, provider) in SERVERS.iter().zip(&*PROVIDERS) {
            let (body, ..) = request::body(&provider.shared, &request).unwrap();
            if let Err(fault) = check(name, body["messages"].as_array().unwrap()) {
                prop_assert!(false, "{name}: {fault} in {:#}", body["messages"]);
            }
            // Each image of a result arrives once.
            let sent = body["messages"].to_string().matches("image_url\":{").count();
            prop_assert_eq!(sent, images(&request.messages), "{}", name);
        }
    }
}

/// Counts the images of results.
fn images(messages: &[std::sync::Arc<Message>]) -> usize {
    let parts = messages.iter().flat_map(|message| message.tool_results()).flat_map(|result| &result.parts);
    parts.filter(|one| **one == part("image")).count()
}

type Checked = Result<(), String>;

/// Checks messages as a server does.
fn check(name: &str, messages: &[Value]) -> Checked {
    let (server, model) = name.split_once(':').unwrap();
    all(messages, server == "openrouter")?;
    match server {
        "openai" | "openrouter" => ids(messages, "of at most 40 characters", |id| id.chars().count() <= 40)?,
        "anthropic" => ids(messages, "of letters, digits, `_` and `-`", |id| id.chars().all(is_word))?,
        "deepseek" => with_calls(messages, "no `reasoning_content`", |call| call["reasoning_content"].is_string())?,
        "xai" => with_calls(messages, "no content", |call| call["content"].is_string())?,
        "gemini" => gemini(messages)?,
        "mistral" => mistral(messages)?,
        "llamacpp" | "lmstudio" => {
            ids(messages, "of nine characters", is_nine)?;
            template(messages)?;
        }
        "vllm" => template(messages)?,
        _ => {}
    }
    if model.to_lowercase().contains("mistral") {
        mistral(messages)?;
        template(messages)?;
    }
    if model.contains("gemma") {
        gemma(messages)?;
    }
    Ok(())
}

fn is_word(c: char) -> bool {
    c.is_ascii_alphanumeric() || c == '_' || c == '-'
}

fn is_nine(id: &str) -> bool {
    id.len() == 9 && id.bytes().all(|byte| byte.is_ascii_alphanumeric())
}

fn calls(message: &Value) -> &[Value] {
    message["tool_calls"].as_array().map_or(&[], Vec::as_slice)
}

/// The checks of every server: names and arguments of calls, results behind their calls, and content.
fn all(messages: &[Value], reads_images: bool) -> Checked {
    let mut open = HashSet::new();
    for (at, message) in messages.iter().enumerate() {
        let role = message["role"].as_str().ok_or("no role")?;
        if role == "tool" {
            let id = message["tool_call_id"].as_str().ok_or("a result without an id")?;
            if !reads_images && !message["content"].is_string() {
                return Err(format!("message {at} has another content than a text"));
            }
            if !open.remove(id) {
                return Err(format!("message {at} has a result for `{id}`, which was not asked for"));
            }
            continue;
        }
        if !open.is_empty() {
            return Err(format!("no result before message {at} for {open:?}"));
        }
        let text = texts_of(&message["content"]);
        let has_data = message.get("extra_content").is_some() || message.get("reasoning_details").is_some();
        if text.trim().is_empty() && calls(message).is_empty() && !has_data {
            return Err(format!("message {at} is empty"));
        }
        for call in calls(message) {
            let function = &call["function"];
            let name = function["name"].as_str().ok_or("a call without a name")?;
            if !(1..=64).contains(&name.len()) || !name.chars().all(is_word) {
                return Err(format!("the name `{name}`"));
            }
            let arguments = function["arguments"].as_str().ok_or("a call without arguments")?;
            if !serde_json::from_str::<Value>(arguments).is_ok_and(|value| value.is_object()) {
                return Err(format!("the arguments `{arguments}`"));
            }
            if !open.insert(call["id"].as_str().ok_or("a call without an id")?) {
                return Err(format!("two calls with the id {}", call["id"]));
            }
        }
    }
    match messages.last() {
        Some(last) if last["role"] == "user" || last["role"] == "tool" => Ok(()),
        last => Err(format!("the last message {last:?}")),
    }
}

/// Returns the text of a content, or of its parts. An image counts as one.
fn texts_of(content: &Value) -> String {
    let parts = content.as_array().into_iter().flatten();
    content.as_str().map_or_else(|| parts.map(ToString::to_string).collect(), str::to_owned)
}

fn ids(messages: &[Value], kind: &str, fits: impl Fn(&str) -> bool) -> Checked {
    for call in messages.iter().flat_map(calls) {
        let id = call["id"].as_str().unwrap_or_default();
        if !fits(id) {
            return Err(format!("the id `{id}` is not {kind}"));
        }
    }
    Ok(())
}

fn with_calls(messages: &[Value], fault: &str, fits: impl Fn(&Value) -> bool) -> Checked {
    let is_wrong = messages.iter().any(|message| !calls(message).is_empty() && !fits(message));
    if is_wrong { Err(format!("{fault} beside calls")) } else { Ok(()) }
}

/// "Please ensure that function call turn comes immediately after a user turn or after a function response turn", and
/// the first call of each message of the current turn has a signature.
fn gemini(messages: &[Value]) -> Checked {
    let turn = messages.iter().rposition(|message| message["role"] == "user").unwrap_or(0);
    for (at, message) in messages.iter().enumerate() {
        let Some(first) = calls(message).first() else { continue };
        let before = at.checked_sub(1).map(|before| &messages[before]["role"]);
        if !before.is_some_and(|role| role == "user" || role == "tool") {
            return Err(format!("the call of message {at} is behind {before:?}"));
        }
        if at >= turn && first.get("extra_content").is_none() {
            return Err(format!("no signature in message {at}"));
        }
    }
    Ok(())
}

/// `MistralRequestValidatorV3` of `mistral-common`.
fn mistral(messages: &[Value]) -> Checked {
    ids(messages, "of nine characters", is_nine)?;
    for pair in messages.windows(2) {
        let [before, role] = [&pair[0]["role"], &pair[1]["role"]].map(|role| role.as_str().unwrap_or_default());
        let expected: &[&str] = match before {
            "system" => &["user", "assistant", "system"],
            "user" => &["assistant", "system", "user"],
            "assistant" => &["assistant", "user", "tool"],
            _ => &["assistant", "tool"],
        };
        if !expected.contains(&role) {
            return Err(format!("Unexpected role '{role}' after role '{before}'"));
        }
    }
    Ok(())
}

/// Mistral's template: "After the optional system message, conversation roles must alternate", where calls and results
/// are skipped. Qwen's template: "System message must be at the beginning".
fn template(messages: &[Value]) -> Checked {
    let rest = if messages[0]["role"] == "system" { &messages[1..] } else { messages };
    let counted = rest.iter().filter(|message| message["role"] != "tool" && calls(message).is_empty());
    alternate(counted)
}

/// Gemma's template knows no calls.
fn gemma(messages: &[Value]) -> Checked {
    if messages.iter().any(|message| !calls(message).is_empty()) { Ok(()) } else { template(messages) }
}

fn alternate<'a>(messages: impl Iterator<Item = &'a Value>) -> Checked {
    for (at, message) in messages.enumerate() {
        let expected = if at % 2 == 0 { "user" } else { "assistant" };
        if message["role"] != expected {
            return Err(format!("the role {} instead of {expected}", message["role"]));
        }
    }
    Ok(())
}
