//! Each kind of end at each step of a run, in both protocols.

use std::fmt::Debug;
use std::future::pending;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use axum::http::{Method, StatusCode};
use emitree_agent::{Agent, AgentBuilder, ChatModel, ChatRequest, Delta, DeltaStream, Provider, Role, tool_fn};
use emitree_middleware::Timeout;
use emitree_middleware::store::MemoryStore;
use emitree_runtime::{Error, Interrupt, Result, RunContext};
use emitree_web::Chat;
use futures_util::{StreamExt, stream};
use schemars::JsonSchema;
use serde::Deserialize;
use serde_json::{Value, json};
use tokio::runtime::{Builder, Runtime};
use tokio::sync::mpsc;

use crate::support::{Page, check, events, last, page, paint, question, shown};

#[derive(Deserialize, JsonSchema)]
struct Nothing {}

#[derive(Deserialize, JsonSchema)]
struct Note {
    text: String,
}

/// The place in a run at which it ends.
#[derive(Clone, Copy, Debug, PartialEq)]
enum At {
    BeforeText,
    InText,
    InReasoning,
    InToolInput,
    InCall,
    InSubAgent,
    AfterResult,
}

const PLACES: [At; 7] =
    [At::BeforeText, At::InText, At::InReasoning, At::InToolInput, At::InCall, At::InSubAgent, At::AfterResult];

#[derive(Clone, Copy, Debug, PartialEq)]
enum End {
    Answer,
    Question,
    /// The page closes its connection.
    Gone,
    /// The server stops the run.
    Stopped,
    TimedOut,
    Denied,
    Failed,
    Panicked,
    /// The program ends while the run is under way.
    Dropped,
}

/// A model, and a tool, that end a run once.
#[derive(Clone, Debug)]
struct Ending {
    at: At,
    end: End,
    has_ended: Arc<AtomicBool>,
    /// Sends when the place is reached.
    reached: mpsc::UnboundedSender<()>,
    is_writer: bool,
}

impl Ending {
    /// Ends the run, or returns `true` if a question has to be asked.
    async fn act(self) -> Result<bool> {
        self.has_ended.store(true, Ordering::Relaxed);
        self.reached.send(()).unwrap();
        match self.end {
            End::Answer => Ok(false),
            End::Question => Ok(true),
            End::Gone | End::Stopped | End::TimedOut | End::Dropped => pending().await,
            End::Denied => Err(Error::denied("policy", "not on Sundays")),
            End::Failed => Err(Error::new("the database at 10.0.0.7 is down")),
            End::Panicked => panic!("the database at 10.0.0.7 is down"),
        }
    }

    /// Returns the pieces before the place, and `true` if it is in this reply.
    fn pieces(&self, turn: usize) -> (Vec<Delta>, bool) {
        let call = |name: &str, arguments: &str| {
            vec![
                Delta::Text("Let me see.".to_owned()),
                Delta::tool_call(0, Some("c1".into()), Some(name.into()), ""),
                Delta::tool_call(0, None, None, arguments),
            ]
        };
        match (self.at, self.is_writer, turn) {
            (At::BeforeText, _, 0) | (At::AfterResult, _, 1) => (Vec::new(), true),
            (At::InText, _, 0) | (At::InSubAgent, true, 0) => (vec![Delta::Text("Half a".to_owned())], true),
            (At::InReasoning, _, 0) => (vec![Delta::Reasoning("Hm".to_owned())], true),
            (At::InToolInput, _, 0) => (call("note", "{\"text\": \"a"), true),
            (At::InCall, _, 0) => (call("end", "{}"), false),
            (At::InSubAgent, false, 0) => (call("writer", "{\"task\": \"write\"}"), false),
            (At::AfterResult, _, 0) => (call("note", "{\"text\": \"a\"}"), false),
            _ => (vec![Delta::Text("Done.".to_owned())], false),
        }
    }

    /// Returns the pieces behind the place.
    fn rest(&self, asks: bool) -> Vec<Delta> {
        let mut rest = Vec::new();
        if self.at == At::InToolInput {
            rest.push(Delta::tool_call(0, None, None, "\"}"));
        } else if !asks {
            rest.push(Delta::Text(" word.".to_owned()));
        }
        if asks {
            rest.push(Delta::tool_call(1, Some("c2".into()), Some("paint".into()), "{}"));
        }
        rest
    }
}

impl Provider for Ending {
    fn name(&self) -> &str {
        "ending"
    }

    fn model(&self) -> &str {
        "ending"
    }

    async fn chat(&self, request: &ChatRequest, _: &RunContext) -> Result<DeltaStream> {
        let question = request.messages.iter().rposition(|message| message.role == Role::User).unwrap_or_default();
        let turn = request.messages[question..].iter().filter(|message| message.role == Role::Assistant).count();
        // The second message of the thread.
        let turn = if question > 0 { usize::MAX } else { turn };
        let (pieces, is_here) = self.pieces(turn);
        let is_here = is_here && !self.has_ended.load(Ordering::Relaxed);
        let end = stream::iter(is_here.then(|| self.clone())).then(|ending| async move {
            let rest = ending.clone().act().await.map(|asks| ending.rest(asks));
            stream::iter(rest.map_or_else(|error| vec![Err(error)], |rest| rest.into_iter().map(Ok).collect()))
        });
        Ok(Box::pin(stream::iter(pieces.into_iter().map(Ok)).chain(end.flatten())))
    }
}

fn builder(name: &str, ending: Ending) -> AgentBuilder {
    let note = tool_fn("note", "Notes", |Note { text }: Note, _: RunContext| async move { Ok(text) }).unwrap();
    let of_tool = ending.clone();
    let end = tool_fn("end", "Ends the run", move |_: Nothing, ctx: RunContext| {
        let ending = of_tool.clone();
        async move {
            if ending.act().await? {
                let _: String = ctx.ask(Interrupt::new("colour", json!({"choices": ["red", "blue"]})))?;
            }
            Ok("ended")
        }
    });
    Agent::builder(name, ChatModel::new(ending).unwrap()).tool(note).tool(paint()).tool(end.unwrap().idempotent())
}

fn chat(ending: &Ending) -> Chat {
    let writer = builder("writer", Ending { is_writer: true, ..ending.clone() }).build().unwrap();
    let agent = builder("guide", ending.clone()).tool(writer.as_tool("Writes"));
    let agent = agent.middleware(Timeout::overall(Duration::from_secs(60))).build().unwrap();
    Chat::new(agent, MemoryStore::new()).owner(|_| Some("ada".to_owned()))
}

/// Returns the last event of a run.
fn expected(path: &str, at: At, end: End) -> Value {
    let is_ag_ui = path == "/agent";
    let finished = |outcome: &str, reason: &str| match is_ag_ui {
        true => json!({"type": "RUN_FINISHED", "threadId": "t", "runId": "r1", "outcome": {"type": outcome}}),
        false => json!({"type": "finish", "finishReason": reason}),
    };
    let aborted = |reason: &str| match is_ag_ui {
        true => finished("cancelled", ""),
        false => json!({"type": "abort", "reason": reason}),
    };
    let failed = |code: &str, message: &str| match is_ag_ui {
        true => json!({"type": "RUN_ERROR", "code": code, "message": message}),
        false => json!({"type": "error", "errorText": message}),
    };
    match end {
        End::Answer => finished("success", "stop"),
        End::Question => finished("interrupt", "tool-calls"),
        End::Gone => aborted("the page has closed its connection"),
        End::Stopped => aborted("stopped by the user"),
        End::Dropped => aborted("the server has stopped"),
        End::TimedOut => failed("timed_out", "the run took too long"),
        // The model reads that its call was denied, or has failed, and answers.
        End::Denied | End::Failed | End::Panicked if [At::InCall, At::InSubAgent].contains(&at) => {
            finished("success", "stop")
        }
        End::Denied => failed("denied", "not on Sundays"),
        End::Failed | End::Panicked => failed("failed", "internal error"),
    }
}

async fn ends(path: &'static str, at: At, end: End) {
    let (reached, mut is_reached) = mpsc::unbounded_channel();
    let ending = Ending { at, end, has_ended: Arc::default(), reached, is_writer: false };
    let page = page(&chat(&ending));
    let asks = async || page.post(path, question(path, "t", "Go.")).await;
    let what: &dyn Debug = &(path, at, end);

    // A run that is dropped has its task in another runtime, which ends.
    let other = (end == End::Dropped).then(|| Builder::new_multi_thread().worker_threads(1).enable_all().build());
    let other = other.transpose().unwrap();
    let first = match &other {
        Some(other) => {
            let (page, body) = (Page { app: page.app.clone(), user: page.user }, question(path, "t", "Go."));
            other.spawn(async move { page.post(path, body).await }).await.unwrap()
        }
        None => asks().await,
    };
    assert_eq!(first.status(), StatusCode::OK, "{what:?}");
    let read = if path == "/agent" { "/agent/t/events" } else { "/chat/t/stream" };
    let second = page.send(Method::GET, read, "").await;
    is_reached.recv().await.unwrap();
    let mut first = Some(first);
    match end {
        End::Gone => drop(first.take()),
        End::Stopped => _ = page.send(Method::POST, &format!("{path}/t/stop"), "").await,
        _ => {}
    }
    // The response is not read without the clock of its runtime, and it is not dropped, which aborts the run.
    let _unread = if end == End::Dropped { first.take() } else { None };
    other.into_iter().for_each(Runtime::shutdown_background);
    // A run that ends at once has no second page.
    let second = Some(second).filter(|second| second.status() == StatusCode::OK);
    let both = [first, second].into_iter().flatten();
    let mut read = 0;
    for response in both {
        let events = events(response).await;
        check(path, &events);
        let mut found = last(&events).clone();
        if end == End::Question && path == "/agent" {
            assert_eq!(found["outcome"]["interrupts"].as_array().map(Vec::len), Some(1), "{what:?}");
            found["outcome"].as_object_mut().unwrap().remove("interrupts");
        }
        assert_eq!(found, expected(path, at, end), "{what:?}: {events:#?}");
        // The error of a tool is a result, which the model reads and the page shows.
        let is_result = [At::InCall, At::InSubAgent].contains(&at) && matches!(end, End::Failed | End::Panicked);
        assert_eq!(format!("{events:?}").contains("10.0.0.7"), is_result, "{what:?}: {events:#?}");
        if end == End::Denied {
            assert!(!shown(&events).contains("Half"), "{what:?}: {events:#?}");
        }
        read += 1;
    }
    assert!(read > 0, "{what:?}: a page has read the run");

    // The thread is free once the run has ended.
    if end == End::Dropped {
        return;
    }
    let again = loop {
        let again = asks().await;
        if again.status() != StatusCode::CONFLICT {
            break events(again).await;
        }
        tokio::task::yield_now().await;
    };
    check(path, &again);
}

#[tokio::test(start_paused = true)]
async fn each_kind_of_end_at_each_step_is_the_last_event_of_the_stream() {
    let kinds = [End::Answer, End::Question, End::Gone, End::Stopped, End::TimedOut];
    for end in kinds.into_iter().chain([End::Denied, End::Failed, End::Panicked, End::Dropped]) {
        for at in PLACES {
            for path in ["/agent", "/chat"] {
                ends(path, at, end).await;
            }
        }
    }
}
