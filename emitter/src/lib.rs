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
//! - An [`Emitter`] is a place in a tree; [`Emitter::root`] is the process's, [`Emitter::new`] an isolated one. What
//!   is emitted on it rises to everything above it.
//! - A *listener* is registered with one of four verbs: [`on`](Emitter::on) and [`on_async`](Emitter::on_async) may
//!   change the event, which they get by `&mut`; [`observe`](Emitter::observe) and
//!   [`observe_async`](Emitter::observe_async) watch what has become of it.
//! - A [`Matcher`] says which events it takes: a name, a path, a glob, a regex, a function.
//! - [`Options`] say with which priority, how often, and what becomes of a failure.
//! - A [`Subscription`] is how it ends.
//! - [`EventMeta`] is what is known of an event besides its payload, made only if somebody looks.
//! - A *pipe* sends events to another emitter; a [`Sink`] takes them out of the tree as records.
//!
//! A runtime that wraps work in runs finds what it needs beyond that in [`rt`].
//!
//! Rules cited as E1 to E17 in this crate are those of `RULES.md` in the repository.
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
pub use error::{BoxError, BuildError, EmitError, EmitErrorKind, ListenError, MatcherError, panic_message};
pub use event::meta::{EventMeta, Trace};
pub use event::record::{EventRecord, Gap, SinkRecord};
pub use event::{AnyEvent, Event, Hears, Opaque};
pub use matching::function::{FnMatcher, matcher_fn};
pub use matching::matcher::{IntoMatcher, Matcher};
pub use name::namespace::IntoNamespace;
pub use name::{AsName, EventName, NameError, NameRef, Namespace};
pub use panic::panic_text;
pub use registry::adapter::{AsyncItem, AsyncListener, AsyncObserver, async_fn, listener, observer};
pub use registry::listen::With;
pub use registry::listener::{ListenerResult, OnError};
pub use registry::registration::{Options, Registration};
pub use registry::subscription::{DropGuard, Subscription, UncountedCalls};
pub use sink::{EventStream, Incomplete, Overflow, Progress, Report, Sink, SinkError, SinkHandle};
