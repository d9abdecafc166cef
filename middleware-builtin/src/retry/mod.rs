//! Retries of work that may succeed later: [`Retry`].

mod builder;
mod delay;
mod layer;

use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use emitree_emitter::Namespace;
use emitree_runtime::{AnyRun, Error, ErrorKind, Stack};
use serde::{Deserialize, Serialize};

pub use builder::{RetryBuilder, RetryError};
pub use delay::RetryAfter;

use crate::shared::built_in::{built_in, debug_as, default_as_new};
use crate::shared::own_events::{OwnEvents, own_events};
use builder::RetryOptions;
use layer::RetryLayer;

/// Retries work that failed and may succeed later, a limited number of times and with growing delays.
///
/// A retry accepts runs of any type and does not read inputs or outputs. Clones share their options. The layer belongs
/// to [`Phase::Retry`](emitree_runtime::Phase::Retry). Each attempt passes through the inner layers again, such as
/// guards and a `Timeout` per attempt, but not through the input and output middlewares. To repeat an attempt with
/// these middlewares, for example because of its output, use [`Error::retry`](emitree_runtime::Error::retry). Such
/// retries have their own limit.
///
/// ```
/// use std::sync::atomic::{AtomicU32, Ordering};
/// use std::time::Duration;
/// use emitree_middleware::Retry;
/// use emitree_runtime::{Error, RunContext, Runnable, runnable_fn};
///
/// # #[tokio::main(flavor = "current_thread", start_paused = true)]
/// # async fn main() -> Result<(), Box<dyn std::error::Error + Send + Sync>> {
/// static CALLS: AtomicU32 = AtomicU32::new(0);
/// let fetch = runnable_fn("fetch", |(): (), _: RunContext| async move {
///     match CALLS.fetch_add(1, Ordering::Relaxed) {
///         0 => Err(Error::new("busy").retryable(true)),
///         n => Ok(n),
///     }
/// })
/// .middleware(Retry::builder().max_retries(5).base_delay(Duration::from_millis(200)).build()?);
///
/// assert_eq!(fetch.run(()).await?, 1);
/// # Ok(())
/// # }
/// ```
///
/// # What is retried
///
/// | the error | is retried |
/// |---|---|
/// | a denial, a halt, an abort, an interrupt, a request for a retry | never |
/// | a failure, a panic, a value that does not fit, a time-out | if [`when`](RetryBuilder::when) returns `true`; by default, if it [is retryable](emitree_runtime::Error::is_retryable) |
///
/// An error is retryable if it is [marked](emitree_runtime::Error::retryable), or if one of its causes is a temporary
/// `std::io::Error`, such as a refused connection. If the first error that a retry meets is neither, one warning says so:
/// mark such errors, or select them with [`Retry::when`]. The time-out of an attempt, by `Timeout`, is retryable; the
/// time-out of all attempts together is not.
///
/// After the last retry, the caller gets the last error, unchanged.
///
/// # Delays
///
/// The first delay is 500 ms, and each further delay is twice as long as the previous delay. A random part, at most as
/// long as the delay, is added, so that callers that failed together do not retry together. The longest delay is 30 s.
///
/// An error may ask for a different delay, which is also limited to 30 s. The delay is taken from
/// [`retry_after`](RetryBuilder::retry_after), from a [`RetryAfter`] among the error's causes, or from the error's
/// detail `retry_after_ms`, in this order. Use [`builder`](Self::builder) to change the first delay, its growth, the
/// random part and the longest delay. Time is measured by tokio's clock.
///
/// # Nested runs
///
/// If a retry is bound to a run and to runs below it, as [`for_tree`](emitree_runtime::for_tree) does, attempts
/// multiply. With two retries on each of three levels, the innermost run is attempted up to 27 times. A
/// [warning](emitree_runtime::Layer::nesting_warning) is logged once. Bind the retry to one level:
/// `for_tree(Runs::of_kind("Model").only(retry))`.
///
/// # Its own events
///
/// `middleware.retry.retry`, a [`RetryScheduled`], before each delay. `middleware.retry.exhausted`, a
/// [`RetriesExhausted`], when the last retry has failed too.
///
/// # Order
///
/// After a failed attempt that is retried:
///
/// 1. `attempt_discarded` is emitted on the run, if listeners may have received events of the attempt. If a listener of
///    this event fails, the run fails.
/// 2. `middleware.retry.retry` is emitted.
/// 3. The delay passes.
/// 4. The next attempt begins.
///
/// # Cancel safety
///
/// Aborting or dropping the run ends the delay at once.
#[derive(Clone)]
pub struct Retry {
    policy: Arc<RetryPolicy>,
    stack: Stack<AnyRun>,
}

struct RetryPolicy {
    options: RetryOptions,
    own_events: OwnEvents,
    /// `true` once an error was retried, or a warning says that none was.
    is_settled: AtomicBool,
}

/// An attempt has failed, and another attempt follows after a delay.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct RetryScheduled {
    /// The number of the failed attempt, counted from 0.
    pub attempt: u32,
    /// The delay, in milliseconds.
    pub delay_ms: u64,
    /// The delay that the error asked for, in milliseconds; `None` if it asked for no delay.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub retry_after_ms: Option<u64>,
    /// The message of the error.
    pub cause: String,
    /// The kind of the error.
    pub kind: ErrorKind,
    /// The maximum number of retries; 0 in recordings of earlier versions.
    #[serde(default)]
    pub retries: u32,
    /// The HTTP status that a server answered with: the error's detail `status`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub status: Option<u16>,
}

/// The last retry has failed with an error that would have been retried. The run ends with this error.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct RetriesExhausted {
    /// The number of retries that were made.
    pub retries: u32,
    /// The message of the error.
    pub cause: String,
}

own_events! {
    RetryScheduled = "retry" { cause };
    RetriesExhausted = "exhausted" { cause };
}

impl Retry {
    /// Creates a retry with two retries and the delays described [above](Self#delays).
    #[must_use]
    pub fn new() -> Self {
        Self::of(RetryOptions::default())
    }

    /// Creates a retry like [`new`](Self::new), for the errors that a predicate selects; see
    /// [`RetryBuilder::when`].
    ///
    /// ```
    /// use emitree_middleware::Retry;
    ///
    /// // Retries all failures except those that are known to be permanent.
    /// let retry = Retry::when(|error| error.retryable_mark() != Some(false));
    /// # drop(retry);
    /// ```
    #[must_use]
    pub fn when(predicate: impl Fn(&Error) -> bool + Send + Sync + 'static) -> Self {
        Self::of(RetryOptions { when: Some(Arc::new(predicate)), ..RetryOptions::default() })
    }

    /// Returns a builder that starts with the options of [`new`](Self::new).
    pub fn builder() -> RetryBuilder {
        RetryBuilder::default()
    }

    fn of(options: RetryOptions) -> Self {
        let own_events = OwnEvents::new(Namespace::new("middleware.retry"));
        let policy = Arc::new(RetryPolicy { options, own_events, is_settled: AtomicBool::new(false) });
        let stack = Stack::builder().retry(RetryLayer(Arc::clone(&policy))).build();
        Self { policy, stack }
    }
}

default_as_new!(Retry);

built_in!(Retry, |this| this.policy.own_events, "retry", this.stack);

debug_as!(Retry, |this| this.policy.options);
