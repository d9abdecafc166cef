//! Catches panics of user code. No other module of this crate does so (R4).
//!
//! 1. A caught panic becomes an error with the panic's message, or a warning in the log if the panic must not affect
//!    the run.
//! 2. The payload of a panic is a user value. It is dropped here, and a panic in its `Drop` is caught too
//!    ([`panic_text`]).
//! 3. Values that no caller receives are dropped by [`discard`], because their drops may call user code too.

use std::any::Any;
use std::future::Future;
use std::mem::needs_drop;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::pin::Pin;
use std::task::{Context as TaskContext, Poll};

use emitree_emitter::panic_text;
use futures_util::FutureExt;
use pin_project_lite::pin_project;

use crate::{Error, Result};

/// Calls user code, and returns a panic as an error.
pub(crate) fn caught<T>(f: impl FnOnce() -> T) -> Result<T> {
    catch_unwind(AssertUnwindSafe(f)).map_err(Error::of_panic)
}

/// Awaits user code, and returns a panic as an error.
///
/// This is not an `async fn`, because an `async fn` would store the future twice: as its argument, and as the future
/// that it awaits.
pub(crate) fn caught_async<T>(future: impl Future<Output = T>) -> impl Future<Output = Result<T>> {
    AssertUnwindSafe(future).catch_unwind().map(|caught| caught.map_err(Error::of_panic))
}

/// Calls user code that must not affect the run, such as a subscriber or a drop. A panic is logged.
pub(crate) fn isolated(f: impl FnOnce()) {
    if let Err(payload) = catch_unwind(AssertUnwindSafe(f)) {
        log_panic(payload);
    }
}

#[cold]
fn log_panic(payload: Box<dyn Any + Send>) {
    let text = panic_text(payload);
    logged(|| tracing::warn!("a run continues after a panic: {text}"));
}

/// Calls a logging macro. Log subscribers and the `Display` of errors are user code: their panics are ignored, because
/// the run matters more than the log.
pub(crate) fn logged(log: impl FnOnce()) {
    if let Err(payload) = catch_unwind(AssertUnwindSafe(log)) {
        drop(panic_text(payload));
    }
}

/// Drops a user value. A panic is logged.
pub(crate) fn discard<T>(value: T) {
    if needs_drop::<T>() {
        isolated(|| drop(value));
    }
}

/// Drops user values. If the drop of one value panics, the others are still dropped.
pub(crate) fn discard_all<T>(values: impl IntoIterator<Item = T>) {
    let mut values = values.into_iter();
    let mut is_over = false;
    while !is_over {
        // One `catch_unwind` covers all values: after a panic, the loop continues with the next value.
        isolated(|| {
            values.by_ref().for_each(drop);
            is_over = true;
        });
    }
}

pin_project! {
    /// A future that completes when the inner future completes or panics. Panics of the inner future, also in its drop,
    /// are logged.
    pub(crate) struct Isolated<F> {
        // `None` once the future is over or dropped.
        #[pin]
        future: Option<F>,
    }

    impl<F> PinnedDrop for Isolated<F> {
        fn drop(this: Pin<&mut Self>) {
            isolated(|| this.project().future.set(None));
        }
    }
}

impl<F: Future<Output = ()>> Isolated<F> {
    pub(crate) const fn new(future: F) -> Self {
        Self { future: Some(future) }
    }
}

impl<F: Future<Output = ()>> Future for Isolated<F> {
    type Output = ();

    fn poll(self: Pin<&mut Self>, cx: &mut TaskContext<'_>) -> Poll<()> {
        let mut this = self.project();
        let mut polled = Poll::Ready(());
        if let Some(future) = this.future.as_mut().as_pin_mut() {
            isolated(|| polled = future.poll(cx));
        }
        if polled.is_ready() {
            isolated(|| this.future.set(None));
        }
        polled
    }
}
