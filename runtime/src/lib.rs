//! Runs: nested, observable units of work on a hierarchical event emitter.
//!
//! ```
//! use emitree_runtime::{RunContext, Runnable, runnable_fn};
//!
//! # #[tokio::main(flavor = "current_thread")]
//! # async fn main() -> emitree_runtime::Result<()> {
//! let count = runnable_fn("count", |text: String, _: RunContext| async move { Ok(text.split(' ').count()) });
//!
//! let words = count
//!     .run("to be or not to be".to_owned())
//!     .on_start(|start, _| start.input.push_str(", that is the question"))
//!     .await?;
//! assert_eq!(words, 10);
//! # Ok(())
//! # }
//! ```
//!
//! # Concepts, in the order you meet them
//!
//! - A [`Runnable`] has an emitter, typed input and output, and an async function that does its work;
//!   [`runnable_fn`] makes one of a function.
//! - A [`Run`] is a future. Awaiting it emits [`Start`], does the work, and emits [`Success`] or [`Failure`] and then
//!   [`Finish`].
//! - A [`RunContext`] is the run that one is in: ids, context, typed [`Extensions`], and an emitter of its own, which
//!   hears the runs below.
//! - A [`Middleware`] is bound to a run before it starts, and registers what it listens to. [`map_input`] and
//!   [`map_output`] make one of a function that changes a value.
//! - An [`Op`] is a kind of work: every runnable, and every place that a marker type stands for. A [`Layer`] is laid
//!   around it, and holds what is inside as [`Next`]; [`Observe`], [`Transform`] and [`Guard`] can do less, and are safer
//!   for it. A [`Stack`] has them in order of [`Phase`]; it is called with work, or is a middleware of runs.
//! - With the feature `tower`, a `tower` service is a runnable (`TowerRunnable`), a run is a service (`RunLayer`), and a
//!   layer of tower is laid around runs (`tower_layer`). `PropagateRunLayer` and `EnterRunLayer` take a run into services that
//!   work in tasks of their own.
//! - [`Error::retry`] asks that the whole attempt starts again; [`Error::interrupted`] ends a run with a question.
//! - An [`Error`] says what sort of end it is, and explains itself.
//!
//! Rules cited as E, R and M with a number are those of `RULES.md` in the repository.
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

mod abort;
mod above;
mod announce;
mod any_run;
mod at_end;
mod attempt;
mod below;
mod boxed;
mod chain;
mod clearing;
mod conduct;
mod context;
mod control;
mod current;
mod data;
mod erased;
mod error;
mod error_report;
mod explain;
mod extensions;
mod faces;
mod fall;
mod fate;
mod filter;
mod guard;
mod handed_down;
mod instance;
mod interrupt;
mod json_run;
mod layer;
mod layered;
mod let_go;
mod life;
mod lifecycle;
mod listen;
mod map_value;
mod middleware;
mod nested;
mod nesting;
mod noted;
mod observe;
mod onion;
mod op;
mod order;
mod origin;
mod outcome;
mod outgoing;
mod panic;
mod phase;
mod plan;
mod register;
mod release;
mod run;
mod run_event;
mod run_stream;
mod runnable;
mod runnable_fn;
mod seat;
#[cfg(feature = "tower")]
mod service;
mod shutdown;
mod signal;
mod stack;
mod stage;
mod subscribers;
mod summary;
mod supervise;
mod sync;
mod tap;
mod tasks;
mod traced;
mod transform;
mod watch;
mod would_deny;

pub use any_run::AnyRun;
pub use attempt::{AttemptDiscarded, RetryRequest};
pub use boxed::BoxRunnable;
pub use context::RunContext;
pub use data::{Data, RunTypes};
pub use erased::AnyRunnable;
pub use error::{Error, Result};
pub use error_report::{ErrorKind, ErrorReport};
pub use explain::{Explanation, LayerInfo, MiddlewareInfo, Place};
pub use extensions::Extensions;
pub use faces::{AnyFinish, AnyStart, AnySuccess, LifecycleMut, LifecycleRef};
pub use filter::{Broken, Filter, FilterFn, Filters, filter_fn};
pub use guard::{Guard, GuardOptions};
pub use instance::{AsInstance, Instance, LifecycleOf, lifecycle, lifecycle_of};
pub use interrupt::Interrupt;
pub use json_run::JsonRun;
pub use layer::{Layer, LayerFn, Next, layer_fn};
pub use lifecycle::{Failure, Finish, Start, Success};
pub use listen::Lifecycle;
pub use map_value::{MapValue, map_input, map_input_async, map_output, map_output_async};
pub use middleware::{IntoMiddleware, Middleware, MiddlewareFn, middleware_fn};
pub use nested::{ForNested, ForTree, for_nested, for_tree};
pub use nesting::Nesting;
pub use observe::Observe;
pub use op::Op;
pub use order::{Order, Ordered, ordered};
pub use outcome::{Outcome, Status};
pub use phase::Phase;
pub use run::Run;
pub use run_event::{Attempted, RunEvent};
pub use run_stream::{RunStream, StreamItem};
pub use runnable::{IntoShared, Runnable};
pub use runnable_fn::{RunnableFn, runnable_fn};
#[cfg(feature = "tower")]
pub use service::{
    EnterRun, EnterRunFuture, EnterRunLayer, PropagateRun, PropagateRunLayer, RunFuture, RunLayer, RunService, Ticket,
    TicketFuture, TicketService, TowerLayer, TowerRunnable, WithRun, tower_layer,
};
pub use shutdown::{accept_runs, shutdown};
pub use signal::{AbortHandle, AbortSignal};
pub use stack::{Stack, StackBuilder};
pub use stage::Stage;
pub use subscribers::RunSubscriber;
pub use summary::Summary;
pub use supervise::{Shutdown, Undelivered, wait_for_ends};
pub use tasks::Task;
pub use transform::Transform;
pub use would_deny::{Checked, WouldDeny};
