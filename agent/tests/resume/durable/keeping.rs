//! Questions that keep a value for the next start of their call (A23, A25).

use emitree_agent::past::{Keep, Point};
use emitree_agent::{Agent, AgentRun, AnswerError, ChatModel, Reply, Role, ScriptedModel, Session, tool_fn};
use emitree_emitter::AnyEvent;
use emitree_middleware::store::{Filter, MemoryStore, Store};
use emitree_runtime::{Error, Interrupt, Result, RunContext, Runnable, runnable_fn};
use serde_json::{Value, json};

use super::process::{Kill, Process};
use crate::support::{Log, Text, results};

const ID: &str = "order-17";
const SECRET: &str = "s3cr3t-place";
const LOST: &str = "it may have had effects";

/// A tool that is not idempotent: it opens a transfer at a server, asks twice, and goes on where the server was.
fn transfer(log: &Log) -> Result<Agent> {
    let script =
        ScriptedModel::by("test", |request| match request.messages.iter().any(|message| message.role == Role::Tool) {
            true => Reply::text("Done."),
            false => Reply::calls([("transfer", json!({"text": "to Ada"}))]),
        });
    let log = log.clone();
    let transfer = tool_fn("transfer", "Transfers", move |_: Text, ctx: RunContext| {
        let log = log.clone();
        async move {
            let place = match ctx.kept::<String>()? {
                Some(place) => place,
                None => {
                    log.add("opens");
                    format!("{SECRET} account")
                }
            };
            let question = |kind: &str| Interrupt::new(kind, json!({}));
            if place.ends_with("account") {
                let account: String = ctx.ask_keeping(question("account"), &place)?;
                let place = format!("{SECRET} {account}");
                let _: bool = ctx.ask_keeping(question("confirm"), &place)?;
                return Err(Error::new("it has to ask"));
            }
            let sure: bool = ctx.ask_keeping(question("confirm"), &place)?;
            log.add(format!("executes {place} {sure}"));
            Ok(place.replace(SECRET, "sent from"))
        }
    })?;
    Agent::builder("clerk", ChatModel::new(script)?).tool(transfer).build()
}

/// Answers all questions, and asks or resumes, until the agent has answered.
async fn go_on(session: &Session, log: &Log) -> Result<String> {
    let agent = transfer(log)?;
    loop {
        for question in session.questions() {
            let answer = if question.kind == "account" { json!("savings") } else { json!(true) };
            match session.answer(&question.id, answer).await {
                Err(AnswerError::Answered { .. }) => {}
                answered => answered?,
            }
        }
        let run = match session.history().messages() {
            [] => agent.ask("Send."),
            _ => agent.resume(session),
        };
        match run.session(session).await {
            Ok(answer) => return Ok(answer.text()),
            Err(error) if error.is_interrupted() => {}
            Err(error) => return Err(error),
        }
    }
}

#[tokio::test]
async fn a_call_that_keeps_a_value_goes_on_with_it_in_another_process_after_each_of_its_questions() -> Result<()> {
    let (store, log) = (MemoryStore::new(), Log::default());
    for answer in [None, Some(json!("savings")), Some(json!(true))] {
        let session = Session::open(&Process::of(&store), ID).await?;
        let agent = transfer(&log)?;
        let run = match answer {
            None => agent.ask("Send.").session(&session),
            Some(answer) => {
                session.answer(&session.questions()[0].id, answer).await?;
                agent.resume(&session)
            }
        };
        match run.await {
            Err(error) => assert!(error.is_interrupted(), "{error}"),
            Ok(answer) => assert_eq!(answer.text(), "Done."),
        }
    }
    assert_eq!(log.lines(), ["opens", "executes s3cr3t-place savings true"]);
    let session = Session::open(&Process::of(&store), ID).await?;
    assert_eq!(results(session.history().messages()), ["sent from savings"]);
    Ok(())
}

/// A25: the commit that begins the call takes the value.
#[tokio::test]
async fn a_process_that_is_killed_at_any_commit_around_a_kept_value_executes_the_call_at_most_once() -> Result<()> {
    let (mut executed, mut lost) = (0, 0);
    for number in 0..60 {
        for kill in [Kill::Before(number), Kill::After(number)] {
            let (store, log) = (MemoryStore::new(), Log::default());
            let process = Process::killed_at(&store, kill);
            let session = Session::open(&process, ID).await?;
            tokio::select! {
                ended = go_on(&session, &log) => { ended?; }
                () = process.killed() => {}
            }
            drop(session);
            let session = Session::open(&Process::killed_at(&store, Kill::Never), ID).await?;
            if store.load(ID).await?.is_some() && store.list(&Filter::unfinished()).await?.is_empty() {
                assert_eq!(results(session.history().messages()).len(), 1, "{kill:?}");
            } else {
                assert_eq!(go_on(&session, &log).await?, "Done.", "{kill:?}");
            }
            let effects = log.lines().iter().filter(|line| line.starts_with("executes")).count();
            let result = results(session.history().messages()).remove(0);
            assert!(effects == 1 && result == "sent from savings" || result.ends_with(LOST), "{kill:?}: {result}");
            assert!(effects <= 1, "{kill:?}: {:?}", log.lines());
            assert!(log.lines().iter().filter(|line| *line == "opens").count() <= 1, "{kill:?}");
            executed += effects;
            lost += usize::from(result.ends_with(LOST));
        }
    }
    assert!(executed > 60 && lost > 2, "{executed} and {lost}");
    Ok(())
}

#[tokio::test]
async fn a_kept_value_is_in_the_stored_call_and_in_no_question_event_error_fork_or_earlier_point() -> Result<()> {
    let (store, log, events) = (MemoryStore::new(), Log::default(), Log::default());
    let session = Session::open(&Process::of(&store), ID).keep(Keep::Everything).await?;
    let agent = transfer(&log)?;
    let noted = events.clone();
    agent.emitter().observe("**", move |event: &dyn AnyEvent, _| {
        noted.add(format!("{:?} {:?}", event.to_json(), event));
    })?;
    for answer in [None, Some(json!("savings"))] {
        let run = match answer {
            None => agent.ask("Send.").session(&session),
            Some(answer) => {
                session.answer(&session.questions()[0].id, answer).await?;
                agent.resume(&session)
            }
        };
        let error = run.await.expect_err("a question");
        let stored = serde_json::to_string(&session)?;
        assert!(stored.contains(SECRET));
        let fork = session.fork(Point::Now, &format!("fork-{}", session.questions()[0].kind)).await?;
        let fork = serde_json::to_string(&fork)?;
        let past = session.at(Point::Before(1)).await?;
        let questions = serde_json::to_string(&session.questions())?;
        let shown = [
            format!("{error:?} {error} {}", serde_json::to_string(&error.report())?),
            questions,
            format!("{:?}", session.questions()),
            format!("{session:?}"),
            fork,
            format!("{past:?} {:?}", past.history()),
            format!("{:?}", store.list(&Filter::unfinished()).await?),
        ];
        for shown in shown {
            assert!(!shown.contains(SECRET), "{shown}");
        }
    }
    assert!(events.lines().len() > 10);
    events.lines().iter().for_each(|event| assert!(!event.contains(SECRET), "{event}"));
    Ok(())
}

#[tokio::test]
async fn a_run_whose_values_nobody_stores_cannot_keep_one() -> Result<()> {
    let run = runnable_fn("alone", |(): (), ctx: RunContext| async move {
        ctx.ask_keeping::<Value>(Interrupt::new("confirm", json!({})), &1)
    });
    let error = run.run(()).await.expect_err("no agent").to_string();
    let expected = "the question `confirm` cannot keep a value: only the run of an agent's tool keeps one";
    assert!(error.ends_with(expected), "{error}");
    Ok(())
}
