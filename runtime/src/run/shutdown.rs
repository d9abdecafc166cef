//! Ending all runs of the process (R8).
//!
//! 1. Listed are runs without a run above that have waited: one that is over at its first poll pays for one load.
//! 2. A shutdown closes the gate, and then looks who is listed. A run looks at the gate before it begins, and again when it
//!    has been listed: so neither misses the other. One that is at its first poll meanwhile is aborted when it first waits.
//! 3. What is aborted is brought to its end by whoever has its future. Only when half of the time is over is it taken
//!    from there: until then the work is dropped before the end is told.

use std::collections::HashSet;
use std::sync::LazyLock;
use std::sync::atomic::{AtomicBool, Ordering, fence};
use std::time::Duration;

use crate::RunContext;
use crate::run::supervise::{OVER, Shutdown, give_up_on, supervise, to_come};
use crate::tree::children::{ChildKey, Children};

/// Why runs are aborted, and why others do not begin.
pub(crate) const REASON: &str = "the process shuts down";

/// Whether no run may begin.
pub(crate) static CLOSED: AtomicBool = AtomicBool::new(false);

/// The runs that have no run above, and have waited.
static ALIVE: LazyLock<Children> = LazyLock::new(Children::default);

/// The place of a run among those alive, until its future is over or gone.
pub(crate) struct Listed(ChildKey);

impl Listed {
    /// Lists a run that waits, and aborts it if that comes too late.
    pub(crate) fn new(run: &RunContext) -> Self {
        let listed = Self(ALIVE.add(run.downgrade()));
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

/// Ends every run of the process: takes no new runs, aborts those alive, waits for their ends until the deadline, and
/// reports each that did not end in time.
///
/// In this order:
///
/// 1. From now on no run begins, those started in living runs included: whoever polls one for the first time gets an error
///    of kind [`Aborted`](crate::ErrorKind::Aborted), "the process shuts down".
/// 2. Every run alive is aborted with the same reason, and every run below it. A run that another thread is polling for the
///    first time is aborted when it first waits, and may be missing in the report.
/// 3. The tasks that hold those runs drop the work and bring them to their ends. When half of the time is over, runs that
///    nobody has polled since are brought to their ends from here; what is left of their work is dropped with their futures.
/// 4. At the deadline the rest is cut: sync listeners hear the ends at once, async listeners are skipped and counted. A run whose
///    work blocks its thread cannot be cut; it ends when that returns.
///
/// Ends of runs whose futures were dropped before are waited for as well. Call it before the runtime is dropped, and close
/// your sinks after it: `handle.close(deadline)`. To let runs end by themselves, await them and call
/// [`wait_for_ends`](crate::wait_for_ends).
///
/// It is about the process, and so are its effects: runs begin again after [`accept_runs`].
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
/// assert_eq!(served.await.unwrap().unwrap_err().to_string(), "the process shuts down");
/// assert!(serve.run(()).await.unwrap_err().is_aborted());
///
/// accept_runs();
/// # Ok(())
/// # }
/// ```
///
/// # Panics
///
/// In a runtime without a clock, and outside of one, as [`tokio::time::timeout`] does.
///
/// # Cancel safety
///
/// Dropping the future leaves the process without new runs, and the runs aborted. Calling it again waits for their ends.
pub async fn shutdown(deadline: Duration) -> Shutdown {
    CLOSED.store(true, Ordering::SeqCst);
    fence(Ordering::SeqCst);
    let mut waited = Waited::default();
    waited.look();
    waited.runs.iter().for_each(|run| _ = run.abort(REASON));
    let half = deadline / 2;
    if tokio::time::timeout(half, waited.until_over()).await.is_err() {
        waited.unended().for_each(supervise);
        tokio::time::timeout(deadline - half, waited.until_over()).await.ok();
    }
    waited.report()
}

/// Lets runs begin again after a [`shutdown`]: for programs that restart in place, and for tests. Runs that were refused or
/// aborted stay so.
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
            let over = OVER.listen();
            self.look();
            if self.unended().next().is_none() {
                return;
            }
            over.await;
        }
    }

    fn report(mut self) -> Shutdown {
        let ended = self.runs.len() - self.unended().count();
        self.look();
        Shutdown { ended, undelivered: self.unended().map(give_up_on).collect() }
    }
}
