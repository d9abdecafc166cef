//! Sessions at earlier points, and forks (A29).

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, SystemTime};

use emitree_agent::past::{Keep, PastError, Point};
use emitree_agent::{
    Agent, AgentContext, AgentOutput, AgentRun, ChatModel, ChatRequest, History, Message, Reply, Role, ScriptedModel,
    Session, Tool, Usage, hooks_fn, tool_fn,
};
use emitree_middleware::Runs;
use emitree_middleware::approval::{Approval, Decision};
use emitree_middleware::store::{EntryStatus, Filter, MemoryStore, Store};
use emitree_runtime::{Error, Result, RunContext, for_tree, map_output};
use serde_json::json;

use crate::support::{Log, Text, agent, refuse_bad, results, texts};

/// What the history of a session was at its points.
type Moments = Arc<Mutex<Vec<(Point, History)>>>;

/// A tool that logs its keys.
fn logging(name: &'static str, log: &Log) -> Tool {
    let log = log.clone();
    tool_fn(name, "Logs its key", move |args: Text, ctx: RunContext| {
        log.add(ctx.key().expect("a call has a key").to_string());
        if let Some(session) = ctx.session().filter(|_| args.text == "steer") {
            session.steer("In metres.").expect("it is sent");
        }
        async { Ok("done") }
    })
    .expect("a tool")
}

/// A talk with tools, steering, questions and several runs.
struct Talk {
    agent: Agent,
    session: Session,
    log: Log,
    moments: Moments,
}

fn says(text: &str) -> serde_json::Value {
    json!({ "text": text })
}

impl Talk {
    fn new(session: &Session) -> Result<Self> {
        let (log, moments) = (Log::default(), Moments::default());
        let (asked, of_model) = (AtomicUsize::new(0), (session.clone(), Arc::clone(&moments)));
        let model = ScriptedModel::by("test", move |request: &ChatRequest| {
            let (session, moments) = &of_model;
            let number = asked.fetch_add(1, Ordering::SeqCst) + 1;
            let reply = match number {
                1 => Reply::calls([("note", says("steer")), ("pay", says("Ada"))]),
                2 => Reply::text("Paid."),
                3 => Reply::calls([("note", says("x")), ("note", says("x"))]),
                4 => Reply::text("Noted."),
                5 => Reply::calls([("pay", says("Bob")), ("note", says("y"))]),
                // In the forks, and in the end.
                _ if request.messages.last().is_some_and(|last| last.role == Role::Tool || last.text() == "Stop.") => {
                    Reply::text("Done.")
                }
                _ => Reply::calls([("note", says("x")), ("pay", says("Ada"))]),
            };
            if number <= 5 {
                moments.lock().expect("no panic").push((Point::Before(number as u64), session.history()));
            }
            reply.usage(Usage::new(number as u64, 0))
        });
        let to = Arc::clone(&moments);
        let watch = hooks_fn("watch", move |hooks| {
            let (to, turns) = (Arc::clone(&to), hooks.state::<u32>());
            hooks.on_action({
                let turns = turns.clone();
                move |_, ctx| turns.with(ctx, |turns| *turns += 1)
            });
            hooks.on_stop(move |_, ctx| {
                let session = ctx.session().expect("a session");
                let number = session.turns().last().expect("a turn").number;
                to.lock().expect("no panic").push((Point::After(number), session.history()));
                Ok(false)
            });
        });
        let agent = Agent::builder("payer", ChatModel::new(model)?)
            .tool(logging("note", &log))
            .tool(logging("pay", &log))
            .with(watch)
            .middleware(for_tree(Approval::by_interrupt().runs(Runs::named("pay"))))
            .build()?;
        Ok(Self { agent, session: session.clone(), log, moments })
    }

    fn note(&self, point: Point) {
        self.moments.lock().expect("no panic").push((point, self.session.history()));
    }

    /// Runs 0 to 3 with the turns 1 to 5, of which the last is open. A message and a pause wait.
    async fn hold(&self) -> Result<Vec<(Point, History)>> {
        self.hold_with("").await
    }

    /// The same with a text behind each input. A store makes a snapshot when a run with a long one ends.
    async fn hold_with(&self, text: &str) -> Result<Vec<(Point, History)>> {
        let Self { agent, session, .. } = self;
        self.note(Point::BeforeRun(0));
        agent.ask(format!("Pay Ada.{text}")).session(session).await.expect_err("a question");
        self.note(Point::BeforeRun(1));
        let question = session.questions().remove(0);
        session.answer(&question.id, Decision::Approve).await?;
        agent.resume(session).await?;
        self.note(Point::BeforeRun(2));
        agent.ask(format!("Note.{text}")).session(session).await?;
        session.set_meta("title", "Bills")?;
        self.note(Point::BeforeRun(3));
        agent.ask(format!("Pay Bob.{text}")).session(session).await.expect_err("a question");
        self.note(Point::After(5));
        session.steer("Stop.")?;
        session.pause();
        session.saved().await?;
        self.note(Point::Now);
        Ok(self.moments.lock().expect("no panic").clone())
    }
}

async fn stored(store: &MemoryStore) -> Session {
    Session::open(store, "order-17").await.expect("a session")
}

/// A29
#[tokio::test]
async fn each_point_has_the_history_that_the_session_had() -> Result<()> {
    for session in [Session::keeping_log(), stored(&MemoryStore::new()).await] {
        let moments = Talk::new(&session)?.hold().await?;
        assert_eq!(moments.len(), 5 + 5 + 4 + 1, "{moments:?}");
        for (point, history) in &moments {
            let past = session.at(*point).await.unwrap_or_else(|error| panic!("{point}: {error}"));
            assert_eq!(past.history(), *history, "{point}");
        }
        let state = async |point| session.at(point).await?.state::<u32>("watch");
        assert_eq!(state(Point::BeforeRun(0)).await?, None);
        for turn in 1..=5 {
            assert_eq!(state(Point::After(turn)).await?, Some(turn as u32), "the turn {turn}");
        }
        let past = session.at(Point::Before(4)).await?;
        assert_eq!(past.turns().iter().map(|turn| turn.number).collect::<Vec<_>>(), [1, 2, 3]);
        assert!(past.meta().is_empty());
        assert_eq!(session.at(Point::Now).await?.meta()["title"], "Bills");
        assert!(past.state::<String>("watch").expect_err("a number").to_string().starts_with("the state `watch`"));
    }
    Ok(())
}

#[tokio::test]
async fn the_turns_have_their_runs_tokens_calls_and_messages() -> Result<()> {
    let (began, session) = (SystemTime::now(), Session::keeping_log());
    Talk::new(&session)?.hold().await?;
    let turns = session.turns();
    let table: Vec<_> =
        turns.iter().map(|turn| (turn.number, turn.run, turn.usage.input_tokens, turn.calls, turn.messages)).collect();
    assert_eq!(table, [(1, 0, 1, 2, 3), (2, 1, 2, 0, 1), (3, 2, 3, 2, 3), (4, 2, 4, 0, 1), (5, 3, 5, 2, 3)]);
    assert_eq!(turns.iter().map(|turn| turn.is_open).collect::<Vec<_>>(), [false, false, false, false, true]);
    let near = began - Duration::from_millis(1)..=SystemTime::now();
    assert!(turns.iter().all(|turn| near.contains(&turn.at) && !turn.is_discarded && turn.cost.is_none()));
    Ok(())
}

/// Lets a fork go on with a question of its own.
async fn go_on(talk: &Talk, fork: &Session) -> Result<Vec<String>> {
    let error = talk.agent.ask("Go on.").session(fork).await.expect_err("a question");
    assert!(error.is_interrupted(), "{error}");
    let question = fork.questions().remove(0);
    fork.answer(&question.id, Decision::Approve).await?;
    assert_eq!(talk.agent.resume(fork).await?.text(), "Done.");
    Ok(vec![question.id])
}

/// A29
#[tokio::test]
async fn a_fork_of_each_point_goes_on_and_shares_no_key_question_or_message() -> Result<()> {
    let store = MemoryStore::new();
    for session in [Session::keeping_log(), stored(&store).await] {
        let talk = Talk::new(&session)?;
        let moments = talk.hold().await?;
        let (keys, question) = (talk.log.lines(), session.questions().remove(0).id);
        let is_stored = session.id() == "order-17";
        for (n, (point, history)) in moments.iter().enumerate() {
            let id = format!("fork-{n}");
            let fork = session.fork(*point, &id).await.unwrap_or_else(|error| panic!("{point}: {error}"));
            assert_eq!(fork.id(), id);
            let origin = fork.forked_from().expect("a fork");
            assert_eq!((&*origin.session, origin.turn), (session.id(), session.at(*point).await?.turns().len() as u64));
            assert!(fork.questions().is_empty() && fork.undelivered().is_empty(), "{point}");
            assert_eq!(fork.history().messages().len(), history.messages().len(), "{point}");
            assert_eq!(fork.state::<u32>("watch")?, session.at(*point).await?.state("watch")?, "{point}");
            if is_stored {
                // Another process finds it.
                let entry = store.load(&id).await?.expect("the fork is stored when `fork` returns");
                assert_eq!(entry.head.status, EntryStatus::Ended);
            }

            let before = talk.log.lines().len();
            let questions = go_on(&talk, &fork).await?;
            let of_fork = &talk.log.lines()[before..];
            let turn = origin.turn + 1;
            assert_eq!(of_fork.len(), 2, "{point}");
            assert!(
                of_fork.iter().chain(&questions).all(|key| key.starts_with(&format!("{id}/{turn}/"))),
                "{of_fork:?}"
            );
            assert!(of_fork.iter().all(|key| !keys.contains(key)));
        }
        // The origin is as it was, and goes on.
        assert_eq!(session.history(), moments.last().expect("a moment").1);
        assert_eq!((session.questions().len(), &session.questions()[0].id), (1, &question));
        assert_eq!(session.undelivered().len(), 1);
        session.answer(&question, Decision::reject("no")).await?;
        let error = talk.agent.resume(&session).await.expect_err("a pause");
        assert!(error.is_interrupted(), "{error}");
        assert_eq!(talk.agent.resume(&session).await?.text(), "Done.");
        assert!(texts(&session).contains(&"Stop.".to_owned()));
    }
    assert!(store.list(&Filter::unfinished()).await?.is_empty());
    Ok(())
}

#[tokio::test]
async fn the_open_calls_of_a_fork_are_closed() -> Result<()> {
    let session = Session::keeping_log();
    let talk = Talk::new(&session)?;
    talk.hold().await?;
    let fork = session.fork(Point::Now, "b").await?;
    let results = results(fork.history().messages());
    assert_eq!(results[results.len() - 2..], ["!not executed: the question `approval` was not answered", "done"]);
    // Nothing is left to go on with but the conversation.
    assert_eq!(talk.agent.resume(&fork).await?.text(), "Done.");
    Ok(())
}

#[tokio::test]
async fn a_fork_before_a_turn_asks_again_and_one_before_a_run_gets_another_question() -> Result<()> {
    let script = ScriptedModel::new("test").text("Mont Blanc.").text("Everest.").text("Zugspitze.");
    let (agent, session) = (agent(&script).build()?, Session::keeping_log());
    agent.ask("Which mountain?").session(&session).await?;
    let again = session.fork(Point::Before(1), "again").await?;
    assert_eq!(agent.resume(&again).await?.text(), "Everest.");
    assert_eq!(texts(&again), ["Which mountain?", "Everest."]);
    let edited = session.fork(Point::BeforeRun(0), "edited").await?;
    agent.ask("Which one in Germany?").session(&edited).await?;
    assert_eq!(texts(&edited), ["Which one in Germany?", "Zugspitze."]);
    assert_eq!(texts(&session), ["Which mountain?", "Mont Blanc."]);
    // A fork knows its own points, and the last one of its origin.
    assert_eq!(again.turns().iter().map(|turn| turn.number).collect::<Vec<_>>(), [1]);
    assert_eq!(again.at(Point::Before(1)).await?.history().messages().len(), 1);
    Ok(())
}

fn fault<T: std::fmt::Debug>(result: std::result::Result<T, PastError>) -> String {
    result.expect_err("no such point").to_string()
}

#[tokio::test]
async fn an_error_names_the_point_and_the_oldest_one() -> Result<()> {
    let script = ScriptedModel::new("test").text("one").text("two").error(Error::new("away"));
    let (agent, session) = (agent(&script).build()?, Session::keeping_log());
    agent.ask("go").session(&session).await?;
    let unknown = "the session has 1 turns, from 1, and 1 runs, from 0";
    for point in [Point::After(2), Point::Before(0), Point::BeforeRun(1)] {
        assert_eq!(fault(session.at(point).await), format!("there is no point {point}: {unknown}"));
        assert!(matches!(session.fork(point, "b").await, Err(PastError::Unknown { .. })));
    }
    let late = session.fork(Point::Now, "late").await?;
    agent.ask("more").session(&late).await?;
    assert_eq!(
        fault(late.at(Point::After(1)).await),
        "the point after the turn 1 is forgotten: the oldest point that can be read is before the turn 2"
    );
    assert_eq!(
        fault(late.at(Point::BeforeRun(0)).await),
        "the point before the run 0 is forgotten: the oldest point that can be read is before the turn 2"
    );
    agent.ask("more").session(&late).await.expect_err("the model is away");
    assert!(matches!(late.at(Point::After(3)).await, Err(PastError::Unfinished { point: Point::After(3) })));
    assert!(late.turns()[2].is_open);

    let plain = Session::new();
    plain.extend([Message::user("x")])?;
    assert_eq!(texts_of(&plain.at(Point::Now).await?.history()), ["x"]);
    let restored: Session = serde_json::from_str(&serde_json::to_string(&session)?)?;
    assert_eq!(
        fault(restored.at(Point::After(1)).await),
        "the point after the turn 1 is forgotten: the oldest point that can be read is now"
    );
    let ids = [("a/b", "the new session cannot have the id `a/b`"), (restored.id(), "there is a session with the id")];
    for (id, expected) in ids {
        let error = fault(restored.fork(Point::Now, id).await);
        assert!(error.starts_with(expected), "{error}");
    }
    Ok(())
}

fn texts_of(history: &History) -> Vec<String> {
    history.messages().iter().map(|message| message.text()).collect()
}

#[tokio::test]
async fn a_turn_of_a_discarded_attempt_is_no_point() -> Result<()> {
    let script = ScriptedModel::new("test").call("shout", says("a")).text("bad").text("good");
    let (agent, session) = (agent(&script).build()?, Session::keeping_log());
    let run = agent.ask("go").session(&session).max_middleware_retries(1).middleware(map_output(refuse_bad));
    assert_eq!(run.await?.text(), "good");
    let discarded: Vec<_> = session.turns().iter().map(|turn| turn.is_discarded).collect();
    assert_eq!(discarded, [true, true, false]);
    assert_eq!(
        fault(session.at(Point::After(1)).await),
        "there is no point after the turn 1: it belongs to an attempt that was discarded"
    );
    assert!(matches!(session.at(Point::Before(2)).await, Err(PastError::Discarded { point: Point::Before(2) })));
    assert_eq!(session.at(Point::After(3)).await?.history(), session.history());
    assert_eq!(texts_of(&session.at(Point::Before(3)).await?.history()), ["go"]);
    Ok(())
}

#[tokio::test]
async fn an_answer_that_was_withheld_forgets_all_points_before_it() -> Result<()> {
    for session in [Session::keeping_log(), stored(&MemoryStore::new()).await] {
        let agent = agent(&ScriptedModel::new("test").text("one").text("forbidden").text("three")).build()?;
        let refuse = map_output(|_: &mut AgentOutput, _: &RunContext| Err(Error::new("no"))).named("desk").guard();
        agent.ask("go").session(&session).await?;
        agent.ask("go").session(&session).middleware(refuse).await.expect_err("denied");
        agent.ask("go").session(&session).await?;
        assert_eq!(texts(&session)[3], "(withheld by desk)");
        for point in [Point::After(1), Point::After(2), Point::BeforeRun(1)] {
            let error = fault(session.at(point).await);
            assert_eq!(
                error,
                format!("the point {point} is forgotten: the oldest point that can be read is before the turn 3")
            );
        }
        assert_eq!(session.at(Point::After(3)).await?.history(), session.history());
    }
    Ok(())
}

#[tokio::test]
async fn a_session_that_is_made_has_its_values_and_replaces_no_entry() -> Result<()> {
    let store = MemoryStore::new();
    let make = |owner: &str| {
        Session::open(&store, "talk").create(serde_json::Map::from_iter([("owner".to_owned(), json!(owner))]))
    };
    let made = make("ada").await.expect("no session has the id");
    assert_eq!(store.load("talk").await?.expect("it is stored").head.meta["owner"], "ada");
    assert!(matches!(make("eve").await, Err(PastError::Exists { id }) if id == "talk"), "it is open");
    drop(made);
    assert!(matches!(make("eve").await, Err(PastError::Exists { id }) if id == "talk"), "it is stored");
    assert_eq!(Session::open(&store, "talk").await?.meta()["owner"], "ada");

    let error = fault(Session::open(&store, "a/b").create(serde_json::Map::new()).await);
    assert!(error.starts_with("the new session cannot have the id `a/b`"), "{error}");
    Ok(())
}

#[tokio::test]
async fn a_fork_in_a_store_replaces_no_entry() -> Result<()> {
    let script = ScriptedModel::new("test").text("one");
    let store = MemoryStore::new();
    let session = stored(&store).await;
    // A session that has nothing is not stored by a look.
    assert!(matches!(session.at(Point::After(1)).await, Err(PastError::Unknown { .. })));
    assert!(store.load("order-17").await?.is_none());
    agent(&script).build()?.ask("go").session(&session).await?;
    session.fork(Point::Now, "b").await?;
    for id in ["b", "order-17"] {
        let error = session.fork(Point::Now, id).await.expect_err("it exists");
        assert!(matches!(&error, PastError::Exists { id: found } if *found == id), "{error}");
    }
    let reopened = Session::open(&store, "b").await?;
    assert_eq!(texts(&reopened), ["go", "one"]);
    let origin = reopened.forked_from().expect("a fork");
    assert_eq!((&*origin.session, origin.turn), ("order-17", 1));
    Ok(())
}

fn long() -> String {
    "x".repeat(70_000)
}

/// A29, S11
#[tokio::test]
async fn snapshots_hide_no_point_of_a_session_that_keeps_everything() -> Result<()> {
    let store = MemoryStore::new();
    let session = Session::open(&store, "order-17").keep(Keep::Everything).await?;
    let talk = Talk::new(&session)?;
    let moments = talk.hold_with(&long()).await?;
    drop((talk, session));
    let revision = store.load("order-17").await?.expect("an entry").head.revision;
    assert!(!store.older_parts("order-17", revision).await?.is_empty(), "there was a snapshot");

    // Another process, which keeps less.
    let session = stored(&store).await;
    for (point, history) in &moments {
        let past = session.at(*point).await.unwrap_or_else(|error| panic!("{point}: {error}"));
        assert!(past.history() == *history, "{point}");
    }
    for turn in 1..=5 {
        assert_eq!(session.at(Point::After(turn)).await?.state("watch")?, Some(turn), "the turn {turn}");
    }
    let fork = session.fork(Point::After(1), "b").await?;
    assert_eq!(fork.history().messages().len(), 4);
    // Its next snapshot removes all that is hidden.
    let agent = agent(&ScriptedModel::new("test").text("one")).build()?;
    for _ in 0..3 {
        session.extend([Message::user(long())])?;
    }
    agent.ask("go").session(&session).await.expect_err("a pause");
    assert!(matches!(session.at(Point::After(5)).await, Err(PastError::Forgotten { .. })));
    Ok(())
}

/// S11
#[tokio::test]
async fn a_snapshot_in_the_middle_of_a_run_hides_no_point() -> Result<()> {
    let session = Session::open(&MemoryStore::new(), "a").keep(Keep::Everything).await?;
    let big = tool_fn("big", "Returns much", |_: Text, _: RunContext| async { Ok("x".repeat(9 << 20)) })?;
    let script = ScriptedModel::new("test").call("big", says("")).text("done");
    agent(&script).tool(big).build()?.ask("go").session(&session).await?;
    for (point, messages) in [(Point::After(1), 3), (Point::Before(2), 3), (Point::After(2), 4)] {
        assert_eq!(session.at(point).await?.history().messages().len(), messages, "{point}");
    }
    Ok(())
}

/// S11
#[tokio::test]
async fn at_least_the_last_turns_can_be_read_and_older_ones_are_removed_some_time() -> Result<()> {
    let (store, kept) = (MemoryStore::new(), 10);
    let mut session = Session::open(&store, "a").keep(Keep::Turns(kept)).await?;
    let mut most = 0;
    for turn in 1..=60 {
        let agent = agent(&ScriptedModel::new("test").text("one")).build()?;
        agent.ask(if turn % 4 == 0 { long() } else { "go".to_owned() }).session(&session).await?;
        for last in 0..kept.min(turn) {
            let point = Point::After(turn - last);
            let past = session.at(point).await.unwrap_or_else(|error| panic!("{turn}: {error}"));
            assert_eq!(past.history().messages().len() as u64, 2 * (turn - last), "{point}");
        }
        let revision = store.load("a").await?.expect("an entry").head.revision;
        let older: usize = store.older_parts("a", revision).await?.iter().map(|part| part.len()).sum();
        most = most.max(older / session.history().messages().iter().map(|one| one.text().len()).sum::<usize>());
        if turn % 7 == 0 {
            // Another process goes on.
            drop(agent);
            drop(session);
            session = Session::open(&store, "a").keep(Keep::Turns(kept)).await?;
        }
    }
    assert!(most <= 2, "{most} times the history");
    assert!(matches!(session.at(Point::After(1)).await, Err(PastError::Forgotten { .. })));
    Ok(())
}

/// S11
#[tokio::test]
async fn a_text_that_was_withheld_is_in_no_part_of_the_store() -> Result<()> {
    for keep in [Keep::Nothing, Keep::Turns(9), Keep::Everything] {
        let store = MemoryStore::new();
        let session = Session::open(&store, "a").keep(keep).await?;
        let agent = agent(&ScriptedModel::new("test").text("one").text("forbidden").text("three")).build()?;
        let refuse = map_output(|_: &mut AgentOutput, _: &RunContext| Err(Error::new("no"))).named("desk").guard();
        agent.ask(long()).session(&session).await?;
        agent.ask("go").session(&session).middleware(refuse).await.expect_err("denied");
        agent.ask("go").session(&session).await?;
        let entry = store.load("a").await?.expect("an entry");
        let older = store.older_parts("a", entry.head.revision).await?;
        let text: Vec<_> = older.iter().chain(&entry.parts).map(|part| String::from_utf8_lossy(part)).collect();
        assert!(!text.concat().contains("forbidden"), "{keep:?}");
        assert_eq!(session.at(Point::After(3)).await?.history(), session.history());
    }
    Ok(())
}
