//! Built-in middleware. Each built-in has its own module and its own feature.
//!
//! ```
//! # #[cfg(not(feature = "trajectory"))]
//! # fn main() {}
//! # #[cfg(feature = "trajectory")]
//! # #[tokio::main(flavor = "current_thread")]
//! # async fn main() -> emitree_runtime::Result<()> {
//! use emitree_middleware::Trajectory;
//! use emitree_runtime::{RunContext, Runnable, runnable_fn};
//!
//! let double = runnable_fn("double", |n: u32, _: RunContext| async move { Ok(n * 2) });
//! double.run(21).middleware(Trajectory::stdout()).await?;
//! // Run[double][start]: 21
//! // Run[double][success]: 42
//! # Ok(())
//! # }
//! ```
//!
//! Bind a built-in to an instance or to one run with `.middleware(...)`. [`for_tree`](emitree_runtime::for_tree) binds
//! it to every run below as well. [`Runs::only`] restricts it to selected runs. Each built-in emits its own events,
//! `middleware.<name>.*`, on an emitter below the root. Listeners of the run receive these events too, except the
//! events of a [`Trajectory`].
//!
//! The built-ins use only the public API of `emitree-emitter` and `emitree-runtime`: you can copy the source of a
//! built-in, change it, and use your version instead.
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
#![cfg_attr(
    not(feature = "full"),
    allow(rustdoc::broken_intra_doc_links, reason = "this page links to items of all features")
)]

mod shared;

#[cfg(feature = "approval")]
pub mod approval;
#[cfg(feature = "approval")]
pub use approval::Approval;

#[cfg(feature = "budget")]
pub mod budget;
#[cfg(feature = "budget")]
pub use budget::Budget;

#[cfg(feature = "cache")]
pub mod cache;
#[cfg(feature = "cache")]
pub use cache::Cache;

#[cfg(feature = "circuit_breaker")]
pub mod circuit_breaker;
#[cfg(feature = "circuit_breaker")]
pub use circuit_breaker::CircuitBreaker;

#[cfg(feature = "concurrency")]
pub mod concurrency;
#[cfg(feature = "concurrency")]
pub use concurrency::Concurrency;

#[cfg(feature = "content_filter")]
pub mod content_filter;
#[cfg(feature = "content_filter")]
pub use content_filter::ContentFilter;

#[cfg(feature = "durable")]
pub mod durable;
#[cfg(feature = "durable")]
pub use durable::Durable;

#[cfg(feature = "exfil_guard")]
pub mod exfil_guard;
#[cfg(feature = "exfil_guard")]
pub use exfil_guard::ExfilGuard;

#[cfg(feature = "fallback")]
pub mod fallback;
#[cfg(feature = "fallback")]
pub use fallback::Fallback;

#[cfg(feature = "limits")]
pub mod limits;
#[cfg(feature = "limits")]
pub use limits::Limits;

#[cfg(feature = "metrics")]
pub mod metrics;
#[cfg(feature = "metrics")]
pub use metrics::Metrics;

#[cfg(feature = "override_output")]
pub mod override_output;
#[cfg(feature = "override_output")]
pub use override_output::OverrideOutput;

#[cfg(feature = "rate_limit")]
pub mod rate_limit;
#[cfg(feature = "rate_limit")]
pub use rate_limit::RateLimit;

#[cfg(feature = "record")]
pub mod record;
#[cfg(feature = "record")]
pub use record::Record;

#[cfg(feature = "redact")]
pub mod redact;
#[cfg(feature = "redact")]
pub use redact::Redact;

#[cfg(feature = "replay")]
pub mod replay;
#[cfg(feature = "replay")]
pub use replay::Replay;

#[cfg(feature = "retry")]
pub mod retry;
#[cfg(feature = "retry")]
pub use retry::Retry;

#[cfg(feature = "timeout")]
pub mod timeout;
#[cfg(feature = "timeout")]
pub use timeout::Timeout;

#[cfg(feature = "trajectory")]
pub mod trajectory;
#[cfg(feature = "trajectory")]
pub use trajectory::Trajectory;

#[cfg(feature = "key")]
pub use shared::key;
/// The events of a middleware about the runs to which it is bound, as the built-ins emit them.
#[cfg(feature = "own_events")]
pub mod own_events {
    pub use crate::shared::own_events::{OwnEvents, UserTexts};
}
#[cfg(feature = "runs")]
pub use shared::only::Only;
#[cfg(feature = "runs")]
pub use shared::runs::{RunInfo, Runs};

#[cfg(feature = "durable")]
pub mod store;

#[cfg(feature = "values")]
pub mod values;
