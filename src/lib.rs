//! Nested, observable, interruptible runs on a hierarchical event emitter.
//!
//! A *run* is a piece of work: a request, a job, an agent that calls a model that calls a tool. Each emits when it
//! starts, when it succeeds or fails, and when it is over, and everything above hears it: the run that it was
//! started in, the instance it is a run of, and the process. Who listens may change what goes in, answer early, change
//! what comes out; who only watches shares what it sees. Nobody listening costs nothing.
//!
//! ```
//! use emitree::{AnyEvent, Emitter, RunContext, Runnable, runnable_fn};
//!
//! # #[tokio::main(flavor = "current_thread")]
//! # async fn main() -> Result<(), Box<dyn std::error::Error + Send + Sync>> {
//! let shout = runnable_fn("shout", |text: String, _: RunContext| async move { Ok(text.to_uppercase()) });
//!
//! // Everything that happens in the process, whoever runs it.
//! Emitter::root().observe("*.*", |event: &dyn AnyEvent, meta| println!("{} {}", meta.path(), event.to_json()))?;
//!
//! let answer = shout
//!     .run("hello".to_owned())
//!     .on_start(|start, _| start.input.push_str(", world")) // this run only
//!     .await?;
//! assert_eq!(answer, "HELLO, WORLD");
//! # Ok(())
//! # }
//! ```
//!
//! This crate is a facade. What it shows comes from:
//!
//! - `emitree-emitter`: [`Emitter`], matchers, listeners, pipes, the contract of [`Sink`]s. No async runtime.
//! - `emitree-runtime`: [`Runnable`], [`Run`], [`RunContext`], lifecycle events, [`Middleware`], [`Error`]. On tokio.
//! - `emitree-middleware`, as `middleware`: what people would otherwise write themselves.
//! - `emitree-sinks`, as `sinks`: where events go.

pub use emitree_emitter::*;
pub use emitree_runtime::*;

/// Middleware that people would otherwise write themselves; one feature each.
#[doc(inline)]
pub use emitree_middleware as middleware;

/// Where events go; one feature each.
#[cfg(any(feature = "jsonl", feature = "memory", feature = "channel"))]
pub mod sinks {
    pub use emitree_sinks::*;
}

/// The README's programs are tests.
#[cfg(all(doctest, feature = "trajectory"))]
#[doc = include_str!("../README.md")]
struct Readme;

/// Programs that do not compile, and those that do.
#[cfg(doctest)]
#[doc = include_str!("../docs/compiler-messages.md")]
struct CompilerMessages;
