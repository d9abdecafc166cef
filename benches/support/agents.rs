//! Models that do next to nothing, and an agent around them.

use emitree::agent::{
    Agent, ChatModel, ChatRequest, ChatResponse, Delta, DeltaStream, Message, Provider, Tool, ToolCall, tool_fn, whole,
};
use emitree::{Result, RunContext};
use futures_util::stream;
use schemars::JsonSchema;
use serde::Deserialize;
use serde_json::json;

/// A model that calls a tool twice and then answers.
pub(crate) struct Fixed;

pub(crate) fn respond(request: &ChatRequest) -> ChatResponse {
    let results = request.messages.iter().rev().take_while(|message| message.text().is_empty()).count();
    ChatResponse::new(match results {
        0 | 2 => Message::assistant("").with_call(ToolCall::new("c", "add", json!({"n": 1}))),
        _ => Message::assistant("done"),
    })
}

impl Provider for Fixed {
    fn name(&self) -> &str {
        "fixed"
    }

    fn model(&self) -> &str {
        "fixed"
    }

    async fn chat(&self, request: &ChatRequest, _: &RunContext) -> Result<DeltaStream> {
        Ok(whole(respond(request)))
    }
}

/// A model that answers in many small pieces.
pub(crate) struct Pieces(pub(crate) usize);

impl Provider for Pieces {
    fn name(&self) -> &str {
        "pieces"
    }

    fn model(&self) -> &str {
        "pieces"
    }

    async fn chat(&self, _: &ChatRequest, _: &RunContext) -> Result<DeltaStream> {
        Ok(pieces(self.0))
    }
}

pub(crate) fn pieces(deltas: usize) -> DeltaStream {
    Box::pin(stream::iter((0..deltas).map(|_| Ok(Delta::Text("word".to_owned())))))
}

#[derive(Deserialize, JsonSchema)]
pub(crate) struct Add {
    pub(crate) n: u64,
}

pub(crate) fn add() -> Tool {
    tool_fn("add", "Adds one", |Add { n }: Add, _: RunContext| std::future::ready(Ok(n + 1))).expect("a tool")
}

/// An agent whose model calls [`add`] twice.
pub(crate) fn agent() -> Agent {
    Agent::builder("bench", ChatModel::new(Fixed).expect("a model")).tool(add()).build().expect("an agent")
}
