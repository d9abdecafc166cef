//! Conversations: sessions, their stored form, and messages to a running agent.

#[path = "../../../tests/support/journal.rs"]
mod journal;
mod numbers;
mod past;
mod sessions;
mod steering;
mod stored;
#[path = "../support/mod.rs"]
#[allow(dead_code, reason = "each binary uses a part")]
mod support;
mod talking;
