//! The cost of reading an argument of a tool call while the model writes it.
//!
//! ```text
//! cargo bench --manifest-path benches/Cargo.toml --bench tool_call_stream
//! ```
//!
//! A bench of its own, because its long cases would leave cold caches to the short ones of the bench `agent`.

use std::hint::black_box;
use std::sync::Mutex;

use emitree::agent::reply::{StreamToolCall, ToolCallDelta, ToolCallUpdate};
use emitree::agent::{ChatModel, ChatRequest, Delta, DeltaStream, Provider, tool_fn};
use emitree::{Result, RunContext, Runnable};
use futures_util::stream;
use schemars::JsonSchema;
use serde::Deserialize;

use crate::support::{Case, Extra, Suite, timed};

mod support;

fn main() {
    let mut suite = Suite::new(&["emitree", "appends"]);
    // A batch is one reply: with 1 MB, the bench would take two minutes.
    const BYTES: usize = 1 << 17;
    let (small, large) = (suite.case(updates(BYTES)), suite.case(updates(2 * BYTES)));
    let appended = suite.case(appends(BYTES));
    let what = "an argument of 128 KB in pieces of 4 bytes, with a listener of `update`";
    let row = suite.row("AS", what, Extra::per(small, 1));
    let row = row.beside("appends", appended);
    row.at_most(3.0, "the same stream, with a listener of `tool_call_delta` that appends the piece", appended);
    suite.row("", "… 256 KB", Extra::per(large, 1)).at_most(2.2, "128 KB", small);
    suite.run();
}

/// A model that calls `write` with a text of this length, in pieces of 4 bytes.
struct Writes(usize);

impl Provider for Writes {
    fn name(&self) -> &str {
        "writes"
    }

    fn model(&self) -> &str {
        "writes"
    }

    async fn chat(&self, _: &ChatRequest, _: &RunContext) -> Result<DeltaStream> {
        let piece = |text: &str| Ok(Delta::tool_call(0, Some("c".to_owned()), Some("write".to_owned()), text));
        let texts = (0..self.0 / 4).map(move |_| piece("word"));
        Ok(Box::pin(stream::iter([piece("{\"text\":\"")].into_iter().chain(texts).chain([piece("\"}")]))))
    }
}

fn streamed() -> ChatRequest {
    let mut request = ChatRequest::from("go");
    request.options.stream = Some(true);
    request
}

#[derive(Deserialize, JsonSchema)]
struct Written {
    #[expect(dead_code, reason = "only the schema is used")]
    text: String,
}

fn updates(bytes: usize) -> impl Case {
    let write = tool_fn("write", "Writes", |_: Written, _: RunContext| std::future::ready(Ok(()))).expect("a tool");
    let text = StreamToolCall::tool(&write).key("text");
    text.emitter()
        .on("update", |update: &mut ToolCallUpdate, _| {
            black_box(update);
        })
        .expect("a listener");
    let model = ChatModel::new(Writes(bytes)).expect("a model");
    move |n| {
        timed(async {
            for _ in 0..n {
                black_box(model.run(streamed()).middleware(text.clone()).await.expect("an answer"));
            }
        })
    }
}

fn appends(bytes: usize) -> impl Case {
    let model = ChatModel::new(Writes(bytes)).expect("a model");
    move |n| {
        timed(async {
            for _ in 0..n {
                let text = Mutex::new(String::new());
                let run = model.run(streamed()).on("tool_call_delta", move |delta: &mut ToolCallDelta, _| {
                    text.lock().expect("no panic").push_str(&delta.arguments);
                });
                black_box(run.await.expect("an answer"));
            }
        })
    }
}
