//! An agent that writes as many tokens as it is asked for, and what pages send to it.

use std::future::pending;
use std::sync::atomic::{AtomicU64, Ordering};

use emitree::agent::{Agent, ChatModel, ChatRequest, Delta, DeltaStream, Provider};
use emitree::{Result, RunContext};
use futures_util::{Stream, StreamExt, stream};
use serde_json::json;
use tokio::task::yield_now;

pub(crate) const TOKEN: &str = "word ";

/// Writes as many tokens as the last message says, and then waits if it says so.
struct Tokens;

impl Provider for Tokens {
    fn name(&self) -> &str {
        "tokens"
    }

    fn model(&self) -> &str {
        "tokens"
    }

    async fn chat(&self, request: &ChatRequest, _: &RunContext) -> Result<DeltaStream> {
        let text = request.messages.last().map(|message| message.text()).unwrap_or_default();
        let (tokens, waits) = text.strip_suffix(" and wait").map_or((&*text, false), |tokens| (tokens, true));
        let tokens = one_by_one(tokens.parse().unwrap_or(0)).map(|()| Ok(Delta::Text(TOKEN.to_owned())));
        let wait = stream::iter(waits.then_some(())).then(|()| pending());
        Ok(Box::pin(tokens.chain(wait)))
    }
}

/// Lets other tasks work after each item, as a socket that has no more bytes does.
pub(crate) fn one_by_one(items: u32) -> impl Stream<Item = ()> + Send {
    stream::iter(0..items).then(|_| yield_now())
}

pub(crate) fn agent() -> Agent {
    Agent::builder("writer", ChatModel::new(Tokens).expect("a model")).build().expect("an agent")
}

/// Returns an id that no thread has.
fn new_thread() -> String {
    static THREADS: AtomicU64 = AtomicU64::new(0);
    format!("thread-{}", THREADS.fetch_add(1, Ordering::Relaxed))
}

pub(crate) fn question(path: &str, text: &str) -> String {
    let thread = new_thread();
    let body = if path == "/agent" {
        json!({"threadId": thread, "runId": "r", "messages": [{"id": "m", "role": "user", "content": text}]})
    } else {
        json!({"id": thread, "messages": [{"id": "m", "role": "user", "parts": [{"type": "text", "text": text}]}]})
    };
    body.to_string()
}
