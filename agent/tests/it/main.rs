//! Tests of the public API, in one binary.

mod actions;
mod agents;
mod alternatives;
mod answers;
mod attempts;
mod built_in;
mod built_ins;
mod compactions;
mod costs;
mod durable;
mod exclusive;
mod explain;
mod gates;
mod handoff;
mod heads;
mod hook_test;
#[path = "../../../tests/support/journal.rs"]
mod journal;
mod kinds;
mod models;
mod names;
mod offers;
#[cfg(feature = "openai")]
mod openai;
mod own_hooks;
mod parse;
mod places;
mod questions;
mod redacted;
mod replies;
mod resume;
mod sessions;
mod steering;
mod stored;
mod stream_tool_call;
mod streamed_calls;
mod sums;
mod support;
mod talking;
mod tools;
mod values;
mod workflows;
