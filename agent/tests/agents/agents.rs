//! The agent's loop: tools, errors, history, sessions, nesting.

use std::collections::HashSet;
use std::sync::Arc;
use std::time::Duration;

use emitree_agent::{
    Agent, AgentContext, AgentInput, AgentRun, CallId, ChatModel, ChatOptions, History, Message, MessageAdded,
    MessageError, NewToken, Reply, Role, ScriptedModel, Session, ToolOutput, Usage, hooks_fn, tool_fn,
};
use emitree_emitter::EventMeta;
use emitree_middleware::{Cache, Runs};
use emitree_runtime::{
    AbortHandle, AnyRun, Error, Guard, Interrupt, Op, Result, RunContext, Runnable, Stack, for_nested, for_tree,
    map_input,
};
use serde_json::json;

use crate::support::{Log, Text, agent, assert_valid, fail, results, shout};

#[tokio::test]
async fn an_agent_calls_tools_until_the_model_answers_and_counts_its_tokens_and_turns() -> Result<()> {
    let script = ScriptedModel::new("test")
        .reply(
            Reply::calls([("shout", json!({"text": "a"})), ("shout", json!({"text": "b"}))]).usage(Usage::new(10, 2)),
        )
        .reply(Reply::text("A and B").usage(Usage::new(20, 3)));
    let agent = agent(&script).prompt("Be brief.").build()?;
    let log = Log::default();
    for name in ["start", "iteration", "message*", "tool_call_identified", "tool_response", "success"] {
        let to = log.clone();
        agent.emitter().observe(name, move |_: &dyn emitree_emitter::AnyEvent, meta| to.add(meta.name()))?;
    }
    let answer = agent.ask("Shout a and b.").await?;
    assert_eq!(answer.text(), "A and B");
    assert_eq!(answer.last_message().text(), "A and B");
    assert_eq!(results(&answer.messages), ["A", "B"]);
    assert_eq!((answer.usage, answer.turns), (Usage::new(30, 5), 2));
    assert_eq!(answer.tool_calls().count(), 2);
    let expected = [
        "start",
        "message",
        "iteration",
        "tool_call_identified",
        "tool_call_identified",
        "tool_response",
        "tool_response",
        "message",
        "message",
        "message",
        "iteration",
        "message",
        "success",
    ];
    assert_eq!(log.lines(), expected);

    let requests = script.requests();
    assert_eq!(requests[0].system.as_deref(), Some("Be brief."));
    assert_eq!(requests[0].tools[0].name, "shout");
    assert_eq!(requests.iter().map(|request| request.messages.len()).collect::<Vec<_>>(), [1, 4]);
    Ok(())
}

/// Logs the messages of an agent, and the errors in them.
fn log_messages(agent: &Agent) -> Result<Log> {
    let log = Log::default();
    let (to, errors) = (log.clone(), log.clone());
    agent.emitter().observe("message", move |added: &MessageAdded, _| {
        let results = results(std::slice::from_ref(&added.message)).concat();
        to.add(format!("{}: {}{results}", added.message.role.as_str(), added.message.text()));
    })?;
    agent.emitter().observe("message_error", move |failed: &MessageError, _| {
        errors.add(format!("error in {}: {}", failed.message.role.as_str(), failed.error));
    })?;
    Ok(log)
}

#[tokio::test]
async fn each_message_is_emitted_in_the_order_of_the_history_and_each_error_after_its_message() -> Result<()> {
    let script = ScriptedModel::new("test")
        .calls([("shout", json!({"text": "a"})), ("sing", json!({}))])
        .reply(Reply::text("perhaps"))
        .text("done")
        .text("sure");
    let hooks = hooks_fn("m", |hooks| {
        hooks.on_state(|history, ctx| {
            if ctx.turn().is_some_and(|turn| turn.number == 1) {
                history.extend([Message::user("noted")])?;
            }
            Ok(())
        });
        hooks.on_action(|action, _| {
            if action.response.text() == "perhaps" {
                action.inject.push(Message::user("be sure"));
            }
        });
        hooks.on_end(|more, ctx| {
            if ctx.turn().is_some_and(|turn| turn.number == 3) {
                more.push(Message::user("really?"));
            }
        });
        // The events of the turn have been emitted before this hook is called.
        hooks.on_stop(|_, _| Ok(false));
    });
    let agent = agent(&script).with(hooks).build()?;
    let log = log_messages(&agent)?;
    let answer = agent.ask("go").await?;
    let expected = [
        "user: go",
        "user: noted",
        "assistant: ",
        "tool: A",
        "tool: !there is no tool `sing`; available tools: `shout`",
        "error in tool: there is no tool `sing`; available tools: `shout`",
        "assistant: perhaps",
        "user: be sure",
        "assistant: done",
        "user: really?",
        "assistant: sure",
    ];
    assert_eq!(log.lines(), expected);
    let roles: Vec<_> = answer.messages.iter().map(|message| message.role.as_str()).collect();
    let announced = log.lines().into_iter().filter(|line| !line.starts_with("error"));
    assert_eq!(roles, announced.map(|line| line.split(':').next().expect("a role").to_owned()).collect::<Vec<_>>());
    Ok(())
}

#[tokio::test]
async fn an_unusable_response_emits_message_error_and_a_failed_turn_emits_its_messages() -> Result<()> {
    let script = || ScriptedModel::new("test").text("a bad answer");
    let fails = hooks_fn("m", |hooks| _ = hooks.on_action(|_, _| Err(Error::new("rude"))));
    let breaks = hooks_fn("m", |hooks| _ = hooks.on_action(|action, _| action.response.message.role = Role::User));
    let unusable = "a model's response has the role `user` instead of `assistant`";
    for (hooks, error, expected) in [
        (fails, "rude", vec!["user: go", "error in assistant: rude", "assistant: a bad answer"]),
        (breaks, unusable, vec!["user: go", &format!("error in user: {unusable}")]),
    ] {
        let agent = agent(&script()).with(hooks).build()?;
        let log = log_messages(&agent)?;
        assert_eq!(agent.ask("go").await.unwrap_err().to_string(), error);
        assert_eq!(log.lines(), expected);
    }

    let script = ScriptedModel::new("test").calls([("die", json!({"text": ""})), ("shout", json!({"text": "a"}))]);
    let agent = agent(&script).tool(fail("die", || Error::new("dead").fatal(true))).build()?;
    let log = log_messages(&agent)?;
    agent.ask("go").await.unwrap_err();
    assert_eq!(log.lines(), ["user: go", "assistant: ", "tool: !dead", "error in tool: dead", "tool: A"]);
    Ok(())
}

#[tokio::test]
async fn a_failing_message_listener_ends_the_run_and_the_turn_stays_in_the_history() -> Result<()> {
    let script = ScriptedModel::new("test").call("shout", json!({"text": "a"})).text("done");
    let session = Session::new();
    let refuses = |added: &mut MessageAdded, _: &EventMeta<'_>| {
        if added.message.role == Role::Tool { Err(Error::new("full").into()) } else { Ok(()) }
    };
    let run = agent(&script).build()?;
    let error = run.ask("go").session(&session).on("message", refuses).await.unwrap_err();
    assert_eq!(error.to_string(), "full");
    assert_eq!(results(assert_valid(&session).messages()), ["A"]);
    Ok(())
}

// A4
#[tokio::test]
async fn each_kind_of_tool_error_becomes_the_result_of_its_call_and_sibling_calls_continue() -> Result<()> {
    type Row = (&'static str, fn() -> Error, &'static str);
    let table: [Row; 4] = [
        ("failed", || Error::new("broken"), "!broken"),
        ("aborted", || Error::aborted("alone"), "!alone"),
        ("timed_out", || Error::timed_out("late"), "!late"),
        ("denied", || Error::denied("policy", "no"), "!denied by policy: no"),
    ];
    for (name, error, expected) in table {
        let script = ScriptedModel::new("test")
            .calls([(name, json!({"text": "x"})), ("shout", json!({"text": "b"}))])
            .text("done");
        let agent = agent(&script).tool(fail(name, error)).build()?;
        let answer = agent.ask("go").await?;
        assert_eq!(results(&answer.messages), [expected, "B"], "{name}");
    }
    let panics = tool_fn("panics", "Panics", |_: Text, _: RunContext| async move {
        assert!(std::env::args().count() > 1_000_000, "oh no");
        Ok(())
    });
    let script = ScriptedModel::new("test")
        .calls([("panics", json!({"text": "x"})), ("shout", json!({"text": "b"}))])
        .text("done");
    let answer = agent(&script).tool(panics).build()?.ask("go").await?;
    let results = results(&answer.messages);
    assert!(results[0].starts_with('!') && results[0].contains("oh no"), "{results:?}");
    assert_eq!(results[1], "B");
    Ok(())
}

#[tokio::test]
async fn a_halt_or_a_fatal_error_ends_the_run_when_all_sibling_calls_have_settled() -> Result<()> {
    let errors: [fn() -> Error; 2] = [|| Error::halted("switch", "enough"), || Error::new("lost").fatal(true)];
    for error in errors {
        let script =
            ScriptedModel::new("test").calls([("stop", json!({"text": "x"})), ("shout", json!({"text": "b"}))]);
        let session = Session::new();
        let ended = agent(&script).tool(fail("stop", error)).build()?.ask("go").session(&session).await.unwrap_err();
        assert_eq!(ended.kind(), error().kind());
        let history = assert_valid(&session);
        assert_eq!(results(history.messages())[1], "B");
    }
    Ok(())
}

#[tokio::test]
async fn the_interrupts_of_a_batch_are_combined_into_one_and_other_calls_are_answered() -> Result<()> {
    let script = ScriptedModel::new("test").calls([
        ("pay", json!({"text": "1"})),
        ("shout", json!({"text": "b"})),
        ("pay", json!({"text": "2"})),
    ]);
    let pay = fail("pay", || Error::interrupted(Interrupt::new("approval", json!({"amount": 1}))));
    let session = Session::new();
    let error = agent(&script).tool(pay).build()?.ask("go").session(&session).await.unwrap_err();
    let interrupt = error.interrupt().expect("an interrupt");
    assert_eq!(interrupt.kind, "agent.batch");
    let pending = interrupt.data["pending"].as_array().expect("a list");
    let pays: Vec<_> = pending.iter().map(|call| call["call"]["arguments"]["text"].as_str()).collect();
    assert_eq!(pays, [Some("1"), Some("2")]);
    assert_eq!(pending[0]["interrupt"]["kind"], "approval");
    let history = assert_valid(&session);
    let interrupted = "!interrupted while the tool was running: it may have had effects";
    assert_eq!(results(history.messages()), [interrupted, "B", interrupted]);
    Ok(())
}

#[tokio::test]
async fn calls_that_cannot_be_executed_are_answered_with_an_error_that_states_the_reason() -> Result<()> {
    let call = |arguments: &str| emitree_agent::Delta::tool_call(0, None, Some("shout".to_owned()), arguments);
    let script = ScriptedModel::new("test")
        .call("sing", json!({}))
        .call("shout", json!({"text": 7}))
        .reply(Reply::deltas([call(r#"{"text": "#)]))
        .reply(Reply::deltas([call("")]))
        .text("done");
    let answer = agent(&script).build()?.ask("go").await?;
    let expected = [
        "!there is no tool `sing`; available tools: `shout`",
        "!the arguments of `shout` are invalid: at `text`: invalid type: integer `7`, expected a string",
        "!the arguments of `shout` are not JSON: EOF while parsing a value at line 1 column 9",
        "!the arguments of `shout` are invalid: missing field `text`",
    ];
    assert_eq!(results(&answer.messages), expected);
    // The next request has the arguments as the model wrote them.
    let last = script.requests().pop().expect("a request");
    let malformed = last.messages[5].tool_calls().next().expect("a call").arguments.to_string();
    assert_eq!(malformed, r#"{"text": "#);
    Ok(())
}

#[tokio::test]
async fn repeated_and_missing_call_ids_are_replaced_and_results_stay_with_their_calls() -> Result<()> {
    let call = |index, id: &str, text: &str| {
        let arguments = json!({ "text": text }).to_string();
        emitree_agent::Delta::tool_call(index, Some(id.to_owned()), Some("shout".to_owned()), arguments)
    };
    let script = ScriptedModel::new("test")
        .reply(Reply::deltas([call(0, "c1", "a"), call(1, "", "b"), call(2, "c1", "c"), call(3, "", "d")]))
        .text("done");
    let session = Session::new();
    let ids = Log::default();
    let to = ids.clone();
    let answer = agent(&script)
        .build()?
        .ask("go")
        .session(&session)
        .middleware(for_tree(Runs::of_kind("Tool").only(move |ctx: &RunContext| {
            to.add(ctx.own_extension::<CallId>().map_or_else(String::new, |id| id.0.clone()));
            Ok(())
        })))
        .await?;
    assert_eq!(results(&answer.messages), ["A", "B", "C", "D"]);
    assert_valid(&session);
    let ids = ids.lines();
    assert_eq!(ids[0], "c1");
    assert!(!ids.iter().any(String::is_empty), "{ids:?}");
    assert_eq!(ids.iter().collect::<HashSet<_>>().len(), 4, "{ids:?}");
    Ok(())
}

// A1
#[tokio::test(start_paused = true)]
async fn a_session_stays_valid_and_usable_however_its_run_ends() -> Result<()> {
    let wait = || {
        tool_fn("wait", "Waits", |_: Text, _: RunContext| async {
            tokio::time::sleep(Duration::from_secs(60)).await;
            Ok("late")
        })
    };
    for end in ["drop", "abort", "timeout", "max_steps"] {
        let script = ScriptedModel::new("test")
            .calls([("wait", json!({"text": "x"})), ("shout", json!({"text": "b"}))])
            .text("fine");
        let agent = agent(&script).tool(wait()).max_steps(1).build()?;
        let (session, abort) = (Session::new(), AbortHandle::new());
        let run = agent.ask("go").session(&session).abort_on(&abort);
        match end {
            "drop" => assert!(tokio::time::timeout(Duration::from_secs(1), run).await.is_err()),
            "abort" => {
                let handle = abort.clone();
                tokio::spawn(async move {
                    tokio::time::sleep(Duration::from_secs(1)).await;
                    handle.abort("enough");
                });
                assert!(run.await.unwrap_err().is_aborted());
            }
            "timeout" => assert!(run.timeout(Duration::from_secs(1)).await.unwrap_err().is_timed_out()),
            _ => {
                let error = run.await.unwrap_err().to_string();
                assert_eq!(
                    error,
                    "the agent `tester` has no answer after 1 model calls, which is its limit (`max_steps`)"
                );
            }
        }
        let history = assert_valid(&session);
        // A call keeps a result that it already has. The result of a stopped tool states that the tool may have had
        // effects.
        let expected = match end {
            "max_steps" => ["late", "B"],
            _ => ["!the run was stopped while the tool was running: it may have had effects", "B"],
        };
        assert_eq!(results(history.messages()), expected, "{end}");
        let answer = agent.ask("and now?").session(&session).await?;
        assert_eq!(answer.text(), "fine");
        // The request has the whole conversation, and the output has only the new messages.
        assert_eq!(script.requests().last().expect("a request").messages.len(), 5);
        assert_eq!(answer.messages.len(), 2);
    }
    Ok(())
}

#[tokio::test]
async fn invalid_input_is_refused_before_the_model_is_asked() -> Result<()> {
    let script = ScriptedModel::new("test").text("never");
    let agent = agent(&script).build()?;
    let error = agent.ask(Message::new(Role::User, [])).await.unwrap_err();
    assert_eq!(error.to_string(), "message 0 with the role `user` is empty");
    let error = agent.ask(Vec::<Message>::new()).await.unwrap_err();
    assert_eq!(error.to_string(), "the input of the agent `tester` has no messages");
    assert!(script.requests().is_empty());

    // A run may continue a session without new messages.
    let session = Session::new();
    session.extend([Message::user("before")])?;
    assert_eq!(agent.ask(Vec::<Message>::new()).session(&session).await?.text(), "never");
    Ok(())
}

#[tokio::test]
async fn build_refuses_unusable_tools_and_a_step_limit_of_zero_and_states_the_reason() {
    let model = || ChatModel::new(ScriptedModel::new("test")).expect("a model");
    let build = |tool| Agent::builder("a", model()).tool(shout()).tool(tool).build().unwrap_err().to_string();
    assert_eq!(build(Ok(shout())), "the agent `a` has two tools called `shout`");
    let unnamed = tool_fn("", "", |_: Text, _: RunContext| async { Ok(()) });
    assert_eq!(build(unnamed), "`` cannot be the name of a tool: use 1 to 64 characters of A-Z, a-z, 0-9, `_` and `-`");
    let number = tool_fn("count", "", |_: u32, _: RunContext| async { Ok(()) });
    let says = build(number);
    assert!(says.starts_with("the schema of the arguments of `count` is `{"), "{says}");
    assert!(says.ends_with("its `type` must be `object`, as for a struct with named fields"), "{says}");
    let none = Agent::builder("a", model()).max_steps(0).build().unwrap_err().to_string();
    assert_eq!(none, "`max_steps(0)` allows the agent `a` no model call: allow at least 1");
}

#[tokio::test]
async fn a_sub_agent_is_a_tool_with_its_own_history_and_turns_and_depth_is_limited() -> Result<()> {
    let inner = ScriptedModel::new("inner").call("shout", json!({"text": "deep"})).text("it is DEEP");
    let librarian = Agent::builder("librarian", ChatModel::new(inner.clone())?).tool(shout()).build()?;
    // The sub-agent is called in turn 2, and counts its own turns from 1.
    let outer = ScriptedModel::new("outer")
        .call("shout", json!({"text": "x"}))
        .call("librarian", json!({"task": "shout deep"}))
        .text("done");
    let agent = agent(&outer).tool(librarian.as_tool("Knows the files")).build()?;
    let turns = Log::default();
    let to = turns.clone();
    let answer = agent
        .ask("go")
        .middleware(for_tree(Runs::of_kind("Tool").only(move |ctx: &RunContext| {
            to.add(format!("{} in turn {}", ctx.name(), ctx.turn().expect("an agent").number));
            Ok(())
        })))
        .await?;
    assert_eq!(results(&answer.messages), ["X", "it is DEEP"]);
    assert_eq!(turns.lines(), ["shout in turn 1", "librarian in turn 2", "shout in turn 1"]);
    let first: Vec<_> = inner.requests()[0].messages.iter().map(|message| message.text()).collect();
    assert_eq!(first, ["shout deep"]);

    // An agent that calls itself.
    let script = ScriptedModel::by("loop", |_| Reply::calls([("again", json!({"text": "x"}))]));
    let cell = Arc::new(std::sync::OnceLock::<Agent>::new());
    let own = Arc::clone(&cell);
    let again = tool_fn("again", "Asks again", move |_: Text, _: RunContext| {
        let agent = own.get().expect("built").clone();
        async move { Ok(agent.ask("again").await?.text()) }
    });
    let agent = Agent::builder("loop", ChatModel::new(script)?).tool(again).max_depth(3).build()?;
    cell.set(agent.clone()).expect("once");
    let error = agent.ask("go").await.unwrap_err();
    assert!(error.is_fatal());
    assert_eq!(
        error.to_string(),
        "the agent `loop` runs inside 4 other agents, but at most 3 are allowed (`max_depth`)"
    );
    Ok(())
}

#[tokio::test]
async fn built_in_middleware_and_guards_of_runs_above_apply_to_tools() -> Result<()> {
    let script = ScriptedModel::new("test")
        .calls([("read", json!({"text": "a"})), ("read", json!({"text": "a"}))])
        .call("delete", json!({"text": "x"}))
        .text("done");
    let works = Log::default();
    let logs = |name: &str| {
        let to = works.clone();
        tool_fn(name, "Logs", move |args: Text, ctx: RunContext| {
            to.add(format!("{} {}", ctx.name(), args.text));
            async { Ok("fine") }
        })
    };

    #[derive(Debug)]
    struct Keep;
    impl<O: Op> Guard<O> for Keep {
        async fn check_input(&self, _: &O::In, ctx: &RunContext) -> Result<()> {
            if ctx.kind() == "Tool" && ctx.name() == "delete" {
                return Err(Error::new("nothing is deleted here"));
            }
            Ok(())
        }
    }
    let answer = agent(&script)
        .tool(logs("read"))
        .tool(logs("delete"))
        .build()?
        .ask("go")
        .middleware(for_nested(Stack::<AnyRun>::builder().guard(Keep).build()))
        .middleware(for_tree(Runs::of_kind("Tool").only(Cache::json().build()?)))
        .await?;
    let results = results(&answer.messages);
    assert_eq!(results[..2], ["fine", "fine"]);
    assert!(results[2].starts_with("!denied by") && results[2].ends_with(": nothing is deleted here"), "{results:?}");
    assert_eq!(results[2].lines().count(), 1, "the reason once");
    // The cache answers the second call of `read`, and the guard denies `delete`.
    assert_eq!(works.lines(), ["read a"]);
    Ok(())
}

#[tokio::test]
async fn one_agent_serves_concurrent_runs_without_mixing_their_messages() -> Result<()> {
    let script = ScriptedModel::by("echo", |request| {
        let asked = request.messages[0].text();
        match request.messages.len() {
            1 => Reply::calls([("shout", json!({ "text": asked }))]),
            _ => Reply::text(format!("{asked}: {}", request.messages[2].tool_results().next().expect("one").response)),
        }
    });
    let agent = agent(&script).build()?;
    let asks = (0..50).map(|i| agent.ask(format!("q{i}")).into_future());
    let answers = futures_util::future::join_all(asks).await;
    for (i, answer) in answers.into_iter().enumerate() {
        assert_eq!(answer?.text(), format!("q{i}: \"Q{i}\""));
    }
    Ok(())
}

#[tokio::test]
async fn on_token_streams_the_agent_and_receives_tokens_of_sub_agents_only_if_they_stream() -> Result<()> {
    for (streams, expected) in [(false, vec!["to", "p"]), (true, vec!["de", "ep", "to", "p"])] {
        let inner = ScriptedModel::new("inner").reply(Reply::text("deep").in_pieces(2));
        let mut options = ChatOptions::default();
        options.stream = Some(streams);
        let librarian = Agent::builder("librarian", ChatModel::new(inner)?).options(options).build()?;
        let outer =
            ScriptedModel::new("outer").call("librarian", json!({"task": "x"})).reply(Reply::text("top").in_pieces(2));
        let agent = agent(&outer).tool(librarian.as_tool("Knows")).build()?;
        let log = Log::default();
        let to = log.clone();
        agent.ask("go").on_token(move |token| to.add(token.text())).await?;
        assert_eq!(log.lines(), expected);
    }
    Ok(())
}

#[tokio::test]
async fn a_stream_begins_when_the_input_functions_have_changed_or_refused_the_input() -> Result<()> {
    let script = ScriptedModel::new("test").reply(Reply::text("hello").in_pieces(3));
    let log = Log::default();
    let (checks, tokens) = (log.clone(), log.clone());
    let check = map_input(move |input: &mut AgentInput, _: &RunContext| {
        checks.add("input");
        let text = input.messages[0].text();
        input.messages[0] = Message::user(text.to_uppercase());
        if text == "bad" { Err(Error::denied("check", "bad")) } else { Ok(()) }
    });
    let agent = agent(&script).middleware(check).build()?;
    let ask = |text: &str| {
        let to = tokens.clone();
        agent.ask(text).on_token(move |token| to.add(token.text()))
    };
    ask("go").await?;
    assert!(ask("bad").await.unwrap_err().is_denied());
    assert_eq!(log.lines(), ["input", "hel", "lo", "input"]);
    assert_eq!(script.requests().iter().map(|request| request.last_user_text()).collect::<Vec<_>>(), ["GO"]);
    Ok(())
}

#[tokio::test]
async fn options_of_a_run_override_the_options_of_the_agent_one_by_one() -> Result<()> {
    let mut options = ChatOptions::default();
    (options.stream, options.seed, options.max_tokens) = (Some(true), Some(1), Some(10));
    for (own, expected) in [(None, Some(true)), (Some(true), Some(true)), (Some(false), Some(false))] {
        let script = ScriptedModel::new("test").reply(Reply::text("text").in_pieces(2));
        let agent = agent(&script).options(options.clone()).build()?;
        let log = Log::default();
        let to = log.clone();
        let run = agent.ask("go").on_start(move |start, _| {
            start.input.options.stream = own;
            start.input.options.seed = Some(2);
        });
        let answer = run.on("**.new_token", move |token: &mut NewToken, _| to.add(token.text())).await?;
        assert_eq!(answer.text(), "text");
        let sent = &script.requests()[0].options;
        assert_eq!((sent.stream, sent.seed, sent.max_tokens), (expected, Some(2), Some(10)));
        assert_eq!(log.lines().len(), if expected == Some(true) { 2 } else { 0 });
    }
    Ok(())
}

#[tokio::test]
async fn a_history_can_be_stored_and_continued_in_a_new_session() -> Result<()> {
    let script = ScriptedModel::new("test").call("shout", json!({"text": "a"})).text("A").text("so");
    let agent = agent(&script).build()?;
    let session = Session::new();
    agent.ask("go").session(&session).await?;
    let stored = serde_json::to_string(&session.history())?;
    let restored: History = serde_json::from_str(&stored)?;
    agent.ask("what did I say?").session(&Session::from(restored)).await?;
    let expected = [session.history().messages(), &[Arc::new(Message::user("what did I say?"))]].concat();
    assert_eq!(*script.requests()[2].messages, expected);
    Ok(())
}

#[tokio::test]
async fn a_turn_ends_the_run_if_all_its_results_request_termination() -> Result<()> {
    let done = || {
        tool_fn("done", "Ends", |args: Text, _: RunContext| async move { Ok(ToolOutput::new(args.text).terminate()) })
    };
    let script = ScriptedModel::new("test").call("done", json!({"text": "bye"})).text("never");
    let answer = agent(&script).tool(done()).build()?.ask("go").await?;
    assert_eq!((answer.turns, results(&answer.messages)), (1, vec!["bye".to_owned()]));

    let script = ScriptedModel::new("test")
        .calls([("done", json!({"text": "bye"})), ("shout", json!({"text": "b"}))])
        .text("goes on");
    assert_eq!(agent(&script).tool(done()).build()?.ask("go").await?.text(), "goes on");
    Ok(())
}

#[tokio::test]
async fn an_interrupt_of_a_sub_agent_is_nested_in_the_batch_interrupt_of_the_outer_agent() -> Result<()> {
    let inner = ScriptedModel::new("inner").call("pay", json!({"text": "1"}));
    let pay = fail("pay", || Error::interrupted(Interrupt::new("approval", json!({"amount": 1}))));
    let librarian = Agent::builder("librarian", ChatModel::new(inner)?).tool(pay).build()?;
    let outer = ScriptedModel::new("outer")
        .calls([("librarian", json!({"task": "pay"})), ("shout", json!({"task": "", "text": "b"}))]);
    let session = Session::new();
    let agent = agent(&outer).tool(librarian.as_tool("Pays")).build()?;
    let error = agent.ask("go").session(&session).await.unwrap_err();
    let outer = error.interrupt().expect("an interrupt");
    assert_eq!(outer.data["pending"][0]["call"]["name"], "librarian");
    let inner = &outer.data["pending"][0]["interrupt"];
    assert_eq!(inner["kind"], "agent.batch");
    assert_eq!(inner["data"]["pending"][0]["interrupt"]["kind"], "approval");
    let interrupted = "!interrupted while the tool was running: it may have had effects";
    assert_eq!(results(assert_valid(&session).messages()), [interrupted, "B"]);
    Ok(())
}

// A4
#[tokio::test]
async fn a_halt_takes_precedence_over_interrupts_and_fatal_errors_in_any_order_of_calls() -> Result<()> {
    let halt = || fail("halt", || Error::halted("switch", "enough"));
    let lost = || fail("lost", || Error::new("lost").fatal(true));
    let asks = || fail("asks", || Error::interrupted(Interrupt::new("approval", json!(null))));
    for order in [["asks", "lost", "halt"], ["halt", "asks", "lost"], ["lost", "halt", "asks"]] {
        let script = ScriptedModel::new("test").calls(order.map(|name| (name, json!({"text": "x"}))));
        let agent = agent(&script).tool(halt()).tool(lost()).tool(asks()).build()?;
        assert!(agent.ask("go").await.unwrap_err().is_halted(), "{order:?}");
    }
    Ok(())
}

#[test]
fn spawned_tools_do_not_block_each_other_and_keep_their_call_id_and_turn() -> Result<()> {
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build()?;
    let (sender, receiver) = std::sync::mpsc::channel::<()>();
    let (sender, receiver) = (std::sync::Mutex::new(sender), Arc::new(std::sync::Mutex::new(receiver)));
    // This tool blocks its thread until the other tool has run.
    let waits = tool_fn("waits", "Waits", move |_: Text, ctx: RunContext| {
        let receiver = Arc::clone(&receiver);
        async move {
            receiver
                .lock()
                .expect("no panic")
                .recv_timeout(Duration::from_secs(60))
                .map_err(|error| Error::new(error.to_string()))?;
            Ok(ctx.own_extension::<CallId>().expect("an id").0.clone())
        }
    });
    let wakes = tool_fn("wakes", "Wakes", move |_: Text, ctx: RunContext| {
        sender.lock().expect("no panic").send(()).expect("a receiver");
        async move { Ok(ctx.turn().expect("an agent").number) }
    });
    let script = ScriptedModel::new("test")
        .calls([("waits", json!({"text": "x"})), ("wakes", json!({"text": "x"}))])
        .text("done");
    let agent = agent(&script).tool(waits).tool(wakes).spawn_tools(true).build()?;
    let asked = agent.clone();
    let answer = runtime.block_on(runtime.spawn(async move { asked.ask("go").await }))??;
    assert_eq!(results(&answer.messages), ["0", "1"]);
    runtime.shutdown_background();
    Ok(())
}

#[tokio::test]
async fn the_work_of_an_agent_in_a_run_of_another_runnable_is_an_error_that_names_the_run() -> Result<()> {
    let agent = agent(&ScriptedModel::new("test").text("never")).build()?;
    let wrong = emitree_runtime::runnable_fn("wrong", move |input: AgentInput, ctx: RunContext| {
        let agent = agent.clone();
        async move { agent.execute(&input, &ctx).await }
    });
    let error = wrong.run(AgentInput::from("go")).await.expect_err("the state is missing");
    let message = "`execute` of an agent needs the context of the agent's own run, not of `wrong`: call `run`";
    assert_eq!(error.to_string(), message);
    Ok(())
}

#[tokio::test]
async fn a_long_name_of_a_tool_is_cut_in_the_result_of_its_call() -> Result<()> {
    let name = format!("a{}z", "b".repeat(100_000));
    let script = ScriptedModel::new("test").call(name, json!({})).text("so");
    let answer = agent(&script).build()?.ask("go").await?;
    let result = results(&answer.messages).remove(0);
    assert!(result.starts_with("!there is no tool `abb") && result.len() < 700, "{} bytes", result.len());
    assert!(result.ends_with("bz`; available tools: `shout`"), "{result}");
    Ok(())
}
