//! Several processes, and several requests at once.

use std::sync::Arc;

use axum::Router;
use axum::http::StatusCode;
use emitree_agent::{Agent, ChatModel, ScriptedModel, Session, tool_fn};
use emitree_middleware::store::{
    Append, Entry, EntryHead, Filter, MemoryStore, Post, Posted, Revision, Store, StoreError, StoreId,
};
use emitree_runtime::{Error, RunContext, map_output};
use emitree_web::Chat;
use futures_util::future::BoxFuture;
use schemars::JsonSchema;
use serde::Deserialize;
use serde_json::{Value, json};
use tokio::sync::Notify;

use crate::support::{Events, Page, chat, check, events, forever, last, page, pay, question, shown, text};

const PATHS: [&str; 2] = ["/agent", "/chat"];

#[derive(Deserialize, JsonSchema)]
struct Nothing {}

/// The store of another process, with the same entries.
#[derive(Clone, Debug)]
struct Process {
    store: MemoryStore,
    id: StoreId,
    /// Waits before its next append.
    gate: Option<Arc<Gate>>,
}

#[derive(Debug, Default)]
struct Gate {
    has_come: Notify,
    opens: Notify,
}

impl Process {
    fn of(store: &MemoryStore) -> Self {
        Self { store: store.clone(), id: StoreId::new(), gate: None }
    }
}

impl Store for Process {
    fn remove<'a>(&'a self, id: &'a str, after: Revision) -> BoxFuture<'a, Result<(), StoreError>> {
        self.store.remove(id, after)
    }

    fn append<'a>(&'a self, append: &'a Append) -> BoxFuture<'a, Result<Revision, StoreError>> {
        Box::pin(async move {
            if let Some(gate) = &self.gate {
                gate.has_come.notify_one();
                gate.opens.notified().await;
            }
            self.store.append(append).await
        })
    }

    fn post<'a>(&'a self, id: &'a str, post: &'a Post) -> BoxFuture<'a, Result<Posted, StoreError>> {
        self.store.post(id, post)
    }

    fn posts<'a>(&'a self, id: &'a str) -> BoxFuture<'a, Result<Vec<Post>, StoreError>> {
        self.store.posts(id)
    }

    fn list<'a>(&'a self, filter: &'a Filter) -> BoxFuture<'a, Result<Vec<EntryHead>, StoreError>> {
        self.store.list(filter)
    }

    fn store_id(&self) -> StoreId {
        self.id
    }

    fn load<'a>(&'a self, id: &'a str) -> BoxFuture<'a, Result<Option<Entry>, StoreError>> {
        self.store.load(id)
    }
}

fn agent(script: ScriptedModel) -> Agent {
    let waits = tool_fn("wait", "Waits", |_: Nothing, _: RunContext| forever()).unwrap().idempotent();
    Agent::builder("guide", ChatModel::new(script).unwrap()).tool(waits).tool(pay()).build().unwrap()
}

fn page_of(script: ScriptedModel, store: impl Store + Clone, user: &'static str) -> Page {
    let chat = Chat::new(agent(script), store);
    let chat = chat.owner(|parts| Some(parts.headers.get("x-user")?.to_str().ok()?.to_owned()));
    Page { user, ..page(&chat) }
}

#[tokio::test]
async fn of_two_processes_that_make_a_thread_at_once_one_owner_has_it() {
    for path in PATHS {
        let store = MemoryStore::new();
        let gate = Arc::new(Gate::default());
        let slow = Process { gate: Some(Arc::clone(&gate)), ..Process::of(&store) };
        let eve = page_of(ScriptedModel::new("test").text("Your secret is 1815."), slow, "eve");
        let late = tokio::spawn(async move {
            let refused = text(eve.post(path, question(path, "t", "What did I say?")).await).await;
            (eve, refused)
        });
        // Eve's process has found no thread, and is about to make it.
        gate.has_come.notified().await;
        let ada = page_of(ScriptedModel::new("test").text("Noted.").text("It is 1815."), Process::of(&store), "ada");
        assert_eq!(shown(&ada.ask(path, "t", "My secret is 1815.").await), "Noted.");
        for _ in 0..10 {
            gate.opens.notify_one();
            tokio::task::yield_now().await;
        }
        let (eve, refused) = late.await.unwrap();
        assert_eq!(refused, (StatusCode::NOT_FOUND, r#"there is no thread "t""#.to_owned()));
        let again = text(eve.post(path, question(path, "t", "What did I say?")).await).await;
        assert_eq!(again, refused);
        assert_eq!(shown(&ada.ask(path, "t", "What did I say?").await), "It is 1815.");
        let session = Session::open(&store, "t").await.unwrap();
        assert_eq!(session.meta()["owner"], "ada");
    }
}

#[tokio::test]
async fn a_thread_that_another_process_works_on_is_refused_and_leaves_no_run() {
    for path in PATHS {
        let store = MemoryStore::new();
        let here = page_of(ScriptedModel::new("test").call("wait", json!({})), Process::of(&store), "ada");
        let mut stream = Events::of(here.post(path, question(path, "t", "Wait.")).await);
        stream.until(if path == "/agent" { "TOOL_CALL_END" } else { "tool-input-available" }).await;
        let chat =
            Chat::new(agent(ScriptedModel::new("test").text("x")), Process::of(&store)).owner(|_| Some("ada".into()));
        let there = page(&chat.keep_running());
        let (status, reason) = text(there.post(path, question(path, "t", "And?")).await).await;
        assert_eq!((status, &*reason), (StatusCode::CONFLICT, "another run of the thread is under way"));
        let read = if path == "/agent" { "/agent/t/events" } else { "/chat/t/stream" };
        let nothing = there.send(axum::http::Method::GET, read, "").await.status();
        assert_eq!(nothing, StatusCode::NO_CONTENT);
    }
}

/// Asks for a colour, and returns the id of the question, and the body that answers it.
async fn asked(page: &Page, path: &str) -> impl Fn(&str) -> Value {
    let events = page.ask(path, "t", "Paint.").await;
    check(path, &events);
    let id = match path {
        "/agent" => last(&events)["outcome"]["interrupts"][0]["id"].clone(),
        _ => events.iter().find(|event| event["type"] == "data-emitree-question").unwrap()["id"].clone(),
    };
    let id = id.as_str().unwrap().to_owned();
    let is_ag_ui = path == "/agent";
    move |value: &str| {
        if is_ag_ui {
            let resume = json!([{"interruptId": id, "status": "resolved", "payload": value}]);
            return json!({"threadId": "t", "runId": "r2", "messages": [], "resume": resume});
        }
        let answers = json!({ &*id: value });
        json!({"id": "t", "messages": [{"id": "a", "role": "assistant", "parts": []}], "answers": answers})
    }
}

#[tokio::test]
async fn an_answer_that_comes_after_the_end_of_its_turn_has_no_question() {
    for path in PATHS {
        let script = ScriptedModel::new("test").call("paint", json!({})).text("Done.");
        let page = page(&chat(script, |agent| agent));
        let body = asked(&page, path).await;
        let answered = events(page.post(path, body("red")).await).await;
        assert_eq!(shown(&answered), "Done.");
        for value in ["red", "blue", "green"] {
            let (status, reason) = text(page.post(path, body(value)).await).await;
            assert_eq!(status, StatusCode::NOT_FOUND, "{reason}");
            assert!(reason.contains("no question is open"), "{reason}");
        }
    }
}

#[tokio::test]
async fn a_second_answer_is_told_the_first_one_while_the_call_is_under_way() {
    for path in PATHS {
        let paints = tool_fn("paints", "Paints for long", |_: Nothing, ctx: RunContext| async move {
            let _: String = ctx.ask(emitree_runtime::Interrupt::new("colour", json!({"choices": ["red", "blue"]})))?;
            forever().await
        });
        let script = ScriptedModel::new("test").call("paints", json!({}));
        let page = page(&chat(script, |agent| agent.tool(paints.unwrap().idempotent())));
        let body = asked(&page, path).await;
        let first = page.post(path, body("red")).await;
        assert_eq!(first.status(), StatusCode::OK);
        let (status, reason) = text(page.post(path, body("blue")).await).await;
        assert_eq!(status, StatusCode::CONFLICT);
        assert!(reason.contains("was answered with \"red\" by ada"), "{reason}");
        drop(first);
    }
}

#[tokio::test]
async fn the_steps_of_a_session_that_was_removed_are_nobodys() {
    let store = MemoryStore::new();
    let chat = Chat::new(agent(ScriptedModel::new("test").text("Your secret is 1815.")), store.clone());
    let chat = chat.owner(|parts| Some(parts.headers.get("x-user")?.to_str().ok()?.to_owned())).keep_running();
    let app = Router::new().nest("/chat", chat.ui_messages());
    let ada = Page { app: app.clone(), user: "ada" };
    ada.ask("/chat", "t", "Hi").await;
    let entry = store.load("t").await.unwrap().unwrap();
    store.remove("t", entry.head.revision).await.unwrap();
    let eve = Page { app, user: "eve" };
    let (status, body) = text(eve.send(axum::http::Method::GET, "/chat/t/stream", "").await).await;
    assert_eq!((status, &*body), (StatusCode::NO_CONTENT, ""));
}

#[tokio::test]
async fn the_reason_of_an_abort_that_is_not_the_chats_stays_on_the_server() {
    for path in PATHS {
        let script = ScriptedModel::new("test").text("Everest.");
        let gone = map_output(|_: &mut emitree_agent::AgentOutput, ctx: &RunContext| {
            ctx.abort("held by host-17 at 10.0.0.7");
            Err::<(), _>(Error::aborted("held by host-17 at 10.0.0.7"))
        });
        let events = page(&chat(script, |agent| agent.middleware(gone))).ask(path, "t", "Hi").await;
        check(path, &events);
        assert!(!format!("{events:?}").contains("10.0.0.7"), "{events:#?}");
    }
}
