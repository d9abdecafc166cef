//! Code that several built-ins share. Nothing in it depends on a built-in, and the crate catches panics of user code only
//! in `panic`.
//!
//! Each built-in is one file or folder with the name of its feature. It is registered in four places, which
//! `tests/it/registered.rs` compares: its feature in the manifest of the crate (and in `full` there), its module and name
//! in `lib.rs`, its feature in the manifest of the facade, and its row in the table of middlewares. `values/` and `store/`
//! are no middleware: they have the traits of the stores that agents use, so that the crate of a database needs no agent.
//!
//! Built-ins that see no value need no JSON: most are layers of `AnyRun`, and some count runs in `bind` and `on_end`, or
//! subscribe to runs. `Trajectory` also listens, from the first run on whose events may have notes; `trajectory/kinds` and
//! `trajectory/notes` know kinds and events of other crates by their names and JSON fields, because imports must not point
//! there. Built-ins that see values are layers of `JsonRun`, or of typed work where the type is known. State of one run is
//! kept in that run, for example in an extension or a subscriber; only shared state, such as a cache or a limit, is kept
//! in the middleware.
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
