//! A request that takes its run along.

use crate::RunContext;

/// A request together with the run in which it was made. Made by [`PropagateRun`](crate::PropagateRun), taken apart by
/// [`EnterRun`](crate::EnterRun).
///
/// A service that hands requests to a task of its own may do without `EnterRun`: it enters [`run`](Self::run) itself,
/// with [`scope`](RunContext::scope) and [`in_scope`](RunContext::in_scope). Until it is dropped, it keeps the run's memory,
/// but not the run: that may end meanwhile, and then no run begins in it.
#[derive(Clone, Debug)]
pub struct WithRun<T> {
    run: Option<RunContext>,
    inner: T,
}

impl<T> WithRun<T> {
    /// Pairs a request with the current run, if there is one.
    ///
    /// In a run that takes no more, as in a listener of its `finish`, it is the next run above that does.
    #[must_use]
    pub fn new(inner: T) -> Self {
        Self { run: RunContext::to_start_in(), inner }
    }

    /// Returns the run in which the request was made.
    #[must_use]
    pub const fn run(&self) -> Option<&RunContext> {
        self.run.as_ref()
    }

    /// Borrows the request.
    #[must_use]
    pub const fn inner(&self) -> &T {
        &self.inner
    }

    /// Borrows the request mutably.
    #[must_use]
    pub const fn inner_mut(&mut self) -> &mut T {
        &mut self.inner
    }

    /// Returns the request, and forgets the run.
    #[must_use]
    pub fn into_inner(self) -> T {
        self.inner
    }

    pub(super) fn into_parts(self) -> (Option<RunContext>, T) {
        (self.run, self.inner)
    }
}
