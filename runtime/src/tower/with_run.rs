//! A request that takes its run along.

use crate::RunContext;
use crate::context::current::enter_some;

/// A request together with the run in which it was made. Made by [`PropagateRun`](crate::PropagateRun), taken apart by
/// [`EnterRun`](crate::EnterRun).
///
/// A service that hands requests to a task of its own may do without `EnterRun`: it enters [`run`](Self::run) itself,
/// with [`scope`](RunContext::scope) and [`in_scope`](RunContext::in_scope). Until it is dropped, it keeps the run's memory,
/// but not the run: that may end meanwhile, and then no run begins in it. A request that nobody takes out is dropped inside of the run.
#[derive(Clone, Debug)]
pub struct WithRun<T> {
    run: Option<RunContext>,
    /// Until it is taken out.
    inner: Option<T>,
}

impl<T> WithRun<T> {
    /// Pairs a request with the current run, if there is one.
    ///
    /// In a run that takes no more, as in a listener of its `finish`, it is the next run above that does.
    #[must_use]
    pub fn new(inner: T) -> Self {
        Self { run: RunContext::to_start_in(), inner: Some(inner) }
    }

    /// Returns the run in which the request was made.
    #[must_use]
    pub const fn run(&self) -> Option<&RunContext> {
        self.run.as_ref()
    }

    /// Borrows the request.
    #[must_use]
    #[expect(clippy::expect_used, clippy::missing_panics_doc, reason = "only what consumes it takes the request out")]
    pub const fn inner(&self) -> &T {
        self.inner.as_ref().expect("the request is there")
    }

    /// Returns the request, and forgets the run.
    #[must_use]
    pub fn into_inner(self) -> T {
        self.into_parts().1
    }

    #[expect(clippy::expect_used, reason = "only what consumes it takes the request out")]
    pub(super) fn into_parts(mut self) -> (Option<RunContext>, T) {
        (self.run.take(), self.inner.take().expect("the request is there"))
    }
}

/// What the drop of a request starts belongs to the run that it was made in (R1).
impl<T> Drop for WithRun<T> {
    fn drop(&mut self) {
        enter_some(self.run.as_ref(), || drop(self.inner.take()));
    }
}
