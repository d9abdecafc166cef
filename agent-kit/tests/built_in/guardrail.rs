//! `Guardrail`: inputs, replies and results of tools are judged before anybody receives them.

use emitree_agent::{
    Agent, AgentOutput, AgentRun, ChatModel, HooksFn, Message, Reply, ScriptedModel, Session, Tool, hooks_fn, joins,
};
use emitree_agent_kit::built_in::{Guardrail, Hold, Judgement};
use emitree_emitter::EventMeta;
use emitree_middleware::Cache;
use emitree_runtime::{Error, Result, RunContext, Runnable, WouldDeny, for_tree, map_input, map_output};
use futures_core::future::BoxFuture;
use serde_json::json;

use crate::support::{Log, agent, assert_valid, results, texts};

/// Allows, changes, blocks, asks again or fails, as the text says, and logs the text.
fn judge(text: &str, log: &Log) -> Result<Judgement> {
    log.add(text);
    match text {
        text if text.contains("secret") => Ok(Judgement::Modify(text.replace("secret", "***"))),
        text if text.contains("bad") => Ok(Judgement::block("it is bad")),
        text if text.contains("rude") => Ok(Judgement::ask_again("be polite")),
        text if text.contains("broken") => Err(Error::new("the service is gone")),
        _ => Ok(Judgement::Allow),
    }
}

fn output(log: &Log) -> Guardrail {
    let log = log.clone();
    Guardrail::output("calm", move |text, _| {
        let judgement = judge(text, &log);
        Box::pin(async move {
            tokio::task::yield_now().await;
            judgement
        })
    })
}

fn input(log: &Log) -> Guardrail {
    let log = log.clone();
    Guardrail::input("calm", move |text, _| {
        let judgement = judge(text, &log);
        Box::pin(async move { judgement })
    })
}

fn of_results(log: &Log) -> Guardrail {
    let log = log.clone();
    Guardrail::tool_result("calm", move |text, _| {
        let judgement = judge(text, &log);
        Box::pin(async move { judgement })
    })
}

#[tokio::test]
async fn a_reply_is_judged_before_anybody_receives_a_piece_of_it() -> Result<()> {
    let table = [
        ("all is well", Ok("all is well")),
        ("the secret is out", Ok("the *** is out")),
        ("a bad word", Err("denied by calm: it is bad")),
        ("broken", Err("denied by calm: the check failed: the service is gone")),
    ];
    for (reply, expected) in table {
        for streams in [true, false] {
            let log = Log::default();
            let script = ScriptedModel::new("test").reply(Reply::text(reply).in_pieces(3));
            let agent = agent(&script).with(output(&log)).build()?;
            let (tokens, session) = (Log::default(), Session::new());
            let to = tokens.clone();
            let run = agent.ask("go").session(&session);
            let run = if streams { run.on_token(move |token| to.add(token.text())) } else { run };
            let answer = run.await;
            let said = tokens.lines();
            match expected {
                Ok(text) => {
                    assert_eq!(answer?.text(), text);
                    assert_eq!(said.concat(), if streams { text } else { "" });
                }
                Err(text) => {
                    assert_eq!(answer.unwrap_err().explain(), text);
                    assert_eq!(said, [""; 0], "{reply}");
                }
            }
            assert_eq!(log.lines(), [reply], "it is judged once");
            assert!(!texts(&session).concat().contains("secret"));
            assert_valid(&session);
        }
    }
    Ok(())
}

#[tokio::test]
async fn a_reply_with_calls_is_judged_and_one_without_text_is_not() -> Result<()> {
    let log = Log::default();
    let call = Message::assistant("my secret plan").with_call(emitree_agent::ToolCall::new(
        "a",
        "shout",
        json!({"text": "x"}),
    ));
    let script = ScriptedModel::new("test")
        .reply(Reply::response(emitree_agent::ChatResponse::new(call)))
        .call("shout", json!({"text": "y"}))
        .text("done");
    let session = Session::new();
    agent(&script).with(output(&log)).build()?.ask("go").session(&session).await?;
    assert_eq!(log.lines(), ["my secret plan", "done"]);
    assert!(texts(&session).contains(&"my *** plan".to_owned()), "{:?}", texts(&session));
    assert_eq!(session.history().messages()[1].tool_calls().count(), 1);
    Ok(())
}

#[tokio::test]
async fn asking_again_starts_another_attempt_with_the_reason_in_its_prompt() -> Result<()> {
    let script = || ScriptedModel::new("test").text("how rude").text("very well");
    for bound in ["agent", "run", "above"] {
        let (log, of) = (Log::default(), script());
        let builder = agent(&of).max_middleware_retries(1);
        let session = Session::new();
        let answer = match bound {
            "agent" => builder.with(output(&log)).build()?.ask("go").session(&session).await?,
            "run" => builder.build()?.ask("go").with(output(&log)).session(&session).await?,
            _ => builder.build()?.ask("go").middleware(for_tree(joins(output(&log)))).session(&session).await?,
        };
        assert_eq!(answer.text(), "very well", "{bound}");
        let prompt = of.requests()[1].system.clone();
        assert_eq!(prompt.as_deref(), Some("The previous attempt was discarded: be polite"));
        assert_eq!(texts(&session), ["go", "very well"]);
    }
    // Without another attempt, the run is denied, and the error names the method.
    let error = agent(&script()).with(output(&Log::default())).build()?.ask("go").await.unwrap_err();
    let expected = "be polite (`calm` asks again, but no attempt is left: allow more with `max_middleware_retries`)";
    assert_eq!(error.explain(), format!("retry requested: {expected}"));
    Ok(())
}

#[tokio::test]
async fn the_answer_is_judged_again_only_if_output_functions_changed_it() -> Result<()> {
    let change = |to: &'static str| {
        map_output(move |output: &mut AgentOutput, _: &RunContext| {
            output.answer = Message::assistant(to);
            Ok(())
        })
    };
    let log = Log::default();
    let script = || ScriptedModel::new("test").text("fine");
    let session = Session::new();
    let of = agent(&script()).with(output(&log)).middleware(change("a secret")).build()?;
    assert_eq!(of.ask("go").session(&session).await?.text(), "a ***");
    assert_eq!(log.lines(), ["fine", "a secret"]);
    assert_eq!(texts(&session), ["go", "a ***"]);
    let error = agent(&script()).with(output(&log)).middleware(change("bad")).build()?.ask("go").await.unwrap_err();
    assert_eq!(error.explain(), "denied by calm: it is bad");
    Ok(())
}

#[tokio::test]
async fn a_reply_that_a_layer_gives_is_judged_as_well() -> Result<()> {
    let cache = Cache::json().build()?;
    let model = || -> Result<ChatModel> {
        Ok(ChatModel::new(ScriptedModel::new("test").text("a secret"))?.middleware(cache.clone()))
    };
    model()?.run("warm".into()).await?;
    let log = Log::default();
    let answers = hooks_fn("answers", |hooks| {
        hooks.model_call(|stack| {
            stack.layer_fn("answers", |_, _, _| {
                Box::pin(async { Ok(emitree_agent::ChatResponse::new(Message::assistant("a secret"))) })
            })
        });
    });
    let of = Agent::builder("tester", model()?).with(answers).with(output(&log)).build()?;
    assert_eq!(of.ask("go").await?.text(), "a ***");
    assert_eq!(log.lines(), ["a secret"]);
    Ok(())
}

#[tokio::test]
async fn an_input_is_judged_after_the_functions_that_change_it() -> Result<()> {
    let add = |text: &'static str| {
        map_input(move |input: &mut emitree_agent::AgentInput, _: &RunContext| {
            input.messages.push(Message::user(text));
            Ok(())
        })
    };
    let script = || ScriptedModel::new("test").text("done");
    let (log, of) = (Log::default(), script());
    let agent_of = agent(&of).with(input(&log)).middleware(add("my secret")).build()?;
    agent_of.ask("hello").await?;
    assert_eq!(log.lines(), ["my secret"]);
    let texts: Vec<_> = of.requests()[0].messages.iter().map(|message| message.text()).collect();
    assert_eq!(texts, ["hello", "my ***"]);
    for (text, expected) in [
        ("bad", "denied by calm: it is bad"),
        ("rude", "denied by calm: be polite"),
        ("broken", "denied by calm: the check failed: the service is gone"),
    ] {
        let (of, session) = (script(), Session::new());
        let error = agent(&of).with(input(&log)).build()?.ask(text).session(&session).await.unwrap_err();
        assert_eq!(error.explain(), expected);
        assert!(of.requests().is_empty() && session.history().messages().is_empty());
    }
    Ok(())
}

#[tokio::test]
async fn a_result_of_a_tool_is_judged_before_it_enters_the_history() -> Result<()> {
    let says = |name: &'static str, text: &'static str| -> Tool {
        emitree_agent::tool_fn(name, "Says", move |_: crate::support::Text, _: RunContext| async move { Ok(text) })
            .expect("a tool")
    };
    let log = Log::default();
    let call = |name: &str| (name.to_owned(), json!({"text": ""}));
    let script = ScriptedModel::new("test").calls([call("a"), call("b"), call("c")]).text("done");
    let builder = agent(&script).tool(says("a", "fine")).tool(says("b", "a secret")).tool(says("c", "bad"));
    let answer = builder.with(of_results(&log)).build()?.ask("go").await?;
    assert_eq!(results(&answer.messages), ["fine", "a ***", "!denied by calm: it is bad"]);
    assert_eq!(log.lines(), ["fine", "a secret", "bad"]);
    Ok(())
}

#[tokio::test]
async fn several_guardrails_judge_in_order_and_hooks_of_the_builder_do_not_replace_them() -> Result<()> {
    let upper = Guardrail::output("upper", |text, _| {
        let text = text.to_uppercase();
        Box::pin(async { Ok(Judgement::Modify(text)) })
    });
    let log = Log::default();
    let script = ScriptedModel::new("test").text("a secret");
    let of = agent(&script).with(output(&log)).with(upper).hooks(|hooks| {
        hooks.chunks(|| |_: &mut emitree_agent::Chunks, _: &RunContext| Ok(()));
        hooks.agent_run(|stack| stack);
    });
    assert_eq!(of.build()?.ask("go").await?.text(), "A ***");
    // The answer was changed after the first guardrail, so that one judges it again.
    assert_eq!(log.lines(), ["a secret", "A ***"]);
    let twice = agent(&script).with(output(&log)).with(output(&log)).build().unwrap_err().to_string();
    assert!(twice.contains("`guardrail.calm` twice"), "{twice}");
    Ok(())
}

#[tokio::test]
async fn a_hundred_runs_at_a_time_do_not_mix() -> Result<()> {
    let guardrail = Guardrail::output("even", |text, _| {
        let is_even = text.parse::<u32>().is_ok_and(|n| n % 2 == 0);
        Box::pin(async move {
            tokio::task::yield_now().await;
            Ok(if is_even { Judgement::Allow } else { Judgement::block("odd") })
        })
    });
    let runs = (0..100).map(|n: u32| {
        let of = agent(&ScriptedModel::new("test").text(n.to_string())).with(guardrail.clone()).build();
        async move { of.expect("an agent").ask("go").await.is_ok() == n.is_multiple_of(2) }
    });
    assert!(futures_util::future::join_all(runs).await.into_iter().all(|is_right| is_right));
    Ok(())
}

/// A check that does not wait.
fn at_once(
    judge: impl Fn(&str) -> Result<Judgement> + Send + Sync + 'static,
) -> impl for<'a> Fn(&'a str, &'a RunContext) -> BoxFuture<'a, Result<Judgement>> {
    move |text, _| {
        let judgement = judge(text);
        Box::pin(async move { judgement })
    }
}

/// A check that asks a model.
fn asks(judge: ScriptedModel) -> impl for<'a> Fn(&'a str, &'a RunContext) -> BoxFuture<'a, Result<Judgement>> {
    let judge = ChatModel::new(judge).expect("a model");
    move |text, _| {
        let judge = judge.clone();
        Box::pin(async move {
            let verdict = judge.run(text.into()).await?;
            Ok(if verdict.text() == "no" { Judgement::block("the judge says no") } else { Judgement::Allow })
        })
    }
}

#[tokio::test]
async fn a_check_asks_another_model_whose_tokens_nobody_takes_for_the_answer() -> Result<()> {
    let judge = ScriptedModel::by("judge", |request| {
        Reply::text(if request.last_user_text().contains("bad") { "no" } else { "yes" }).in_pieces(1)
    });
    for (input, reply, expected) in [
        ("good", "good", Ok("good")),
        ("bad", "good", Err("denied by question: the judge says no")),
        ("good", "bad", Err("denied by reply: the judge says no")),
    ] {
        let tokens = Log::default();
        let to = tokens.clone();
        let of = agent(&ScriptedModel::new("test").call("shout", json!({"text": "a"})).text(reply))
            .with(Guardrail::input("question", asks(judge.clone())))
            .with(Guardrail::output("reply", asks(judge.clone())))
            .build()?;
        let answer = of.ask(input).on_token(move |token| to.add(token.text())).await;
        assert_eq!(
            answer.as_ref().map(AgentOutput::text).map_err(Error::explain),
            expected.map(str::to_owned).map_err(str::to_owned)
        );
        assert_eq!(tokens.lines().concat(), expected.unwrap_or_default());
    }
    Ok(())
}

/// Asks an agent with a guardrail, and logs the tokens, the texts that are judged and the reports. Returns the answer.
async fn streamed(replies: &[Reply], guardrail: Guardrail, session: &Session, log: &Log) -> Result<String> {
    let script = replies.iter().fold(ScriptedModel::new("test"), |script, reply| script.reply(reply.clone()));
    let agent = agent(&script).with(guardrail).max_middleware_retries(1).build()?;
    let (tokens, reports) = (log.clone(), log.clone());
    let run = agent.ask("go").session(session).on_token(move |token| tokens.add(format!("token {}", token.text())));
    let report = move |would: &WouldDeny, _: &EventMeta<'_>| {
        reports.add(format!("{} would deny the {:?}: {}", would.guard, would.at, would.reason));
    };
    Ok(run.observe("**.would_deny", report).await?.text())
}

#[tokio::test]
async fn with_hold_nothing_tokens_leave_before_the_verdict_and_the_history_has_what_passed() -> Result<()> {
    let again = [Reply::text("so rude").in_pieces(4), Reply::text("fine")];
    for (replies, lines, expected, history) in [
        (
            &[Reply::text("all well").in_pieces(4)][..],
            &["token all ", "token well", "all well"][..],
            Ok("all well"),
            "go, all well",
        ),
        (&[Reply::text("a secret").in_pieces(4)], &["token a se", "token cret", "a secret"], Ok("a ***"), "go, a ***"),
        (&[Reply::text("bad").in_pieces(4)], &["token bad", "bad"], Err("denied by calm: it is bad"), "go"),
        (&again, &["token so r", "token ude", "so rude", "token fine", "fine"], Ok("fine"), "go, fine"),
    ] {
        let (log, session) = (Log::default(), Session::new());
        let answer = streamed(replies, output(&log).hold(Hold::Nothing), &session, &log).await;
        assert_eq!(answer.map_err(|error| error.explain()), expected.map(str::to_owned).map_err(str::to_owned));
        assert_eq!(log.lines(), lines);
        assert_eq!(texts(&session).join(", "), history);
    }
    // A reply that is not streamed is changed before a layer receives it.
    let log = Log::default();
    let to = log.clone();
    let sees = hooks_fn("sees", move |hooks| {
        let to = to.clone();
        hooks.on_action(move |action, _| to.add(format!("action {}", action.response.text())));
    });
    let of = agent(&ScriptedModel::new("test").text("a secret")).with(sees).with(output(&log).hold(Hold::Nothing));
    assert_eq!(of.build()?.ask("go").await?.text(), "a ***");
    assert_eq!(log.lines(), ["a secret", "action a ***"]);
    Ok(())
}

#[tokio::test]
async fn two_guardrails_that_hold_nothing_both_change_a_reply_that_has_left() -> Result<()> {
    let hides = |word: &'static str| {
        let hide = move |text: &str| {
            let other = text.contains(word).then(|| text.replace(word, "***"));
            Ok(other.map_or(Judgement::Allow, Judgement::Modify))
        };
        Guardrail::output(word, at_once(hide)).hold(Hold::Nothing)
    };
    let reply = Message::assistant("my secret plan").with_call(emitree_agent::ToolCall::new(
        "c",
        "shout",
        json!({"text": "x"}),
    ));
    let reply = Reply::response(emitree_agent::ChatResponse::new(reply)).in_pieces(3);
    let script = ScriptedModel::new("test").reply(reply).text("done");
    let (tokens, session) = (Log::default(), Session::new());
    let to = tokens.clone();
    let of = agent(&script).with(hides("secret")).with(hides("plan")).build()?;
    of.ask("go").session(&session).on_token(move |token| to.add(token.text())).await?;
    assert_eq!(tokens.lines().concat(), "my secret plandone");
    assert_eq!(texts(&session)[1], "my *** ***");
    Ok(())
}

#[tokio::test]
async fn a_guardrail_that_only_evaluates_reports_and_changes_nothing() -> Result<()> {
    for (text, report) in [
        ("fine", None),
        ("a secret", Some("the text would be modified")),
        ("bad", Some("it is bad")),
        ("rude", Some("be polite")),
        ("broken", Some("the check failed: the service is gone")),
        ("panic", Some("the check panicked: planned")),
    ] {
        let check = || {
            at_once(|text| {
                assert!(text != "panic", "planned");
                judge(text, &Log::default())
            })
        };
        let reports = |at: &str| report.map(|reason| format!("calm would deny the {at}: {reason}"));

        let (log, session) = (Log::default(), Session::new());
        let of_replies = Guardrail::output("calm", check()).evaluate_only();
        let answer = streamed(&[Reply::text(text).in_pieces(2)], of_replies, &session, &log).await?;
        assert_eq!((answer.as_str(), texts(&session).join(", ")), (text, format!("go, {text}")));
        let (tokens, rest): (Vec<_>, Vec<_>) = log.lines().into_iter().partition(|line| line.starts_with("token "));
        assert_eq!(tokens.concat().replace("token ", ""), text);
        assert!(log.lines()[0].starts_with("token "), "the stream is not held");
        assert_eq!(rest, Vec::from_iter(reports("Output")));

        // The question is the result of the tool, too.
        let log = Log::default();
        let to = log.clone();
        let same =
            emitree_agent::tool_fn("same", "Repeats", |it: crate::support::Text, _: RunContext| async { Ok(it.text) });
        let script = ScriptedModel::new("test").call("same", json!({ "text": text })).text("done");
        let of = agent(&script).tool(same).with(Guardrail::input("calm", check()).evaluate_only());
        let of =
            of.with(hooks_fn("calm", |_| ())).with(Guardrail::tool_result("calms", check()).evaluate_only()).build()?;
        let observed = move |would: &WouldDeny, _: &EventMeta<'_>| {
            to.add(format!("{} would deny the {:?}: {}", would.guard, would.at, would.reason));
        };
        let answer = of.ask(text).observe("would_deny", observed).await?;
        assert_eq!(results(&answer.messages), [text]);
        let of_tool = reports("Output").map(|line| line.replace("calm would", "calms would"));
        assert_eq!(log.lines(), reports("Input").into_iter().chain(of_tool).collect::<Vec<_>>());
    }
    Ok(())
}

#[tokio::test]
async fn hold_is_an_error_where_nothing_is_streamed_and_holds_a_guardrail_that_only_evaluates() -> Result<()> {
    let allow = || at_once(|_| Ok(Judgement::Allow));
    for (guardrail, side) in
        [(Guardrail::input("a", allow()), "Input"), (Guardrail::tool_result("a", allow()), "ToolResult")]
    {
        let says = format!(
            "the guardrail `a` has `hold(Hold::Nothing)`, but it judges {side}: only `Guardrail::output` judges what is \
             streamed"
        );
        assert_eq!(super::refused(guardrail.hold(Hold::Nothing)).await, says);
    }
    let (log, session) = (Log::default(), Session::new());
    let held = output(&log).evaluate_only().hold(Hold::Reply);
    streamed(&[Reply::text("bad").in_pieces(2)], held, &session, &log).await?;
    assert_eq!(log.lines(), ["bad", "calm would deny the Output: it is bad", "token ba", "token d"]);
    Ok(())
}

/// Only compiled: a guardrail is a middleware like any other.
#[expect(dead_code, reason = "the types are checked")]
fn types(guardrail: Guardrail) -> (emitree_agent::Joins, HooksFn) {
    (joins(guardrail), hooks_fn("none", |_| ()))
}

// A1: one run is dropped while the result is judged, the other one while another call is running.
#[tokio::test(start_paused = true)]
async fn a_result_that_was_not_judged_is_not_kept_if_the_run_ends() -> Result<()> {
    let waits = emitree_agent::tool_fn("wait", "Waits", |_: crate::support::Text, _: RunContext| async {
        std::future::pending::<()>().await;
        Ok("never")
    })?;
    let secret =
        emitree_agent::tool_fn("secret", "Says", |_: crate::support::Text, _: RunContext| async { Ok("the secret") })?;
    let unchecked = "!the tool was called, but the run ended before its result was checked: it may have had effects";
    let stopped = "!the run was stopped while the tool was running: it may have had effects";
    let call = |name: &str| (name.to_owned(), json!({"text": ""}));
    for (calls, expected) in [(vec!["secret"], vec![unchecked]), (vec!["secret", "wait"], vec![unchecked, stopped])] {
        let slow = Guardrail::tool_result("slow", |_, _| Box::pin(std::future::pending()));
        let script = ScriptedModel::new("test").calls(calls.into_iter().map(call));
        let of = agent(&script).tool(secret.clone()).tool(waits.clone()).with(slow).build()?;
        let session = Session::new();
        let run = of.ask("go").session(&session).timeout(std::time::Duration::from_secs(1));
        assert!(run.await.unwrap_err().is_timed_out());
        assert_eq!(results(assert_valid(&session).messages()), expected);
    }
    Ok(())
}

#[tokio::test]
async fn a_message_that_is_sent_to_the_run_is_judged_as_an_input() -> Result<()> {
    let (log, session) = (Log::default(), Session::new());
    for text in ["fine", "a secret", "a bad word", "broken"] {
        session.steer(text).expect("sent");
    }
    let script = ScriptedModel::new("test").text("done");
    agent(&script).with(input(&log)).build()?.ask("go").session(&session).await?;
    assert_eq!(log.lines(), ["go", "fine", "a secret", "a bad word", "broken"]);
    let expected = ["go", "fine", "a ***", "(withheld by calm)", "(withheld by calm)", "done"];
    assert_eq!(texts(&session), expected);
    assert!(session.undelivered().is_empty());
    Ok(())
}
