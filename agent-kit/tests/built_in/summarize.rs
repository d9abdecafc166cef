//! `Summarize`: a model's summary replaces the older part of a long history.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use emitree_agent::{
    Agent, AgentInput, AgentOutput, AgentRun, ChatModel, History, Message, NewToken, Reply, ScriptedModel, Session,
    Usage, hooks_fn,
};
use emitree_agent_kit::built_in::{Summarize, Summarized, SummaryFailed};
use emitree_emitter::EventMeta;
use emitree_middleware::{Budget, OverrideOutput, Redact, budget};
use emitree_runtime::{Error, Interrupt, Result, RunContext, map_output};
use futures_util::future::join_all;

use super::{call, refused, session_of, short, shown_in_each_way, talk};
use crate::support::{Log, assert_valid, refuse_bad};

const FIRST_LINE: &str = "Summary of the conversation so far:";

/// One token for each message.
fn one_each(messages: &[Arc<Message>], _: &RunContext) -> u64 {
    messages.len() as u64
}

fn summary(text: &str) -> String {
    format!("u {FIRST_LINE}\n\n{text}")
}

fn model(script: &ScriptedModel) -> ChatModel {
    ChatModel::new(script.clone()).expect("a model")
}

/// A model whose summaries are numbered: `S1`, `S2` and so on.
fn numbered() -> ScriptedModel {
    let count = Mutex::new(0);
    ScriptedModel::by("small", move |_| {
        let mut count = count.lock().expect("no panic");
        *count += 1;
        Reply::text(format!("S{count}"))
    })
}

fn summarize(small: &ScriptedModel) -> Summarize {
    Summarize::with(model(small)).counter(one_each)
}

/// An agent that always answers `answer`, with the script that has its requests.
fn agent(summarize: Summarize) -> (Agent, ScriptedModel) {
    let script = ScriptedModel::by("large", |_| Reply::text("answer"));
    (Agent::builder("friend", model(&script)).with(summarize).build().expect("an agent"), script)
}

async fn go_on(agent: &Agent, session: &Session) -> Result<Vec<String>> {
    agent.ask(AgentInput::default()).session(session).await?;
    Ok(short(assert_valid(session).messages()))
}

#[tokio::test]
async fn the_messages_before_the_last_ones_become_one_user_message_if_the_history_is_too_long() -> Result<()> {
    let all = ["u u1", "a a1", "u u2", "a a2", "u u3"].map(str::to_owned).to_vec();
    for (over, keep, expected) in [
        (4, 1, [vec![summary("S1")], all[4..].to_vec()].concat()),
        (4, 2, [vec![summary("S1")], all[3..].to_vec()].concat()),
        (4, 4, [vec![summary("S1")], all[1..].to_vec()].concat()),
        // The limit is 5 tokens, and the history has 5.
        (5, 1, all.clone()),
        (6, 1, all.clone()),
        // The last user message stays.
        (4, 0, [vec![summary("S1")], all[4..].to_vec()].concat()),
    ] {
        let small = numbered();
        let (agent, script) = agent(summarize(&small).over_tokens(over).keep_messages(keep));
        let session = session_of([talk(1).to_vec(), talk(2).to_vec(), vec![Message::user("u3")]].concat())?;
        let history = go_on(&agent, &session).await?;
        assert_eq!(history[..history.len() - 1], expected, "over {over}, keep {keep}");
        assert_eq!(short(&script.requests()[0].messages), expected);
        assert_eq!(small.requests().len(), usize::from(over < 5));
    }
    Ok(())
}

#[tokio::test]
async fn by_default_20_messages_stay_of_more_than_60_000_tokens() -> Result<()> {
    // Each message has 8 tokens, and 3,000 for its text.
    let small = numbered();
    let long = |n: usize| [Message::user(format!("{n:012000}")), Message::assistant(format!("{n:012000}"))];
    let (agent, script) = agent(Summarize::with(model(&small)));
    let history = |pairs: usize| (0..pairs).flat_map(long).collect::<Vec<_>>();
    go_on(&agent, &session_of(history(9))?).await?;
    assert_eq!((script.requests()[0].messages.len(), small.requests().len()), (18, 0));
    go_on(&agent, &session_of(history(12))?).await?;
    assert_eq!((script.requests()[1].messages.len(), small.requests().len()), (21, 1));
    Ok(())
}

#[tokio::test]
async fn a_later_summary_replaces_the_earlier_one_also_in_a_restored_session() -> Result<()> {
    let small = numbered();
    let (agent, _) = agent(summarize(&small).over_tokens(6).keep_messages(2));
    let mut session = session_of([talk(1), talk(2), talk(3)].concat())?;
    for (text, last, expected) in [("u4", "a3", "S1"), ("u5", "answer", "S1"), ("u6", "answer", "S2")] {
        agent.ask(text).session(&session).await?;
        let history = short(assert_valid(&session).messages());
        assert_eq!(history[0], summary(expected));
        assert_eq!(history[history.len() - 3..], [format!("a {last}"), format!("u {text}"), "a answer".to_owned()]);
        assert_eq!(history.iter().filter(|message| message.contains(FIRST_LINE)).count(), 1);
        session = serde_json::from_str(&serde_json::to_string(&session).expect("JSON")).expect("a session");
    }
    let prompt = small.requests()[1].last_user_text();
    assert!(prompt.contains(&format!("user: {FIRST_LINE}\n\nS1\n\nassistant: a3\n\nuser: u4")), "{prompt}");
    Ok(())
}

#[tokio::test]
async fn a_call_stays_with_its_results_and_the_last_user_message_follows_the_summary() -> Result<()> {
    let small = numbered();
    let (agent, _) = agent(summarize(&small).over_tokens(4).keep_messages(1));
    let history = [vec![Message::user("u")], call("x", "1").to_vec(), call("x", "2").to_vec()].concat();
    let session = session_of(history)?;
    let expected = [summary("S1"), "u u".into(), "a x?".into(), "t 2".into(), "a answer".into()];
    assert_eq!(go_on(&agent, &session).await?, expected);
    let prompt = small.requests()[0].last_user_text();
    assert!(prompt.ends_with("user: u\n\ncall of x: {}\n\nresult of x: 1"), "{prompt}");
    Ok(())
}

#[tokio::test]
async fn a_summary_alone_is_not_summarized_again() -> Result<()> {
    let small = numbered();
    let (agent, _) = agent(summarize(&small).over_tokens(2).keep_messages(2));
    let session = session_of([talk(1).to_vec(), vec![Message::user("u2")], call("x", "1").to_vec()].concat())?;
    assert_eq!(go_on(&agent, &session).await?[..2], [summary("S1"), "u u2".to_owned()]);
    assert_eq!(small.requests().len(), 1);
    // The last answer is the only message that is not kept, and new.
    let session = session_of([vec![Message::user("u")], call("x", "1").to_vec()].concat())?;
    go_on(&agent, &session).await?;
    assert_eq!(small.requests().len(), 1, "the part has only the last user message");
    Ok(())
}

#[tokio::test]
async fn a_users_message_that_looks_like_a_summary_is_the_last_user_message() -> Result<()> {
    let small = numbered();
    let (agent, _) = agent(summarize(&small).over_tokens(2).keep_messages(1));
    let session = session_of([talk(1), talk(2)].concat())?;
    agent.ask("go").session(&session).await?;
    agent.ask(format!("{FIRST_LINE} nothing")).session(&session).await?;
    let history = short(session.history().messages());
    assert_eq!(history, [summary("S2"), format!("u {FIRST_LINE} nothing"), "a answer".to_owned()]);
    Ok(())
}

#[tokio::test]
async fn a_failure_keeps_the_history_and_after_three_in_a_row_five_turns_pass_without_a_request() -> Result<()> {
    let small = ScriptedModel::by("small", |_| Reply::error(Error::new("overloaded")));
    let middleware = summarize(&small).over_tokens(2).keep_messages(0);
    let failures = Arc::new(Mutex::new(Vec::new()));
    let (own, of_run) = (Arc::clone(&failures), Log::default());
    let listener = move |event: &SummaryFailed, _: &EventMeta<'_>| {
        own.lock().expect("no panic").push((event.error.clone(), event.failures));
    };
    middleware.emitter().observe("failed", listener).expect("a listener");
    let (agent, _) = agent(middleware);
    let mut session = session_of(talk(1))?;
    let mut asked = Vec::new();
    for turn in 0..12 {
        let log = of_run.clone();
        let run = agent.ask("go").session(&session);
        run.observe("middleware.summarize.failed", move |event: &SummaryFailed, _| log.add(&event.error)).await?;
        asked.push(small.requests().len());
        assert_eq!(assert_valid(&session).messages().len(), 2 + 2 * (turn + 1));
        // The count is part of the session.
        session = serde_json::from_str(&serde_json::to_string(&session).expect("JSON")).expect("a session");
    }
    assert_eq!(asked, [1, 2, 3, 3, 3, 3, 3, 3, 4, 5, 6, 6]);
    let counts: Vec<_> = failures.lock().unwrap().iter().map(|(_, count)| *count).collect();
    assert_eq!(counts, [1, 2, 3, 1, 2, 3]);
    assert_eq!(of_run.lines(), ["overloaded"; 6]);
    Ok(())
}

#[tokio::test]
async fn a_success_ends_a_row_of_failures_and_an_empty_summary_is_a_failure() -> Result<()> {
    let error = || Error::new("overloaded");
    let small =
        ScriptedModel::new("small").error(error()).text(" \n").text("S").error(error()).error(error()).text("T");
    let middleware = summarize(&small).over_tokens(2).keep_messages(0);
    let log = Log::default();
    let (failed, succeeded) = (log.clone(), log.clone());
    let on_failed = move |event: &SummaryFailed, _: &EventMeta<'_>| {
        failed.add(format!("{} {}", event.failures, event.error));
    };
    middleware.emitter().observe("failed", on_failed).expect("a listener");
    let on_success = move |event: &Summarized, _: &EventMeta<'_>| {
        succeeded.add(format!("{} of {}: {}", event.messages, event.tokens, event.summary));
    };
    middleware.emitter().observe("summarized", on_success).expect("a listener");
    let (agent, _) = agent(middleware);
    let session = session_of(talk(1))?;
    for _ in 0..6 {
        agent.ask("go").session(&session).await?;
    }
    let expected = [
        "1 overloaded".to_owned(),
        "2 the summary of the model `small` is empty".to_owned(),
        format!("7 of 7: {FIRST_LINE}\n\nS"),
        "1 overloaded".to_owned(),
        "2 overloaded".to_owned(),
        format!("8 of 8: {FIRST_LINE}\n\nT"),
    ];
    assert_eq!(log.lines(), expected);
    Ok(())
}

#[tokio::test]
async fn its_tokens_are_charged_to_budgets_but_are_neither_in_the_usage_nor_received_by_on_token() -> Result<()> {
    let reply = |text| Reply::text(text).usage(Usage::new(100, 10)).in_pieces(2);
    let small = ScriptedModel::by("small", move |_| reply("a summary"));
    let large = ScriptedModel::by("large", move |_| reply("answer"));
    let options = emitree_agent::ChatOptions::new().stream(true);
    let streams = Summarize::with(model(&small).options(options)).counter(one_each).over_tokens(2).keep_messages(0);
    let agent = Agent::builder("friend", model(&large)).with(streams).build()?;
    let session = session_of([talk(1), talk(2)].concat())?;
    let budget = Budget::builder().tokens(10_000).build().expect("a budget");
    let spent = Arc::new(Mutex::new(0));
    let to = Arc::clone(&spent);
    let reads = map_output(move |_: &mut AgentOutput, ctx: &RunContext| {
        *to.lock().expect("no panic") = budget::spent(ctx).expect("a budget").tokens;
        Ok(())
    });
    let tokens = Log::default();
    let log = tokens.clone();
    let run = agent.ask("go").session(&session).on_token(move |token: &mut NewToken| log.add(token.text()));
    let answer = run.middleware(budget).middleware(reads).await?;
    assert_eq!(tokens.lines().concat(), "answer");
    assert_eq!(answer.usage, Usage::new(100, 10));
    assert_eq!(*spent.lock().unwrap(), 220);
    assert_eq!(small.requests()[0].options.stream, Some(false));
    Ok(())
}

#[tokio::test]
async fn a_halt_of_its_model_ends_the_run_and_the_history_stays() -> Result<()> {
    for error in [
        Error::halted("switch", "off"),
        Error::new("broken").fatal(true),
        Error::interrupted(Interrupt::new("asks", 1)),
    ] {
        let small = ScriptedModel::by("small", move |_| Reply::error(error.clone()));
        let (agent, script) = agent(summarize(&small).over_tokens(2).keep_messages(0));
        let session = session_of([talk(1), talk(2)].concat())?;
        let ended = agent.ask("go").session(&session).await.expect_err("an end");
        assert!(ended.is_halted() || ended.is_fatal() || ended.is_interrupted(), "{ended}");
        assert_eq!(short(assert_valid(&session).messages()), ["u u1", "a a1", "u u2", "a a2", "u go"]);
        assert!(script.requests().is_empty());
    }
    Ok(())
}

#[tokio::test]
async fn a_discarded_attempt_takes_its_summary_back() -> Result<()> {
    let small = numbered();
    let script = ScriptedModel::new("large").text("bad").text("good");
    let middleware = summarize(&small).over_tokens(2).keep_messages(1);
    let agent = Agent::builder("friend", model(&script)).with(middleware).build()?;
    let session = session_of([talk(1), talk(2)].concat())?;
    agent.ask("go").session(&session).max_middleware_retries(1).middleware(map_output(refuse_bad)).await?;
    assert_eq!(short(assert_valid(&session).messages()), [summary("S2"), "u go".into(), "a good".into()]);
    let prompts: Vec<_> = small.requests().iter().map(|request| request.last_user_text()).collect();
    assert_eq!(prompts[0], prompts[1], "the second attempt begins with all messages");
    assert!(prompts[1].ends_with("assistant: a2"));
    Ok(())
}

#[tokio::test(start_paused = true)]
async fn a_boundary_is_summarized_once_even_if_the_hook_is_called_again() -> Result<()> {
    let small = ScriptedModel::by("small", |_| Reply::text("S").slow(Duration::from_secs(10), Duration::ZERO));
    let (agent, _) = agent(summarize(&small).over_tokens(2).keep_messages(1));
    let session = session_of([talk(1), talk(2)].concat())?;
    // While the model writes, another run changes the message that stays.
    let rewrites = hooks_fn("rewrites", |hooks| {
        hooks.on_state(|history, _| {
            let mut messages = history.messages().to_vec();
            let last = messages.len() - 1;
            messages[last] = Arc::new(Message::user("changed"));
            *history = History::try_from(messages)?;
            Ok(())
        });
    });
    let other = Agent::builder("other", model(&ScriptedModel::new("other").text("other"))).with(rewrites).build()?;
    let meanwhile = async {
        tokio::time::sleep(Duration::from_secs(1)).await;
        other.ask(AgentInput::default()).session(&session).await
    };
    let log = Log::default();
    let (before, after) = (log.clone(), log.clone());
    let logs = hooks_fn("logs", move |hooks| {
        let (before, after) = (before.clone(), after.clone());
        hooks.on_compact(move |messages, _| before.add(messages.last().expect("a message").text()));
        hooks.on_compacted(move |compacted, _| after.add(format!("after {}", compacted.before.len())));
    });
    let run = agent.ask("go").session(&session).with(logs).into_future();
    let (answer, changed) = tokio::join!(run, meanwhile);
    answer?;
    changed?;
    let history = short(assert_valid(&session).messages());
    assert_eq!(history[0], summary("S"));
    assert!(history.contains(&"u changed".to_owned()), "{history:?}");
    let prompts: Vec<_> = small.requests().iter().map(|request| request.last_user_text()).collect();
    assert_eq!(prompts.iter().filter(|prompt| prompt.ends_with("assistant: a2")).count(), 1, "{prompts:?}");
    // The hooks of `context.compact` are called once for the boundary as well.
    assert_eq!(log.lines()[..2], ["a2", "after 4"]);
    assert!(!log.lines()[2..].contains(&"a2".to_owned()), "{:?}", log.lines());
    Ok(())
}

#[tokio::test]
async fn it_summarizes_on_an_agent_on_a_run_and_below_an_agent_above() -> Result<()> {
    let small = ScriptedModel::by("small", |_| Reply::text("S"));
    let messages = [talk(1).to_vec(), vec![Message::user("u2")]].concat();
    let middleware = summarize(&small).over_tokens(2).keep_messages(1);
    let expected = vec![summary("S"), "u u2".to_owned()];
    assert_eq!(shown_in_each_way(&messages, middleware).await?, [(); 3].map(|()| expected.clone()));
    Ok(())
}

#[tokio::test]
async fn a_hundred_runs_at_once_each_have_their_own_summary() -> Result<()> {
    let small = ScriptedModel::by("small", |request| {
        let text = request.last_user_text();
        Reply::text(text.split_whitespace().find(|word| word.starts_with("name-")).unwrap_or_default())
    });
    let (agent, _) = agent(summarize(&small).over_tokens(2).keep_messages(0));
    let sessions: Vec<_> = (0..100)
        .map(|n| session_of([Message::user(format!("I am name-{n}")), Message::assistant("Hello.")]))
        .collect::<Result<_>>()?;
    let runs = sessions.iter().map(|session| agent.ask("go").session(session).into_future());
    for answer in join_all(runs).await {
        answer?;
    }
    for (n, session) in sessions.iter().enumerate() {
        assert_eq!(short(assert_valid(session).messages())[0], summary(&format!("name-{n}")));
    }
    Ok(())
}

#[tokio::test]
async fn its_events_are_redacted_by_a_redact_of_the_run() -> Result<()> {
    let small = ScriptedModel::new("small").text("write to ada@example.org").error(Error::new("no ada@example.org"));
    let middleware = summarize(&small).over_tokens(2).keep_messages(0);
    let log = Log::default();
    let (own, summarized, failed) = (log.clone(), log.clone(), log.clone());
    let on_own = move |event: &Summarized, _: &EventMeta<'_>| own.add(&event.summary);
    middleware.emitter().observe("summarized", on_own).expect("a listener");
    let (agent, _) = agent(middleware);
    let session = session_of([talk(1), talk(2)].concat())?;
    for _ in 0..2 {
        let (summarized, failed) = (summarized.clone(), failed.clone());
        // The redaction is bound to the agent's run only, so the reply of the model is not redacted.
        let run = agent.ask("go").session(&session).middleware(Redact::new());
        run.observe("middleware.summarize.summarized", move |event: &Summarized, _| summarized.add(&event.summary))
            .observe("middleware.summarize.failed", move |event: &SummaryFailed, _| failed.add(&event.error))
            .await?;
    }
    let redacted = format!("{FIRST_LINE}\n\nwrite to [REDACTED:email]");
    assert_eq!(log.lines(), [redacted.clone(), redacted, "no [REDACTED:email]".to_owned()]);
    assert_eq!(short(session.history().messages())[0], summary("write to ada@example.org"));
    Ok(())
}

#[tokio::test]
async fn a_prompt_of_its_own_is_the_request_and_a_layer_may_answer_it() -> Result<()> {
    let small = ScriptedModel::new("small");
    let answers = OverrideOutput::with(|request: &emitree_agent::ChatRequest, _: &RunContext| {
        Ok(Some(emitree_agent::ChatResponse::new(Message::assistant(request.last_user_text()))))
    });
    let middleware = Summarize::with(model(&small).middleware(answers)).counter(one_each).over_tokens(2);
    let middleware = middleware.keep_messages(1).prompt(|messages| format!("{} messages", messages.len()));
    let (agent, _) = agent(middleware);
    let session = session_of([talk(1), talk(2)].concat())?;
    agent.ask("go").session(&session).await?;
    assert_eq!(short(session.history().messages())[0], summary("4 messages"));
    Ok(())
}

#[tokio::test]
async fn a_prompt_that_panics_ends_the_run_and_the_history_stays_valid() -> Result<()> {
    let (agent, _) = agent(summarize(&numbered()).over_tokens(2).keep_messages(0).prompt(|_| panic!("no prompt")));
    let session = session_of([talk(1), talk(2)].concat())?;
    let error = agent.ask("go").session(&session).await.expect_err("a panic");
    assert!(error.to_string().contains("no prompt"), "{error}");
    assert_eq!(assert_valid(&session).messages().len(), 5);
    Ok(())
}

#[tokio::test]
async fn limits_that_cannot_work_are_errors_that_quote_them() {
    let small = numbered();
    let error = refused(Summarize::with(model(&small)).over_tokens(0)).await;
    assert_eq!(error, "`Summarize::over_tokens(0)` would summarize every history: allow at least 1 token");
    let error = refused(Summarize::with(model(&small)).over_tokens(10)).await;
    let expected = "`Summarize` with `over_tokens(10)` and `keep_messages(20)` keeps more messages than the limit has \
                    tokens: a message has at least one token";
    assert_eq!(error, expected);
}
