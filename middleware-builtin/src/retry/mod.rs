//! What failed and may succeed later is tried again: [`Retry`].

mod builder;
mod delay;
mod layer;

use std::sync::Arc;

use emitree_runtime::{AnyRun, ErrorKind, Stack};
use serde::{Deserialize, Serialize};

pub use builder::{RetryBuilder, RetryError};
pub use delay::RetryAfter;

use crate::shared::built_in::{built_in, debug_as, default_as_new};
use crate::shared::own_events::{OwnEvents, own_events};
use builder::RetryOptions;
use layer::RetryLayer;

/// Tries again what failed and may succeed later: at most so often, and after a delay that grows.
///
/// It works on runs of any type and looks at no value; clones are the same one. What is called again is what is inside
/// of it: it stands in [`Phase::Retry`](emitree_runtime::Phase::Retry), so layers that change values, guards, and a
/// `Timeout` per attempt are passed again, input and output middlewares are not. To start the *whole* attempt again
/// because of what it has put out is [`Error::retry`](emitree_runtime::Error::retry)'s, and counted apart from this.
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
/// # What is tried again
///
/// | the error | is tried again |
/// |---|---|
/// | a denial, a halt, an abort, an interrupt, the request for a retry | never |
/// | a failure, a panic, a value that does not fit, a time-out | if it [is retryable](emitree_runtime::Error::is_retryable), or as [`when`](RetryBuilder::when) says |
///
/// A time-out of an attempt, by `Timeout`, is retryable, and one of all attempts together is not.
///
/// After the last retry the caller gets the last error, as it is.
///
/// # How long it waits
///
/// 500 ms before the first retry, then twice as long as before each; each plus a random part of up to as much again, so
/// that callers that failed together do not come back together; 30 s at most. Where the error says how long to wait, it
/// waits so long instead, still at most 30 s: a [`RetryAfter`] among its causes, a detail `retry_after_ms`, or what
/// [`retry_after`](RetryBuilder::retry_after) finds. All of that can be set: [`builder`](Self::builder). The time runs
/// by tokio's clock.
///
/// # Runs below
///
/// Bound to a run and to runs below it, as [`for_tree`](emitree_runtime::for_tree) does, attempts multiply: on three levels
/// of runs, two retries make up to 27 attempts of the lowest. That is [warned of](emitree_runtime::Layer::nesting_warning)
/// once. Bind it to one level: `for_tree(Runs::of_kind("Model").only(retry))`.
///
/// # Its own events
///
/// `middleware.retry.retry`, a [`RetryScheduled`], before it waits. Where the attempt that is given up has emitted
/// something that was heard on the run, of its own or of runs below, `attempt_discarded` is emitted on the run before
/// that: who has shown it takes it back. A listener of that one that fails ends the run, as it does where the run itself
/// attempts again.
///
/// # Cancel safety
///
/// An abort ends the delay at once, as does dropping the run.
#[derive(Clone)]
pub struct Retry {
    policy: Arc<RetryPolicy>,
    stack: Stack<AnyRun>,
}

struct RetryPolicy {
    options: RetryOptions,
    own_events: OwnEvents,
}

/// An attempt has failed, and another one follows after a delay.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct RetryScheduled {
    /// Which one has failed, from 0.
    pub attempt: u32,
    /// How long it waits, in milliseconds.
    pub delay_ms: u64,
    /// How long the error asked to wait, in milliseconds, if it did.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub retry_after_ms: Option<u64>,
    /// What the attempt failed with.
    pub cause: String,
    /// What sort of end that was.
    pub kind: ErrorKind,
}

own_events! { RetryScheduled = "retry" { cause }; }

impl Retry {
    /// Two retries, and delays as said above.
    #[must_use]
    pub fn new() -> Self {
        Self::of(RetryOptions::default())
    }

    /// Begins with the same, to be changed.
    pub fn builder() -> RetryBuilder {
        RetryBuilder::default()
    }

    fn of(options: RetryOptions) -> Self {
        let policy = Arc::new(RetryPolicy { options, own_events: OwnEvents::new("middleware.retry") });
        let stack = Stack::builder().retry(RetryLayer(Arc::clone(&policy))).build();
        Self { policy, stack }
    }
}

default_as_new!(Retry);

built_in!(Retry, |this| this.policy.own_events, "retry", this.stack);

debug_as!(Retry, |this| this.policy.options);
