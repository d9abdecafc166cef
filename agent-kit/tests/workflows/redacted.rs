//! A13: `for_tree(Redact::new())` redacts what the library's own runs emit and return, streamed or not, and loses no
//! text.

use std::collections::BTreeSet;
use std::path::Path;
use std::thread::current;

use emitree_agent::kinds::HandedOff;
use emitree_agent::steering::MessageDropped;
use emitree_agent::reply::{ToolCallDelta, ToolCallStarted};
use emitree_agent_kit::workflow::{Goto, StepFailure, StepStart, StepSuccess, Workflow};
use emitree_agent::*;
use emitree_emitter::{AnyEvent, Emitter, Event, EventMeta};
use emitree_middleware::{ExfilGuard, Redact};
use emitree_runtime::{AnyRun, Error, Middleware, Next, Result, RunContext, Runnable, Stack, for_tree, map_output};
use futures_core::future::BoxFuture;
use futures_util::stream;
use serde::de::DeserializeOwned;
use serde_json::{Value, json};

use crate::support::{Log, Text, agent, fail};

/// Occurs in no other test, so that an observer of the root emitter recognizes events of this file.
const SECRET: &str = "maria.redacted@mailbox.org";
const REDACTED: &str = "[REDACTED:email]";

type Emit = for<'a> fn(&'a RunContext, Value) -> BoxFuture<'a, Result<()>>;

/// An event type of the agent crate: the kind of the run that emits it, its name, and a payload with a secret in each
/// of its texts.
struct Sample {
    kind: &'static str,
    event: &'static str,
    emit: Emit,
    payload: Value,
}

fn emit<E: Event + DeserializeOwned>(ctx: &RunContext, payload: Value) -> BoxFuture<'_, Result<()>> {
    Box::pin(async move {
        let mut event: E = serde_json::from_value(payload)?;
        Ok(ctx.emitter().emit_event(&mut event).await?)
    })
}

macro_rules! samples {
    ($($kind:ident { $($event:ident $(<$state:ty>)? = $payload:expr;)+ })+) => {
        vec![$($(Sample {
            kind: stringify!($kind), event: stringify!($event), emit: emit::<$event $(<$state>)?>, payload: $payload,
        }),+),+]
    };
}

fn call() -> Value {
    json!({"id": SECRET, "name": SECRET, "arguments": {"to": [SECRET]}})
}

fn result() -> Value {
    json!({"id": SECRET, "response": {"text": SECRET}, "is_error": true})
}

/// A message with a part of each kind.
fn message() -> Value {
    let with = |kind: &str, mut part: Value| {
        part["type"] = kind.into();
        part
    };
    let text = || json!({"content": SECRET});
    let uri = json!({"modality": SECRET, "mime_type": SECRET, "uri": SECRET});
    json!({"role": "assistant", "finish_reason": SECRET, "parts": [
        with("text", text()), with("reasoning", text()), with("tool_call", call()),
        with("tool_call_response", result()), with("uri", uri),
    ]})
}

fn error() -> Value {
    let mut report = json!(Error::denied(SECRET, SECRET).report());
    report["causes"] = json!([SECRET]);
    report["details"] = json!({"of": {"it": SECRET}});
    report["interrupt"] = json!({"id": SECRET, "kind": SECRET, "data": SECRET});
    report["retry"] = json!({"reason": SECRET, "metadata": SECRET});
    report
}

fn request() -> Value {
    let mut request = json!(ChatRequest::from(SECRET));
    request["system"] = SECRET.into();
    request["messages"] = json!([message()]);
    request["tools"] = json!([{"name": SECRET, "description": SECRET, "parameters": {"type": SECRET}}]);
    request
}

fn response() -> Value {
    json!({"message": message(), "model": SECRET, "id": SECRET, "headers": {"x-for": SECRET}, "warnings": [SECRET]})
}

fn samples() -> Vec<Sample> {
    samples! {
        ChatModel {
            ChatStart = json!({
                "request": request(), "provider": SECRET, "model": SECRET, "server_address": SECRET, "server_port": 1,
            });
            NewToken = json!({"text": SECRET});
            ResponseHeaders = json!({"headers": {"x-for": SECRET}, "rate_limits": {}});
            ToolCallStarted = json!({"index": 0, "id": SECRET, "name": SECRET});
            ToolCallDelta = json!({"index": 0, "id": SECRET, "name": SECRET, "arguments": SECRET});
            UsageReported = json!({"usage": Usage::new(1, 2), "model": SECRET});
            ChatSuccess = json!({"response": response()});
            ChatError = json!({"error": error()});
            ModelFellBack = json!({"from": SECRET, "to": SECRET, "error": error()});
            ChatFinish = json!({});
        }
        Tool {
            ToolStart = json!({"input": {"to": SECRET}, "call_id": SECRET});
            ToolSuccess = json!({"output": {"content": SECRET, "details": {"of": SECRET}}});
            ToolFailure = json!({"error": error()});
            ToolRetry = json!({"retry": 1, "error": error()});
            ToolRetriesExceeded = json!({"retries": 1, "error": error()});
            ToolFinish = json!({});
        }
        Agent {
            AgentStart = json!({"messages": [message()], "session": SECRET});
            Iteration = json!({"turn": Turn::default(), "messages": 1});
            MessageAdded = json!({"message": message()});
            MessageReplaced = json!({"before": message(), "after": message()});
            MessageError = json!({"message": message(), "error": SECRET});
            MessageDropped = json!({"to": SECRET, "error": SECRET});
            ToolCallIdentified = json!({"call": call()});
            ToolResponse = json!({"call": call(), "result": result()});
            AgentSuccess = json!({"answer": message()});
            RunResumed = json!({
                "continues": "01a220e5-886a-7301-a57c-a8c375892796", "turn": Turn::default(), "executed": [SECRET],
                "demoted": [SECRET],
            });
            QuestionAsked = json!({"id": SECRET, "kind": SECRET, "by": SECRET});
            QuestionAnswered = json!({"id": SECRET, "call": SECRET, "by": SECRET, "at": null, "edited": true});
            AnswerUnused = json!({"id": SECRET, "by": SECRET});
            HandedOff = json!({"from": SECRET, "to": SECRET, "reason": SECRET});
        }
        Workflow {
            StepStart = json!({"step": SECRET, "number": 1});
            StepSuccess<Value> = json!({"step": SECRET, "next": SECRET, "state": {"of": [SECRET]}});
            StepFailure<Value> = json!({"step": SECRET, "error": error(), "state": {"of": [SECRET]}});
        }
    }
}

/// Returns the names of the event types in the source code of the agent crate, without those of middlewares, whose texts
/// [`OwnEvents`](emitree_middleware::own_events::OwnEvents) redacts.
fn event_types(folder: &Path, into: &mut BTreeSet<String>) {
    for entry in std::fs::read_dir(folder).expect("a folder").map(|entry| entry.expect("an entry").path()) {
        if entry.is_dir() {
            event_types(&entry, into);
            continue;
        }
        let source = std::fs::read_to_string(&entry).expect("a source file");
        let of_impl = source.lines().filter_map(|line| {
            let (generics, event) = line.strip_prefix("impl")?.strip_suffix(" {")?.split_once(" Event for ")?;
            (generics.is_empty() || generics.starts_with('<')).then(|| event.split('<').next().unwrap_or(event))
        });
        // Rows of the macro `named!`: `NewToken = "new_token";`.
        let of_row = source.lines().filter_map(|line| {
            let (event, name) = line.trim().strip_suffix("\";")?.split_once(" = \"")?;
            (source.contains("named! {") && !name.contains(' ') && event.chars().all(char::is_alphanumeric))
                .then_some(event)
        });
        let is_redacted = |event: &&str| source.contains(&format!("impl UserTexts for {event} {{"));
        into.extend(of_impl.chain(of_row).filter(|event| !is_redacted(event)).map(str::to_owned));
    }
}

/// Logs all events of this thread that contain the secret or its replacement, as they reach the root emitter. Other tests
/// emit the secret on their own threads.
fn log_of_root() -> (Log, impl Fn()) {
    let log = Log::default();
    let (to, test) = (log.clone(), current().id());
    let observer = Emitter::root()
        .observe("*.*", move |event: &dyn AnyEvent, meta: &EventMeta<'_>| {
            let json = event.to_json().to_string();
            if current().id() == test && (json.contains(SECRET) || json.contains(REDACTED)) {
                to.add(format!("{} {json}", meta.payload_type()));
            }
        })
        .expect("an observer");
    (log, move || _ = observer.off())
}

fn assert_clean(log: &Log) {
    for line in log.lines() {
        assert!(!line.contains(SECRET), "{line}");
    }
}

#[test]
fn every_event_type_of_agents_has_a_sample() {
    let mut types = BTreeSet::new();
    for folder in ["src", "../agent/src"] {
        event_types(&Path::new(env!("CARGO_MANIFEST_DIR")).join(folder), &mut types);
    }
    let seen: BTreeSet<_> = samples().iter().map(|sample| sample.event.to_owned()).collect();
    assert_eq!(types, seen, "declare a new event type as data, and add a sample with a secret in each of its texts");
}

#[tokio::test]
async fn a_secret_in_a_text_of_an_event_of_agents_does_not_reach_the_root() -> Result<()> {
    let (log, off) = log_of_root();
    let emits = || {
        Stack::<AnyRun>::builder().layer_fn("emits", |(): &(), ctx, next: Next<'_, AnyRun>| {
            Box::pin(async move {
                let kind = ctx.creator().map_or("", |creator| creator.kind());
                for sample in samples().into_iter().filter(|sample| sample.kind == kind) {
                    (sample.emit)(ctx, sample.payload).await?;
                }
                next.run(&()).await
            })
        })
    };
    let script = ScriptedModel::new("test").call("shout", json!({"text": "a"})).text("done");
    let agent = agent(&script).build()?;
    let run = agent.ask("go").middleware(for_tree(Redact::new()));
    assert_eq!(run.middleware(for_tree(emits().build())).await?.text(), "done");
    let flow = Workflow::builder("flow").step("end", |_: &mut Value, _| Box::pin(async { Ok(Goto::End) })).build()?;
    flow.run(json!({})).middleware(for_tree(Redact::new())).middleware(for_tree(emits().build())).await?;
    off();
    assert_clean(&log);
    for Sample { event, payload, .. } in samples() {
        let expected = payload.to_string().replace(SECRET, REDACTED);
        if !expected.contains(REDACTED) {
            continue;
        }
        let expected: Value = serde_json::from_str(&expected)?;
        let is_expected = |line: &String| {
            let (of, json) = line.split_once(' ').expect("a type and a payload");
            let json: Value = serde_json::from_str(json).expect("JSON");
            let of = of.split('<').next().unwrap_or(of);
            of.ends_with(&format!("::{event}")) && includes(&json, &expected)
        };
        assert!(log.lines().iter().any(is_expected), "{event}: no event like {expected}");
    }
    Ok(())
}

/// Returns `true` if a value has all members of the expected value.
fn includes(value: &Value, expected: &Value) -> bool {
    match (value, expected) {
        (Value::Object(value), Value::Object(expected)) => {
            expected.iter().all(|(key, expected)| value.get(key).is_some_and(|value| includes(value, expected)))
        }
        (Value::Array(value), Value::Array(expected)) => {
            value.len() == expected.len()
                && value.iter().zip(expected).all(|(value, expected)| includes(value, expected))
        }
        _ => value == expected,
    }
}

/// A model whose replies arrive in pieces of three characters.
struct InPieces;

impl Provider for InPieces {
    fn name(&self) -> &str {
        "pieces"
    }

    fn model(&self) -> &str {
        "three"
    }

    async fn chat(&self, request: &ChatRequest, _: &RunContext) -> Result<DeltaStream> {
        let cut = |text: String| {
            let chars: Vec<char> = text.chars().collect();
            chars.chunks(3).map(|piece| piece.iter().collect::<String>()).collect::<Vec<_>>()
        };
        let mut deltas = vec![Delta::Headers([("x-for".to_owned(), SECRET.to_owned())].into())];
        if request.messages.iter().all(|message| message.tool_results().next().is_none()) {
            deltas.extend(cut(format!("I ask {SECRET}.")).into_iter().map(Delta::Reasoning));
            deltas.extend(cut(format!("Asking {SECRET} now")).into_iter().map(Delta::Text));
            let arguments = cut(json!({"text": format!("to {SECRET}")}).to_string());
            deltas.extend(arguments.into_iter().enumerate().map(|(n, arguments)| {
                let [id, name] = ["1", "send"].map(|text| (n == 0).then(|| text.to_owned()));
                Delta::tool_call(0, id, name, arguments)
            }));
        } else {
            deltas.extend(cut(format!("{SECRET} is away")).into_iter().map(Delta::Text));
        }
        Ok(Box::pin(stream::iter(deltas.into_iter().map(Ok))))
    }
}

#[tokio::test]
async fn a_secret_in_pieces_of_a_reply_is_redacted_for_listeners_and_in_the_answer_alike() -> Result<()> {
    let received = Log::default();
    let to = received.clone();
    let send = tool_fn("send", "Sends", move |args: Text, _: RunContext| {
        to.add(args.text);
        async { Err::<String, _>(Error::new(format!("cannot reach {SECRET}"))) }
    })?;
    let fails = hooks_fn("fails", |hooks: &mut Hooks| {
        hooks.on_result(|_, _| Err::<(), _>(Error::new(format!("no result for {SECRET}"))));
    });
    for fails in [None, Some(fails)] {
        let (log, off) = log_of_root();
        let (text, reasoning) = (Log::default(), Log::default());
        let (to_text, to_reasoning) = (text.clone(), reasoning.clone());
        let builder = Agent::builder("writer", ChatModel::new(InPieces)?).tool(send.clone());
        let agent = fails.into_iter().fold(builder, AgentBuilder::with).build()?;
        let run = agent.ask("go").middleware(for_tree(Redact::new())).on_token(move |token| {
            if token.is_reasoning { to_reasoning.add(&*token.text) } else { to_text.add(token.text()) }
        });
        let answer = run.await?;
        off();
        assert_clean(&log);
        assert_eq!(reasoning.lines().concat(), format!("I ask {REDACTED}."));
        assert_eq!(text.lines().concat(), format!("Asking {REDACTED} now{REDACTED} is away"));
        assert_eq!(answer.text(), format!("{REDACTED} is away"));
        let said = answer.messages.iter().map(|message| message.text()).collect::<Vec<_>>();
        assert!(said.contains(&format!("Asking {REDACTED} now")), "{said:?}");
        assert!(!serde_json::to_string(&answer.messages)?.contains(SECRET));
    }
    assert_eq!(received.lines(), [format!("to {REDACTED}"), format!("to {REDACTED}")]);
    Ok(())
}

#[tokio::test]
async fn an_error_of_a_tool_or_a_model_reaches_the_root_redacted() -> Result<()> {
    let (log, off) = log_of_root();
    let fails = fail("shout", || Error::new(format!("no voice for {SECRET}")));
    let script = ScriptedModel::new("test").call("shout", json!({"text": "a"})).error(Error::new(SECRET));
    let agent = Agent::builder("tester", ChatModel::new(script)?).tool(fails).build()?;
    let error = agent.ask("go").middleware(for_tree(Redact::new())).await.unwrap_err();
    off();
    assert_eq!(error.to_string(), REDACTED);
    assert_clean(&log);
    Ok(())
}

/// Returns the tokens of a streamed reply and its text.
async fn streamed(middleware: impl Middleware) -> Result<(String, Result<String>)> {
    let tokens = Log::default();
    let to = tokens.clone();
    let script = ScriptedModel::new("test").reply(Reply::text("one two three").in_pieces(2));
    let agent = agent(&script).build()?;
    let run = agent.ask("go").middleware(for_tree(middleware)).on_token(move |token| to.add(token.text()));
    let answer = run.await.map(|answer| answer.text());
    Ok((tokens.lines().concat(), answer))
}

#[tokio::test]
async fn a_stream_that_is_redacted_or_guarded_keeps_its_text() -> Result<()> {
    let (tokens, answer) = streamed(Redact::new()).await?;
    assert_eq!((tokens.as_str(), answer?.as_str()), ("one two three", "one two three"));
    let (tokens, answer) = streamed(ExfilGuard::new().known(["correct horse"]).map_err(Error::from)?).await?;
    assert_eq!((tokens.as_str(), answer?.as_str()), ("one two three", "one two three"));
    Ok(())
}

#[tokio::test]
async fn no_listener_receives_a_piece_of_a_secret_that_an_exfil_guard_refuses() -> Result<()> {
    let (tokens, answer) = streamed(ExfilGuard::new().known(["two three"]).map_err(Error::from)?).await?;
    assert!(answer.unwrap_err().is_denied());
    assert!(!tokens.contains("three"), "{tokens}");
    Ok(())
}

// A redaction of the agent's own run only, in a run that returns its answer and in one that does not (A12).
#[tokio::test]
async fn a_redaction_of_an_agents_run_redacts_all_events_of_that_run() -> Result<()> {
    for fails in [false, true] {
        let script = ScriptedModel::new("test").call("shout", json!({"text": SECRET})).text(format!("ask {SECRET}"));
        let (agent, events) = (agent(&script).build()?, Log::default());
        let log = events.clone();
        let run = agent.ask(SECRET).observe("*", move |event: &dyn AnyEvent, meta| {
            log.add(format!("{} {}", meta.name(), event.to_json()));
        });
        let change = map_output(move |output: &mut AgentOutput, _: &RunContext| {
            output.answer.parts.push(Part::Text { content: " at once".to_owned() });
            if fails { Err(Error::new("no answer")) } else { Ok(()) }
        });
        assert_eq!(run.middleware(Redact::new()).middleware(change).await.is_err(), fails);
        let replaced: Vec<_> = events.lines().into_iter().filter(|line| line.starts_with("message_replaced")).collect();
        assert!(replaced.len() == 1 && replaced[0].contains(REDACTED), "{replaced:?}");
        assert_clean(&events);
    }
    Ok(())
}

// A redaction of the agent's own run only: the tool's run is not redacted.
#[tokio::test]
async fn the_tokens_of_a_tools_answer_are_redacted_and_none_of_its_text_is_lost() -> Result<()> {
    let tell = tool_fn("tell", "Tells", |_: Text, _: RunContext| async {
        Ok(ToolOutput::new(format!("ask {SECRET} for two")).answer())
    });
    let script = ScriptedModel::new("test").call("tell", json!({"text": ""}));
    let agent = agent(&script).tool(tell).build()?;
    let (tokens, seen) = (Log::default(), Log::default());
    let (to_tokens, to_seen) = (tokens.clone(), seen.clone());
    let run = agent.ask("go").on_token(move |token| to_tokens.add(token.text())).middleware(Redact::new());
    let run = run.observe("new_token", move |token: &NewToken, _| to_seen.add(&*token.text));
    let answer = run.await?;
    assert_eq!(answer.text(), format!("ask {REDACTED} for two"));
    assert_eq!((tokens.lines().concat(), seen.lines().concat()), (answer.text(), answer.text()));
    Ok(())
}

#[tokio::test]
async fn text_of_is_refused_for_events_that_are_redacted_without_it() -> Result<()> {
    let redact = Redact::new().text_of("new_token", |token: &mut NewToken| &mut token.text);
    let model = ChatModel::new(ScriptedModel::new("test").text("hi"))?;
    let error = model.run("go".into()).middleware(redact).await.unwrap_err();
    let guard = ExfilGuard::new().text_of("new_token", |token: &mut NewToken| &mut token.text);
    let of_guard = model.run("go".into()).middleware(guard).await.unwrap_err();
    for error in [error, of_guard] {
        assert!(error.to_string().contains("filters the text of `new_token` itself"), "{error}");
        assert!(error.to_string().contains("remove `text_of`"), "{error}");
    }
    Ok(())
}
