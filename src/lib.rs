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
//! The root has what first programs and a middleware of your own need; everything else is in a module by topic:
//! [`emitter`], [`lifecycle`], [`layer`], [`middleware`], [`runnable`], [`context`], [`error`], [`abort`], [`stream`],
//! [`sinks`] and, with the feature of that name, `tower`.
//!
//! This crate is a facade: emitters and the contract of sinks come from `emitree-emitter`, which needs no async runtime;
//! runs, layers and errors from `emitree-runtime`, on tokio; built-in middleware from `emitree-middleware`; sinks from
//! `emitree-sinks`.

pub use emitree_emitter::{
    AnyEvent, Emitter, Event, EventMeta, EventName, Matcher, Opaque, Options, Sink, Subscription,
};
pub use emitree_runtime::{
    Error, Layer, Middleware, Next, Op, Outcome, Phase, Result, Run, RunContext, Runnable, Stack, Status, for_nested,
    for_tree, runnable_fn, shutdown, wait_for_ends,
};

/// Stopping runs from outside, one or all of them.
pub mod abort {
    pub use emitree_runtime::{AbortHandle, AbortSignal, Shutdown, Undelivered, accept_runs};
}

/// What a [`RunContext`] carries and starts.
pub mod context {
    pub use emitree_runtime::{Extensions, Task};
}

/// Declaring events and emitters, names, listeners of all forms, and the errors of emitting and listening.
pub mod emitter {
    pub use emitree_emitter::{
        AsName, AsyncItem, AsyncListener, AsyncObserver, BoxError, BuildError, Context, Creator, CreatorRecord,
        DropGuard, EmitError, EmitErrorKind, EmitterBuilder, FnMatcher, Hears, IntoMatcher, IntoNamespace, ListenError,
        ListenerResult, MatcherError, NameError, NameRef, Namespace, OnError, PipeHandle, Registration, Trace,
        UncountedCalls, With, async_fn, json, listener, matcher_fn, new_id, observer, panic_message, panic_text,
    };
}

/// What an [`Error`] says of itself, and control flow as data.
pub mod error {
    pub use emitree_runtime::{ErrorKind, ErrorReport, Interrupt, RetryRequest};
}

/// Kinds of layers and of work, guards, filters, and what explains a chain.
pub mod layer {
    pub use emitree_runtime::{
        AnyRun, Broken, Checked, Explanation, Filter, FilterFn, Filters, Guard, GuardOptions, JsonRun, LayerFn,
        LayerInfo, MiddlewareInfo, Nesting, Observe, Place, StackBuilder, Summary, Transform, WouldDeny, filter_fn,
        layer_fn,
    };
}

/// The four events of a run, and the ways to receive them.
pub mod lifecycle {
    pub use emitree_runtime::{
        AnyFinish, AnyStart, AnySuccess, AsInstance, AttemptDiscarded, Attempted, Failure, Finish, Instance, Lifecycle,
        LifecycleMut, LifecycleOf, LifecycleRef, RunEvent, RunSubscriber, Stage, Start, Success, lifecycle,
        lifecycle_of,
    };
}

/// Built-in middleware, one feature each, and middleware made of functions.
pub mod middleware {
    pub use emitree_middleware::*;
    pub use emitree_runtime::{
        ForNested, ForTree, IntoMiddleware, MapValue, MiddlewareFn, Order, Ordered, map_input, map_input_async,
        map_output, map_output_async, middleware_fn, ordered,
    };
}

/// Runnables of closures and of types that are not known, and bounds of inputs and outputs.
pub mod runnable {
    pub use emitree_runtime::{AnyRunnable, BoxRunnable, Data, IntoShared, RunTypes, RunnableFn};
}

/// Where events go, one feature each, and the contract for sinks of your own.
pub mod sinks {
    pub use emitree_emitter::{
        EventRecord, EventStream, Gap, Incomplete, Overflow, Progress, Report, SinkError, SinkHandle, SinkRecord,
    };
    pub use emitree_sinks::*;
}

/// A run as a stream of its events.
pub mod stream {
    pub use emitree_runtime::{RunStream, StreamItem};
}

/// Services of tower as runnables, runs as services, layers of tower around runs.
#[cfg(feature = "tower")]
pub mod tower {
    pub use emitree_runtime::{
        EnterRun, EnterRunFuture, EnterRunLayer, PropagateRun, PropagateRunLayer, RunLayer, RunService,
        RunServiceFuture, Ticket, TicketFuture, TicketService, TowerLayer, TowerRunnable, WithRun, tower_layer,
    };
}

/// The README's programs are tests.
#[cfg(all(doctest, feature = "trajectory"))]
#[doc = include_str!("../README.md")]
struct Readme;

/// Programs that do not compile, and those that do.
#[cfg(doctest)]
#[doc = include_str!("../docs/compiler-messages.md")]
struct CompilerMessages;
