//! Sessions that are stored and restored.

use std::cell::Cell;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use emitree_agent::{
    AgentOutput, AgentRun, Delta, History, HooksFn, Message, Part, Reply, Role, ScriptedModel, Session, ToolCall,
    ToolResult, hooks_fn, tool_fn,
};
use emitree_runtime::{Error, Result, RunContext, map_output};
use futures_util::future::join_all;
use proptest::collection::vec;
use proptest::prelude::*;
use schemars::JsonSchema;
use serde::{Deserialize, Deserializer, Serialize, Serializer};
use serde_json::{Value, json};

use crate::support::{Log, agent, refuse_bad, results, texts};

#[derive(Deserialize, JsonSchema)]
struct Nothing {}

/// A middleware that counts model calls, and adds the count to the system prompt.
fn counter(id: &'static str) -> HooksFn {
    hooks_fn(id, move |hooks| {
        let count = hooks.state::<u32>();
        hooks.prompt(move |ctx| {
            count.with(ctx, |count| {
                *count += 1;
                format!("{id} {count}")
            })
        });
    })
}

#[tokio::test]
async fn a_stored_session_has_the_state_of_each_middleware_and_keeps_unused_state() -> Result<()> {
    let script = ScriptedModel::new("test").text("one").text("two");
    let session = Session::new();
    agent(&script).with(counter("a")).with(counter("b")).build()?.ask("go").session(&session).await?;
    let stored = serde_json::to_value(&session)?;
    assert_eq!((&stored["format"], &stored["state"]), (&json!(1), &json!({"a": 1, "b": 1})));

    let restored: Session = serde_json::from_value(stored)?;
    agent(&script).with(counter("a")).build()?.ask("again").session(&restored).await?;
    assert_eq!(script.requests()[1].system.as_deref(), Some("a 2"));
    assert_eq!(serde_json::to_value(&restored)?["state"], json!({"a": 2, "b": 1}));
    assert_eq!(texts(&restored), ["go", "one", "again", "two"]);
    // The restored session and the first session are independent.
    assert_eq!(serde_json::to_value(&session)?["state"], json!({"a": 1, "b": 1}));
    Ok(())
}

#[tokio::test]
async fn a_session_that_was_written_by_hand_is_read_and_a_stored_one_is_not_much_larger() -> Result<()> {
    let script = ScriptedModel::new("test").call("shout", json!({"text": "a"})).text("one");
    let session = Session::new();
    agent(&script).with(counter("a")).build()?.ask("go").session(&session).await?;
    let stored = serde_json::to_value(&session)?;
    let by_hand = json!({"format": 1, "messages": stored["messages"], "state": stored["state"]});
    let more = stored.to_string().len() - by_hand.to_string().len();
    assert!(more <= 500, "{more} bytes more: {stored}");
    let restored: Session = serde_json::from_value(by_hand)?;
    assert_eq!((restored.history(), restored.state("a")?), (session.history(), Some(2)));
    Ok(())
}

#[tokio::test]
async fn the_error_for_a_session_that_cannot_be_stored_or_restored_names_the_cause() -> Result<()> {
    let bad = [
        (
            json!({"format": 4, "messages": []}),
            "the session is stored in the format 4, but only the format 1 can be read",
        ),
        (json!({"messages": []}), "missing field `format`"),
        (
            json!({"format": 1, "messages": [{"role": "user", "parts": []}]}),
            "at `spans[0]`: message 0 with the role `user` is empty",
        ),
    ];
    for (stored, expected) in bad {
        assert_eq!(serde_json::from_value::<Session>(stored).unwrap_err().to_string(), expected);
    }
    // A later format may have other fields, and a file may be cut.
    let later = r#"{"format": 4, "id": "x", "history": {"messages": []}}"#;
    let error = serde_json::from_str::<Session>(later).unwrap_err().to_string();
    assert!(error.starts_with("the session is stored in the format 4, but only the format 1"), "{error}");
    let whole = serde_json::to_string(&Session::from(History::try_from(vec![Message::user("x")])?))?;
    let error = serde_json::from_str::<Session>(&whole[..whole.len() / 2]).unwrap_err().to_string();
    assert!(error.contains("EOF while parsing") && error.contains("at line 1 column"), "{error}");
    let stored = json!({"format": 1, "messages": [], "state": {"a": "many"}});
    let run = agent(&ScriptedModel::new("test").text("x")).with(counter("a")).build()?;
    let error = run.ask("go").session(&serde_json::from_value(stored)?).await.unwrap_err().to_string();
    assert!(
        error.contains("the stored state `a` cannot be deserialized: invalid type: string \"many\", expected u32"),
        "{error}"
    );

    // A map with non-string keys has no JSON form.
    let session = Session::new();
    let keeps = hooks_fn("pairs", |hooks| {
        let pairs = hooks.state::<std::collections::BTreeMap<(u8, u8), u8>>();
        hooks.on_state(move |_, ctx| pairs.with(ctx, |pairs| *pairs = [((1, 2), 3)].into()));
    });
    agent(&ScriptedModel::new("test").text("x")).with(keeps).build()?.ask("go").session(&session).await?;
    let error = serde_json::to_value(&session).unwrap_err().to_string();
    assert_eq!(error, "the state `pairs` cannot be stored: key must be a string");

    // A session cannot be stored inside a closure that uses one of its state values.
    let session = Session::new();
    let log = Log::default();
    let (stored, to) = (session.clone(), log.clone());
    let stores = hooks_fn("early", move |hooks| {
        let count = hooks.state::<u32>();
        let (stored, to) = (stored.clone(), to.clone());
        hooks.on_state(move |_, ctx| {
            count.with(ctx, |_| to.add(serde_json::to_value(&stored).unwrap_err().to_string()))
        });
    });
    agent(&ScriptedModel::new("test").text("x")).with(stores).build()?.ask("go").session(&session).await?;
    assert_eq!(
        log.lines(),
        ["the state `early` is borrowed by a closure on this thread: read or store the session after the closure"]
    );
    assert_eq!(serde_json::to_value(&session)?["state"], json!({"early": 0}));
    Ok(())
}

#[tokio::test]
async fn a_copy_of_a_state_can_be_read_outside_of_runs_also_from_a_stored_session() -> Result<()> {
    let script = ScriptedModel::new("test").text("x").text("y");
    let agent = agent(&script).with(counter("a")).build()?;
    let session = Session::new();
    agent.ask("go").session(&session).await?;
    assert_eq!(session.state::<u32>("a")?, Some(1));
    assert_eq!(session.state::<u32>("b")?, None);
    let wrong = session.state::<String>("a").unwrap_err().to_string();
    assert_eq!(wrong, "the state `a` has another type: invalid type: integer `1`, expected a string");
    let stored: Session = serde_json::from_value(serde_json::to_value(&session)?)?;
    assert_eq!(serde_json::to_value(&stored)?["state"], json!({"a": 1}), "reading adds no state");
    assert_eq!((stored.state::<u32>("a")?, stored.state::<u64>("a")?), (Some(1), Some(1)));
    // The copy does not change, and does not replace the value.
    agent.ask("go").session(&stored).await?;
    assert_eq!(stored.state::<u32>("a")?, Some(2));
    Ok(())
}

/// A value that panics in the function that `PANICS` names. Each test runs on its own thread, so tests do not share
/// `PANICS`.
#[derive(Debug, PartialEq)]
struct Panics(u32);

thread_local! {
    static PANICS: Cell<&'static str> = const { Cell::new("") };
}

fn panic_in(place: &str) {
    assert!(PANICS.get() != place, "a bug in {place}");
}

impl Default for Panics {
    fn default() -> Self {
        panic_in("default");
        Self(0)
    }
}

impl Serialize for Panics {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        panic_in("serialize");
        self.0.serialize(serializer)
    }
}

impl<'de> Deserialize<'de> for Panics {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        panic_in("deserialize");
        u32::deserialize(deserializer).map(Self)
    }
}

impl Drop for Panics {
    fn drop(&mut self) {
        if !std::thread::panicking() {
            panic_in("drop");
        }
    }
}

// A8
#[tokio::test]
async fn a_state_value_that_panics_ends_its_run_and_blocks_no_other_run() -> Result<()> {
    let counts = hooks_fn("counts", |hooks| {
        let count = hooks.state::<Panics>();
        hooks.on_state(move |_, ctx| count.with(ctx, |count| count.0 += 1));
    });
    let script = ScriptedModel::by("test", |_| Reply::text("so"));
    let agent = agent(&script).with(counts).with(counter("other")).build()?;
    let session = Session::new();
    // Each run panics in a different function, and the next run finds the state unchanged.
    for (place, expected) in [("default", 1), ("serialize", 2), ("deserialize", 3)] {
        let session = match place {
            "deserialize" => serde_json::from_value(serde_json::to_value(&session)?)?,
            _ => session.clone(),
        };
        PANICS.set(place);
        let error = agent.ask("go").session(&session).await.unwrap_err().to_string();
        PANICS.set("");
        assert!(error.contains(&format!("a bug in {place}")), "{error}");
        agent.ask("go").session(&session).await?;
        let state = serde_json::to_value(&session)?["state"].clone();
        assert_eq!(state["counts"], expected, "{place}: {state}");
    }

    // The values of a discarded attempt are dropped after the values from before the run have been restored.
    PANICS.set("drop");
    let first = AtomicBool::new(true);
    let retry = map_output(
        move |_: &mut AgentOutput, _: &RunContext| {
            if first.swap(false, Ordering::Relaxed) { Err(Error::retry("again")) } else { Ok(()) }
        },
    );
    let run = agent.ask("go").session(&session).max_middleware_retries(1).middleware(retry);
    let error = run.await.unwrap_err().to_string();
    PANICS.set("");
    assert!(error.contains("a bug in drop"), "{error}");
    assert_eq!(serde_json::to_value(&session)?["state"]["counts"], 2);
    Ok(())
}

// A8
#[test]
fn a_stored_session_keeps_the_data_of_providers() -> Result<()> {
    let mut call = ToolCall::new("a", "shout", json!({"text": "hi"}));
    call.extra = Some(json!({"server": "s", "thought_signature": "AKIA\u{0}\"ü", "n": [1.5, null, {"a": {}}]}));
    let reasoning = Part::reasoning("Hm.", Some(json!([{"data": "x"}])));
    let asks = Message::new(Role::Assistant, [reasoning, Part::ToolCall(call)]);
    let session = Session::new();
    session.extend([asks, Message::tool([ToolResult::new("a", "HI")])])?;
    let stored = serde_json::to_string(&session)?;
    assert_eq!(serde_json::from_str::<Session>(&stored)?.history(), session.history());
    let stored: Value = serde_json::from_str(&stored)?;
    assert_eq!(serde_json::from_value::<Session>(stored.clone())?.history(), session.history());

    // A session that is written by hand needs none.
    let parts = json!([
        {"type": "reasoning", "content": "Hm."},
        {"type": "tool_call", "id": "a", "name": "shout", "arguments": {"text": "hi"}},
    ]);
    let result = json!([{"type": "tool_call_response", "id": "a", "response": "HI"}]);
    let by_hand = json!({"format": 1, "messages": [
        {"role": "assistant", "parts": parts}, {"role": "tool", "parts": result},
    ]});
    let history = serde_json::from_value::<Session>(by_hand)?.history();
    let call = ToolCall::new("a", "shout", json!({"text": "hi"}));
    assert_eq!(history.messages()[0].parts, [Part::reasoning("Hm.", None), Part::ToolCall(call)]);
    assert_eq!(history.messages()[1], session.history().messages()[1]);

    // Data that could not be read again is left out.
    let deep = (0..65).fold(json!(0), |value, _| json!([value]));
    let message = Message::new(Role::Assistant, [Part::reasoning("Hm.", Some(deep))]);
    let restored: Message = serde_json::from_str(&serde_json::to_string(&message)?)?;
    assert_eq!(restored.parts, [Part::reasoning("Hm.", None)]);
    let error = serde_json::from_value::<Part>(json!({"type": "reasoning", "content": "", "extra": [123]}));
    assert_eq!(
        error.unwrap_err().to_string(),
        "`extra` is not the bytes of JSON: EOF while parsing an object at line 1 column 1"
    );
    Ok(())
}

// A1, A8
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_session_that_another_thread_stores_during_runs_is_valid_each_time() -> Result<()> {
    let script = ScriptedModel::by("test", |request| match request.messages.last() {
        Some(message) if message.role == Role::User => Reply::calls([("shout", json!({"text": "a"}))]),
        _ => Reply::text("so"),
    });
    let agent = agent(&script).with(counter("a")).build()?;
    let session = Session::new();
    let (shared, is_done) = (session.clone(), Arc::new(AtomicBool::new(false)));
    let done = Arc::clone(&is_done);
    let stores = std::thread::spawn(move || {
        let mut turns = 0;
        while !done.load(Ordering::Acquire) {
            let text = serde_json::to_string(&shared).expect("JSON");
            let stored = serde_json::from_str::<Session>(&text).expect("a valid session").history().messages().len();
            assert!(stored >= turns, "{stored} messages after {turns}");
            turns = stored;
        }
    });
    for _ in 0..50 {
        let runs = [agent.ask("go").session(&session), agent.ask("go").session(&session)];
        for answer in join_all(runs.map(IntoFuture::into_future)).await {
            assert_eq!(answer?.messages.len(), 4);
        }
    }
    is_done.store(true, Ordering::Release);
    stores.join().expect("no panic");
    assert_eq!(session.history().messages().len(), 400);
    assert_eq!(serde_json::to_value(&session)?["state"]["a"], 200);
    Ok(())
}

// A8
#[tokio::test]
async fn a_session_with_values_of_any_depth_can_be_restored() -> Result<()> {
    let nested = |levels: usize| format!("{}{}", "[".repeat(levels), "]".repeat(levels));
    // The deepest value that `serde_json` can read.
    let deepest = nested(127);
    let returned = deepest.clone();
    let deep = tool_fn("deep", "Returns a deep value", move |_: Nothing, _: RunContext| {
        let value = serde_json::from_str::<Value>(&returned);
        async move { Ok(value?) }
    });
    let of = |arguments: String| {
        let (id, name) = (Some("a".to_owned()), Some("deep".to_owned()));
        Reply::deltas([Delta::tool_call(0, id, name, arguments)])
    };
    let ignored = |levels: usize| of(format!(r#"{{"ignored":{}}}"#, nested(levels - 1)));
    let script = ScriptedModel::new("test")
        .reply(ignored(64))
        .reply(ignored(65))
        .reply(ignored(127))
        .reply(ignored(10_000))
        .reply(of(r#"{"ignored":"#.to_owned()))
        .text("so");
    let session = Session::new();
    let answer = agent(&script).tool(deep).build()?.ask("go").session(&session).await?;
    let too_deep = "!the arguments of `deep` are nested too deeply: at most 64 levels are allowed";
    let cut = "!the arguments of `deep` are not JSON: EOF while parsing a value at line 1 column 11";
    assert_eq!(results(&answer.messages), [&*deepest, too_deep, too_deep, too_deep, cut]);

    let stored = serde_json::to_string(&json!({"users": [{"session": session}]}))?;
    let restored: Value = serde_json::from_str(&stored)?;
    let restored: Session = serde_json::from_value(restored["users"][0]["session"].clone())?;
    assert_eq!(restored.history(), session.history());
    let text = serde_json::to_string(&session)?;
    assert_eq!(serde_json::from_str::<Session>(&text)?.history(), session.history());
    Ok(())
}

/// A run of a conversation.
#[derive(Clone, Debug)]
enum Asks {
    Text,
    Tool,
    /// The model calls a tool that does not exist.
    UnknownTool,
    /// The script has no answer, so the run fails.
    Failure,
    /// Output middleware requests a second attempt.
    SecondAttempt,
}

/// Executes the runs of a conversation. If `stores` is `true`, the session is stored and restored between the runs.
async fn converse(runs: &[Asks], stores: bool) -> (Value, Vec<Option<String>>) {
    let mut session = Session::new();
    let mut prompts = Vec::new();
    for (at, asks) in runs.iter().enumerate() {
        let script = ScriptedModel::new("test");
        let script = match asks {
            Asks::Text => script.text("so"),
            Asks::Tool => script.call("shout", json!({"text": at.to_string()})).text("so"),
            Asks::UnknownTool => script.call("whisper", json!({})).text("so"),
            Asks::Failure => script,
            Asks::SecondAttempt => script.text("bad").text("so"),
        };
        // Each run has one of three middlewares, so that some runs do not use all values.
        let built = agent(&script).with(counter(["a", "b", "c"][at % 3])).build().expect("an agent");
        let _ = built
            .ask(at.to_string())
            .session(&session)
            .max_middleware_retries(1)
            .middleware(map_output(refuse_bad))
            .await;
        prompts.extend(script.requests().into_iter().map(|request| request.system));
        if stores {
            let text = serde_json::to_string(&session).expect("JSON");
            session = serde_json::from_str(&text).expect("a session");
            assert_eq!(serde_json::to_string(&session).expect("JSON"), text);
        }
    }
    let mut stored = serde_json::to_value(&session).expect("JSON");
    // These ids are random.
    stored["id"] = json!(null);
    stored["runs"].as_array_mut().into_iter().flatten().for_each(|run| run["id"] = json!(null));
    stored["table"].as_array_mut().into_iter().flatten().for_each(|turn| turn["at"] = json!(null));
    (stored, prompts)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    // A8
    #[test]
    fn storing_and_restoring_a_session_between_runs_does_not_change_later_runs(
        runs in vec(prop_oneof![
            Just(Asks::Text), Just(Asks::Tool), Just(Asks::UnknownTool), Just(Asks::Failure), Just(Asks::SecondAttempt)
        ], 0..8),
    ) {
        let runtime = tokio::runtime::Builder::new_current_thread().build().expect("a runtime");
        let (kept, stored) = runtime.block_on(async { (converse(&runs, false).await, converse(&runs, true).await) });
        prop_assert_eq!(kept, stored);
    }
}
