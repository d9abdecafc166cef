//! `LargeResults`: large results are in a store, and the model reads them in parts.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use emitree_agent::past::Point;
use emitree_agent::values::{WriteValue, Written};
use emitree_agent::{
    AgentBuilder, AgentRun, ChatRequest, History, HookTest, HooksFn, How, Message, Reply, ScriptedModel, Session, Tool,
    ToolCall, ToolOutput, hooks_fn, tool_fn,
};
use emitree_agent_kit::built_in::{LargeResultFailed, LargeResultStored, LargeResults};
use emitree_middleware::values::{KeyValues, MemoryValues, ValueKey};
use emitree_runtime::{Error, Next, Result, RunContext, map_output};
use futures_core::future::BoxFuture;
use futures_util::future::try_join_all;
use serde_json::{Value, json};
use tokio::sync::Semaphore;

use super::bound::{Bound, restored};
use super::refused;
use crate::support::{Log, Text, agent, assert_valid, refuse_bad, results};

/// A tool that returns a text or JSON of this length: `text 10`.
fn big() -> Tool {
    tool_fn("big", "Returns much", |args: Text, _: RunContext| async move {
        let (kind, length) = args.text.split_once(' ').unwrap_or(("text", &args.text));
        let length: usize = length.parse()?;
        Ok(match kind {
            "json" => ToolOutput::new(vec!["x".repeat(length - 4)]),
            "error" => ToolOutput::error("e".repeat(length)),
            "answer" => ToolOutput::new("a".repeat(length)).answer(),
            _ => ToolOutput::new(alphabet(length)),
        })
    })
    .expect("a tool")
}

fn alphabet(length: usize) -> String {
    ('a'..='z').cycle().take(length).collect()
}

/// A model that calls `big`, and then answers.
fn calls_big(text: &str) -> ScriptedModel {
    ScriptedModel::new("test").call("big", json!({ "text": text })).text("done")
}

/// A model that calls `big`, reads a part of its result, and then answers.
fn reads(from: usize, bytes: usize) -> ScriptedModel {
    ScriptedModel::by("test", move |request: &ChatRequest| {
        let last = request.messages.last().and_then(|message| message.tool_results().next());
        match last {
            None => Reply::calls([("big", json!({"text": request.last_user_text()}))]),
            Some(result) => match result.response.get("result_id") {
                Some(id) => Reply::calls([("read_result", json!({"id": id, "from": from, "bytes": bytes}))]),
                None => Reply::text("done"),
            },
        }
    })
}

fn with_big(script: &ScriptedModel) -> AgentBuilder {
    agent(script).tool(big())
}

/// Logs the events, without ids: `stored big 11` and `failed <error>`.
fn logging(large: LargeResults, log: &Log) -> Result<LargeResults> {
    let to = log.clone();
    large.emitter().on("stored", move |event: &mut LargeResultStored, _| {
        to.add(format!("stored {} {}", event.tool, event.bytes));
    })?;
    let to = log.clone();
    large.emitter().on("failed", move |event: &mut LargeResultFailed, _| to.add(format!("failed {}", event.error)))?;
    Ok(large)
}

async fn stored(store: &MemoryValues) -> usize {
    store.keys(None).await.expect("keys").len()
}

/// Returns the first result in a history.
fn first_result(session: &Session) -> Value {
    let history = assert_valid(session);
    history.messages().iter().flat_map(|message| message.tool_results()).next().expect("a result").response.clone()
}

/// Returns the id of a result that is in the history of a session.
fn id_of(session: &Session) -> String {
    first_result(session)["result_id"].as_str().expect("an id").to_owned()
}

/// Calls `read_result` in a run of a session. Returns the result.
async fn read_in(session: &Session, large: LargeResults, id: &str, from: usize, bytes: usize) -> Result<String> {
    let script = ScriptedModel::new("test").call("read_result", json!({"id": id, "from": from, "bytes": bytes}));
    let answer = with_big(&script.text("done")).with(large).build()?.ask("read").session(session).await?;
    Ok(results(&answer.messages).remove(0))
}

#[tokio::test]
async fn a_result_is_stored_if_it_has_more_bytes_than_the_limit() -> Result<()> {
    for kind in ["text", "json", "error"] {
        for (length, is_stored) in [(99, false), (100, false), (101, true)] {
            let (store, session, log) = (MemoryValues::new(), Session::new(), Log::default());
            let large = logging(LargeResults::over_bytes(100).in_store(store.clone()), &log)?;
            let script = calls_big(&format!("{kind} {length}"));
            Bound::TO_AGENT.ask(with_big(&script), large, &session).await?;
            let result = first_result(&session);
            assert_eq!(result.get("result_id").is_some(), is_stored, "{kind} {length}: {result}");
            assert_eq!(stored(&store).await, usize::from(is_stored));
            assert_eq!(log.lines(), if is_stored { vec!["stored big 101"] } else { vec![] });
            let is_error = session.history().messages()[2].tool_results().next().expect("a result").is_error;
            assert_eq!(is_error, kind == "error");
        }
    }
    Ok(())
}

#[tokio::test]
async fn the_model_gets_head_tail_size_and_an_id_and_reads_parts_however_the_middleware_is_bound() -> Result<()> {
    for bound in Bound::each_way() {
        let (session, script) = (Session::new(), ScriptedModel::new("test"));
        let script = script.call("big", json!({"text": "text 200"})).text("done");
        let store = MemoryValues::new();
        let large = || LargeResults::over_bytes(80).in_store(store.clone());
        bound.ask(with_big(&script), large(), &session).await?;
        let (whole, shown) = (alphabet(200), first_result(&session));
        assert_eq!(shown["head"], whole[..20], "{bound:?}");
        assert_eq!((&shown["tail"], &shown["bytes"]), (&json!(whole[190..]), &json!(200)));
        assert!(script.requests()[0].tools.iter().any(|tool| tool.name == "read_result"));
        let id = id_of(&session);
        let read = read_in(&session, large(), &id, 50, 10).await?;
        let expected = json!({"text": whole[50..60], "next": 60, "bytes": 200});
        assert_eq!(serde_json::from_str::<Value>(&read).expect("JSON"), expected);
    }
    Ok(())
}

#[tokio::test]
async fn parts_that_follow_each_other_are_the_whole_and_no_character_is_cut() -> Result<()> {
    let (store, session) = (MemoryValues::new(), Session::new());
    let text = "aß語🦀e\u{301}".repeat(3);
    let key = ValueKey::new(["large_results", "x"])?;
    store.write(&key, &json!(text)).await?;
    for size in 1..=8 {
        let (mut from, mut joined) = (Some(0), String::new());
        while let Some(at) = from {
            let large = LargeResults::over_bytes(100).in_store(store.clone());
            let read: Value = serde_json::from_str(&read_in(&session, large, "x", at, size).await?).expect("JSON");
            joined += read["text"].as_str().expect("text");
            from = read["next"].as_u64().map(|next| next as usize);
        }
        assert_eq!(joined, text, "parts of {size} bytes");
    }
    // Parts at fixed distances share no character either, if a character is not larger than a part.
    let mut joined = String::new();
    for at in (0..text.len()).step_by(5) {
        let large = LargeResults::over_bytes(100).in_store(store.clone());
        let read: Value = serde_json::from_str(&read_in(&session, large, "x", at, 5).await?).expect("JSON");
        joined += read["text"].as_str().expect("text");
    }
    assert_eq!(joined, text);
    // The head and the tail of every limit are cut between characters too.
    for limit in 1..text.len() {
        let test = HookTest::new(&LargeResults::over_bytes(limit))?;
        let result = emitree_agent::CallResult::new(
            ToolCall::new("c", "big", json!({})),
            How::Executed,
            ToolOutput::new(text.clone()),
        );
        let shown = test.result(result).await?.output.content;
        let [head, tail] = ["head", "tail"].map(|part| shown[part].as_str().expect("text"));
        assert!(text.starts_with(head) && text.ends_with(tail), "{shown}");
        assert!(head.len() <= limit / 4 && tail.len() <= limit / 8, "{shown}");
    }
    Ok(())
}

#[tokio::test]
async fn no_part_is_larger_than_the_limit() -> Result<()> {
    let session = Session::new();
    let agent = with_big(&reads(3, usize::MAX)).with(LargeResults::over_bytes(100)).build()?;
    let answer = agent.ask("text 300").session(&session).await?;
    let read: Value = serde_json::from_str(&results(&answer.messages)[1]).expect("JSON");
    assert_eq!(read, json!({"text": alphabet(103)[3..], "next": 103, "bytes": 300}));
    Ok(())
}

#[tokio::test]
async fn a_missing_id_and_a_part_that_does_not_exist_are_errors_that_quote_them() -> Result<()> {
    let (store, session) = (MemoryValues::new(), Session::new());
    store.write(&ValueKey::new(["large_results", "x"])?, &json!("text")).await?;
    let no_part = |part: &str| {
        format!(
            "!`{part}` is no part of the result `x`: `from` must be less than its size of 4 bytes, and `bytes` at least 1"
        )
    };
    let table = [
        ("y", 0, 1, "!there is no result `y`: it was removed, or the id is wrong".to_owned()),
        ("x", 4, 1, no_part("from: 4, bytes: 1")),
        ("x", 0, 0, no_part("from: 0, bytes: 0")),
    ];
    for (id, from, bytes, expected) in table {
        let large = LargeResults::over_bytes(100).in_store(store.clone());
        assert_eq!(read_in(&session, large, id, from, bytes).await?, expected);
    }
    let empty = read_in(&session, LargeResults::over_bytes(100).in_store(store.clone()), "", 0, 1).await?;
    assert!(empty.starts_with("!segment 1 of the key `[\"large_results\", \"\"]` is empty"), "{empty}");
    Ok(())
}

#[tokio::test]
async fn a_restored_session_reads_its_results_from_the_same_store() -> Result<()> {
    let (store, session) = (MemoryValues::new(), Session::new());
    let large = || LargeResults::over_bytes(100).in_store(store.clone());
    Bound::TO_AGENT.ask(with_big(&calls_big("text 101")), large(), &session).await?;
    let session = restored(&session);
    let read = read_in(&session, large(), &id_of(&session), 90, 100).await?;
    assert!(read.contains(&alphabet(101)[90..]), "{read}");
    assert_eq!(stored(&store).await, 1);
    let other = LargeResults::over_bytes(100).in_store(MemoryValues::new());
    assert!(read_in(&session, other, &id_of(&session), 0, 1).await?.starts_with("!there is no result"));
    Ok(())
}

/// A hook that removes all messages but the last before each model call, as a summary does.
fn forgets(needed: &'static str) -> HooksFn {
    hooks_fn("forgets", move |hooks| {
        hooks.on_state(move |history, _| {
            if history.messages().last().is_some_and(|message| message.text().contains(needed)) {
                *history = History::try_from(vec![Message::user("forgotten")])?;
            }
            Ok(())
        });
    })
}

// A17
#[tokio::test]
async fn results_whose_id_no_message_has_any_more_are_removed_at_the_end_of_a_run() -> Result<()> {
    let (store, session) = (MemoryValues::new(), Session::new());
    let script = ScriptedModel::by("test", |request: &ChatRequest| match request.last_user_text().as_str() {
        "big" if request.messages.last().is_some_and(|last| last.tool_results().count() == 0) => {
            Reply::calls([("big", json!({"text": "text 101"})), ("big", json!({"text": "text 102"}))])
        }
        text => Reply::text(text.to_owned()),
    });
    let agent = with_big(&script).values(store.clone()).with(LargeResults::over_bytes(100)).with(forgets("forget"));
    let agent = agent.build()?;
    agent.ask("big").session(&session).await?;
    agent.ask("hello").session(&session).await?;
    assert_eq!(stored(&store).await, 2);
    // An id in any text keeps its result.
    let first = id_of(&session);
    let session = restored(&session);
    agent.ask("forget").session(&session).await?;
    assert_eq!(stored(&store).await, 0);

    let session = Session::new();
    agent.ask("big").session(&session).await?;
    assert_ne!(id_of(&session), first);
    let kept = id_of(&session);
    let summary = History::try_from(vec![Message::user(format!("the result {kept} matters"))])?;
    let summary = hooks_fn("summary", move |hooks| {
        let summary = summary.clone();
        hooks.on_state(move |history, _| *history = summary.clone());
    });
    agent.ask("hello").with(summary).session(&session).await?;
    assert_eq!(store.keys(None).await?, [ValueKey::new(["large_results", &kept])?]);
    Ok(())
}

// A17, A29
#[tokio::test]
async fn results_that_are_older_than_a_fork_stay_for_the_other_session() -> Result<()> {
    for origin_forgets in [true, false] {
        let (store, session) = (MemoryValues::new(), Session::new());
        let script = ScriptedModel::by("test", |request: &ChatRequest| match request.last_user_text().as_str() {
            "big" if request.messages.last().is_some_and(|last| last.tool_results().count() == 0) => {
                Reply::calls([("big", json!({"text": "text 101"}))])
            }
            text => Reply::text(text.to_owned()),
        });
        let agent = with_big(&script).values(store.clone()).with(LargeResults::over_bytes(100)).with(forgets("forget"));
        let agent = agent.build()?;
        agent.ask("big").session(&session).await?;
        let fork = session.fork(Point::Now, "b").await?;
        let forgetting = if origin_forgets { &session } else { &fork };
        agent.ask("forget").session(forgetting).await?;
        assert_eq!(stored(&store).await, 1, "the other session has it");
        // Newer results are removed as ever.
        agent.ask("big").session(forgetting).await?;
        assert_eq!(stored(&store).await, 2);
        agent.ask("forget").session(forgetting).await?;
        assert_eq!(stored(&store).await, 1);
    }
    Ok(())
}

// A17
#[tokio::test]
async fn the_results_of_a_discarded_attempt_and_of_a_run_without_a_session_are_removed() -> Result<()> {
    let (store, session) = (MemoryValues::new(), Session::new());
    let script = ScriptedModel::new("test")
        .call("big", json!({"text": "text 101"}))
        .text("bad")
        .call("big", json!({"text": "text 102"}))
        .text("good");
    let large = || LargeResults::over_bytes(100).in_store(store.clone());
    let agent = with_big(&script).with(large()).middleware(map_output(refuse_bad)).build()?;
    agent.ask("go").session(&session).max_middleware_retries(1).await?;
    assert_eq!(first_result(&session)["bytes"], 102);
    assert_eq!(store.keys(None).await?, [ValueKey::new(["large_results", &id_of(&session)])?]);

    let answer = with_big(&reads(0, 5)).with(large()).build()?.ask("text 101").await?;
    assert!(results(&answer.messages)[1].contains("abcde"));
    assert_eq!(stored(&store).await, 1);
    Ok(())
}

/// A hook that waits at `tool.result`, behind `LargeResults`.
fn waits(entered: &Arc<Semaphore>, go_on: &Arc<Semaphore>) -> HooksFn {
    let (entered, go_on) = (Arc::clone(entered), Arc::clone(go_on));
    hooks_fn("waits", move |hooks| {
        let (entered, go_on) = (Arc::clone(&entered), Arc::clone(&go_on));
        hooks.on_result_async(move |_, _| {
            let (entered, go_on) = (Arc::clone(&entered), Arc::clone(&go_on));
            Box::pin(async move {
                entered.add_permits(1);
                go_on.acquire().await?.forget();
                Ok(())
            })
        });
    })
}

// A17
#[tokio::test]
async fn a_run_that_is_dropped_leaves_no_result_that_the_history_does_not_have() -> Result<()> {
    let (store, session) = (MemoryValues::new(), Session::new());
    let [entered, go_on, ended] = [(); 3].map(|()| Arc::new(Semaphore::new(0)));
    let large = LargeResults::over_bytes(100).in_store(store.clone());
    let agent = with_big(&calls_big("text 101")).with(large).with(waits(&entered, &go_on)).build()?;
    let to = Arc::clone(&ended);
    let at_end = move |ctx: &RunContext| {
        let to = Arc::clone(&to);
        ctx.on_end(move |_, _| to.add_permits(1));
        Ok(())
    };
    let run = agent.ask("go").session(&session).middleware(at_end).into_future();
    tokio::select! {
        _ = run => panic!("the run waits"),
        permit = entered.acquire() => permit?.forget(),
    }
    ended.acquire().await?.forget();
    let unchecked = "the tool was called, but the run ended before its result was checked: it may have had effects";
    assert_eq!(first_result(&session), unchecked);
    assert_eq!(stored(&store).await, 0);
    Ok(())
}

// A17
#[tokio::test]
async fn a_run_keeps_the_results_that_another_run_of_its_session_is_adding() -> Result<()> {
    let (store, session) = (MemoryValues::new(), Session::new());
    let [entered, go_on] = [(); 2].map(|()| Arc::new(Semaphore::new(0)));
    let large = || LargeResults::over_bytes(100).in_store(store.clone());
    let slow = with_big(&calls_big("text 101")).with(large()).with(waits(&entered, &go_on)).build()?;
    let quick = with_big(&calls_big("text 102")).with(large()).build()?;
    let both = async {
        entered.acquire().await?.forget();
        quick.ask("quick").session(&session).await?;
        go_on.add_permits(1);
        Ok(())
    };
    let slow = async { slow.ask("slow").session(&session).await.map(drop) };
    futures_util::future::try_join(slow, both).await?;
    assert_eq!(stored(&store).await, 2);
    let restored = restored(&session);
    let last = assert_valid(&session).messages().iter().flat_map(|message| message.tool_results()).last().cloned();
    let id = last.expect("a result").response["result_id"].as_str().expect("an id").to_owned();
    assert!(read_in(&restored, large(), &id, 0, 5).await?.contains("abcde"));
    Ok(())
}

/// A store that fails as long as the flag is set.
#[derive(Debug)]
struct Flaky(MemoryValues, Arc<AtomicBool>);

impl Flaky {
    fn check(&self) -> Result<()> {
        if self.1.load(Ordering::SeqCst) { Err(Error::new("no disk")) } else { Ok(()) }
    }
}

impl KeyValues for Flaky {
    fn read<'a>(&'a self, key: &'a ValueKey) -> BoxFuture<'a, Result<Option<Value>>> {
        Box::pin(async move {
            self.check()?;
            self.0.read(key).await
        })
    }

    fn write<'a>(&'a self, key: &'a ValueKey, value: &'a Value) -> BoxFuture<'a, Result<()>> {
        Box::pin(async move {
            self.check()?;
            self.0.write(key, value).await
        })
    }

    fn remove<'a>(&'a self, key: &'a ValueKey) -> BoxFuture<'a, Result<()>> {
        Box::pin(async move {
            self.check()?;
            self.0.remove(key).await
        })
    }

    fn keys<'a>(&'a self, prefix: Option<&'a ValueKey>) -> BoxFuture<'a, Result<Vec<ValueKey>>> {
        self.0.keys(prefix)
    }
}

// A17
#[tokio::test]
async fn if_the_store_fails_the_model_gets_the_whole_result_and_a_removal_is_tried_again() -> Result<()> {
    let (fails, store, log) = (Arc::new(AtomicBool::new(true)), MemoryValues::new(), Log::default());
    let large = LargeResults::over_bytes(100).in_store(Flaky(store.clone(), Arc::clone(&fails)));
    let large = logging(large, &log)?;
    let session = Session::new();
    Bound::TO_AGENT.ask(with_big(&calls_big("text 101")), large.clone(), &session).await?;
    assert_eq!(first_result(&session), alphabet(101));
    // The end of the run tries to remove what may have been stored.
    assert_eq!(log.lines(), ["failed no disk", "failed no disk"]);

    fails.store(false, Ordering::SeqCst);
    let session = Session::new();
    Bound::TO_AGENT.ask(with_big(&calls_big("text 102")), large.clone(), &session).await?;
    fails.store(true, Ordering::SeqCst);
    assert_eq!(read_in(&session, large.clone(), &id_of(&session), 0, 1).await?, "!no disk");
    let forget = || with_big(&ScriptedModel::new("test").text("done")).with(large.clone()).with(forgets(""));
    forget().build()?.ask("forget").session(&session).await?;
    assert_eq!((stored(&store).await, log.lines().last().cloned()), (1, Some("failed no disk".to_owned())));
    fails.store(false, Ordering::SeqCst);
    forget().build()?.ask("forget").session(&restored(&session)).await?;
    assert_eq!(stored(&store).await, 0);
    Ok(())
}

/// A middleware with a layer around writes that returns a result without calling `next`.
fn instead(result: impl Fn() -> Result<Written> + Clone + Send + Sync + 'static) -> HooksFn {
    hooks_fn("instead", move |hooks| {
        let result = result.clone();
        hooks.values_write(|stack| {
            stack.layer_fn("instead", move |_, _, _: Next<'_, WriteValue>| {
                let result = result();
                Box::pin(async move { result })
            })
        });
    })
}

#[tokio::test]
async fn in_the_agents_store_layers_may_skip_and_deny_the_write_and_end_the_run() -> Result<()> {
    let layers = [
        (instead(|| Ok(Written::Skipped)), "a layer of `values.write` skipped the result"),
        (instead(|| Err(Error::denied("vault", "it is full"))), "denied by vault: it is full"),
    ];
    for (layer, error) in layers {
        let (log, session) = (Log::default(), Session::new());
        let large = logging(LargeResults::over_bytes(100), &log)?;
        Bound::TO_AGENT.ask(with_big(&calls_big("text 101")).with(layer), large, &session).await?;
        assert_eq!(first_result(&session), alphabet(101));
        assert_eq!(log.lines()[0], format!("failed {error}"));
    }
    let halts = instead(|| Err(Error::halted("vault", "closed")));
    let agent = with_big(&calls_big("text 101")).with(halts).with(LargeResults::over_bytes(100)).build()?;
    assert!(agent.ask("go").await.unwrap_err().is_halted());
    Ok(())
}

#[tokio::test]
async fn an_answer_of_a_tool_is_not_replaced() -> Result<()> {
    let agent = with_big(&calls_big("answer 101")).with(LargeResults::over_bytes(100)).build()?;
    assert_eq!(agent.ask("go").await?.text(), "a".repeat(101));
    Ok(())
}

#[tokio::test]
async fn a_hundred_runs_at_once_read_their_own_results() -> Result<()> {
    let store = MemoryValues::new();
    let agent = with_big(&reads(0, 100)).values(store.clone()).spawn_tools(true).with(LargeResults::over_bytes(100));
    let agent = agent.build()?;
    let sessions: Vec<_> = (0..100).map(|_| Session::new()).collect();
    let runs = sessions.iter().enumerate().map(|(n, session)| agent.ask(format!("text {}", 101 + n)).session(session));
    let answers = try_join_all(runs.map(IntoFuture::into_future)).await?;
    for (n, answer) in answers.iter().enumerate() {
        let read: Value = serde_json::from_str(&results(&answer.messages)[1]).expect("JSON");
        assert_eq!(read["bytes"], 101 + n);
    }
    assert_eq!(stored(&store).await, 100);
    Ok(())
}

#[tokio::test]
async fn twice_on_one_agent_and_a_limit_of_0_are_errors() -> Result<()> {
    let twice = with_big(&calls_big("text 1")).with(LargeResults::over_bytes(1)).with(LargeResults::over_bytes(2));
    assert!(twice.build().unwrap_err().to_string().contains("`large_results` twice"));
    let error = refused(LargeResults::over_bytes(0)).await;
    let expected =
        "`LargeResults::over_bytes(0)` would store every result and show nothing of it: allow at least 1 byte";
    assert_eq!(error, expected);
    Ok(())
}
