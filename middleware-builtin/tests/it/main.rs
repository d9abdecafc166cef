//! Tests that share a process: one binary links faster than twenty. A test of global state, such as the root emitter, a
//! metrics recorder or a logger, is a separate file next to this folder.

#[path = "../../../secrets/tests/corpus/mod.rs"]
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
mod escapes;
mod exfil_guard;
mod fallback;
mod journal;
mod limits;
mod lines;
mod options;
mod order;
mod override_output;
mod own_events;
mod pairs;
mod rate_limit;
mod record_replay;
mod redact;
mod registered;
mod replay;
mod retry;
mod runs;
mod store;
#[cfg(target_os = "linux")]
mod terminal;
mod timeout;
mod together;
mod values;
