//! A hierarchical event emitter: trees, matchers, priorities, pipes and sinks, without an async runtime.
//!
//! ```
//! use emitree_emitter::{AnyEvent, Emitter};
//!
//! # fn main() -> Result<(), Box<dyn std::error::Error + Send + Sync>> {
//! let app = Emitter::new().child("app")?;
//!
//! app.on("greet", |name: &mut String, _| name.insert_str(0, "hello, "))?;
//! app.observe("*.*", |event: &dyn AnyEvent, meta| println!("{}: {}", meta.path(), event.to_json()))?;
//!
//! let mut name = "world".to_owned();
//! app.emit_now("greet", &mut name)?; // prints `app.greet: "hello, world"`
//! assert_eq!(name, "hello, world");
//! # Ok(())
//! # }
//! ```
//!
//! # Concepts, in the order you meet them
//!
//! - An [`Emitter`] is a node of a tree. [`Emitter::root`] returns the root of the process, and [`Emitter::new`]
//!   creates the root of a separate tree. An event that is emitted on an emitter rises to every emitter above it.
//! - A *listener* is registered with [`on`](Emitter::on) or [`on_async`](Emitter::on_async). It receives the event by
//!   `&mut` and may change it. An emit awaits each async listener; other libraries call such a listener *blocking*.
//! - An *observer* is registered with [`observe`](Emitter::observe) or [`observe_async`](Emitter::observe_async). It
//!   receives the event by `&`, after all listeners.
//! - A [`Matcher`] selects events: by name, path, glob, regex or function.
//! - [`Options`] set the priority of a listener, how often it runs, and what happens when it fails.
//! - A [`Subscription`] is a handle that can remove a listener.
//! - [`EventMeta`] describes an event: its id, time, path, source, context and run. Most of it is computed on first
//!   use.
//! - A *pipe* forwards events to another emitter. A [`Sink`] receives events as owned records, on its own thread.
//!
//! The module [`rt`] is the interface for a runtime that wraps work in runs.

// Numbers such as E5 and R14 in comments refer to `RULES.md` in the repository, and `bench W10` to a row of the bench
// `emit`.

#![cfg_attr(
    not(test),
    warn(
        clippy::unwrap_used,
        clippy::expect_used,
        clippy::panic,
        clippy::print_stdout,
        clippy::print_stderr,
        clippy::missing_errors_doc,
        clippy::missing_panics_doc
    )
)]

mod dispatch;
mod emitter;
mod error;
mod event;
pub mod json;
mod matching;
pub mod media;
mod name;
mod panic;
mod registry;
pub mod rt;
mod sink;
mod sync;

pub use emitter::Emitter;
pub use emitter::builder::EmitterBuilder;
pub use emitter::context::Context;
pub use emitter::creator::{Creator, CreatorRecord};
pub use emitter::id::new_id;
pub use emitter::pipe::PipeHandle;
pub use error::{BoxError, BuildError, EmitError, EmitErrorKind, ListenError, MatcherError};
pub use event::meta::{EventMeta, Trace};
pub use event::record::{EventRecord, Gap, SinkRecord};
pub use event::{AnyEvent, Event, Opaque, Payload};
pub use matching::function::{FnMatcher, matcher_fn};
pub use matching::matcher::{IntoMatcher, Matcher};
pub use name::namespace::IntoNamespace;
pub use name::{AsName, EventName, NameError, NameRef, Namespace};
pub use panic::panic_text;
pub use registry::listen::With;
pub use registry::listener::{ListenerResult, OnError};
pub use registry::registration::{Options, Registration};
pub use registry::subscription::{DropGuard, Subscription};
pub use sink::{Detail, DetailFn, EventStream, Incomplete, Overflow, Progress, Report, Sink, SinkError, SinkHandle};
