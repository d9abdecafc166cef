//! A request that carries its run.

use crate::RunContext;
use crate::context::current::enter_some;

/// A request and the run that [`new`](Self::new) paired it with, if any. [`PropagateRun`](crate::PropagateRun) creates
/// the pair, and [`EnterRun`](crate::EnterRun) takes the pair apart.
///
/// Instead of using `EnterRun`, a service that passes requests to another task may itself enter [`run`](Self::run),
/// with [`scope`](RunContext::scope) or [`in_scope`](RunContext::in_scope).
///
/// A `WithRun` keeps the context of the run in memory, but does not prevent the run from ending. Once the run has
/// ended, no run starts in it. A request that is not taken out is dropped inside the run.
#[derive(Clone, Debug)]
pub struct WithRun<T> {
    run: Option<RunContext>,
    /// The request, until it is taken out.
    inner: Option<T>,
}

impl<T> WithRun<T> {
    /// Pairs a request with the current run, if there is one.
    ///
    /// If the current run accepts no further runs, as in a listener of its `finish`, the request is paired with the
    /// nearest run above that still accepts runs. If no run above accepts runs, the request is paired with the
    /// outermost run above, if any. In a task or scope of the current run, the request is always paired with that run.
    #[must_use]
    pub fn new(inner: T) -> Self {
        Self { run: RunContext::to_start_in(), inner: Some(inner) }
    }

    /// Returns the run that the request was paired with, or `None` if there was none (see [`new`](Self::new)).
    #[must_use]
    pub const fn run(&self) -> Option<&RunContext> {
        self.run.as_ref()
    }

    /// Borrows the request.
    #[must_use]
    #[expect(clippy::expect_used, clippy::missing_panics_doc, reason = "only consuming methods take the request out")]
    pub const fn inner(&self) -> &T {
        self.inner.as_ref().expect("the request is there")
    }

    /// Returns the request without its run.
    #[must_use]
    pub fn into_inner(self) -> T {
        self.into_parts().1
    }

    #[expect(clippy::expect_used, reason = "only consuming methods take the request out")]
    pub(super) fn into_parts(mut self) -> (Option<RunContext>, T) {
        (self.run.take(), self.inner.take().expect("the request is there"))
    }
}

impl<T> Drop for WithRun<T> {
    fn drop(&mut self) {
        // Dropping the request may call user code: runs that this code starts are children of the request's run (R1).
        enter_some(self.run.as_ref(), || drop(self.inner.take()));
    }
}
