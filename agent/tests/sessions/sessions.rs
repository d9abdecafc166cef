//! Sessions that several runs and attempts use, and the state that middleware keeps in them.

use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use emitree_agent::{
    Agent, AgentContext, AgentOutput, AgentRun, ChatModel, History, Hooks, Message, MessageAdded, Reply, ScriptedModel,
    Session, State, TurnDecision, hooks_fn, tool_fn,
};
use emitree_emitter::EventMeta;
use emitree_runtime::{AttemptDiscarded, Next, Result, RunContext, map_output};
use serde_json::json;

use crate::support::{Log, Text, agent, assert_valid, refuse_bad, results, texts};

#[tokio::test(start_paused = true)]
async fn messages_of_another_run_are_kept_while_hooks_change_the_history() -> Result<()> {
    let session = Session::new();
    session.extend([Message::user("old")])?;
    let compact = hooks_fn("compact", |hooks| {
        hooks.on_state_async(|history, _| {
            Box::pin(async move {
                let kept = vec![Message::user("summary"), Message::user("slow")];
                tokio::time::sleep(Duration::from_secs(10)).await;
                *history = History::try_from(kept)?;
                Ok(())
            })
        });
    });
    let slow = agent(&ScriptedModel::new("test").text("slow answer")).with(compact).build()?;
    let fast = agent(&ScriptedModel::new("test").text("fast answer")).build()?;
    let quick = async {
        tokio::time::sleep(Duration::from_secs(1)).await;
        fast.ask("fast").session(&session).await
    };
    let (slowly, quickly) = tokio::join!(slow.ask("slow").session(&session).into_future(), quick);
    assert_eq!(texts(&session), ["summary", "slow", "fast", "fast answer", "slow answer"]);
    // Each output has only the messages that its own run added.
    let of = |output: AgentOutput| output.messages.iter().map(|message| message.text()).collect::<Vec<_>>();
    assert_eq!(of(quickly?), ["fast", "fast answer"]);
    assert_eq!(of(slowly?), ["slow", "slow answer"]);
    Ok(())
}

#[tokio::test(start_paused = true)]
async fn hooks_whose_change_of_the_history_conflicts_are_called_again_and_no_message_is_lost() -> Result<()> {
    let session = Session::new();
    let rewrite = |name: &'static str, seconds: u64| {
        hooks_fn(name, move |hooks| {
            hooks.on_state_async(move |history, _| {
                Box::pin(async move {
                    tokio::time::sleep(Duration::from_secs(seconds)).await;
                    let mark = |message: &Arc<Message>| Message::user(format!("{}+{name}", message.text()));
                    *history = History::try_from(history.messages().iter().map(mark).collect::<Vec<_>>())?;
                    Ok(())
                })
            });
        })
    };
    let one = agent(&ScriptedModel::new("test").text("1")).with(rewrite("a", 1)).build()?;
    let two = agent(&ScriptedModel::new("test").text("2")).with(rewrite("b", 5)).build()?;
    let (first, second) =
        tokio::join!(one.ask("x").session(&session).into_future(), two.ask("y").session(&session).into_future());
    first?;
    second?;
    assert_eq!(texts(&session), ["x+a+b", "y+b", "1+b", "2"]);
    Ok(())
}

#[tokio::test(start_paused = true)]
async fn a_second_attempt_removes_the_messages_of_the_first_and_no_messages_of_other_runs() -> Result<()> {
    let session = Session::new();
    let waits = |text| Reply::text(text).slow(Duration::from_secs(5), Duration::ZERO);
    let script = ScriptedModel::new("test").reply(waits("bad")).reply(waits("good"));
    let slow = agent(&script).build()?;
    let fast = agent(&ScriptedModel::new("test").text("fast answer")).build()?;
    let run = slow.ask("slow").session(&session).max_middleware_retries(1).middleware(map_output(refuse_bad));
    let other = async {
        tokio::time::sleep(Duration::from_secs(1)).await;
        fast.ask("fast").session(&session).await
    };
    let (slowly, quickly) = tokio::join!(run.into_future(), other);
    quickly?;
    let answer = slowly?;
    assert_eq!(texts(&session), ["fast", "fast answer", "slow", "good"]);
    assert_eq!(answer.messages.len(), 2);
    Ok(())
}

// A7
#[tokio::test]
async fn a_second_attempt_begins_without_traces_of_the_first_and_its_prompt_has_the_reason() -> Result<()> {
    for has_session in [false, true] {
        let counted = hooks_fn("counter", |hooks| {
            let count = hooks.state::<u32>();
            hooks.prompt(move |ctx| {
                let count = count.with(ctx, |count| {
                    *count += 1;
                    *count
                })?;
                Ok(format!("count {count}, turn {}", ctx.turn().expect("an agent").number))
            });
        });
        let script =
            ScriptedModel::new("test").text("bad").call("shout", json!({"text": "a"})).text("bad").text("good");
        let agent = agent(&script).prompt("base").with(counted).build()?;
        let run = agent.ask("go").max_middleware_retries(2).middleware(map_output(refuse_bad));
        let run = if has_session { run.session(&Session::new()) } else { run };
        let answer = run.await?;
        assert_eq!((answer.text().as_str(), answer.turns, answer.messages.len()), ("good", 1, 2));

        let requests = script.requests();
        let prompts: Vec<_> = requests.iter().map(|request| request.system.clone().unwrap_or_default()).collect();
        let reason = "The previous attempt was discarded: be polite";
        let expected = [
            "base\n\ncount 1, turn 1".to_owned(),
            format!("base\n\ncount 1, turn 1\n\n{reason}"),
            format!("base\n\ncount 2, turn 2\n\n{reason}"),
            format!("base\n\ncount 1, turn 1\n\n{reason}"),
        ];
        assert_eq!(prompts, expected, "with a session: {has_session}");
        let lens: Vec<_> = requests.iter().map(|request| request.messages.len()).collect();
        assert_eq!(lens, [1, 1, 3, 1]);
    }
    Ok(())
}

// A7
#[tokio::test]
async fn each_attempt_of_an_agent_emits_message_for_the_messages_that_it_adds() -> Result<()> {
    let script = ScriptedModel::new("test").text("bad").text("good");
    let log = Log::default();
    let (messages, events) = (log.clone(), log.clone());
    let agent = agent(&script).build()?;
    let run = agent.ask("go").max_middleware_retries(1).middleware(map_output(refuse_bad));
    let run = run.observe("message", move |added: &MessageAdded, _: &EventMeta<'_>| messages.add(added.message.text()));
    let run = run.on("attempt_discarded", move |_: &mut AttemptDiscarded, _| events.add("discarded"));
    let answer = run.await?;
    assert_eq!(log.lines(), ["go", "bad", "discarded", "go", "good"]);
    let last: Vec<_> = answer.messages.iter().map(|message| message.text()).collect();
    assert_eq!(last, ["go", "good"]);
    Ok(())
}

#[tokio::test]
async fn a_response_with_another_role_than_assistant_is_refused_and_the_history_stays_valid() -> Result<()> {
    for bad in [Message::user("me"), Message::tool([emitree_agent::ToolResult::new("x", 1)])] {
        let bad = std::sync::Mutex::new(Some(bad));
        let replace = hooks_fn("replace", move |hooks| {
            let bad = std::sync::Mutex::new(bad.lock().expect("no panic").take());
            hooks.on_action(move |action, _| {
                action.response.message = bad.lock().expect("no panic").clone().expect("installed once");
            });
        });
        let session = Session::new();
        let agent = agent(&ScriptedModel::new("test").text("x")).with(replace).build()?;
        let error = agent.ask("go").session(&session).await.unwrap_err().to_string();
        assert!(error.starts_with("a model's response has the role `"), "{error}");
        assert_eq!(texts(&session), ["go"]);
    }
    Ok(())
}

// A1
#[tokio::test(start_paused = true)]
async fn only_results_that_have_passed_the_hooks_are_kept_if_the_run_ends_while_they_are_called() -> Result<()> {
    let calls = [("shout", json!({"text": "a"})), ("shout", json!({"text": "b"})), ("unknown", json!({}))];
    let script = ScriptedModel::new("test").calls(calls);
    let hangs = hooks_fn("hangs", |hooks| {
        hooks.on_result_async(|result, _| {
            let passes = result.output.text() == "A";
            Box::pin(async move { if passes { Ok(()) } else { std::future::pending().await } })
        });
    });
    let session = Session::new();
    let agent_of = agent(&script).with(hangs).build()?;
    let run = agent_of.ask("go").session(&session).timeout(Duration::from_secs(1));
    assert!(run.await.unwrap_err().is_timed_out());
    let unchecked = "!the tool was called, but the run ended before its result was checked: it may have had effects";
    let expected = ["A", unchecked, "!not executed: the run was stopped"];
    assert_eq!(results(assert_valid(&session).messages()), expected);
    Ok(())
}

fn bug<T>() -> Result<T> {
    panic!("bug")
}

#[tokio::test]
async fn a_panic_in_a_hook_ends_the_run_and_leaves_a_valid_history() -> Result<()> {
    // Each hook, with the result of the call in the history. After a panic before `turn.action`, the history has
    // no call.
    let (no_call, not_executed, executed) = (None, Some("!not executed: the run was stopped"), Some("A"));
    type Install = fn(&mut Hooks);
    let places: [(Install, Option<&str>); 8] = [
        (|hooks| _ = hooks.on_state(|_, _| bug()), no_call),
        (|hooks| _ = hooks.on_context(|_, _| bug()), no_call),
        (|hooks| _ = hooks.on_prompt(|_, _| bug()), no_call),
        (|hooks| _ = hooks.on_wire(|_, _| bug()), no_call),
        (|hooks| _ = hooks.on_action(|_, _| bug()), not_executed),
        (|hooks| _ = hooks.on_resolve(|_, _| bug()), not_executed),
        (|hooks| _ = hooks.on_stop(|_, _| bug()), executed),
        (|hooks| _ = hooks.on_end(|_, _| bug()), executed),
    ];
    for (at, (install, expected)) in places.into_iter().enumerate() {
        let session = Session::new();
        let script = ScriptedModel::new("test").call("shout", json!({"text": "a"})).text("done");
        let asked = agent(&script).with(hooks_fn("m", install)).build()?;
        let error = asked.ask("go").session(&session).await.unwrap_err();
        assert!(error.to_string().contains("bug"), "{at}: {error}");
        assert_eq!(results(assert_valid(&session).messages()), Vec::from_iter(expected), "{at}");
        let next = agent(&ScriptedModel::new("test").text("fine")).build()?;
        assert_eq!(next.ask("and now?").session(&session).await?.text(), "fine");
    }
    Ok(())
}

#[tokio::test]
async fn borrowing_a_state_in_its_own_closure_is_an_error_and_closures_of_other_states_nest() -> Result<()> {
    let log = Log::default();
    let to = log.clone();
    let words: Arc<OnceLock<State<Vec<String>>>> = Arc::default();
    let other = Arc::clone(&words);
    let keeps_words = hooks_fn("words", move |hooks| other.set(hooks.state()).expect("installed once"));
    let nests = hooks_fn("numbers", move |hooks| {
        let (numbers, words) = (hooks.state::<Vec<u32>>(), words.get().expect("installed before").clone());
        let to = to.clone();
        hooks.on_state(move |_, ctx| {
            let again = numbers.clone();
            let nested = numbers.with(ctx, |list| {
                list.push(1);
                words.with(ctx, |words| words.push(list.len().to_string()))?;
                again.with(ctx, |_| ())
            })?;
            to.add(nested.expect_err("the value is lent").to_string());
            to.add(words.with(ctx, |words| words.join(" "))?);
            to.add(numbers.with(ctx, |list| list.len().to_string())?);
            Ok(())
        });
    });
    agent(&ScriptedModel::new("test").text("x")).with(keeps_words).with(nests).build()?.ask("go").await?;
    let lines = log.lines();
    assert!(lines[0].contains("is already borrowed by a closure on this thread"), "{lines:?}");
    assert_eq!(lines[1..], ["1", "1"]);
    Ok(())
}

#[tokio::test]
async fn a_middleware_that_keeps_values_of_two_types_is_refused() {
    fn install(hooks: &mut Hooks) {
        let _same = [hooks.state::<u32>(), hooks.state::<u32>()];
        let _other = hooks.state::<Vec<u8>>();
    }
    let script = ScriptedModel::new("test").text("x");
    let of = |id: &str| {
        format!(
            "the middleware `{id}` keeps values of two types, `u32` and `alloc::vec::Vec<u8>`: keep one struct with both"
        )
    };
    let error = agent(&script).with(hooks_fn("m", install)).build().unwrap_err();
    assert_eq!(error.to_string(), of("m"));
    let error = agent(&script).hooks(install).build().unwrap_err();
    assert_eq!(error.to_string(), of("builder"));
    let error = agent(&script).build().expect("an agent").ask("go").with(hooks_fn("m", install)).await.unwrap_err();
    assert!(error.to_string().contains(&of("m")), "{error}");
}

#[tokio::test]
async fn a_state_keeps_its_value_and_stays_usable_after_a_panic_in_its_closure() -> Result<()> {
    let panics = Arc::new(AtomicBool::new(true));
    let may_panic = Arc::clone(&panics);
    let counts = hooks_fn("m", move |hooks| {
        let count: State<u32> = hooks.state();
        let panics = Arc::clone(&may_panic);
        hooks.on_action(move |action, ctx| {
            action.decision = Some(TurnDecision::Natural);
            count.with(ctx, |count| {
                *count += 1;
                assert!(!panics.swap(false, Ordering::Relaxed), "bug");
                assert_eq!(*count, 2);
            })
        });
    });
    let session = Session::new();
    let agent = agent(&ScriptedModel::new("test").text("x").text("y")).with(counts).build()?;
    assert!(agent.ask("go").session(&session).await.is_err());
    assert_eq!(agent.ask("go").session(&session).await?.text(), "y");
    Ok(())
}

#[tokio::test]
async fn layers_on_the_run_of_a_sub_agent_receive_its_own_turn_and_state() -> Result<()> {
    let (log, calls) = (Log::default(), Arc::new(AtomicU32::new(0)));
    let to = log.clone();
    let onion = move |id: &'static str| {
        let (to, calls) = (to.clone(), Arc::clone(&calls));
        hooks_fn(id, move |hooks| {
            let (to, calls) = (to.clone(), Arc::clone(&calls));
            let seen = hooks.state::<Vec<u32>>();
            hooks.agent_run(|stack| {
                stack.layer_fn("onion", move |input, ctx, next: Next<'_, Agent>| {
                    let call = calls.fetch_add(1, Ordering::Relaxed);
                    let seen = seen.with(ctx, |seen| {
                        seen.push(call);
                        format!("{seen:?}")
                    });
                    to.add(format!("{} {:?} {}", ctx.name(), ctx.turn().map(|turn| turn.number), seen.expect("state")));
                    Box::pin(async move { next.run(input).await })
                })
            });
        })
    };
    let inner = agent(&ScriptedModel::new("test").text("deep")).with(onion("m")).build()?;
    let outer = ScriptedModel::new("outer").call("tester", json!({"task": "x"})).text("done");
    let model = ChatModel::new(outer)?;
    let outer = Agent::builder("outer", model).tool(inner.as_tool("x")).with(onion("m")).build()?;
    outer.ask("go").await?;
    assert_eq!(log.lines(), ["outer Some(0) [0]", "tester Some(0) [1]"]);
    Ok(())
}

#[tokio::test]
async fn hooks_and_tools_read_the_history_of_the_nearest_agent() -> Result<()> {
    let log = Log::default();
    let (in_hook, in_tool) = (log.clone(), log.clone());
    let count = move |to: &Log, place: &str, ctx: &RunContext| {
        to.add(format!("{place} {}", ctx.history().map_or(0, |history| history.messages().len())));
    };
    let reads = tool_fn("reads", "Reads", move |_: Text, ctx: RunContext| {
        count(&in_tool, "tool", &ctx);
        async { Ok("read") }
    })?;
    let hooks = hooks_fn("reads", move |hooks| {
        let (action, stop) = (in_hook.clone(), in_hook.clone());
        hooks.on_action(move |_, ctx| count(&action, "action", ctx));
        hooks.on_stop(move |_, ctx| {
            count(&stop, "stop", ctx);
            Ok(false)
        });
    });
    let script = ScriptedModel::new("inner").call("reads", json!({"text": "x"})).text("done");
    let inner = agent(&script).tool(reads).with(hooks).build()?;
    let outer = ScriptedModel::new("outer").call("tester", json!({"task": "go"})).text("all done");
    let session = Session::new();
    session.extend([Message::user("before")])?;
    let outer = Agent::builder("outer", ChatModel::new(outer)?).tool(inner.as_tool("Reads")).build()?;
    outer.ask("go").session(&session).await?;
    // The sub-agent's history has one message at first, three after the turn with the call, and four with the answer.
    assert_eq!(log.lines(), ["action 1", "tool 1", "stop 3", "action 3", "stop 4"]);
    assert_eq!(RunContext::current().and_then(|ctx| ctx.history()), None);
    Ok(())
}
