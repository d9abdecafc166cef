//! Ends all runs of the process (R8).
//!
//! 1. A run without a parent is listed when it first has to wait. A run that is over at its first poll only loads
//!    `CLOSED`.
//! 2. A shutdown sets `CLOSED`, and then reads the list. A run checks `CLOSED` before it begins, and again after it was
//!    listed. So either the shutdown finds the run, or the run finds `CLOSED`. A run that is in its first poll
//!    meanwhile is aborted when it first has to wait.
//! 3. An aborted run is ended by the task that holds its future: this task drops the work before the last events. The
//!    shutdown itself ends the run only if the run has not ended after half of the time until the deadline.

use std::collections::HashSet;
use std::sync::LazyLock;
use std::sync::atomic::{AtomicBool, Ordering, fence};
use std::time::Duration;

use crate::RunContext;
use crate::run::supervise::{OVER, Shutdown, give_up_on, take_over, to_come};
use crate::tree::children::{ChildKey, Children};

/// The reason for the abort, and the error message of runs that are refused.
pub(crate) const REASON: &str = "the process is shutting down";

/// Set while no run may begin.
pub(crate) static CLOSED: AtomicBool = AtomicBool::new(false);

/// The runs without a parent that have had to wait.
static ALIVE: LazyLock<Children> = LazyLock::new(Children::default);

/// The place of a run in `ALIVE`, until its future is over or dropped.
pub(crate) struct Listed(ChildKey);

impl Listed {
    /// Lists a run that has to wait. Aborts it if a shutdown has begun.
    pub(crate) fn new(run: &RunContext) -> Self {
        let listed = Self(ALIVE.add(run.downgrade()));
        // Either the shutdown finds the run in the list, or this code finds `CLOSED` (invariant 2).
        fence(Ordering::SeqCst);
        if CLOSED.load(Ordering::Acquire) {
            run.abort(REASON);
        }
        listed
    }
}

impl Drop for Listed {
    fn drop(&mut self) {
        ALIVE.remove(self.0);
        OVER.notify(usize::MAX);
    }
}

/// Ends every run of the process: refuses new runs, aborts the living runs, waits for their ends until the deadline, and
/// reports each run that did not end in time.
///
/// A shutdown takes these steps, in order:
///
/// 1. From now on no run begins, not even inside a living run: the first poll of a run returns an error of kind
///    [`Aborted`](crate::ErrorKind::Aborted), "the process is shutting down".
/// 2. Every living run, and every run below it, is aborted with the same reason. A run that another thread is polling
///    for the first time is aborted when it first has to wait, and may be missing from the report.
/// 3. The tasks that hold these runs drop the work and emit the last events. After half of the time until the deadline,
///    the shutdown itself ends the runs that have not ended, such as runs that are not polled. Their work is dropped
///    later, with their futures.
/// 4. At the deadline the remaining runs are cut: sync listeners receive the last events at once, and async listeners
///    are skipped and counted. A run whose work blocks its thread cannot be cut; it ends when its work returns.
///
/// `shutdown` also waits for runs whose futures were dropped earlier and that have not ended yet. Call `shutdown`
/// before the tokio runtime is dropped, and close your sinks afterwards with `handle.close(deadline)`. To let runs end
/// by themselves, await them and call [`wait_for_ends`](crate::wait_for_ends).
///
/// A shutdown applies to the whole process, until [`accept_runs`] is called.
///
/// ```standalone_crate
/// use std::time::Duration;
/// use emitree_runtime::{RunContext, Runnable, accept_runs, runnable_fn, shutdown};
///
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> emitree_runtime::Result<()> {
/// let serve = runnable_fn("serve", |(): (), _: RunContext| std::future::pending::<emitree_runtime::Result<()>>());
/// let serve = std::sync::Arc::new(serve);
/// let served = tokio::spawn(serve.run_shared(()));
/// tokio::task::yield_now().await;
///
/// let report = shutdown(Duration::from_secs(5)).await;
/// assert!(report.is_complete(), "{report}");
/// assert_eq!(report.ended, 1);
/// assert_eq!(served.await.unwrap().unwrap_err().to_string(), "the process is shutting down");
/// assert!(serve.run(()).await.unwrap_err().is_aborted());
///
/// accept_runs();
/// # Ok(())
/// # }
/// ```
///
/// # Panics
///
/// Panics in a tokio runtime without a clock, and outside a runtime, as [`tokio::time::timeout`] does.
///
/// # Cancel safety
///
/// If the future is dropped, runs stay aborted and new runs stay refused. Another call of `shutdown` waits for the runs
/// to end.
pub async fn shutdown(deadline: Duration) -> Shutdown {
    CLOSED.store(true, Ordering::SeqCst);
    fence(Ordering::SeqCst);
    let mut waited = Waited::default();
    waited.look();
    waited.runs.iter().for_each(|run| _ = run.abort(REASON));
    // First let the tasks that hold the runs end them: these tasks drop the work before the last events (invariant 3).
    let half = deadline / 2;
    if tokio::time::timeout(half, waited.until_over()).await.is_err() {
        waited.unended().for_each(take_over);
        if tokio::time::timeout(deadline - half, waited.until_over()).await.is_err() {
            waited.look();
        }
    }
    waited.report()
}

/// Accepts new runs again after a [`shutdown`], for tests and for programs that restart without a new process. Runs that
/// were refused or aborted are not started again.
pub fn accept_runs() {
    CLOSED.store(false, Ordering::SeqCst);
}

/// The runs that a shutdown has waited for: each is kept until the report.
#[derive(Default)]
struct Waited {
    runs: Vec<RunContext>,
    known: HashSet<RunContext>,
}

impl Waited {
    /// Adds the runs that are alive now.
    fn look(&mut self) {
        for run in ALIVE.runs().into_iter().chain(to_come()) {
            if !run.has_ended() && self.known.insert(run.clone()) {
                self.runs.push(run);
            }
        }
    }

    fn unended(&self) -> impl Iterator<Item = &RunContext> {
        self.runs.iter().filter(|run| !run.has_ended())
    }

    async fn until_over(&mut self) {
        loop {
            // Register for the notification before the runs are checked, because a run may end in between.
            let over = OVER.listen();
            self.look();
            if self.unended().next().is_none() {
                return;
            }
            over.await;
        }
    }

    fn report(self) -> Shutdown {
        let undelivered: Vec<_> = self.unended().map(give_up_on).collect();
        Shutdown { ended: self.runs.len() - undelivered.len(), undelivered }
    }
}

#[cfg(test)]
mod tests {
    use std::future::pending;
    use std::pin::pin;
    use std::sync::Arc;
    use std::task::{Context, Waker};

    use super::*;
    use crate::{Result, Runnable, runnable_fn};

    // R8: a run in its first poll on another thread may begin to wait after the shutdown has found nothing to wait for.
    #[test]
    fn a_run_that_first_waits_when_the_wait_is_over_is_not_reported_as_late() {
        let mut waited = Waited::default();
        let mut context = Context::from_waker(Waker::noop());
        assert!(pin!(waited.until_over()).poll(&mut context).is_ready(), "no run is alive");
        let run = pin!(Arc::new(runnable_fn("late", |(): (), _| pending::<Result<()>>())).run_shared(()).into_future());
        assert!(run.poll(&mut context).is_pending());
        assert!(waited.report().is_complete());
    }
}
