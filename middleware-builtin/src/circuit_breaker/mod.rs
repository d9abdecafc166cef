//! A circuit breaker for work that keeps failing: [`CircuitBreaker`].

mod builder;
mod circuits;
mod events;
mod layer;
mod state;

use std::sync::Arc;

use emitree_emitter::Namespace;
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

/// A middleware that denies calls for a while after repeated failures, and then lets one call test whether the work has
/// recovered.
///
/// A breaker accepts runs of any type, and does not read inputs or outputs. All clones of a breaker, and all runs that
/// it is bound to, share one state. With a [key](CircuitBreakerBuilder::by), only runs with equal keys share a state.
///
/// | state | calls | until |
/// |---|---|---|
/// | *closed* | pass | 5 failures within 30 s |
/// | *open* | are denied | 30 s have passed |
/// | *half-open* | one passes as a probe, others are denied | the probe ends: the breaker closes, or opens again |
///
/// Michael Nygard described the pattern in *Release It!* (2007).
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
/// assert_eq!(error.to_string(), "the circuit is open for another 5s: connection refused");
/// assert_eq!(error.details()["retry_after_ms"], 5_000);
///
/// tokio::time::sleep(Duration::from_secs(5)).await;
/// assert_eq!(fetch.run(true).await?, "data");
/// # Ok(())
/// # }
/// ```
///
/// # Which calls count
///
/// Failures count, including panics, time-outs, and values that do not fit their type. A failure or time-out that
/// [`when`](CircuitBreakerBuilder::when) excludes counts as a success. Denials, halts, aborts, interrupts, requests for
/// a retry and dropped runs do not count at all. If a probe ends in one of these ways, the next call becomes the probe.
/// A call that is not a probe counts when it ends, and only if the breaker is closed at that moment.
///
/// The layer belongs to [`Phase::Retry`](emitree_runtime::Phase::Retry). A `Timeout` per attempt is inside this layer,
/// and its time-outs count as failures. A `Timeout` over all attempts is outside this layer: the call that it drops
/// does not count. If the breaker is bound after a `Retry`, each attempt counts; if it is bound before the `Retry`, all
/// attempts count as one call. A denial is never retried. A denied call is answered by a `Fallback` that was bound
/// before the breaker, if [`Fallback::on`](crate::Fallback::on) lists denials by `circuit_breaker`.
///
/// With [`for_tree`](emitree_runtime::for_tree), a failure that passes through several runs counts once for each of
/// them. Use the key [`Key::instance`] to count each instance separately. While a probe is running, the runs below it
/// pass too.
///
/// # Denials
///
/// A refused call ends with a denial by `circuit_breaker`. The denial has the details `retry_after_ms`, the time until
/// a probe may pass; `cause`, the last failure; and `key`, unless all runs share one key. `retry_after_ms` is absent
/// while a probe is running, or if the breaker stays open for good. If the key cannot be determined, the call is
/// denied without these details.
///
/// # Its own events
///
/// `middleware.circuit_breaker.opened`, `half_opened`, `closed` and `denied`: [`Opened`], [`HalfOpened`], [`Closed`],
/// [`CallDenied`].
///
/// # What it remembers
///
/// Keys of failed calls, and keys whose circuit is open or half-open: at most 10,000, or the number set by
/// [`max_keys`](CircuitBreakerBuilder::max_keys), not counting keys with a running probe. To make room, closed keys
/// without a failure within the window are forgotten first, and then the keys that failed least recently.
///
/// # Cancel safety
///
/// A dropped call does not count. If a probe is dropped, the next call becomes the probe.
#[derive(Clone)]
pub struct CircuitBreaker {
    inner: Arc<CircuitBreakerInner>,
    stack: Stack<AnyRun>,
}

/// The state that clones of a breaker share.
struct CircuitBreakerInner {
    options: CircuitBreakerOptions,
    circuits: Circuits,
    own_events: OwnEvents,
}

impl CircuitBreaker {
    /// Creates a breaker with the default options.
    #[must_use]
    pub fn new() -> Self {
        Self::of(CircuitBreakerOptions::default())
    }

    /// Creates a builder with the default options.
    pub fn builder() -> CircuitBreakerBuilder {
        CircuitBreakerBuilder::default()
    }

    fn of(options: CircuitBreakerOptions) -> Self {
        let (circuits, own_events) =
            (Circuits::new(options.thresholds), OwnEvents::new(Namespace::new("middleware.circuit_breaker")));
        let inner = Arc::new(CircuitBreakerInner { options, circuits, own_events });
        let stack = Stack::builder().retry(CircuitBreakerLayer(Arc::clone(&inner))).build();
        Self { inner, stack }
    }
}

default_as_new!(CircuitBreaker);

built_in!(CircuitBreaker, |this| this.inner.own_events, "circuit_breaker", this.stack; this.inner.options.key);

debug_as!(CircuitBreaker, |this| this.inner.options);
