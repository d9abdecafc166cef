//! The gate: the calls that it receives, and the effects of interrupts and failures.

use std::sync::Mutex;
use std::sync::mpsc::channel;
use std::time::Duration;

use emitree_agent::{
    AgentRun, Arguments, Delta, HookTest, HooksFn, Reply, ScriptedModel, Session, Tool, ToolCall, ToolOutput, hooks_fn,
    tool_fn,
};
use emitree_runtime::{
    AbortHandle, Error, Interrupt, Next, Phase, Result, RunContext, Runnable, Stack, layer_fn, runnable_fn,
    wait_for_ends,
};
use serde_json::{Value, json};

use crate::support::{Log, Text, agent, assert_valid, fail, results};

fn calls() -> ScriptedModel {
    ScriptedModel::new("test").calls([("shout", json!({"text": "a"})), ("shout", json!({"text": "b"}))]).text("done")
}

#[tokio::test]
async fn calls_that_cannot_be_executed_do_not_reach_the_gate() -> Result<()> {
    let malformed = Delta::tool_call(3, Some("3".to_owned()), Some("shout".to_owned()), "{");
    let calls = [("sing", json!({})), ("shout", json!({"text": 7})), ("shout", json!({"text": "b"}))];
    let mut message = emitree_agent::Message::assistant("");
    for (i, (name, arguments)) in calls.into_iter().enumerate() {
        message = message.with_call(ToolCall::new(i.to_string(), name, arguments));
    }
    let mut deltas = Delta::of_response(emitree_agent::ChatResponse::new(message));
    deltas.push(malformed);
    let script = ScriptedModel::new("test").reply(Reply::deltas(deltas)).text("done");
    let asked = Log::default();
    let to = asked.clone();
    let gate = hooks_fn("gate", move |hooks| {
        let (batch, each) = (to.clone(), to.clone());
        hooks.on_gate(move |calls, _| calls.open().for_each(|gated| batch.add(gated.call.id.clone())));
        hooks.on_gate_each(move |gated, _| each.add(gated.call.id.clone()));
    });
    let answer = agent(&script).with(gate).build()?.ask("go").await?;
    assert_eq!(asked.lines(), ["2", "2"]);
    let expected = [
        "!there is no tool `sing`; available tools: `shout`",
        "!the arguments of `shout` are invalid: at `text`: invalid type: integer `7`, expected a string",
        "B",
        "!the arguments of `shout` are not JSON: EOF while parsing an object at line 1 column 1",
    ];
    assert_eq!(results(&answer.messages), expected);
    Ok(())
}

// A5
#[tokio::test]
async fn a_call_that_a_gate_changes_is_checked_again_and_keeps_its_id() -> Result<()> {
    let edits = hooks_fn("edits", |hooks| {
        hooks.on_gate(|batch, _| {
            let mut open = batch.open();
            let first = open.next().expect("a call");
            first.call = ToolCall::new("another", "shout", json!({"text": 1}));
            open.next().expect("a call").call.name = "sing".to_owned();
        });
    });
    let (session, ids) = (Session::new(), Log::default());
    let to = ids.clone();
    let reads = hooks_fn("reads", move |hooks| {
        let to = to.clone();
        hooks.on_result(move |result, _| to.add(&result.call.id));
    });
    let answer = agent(&calls()).with(edits).with(reads).build()?.ask("go").session(&session).await?;
    assert_eq!(ids.lines(), answer.tool_calls().map(|call| call.id.as_str()).collect::<Vec<_>>());
    let expected = [
        "!the arguments of `shout` are invalid: at `text`: invalid type: integer `1`, expected a string",
        "!there is no tool `sing`; available tools: `shout`",
    ];
    assert_eq!(results(assert_valid(&session).messages()), expected);
    Ok(())
}

#[tokio::test]
async fn the_history_keeps_the_calls_of_the_model_and_result_hooks_receive_the_executed_calls() -> Result<()> {
    let edits = |tells: bool| {
        hooks_fn("edits", move |hooks| {
            hooks.on_resolve(|call, _| {
                Ok((call.name == "yell").then(|| ToolCall::new("", "shout", call.arguments.clone())))
            });
            hooks.on_gate_each(|gated, _| gated.call.arguments = json!({"text": "edited"}).into());
            hooks.on_result(move |result, _| {
                let (name, arguments) = (&result.call.name, &result.call.arguments);
                let executed = format!("{} of {name}({arguments})", result.output.text());
                if tells {
                    result.output.content = executed.into();
                }
            });
        })
    };
    for (tells, expected) in [(false, "EDITED"), (true, r#"EDITED of shout({"text":"edited"})"#)] {
        let script = ScriptedModel::new("test").call("yell", json!({"text": "a"})).text("done");
        let session = Session::new();
        let answer = agent(&script).with(edits(tells)).build()?.ask("go").session(&session).await?;
        let written = [ToolCall::new("0", "yell", json!({"text": "a"}))];
        assert_eq!(answer.tool_calls().cloned().collect::<Vec<_>>(), written);
        // The next request has the call as the model wrote it.
        let sent: Vec<_> =
            script.requests()[1].messages.iter().flat_map(|message| message.tool_calls()).cloned().collect();
        assert_eq!(sent, written);
        assert_eq!(results(assert_valid(&session).messages()), [expected]);
    }
    Ok(())
}

#[tokio::test]
async fn an_interrupt_of_a_batch_gate_is_the_verdict_of_all_open_calls() -> Result<()> {
    let asks = hooks_fn("asks", |hooks| {
        hooks.on_gate(|batch, _| {
            batch.open().next().expect("a call").answer(ToolOutput::new("known"));
            Err(Error::interrupted(Interrupt::new("approval", json!({"all": true}))))
        });
    });
    let session = Session::new();
    let error = agent(&calls()).with(asks).build()?.ask("go").session(&session).await.unwrap_err();
    let interrupt = error.interrupt().expect("an interrupt");
    assert_eq!(interrupt.kind, "agent.batch");
    let pending = interrupt.data["pending"].as_array().expect("a list");
    assert_eq!(pending.len(), 1);
    assert_eq!(pending[0]["call"]["arguments"]["text"], "b");
    assert_eq!(pending[0]["interrupt"]["kind"], "approval");
    assert_eq!(results(assert_valid(&session).messages()), ["known", "!not executed: interrupted"]);
    Ok(())
}

/// A middleware with one layer in this phase, which calls the tool if `calls_tool` is set. If `waits` is set, the layer
/// then waits until the run ends; otherwise it interrupts the call.
fn ends_call(phase: Phase, calls_tool: bool, waits: bool) -> HooksFn {
    hooks_fn("ends", move |hooks| {
        let layer = layer_fn("ends", move |arguments: &Value, _, next: Next<'_, Tool>| {
            Box::pin(async move {
                if calls_tool {
                    assert!(next.run(arguments).await.is_err());
                }
                if waits {
                    std::future::pending().await
                } else {
                    Err(Error::interrupted(Interrupt::new("approval", json!(null))))
                }
            })
        });
        hooks.tool_call(|stack| stack.layer_in(phase, layer));
    })
}

// A1
#[tokio::test(start_paused = true)]
async fn a_call_without_a_result_is_answered_with_whether_its_function_had_been_called() -> Result<()> {
    let (interrupted, stopped) = ("!not executed: interrupted", "!not executed: the run was stopped");
    let [interrupted_at_work, stopped_at_work] = ["interrupted", "the run was stopped"]
        .map(|end| format!("!{end} while the tool was running: it may have had effects"));
    let table = [
        (Phase::Guard, false, [interrupted, stopped]),
        (Phase::Guard, true, [&interrupted_at_work, &stopped_at_work]),
        (Phase::Observe, false, [interrupted, stopped]),
        (Phase::Observe, true, [&interrupted_at_work, &stopped_at_work]),
        (Phase::Retry, false, [interrupted, stopped]),
        (Phase::Retry, true, [&interrupted_at_work, &stopped_at_work]),
        (Phase::Transform, false, [interrupted, stopped]),
        (Phase::Transform, true, [&interrupted_at_work, &stopped_at_work]),
    ];
    for (phase, calls_tool, expected) in table {
        for (waits, spawns) in [(false, false), (false, true), (true, false), (true, true)] {
            let script = ScriptedModel::new("test").call("fails", json!({"text": "a"}));
            let agent = agent(&script).tool(fail("fails", || Error::new("broken")));
            let agent = agent.with(ends_call(phase, calls_tool, waits)).spawn_tools(spawns).build()?;
            let session = Session::new();
            let ended = agent.ask("go").session(&session).timeout(Duration::from_secs(1)).await.unwrap_err();
            assert_eq!((ended.is_timed_out(), ended.is_interrupted()), (waits, !waits), "{ended:?}");
            let expected = expected[usize::from(waits)];
            assert_eq!(results(assert_valid(&session).messages()), [expected], "{phase:?}, spawned: {spawns}");
        }
    }
    Ok(())
}

// A1
#[tokio::test(start_paused = true)]
async fn a_call_has_begun_when_a_middleware_of_its_tool_has_started_a_run_below() -> Result<()> {
    for (starts, expected) in [
        (false, "!not executed: the run was stopped"),
        (true, "!the run was stopped while the tool was running: it may have had effects"),
    ] {
        let replaces = layer_fn("replaces", move |_: &Value, _, _: Next<'_, Tool>| {
            Box::pin(async move {
                if starts {
                    runnable_fn("instead", |(): (), _: RunContext| async { Ok(()) }).run(()).await?;
                }
                std::future::pending().await
            })
        });
        let tool = fail("fails", || Error::new("broken")).middleware(Stack::builder().retry(replaces).build());
        let script = ScriptedModel::new("test").call("fails", json!({"text": "a"}));
        let (agent, session) = (agent(&script).tool(tool).build()?, Session::new());
        let ended = agent.ask("go").session(&session).timeout(Duration::from_secs(1)).await.unwrap_err();
        assert!(ended.is_timed_out(), "{ended:?}");
        assert_eq!(results(assert_valid(&session).messages()), [expected]);
    }
    Ok(())
}

// A1
#[tokio::test]
async fn a_call_that_aborts_its_agent_is_answered_with_it_may_have_had_effects() -> Result<()> {
    for spawns in [false, true] {
        let abort = AbortHandle::new();
        let handle = abort.clone();
        let aborts = fail("aborts", move || {
            handle.abort("enough");
            Error::new("broken")
        });
        let script = ScriptedModel::new("test").call("aborts", json!({"text": "a"}));
        let (agent, session) = (agent(&script).tool(aborts).spawn_tools(spawns).build()?, Session::new());
        let ended = agent.ask("go").session(&session).abort_on(&abort).await.unwrap_err();
        assert!(ended.is_aborted(), "{ended:?}");
        let expected = "!the run was stopped while the tool was running: it may have had effects";
        assert_eq!(results(assert_valid(&session).messages()), [expected], "spawned: {spawns}");
    }
    Ok(())
}

// A1
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_spawned_call_that_the_history_states_as_not_executed_is_never_executed() -> Result<()> {
    let ((enter, entered), (open, opened)) = (channel(), channel());
    let opened = Mutex::new(opened);
    // The guard blocks its thread, so the call is about to begin when the run is dropped.
    let waits = layer_fn("waits", move |arguments: &Value, _, next: Next<'_, Tool>| {
        enter.send(()).expect("the test waits");
        opened.lock().expect("no panic").recv().expect("the test opens");
        Box::pin(next.run(arguments))
    });
    let waits = Mutex::new(Some(waits));
    let guard = hooks_fn("guard", move |hooks| {
        let waits = waits.lock().expect("no panic").take();
        hooks.tool_call(|stack| stack.layer_in(Phase::Guard, waits.expect("installed once")));
    });
    let (called, session) = (Log::default(), Session::new());
    let to = called.clone();
    let tool = tool_fn("mark", "Marks", move |args: Text, _: RunContext| {
        to.add(args.text);
        async { Ok("marked") }
    })?;
    let script = ScriptedModel::new("test").call("mark", json!({"text": "a"}));
    let agent = agent(&script).tool(tool).with(guard).spawn_tools(true).build()?;
    let of_run = session.clone();
    let task = tokio::spawn(async move { agent.ask("go").session(&of_run).await });
    tokio::task::spawn_blocking(move || entered.recv()).await.expect("no panic").expect("the guard is entered");
    task.abort();
    task.await.expect_err("the run is dropped");
    assert_eq!(results(assert_valid(&session).messages()), ["!not executed: the run was stopped"]);
    open.send(()).expect("the guard waits");
    wait_for_ends(Duration::from_secs(60)).await;
    assert!(called.lines().is_empty());
    Ok(())
}

#[tokio::test]
async fn a_halt_of_a_result_hook_takes_precedence_over_an_interrupt_of_a_call() -> Result<()> {
    let both = hooks_fn("both", |hooks| {
        hooks.on_gate(|batch, _| {
            batch.open().next().expect("a call").ask::<bool>(Interrupt::new("approval", json!(null)))?;
            Ok(())
        });
        hooks.on_result(|_, _| Err(Error::halted("both", "enough")));
    });
    let session = Session::new();
    let error = agent(&calls()).with(both).build()?.ask("go").session(&session).await.unwrap_err();
    assert!(error.is_halted(), "{error:?}");
    let unchecked = "!the tool was called, but the run ended before its result was checked: it may have had effects";
    assert_eq!(results(assert_valid(&session).messages()), ["!not executed: interrupted", unchecked]);
    Ok(())
}

#[tokio::test]
async fn a_result_hook_cannot_move_a_result_to_another_call() -> Result<()> {
    let moves = hooks_fn("moves", |hooks| {
        hooks.on_result(|result, _| result.call.id = "x".to_owned());
        hooks.on_stop(|end, _| {
            assert!(end.results.iter().map(|result| result.call.id.as_str()).eq(["0", "1"]) || end.results.is_empty());
            Ok(false)
        });
    });
    let session = Session::new();
    agent(&calls()).with(moves).build()?.ask("go").session(&session).await?;
    assert_eq!(results(assert_valid(&session).messages()), ["A", "B"]);
    Ok(())
}

// A3
#[tokio::test]
async fn a_panic_of_a_gate_denies_the_calls_that_it_was_deciding_on() -> Result<()> {
    let batch = hooks_fn("batch", |hooks| {
        hooks.on_gate(|batch, _| {
            batch.open().next().expect("a call").answer(ToolOutput::new("known"));
            assert!(batch.open().next().is_none(), "boom");
        });
    });
    let each = hooks_fn("each", |hooks| {
        hooks.on_gate_each(|gated, _| assert!(gated.call.arguments != Arguments::Json(json!({"text": "b"})), "boom"));
    });
    for (gate, expected) in
        [(batch, ["known", "!denied by batch: panicked: boom"]), (each, ["A", "!denied by each: panicked: boom"])]
    {
        let session = Session::new();
        let answer = agent(&calls()).with(gate).build()?.ask("go").session(&session).await?;
        assert_eq!(answer.text(), "done");
        assert_eq!(results(assert_valid(&session).messages()), expected);
    }
    Ok(())
}

// A3
#[tokio::test]
async fn a_panic_of_a_result_hook_becomes_the_result_and_later_hooks_and_results_follow() -> Result<()> {
    let panics = hooks_fn("panics", |hooks| {
        hooks.on_result(|result, _| assert!(result.output.text() != "A", "boom"));
        hooks.on_result(|result, _| result.output.content = format!("seen: {}", result.output.text()).into());
    });
    let session = Session::new();
    let answer = agent(&calls()).with(panics).build()?.ask("go").session(&session).await?;
    assert_eq!(answer.text(), "done");
    assert_eq!(results(assert_valid(&session).messages()), ["!seen: panicked: boom", "seen: B"]);
    Ok(())
}

// A1
#[tokio::test]
async fn a_gate_cannot_move_a_verdict_to_another_call() -> Result<()> {
    let swaps = hooks_fn("swaps", |hooks| {
        hooks.on_gate(|batch, _| {
            let mut open = batch.open();
            let (first, second) = (open.next().expect("a call"), open.next().expect("a call"));
            first.answer(ToolOutput::new("for the first"));
            std::mem::swap(first, second);
        });
    });
    let session = Session::new();
    agent(&calls()).with(swaps).build()?.ask("go").session(&session).await?;
    assert_eq!(results(assert_valid(&session).messages()), ["for the first", "B"]);
    Ok(())
}

// A1
#[tokio::test]
async fn a_gate_that_exchanges_the_batch_denies_its_calls_and_does_not_end_the_run() -> Result<()> {
    let test = HookTest::new(&hooks_fn("none", |_| {}))?;
    for others in [Vec::new(), vec![ToolCall::new("0", "shout", json!({"text": "x"})); 3]] {
        let other = Mutex::new(Some(test.gate(others).await?));
        let exchanges = hooks_fn("exchanges", move |hooks| {
            let other = Mutex::new(other.lock().expect("no panic").take());
            hooks.on_gate(move |batch, _| {
                let other = other.lock().expect("no panic").take();
                if let Some(mut other) = other {
                    std::mem::swap(batch, &mut other);
                }
            });
        });
        let session = Session::new();
        let answer = agent(&calls()).with(exchanges).build()?.ask("go").session(&session).await?;
        assert_eq!(answer.text(), "done");
        let expected = "!denied by exchanges: the gate removed the call; it can only edit calls and decide on them";
        assert_eq!(results(assert_valid(&session).messages()), [expected; 2]);
    }
    Ok(())
}
