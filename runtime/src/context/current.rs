//! The current run of a thread (R9).

use std::future::Future;
use std::pin::Pin;
use std::task::{Context as TaskContext, Poll};

use pin_project_lite::pin_project;
use scoped_tls::scoped_thread_local;

use crate::RunContext;

// Holds a borrowed handle during every poll of a run's work and every call of a listener, so that a poll clones no
// handle.
scoped_thread_local!(static CURRENT: RunContext);

/// Calls a function with the current run, if there is one.
pub(crate) fn look<T>(f: impl FnOnce(&RunContext) -> T) -> Option<T> {
    CURRENT.is_set().then(|| CURRENT.with(f))
}

/// Calls a function while `run` is the current run.
pub(crate) fn enter<T>(run: &RunContext, f: impl FnOnce() -> T) -> T {
    CURRENT.set(run, f)
}

/// Calls a function. If `run` is `Some`, it is the current run during the call.
pub(crate) fn enter_some<T>(run: Option<&RunContext>, f: impl FnOnce() -> T) -> T {
    match run {
        Some(run) => enter(run, f),
        None => f(),
    }
}

/// Returns a future that is polled and dropped inside a run.
pub(crate) const fn within<F: Future>(run: RunContext, future: F) -> Within<F> {
    Within { run, future: Some(future) }
}

pin_project! {
    /// A future that is polled and dropped inside a run.
    pub(crate) struct Within<F> {
        run: RunContext,
        // `None` once the future is dropped.
        #[pin]
        future: Option<F>,
    }

    impl<F> PinnedDrop for Within<F> {
        fn drop(this: Pin<&mut Self>) {
            let mut this = this.project();
            enter(this.run, || this.future.set(None));
        }
    }
}

#[cfg(feature = "tower")]
impl<F> Within<F> {
    pub(crate) const fn run(&self) -> &RunContext {
        &self.run
    }
}

impl<F: Future> Future for Within<F> {
    type Output = F::Output;

    fn poll(self: Pin<&mut Self>, cx: &mut TaskContext<'_>) -> Poll<F::Output> {
        let this = self.project();
        match this.future.as_pin_mut() {
            Some(future) => enter(this.run, || future.poll(cx)),
            None => Poll::Pending,
        }
    }
}
