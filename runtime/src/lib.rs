//! Nested, observable units of work, called *runs*, on a hierarchical event emitter.
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
//! - A [`Runnable`] has an emitter, typed input and output, and an async function that does the work. [`runnable_fn`]
//!   creates a runnable from an async function.
//! - A [`Run`] is a future. Awaiting it emits [`Start`], does the work, emits [`Success`] or [`Failure`], and emits
//!   [`Finish`]. Without listeners, nothing is emitted.
//! - A [`RunContext`] is your handle to the current run. It has ids, context values, typed [`Extensions`], and an
//!   emitter that also receives the events of the runs below.
//! - A [`Middleware`] is bound to a run before the run starts, and registers listeners and layers. [`map_input`] and
//!   [`map_output`] create a middleware from a function that changes a value.
//! - An [`Op`] is a kind of work: a runnable, or another operation, for which you define a marker type. A [`Layer`]
//!   wraps the work, and calls it through [`Next`]. [`Observe`], [`Transform`] and [`Guard`] are restricted kinds of
//!   layers. A [`Stack`] sorts layers by [`Phase`]; pass work to [`Stack::call`], or bind the stack to runs as a
//!   middleware.
//! - With the feature `tower`, `TowerRunnable` turns a service into a runnable, `RunLayer` turns each call of a service
//!   into a run, and `tower_layer` wraps runs with a tower layer. `PropagateRunLayer` and `EnterRunLayer` carry a run
//!   into a service that works in another task.
//! - [`Error::retry`] requests that the whole attempt start again; [`Error::interrupted`] ends a run with a question.
//! - An [`Error`] has a kind, a message, causes and details, which [`explain`](Error::explain) returns as text.
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
mod answers;
mod chain;
mod context;
mod error;
mod keeper;
mod key;
mod layer;
mod lifecycle;
mod middleware;
mod run;
mod runnable;
mod stream;
mod sync;
mod text_filter;
#[cfg(feature = "tower")]
mod tower;
mod trace_parent;
mod tree;

pub use abort::handle::{AbortHandle, AbortSignal};
pub use answers::{Answer, Answers, KeptValue, UnmatchedAnswers};
pub use chain::attempts::{AttemptDiscarded, MaxMiddlewareRetries};
pub use context::RunContext;
pub use context::extensions::Extensions;
pub use context::tasks::Task;
pub use error::interrupt::Interrupt;
pub use error::kind::ErrorKind;
pub use error::outcome::{Outcome, Status};
pub use error::report::ErrorReport;
pub use error::retry_request::RetryRequest;
pub use error::{Error, Result};
pub use keeper::{Keep, Keeper};
pub use key::RunKey;
pub use layer::any_run::AnyRun;
pub use layer::filter::{Broken, Filter, FilterFn, Filters, filter_fn};
pub use layer::guard::{Guard, GuardOptions};
pub use layer::json_run::JsonRun;
pub use layer::nesting::Nesting;
pub use layer::observe::Observe;
pub use layer::op::Op;
pub use layer::phase::Phase;
pub use layer::stack::{Stack, StackBuilder};
pub use layer::transform::Transform;
pub use layer::would_deny::{Checked, WouldDeny};
pub use layer::{Layer, LayerFn, Next, layer_fn};
pub use lifecycle::erased::{AnyFinish, AnyStart, AnySuccess, LifecycleMut, LifecycleRef};
pub use lifecycle::listen::Lifecycle;
pub use lifecycle::matcher::{AsInstance, Instance, LifecycleOf, lifecycle, lifecycle_of};
pub use lifecycle::run_event::{Attempted, RunEvent};
pub use lifecycle::stage::Stage;
pub use lifecycle::subscribers::RunSubscriber;
pub use lifecycle::{Failure, Finish, Start, Success};
pub use middleware::description::Description;
pub use middleware::explain::{Explanation, HookInfo, LayerInfo, MiddlewareInfo, Position};
pub use middleware::map_value::{MapValue, map_input, map_input_async, map_output, map_output_async};
pub use middleware::needs::{Needs, needs};
pub use middleware::nested::{ForNested, ForTree, for_nested, for_tree};
pub use middleware::order::{Order, Ordered, ordered};
pub use middleware::summary::Summary;
pub use middleware::unhandled::{check_guards, guards_of};
pub use middleware::{IntoMiddleware, Middleware, MiddlewareFn, middleware_fn};
pub use run::Run;
pub use run::shutdown::{accept_runs, shutdown};
pub use run::supervise::{Shutdown, Undelivered, wait_for_ends};
pub use runnable::boxed::BoxRunnable;
pub use runnable::erased::AnyRunnable;
pub use runnable::function::{RunnableFn, runnable_fn};
pub use runnable::value::{Data, RunTypes};
pub use runnable::{IntoShared, Runnable};
pub use stream::{RunStream, StreamItem};
pub use text_filter::TextFilter;
#[cfg(feature = "tower")]
pub use tower::{
    EnterRun, EnterRunFuture, EnterRunLayer, PropagateRun, PropagateRunLayer, RunLayer, RunService, RunServiceFuture,
    Ticket, TicketFuture, TicketService, TowerLayer, TowerRunnable, WithRun, tower_layer,
};
pub use trace_parent::{TraceParent, TraceParentError};
