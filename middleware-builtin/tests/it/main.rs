//! Tests that share a process: one binary links faster than twenty. A test of what a process has once, such as its root emitter,
//! a recorder of metrics or a log, is a file of its own beside this folder.

#[path = "../corpus/mod.rs"]
mod corpus;
#[path = "../support/mod.rs"]
mod support;

mod approval;
mod budget;
mod cache;
mod circuit_breaker;
mod concurrency;
mod content_filter;
mod deep;
mod exfil_guard;
mod fallback;
mod limits;
mod lines;
mod options;
mod override_output;
mod own_events;
mod rate_limit;
mod record_replay;
mod redact;
mod registered;
mod replay;
mod retry;
mod runs;
mod timeout;
mod together;
