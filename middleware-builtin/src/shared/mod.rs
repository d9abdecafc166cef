//! Code that several built-ins share. Nothing in it depends on a built-in.
#![allow(dead_code, unused_imports, unused_macros, reason = "each built-in uses its own part of this")]

#[cfg(any(feature = "budget", feature = "limits"))]
pub(crate) mod at_start;
#[cfg(any(feature = "fallback", feature = "retry"))]
pub(crate) mod attempt_watch;
pub(crate) mod built_in;
#[cfg(any(feature = "durable", feature = "replay"))]
pub(crate) mod difference;
#[cfg(any(feature = "exfil_guard", feature = "redact"))]
pub(crate) mod inspected;
#[cfg(any(feature = "approval", feature = "content_filter", feature = "exfil_guard", feature = "redact"))]
pub(crate) mod json;
#[cfg(feature = "key")]
pub mod key;
#[cfg(any(feature = "concurrency", feature = "rate_limit"))]
pub(crate) mod keyed_limit;
pub(crate) mod millis;
#[cfg(feature = "runs")]
pub(crate) mod only;
#[cfg(feature = "own_events")]
pub(crate) mod own_events;
pub(crate) mod panic;
#[cfg(any(feature = "record", feature = "trajectory"))]
pub(crate) mod run_address;
#[cfg(any(feature = "content_filter", feature = "exfil_guard", feature = "redact"))]
pub(crate) mod run_part;
#[cfg(feature = "runs")]
pub(crate) mod runs;
#[cfg(any(feature = "budget", feature = "limits"))]
pub(crate) mod selected_below;
#[cfg(feature = "runs")]
pub(crate) mod spelling;
#[cfg(any(feature = "budget", feature = "limits"))]
pub(crate) mod stop;
