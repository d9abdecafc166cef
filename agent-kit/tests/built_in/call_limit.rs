//! `CallLimit`: calls of tools and of the model that exceed a limit are denied, or end the loop or the run.

use emitree_agent::{
    Agent, AgentBuilder, AgentRun, ChatModel, ChatResponse, Chunks, Delta, Message, Reply, ScriptedModel, Session,
    ToolCall, hooks_fn, joins,
};
use emitree_agent_kit::built_in::{CallLimit, Then};
use emitree_middleware::{Cache, Runs};
use emitree_runtime::{Error, Result, RunContext, for_tree, map_output};
use futures_util::future::try_join_all;
use serde_json::json;

use super::bound::{Bound, restored};
use crate::support::{Log, agent, assert_valid, fail, refuse_bad, results, shout};

/// A model that calls `shout` with each letter of a word in one turn, for each word, and then answers "done".
fn shouts(words: &str) -> ScriptedModel {
    let calls =
        |word: &str| word.chars().map(|letter| ("shout", json!({"text": letter.to_string()}))).collect::<Vec<_>>();
    let script = ScriptedModel::new("test");
    words.split(' ').fold(script, |script, word| script.calls(calls(word))).text("done")
}

fn denied(most: u64) -> String {
    let calls = if most == 1 { "call" } else { "calls" };
    format!("!denied by call_limit.tool.shout: the limit of {most} {calls} of `shout` is reached")
}

#[tokio::test]
async fn the_calls_of_a_tool_that_exceed_a_limit_are_denied_in_call_order() -> Result<()> {
    for bound in Bound::each_way() {
        for (most, expected) in [(0, 0), (1, 1), (2, 2), (3, 3), (4, 3)] {
            let limit = CallLimit::tool("shout").per_run(most);
            let answer = bound.ask(agent(&shouts("ab c")), limit, &Session::new()).await?;
            let executed = ["A", "B", "C"].map(str::to_owned);
            let mut all = executed[..expected].to_vec();
            all.resize(3, denied(most));
            assert_eq!((results(&answer.messages), answer.text()), (all, "done".to_owned()), "{most} {bound:?}");
        }
    }
    Ok(())
}

#[tokio::test]
async fn a_limit_for_all_tools_counts_each_tool_and_a_limit_for_one_tool_only_its_calls() -> Result<()> {
    let calls = [("shout", json!({"text": "a"})), ("fail", json!({"text": ""})), ("shout", json!({"text": "b"}))];
    let script = || ScriptedModel::new("test").calls(calls.clone()).text("done");
    let tools = || agent(&script()).tool(fail("fail", || Error::new("broken")));
    let answer = Bound::TO_AGENT.ask(tools(), CallLimit::tools().per_run(2), &Session::new()).await?;
    let denied = "!denied by call_limit.tools: the limit of 2 tool calls is reached";
    assert_eq!(results(&answer.messages), ["A", "!broken", denied]);
    let both = tools().with(CallLimit::tool("fail").per_run(0)).with(CallLimit::tool("shout").per_run(2));
    let answer = both.build()?.ask("go").await?;
    let denied = "!denied by call_limit.tool.fail: the limit of 0 calls of `fail` is reached";
    assert_eq!(results(&answer.messages), ["A", denied, "B"]);
    Ok(())
}

#[tokio::test]
async fn calls_that_were_denied_before_or_cannot_be_executed_are_not_counted() -> Result<()> {
    let denies_a = hooks_fn("denies_a", |hooks| {
        hooks.on_gate_each(|gated, _| {
            if gated.call.arguments == json!({"text": "a"}).into() {
                gated.deny("denies_a", "not a");
            }
        });
    });
    let calls = [json!({"text": "a"}), json!({"text": 1}), json!({"text": "b"}), json!({"text": "c"})];
    let script = ScriptedModel::new("test").calls(calls.map(|arguments| ("shout", arguments))).text("done");
    let answer =
        Bound::TO_AGENT.ask(agent(&script).with(denies_a), CallLimit::tools().per_run(1), &Session::new()).await?;
    let results = results(&answer.messages);
    assert_eq!(results[0], "!denied by denies_a: not a");
    assert!(results[1].starts_with("!the arguments of `shout` are invalid"), "{results:?}");
    assert_eq!(results[2], "B");
    assert!(results[3].contains("the limit of 1 tool call is reached"), "{results:?}");
    Ok(())
}

#[tokio::test]
async fn then_finish_ends_the_loop_after_the_turn_with_the_text_of_the_model_or_a_sentence() -> Result<()> {
    let calls = |text: &str| {
        let call = |id| ToolCall::new(id, "shout", json!({"text": id}));
        Reply::response(ChatResponse::new(Message::assistant(text).with_call(call("a")).with_call(call("b"))))
    };
    let sentence = "The limit of 1 call of `shout` is reached.";
    for bound in Bound::each_way() {
        for (text, expected) in [("Let me see.", "Let me see."), ("", sentence)] {
            let (session, script) = (Session::new(), ScriptedModel::new("test").reply(calls(text)));
            let limit = CallLimit::tool("shout").per_run(1).then(Then::Finish);
            let answer = bound.ask(agent(&script), limit, &session).await?;
            assert_eq!((answer.text().as_str(), answer.turns), (expected, 1), "{bound:?}");
            let refused = if text.is_empty() { format!("!{sentence}") } else { denied(1) };
            assert_eq!(results(&answer.messages), ["A", &*refused]);
            assert_valid(&session);
            if text.is_empty() {
                assert_eq!(session.history().messages().last().map(|last| last.text()), Some(expected.to_owned()));
            }
        }
        // Below the limit, nothing changes.
        let limit = CallLimit::tool("shout").per_run(2).then(Then::Finish);
        assert_eq!(bound.ask(agent(&shouts("ab")), limit, &Session::new()).await?.text(), "done");
    }
    Ok(())
}

#[tokio::test]
async fn a_sentence_as_the_answer_passes_the_stages_and_in_place_of_a_tools_result_it_is_a_token() -> Result<()> {
    let limits = [
        CallLimit::tool("shout").per_run(1).then(Then::Finish),
        CallLimit::model().per_run(1),
        CallLimit::tools().per_run(1).then(Then::Finish),
    ];
    let expected = ["1 CALL OF `SHOUT`", "1 MODEL CALL", "1 TOOL CALL"];
    for (limit, expected) in limits.into_iter().zip(expected) {
        let loud = hooks_fn("loud", |hooks| {
            hooks.chunks(|| {
                |chunks: &mut Chunks, _: &RunContext| {
                    for delta in &mut chunks.deltas {
                        if let Delta::Text(text) = delta {
                            text.make_ascii_uppercase();
                        }
                    }
                    Ok(())
                }
            });
        });
        let (log, agent) = (Log::default(), agent(&shouts("ab")).with(loud).build()?);
        let to = log.clone();
        let answer = agent.ask("go").with(limit).on_token(move |token| to.add(token.text())).await?;
        let sentence = format!("THE LIMIT OF {expected} IS REACHED.");
        // As any reply of a layer, the sentence in place of a model's reply is not a token.
        let token = if expected.contains("MODEL") { "" } else { &sentence };
        assert_eq!((answer.text().as_str(), log.lines().concat().as_str()), (&*sentence, token));
    }
    Ok(())
}

#[tokio::test]
async fn then_fail_fails_the_run_when_the_other_calls_have_settled() -> Result<()> {
    for bound in Bound::each_way() {
        let session = Session::new();
        let limit = || CallLimit::tool("shout").per_run(1).then(Then::Fail);
        let error = bound.ask(agent(&shouts("ab")), limit(), &session).await.unwrap_err();
        assert_eq!(error.to_string(), "the limit of 1 call of `shout` is reached");
        assert!(!error.is_fatal() && !error.is_control_flow());
        assert_eq!(results(assert_valid(&session).messages()), ["A".to_owned(), denied(1)]);
        assert_eq!(bound.ask(agent(&shouts("a b")), limit().per_run(2), &session).await?.text(), "done");
    }
    Ok(())
}

#[tokio::test]
async fn a_limit_of_model_calls_ends_the_loop_with_the_text_of_the_model_or_a_sentence() -> Result<()> {
    for bound in Bound::each_way() {
        for (most, expected, asked) in [
            (0, "The limit of 0 model calls is reached.", 0),
            (1, "The limit of 1 model call is reached.", 1),
            (2, "The limit of 2 model calls is reached.", 2),
            (3, "done", 3),
            (4, "done", 3),
        ] {
            let (script, session) = (shouts("a b"), Session::new());
            let answer = bound.ask(agent(&script), CallLimit::model().per_run(most), &session).await?;
            assert_eq!((answer.text().as_str(), script.requests().len()), (expected, asked), "{bound:?}");
            assert_eq!(results(&answer.messages), &["A", "B"][..asked.min(2)]);
            let history = assert_valid(&session);
            assert_eq!(history.messages().last().map(|last| last.text()), Some(expected.to_owned()));
        }
        let call = ToolCall::new("a", "shout", json!({"text": "a"}));
        let asks = Message::assistant("Let me see.").with_call(call);
        let script = ScriptedModel::new("test").reply(Reply::response(ChatResponse::new(asks)));
        let answer = bound.ask(agent(&script), CallLimit::model().per_run(1), &Session::new()).await?;
        assert_eq!((answer.text(), results(&answer.messages)), ("Let me see.".to_owned(), vec!["A".to_owned()]));
    }
    Ok(())
}

#[tokio::test]
async fn a_limit_of_model_calls_with_then_fail_fails_before_the_next_call() -> Result<()> {
    for (most, asked) in [(1, 1), (2, 2)] {
        let script = shouts("a b");
        let limit = CallLimit::model().per_run(most).then(Then::Fail);
        let error = Bound::TO_AGENT.ask(agent(&script), limit, &Session::new()).await.unwrap_err().to_string();
        assert!(error.starts_with(&format!("the limit of {most} model call")), "{error}");
        assert_eq!(script.requests().len(), asked);
    }
    let limit = CallLimit::model().per_run(3).then(Then::Fail);
    assert_eq!(Bound::TO_AGENT.ask(agent(&shouts("a b")), limit, &Session::new()).await?.text(), "done");
    Ok(())
}

#[tokio::test]
async fn the_sentence_for_a_model_call_is_not_kept_by_a_cache() -> Result<()> {
    let script = ScriptedModel::new("test").text("done");
    let model = ChatModel::new(script.clone())?.middleware(Cache::json().build()?);
    let agent = Agent::builder("tester", model).build()?;
    let refused = agent.ask("go").with(CallLimit::model().per_run(0)).await?;
    assert_eq!(refused.text(), "The limit of 0 model calls is reached.");
    assert_eq!(agent.ask("go").await?.text(), "done");
    assert_eq!((agent.ask("go").await?.text(), script.requests().len()), ("done".to_owned(), 1));
    Ok(())
}

#[tokio::test]
async fn per_session_counts_all_runs_of_a_session_also_after_it_was_restored() -> Result<()> {
    let limit = || CallLimit::tool("shout").per_run(2).per_session(3);
    let session = Session::new();
    let run = |session: Session, word: &'static str| async move {
        let answer = Bound::TO_AGENT.ask(agent(&shouts(word)), limit(), &session).await?;
        Ok::<_, Error>(results(&answer.messages))
    };
    assert_eq!(run(session.clone(), "abc").await?, ["A".to_owned(), "B".to_owned(), denied(2)]);
    let session = restored(&session);
    assert_eq!(run(session.clone(), "abc").await?, ["A".to_owned(), denied(3), denied(3)]);
    assert_eq!(run(session, "a").await?, [denied(3)]);
    assert_eq!(run(Session::new(), "a").await?, ["A"]);

    let (session, models) = (Session::new(), CallLimit::model().per_session(3));
    assert_eq!(Bound::TO_AGENT.ask(agent(&shouts("a")), models.clone(), &session).await?.text(), "done");
    let answer = Bound::TO_AGENT.ask(agent(&shouts("a")), models.clone(), &session).await?;
    assert_eq!(answer.text(), "The limit of 3 model calls is reached.");
    let (session, script) = (restored(&session), shouts("a"));
    assert_eq!(Bound::TO_AGENT.ask(agent(&script), models, &session).await?.text(), answer.text());
    assert_eq!(script.requests().len(), 0);
    Ok(())
}

/// A model that calls `shout` once for each user message.
fn shouts_once() -> ScriptedModel {
    ScriptedModel::by("test", |request| {
        let has_called = request.messages.last().is_some_and(|last| last.tool_results().next().is_some());
        if has_called { Reply::text("done") } else { Reply::calls([("shout", json!({"text": "a"}))]) }
    })
}

#[tokio::test]
async fn a_hundred_runs_at_once_have_counts_of_their_own_and_share_those_of_their_session() -> Result<()> {
    let agent = agent(&shouts_once()).build()?;
    let runs = (0..100).map(|_| agent.ask("go").with(CallLimit::tool("shout").per_run(1)));
    for answer in try_join_all(runs.map(IntoFuture::into_future)).await? {
        assert_eq!(results(&answer.messages), ["A"]);
    }
    let session = Session::new();
    let limit = || CallLimit::tool("shout").per_session(30);
    let runs = (0..100).map(|_| agent.ask("go").with(limit()).session(&session));
    let answers = try_join_all(runs.map(IntoFuture::into_future)).await?;
    let executed = answers.iter().filter(|answer| results(&answer.messages) == ["A"]).count();
    assert_eq!(executed, 30);
    Ok(())
}

#[tokio::test]
async fn a_discarded_attempt_takes_its_calls_back() -> Result<()> {
    let bad_then_good = || {
        let call = || json!({"text": "a"});
        ScriptedModel::new("test").call("shout", call()).text("bad").text("bad").call("shout", call()).text("good")
    };
    let retried = async |limit: CallLimit| {
        let agent = agent(&bad_then_good()).with(limit).middleware(map_output(refuse_bad)).build()?;
        agent.ask("go").max_middleware_retries(2).await
    };
    for limit in [CallLimit::tool("shout").per_run(1), CallLimit::tool("shout").per_session(1)] {
        assert_eq!(results(&retried(limit).await?.messages), ["A"]);
    }
    assert_eq!(retried(CallLimit::model().per_run(2)).await?.text(), "good");
    Ok(())
}

/// An agent whose tool `fail` fails, and a model that calls it in each of four turns.
fn failing() -> AgentBuilder {
    let script = (0..4).fold(ScriptedModel::new("test"), |script, _| script.call("fail", json!({"text": ""})));
    agent(&script.text("done")).tool(fail("fail", || Error::new("broken")))
}

#[tokio::test]
async fn after_so_many_failures_of_a_tool_further_calls_are_denied_with_advice() -> Result<()> {
    for bound in Bound::each_way() {
        for most in [1, 3, 4, 5] {
            let answer = bound.ask(failing(), CallLimit::failures("fail", most), &Session::new()).await?;
            let results = results(&answer.messages);
            let failed = results.iter().filter(|result| *result == "!broken").count();
            assert_eq!(failed as u64, most.min(4), "{results:?} {bound:?}");
            let advice = "calls of `fail` is reached: do something else";
            assert!(results[failed..].iter().all(|denied| denied.replace("call of", "calls of").ends_with(advice)));
        }
    }
    let finish = CallLimit::failures("fail", 2).then(Then::Finish);
    let answer = Bound::TO_AGENT.ask(failing(), finish, &Session::new()).await?;
    assert_eq!(answer.text(), "The limit of 2 failed calls of `fail` is reached.");
    let session = Session::new();
    for (words, expected) in [("a", "A"), ("b", "B")] {
        let answer = Bound::TO_AGENT.ask(agent(&shouts(words)), CallLimit::failures("shout", 1), &session).await?;
        assert_eq!(results(&answer.messages), [expected], "calls that succeed are not counted");
    }
    Ok(())
}

#[tokio::test]
async fn a_hook_of_the_builder_does_not_replace_a_limit() -> Result<()> {
    let builder = agent(&shouts("ab")).hooks(|hooks| {
        hooks.on_request(|_, _| ());
        hooks.on_stop(|_, _| Ok(false));
    });
    let error = builder.with(CallLimit::model().per_run(1).then(Then::Fail)).build()?.ask("go").await.unwrap_err();
    assert_eq!(error.to_string(), "the limit of 1 model call is reached");
    Ok(())
}

#[tokio::test]
async fn a_count_that_cannot_be_read_denies_the_calls() -> Result<()> {
    let stored = json!({"format": 1, "messages": [], "state": {"call_limit.tool.shout": "many"}});
    let session: Session = serde_json::from_value(stored).expect("a session");
    let answer = Bound::TO_AGENT.ask(agent(&shouts("a")), CallLimit::tool("shout").per_session(1), &session).await?;
    let results = results(&answer.messages);
    assert!(results[0].contains("the stored state `call_limit.tool.shout` cannot be deserialized"), "{results:?}");
    Ok(())
}

#[tokio::test]
async fn a_limit_for_a_tree_is_an_error_in_an_agent_without_the_tool_unless_it_selects_agents() -> Result<()> {
    let above = || {
        let below = Agent::builder("finder", ChatModel::new(shouts("ab"))?).tool(shout()).build()?;
        let calls = ScriptedModel::new("above").call("finder", json!({"task": "go"})).text("done");
        Agent::builder("above", ChatModel::new(calls)?).tool(below.as_tool("Finds")?).build()
    };
    let limit = || joins(CallLimit::tool("shout").per_run(1).then(Then::Finish));
    let error = above()?.ask("go").middleware(for_tree(limit())).await.unwrap_err().to_string();
    assert!(error.ends_with("names the tool `shout`, but the agent `above` has only `finder`"), "{error}");
    let answer = above()?.ask("go").middleware(for_tree(Runs::named("finder").only(limit()))).await?;
    assert_eq!(results(&answer.messages), ["The limit of 1 call of `shout` is reached."]);
    Ok(())
}

#[tokio::test]
async fn a_limit_that_can_never_act_is_an_error_that_quotes_it() {
    let refused = |limit: CallLimit| agent(&shouts("a")).with(limit).build().unwrap_err().to_string();
    let cases = [
        (CallLimit::tool("shout"), r#"`CallLimit::tool("shout")` limits nothing: call `per_run` or `per_session`"#),
        (
            CallLimit::tool("shot").per_run(1),
            "the middleware `call_limit.tool.shot` names the tool `shot`, but the agent `tester` has only `shout`",
        ),
        (
            CallLimit::failures("fail", 1),
            "the middleware `call_limit.failures.fail` names the tool `fail`, but the agent `tester` has only `shout`",
        ),
        (
            CallLimit::failures("shout", 0),
            r#"`CallLimit::failures("shout", 0)` would deny each call before it can fail: allow at least 1"#,
        ),
        (
            CallLimit::model().per_run(1).per_session(2).then(Then::Deny),
            "`CallLimit::model().per_run(1).per_session(2).then(Then::Deny)` cannot deny calls of the model: use \
             `Finish` or `Fail`",
        ),
    ];
    for (limit, expected) in cases {
        assert_eq!(refused(limit.clone()), expected);
        let of_run = agent(&shouts("a")).build().expect("an agent").ask("go").with(limit).await.unwrap_err();
        assert_eq!(of_run.to_string(), expected);
    }
    let twice = agent(&shouts("a")).with(CallLimit::tools().per_run(1)).with(CallLimit::tools().per_session(9)).build();
    assert!(twice.unwrap_err().to_string().contains("`call_limit.tools` twice"));
}
