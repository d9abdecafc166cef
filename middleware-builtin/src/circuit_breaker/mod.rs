//! What keeps failing is left alone for a while: [`CircuitBreaker`].

mod builder;
mod circuits;
mod events;
mod layer;
mod state;

use std::sync::Arc;

use emitree_runtime::{AnyRun, Stack};

pub use builder::{CircuitBreakerBuilder, CircuitBreakerError};
pub use events::{CallDenied, Closed, HalfOpened, Opened};

use crate::shared::built_in::{built_in, debug_as, default_as_new};
#[cfg(doc)]
use crate::shared::key::Key;
use crate::shared::own_events::OwnEvents;
use builder::CircuitBreakerOptions;
use circuits::Circuits;
use layer::CircuitBreakerLayer;

/// Leaves alone for a while what keeps failing: calls are denied at once, until one of them may try it again.
///
/// It works on runs of any type and looks at no value. Clones are the same one: all that it is bound to share their
/// failures, unless it [has a key](CircuitBreakerBuilder::by).
///
/// | it is | calls | until |
/// |---|---|---|
/// | *closed* | pass | 5 failures within 30 s |
/// | *open* | are denied | 30 s are over |
/// | *half-open* | one passes, as a probe; others are denied meanwhile | the probe ends: it closes, or opens again |
///
/// The pattern is Michael Nygard's (*Release It!*, 2007).
///
/// ```
/// use std::time::Duration;
/// use emitree_middleware::CircuitBreaker;
/// use emitree_runtime::{Error, RunContext, Runnable, runnable_fn};
///
/// # #[tokio::main(flavor = "current_thread", start_paused = true)]
/// # async fn main() -> Result<(), Box<dyn std::error::Error + Send + Sync>> {
/// let breaker = CircuitBreaker::builder().failures(1).cool_down(Duration::from_secs(5)).build()?;
/// let fetch = runnable_fn("fetch", |up: bool, _: RunContext| async move {
///     if up { Ok("data".to_owned()) } else { Err(Error::new("connection refused")) }
/// })
/// .middleware(breaker);
///
/// assert_eq!(fetch.run(false).await.unwrap_err().to_string(), "connection refused");
/// let error = fetch.run(true).await.unwrap_err();
/// assert!(error.is_denied());
/// assert_eq!(error.to_string(), "open for another 5s: connection refused");
/// assert_eq!(error.details()["retry_after_ms"], 5_000);
///
/// tokio::time::sleep(Duration::from_secs(5)).await;
/// assert_eq!(fetch.run(true).await?, "data");
/// # Ok(())
/// # }
/// ```
///
/// # What counts
///
/// Failures do, panics and values that do not fit included, and so do time-outs, unless
/// [`when`](CircuitBreakerBuilder::when) says that they do not: then they count as a success. Denials, halts, aborts,
/// interrupts, requests for a retry, and runs that are dropped count as nothing; a probe that ends so makes room for the
/// next one. A call counts when it ends, if it is closed then.
///
/// It stands in [`Phase::Retry`](emitree_runtime::Phase::Retry), so a `Timeout` per attempt is inside of it and
/// counts; one of all attempts is not, and what that drops counts as nothing. Bound after a `Retry`, it is inside of that
/// and each attempt counts; before it, all attempts count as one. A denial is never tried again; a `Fallback` that is
/// bound before it answers for it where it is told to, by name.
///
/// With [`for_tree`](emitree_runtime::for_tree), a failure that passes through several runs counts in each of them:
/// have it count [by instance](Key::instance). Runs that a probe starts pass with it.
///
/// # What a denial says
///
/// It is by `circuit_breaker`. Its details are `retry_after_ms`, for how long it is still open (while a probe is under
/// way, nobody knows); `cause`, the last failure; and `key`, if runs have different ones. A key function that fails
/// or panics is a denial as well.
///
/// # Its own events
///
/// `middleware.circuit_breaker.opened`, `half_opened`, `closed` and `denied`: [`Opened`], [`HalfOpened`], [`Closed`],
/// [`CallDenied`].
///
/// # What it remembers
///
/// Keys that have failed within the window, or are open: at most 10,000, and no more than
/// [`max_keys`](CircuitBreakerBuilder::max_keys) says, whether they ever come back or not. Of more, those are forgotten
/// whose last failure is longest ago.
///
/// # Cancel safety
///
/// A call that is dropped counts as nothing; a probe makes room for the next one in its drop.
#[derive(Clone)]
pub struct CircuitBreaker {
    inner: Arc<CircuitBreakerInner>,
    stack: Stack<AnyRun>,
}

struct CircuitBreakerInner {
    options: CircuitBreakerOptions,
    circuits: Circuits,
    own_events: OwnEvents,
}

impl CircuitBreaker {
    /// With all as said above, one for all that it is bound to.
    #[must_use]
    pub fn new() -> Self {
        Self::of(CircuitBreakerOptions::default())
    }

    /// Begins with the same, to be changed.
    pub fn builder() -> CircuitBreakerBuilder {
        CircuitBreakerBuilder::default()
    }

    fn of(options: CircuitBreakerOptions) -> Self {
        let (circuits, own_events) = (Circuits::new(options.thresholds), OwnEvents::new("middleware.circuit_breaker"));
        let inner = Arc::new(CircuitBreakerInner { options, circuits, own_events });
        let stack = Stack::builder().retry(CircuitBreakerLayer(Arc::clone(&inner))).build();
        Self { inner, stack }
    }
}

default_as_new!(CircuitBreaker);

built_in!(CircuitBreaker, |this| this.inner.own_events, "circuit_breaker", this.stack);

debug_as!(CircuitBreaker, |this| this.inner.options);
