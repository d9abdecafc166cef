//! Nested, observable, interruptible runs on a hierarchical event emitter.
//!
//! A *run* is a piece of work: a request, a job, or an agent that calls models and tools. It emits events when it
//! starts, when it succeeds or fails, and when it finishes. You can listen on one run, on all runs of a runnable, or on
//! the whole process. A listener may change the input, answer early, or change the output. Aborting a run also ends
//! every run below it.
//!
//! ```
//! use emitree::{AnyEvent, Emitter, RunContext, Runnable, runnable_fn};
//!
//! #[tokio::main(flavor = "current_thread")]
//! async fn main() -> emitree::Result<()> {
//!     let shout = runnable_fn("shout", |text: String, _: RunContext| async move { Ok(text.to_uppercase()) });
//!
//!     // Print every event that reaches the root emitter.
//!     Emitter::root().observe("*.*", |event: &dyn AnyEvent, meta| println!("{} {}", meta.path(), event.to_json()))?;
//!
//!     let answer = shout
//!         .run("hello".to_owned())
//!         .on_start(|start, _| start.input.push_str(", world")) // this run only
//!         .await?;
//!     assert_eq!(answer, "HELLO, WORLD");
//!     Ok(())
//! }
//! ```
//!
//! # Concepts
//!
//! - A [`Runnable`] has a typed input, a typed output and an async function; [`runnable_fn`] turns a closure into a
//!   runnable. The [`run`](Runnable::run) method returns a [`Run`], a future that emits `start`, then `success` or
//!   `error`, then `finish`.
//! - A [`RunContext`] is a handle to a run. It provides the run's ids, emitter and context, spawns tasks, and can abort
//!   the run.
//! - An [`Emitter`] is a node of a tree. Events rise from it to all emitters above. A [`Matcher`] selects events. A
//!   payload may have any serializable type, and that type may define the event's name ([`Event`]).
//! - A *listener* receives events and may change them; an *observer* may not.
//! - A [`Middleware`] binds listeners and layers to a run when it begins. [`for_tree`] binds it to the runs below as
//!   well.
//! - A [`Layer`] wraps the work and calls it with [`Next`]. A [`Stack`] keeps layers in the order of their [`Phase`].
//!   A *guard* ([`layer::Guard`]) is a layer that only refuses.
//! - A *place* ([`agent::Place`]) is a named point of an agent's loop, and a *hook* is a listener or a layer that is
//!   registered there.
//! - A [`Sink`] writes records of events to a file, a channel or memory.
//! - An [`Error`] has a kind, details and causes. An [`Outcome`] describes how a run ended.
//!
//! # Modules
//!
//! The root has the names that most programs and custom middleware need. The other names are in modules:
//!
//! | module | |
//! |---|---|
//! | [`abort`] | handles and signals that abort runs, the report of a shutdown |
//! | [`agent`] | models, tools and agents as runs (feature `agent`) |
//! | [`context`] | tasks, keys, typed values and answers of a run |
//! | [`emitter`] | declared events, names, options of listeners, errors of emitting and listening |
//! | [`error`] | kinds of errors, interrupts, requests for a retry |
//! | [`layer`] | layers, guards, filters, and the explanation of a chain |
//! | [`lifecycle`] | the four events of a run, and the ways to receive them |
//! | [`mcp`] | the tools of MCP servers (feature `mcp`) |
//! | [`middleware`] | built-in middleware, one feature each; middleware made from functions |
//! | [`otlp`] | runs as OpenTelemetry spans (feature `otlp`) |
//! | [`prelude`] | the names that `docs/concepts.md` uses |
//! | [`runnable`] | type-erased runnables, bounds of inputs and outputs |
//! | [`secrets`] | a scanner for secrets and personal data in text (feature `secrets`) |
//! | [`sinks`] | sinks, one feature each; records and reports |
//! | [`stores`] | stores of sessions, jobs and values in databases (features `sqlite`, `postgres`) |
//! | [`stream`] | a run as a stream of its events |
//! | [`tower`] | tower's services and layers (feature `tower`) |
//! | [`viewer`] | a page in the browser that shows the runs of a program or a recording (feature `viewer`) |
//! | [`web`] | an agent for the pages of browsers (feature `web`) |
//!
//! # Features
//!
//! `trajectory`, `jsonl` and `memory` are on by default, and `middleware-full` switches on every built-in middleware.
//! The README and `docs/middleware.md` list all features with the crates that they add.

#![cfg_attr(
    not(all(
        feature = "agent",
        feature = "mcp",
        feature = "otlp",
        feature = "postgres",
        feature = "secrets",
        feature = "sqlite",
        feature = "tower",
        feature = "viewer",
        feature = "web"
    )),
    allow(rustdoc::broken_intra_doc_links, reason = "this page names the modules of all features")
)]

pub use emitree_emitter::{
    AnyEvent, Emitter, Event, EventMeta, EventName, Matcher, Opaque, Options, Sink, Subscription,
};
pub use emitree_runtime::{
    Error, Layer, Middleware, Next, Op, Outcome, Phase, Result, Run, RunContext, Runnable, Stack, Status, for_nested,
    for_tree, runnable_fn, shutdown, wait_for_ends,
};

/// Handles and signals that abort runs, and the report of a shutdown.
pub mod abort {
    pub use emitree_runtime::{AbortHandle, AbortSignal, Shutdown, Undelivered, accept_runs};
}

/// Models, tools and agents as runs; see [`Agent`](agent::Agent).
#[cfg(feature = "agent")]
pub mod agent {
    pub use emitree_agent::*;
    pub use emitree_agent_kit::{built_in, parse, workflow};

    pub mod kinds {
        //! Kinds of agents.
        //!
        //! | | |
        //! |---|---|
        //! | [`ReAct`], [`ReActAgent`] | calls tools with text, for models without tool calls of their own |
        //! | [`Requirements`] | decides which tools may be called, which have to be, and when the run may end |
        //! | [`Handoff`] | transfers the conversation to another agent |

        pub use emitree_agent::kinds::*;
        pub use emitree_agent_kit::react::*;
        pub use emitree_agent_kit::requirements::*;
    }
}

/// Tasks, keys, typed values, answers and the trace of a run; see [`RunContext`].
pub mod context {
    pub use emitree_runtime::{
        Answer, Answers, Extensions, Keep, Keeper, KeptValue, RunKey, Task, TextFilter, TraceParent, TraceParentError,
        UnmatchedAnswers,
    };
}

/// Declared events, builders, names, listener adapters, and the errors of emitting and listening.
pub mod emitter {
    pub use emitree_emitter::{
        AsName, BoxError, BuildError, Context, Creator, CreatorRecord, DropGuard, EmitError, EmitErrorKind,
        EmitterBuilder, FnMatcher, IntoMatcher, IntoNamespace, ListenError, ListenerResult, MatcherError, NameError,
        NameRef, Namespace, OnError, Payload, PipeHandle, Registration, Trace, With, json, matcher_fn, new_id,
        panic_text,
    };
}

/// Error kinds and reports, interrupts and requests for a retry; see [`Error`].
pub mod error {
    pub use emitree_runtime::{ErrorKind, ErrorReport, Interrupt, RetryRequest};
}

/// Kinds of layers, guards and filters, and the explanation of a chain.
pub mod layer {
    pub use emitree_runtime::{
        AnyRun, Broken, Checked, Description, Explanation, Filter, FilterFn, Filters, Guard, GuardOptions, HookInfo,
        JsonRun, LayerFn, LayerInfo, MiddlewareInfo, Nesting, Observe, Position, StackBuilder, Summary, Transform,
        WouldDeny, filter_fn, layer_fn,
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

/// The tools of MCP servers; see [`McpServer`](mcp::McpServer).
#[cfg(feature = "mcp")]
pub mod mcp {
    pub use emitree_mcp::*;
}

/// Built-in middleware, one feature each, and middleware made from functions.
pub mod middleware {
    #[allow(unused_imports, unreachable_pub, reason = "without its features, the crate has no names")]
    pub use emitree_middleware::*;
    pub use emitree_runtime::{
        ForNested, ForTree, IntoMiddleware, MapValue, MiddlewareFn, Needs, Order, Ordered, check_guards, map_input,
        map_input_async, map_output, map_output_async, middleware_fn, needs, ordered,
    };
}

/// Runs as OpenTelemetry spans; see [`Otlp`](otlp::Otlp).
#[cfg(feature = "otlp")]
pub mod otlp {
    pub use emitree_otlp::*;
}

/// The names that `docs/concepts.md` uses, for `use emitree::prelude::*`.
///
/// ```
/// use emitree::prelude::*;
///
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<()> {
/// let shout = runnable_fn("shout", |text: String, _: RunContext| async move { Ok(text.to_uppercase()) });
/// assert_eq!(shout.run("hello".to_owned()).await?, "HELLO");
/// # Ok(())
/// # }
/// ```
pub mod prelude {
    pub use emitree_emitter::{AnyEvent, BoxError, Emitter, Event, EventName, Options};
    #[cfg(feature = "trajectory")]
    pub use emitree_middleware::Trajectory;
    pub use emitree_runtime::{
        AbortHandle, AnyRun, Error, Result, RunContext, RunEvent, Runnable, Stack, Stage, Start, for_nested, for_tree,
        map_input, middleware_fn, runnable_fn,
    };
    #[cfg(feature = "memory")]
    pub use emitree_sinks::Memory;
}

/// Runnables made from closures, type-erased runnables, and the bounds of inputs and outputs.
pub mod runnable {
    pub use emitree_runtime::{AnyRunnable, BoxRunnable, Data, IntoShared, RunTypes, RunnableFn};
}

/// A scanner for secrets and personal data in text; see [`Scanner`](secrets::Scanner).
#[cfg(feature = "secrets")]
pub mod secrets {
    pub use emitree_secrets::*;
}

/// Sinks, one feature each, and the records and reports of every sink; see [`Sink`].
pub mod sinks {
    pub use emitree_emitter::{
        Detail, DetailFn, EventRecord, EventStream, Gap, Incomplete, Overflow, Progress, Report, Sink, SinkError,
        SinkHandle, SinkRecord,
    };
    #[allow(unused_imports, unreachable_pub, reason = "without its features, the crate has no names")]
    pub use emitree_sinks::*;
}

/// Stores of sessions, jobs and values in databases; see [`SqliteStore`](stores::SqliteStore) and
/// [`PostgresStore`](stores::PostgresStore).
#[cfg(any(feature = "postgres", feature = "sqlite"))]
pub mod stores {
    pub use emitree_stores::*;
}

/// A run as a stream of its events; see [`RunStream`](stream::RunStream).
pub mod stream {
    pub use emitree_runtime::{RunStream, StreamItem};
}

/// Tower services as runnables, runs as tower services, and tower layers around runs.
#[cfg(feature = "tower")]
pub mod tower {
    pub use emitree_runtime::{
        EnterRun, EnterRunFuture, EnterRunLayer, PropagateRun, PropagateRunLayer, RunLayer, RunService,
        RunServiceFuture, Ticket, TicketFuture, TicketService, TowerLayer, TowerRunnable, WithRun, tower_layer,
    };
}

/// A page in the browser that shows the runs of a program or a recording; see [`Viewer`](viewer::Viewer).
#[cfg(feature = "viewer")]
pub mod viewer {
    pub use emitree_viewer::*;
}

/// An agent for the pages of browsers, and runs as server-sent events; see [`Chat`](web::Chat).
#[cfg(feature = "web")]
pub mod web {
    pub use emitree_web::*;
}

/// Tests the programs of `docs/compiler-messages.md`. A program marked `compile_fail` must not compile.
#[cfg(doctest)]
#[doc = include_str!("../docs/compiler-messages.md")]
struct CompilerMessages;
