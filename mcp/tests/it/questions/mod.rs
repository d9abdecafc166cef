//! Questions that are kept with the session, and answered in another process.

mod aborted;
mod odd;
#[path = "../../../../tests/support/process.rs"]
#[allow(dead_code, reason = "each suite uses its part")]
mod process;
mod state;

use std::path::PathBuf;
use std::sync::atomic::{AtomicUsize, Ordering};

use emitree_agent::{Agent, AgentRun, ChatModel, Reply, Role, ScriptedModel, Session};
use emitree_mcp::{ElicitAnswer, McpServer, McpTools};
use emitree_middleware::store::MemoryStore;
use emitree_runtime::Answer;
use parking_lot::Mutex;
use schemars::JsonSchema;
use serde::Deserialize;
use serde_json::{Value, json};

use crate::support::{Events, bank};
use process::{Kill, Process};

#[derive(Deserialize, JsonSchema)]
struct Nothing {}

const ID: &str = "order-17";
const ERAS: [&str; 2] = ["old", "new"];

/// The payments of a bank, in a file.
struct Ledger(PathBuf);

impl Ledger {
    fn new() -> Self {
        static LAST: AtomicUsize = AtomicUsize::new(0);
        let number = LAST.fetch_add(1, Ordering::Relaxed);
        Self(std::env::temp_dir().join(format!("emitree-mcp-ledger-{}-{number}", std::process::id())))
    }

    fn lines(&self) -> Vec<String> {
        std::fs::read_to_string(&self.0).unwrap_or_default().lines().map(str::to_owned).collect()
    }

    /// Starts a bank that writes here.
    async fn bank(&self, era: &str) -> McpServer {
        bank(&["--era", era]).name("bank").env("BANK_LEDGER", &self.0).connect().await.unwrap()
    }
}

impl Drop for Ledger {
    fn drop(&mut self) {
        // A bank that has paid nothing has made no file.
        drop(std::fs::remove_file(&self.0));
    }
}

/// The tools of a bank. In the old era, the call is made again after the answer.
fn tools(bank: &McpServer, era: &str) -> McpTools {
    let tools = bank.tools();
    if era == "old" { tools.idempotent(["transfer"]).exclusive(["transfer"]) } else { tools }
}

/// An agent that makes these calls, and then says `Done.`. It is the same in each process.
fn clerk(tools: McpTools, calls: &[(&str, Value)]) -> Agent {
    let calls: Vec<_> = calls.iter().map(|(name, arguments)| ((*name).to_owned(), arguments.clone())).collect();
    let model = ScriptedModel::by("test", move |request| {
        match request.messages.iter().any(|message| message.role == Role::Tool) {
            true => Reply::text("Done."),
            false => Reply::calls(calls.clone()),
        }
    });
    Agent::builder("clerk", ChatModel::new(model).unwrap()).with(tools).build().unwrap()
}

fn transfer(amount: u32) -> (&'static str, Value) {
    ("transfer", json!({"to": "Ada", "amount": amount}))
}

/// Asks, or resumes a session that has begun. Returns `false` if a question is open.
async fn go_on(agent: &Agent, session: &Session) -> bool {
    let run = match session.history().messages() {
        [] => agent.ask("Pay."),
        _ => agent.resume(session),
    };
    match run.session(session).await {
        Ok(answer) => answer.text() == "Done.",
        Err(error) if error.is_interrupted() => false,
        Err(error) => panic!("{error}"),
    }
}

async fn answer(session: &Session, answer: impl Into<Answer> + Send) {
    let question = session.questions().remove(0);
    session.answer(&question.id, answer).await.unwrap();
}

fn results(session: &Session) -> Vec<String> {
    let history = session.history();
    let results = history.messages().iter().flat_map(|message| message.tool_results());
    results.map(|result| result.response.as_str().map_or_else(|| result.response.to_string(), str::to_owned)).collect()
}

fn savings() -> ElicitAnswer {
    ElicitAnswer::accept(json!({"account": "savings"}))
}

// P6
#[tokio::test]
async fn a_question_is_answered_in_another_process_and_its_call_goes_on() {
    for era in ERAS {
        let (store, ledger) = (MemoryStore::new(), Ledger::new());
        let server = ledger.bank(era).await;
        let session = Session::open(&Process::killed_at(&store, Kill::Never), ID).await.unwrap();
        assert!(!go_on(&clerk(tools(&server, era), &[transfer(5)]), &session).await);
        let question = session.questions().remove(0);
        assert_eq!(question.kind, "mcp.elicitation");
        assert_eq!((&question.data["server"], &question.data["tool"]), (&json!("bank"), &json!("transfer")));
        let requests = question.data["requests"].as_object().unwrap();
        let request = requests.values().next().unwrap();
        assert_eq!((&request["mode"], &request["message"]), (&json!("form"), &json!("From which account?")));
        assert_eq!(request["schema"]["properties"]["account"]["enum"], json!(["savings", "giro"]));
        server.close().await;
        drop((server, session));

        let session = Session::open(&Process::killed_at(&store, Kill::Never), ID).await.unwrap();
        answer(&session, savings()).await;
        drop(session);
        let server = ledger.bank(era).await;
        let session = Session::open(&Process::killed_at(&store, Kill::Never), ID).await.unwrap();
        assert!(go_on(&clerk(tools(&server, era), &[transfer(5)]), &session).await);
        assert_eq!(results(&session), ["sent 5 from savings"], "{era}");
        assert_eq!(ledger.lines(), ["5 from savings"], "{era}");
    }
}

#[tokio::test]
async fn an_answer_that_does_not_fit_opens_the_question_again_and_sends_nothing() {
    for (era, key) in [("old", "question"), ("new", "account")] {
        let ledger = Ledger::new();
        let server = ledger.bank(era).await;
        let (agent, session) = (clerk(tools(&server, era), &[transfer(5)]), Session::new());
        assert!(!go_on(&agent, &session).await);
        let id = session.questions()[0].id.clone();
        for (wrong, reason) in [
            (json!({"action": "accept", "content": {"account": "casino"}}), "does not fit the question, at `/account`"),
            (json!({"action": "accept", "content": {}}), "does not fit the question, at ``"),
            (json!({"action": "agree"}), "agree"),
            (json!("savings"), "savings"),
            (json!({}), "has no answer"),
            (json!({key: {"action": "decline"}, "other": {"action": "decline"}}), "there is no request `other`"),
        ] {
            answer(&session, wrong.clone()).await;
            assert!(!go_on(&agent, &session).await);
            let question = session.questions().remove(0);
            assert_eq!(question.id, id, "the question is the same");
            let refused = &question.data["refused"];
            assert_eq!(refused["answer"]["value"], wrong);
            assert!(refused["reason"].as_str().unwrap().contains(reason), "{era}: {refused}");
        }
        assert_eq!(ledger.lines(), [""; 0]);
        answer(&session, json!({key: savings()})).await;
        assert!(go_on(&agent, &session).await);
        assert_eq!(results(&session), ["sent 5 from savings"]);
    }
}

#[tokio::test]
async fn a_declined_question_is_told_to_the_server() {
    for era in ERAS {
        let server = bank(&["--era", era]).connect().await.unwrap();
        let (agent, session) = (clerk(tools(&server, era), &[transfer(5)]), Session::new());
        assert!(!go_on(&agent, &session).await);
        answer(&session, ElicitAnswer::Decline).await;
        assert!(go_on(&agent, &session).await);
        assert_eq!(results(&session), ["nothing was sent: no account"], "{era}");
    }
}

#[tokio::test]
async fn two_calls_of_a_turn_have_a_question_each() {
    for era in ERAS {
        let ledger = Ledger::new();
        let server = ledger.bank(era).await;
        let (agent, session) = (clerk(tools(&server, era), &[transfer(5), transfer(6)]), Session::new());
        let (mut asked, mut accounts) = (0, ["savings", "giro"].into_iter());
        while !go_on(&agent, &session).await {
            for (question, account) in session.questions().iter().zip(&mut accounts) {
                asked += 1;
                let accept = ElicitAnswer::accept(json!({"account": account}));
                session.answer(&question.id, accept).await.unwrap();
            }
        }
        assert_eq!((asked, results(&session).len(), ledger.lines().len()), (2, 2, 2), "{era}");
        assert_eq!(results(&session), ["sent 5 from savings", "sent 6 from giro"], "{era}");
    }
}

#[tokio::test]
async fn a_question_in_a_sub_agent_is_one_of_the_session_above() {
    for era in ERAS {
        let (store, ledger) = (MemoryStore::new(), Ledger::new());
        for is_answered in [false, true] {
            let server = ledger.bank(era).await;
            let below = clerk(tools(&server, era), &[transfer(5)]).as_tool("Pays").unwrap();
            let model = ScriptedModel::by("above", |request| {
                match request.messages.iter().any(|message| message.role == Role::Tool) {
                    true => Reply::text("Done."),
                    false => Reply::calls([("clerk", json!({"task": "Pay."}))]),
                }
            });
            let desk = Agent::builder("desk", ChatModel::new(model).unwrap()).tool(below).build().unwrap();
            let session = Session::open(&Process::killed_at(&store, Kill::Never), ID).await.unwrap();
            if is_answered {
                answer(&session, savings()).await;
            }
            assert_eq!(go_on(&desk, &session).await, is_answered, "{era}");
        }
        assert_eq!(ledger.lines(), ["5 from savings"], "{era}");
    }
}

/// The question of the old era cannot be kept for a call that may have had effects.
#[tokio::test]
async fn a_question_that_nothing_stores_is_declined_and_its_event_names_both_ways() {
    let ledger = Ledger::new();
    let server = ledger.bank("old").await;
    let events = Events::of(server.emitter());
    let session = Session::new();
    assert!(go_on(&clerk(server.tools(), &[transfer(5)]), &session).await);
    assert_eq!(results(&session), ["nothing was sent: no account"]);
    let refused = events.wait("elicitation_refused").await;
    assert_eq!(refused["message"], "From which account?");
    let reason = refused["reason"].as_str().unwrap();
    assert!(reason.contains("`.elicit(..)`") && reason.contains("`idempotent([..])`"), "{reason}");
    assert_eq!(ledger.lines(), [""; 0]);
}

#[tokio::test]
async fn a_question_below_a_tool_that_may_have_had_effects_is_declined() {
    for era in ERAS {
        let server = bank(&["--era", era]).connect().await.unwrap();
        let events = Events::of(server.emitter());
        let below = clerk(tools(&server, era), &[transfer(5)]);
        // Not idempotent: the tool would start from its beginning after the answer.
        let pay = emitree_agent::tool_fn("pay", "Pays", move |_: Nothing, _: emitree_runtime::RunContext| {
            let below = below.clone();
            async move { Ok(results_of(&below.ask("Pay.").await?)) }
        });
        let model = ScriptedModel::new("above").call("pay", json!({})).text("Done.");
        let desk = Agent::builder("desk", ChatModel::new(model).unwrap()).tool(pay).build().unwrap();
        let session = Session::new();
        assert!(go_on(&desk, &session).await, "{era}");
        assert_eq!(results(&session), ["nothing was sent: no account"], "{era}");
        let refused = events.wait("elicitation_refused").await;
        assert!(refused["reason"].as_str().unwrap().contains("the work of `Tool pay` has begun"), "{refused}");
    }
}

fn results_of(answer: &emitree_agent::AgentOutput) -> Value {
    answer.messages.iter().flat_map(|message| message.tool_results()).next().unwrap().response.clone()
}

/// The other call lasts until the question is there.
#[tokio::test]
async fn a_question_of_one_of_two_calls_of_the_old_era_is_declined() {
    let server = bank(&["--era", "old"]).connect().await.unwrap();
    let events = Events::of(server.emitter());
    let session = Session::new();
    let tools = server.tools().idempotent(["transfer"]);
    assert!(go_on(&clerk(tools, &[("audit", json!({})), transfer(5)]), &session).await);
    assert_eq!(results(&session), ["3 payments", "nothing was sent: no account"]);
    let refused = events.wait("elicitation_refused").await;
    let reason = refused["reason"].as_str().unwrap();
    assert!(reason.starts_with("2 calls are under way") && reason.contains("`exclusive([..])`"), "{reason}");
}

/// Answers all questions, and goes on until the agent has answered. Notes the questions whose answers are stored.
async fn finish(agent: &Agent, session: &Session, answered: &Mutex<Vec<String>>) {
    loop {
        for question in session.questions() {
            session.answer(&question.id, savings()).await.unwrap();
            answered.lock().push(question.id);
        }
        if go_on(agent, session).await {
            return;
        }
    }
}

// P6
#[tokio::test]
async fn a_process_that_is_killed_at_any_commit_pays_at_most_once_and_loses_no_answer() {
    for era in ERAS {
        let ledger = Ledger::new();
        let server = ledger.bank(era).await;
        let agent = clerk(tools(&server, era), &[transfer(5)]);
        let (mut killed, mut paid, mut lost) = (0, 0, 0);
        'commits: for number in 0..60 {
            for kill in [Kill::Before(number), Kill::After(number)] {
                let (store, before) = (MemoryStore::new(), ledger.lines().len());
                let process = Process::killed_at(&store, kill);
                let session = Session::open(&process, ID).await.unwrap();
                let answered = Mutex::default();
                tokio::select! {
                    () = finish(&agent, &session, &answered) => break 'commits,
                    () = process.killed() => killed += 1,
                }
                drop(session);
                let session = Session::open(&Process::killed_at(&store, Kill::Never), ID).await.unwrap();
                if !is_over(&session) {
                    finish(&agent, &session, &answered).await;
                }
                assert!(answered.lock().len() <= 1, "{era} {kill:?}: an answer was lost");
                let results = results(&session);
                let payments = ledger.lines().len() - before;
                let is_lost = results[0].ends_with("it may have had effects");
                assert!(is_lost || results == ["sent 5 from savings"], "{era} {kill:?}: {results:?}");
                // A call of the old era is made again, which its user has allowed.
                assert!(payments <= 1 || era == "old", "{era} {kill:?}: {payments}");
                assert!(is_lost || payments > 0, "{era} {kill:?}");
                paid += payments;
                lost += usize::from(is_lost);
            }
        }
        assert!(killed > 10 && paid > 10, "{era}: {killed} and {paid}");
        assert_eq!(lost > 0, era == "new", "{lost} of {killed}");
    }
}

/// Returns `true` if the agent has answered.
fn is_over(session: &Session) -> bool {
    session.history().messages().last().is_some_and(|message| message.text() == "Done.")
}

#[tokio::test]
async fn aborting_a_run_while_a_function_answers_ends_its_call() {
    for era in ERAS {
        let ledger = Ledger::new();
        let (begun, has_begun) = (std::sync::Arc::new(tokio::sync::Notify::new()), ());
        let asked = std::sync::Arc::clone(&begun);
        let server = bank(&["--era", era]).env("BANK_LEDGER", &ledger.0).elicit(move |_| {
            asked.notify_one();
            std::future::pending()
        });
        let server = server.connect().await.unwrap();
        let agent = clerk(server.tools(), &[transfer(5)]);
        tokio::select! {
            ended = agent.ask("Pay.") => panic!("{ended:?}"),
            () = begun.notified() => has_begun,
        }
        let balance = crate::support::result(server.tools(), "balance", json!({})).await;
        assert_eq!(balance.response, json!({"savings": 100}), "{era}");
        assert_eq!(ledger.lines(), [""; 0]);
    }
}
