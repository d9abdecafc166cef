//! Which run one is in (R9).

use std::future::{Future, poll_fn};
use std::pin::pin;

use scoped_tls::scoped_thread_local;

use crate::RunContext;

// Lent around every poll of a run's work and of listeners of its events, not cloned: a poll counts no handle.
scoped_thread_local!(static CURRENT: RunContext);

/// The run that one is in, if one is in one.
pub(crate) fn current() -> Option<RunContext> {
    look(RunContext::clone)
}

/// Looks at the run that one is in.
pub(crate) fn look<T>(f: impl FnOnce(&RunContext) -> T) -> Option<T> {
    CURRENT.is_set().then(|| CURRENT.with(f))
}

/// Calls inside of a run.
pub(crate) fn enter<T>(run: &RunContext, f: impl FnOnce() -> T) -> T {
    CURRENT.set(run, f)
}

/// Awaits inside of a run.
pub(crate) async fn within<F: Future>(run: RunContext, future: F) -> F::Output {
    let mut future = pin!(future);
    poll_fn(|cx| enter(&run, || future.as_mut().poll(cx))).await
}
