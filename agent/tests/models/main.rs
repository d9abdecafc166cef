//! Runs of models: replies, streams, alternatives and costs.

mod alternatives;
mod costs;
mod models;
mod replies;
mod stream_tool_call;
mod streamed_calls;
#[path = "../support/mod.rs"]
#[allow(dead_code, reason = "each binary uses a part")]
mod support;
mod unreported;
