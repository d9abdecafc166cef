//! Middleware that people would otherwise write themselves: one module and one feature each.
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
//! // Run[double][start]: {"input":21}
//! // Run[double][success]: {"input":21,"output":42}
//! # Ok(())
//! # }
//! ```
//!
//! | feature | middleware | what it does |
//! |---|---|---|
//! | `approval` | [`Approval`] | asks before a run goes on: somebody who is there, or by an interrupt |
//! | `budget` | [`Budget`] | what a run and all below it may spend: tokens, cost, wall time, calls |
//! | `cache` | [`Cache`] | answers again what was answered before; who asks for the same at the same time waits for one |
//! | `circuit_breaker` | [`CircuitBreaker`] | leaves alone for a while what keeps failing |
//! | `concurrency` | [`Concurrency`] | how many runs may be under way at once, by a key of one's choice |
//! | `content_filter` | [`ContentFilter`] | denies, answers or marks what words, regexes or a classifier object to |
//! | `exfil_guard` | [`ExfilGuard`] | denies what would carry a secret out, or lead to another host |
//! | `fallback` | [`Fallback`] | where one fails, the next one answers |
//! | `limits` | [`Limits`] | how many runs may be started below a run or in a group, and how deep |
//! | `metrics` | [`Metrics`] | counts runs by kind and outcome, and measures how long they take |
//! | `override_output` | [`OverrideOutput`] | answers with a given value, or what a function gives, instead of the work |
//! | `rate_limit` | [`RateLimit`] | how many runs may begin in a time, by a key of one's choice |
//! | `record` | [`Record`] | keeps a journal of all runs below a run |
//! | `redact` | [`Redact`] | takes secrets and personal data out of what a run takes, gives and tells |
//! | `replay` | [`Replay`] | answers the runs below a run from a journal, and stops at the first difference |
//! | `retry` | [`Retry`] | tries again what may succeed then, after a while that grows |
//! | `timeout` | [`Timeout`] | stops what takes too long: each attempt, or all together |
//! | `trajectory` (default) | [`Trajectory`] | prints a run and everything below it, live or from a recording |
//!
//! What is here uses nothing of `emitree-runtime` that is not public: it can be copied, changed, and used instead.
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
    allow(rustdoc::broken_intra_doc_links, reason = "this page names what all features have")
)]

#[cfg(any(feature = "record", feature = "trajectory"))]
mod address;
#[cfg(any(feature = "concurrency", feature = "rate_limit"))]
mod admission;
#[cfg(feature = "approval")]
pub mod approval;
#[cfg(any(feature = "budget", feature = "limits"))]
mod at_start;
#[cfg(feature = "budget")]
pub mod budget;
#[cfg(feature = "cache")]
pub mod cache;
#[cfg(feature = "circuit_breaker")]
pub mod circuit_breaker;
#[cfg(feature = "concurrency")]
pub mod concurrency;
#[cfg(feature = "content_filter")]
pub mod content_filter;
#[cfg(feature = "exfil_guard")]
pub mod exfil_guard;
#[cfg(feature = "fallback")]
pub mod fallback;
#[cfg(any(feature = "approval", feature = "content_filter", feature = "exfil_guard", feature = "redact"))]
mod json;
#[cfg(feature = "key")]
#[allow(dead_code, reason = "the feature alone counts nothing")]
pub mod key;
#[cfg(feature = "limits")]
pub mod limits;
#[cfg(feature = "metrics")]
pub mod metrics;
#[cfg(any(feature = "budget", feature = "key"))]
#[allow(dead_code, reason = "the feature `key` alone counts nothing")]
mod millis;
#[cfg(feature = "runs")]
mod only;
#[cfg(feature = "override_output")]
pub mod override_output;
mod panic;
#[cfg(feature = "rate_limit")]
pub mod rate_limit;
#[cfg(feature = "record")]
pub mod record;
#[cfg(feature = "redact")]
pub mod redact;
#[cfg(feature = "replay")]
pub mod replay;
#[cfg(feature = "retry")]
pub mod retry;
#[cfg(feature = "runs")]
#[allow(dead_code, reason = "each of those that share it uses its own part of this")]
mod runs;
#[cfg(feature = "secrets")]
pub mod secrets;
#[cfg(any(feature = "budget", feature = "limits"))]
mod stop;
#[cfg(any(feature = "fallback", feature = "retry"))]
mod streamed;
#[cfg(feature = "timeout")]
pub mod timeout;
#[cfg(feature = "trajectory")]
pub mod trajectory;
#[cfg(feature = "voice")]
#[allow(dead_code, reason = "the feature alone has no middleware that speaks")]
mod voice;

#[cfg(feature = "approval")]
pub use approval::Approval;
#[cfg(feature = "budget")]
pub use budget::Budget;
#[cfg(feature = "cache")]
pub use cache::Cache;
#[cfg(feature = "circuit_breaker")]
pub use circuit_breaker::CircuitBreaker;
#[cfg(feature = "concurrency")]
pub use concurrency::Concurrency;
#[cfg(feature = "content_filter")]
pub use content_filter::ContentFilter;
#[cfg(feature = "exfil_guard")]
pub use exfil_guard::ExfilGuard;
#[cfg(feature = "fallback")]
pub use fallback::Fallback;
#[cfg(feature = "limits")]
pub use limits::Limits;
#[cfg(feature = "metrics")]
pub use metrics::Metrics;
#[cfg(feature = "runs")]
pub use only::Only;
#[cfg(feature = "override_output")]
pub use override_output::OverrideOutput;
#[cfg(feature = "rate_limit")]
pub use rate_limit::RateLimit;
#[cfg(feature = "record")]
pub use record::Record;
#[cfg(feature = "redact")]
pub use redact::Redact;
#[cfg(feature = "replay")]
pub use replay::Replay;
#[cfg(feature = "retry")]
pub use retry::Retry;
#[cfg(feature = "runs")]
pub use runs::{Candidate, Runs};
#[cfg(feature = "timeout")]
pub use timeout::Timeout;
#[cfg(feature = "trajectory")]
pub use trajectory::Trajectory;

/// They go where runs go.
#[cfg(feature = "full")]
const _: () = {
    const fn are_shared<T: Send + Sync>() {}
    are_shared::<(Approval, Budget, Cache, CircuitBreaker, Concurrency, ContentFilter)>();
    are_shared::<(ExfilGuard, Fallback<emitree_runtime::AnyRun>, Limits, Metrics, OverrideOutput, RateLimit)>();
    are_shared::<(Only<Timeout>, Record, Redact, Replay, Retry, Runs, Timeout)>();
    are_shared::<(Trajectory, trajectory::Replay)>();
};
