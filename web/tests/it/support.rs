//! A page without a browser.

use std::future::pending;

use axum::Router;
use axum::body::{Body, BodyDataStream};
use axum::http::{Method, Request, StatusCode};
use axum::response::Response;
use emitree_agent::{Agent, AgentBuilder, ChatModel, ScriptedModel, Tool, tool_fn};
use emitree_middleware::Runs;
use emitree_middleware::approval::Approval;
use emitree_middleware::store::MemoryStore;
use emitree_runtime::{Interrupt, Result, RunContext, for_tree};
use emitree_web::Chat;
use futures_util::StreamExt;
use schemars::JsonSchema;
use serde::Deserialize;
use serde_json::{Value, json};
use tower::ServiceExt;

pub(crate) struct Page {
    pub(crate) app: Router,
    pub(crate) user: &'static str,
}

#[derive(Deserialize, JsonSchema)]
pub(crate) struct Pay {
    pub(crate) to: String,
}

#[derive(Deserialize, JsonSchema)]
struct Nothing {}

/// Pays, after an approval.
pub(crate) fn pay() -> Tool {
    let pay = tool_fn("pay", "Pays", |Pay { to }: Pay, _: RunContext| async move { Ok(format!("paid {to}")) });
    pay.unwrap().idempotent()
}

/// Asks for a colour.
pub(crate) fn paint() -> Tool {
    let paint = tool_fn("paint", "Paints", |_: Nothing, ctx: RunContext| async move {
        let colour: String = ctx.ask(Interrupt::new("colour", json!({"choices": ["red", "blue"]})))?;
        Ok(format!("painted {colour}"))
    });
    paint.unwrap().idempotent()
}

/// Returns a chat with a scripted agent.
pub(crate) fn chat(script: ScriptedModel, build: impl FnOnce(AgentBuilder) -> AgentBuilder) -> Chat {
    let builder = Agent::builder("guide", ChatModel::new(script).unwrap()).tool(pay()).tool(paint());
    let approval = Approval::by_interrupt().runs(Runs::named("pay"));
    let agent = build(builder.middleware(for_tree(approval))).build().unwrap();
    chat_of(agent)
}

fn chat_of(agent: Agent) -> Chat {
    Chat::new(agent, MemoryStore::new()).owner(|parts| Some(parts.headers.get("x-user")?.to_str().ok()?.to_owned()))
}

/// Never ends.
pub(crate) async fn forever() -> Result<String> {
    pending().await
}

pub(crate) fn page(chat: &Chat) -> Page {
    let app = Router::new().nest("/agent", chat.ag_ui()).nest("/chat", chat.ui_messages());
    Page { app, user: "ada" }
}

impl Page {
    pub(crate) async fn send(&self, method: Method, path: &str, body: impl Into<Body>) -> Response {
        let request = Request::builder().method(method).uri(path).header("x-user", self.user);
        let request = request.header("content-type", "application/json").body(body.into()).unwrap();
        self.app.clone().oneshot(request).await.unwrap()
    }

    pub(crate) async fn post(&self, path: &str, body: Value) -> Response {
        self.send(Method::POST, path, body.to_string()).await
    }

    /// Reads the steps of a run behind an event.
    pub(crate) async fn read_behind(&self, path: &str, event: &str) -> Response {
        let request = Request::builder().uri(path).header("x-user", self.user).header("last-event-id", event);
        self.app.clone().oneshot(request.body(Body::empty()).unwrap()).await.unwrap()
    }

    /// Sends a message, and returns the events of the stream.
    pub(crate) async fn ask(&self, path: &str, thread: &str, text: &str) -> Vec<Value> {
        let response = self.post(path, question(path, thread, text)).await;
        assert_eq!(response.status(), StatusCode::OK);
        events(response).await
    }
}

/// Returns a body with a message of the user, in the protocol of the path.
pub(crate) fn question(path: &str, thread: &str, text: &str) -> Value {
    match path {
        "/agent" => {
            let messages = json!([{"id": "m1", "role": "user", "content": text}]);
            json!({"threadId": thread, "runId": "r1", "messages": messages, "tools": [], "context": []})
        }
        _ => {
            let messages = json!([{"id": "m1", "role": "user", "parts": [{"type": "text", "text": text}]}]);
            json!({"id": thread, "messages": messages, "trigger": "submit-message"})
        }
    }
}

pub(crate) async fn text(response: Response) -> (StatusCode, String) {
    let status = response.status();
    let bytes = axum::body::to_bytes(response.into_body(), usize::MAX).await.unwrap();
    (status, String::from_utf8(bytes.into()).unwrap())
}

/// Returns all events of a stream, as JSON.
pub(crate) async fn events(response: Response) -> Vec<Value> {
    let (_, text) = text(response).await;
    let data = text.lines().filter_map(|line| line.strip_prefix("data: ")).filter(|data| *data != "[DONE]");
    data.map(|data| serde_json::from_str(data).unwrap()).collect()
}

/// A stream that is read event by event.
pub(crate) struct Events(BodyDataStream, String);

impl Events {
    pub(crate) fn of(response: Response) -> Self {
        assert_eq!(response.status(), StatusCode::OK);
        Self(response.into_body().into_data_stream(), String::new())
    }

    /// Returns the id and the data of the next event.
    pub(crate) async fn next(&mut self) -> Option<(String, Value)> {
        loop {
            if let Some((event, rest)) = self.1.split_once("\n\n") {
                let line = |name: &str| event.lines().find_map(|line| line.strip_prefix(name)).map(str::to_owned);
                let found = line("id: ").zip(line("data: "));
                self.1 = rest.to_owned();
                if let Some((id, data)) = found {
                    return Some((id, serde_json::from_str(&data).unwrap()));
                }
                continue;
            }
            let bytes = self.0.next().await?.unwrap();
            self.1.push_str(std::str::from_utf8(&bytes).unwrap());
        }
    }

    /// Reads until an event of a type has come.
    pub(crate) async fn until(&mut self, kind: &str) -> (String, Value) {
        loop {
            let (id, event) = self.next().await.unwrap_or_else(|| panic!("no {kind}"));
            if event["type"] == kind {
                return (id, event);
            }
        }
    }
}

pub(crate) fn types(events: &[Value]) -> Vec<&str> {
    events.iter().map(|event| event["type"].as_str().unwrap()).collect()
}

/// Returns the text that a page shows at the end: the pieces of texts, after what was taken back.
pub(crate) fn shown(events: &[Value]) -> String {
    let mut text = String::new();
    for event in events {
        match event["type"].as_str().unwrap() {
            "TEXT_MESSAGE_CONTENT" | "text-delta" => text += event["delta"].as_str().unwrap(),
            "reset-step" => text.clear(),
            "MESSAGES_SNAPSHOT" => {
                let messages = event["messages"].as_array().unwrap();
                let question = messages.iter().rposition(|message| message["role"] == "user").unwrap();
                let answers = messages[question..].iter().filter(|message| message["role"] == "assistant");
                text = answers.filter_map(|message| message["content"].as_str()).collect();
            }
            _ => {}
        }
    }
    text
}

/// Checks that a stream is whole: everything that begins ends, and the last event is the only end.
pub(crate) fn check(path: &str, events: &[Value]) {
    let (last, before) = events.split_last().unwrap();
    let ends = ["RUN_FINISHED", "RUN_ERROR", "finish", "abort", "error"];
    assert!(ends.contains(&last["type"].as_str().unwrap()), "{last}");
    assert!(before.iter().all(|event| !ends.contains(&event["type"].as_str().unwrap())), "{before:#?}");
    let first = if path == "/agent" { "RUN_STARTED" } else { "start" };
    assert_eq!(events[0]["type"], first);
    let mut open = Vec::new();
    let mut arguments = String::new();
    for event in events {
        let id = ["messageId", "toolCallId", "subagentRunId", "id"].iter().find_map(|key| event[key].as_str());
        let kind = event["type"].as_str().unwrap();
        match kind {
            "RUN_STARTED" | "start" | "start-step" | "finish-step" => {}
            "TOOL_CALL_START" | "TEXT_MESSAGE_START" | "REASONING_MESSAGE_START" | "SUBAGENT_STARTED" => {
                assert!(!open.contains(&id), "{event}");
                open.push(id);
                arguments.clear();
            }
            "text-start" | "reasoning-start" => open.push(id),
            "TEXT_MESSAGE_CONTENT" | "text-delta" | "reasoning-delta" => assert!(open.contains(&id), "{event}"),
            "TOOL_CALL_ARGS" => {
                assert!(open.contains(&id), "{event}");
                arguments += event["delta"].as_str().unwrap();
            }
            "TOOL_CALL_END" => {
                assert!(arguments.is_empty() || serde_json::from_str::<Value>(&arguments).is_ok(), "{arguments}");
                open.retain(|open| *open != id);
            }
            "TEXT_MESSAGE_END"
            | "REASONING_MESSAGE_END"
            | "SUBAGENT_FINISHED"
            | "SUBAGENT_ERROR"
            | "text-end"
            | "reasoning-end" => {
                assert!(open.contains(&id), "{event}");
                open.retain(|open| *open != id);
            }
            "reset-step" => open.clear(),
            _ => {}
        }
    }
    assert!(open.is_empty(), "{open:?} of {events:#?}");
}

pub(crate) fn last(events: &[Value]) -> &Value {
    events.last().unwrap()
}
