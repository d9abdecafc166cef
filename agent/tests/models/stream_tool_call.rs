//! `StreamToolCall`: one argument of a call, while the model writes it.

use std::time::Duration;

use emitree_agent::reply::{StreamToolCall, ToolCallUpdate, ToolCallsDiscarded};
use emitree_agent::{
    Agent, ChatModel, ChatOptions, ChatRequest, ChatResponse, Chunks, Delta, Message, ModelRun, Reply, ScriptedModel,
    Tool, ToolCall, tool_fn,
};
use emitree_emitter::Emitter;
use emitree_middleware::{Redact, Retry};
use emitree_runtime::{Error, Next, Result, RunContext, Runnable, Stack, for_tree};
use proptest::prelude::*;
use schemars::JsonSchema;
use serde::Deserialize;
use serde_json::{Value, json};

use crate::support::Log;

#[derive(Deserialize, JsonSchema)]
#[expect(dead_code, reason = "only the schema is used")]
struct Order {
    city: String,
    items: Option<Vec<Item>>,
    #[serde(rename = "a.b")]
    dotted: Option<u32>,
}

#[derive(Deserialize, JsonSchema)]
#[expect(dead_code, reason = "only the schema is used")]
struct Item {
    name: String,
    parts: Vec<Self>,
}

fn order() -> Tool {
    tool_fn("order", "Orders", |_: Value2, _: RunContext| async { Ok("ordered") }).expect("a tool")
}

/// Any arguments, with the schema of [`Order`].
#[derive(Deserialize)]
struct Value2(#[expect(dead_code, reason = "only the schema is used")] Value);

impl JsonSchema for Value2 {
    fn schema_name() -> std::borrow::Cow<'static, str> {
        "Order".into()
    }

    fn json_schema(generator: &mut schemars::SchemaGenerator) -> schemars::Schema {
        Order::json_schema(generator)
    }
}

/// Logs the updates of all runs: the delta, all text, and the value if it is complete.
fn log_of(stream: &StreamToolCall) -> Log {
    let log = Log::default();
    let (update, discarded) = (log.clone(), log.clone());
    let observer = stream.emitter().observe("update", move |event: &ToolCallUpdate, _| {
        let value = event.output_structured.as_ref().map_or_else(String::new, |value| format!(" = {value}"));
        let ToolCallUpdate { call, delta, is_complete, .. } = event;
        let id = call.id.as_deref().unwrap_or("?");
        update.add(format!("{id}/{} {delta:?} {:?} {is_complete}{value}", call.index, event.output()));
    });
    observer.expect("a listener");
    let observer = stream.emitter().observe("discarded", move |_: &ToolCallsDiscarded, _| discarded.add("discarded"));
    observer.expect("a listener");
    log
}

fn pieces(index: usize, id: &str, arguments: &str, size: usize) -> Vec<Delta> {
    let chars: Vec<_> = arguments.chars().collect();
    let pieces = chars.chunks(size).map(|piece| piece.iter().collect::<String>());
    pieces.map(|piece| Delta::tool_call(index, Some(id.to_owned()), Some("order".to_owned()), piece)).collect()
}

fn model(deltas: impl IntoIterator<Item = Delta>) -> ChatModel {
    ChatModel::new(ScriptedModel::new("test").reply(Reply::deltas(deltas))).expect("a model")
}

fn streamed() -> ChatRequest {
    let mut request = ChatRequest::from("go");
    request.options.stream = Some(true);
    request
}

#[tokio::test]
async fn a_string_is_emitted_as_text_while_it_arrives() -> Result<()> {
    let city = StreamToolCall::tool(&order()).key("city");
    let log = log_of(&city);
    let run = model(pieces(0, "a", r#"{"city":"K\u00f6ln","x":1}"#, 6));
    run.run(streamed()).middleware(city).await?;
    let expected = [r#"a/0 "K" "K" false"#, r#"a/0 "öln" "Köln" false"#, r#"a/0 "" "Köln" true = "Köln""#];
    assert_eq!(log.lines(), expected);
    Ok(())
}

#[tokio::test]
async fn the_end_of_a_string_is_an_update_without_text_if_all_text_was_known() -> Result<()> {
    let city = StreamToolCall::tool(&order()).key("city");
    let log = log_of(&city);
    let deltas = ["{\"city\":\"Bonn", "\"", "}"].map(|piece| Delta::tool_call(0, None, Some("order".into()), piece));
    model(deltas).run(streamed()).middleware(city).await?;
    assert_eq!(log.lines(), [r#"?/0 "Bonn" "Bonn" false"#, r#"?/0 "" "Bonn" true = "Bonn""#]);
    Ok(())
}

#[tokio::test]
async fn any_other_value_is_emitted_once_when_it_is_complete() -> Result<()> {
    let arguments = r#"{"items": [{"name": "a", "parts": []}, {"name": "b"}], "city": "x", "a.b": 12}"#;
    let table = [
        ("items", r#"[{"name":"a","parts":[]},{"name":"b"}]"#),
        ("/items/0", r#"{"name":"a","parts":[]}"#),
        ("/items/0/parts", "[]"),
        ("a.b", "12"),
    ];
    for (key, expected) in table {
        let stream = StreamToolCall::tool(&order()).key(key);
        let log = log_of(&stream);
        model(pieces(0, "a", arguments, 3)).run(streamed()).middleware(stream).await?;
        assert_eq!(log.lines(), [format!("a/0 {expected:?} {expected:?} true = {expected}")], "{key}");
    }
    let all = StreamToolCall::tool(&order());
    let log = log_of(&all);
    model(pieces(0, "a", r#"{"city": "x"}"#, 3)).run(streamed()).middleware(all).await?;
    let expected = r#"{"city":"x"}"#;
    assert_eq!(log.lines(), [format!("a/0 {expected:?} {expected:?} true = {expected}")]);
    Ok(())
}

#[tokio::test]
async fn a_reply_that_is_not_streamed_or_that_a_layer_gives_has_one_update() -> Result<()> {
    let city = StreamToolCall::tool(&order()).key("city");
    let log = log_of(&city);
    model(pieces(0, "a", r#"{"city":"Bonn"}"#, 2)).run("go".into()).middleware(city.clone()).await?;
    let answers = Stack::<ChatModel>::builder().layer_fn("answers", |_: &ChatRequest, _, _: Next<'_, ChatModel>| {
        let message = Message::assistant("").with_call(ToolCall::new("b", "order", json!({"city": "Ulm"})));
        Box::pin(async move { Ok(ChatResponse::new(message)) })
    });
    model([]).run(streamed()).middleware(answers.build()).middleware(city).await?;
    assert_eq!(log.lines(), [r#"a/0 "Bonn" "Bonn" true = "Bonn""#, r#"b/0 "Ulm" "Ulm" true = "Ulm""#]);
    Ok(())
}

#[tokio::test]
async fn malformed_arguments_end_with_an_incomplete_update_and_a_missing_key_has_none() -> Result<()> {
    let city = StreamToolCall::tool(&order()).key("city");
    let log = log_of(&city);
    for (arguments, is_streamed) in
        [(r#"{"city":"Bonn"#, true), (r#"{"city":"Bonn"#, false), (r#"{"city":"A",]"#, true)]
    {
        let request = if is_streamed { streamed() } else { "go".into() };
        model(pieces(0, "a", arguments, 100)).run(request).middleware(city.clone()).await?;
    }
    model(pieces(0, "a", r#"{"items":[]}"#, 100)).run(streamed()).middleware(city.clone()).await?;
    let expected = [
        r#"a/0 "Bonn" "Bonn" false"#,
        r#"a/0 "" "Bonn" false"#,
        r#"a/0 "" "" false"#,
        r#"a/0 "A" "A" true = "A""#,
        r#"a/0 "" "A" false"#,
    ];
    assert_eq!(log.lines(), expected);
    Ok(())
}

#[tokio::test]
async fn calls_of_one_turn_and_of_several_runs_do_not_mix() -> Result<()> {
    let city = StreamToolCall::tool(&order()).key("city");
    let log = log_of(&city);
    let calls: Vec<_> =
        (0..5).map(|at| pieces(at, &format!("c{at}"), &format!(r#"{{"city":"{at}{at}{at}"}}"#), 2)).collect();
    let longest = calls.iter().map(Vec::len).max().unwrap_or(0);
    let other = Delta::tool_call(5, Some("x".into()), Some("other".into()), r#"{"city":"not this tool"}"#);
    let interleaved = (0..longest).flat_map(|at| calls.iter().filter_map(move |call| call.get(at).cloned()));
    model(interleaved.chain([other])).run(streamed()).middleware(city.clone()).await?;
    for at in 0..5 {
        let own: Vec<_> = log.lines().into_iter().filter(|line| line.starts_with(&format!("c{at}/{at} "))).collect();
        assert_eq!(own.last(), Some(&format!(r#"c{at}/{at} "" "{at}{at}{at}" true = "{at}{at}{at}""#)), "{own:?}");
        assert_eq!(own.len(), 3);
    }
    assert_eq!(log.lines().len(), 15);

    // Two runs of one model at the same time.
    let log = Log::default();
    let to = log.clone();
    city.emitter().observe("update", move |event: &ToolCallUpdate, _| {
        to.add(format!("{} {}", event.run_id, event.output()));
    })?;
    let slow = |city: &str| {
        let call = Reply::deltas(pieces(0, "a", &json!({ "city": city }).to_string(), 1));
        ScriptedModel::new("test").reply(call.slow(Duration::ZERO, Duration::from_millis(1)))
    };
    let (one, two) = (ChatModel::new(slow("aaaaaa"))?, ChatModel::new(slow("bbbbbb"))?);
    let runs = [one.run(streamed()).middleware(city.clone()), two.run(streamed()).middleware(city)];
    for run in futures_util::future::join_all(runs.map(IntoFuture::into_future)).await {
        run?;
    }
    let mut by_run = std::collections::BTreeMap::<String, Vec<String>>::new();
    for line in log.lines() {
        let (run, text) = line.split_once(' ').expect("an id");
        by_run.entry(run.to_owned()).or_default().push(text.to_owned());
    }
    let mut last: Vec<_> = by_run.values().filter_map(|texts| texts.last().cloned()).collect();
    last.sort();
    assert_eq!(last, ["aaaaaa", "bbbbbb"]);
    assert!(
        by_run.values().all(|texts| texts.iter().all(|text| texts.last().is_some_and(|last| last.starts_with(text))))
    );
    Ok(())
}

#[tokio::test(start_paused = true)]
async fn a_discarded_attempt_is_reported_and_the_next_one_begins_from_the_start() -> Result<()> {
    let city = StreamToolCall::tool(&order()).key("city");
    let log = log_of(&city);
    let first = Reply::deltas(pieces(0, "a", r#"{"city":"Bo"#, 4)).then_error(Error::new("cut").retryable(true));
    let second = Reply::deltas(pieces(0, "b", r#"{"city":"Ulm"}"#, 100));
    let model = ChatModel::new(ScriptedModel::new("test").reply(first).reply(second))?;
    model.run(streamed()).middleware(Retry::new()).middleware(city.clone()).await?;
    let expected = [r#"a/0 "Bo" "Bo" false"#, "discarded", r#"b/0 "Ulm" "Ulm" true = "Ulm""#];
    assert_eq!(log.lines(), expected);

    // A run that fails discards its updates as well.
    let first = Reply::deltas(pieces(0, "a", r#"{"city":"Bo"#, 4)).then_error(Error::new("cut"));
    let model = ChatModel::new(ScriptedModel::new("test").reply(first))?;
    model.run(streamed()).middleware(city).await.unwrap_err();
    assert_eq!(log.lines()[3..], [r#"a/0 "Bo" "Bo" false"#, "discarded"]);
    Ok(())
}

#[tokio::test]
async fn calls_that_a_layer_changed_are_discarded_and_emitted_as_they_are_now() -> Result<()> {
    let city = StreamToolCall::tool(&order()).key("city");
    let log = log_of(&city);
    let changes = |to: Value| {
        Stack::<ChatModel>::builder()
            .layer_fn("changes", move |request: &ChatRequest, _, next: Next<'_, ChatModel>| {
                let to = to.clone();
                Box::pin(async move {
                    let mut response = next.run(request).await?;
                    response.message = Message::assistant("");
                    if !to.is_null() {
                        response.message = response.message.with_call(ToolCall::new("b", "order", to));
                    }
                    Ok(response)
                })
            })
            .build()
    };
    for to in [json!({"city": "Ulm"}), Value::Null] {
        let of = model(pieces(0, "a", r#"{"city":"Bonn"}"#, 100));
        of.run(streamed()).middleware(changes(to)).middleware(city.clone()).await?;
    }
    let bonn = r#"a/0 "Bonn" "Bonn" true = "Bonn""#;
    assert_eq!(log.lines(), [bonn, "discarded", r#"b/0 "Ulm" "Ulm" true = "Ulm""#, bonn, "discarded"]);
    Ok(())
}

#[tokio::test]
async fn what_a_listener_changes_is_undone_before_the_next_update() -> Result<()> {
    let city = StreamToolCall::tool(&order()).key("city");
    city.emitter().on("update", |event: &mut ToolCallUpdate, _| {
        let mut other = event.clone();
        other.delta = "?".to_owned();
        other.call.index = 9;
        other.is_complete = true;
        *event = other;
    })?;
    let log = Log::default();
    let to = log.clone();
    let run = model(pieces(0, "a", r#"{"city":"Bonn"}"#, 10));
    let run = run.run(streamed()).middleware(city.clone());
    let run = run.on("middleware.stream_tool_call.update", move |event: &mut ToolCallUpdate, _| {
        to.add(format!("{} {} {}", event.delta, event.output(), event.is_complete));
    });
    run.await?;
    // The run's listener sees what the listener of the emitter left in the same emit.
    assert_eq!(log.lines().len(), 2);
    assert!(log.lines()[0].ends_with(" B true") || log.lines()[0].ends_with(" B false"), "{:?}", log.lines());
    assert!(log.lines()[1].contains(" Bonn true"), "{:?}", log.lines());
    Ok(())
}

#[tokio::test]
async fn an_agent_streams_the_calls_of_its_own_model_and_with_nested_those_of_all_models_below() -> Result<()> {
    let scripted = |id: &str, city: &str| {
        ScriptedModel::new(id).reply(Reply::calls([("order", json!({ "city": city }))])).text("done")
    };
    let calls = Reply::calls([("order", json!({"city": "Bonn"})), ("inner", json!({"task": "go"}))]);
    for (is_nested, expected) in [(false, vec!["Bonn"]), (true, vec!["Bonn", "Ulm"])] {
        let inner = Agent::builder("inner", ChatModel::new(scripted("inner", "Ulm"))?).tool(order()).build()?;
        let script = ScriptedModel::new("outer").reply(calls.clone()).text("done");
        let model = ChatModel::new(script.clone())?;
        let outer = Agent::builder("outer", model).tool(order()).tool(inner.as_tool("x")).build()?;
        let city = StreamToolCall::tool(&order()).key("city").force_streaming(true).nested(is_nested);
        let log = Log::default();
        let to = log.clone();
        city.emitter().observe("update", move |event: &ToolCallUpdate, _| {
            if event.is_complete {
                to.add(event.output());
            }
        })?;
        // Bound twice, it still applies once.
        outer.ask("go").middleware(city.clone()).middleware(city).await?;
        assert_eq!(log.lines(), expected);
        assert!(script.requests().iter().all(|request| request.options.stream == Some(true)));
    }
    Ok(())
}

#[tokio::test]
async fn streaming_is_forced_only_if_the_run_does_not_say_otherwise() -> Result<()> {
    let city = StreamToolCall::tool(&order()).key("city").force_streaming(true);
    for (asked, expected) in [(None, Some(true)), (Some(false), Some(false)), (Some(true), Some(true))] {
        let script = ScriptedModel::new("test").text("a");
        let mut request = ChatRequest::from("go");
        request.options.stream = asked;
        ChatModel::new(script.clone())?.run(request).middleware(city.clone()).await?;
        assert_eq!(script.requests()[0].options.stream, expected);
        let script = ScriptedModel::new("test").text("a");
        let mut options = ChatOptions::default();
        options.stream = asked;
        let agent = Agent::builder("a", ChatModel::new(script.clone())?).options(options).build()?;
        agent.ask("go").middleware(city.clone()).await?;
        assert_eq!(script.requests()[0].options.stream, expected);
    }
    Ok(())
}

#[derive(Deserialize, JsonSchema)]
#[expect(dead_code, reason = "only the schema is used")]
struct Spot {
    at: (f64, Item),
    notes: Vec<Value>,
}

#[tokio::test]
async fn a_member_of_a_tuple_is_an_argument() -> Result<()> {
    let mark = tool_fn("mark", "Marks", |_: Spot, _: RunContext| async { Ok("marked") })?;
    let arguments = json!({"at": [0.5, {"name": "Oslo", "parts": []}], "notes": [7]});
    for (key, expected) in [("/at/0", "0.5"), ("/at/1/name", "Oslo"), ("/notes/0", "7")] {
        let (stream, text) = (StreamToolCall::tool(&mark).key(key), Log::default());
        let to = text.clone();
        stream.emitter().on("update", move |update: &mut ToolCallUpdate, _| to.add(update.output()))?;
        let model = ChatModel::new(ScriptedModel::new("test").call("mark", arguments.clone()))?;
        model.run("go".into()).middleware(stream).await?;
        assert_eq!(text.lines(), [expected], "{key}");
    }
    for key in ["/at/2", "/at/x", "/at/0/x"] {
        let stream = StreamToolCall::tool(&mark).key(key);
        let error = model([]).run("go".into()).middleware(stream).await.unwrap_err();
        assert_eq!(error.to_string(), format!("the tool `mark` has no argument `{key}`: it has `at`, `notes`"));
    }
    Ok(())
}

#[tokio::test]
async fn a_key_that_the_tool_does_not_have_is_an_error_that_quotes_it() -> Result<()> {
    let table = [
        (
            "ctiy",
            "the tool `order` has no argument `ctiy`: it has `a.b`, `city`, `items`; write a path as `/items/0/name`",
        ),
        (
            "items.0",
            "the tool `order` has no argument `items.0`: it has `a.b`, `city`, `items`; write a path as `/items/0/name`",
        ),
        ("", "the tool `order` has no argument ``: it has `a.b`, `city`, `items`; write a path as `/items/0/name`"),
        ("/items/x", "the tool `order` has no argument `/items/x`: it has `a.b`, `city`, `items`"),
        ("/items/0/nmae", "the tool `order` has no argument `/items/0/nmae`: it has `a.b`, `city`, `items`"),
        ("/city/x", "the tool `order` has no argument `/city/x`: it has `a.b`, `city`, `items`"),
    ];
    for (key, expected) in table {
        let stream = StreamToolCall::tool(&order()).key(key);
        let error = model([]).run("go".into()).middleware(stream.clone()).await.unwrap_err();
        assert_eq!(error.to_string(), expected);
        let agent = Agent::builder("a", model([])).build()?;
        assert_eq!(agent.ask("go").middleware(stream).await.unwrap_err().to_string(), expected);
    }
    for key in ["/items/0/name", "/items/3/parts/0/parts/1/name", "a.b", "/a.b", "items"] {
        let stream = StreamToolCall::tool(&order()).key(key);
        model([Delta::Text("x".to_owned())]).run("go".into()).middleware(stream).await?;
    }
    Ok(())
}

#[tokio::test]
async fn under_a_redaction_no_update_has_the_secret() -> Result<()> {
    const SECRET: &str = "maria.updates@mailbox.org";
    for is_streamed in [true, false] {
        let city = StreamToolCall::tool(&order()).key("city");
        let log = log_of(&city);
        let root = Log::default();
        let to = root.clone();
        let observer =
            Emitter::root().observe("**.stream_tool_call.*", move |event: &dyn emitree_emitter::AnyEvent, _| {
                to.add(event.to_json().to_string());
            })?;
        let arguments = json!({ "city": format!("mail {SECRET} now") }).to_string();
        let of = model(pieces(0, "a", &arguments, 3));
        let request = if is_streamed { streamed() } else { "go".into() };
        of.run(request).middleware(for_tree(Redact::new())).middleware(city).await?;
        observer.off();
        for line in log.lines().into_iter().chain(root.lines()) {
            assert!(!line.contains("maria"), "{line}");
        }
        assert!(
            log.lines().last().is_some_and(|line| line.contains("mail [REDACTED:email] now\" true")),
            "{:?}",
            log.lines()
        );
    }
    Ok(())
}

/// Stages come first: the updates show what they left.
#[tokio::test]
async fn updates_show_what_the_stages_left() -> Result<()> {
    let city = StreamToolCall::tool(&order()).key("city");
    let log = log_of(&city);
    let upper = || {
        |chunks: &mut Chunks, _: &RunContext| {
            for delta in &mut chunks.deltas {
                if let Delta::ToolCall { arguments, .. } = delta {
                    *arguments = arguments.replace("bonn", "BONN");
                }
            }
            Ok(())
        }
    };
    let of = model(pieces(0, "a", r#"{"city":"bonn"}"#, 100));
    of.run(streamed()).chunks(upper).middleware(city).await?;
    assert_eq!(log.lines(), [r#"a/0 "BONN" "BONN" true = "BONN""#]);
    Ok(())
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]
    // 64 cases, each cut at every character.
    #[test]
    fn the_updates_of_any_text_add_up_to_the_value(city in "\\PC{0,12}|[\\\\\"\u{1f600}é\n]{0,8}", more in any::<i32>()) {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build().expect("a runtime");
        runtime.block_on(async {
            let stream = StreamToolCall::tool(&order()).key("city");
            let (log, ends) = (Log::default(), Log::default());
            let (to, end) = (log.clone(), ends.clone());
            stream.emitter().observe("update", move |event: &ToolCallUpdate, _| {
                to.add(event.delta.clone());
                assert_eq!(event.output(), to.lines().concat());
                if let Some(value) = &event.output_structured {
                    end.add(value.to_string());
                }
            }).expect("a listener");
            let arguments = json!({"items": [], "city": city, "a.b": more}).to_string();
            model(pieces(0, "a", &arguments, 1)).run(streamed()).middleware(stream).await.expect("a reply");
            assert_eq!(log.lines().concat(), city);
            assert_eq!(ends.lines(), [json!(city).to_string()]);
        });
    }
}
