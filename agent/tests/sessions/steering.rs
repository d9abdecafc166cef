//! Messages to a running agent: `steer`, `follow_up` and `interject` (A15).

mod interleavings;

use std::future::pending;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};

use emitree_agent::steering::SendError;
use emitree_agent::{
    Agent, AgentInput, AgentRun, ChatModel, HooksFn, Message, MessageAdded, Place, Reply, ScriptedModel, Session, Tool,
    ToolCall, hooks_fn, tool_fn,
};
use emitree_middleware::{Approval, Runs};
use emitree_runtime::{Error, Next, Phase, Result, RunContext, for_tree, layer_fn, map_output};
use serde_json::json;

use crate::support::{Log, Text, agent, fail, refuse_bad, results, texts};

const NOT_EXECUTED: &str = "!not executed: the user interjected";

fn undelivered(session: &Session) -> Vec<String> {
    session.undelivered().iter().map(|message| message.text()).collect()
}

/// A tool that sends a message to a session while it is at work.
fn sending(send: impl Fn() + Send + Sync + 'static) -> Tool {
    let send = Arc::new(send);
    tool_fn("send", "Sends", move |_: Text, _: RunContext| {
        let send = Arc::clone(&send);
        async move {
            send();
            Ok("sent")
        }
    })
    .expect("a tool")
}

#[tokio::test]
async fn a_message_enters_at_the_next_model_call_and_a_follow_up_when_the_loop_would_end() -> Result<()> {
    let session = Session::new();
    let user = session.clone();
    let send = sending(move || {
        user.follow_up("shorter").expect("it is sent");
        user.steer("in metres").expect("it is sent");
        user.steer("please").expect("it is sent");
    });
    let script = ScriptedModel::new("test").call("send", json!({"text": ""})).text("8,849 m").text("8.8 km");
    let log = Log::default();
    let agent = agent(&script).tool(send).build()?;
    let to = log.clone();
    let answer = agent
        .ask("how high?")
        .session(&session)
        .on("message", move |added: &mut MessageAdded, _| to.add(added.message.text()))
        .await?;
    assert_eq!(answer.text(), "8.8 km");
    let expected = ["how high?", "", "", "in metres", "please", "8,849 m", "shorter", "8.8 km"];
    assert_eq!(texts(&session), expected);
    assert_eq!(log.lines(), expected);
    assert_eq!(answer.messages.iter().map(|message| message.text()).collect::<Vec<_>>(), expected);
    assert_eq!(script.requests().iter().map(|request| request.messages.len()).collect::<Vec<_>>(), [1, 5, 7]);
    assert!(undelivered(&session).is_empty());
    Ok(())
}

#[tokio::test]
async fn messages_wait_for_the_next_run_and_enter_after_its_input() -> Result<()> {
    let session = Session::new();
    session.steer("first")?;
    session.interject("second")?;
    session.follow_up("third")?;
    assert_eq!(undelivered(&session), ["first", "second", "third"]);
    let script = ScriptedModel::new("test").text("a").text("b").text("c");
    let agent = agent(&script).build()?;
    agent.ask("go").session(&session).await?;
    assert_eq!(texts(&session), ["go", "first", "second", "a", "third", "b"]);
    // A run needs no input if messages wait.
    session.steer("fourth")?;
    agent.ask(AgentInput::default()).session(&session).await?;
    assert_eq!(texts(&session)[6..], ["fourth", "c"]);
    // A follow-up alone has no conversation that could end.
    let empty = Session::new();
    empty.follow_up("x")?;
    let error = agent.ask(AgentInput::default()).session(&empty).await.expect_err("nothing to ask").to_string();
    assert_eq!(error, "the input of the agent `tester` has no messages");
    assert_eq!(undelivered(&empty), ["x"]);
    Ok(())
}

#[tokio::test]
async fn a_message_that_arrives_after_the_last_model_call_starts_another_round() -> Result<()> {
    for place in [Place::TurnAction, Place::TurnStop, Place::RunEnd] {
        let session = Session::new();
        let (user, is_sent) = (session.clone(), AtomicBool::new(false));
        let send = Arc::new(move || {
            if !is_sent.swap(true, Ordering::Relaxed) {
                user.steer("one more").expect("it is sent");
            }
        });
        let late = hooks_fn("late", move |hooks| {
            let send = Arc::clone(&send);
            match place {
                Place::TurnAction => drop(hooks.on_action(move |_, _| send())),
                Place::TurnStop => drop(hooks.on_stop(move |_, _| {
                    send();
                    Ok(true)
                })),
                _ => drop(hooks.on_end(move |_, _| send())),
            }
        });
        let script = ScriptedModel::new("test").text("a").text("b");
        let answer = agent(&script).build()?.ask("go").session(&session).with(late).await?;
        assert_eq!(answer.text(), "b", "{place}");
        assert_eq!(texts(&session), ["go", "a", "one more", "b"], "{place}");
    }
    Ok(())
}

#[tokio::test]
async fn steering_resets_max_steps_and_is_not_limited_as_rounds_of_run_end_are() -> Result<()> {
    let session = Session::new();
    let count = AtomicU32::new(0);
    // Each round makes two calls of a tool, and then answers.
    let script = ScriptedModel::by("test", move |_| match count.fetch_add(1, Ordering::Relaxed) % 3 {
        2 => Reply::text("done"),
        _ => Reply::calls([("shout", json!({"text": "a"}))]),
    });
    let agent = agent(&script).max_steps(3).build()?;
    (0..200).try_for_each(|at| session.follow_up(format!("message {at}")))?;
    let answer = agent.ask("go").session(&session).await?;
    assert_eq!(answer.turns, 603);
    assert!(undelivered(&session).is_empty());
    let said = texts(&session).into_iter().filter(|text| text.starts_with("message"));
    assert!(said.eq((0..200).map(|at| format!("message {at}"))));
    Ok(())
}

#[tokio::test]
async fn hooks_change_and_remove_messages_a_halt_drops_them_and_a_failure_leaves_them_in_the_session() -> Result<()> {
    let hook = hooks_fn("filter", |hooks| {
        hooks.on_inject(|messages, _| {
            messages.retain(|message| message.text() != "remove");
            match messages.iter().find(|message| ["halt", "fail"].contains(&&*message.text())) {
                Some(message) if message.text() == "halt" => Err(Error::halted("filter", "not now")),
                Some(_) => Err(Error::new("broken")),
                None => {
                    messages.iter_mut().for_each(|message| *message = Message::user(format!("<{}>", message.text())));
                    Ok(())
                }
            }
        });
    });
    let script = ScriptedModel::new("test").text("a").text("b");
    let agent = agent(&script).with(hook).build()?;
    let session = Session::new();
    for text in ["one", "remove", "two"] {
        session.steer(text)?;
    }
    agent.ask("go").session(&session).await?;
    assert_eq!(texts(&session), ["go", "<one>", "<two>", "a"]);

    session.steer("halt")?;
    session.steer("with it")?;
    let answer = agent.ask("again").session(&session).await?;
    assert_eq!(answer.warnings, ["dropped messages to the run: 2 (halted by filter: not now)"]);
    assert_eq!(texts(&session)[4..], ["again", "b"]);
    assert!(undelivered(&session).is_empty());

    session.steer("fail")?;
    let error = agent.ask("more").session(&session).await.expect_err("the hook fails");
    assert_eq!((error.to_string().as_str(), &error.details()["by"]), ("broken", &"filter.steer.inject".into()));
    assert_eq!(undelivered(&session), ["fail"]);
    assert_eq!(texts(&session)[6..], ["more"]);
    Ok(())
}

#[tokio::test]
async fn a_discarded_attempt_gives_its_messages_to_the_next_one() -> Result<()> {
    let session = Session::new();
    session.steer("one")?;
    session.follow_up("two")?;
    let script = ScriptedModel::new("test").text("a").text("bad").text("c").text("d");
    let agent = agent(&script).max_middleware_retries(1).build()?;
    let answer = agent.ask("go").session(&session).middleware(map_output(refuse_bad)).await?;
    assert_eq!(answer.text(), "d");
    assert_eq!(texts(&session), ["go", "one", "c", "two", "d"]);
    assert!(undelivered(&session).is_empty());
    Ok(())
}

#[test]
fn a_message_that_cannot_be_sent_comes_back() {
    let session = Session::new();
    for at in 0..1_000 {
        session.steer(at.to_string()).expect("there is room");
    }
    let error = session.interject("too many").expect_err("it is full");
    assert_eq!(error.to_string(), "the message was not sent: 1000 messages wait in the session, which is the limit");
    assert_eq!(error.into_message(), Message::user("too many"));
    let call = Message::assistant("").with_call(ToolCall::new("1", "pay", json!({})));
    let error = Session::new().steer(call.clone()).expect_err("a call without a result");
    let text = "the message was not sent: message 0 calls `pay` (id `1`), but no result follows";
    assert_eq!(error.to_string(), text);
    assert!(matches!(&error, SendError::Invalid { .. }));
    assert_eq!(error.into_message(), call);
}

/// A guard that waits forever in front of the tool `shout`.
fn waiting_guard(log: &Log) -> HooksFn {
    let log = log.clone();
    hooks_fn("waits", move |hooks| {
        let log = log.clone();
        hooks.tool_call(|stack| {
            stack.layer_in(
                Phase::Guard,
                layer_fn("waits", move |input, ctx, next: Next<'_, Tool>| {
                    let log = log.clone();
                    Box::pin(async move {
                        if ctx.name() == "shout" {
                            log.add("waits");
                            pending::<()>().await;
                        }
                        next.run(input).await
                    })
                }),
            )
        });
    })
}

fn three_calls() -> ScriptedModel {
    let calls = ["send", "shout", "alone"].map(|name| (name, json!({"text": "a"})));
    ScriptedModel::new("test").calls(calls).text("done")
}

/// An exclusive tool, which waits for the calls before it.
fn alone(log: &Log) -> Tool {
    let log = log.clone();
    let tool = tool_fn("alone", "Works alone", move |_: Text, _: RunContext| {
        log.add("alone");
        async { Ok("done") }
    });
    tool.expect("a tool").exclusive()
}

#[tokio::test]
async fn an_interjection_stops_calls_that_have_not_begun_and_no_others() -> Result<()> {
    for spawns in [false, true] {
        let (session, log) = (Session::new(), Log::default());
        let user = session.clone();
        let send = tool_fn("send", "Sends", move |_: Text, _: RunContext| {
            let user = user.clone();
            async move {
                // The guard in front of `shout` is waiting when the user interjects.
                tokio::task::yield_now().await;
                user.interject("stop searching").expect("it is sent");
                tokio::task::yield_now().await;
                Ok("sent")
            }
        });
        let to = log.clone();
        let observer = hooks_fn("observer", move |hooks| {
            let (results, skipped) = (to.clone(), to.clone());
            hooks.on_result(move |result, _| results.add(format!("{} {:?}", result.call.name, result.how)));
            hooks.on_skip(move |calls, _| skipped.add(format!("skipped {:?}", names(calls))));
        });
        let agent = agent(&three_calls()).tool(send).tool(alone(&log)).spawn_tools(spawns).with(waiting_guard(&log));
        let answer = agent.with(observer).build()?.ask("go").session(&session).await?;
        assert_eq!(results(&answer.messages), ["sent", NOT_EXECUTED, NOT_EXECUTED]);
        let hooks = ["send Executed", "shout Skipped", "alone Skipped", r#"skipped ["shout", "alone"]"#];
        assert_eq!(log.lines()[1..], hooks, "spawns {spawns}");
        assert_eq!(log.lines()[0], "waits");
        assert_eq!(texts(&session)[5..], ["stop searching", "done"]);
        assert!(undelivered(&session).is_empty());
    }
    Ok(())
}

fn names(calls: &[ToolCall]) -> Vec<&str> {
    calls.iter().map(|call| call.name.as_str()).collect()
}

#[tokio::test]
async fn an_interjection_ends_the_wait_for_an_approval_and_in_a_gate() -> Result<()> {
    for waits_in_a_gate in [false, true] {
        let (session, log) = (Session::new(), Log::default());
        let (user, asked) = (session.clone(), log.clone());
        let ask = Arc::new(move || {
            asked.add("asked");
            user.interject("never mind").expect("it is sent");
        });
        let from_gate = Arc::clone(&ask);
        let gate = hooks_fn("gate", move |hooks| {
            let ask = Arc::clone(&from_gate);
            hooks.on_gate_async(move |batch, _| {
                let ask = Arc::clone(&ask);
                Box::pin(async move {
                    // A gate that is left may have changed its batch.
                    batch.open().for_each(|gated| gated.call.name = "changed".to_owned());
                    if waits_in_a_gate {
                        ask();
                        pending::<()>().await;
                    }
                    batch.open().for_each(|gated| gated.call.name = "shout".to_owned());
                    Ok(())
                })
            });
        });
        let approval = Approval::by(move |_| {
            let ask = Arc::clone(&ask);
            async move {
                ask();
                pending().await
            }
        });
        let script = ScriptedModel::new("test").call("shout", json!({"text": "a"})).text("done");
        let agent = agent(&script).with(gate).build()?;
        let run = agent.ask("go").session(&session).middleware(for_tree(approval.runs(Runs::named("shout"))));
        let answer = run.await?;
        assert_eq!(results(&answer.messages), [NOT_EXECUTED], "gate {waits_in_a_gate}");
        assert_eq!(answer.tool_calls().next().expect("a call").name, "shout");
        assert_eq!(texts(&session)[3..], ["never mind", "done"]);
        assert_eq!(log.lines(), ["asked"]);
    }
    Ok(())
}

#[tokio::test]
async fn an_interjection_during_a_model_call_stops_all_calls_of_its_reply() -> Result<()> {
    let session = Session::new();
    let user = session.clone();
    let count = AtomicU32::new(0);
    let script = ScriptedModel::by("test", move |_| {
        if count.fetch_add(1, Ordering::Relaxed) > 0 {
            return Reply::text("done");
        }
        user.interject("stop").expect("it is sent");
        Reply::calls([("shout", json!({"text": "a"}))])
    });
    agent(&script).build()?.ask("go").session(&session).await?;
    assert_eq!(results(session.history().messages()), [NOT_EXECUTED]);
    assert_eq!(texts(&session), ["go", "", "", "stop", "done"]);
    Ok(())
}

/// When the run of an interjection ends without reading it, the message waits for another run.
#[tokio::test]
async fn a_run_that_ends_leaves_what_it_has_taken() -> Result<()> {
    let session = Session::new();
    let user = session.clone();
    let send = sending(move || user.interject("stop").expect("it is sent"));
    let fail = fail("fail", || Error::new("broken").fatal(true));
    let script =
        ScriptedModel::new("test").calls(["send", "fail"].map(|name| (name, json!({"text": ""})))).text("done");
    let agent = agent(&script).tool(send).tool(fail.exclusive()).build()?;
    // The exclusive call has not begun, so it cannot fail.
    agent.ask("go").session(&session).await?;
    assert_eq!(results(session.history().messages()), ["sent", NOT_EXECUTED]);

    let session = Session::new();
    let user = session.clone();
    let failing = hooks_fn("failing", move |hooks| {
        let user = user.clone();
        hooks.on_result(move |_, _| {
            user.interject("stop")?;
            Err::<(), _>(Error::halted("failing", "enough"))
        });
    });
    let script = ScriptedModel::new("test").call("shout", json!({"text": "a"})).text("done");
    let agent = self::agent(&script).with(failing).build()?;
    agent.ask("go").session(&session).await.expect_err("a halt");
    assert_eq!(undelivered(&session), ["stop"]);
    agent.ask("again").session(&session).await?;
    assert_eq!(texts(&session)[3..], ["again", "stop", "done"]);
    Ok(())
}

#[tokio::test]
async fn the_session_of_a_sub_agent_is_its_own() -> Result<()> {
    let session = Session::new();
    let user = session.clone();
    let count = AtomicU32::new(0);
    let inner = ScriptedModel::by("inner", move |_| {
        if count.fetch_add(1, Ordering::Relaxed) == 0 {
            user.steer("for the outer agent").expect("it is sent");
        }
        Reply::text("below")
    });
    let sub = Agent::builder("sub", ChatModel::new(inner.clone())?).build()?;
    let script = ScriptedModel::new("test").call("sub", json!({"task": "a"})).text("done");
    let agent = agent(&script).tool(sub.as_tool("Helps")?).build()?;
    agent.ask("go").session(&session).await?;
    assert_eq!(inner.requests().len(), 1);
    assert_eq!(texts(&session)[3..], ["for the outer agent", "done"]);
    Ok(())
}
