//! `Title`: a model's title of a session, from the first user message.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use emitree_agent::{
    Agent, AgentInput, AgentOutput, AgentRun, ChatModel, ChatOptions, Message, NewToken, Reply, ScriptedModel, Session,
    Usage, joins, tool_fn,
};
use emitree_agent_kit::built_in::{Title, TitleFailed, Titled, ask_user};
use emitree_emitter::EventMeta;
use emitree_middleware::store::MemoryStore;
use emitree_middleware::{Budget, ContentFilter, Redact, budget};
use emitree_runtime::{Error, Interrupt, Result, RunContext, for_tree, map_output};
use serde_json::{Value, json};
use tokio::time::{Instant, sleep, timeout};

use super::{session_of, short, talk};
use crate::journal::Journal;
use crate::support::{Log, Nothing, assert_valid, refuse_bad};

fn model(script: &ScriptedModel) -> ChatModel {
    ChatModel::new(script.clone()).expect("a model")
}

/// A model that always writes a text, after this many seconds.
fn writes(name: &str, text: &'static str, seconds: u64) -> ScriptedModel {
    let time = Duration::from_secs(seconds);
    ScriptedModel::by(name, move |_| Reply::text(text).slow(time, Duration::ZERO))
}

fn agent(title: Title) -> Agent {
    Agent::builder("friend", model(&writes("large", "answer", 0))).with(title).build().expect("an agent")
}

fn title_of(session: &Session) -> Option<String> {
    session.meta().get("title").and_then(Value::as_str).map(str::to_owned)
}

/// The events of a title, as lines.
fn listen(title: &Title) -> Log {
    let log = Log::default();
    let (titled, failed) = (log.clone(), log.clone());
    let on_titled = move |event: &Titled, _: &EventMeta<'_>| titled.add(format!("titled {}", event.title));
    title.emitter().observe("titled", on_titled).expect("a listener");
    let on_failed = move |event: &TitleFailed, _: &EventMeta<'_>| failed.add(format!("failed {}", event.error));
    title.emitter().observe("failed", on_failed).expect("a listener");
    log
}

#[tokio::test]
async fn a_session_is_titled_once_from_its_first_user_message_alone() -> Result<()> {
    let small = writes("small", "Ada says hello", 0);
    let title = Title::with(model(&small).options(ChatOptions::new().stream(true)));
    let events = listen(&title);
    let (agent, session) = (agent(title), Session::new());
    agent.ask(vec![Message::system("Be kind."), Message::user("I am Ada.")]).session(&session).await?;
    assert_eq!(title_of(&session).as_deref(), Some("Ada says hello"));
    agent.ask("And you?").session(&session).await?;

    let requests = small.requests();
    assert_eq!(requests.len(), 1);
    assert_eq!(short(&requests[0].messages), ["u I am Ada."]);
    assert!(requests[0].system.as_ref().is_some_and(|prompt| prompt.starts_with("Write a title")));
    assert_eq!((requests[0].options.stream, requests[0].tools.len()), (Some(false), 0));
    assert_eq!(events.lines(), ["titled Ada says hello"]);
    assert_eq!(short(assert_valid(&session).messages())[1..], ["u I am Ada.", "a answer", "u And you?", "a answer"]);
    Ok(())
}

#[tokio::test]
async fn several_attempts_and_turns_of_a_run_ask_once() -> Result<()> {
    let small = writes("small", "A title", 0);
    let again = tool_fn("again", "Is called", |_: Nothing, _: RunContext| async { Ok("") });
    let script = ScriptedModel::new("large").call("again", json!({})).text("bad").text("good");
    let agent = Agent::builder("friend", model(&script)).tool(again).with(Title::with(model(&small))).build()?;
    let session = Session::new();
    agent.ask("go").session(&session).max_middleware_retries(1).middleware(map_output(refuse_bad)).await?;
    assert_eq!((small.requests().len(), script.requests().len()), (1, 3));
    assert_eq!(title_of(&session).as_deref(), Some("A title"));
    Ok(())
}

#[tokio::test(start_paused = true)]
async fn the_first_turn_does_not_wait_for_the_title_and_its_run_waits_at_most_two_seconds() -> Result<()> {
    for (small, large, expected) in [(1, 0, 1), (10, 9, 10), (12, 10, 12), (13, 10, 12), (3, 0, 2), (3, 8, 8)] {
        let title = Title::with(model(&writes("small", "A title", small)));
        let events = listen(&title);
        let large = model(&writes("large", "answer", large));
        let agent = Agent::builder("friend", large).with(title).build()?;
        let session = Session::new();
        let began = Instant::now();
        assert_eq!(agent.ask("go").session(&session).await?.text(), "answer");
        assert_eq!(began.elapsed().as_secs(), expected, "a title after {small} s");
        let is_in_time = small <= expected;
        assert_eq!(title_of(&session).is_some(), is_in_time, "a title after {small} s");
        let late = "failed the model `small` has written no title when the run had waited for two seconds";
        assert_eq!(events.lines(), [if is_in_time { "titled A title" } else { late }]);
        // It is not asked again, and comes no more.
        sleep(Duration::from_secs(60)).await;
        let began = Instant::now();
        agent.ask("more").session(&session).await?;
        assert!(began.elapsed() < Duration::from_secs(11));
        assert_eq!((title_of(&session).is_some(), events.lines().len()), (is_in_time, 1));
    }
    Ok(())
}

#[tokio::test]
async fn a_failure_of_its_model_is_one_warning_and_the_run_returns_its_answer() -> Result<()> {
    for (reply, expected) in [
        (Reply::error(Error::new("overloaded")), "overloaded"),
        (Reply::error(Error::halted("switch", "off")), "off"),
        (Reply::error(Error::new("broken").fatal(true)), "broken"),
        (Reply::error(Error::retry("again")), "again"),
        (Reply::error(Error::interrupted(Interrupt::new("asks", 1))), "asks"),
        (Reply::text(" \n\t\n"), "the model `small` has written an empty title"),
    ] {
        let small = ScriptedModel::by("small", move |_| reply.clone());
        let title = Title::with(model(&small));
        let events = listen(&title);
        let (agent, session) = (agent(title), Session::new());
        let journal = Journal::default();
        {
            let _subscribed = tracing::subscriber::set_default(journal.clone());
            for _ in 0..2 {
                assert_eq!(agent.ask("go").session(&session).await?.text(), "answer");
            }
        }
        assert_eq!(short(assert_valid(&session).messages()), ["u go", "a answer", "u go", "a answer"]);
        assert_eq!(title_of(&session), None);
        let lines = journal.take();
        let warnings: Vec<_> = lines.iter().filter(|line| line.contains("gets no title")).collect();
        assert!(warnings.len() == 1 && warnings[0].contains(expected), "{lines:?}");
        let [event] = &events.lines()[..] else { panic!("{:?}", events.lines()) };
        assert!(event.starts_with("failed") && event.contains(expected), "{event}");
    }
    Ok(())
}

#[tokio::test]
async fn a_session_that_is_full_gets_no_title() -> Result<()> {
    let title = Title::with(model(&writes("small", "A title", 0)));
    let events = listen(&title);
    let session = Session::new();
    session.set_meta("notes", "x".repeat(16 * 1024 - 20))?;
    agent(title).ask("go").session(&session).await?;
    let [event] = &events.lines()[..] else { panic!("{:?}", events.lines()) };
    assert!(event.starts_with("failed `title` is not set: the values of the session would have 16"), "{event}");
    assert_eq!(session.meta().len(), 1);
    Ok(())
}

#[tokio::test(start_paused = true)]
async fn a_title_is_stored_with_the_end_of_the_run_also_if_that_is_a_question() -> Result<()> {
    let store = MemoryStore::new();
    // The title comes after the last turn.
    let title = || Title::with(model(&writes("small", "A title", 1)));
    let session = Session::open(&store, "answered").await?;
    agent(title()).ask("go").session(&session).await?;
    assert_eq!(title_of(&Session::open(&store, "answered").await?).as_deref(), Some("A title"));

    let asks = ScriptedModel::new("large").call("ask_user", json!({"question": "Name?"})).text("Done.");
    let asks = Agent::builder("friend", model(&asks)).tool(ask_user()).with(title()).build()?;
    let session = Session::open(&store, "asked").await?;
    let question = asks.ask("go").session(&session).await.expect_err("a question");
    assert!(question.is_interrupted(), "{question}");
    drop(session);
    assert_eq!(title_of(&Session::open(&store, "asked").await?).as_deref(), Some("A title"));
    Ok(())
}

#[tokio::test(start_paused = true)]
async fn the_task_ends_with_a_run_that_is_dropped_or_fails_and_the_next_run_asks_again() -> Result<()> {
    let small = writes("small", "A title", 1);
    let title = Title::with(model(&small));
    let events = listen(&title);
    let half = Duration::from_millis(500);
    let waits = Reply::text("late").slow(Duration::from_secs(9), Duration::ZERO);
    let fails = Reply::error(Error::new("overloaded")).slow(half, Duration::ZERO);
    let script = ScriptedModel::new("large").reply(waits).reply(fails).text("answer");
    let agent = Agent::builder("friend", model(&script)).with(title).build()?;
    let session = Session::new();
    let run = agent.ask("go").session(&session).into_future();
    timeout(half, run).await.expect_err("the run is dropped");
    sleep(Duration::from_secs(60)).await;
    assert_eq!((small.requests().len(), title_of(&session)), (1, None));

    // A run that has failed does not wait.
    let began = Instant::now();
    agent.ask("go").session(&session).await.expect_err("no answer");
    assert!(began.elapsed() < Duration::from_secs(1));
    sleep(Duration::from_secs(60)).await;
    assert_eq!((small.requests().len(), title_of(&session)), (2, None));
    assert_eq!(events.lines(), [""; 0]);

    agent.ask(AgentInput::default()).session(&session).await?;
    assert_eq!((small.requests().len(), title_of(&session).as_deref()), (3, Some("A title")));
    Ok(())
}

#[tokio::test]
async fn a_resumed_run_asks_if_its_first_turn_has_no_answer_yet() -> Result<()> {
    let small = writes("small", "A title", 0);
    let script = ScriptedModel::new("large").call("ask_user", json!({"question": "Name?"})).text("Done.");
    let builder = || Agent::builder("friend", model(&script)).tool(ask_user());
    let session = Session::new();
    builder().build()?.ask("go").session(&session).await.expect_err("a question");
    session.answer(&session.questions()[0].id, json!("Ada")).await?;
    let titled = builder().with(Title::with(model(&small))).build()?;
    assert_eq!(titled.resume(&session).await?.text(), "Done.");
    assert_eq!(short(&small.requests()[0].messages), ["u go"]);
    assert_eq!(title_of(&session).as_deref(), Some("A title"));
    Ok(())
}

#[tokio::test]
async fn it_is_not_asked_without_a_session_or_a_text_nor_after_an_answer_nor_if_there_is_a_title() -> Result<()> {
    let small = writes("small", "A title", 0);
    let agent = agent(Title::with(model(&small)));
    agent.ask("go").await?;
    agent.ask(" \n").session(&Session::new()).await?;
    agent.ask("go").session(&session_of(talk(1))?).await?;
    let session = Session::new();
    session.set_meta("title", "Mine")?;
    agent.ask("go").session(&session).await?;
    assert_eq!((small.requests().len(), title_of(&session).as_deref()), (0, Some("Mine")));

    // An agent below has no session of its own.
    let below = Agent::builder("below", model(&writes("below", "answer", 0))).build()?;
    let script = ScriptedModel::new("large").call("below", json!({"task": "go"})).text("done");
    let above = Agent::builder("above", model(&script)).tool(below.as_tool("Answers")?).build()?;
    let session = Session::new();
    above.ask("above").session(&session).middleware(for_tree(joins(Title::with(model(&small))))).await?;
    assert_eq!((small.requests().len(), title_of(&session).as_deref()), (1, Some("A title")));
    assert_eq!(short(&small.requests()[0].messages), ["u above"]);
    Ok(())
}

#[tokio::test(start_paused = true)]
async fn a_title_that_the_program_sets_meanwhile_stays() -> Result<()> {
    let title = Title::with(model(&writes("small", "A title", 1)));
    let events = listen(&title);
    let session = Session::new();
    let agent = agent(title);
    let sets = async {
        sleep(Duration::from_millis(500)).await;
        session.set_meta("title", "Mine")
    };
    let (answer, set) = tokio::join!(agent.ask("go").session(&session).into_future(), sets);
    assert_eq!((answer?.text().as_str(), set?), ("answer", None));
    assert_eq!((title_of(&session).as_deref(), events.lines().len()), (Some("Mine"), 0));
    Ok(())
}

#[tokio::test]
async fn a_title_is_the_first_line_that_is_not_empty_and_at_most_80_characters() -> Result<()> {
    for (reply, expected) in [
        ("\n  Three \t days\r\nin Lima", "Three days".to_owned()),
        ("\"Three days\"", "Three days".to_owned()),
        ("\"Three\" or \"four\"", "\"Three\" or \"four\"".to_owned()),
        ("\"\"", "\"\"".to_owned()),
        ("\u{1b}[31mRed\u{7}", "[31mRed".to_owned()),
        (&"é".repeat(80), "é".repeat(80)),
        (&"é".repeat(81), "é".repeat(79) + "…"),
        (&format!("{} more", "é".repeat(78)), "é".repeat(78) + "…"),
    ] {
        let session = Session::new();
        let small = ScriptedModel::new("small").text(reply);
        agent(Title::with(model(&small))).ask("go").session(&session).await?;
        assert_eq!(title_of(&session), Some(expected), "{reply:?}");
    }
    Ok(())
}

#[tokio::test]
async fn its_model_receives_the_first_2_000_characters_and_the_prompt() -> Result<()> {
    let small = writes("small", "A title", 0);
    let agent = agent(Title::with(model(&small)).prompt("Name it in Greek."));
    agent.ask(format!(" {}", "é".repeat(3_000))).session(&Session::new()).await?;
    let request = &small.requests()[0];
    assert_eq!(request.last_user_text(), "é".repeat(2_000));
    assert_eq!(request.system.as_deref(), Some("Name it in Greek."));
    Ok(())
}

#[tokio::test]
async fn its_tokens_are_charged_to_budgets_but_are_neither_in_the_usage_nor_received_by_on_token() -> Result<()> {
    let reply = |text| Reply::text(text).usage(Usage::new(100, 10)).in_pieces(2);
    let small = ScriptedModel::by("small", move |_| reply("A title"));
    let large = ScriptedModel::by("large", move |_| reply("answer"));
    let agent = Agent::builder("friend", model(&large)).with(Title::with(model(&small))).build()?;
    let budget = Budget::builder().tokens(10_000).build().expect("a budget");
    let spent = Arc::new(Mutex::new(0));
    let to = Arc::clone(&spent);
    let reads = map_output(move |_: &mut AgentOutput, ctx: &RunContext| {
        *to.lock().expect("no panic") = budget::spent(ctx).expect("a budget").tokens;
        Ok(())
    });
    let tokens = Log::default();
    let log = tokens.clone();
    let session = Session::new();
    let run = agent.ask("go").session(&session).on_token(move |token: &mut NewToken| log.add(token.text()));
    let answer = run.middleware(budget).middleware(reads).await?;
    assert_eq!(tokens.lines().concat(), "answer");
    assert_eq!((answer.usage, *spent.lock().unwrap()), (Usage::new(100, 10), 220));
    assert_eq!(title_of(&session).as_deref(), Some("A title"));
    Ok(())
}

#[tokio::test]
async fn a_redaction_and_a_guard_for_the_tree_apply_to_its_model() -> Result<()> {
    let small = ScriptedModel::new("small").text("Mail for bob@example.org");
    let session = Session::new();
    let friend = agent(Title::with(model(&small)));
    friend.ask("Write to ada@example.org.").session(&session).middleware(for_tree(Redact::new())).await?;
    assert_eq!(small.requests()[0].last_user_text(), "Write to [REDACTED:email].");
    assert_eq!(title_of(&session).as_deref(), Some("Mail for [REDACTED:email]"));

    let title = Title::with(model(&writes("small", "A forbidden title", 0)));
    let events = listen(&title);
    let guard = for_tree(ContentFilter::new().words("rude", ["forbidden"])?);
    let session = Session::new();
    assert_eq!(agent(title).ask("go").session(&session).middleware(guard).await?.text(), "answer");
    let [event] = &events.lines()[..] else { panic!("{:?}", events.lines()) };
    assert!(event.starts_with("failed denied by content_filter"), "{event}");
    assert_eq!(title_of(&session), None);
    Ok(())
}

#[tokio::test]
async fn its_events_are_redacted_by_a_redact_of_the_run() -> Result<()> {
    for (reply, expected) in [
        (Reply::text("Write to ada@example.org"), "titled Write to [REDACTED:email]"),
        (Reply::error(Error::new("no ada@example.org")), "failed no [REDACTED:email]"),
    ] {
        let title = Title::with(model(&ScriptedModel::new("small").reply(reply)));
        let log = listen(&title);
        agent(title).ask("go").session(&Session::new()).middleware(Redact::new()).await?;
        assert_eq!(log.lines(), [expected]);
    }
    Ok(())
}
