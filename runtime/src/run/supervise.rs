//! Ends runs whose futures were dropped, and runs that have not ended by themselves during a shutdown (R8).
//!
//! 1. A run is added to `PENDING` before a task is spawned for its end, and stays there until it has ended.
//! 2. If no task can be spawned, or the task is dropped because its runtime shuts down, the run ends at once, and async
//!    listeners are skipped.

use std::collections::HashSet;
use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::sync::{Arc, LazyLock};
use std::task::{Context as TaskContext, Poll, Wake, Waker};
use std::time::Duration;

use event_listener::Event;
use parking_lot::Mutex;
use slab::Slab;
use tokio::runtime::Handle;
use uuid::Uuid;

use crate::RunContext;
use crate::run::drive::Driven;
use crate::run::lease::Driver;

/// The runs that tasks of this module still have to end.
static PENDING: LazyLock<Mutex<Slab<RunContext>>> = LazyLock::new(Mutex::default);

/// Notified when a pending run has ended, and when a listed run is over.
pub(crate) static OVER: Event = Event::new();

/// Ends a run whose future is being dropped, without its work: sync listeners receive the last events now, and async
/// listeners receive them in a task.
pub(crate) fn supervise(run: &RunContext) {
    // If another driver holds the lease, it drives the run to its end.
    if drive_sync_first(run) == Driven::Pending {
        spawn_supervised(run);
    }
}

/// Ends a run whose future still exists, without its work, as [`supervise`] does. If the future is being polled on another
/// thread, the task ends the run after that poll.
pub(crate) fn take_over(run: &RunContext) {
    if drive_sync_first(run) != Driven::Over {
        spawn_supervised(run);
    }
}

fn drive_sync_first(run: &RunContext) -> Driven {
    run.delivery().sync_first();
    run.drive(Driver::Supervisor, &mut TaskContext::from_waker(Waker::noop()))
}

fn spawn_supervised(run: &RunContext) {
    // From now on, refuse the lease to the parent: the task that is spawned below needs the lease.
    run.supervised();
    let supervised = Supervised { key: PENDING.lock().insert(run.clone()), run: run.clone() };
    match Handle::try_current() {
        Ok(runtime) => drop(runtime.spawn(supervised)),
        Err(_) => drop(supervised),
    }
}

/// A task that drives a run to its end. If the task is dropped before the run has ended, the drop ends the run.
struct Supervised {
    run: RunContext,
    key: usize,
}

impl Future for Supervised {
    type Output = ();

    fn poll(self: Pin<&mut Self>, cx: &mut TaskContext<'_>) -> Poll<()> {
        match self.run.drive(Driver::Supervisor, cx) {
            Driven::Over => Poll::Ready(()),
            Driven::Pending | Driven::Elsewhere => Poll::Pending,
        }
    }
}

impl Drop for Supervised {
    fn drop(&mut self) {
        cut(&self.run);
        let over = PENDING.lock().try_remove(self.key);
        drop(over);
        OVER.notify(usize::MAX);
    }
}

/// Ends a run at once. If another driver holds the lease, the run ends when that driver releases the lease.
fn cut(run: &RunContext) {
    run.delivery().cut();
    let waker = Waker::from(Arc::new(Again(run.clone())));
    run.drive(Driver::Supervisor, &mut TaskContext::from_waker(&waker));
}

/// A waker that drives the run further.
struct Again(RunContext);

impl Wake for Again {
    fn wake(self: Arc<Self>) {
        self.0.drive(Driver::Supervisor, &mut TaskContext::from_waker(&Waker::from(Arc::clone(&self))));
    }
}

/// Waits until the runs whose futures were dropped have ended. At the deadline the remaining runs are cut: they end at
/// once, and async listeners are skipped.
///
/// Call this function before the tokio runtime is dropped: when a runtime shuts down, it drops its tasks, and runs that
/// have not ended by then are cut too. This function does not affect runs whose futures still exist: await them first,
/// then call this function, and then close your sinks with `handle.close(deadline)`. To abort all runs, call
/// [`shutdown`](crate::shutdown).
///
/// ```
/// use std::time::Duration;
///
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() {
/// let ends = emitree_runtime::wait_for_ends(Duration::from_secs(5)).await;
/// assert!(ends.is_complete(), "{ends}");
/// # }
/// ```
///
/// # Panics
///
/// Panics in a tokio runtime without a clock, and outside a runtime, as [`tokio::time::timeout`] does.
pub async fn wait_for_ends(deadline: Duration) -> Shutdown {
    let waiting = to_come();
    let in_time = tokio::time::timeout(deadline, until_over()).await.is_ok();
    let ended = waiting.iter().filter(|run| run.has_ended()).count();
    // A run whose future was dropped after the wait is not late.
    let late = if in_time { Vec::new() } else { to_come() };
    Shutdown { ended, undelivered: late.iter().map(give_up_on).collect() }
}

/// Returns the pending runs, except runs that have ended but whose tasks are still to be polled.
/// A run that a shutdown took over may have two tasks, but is returned once.
#[expect(clippy::mutable_key_type, reason = "runs are compared by identity")]
pub(crate) fn to_come() -> Vec<RunContext> {
    let mut known = HashSet::new();
    let pending = PENDING.lock();
    let to_come = pending.iter().map(|(_, run)| run).filter(|run| !run.has_ended() && known.insert(*run));
    to_come.cloned().collect()
}

async fn until_over() {
    loop {
        let over = OVER.listen();
        if PENDING.lock().iter().all(|(_, run)| run.has_ended()) {
            return;
        }
        over.await;
    }
}

/// Ends a run with [`cut`]. Reports how many listeners were skipped, and whether the run has ended.
pub(crate) fn give_up_on(run: &RunContext) -> Undelivered {
    cut(run);
    Undelivered {
        namespace: run.instance_ref().namespace().to_owned(),
        run_id: run.run_id(),
        skipped: run.delivery().skipped(),
        has_ended: run.has_ended(),
    }
}

/// The report of [`shutdown`](crate::shutdown) and of [`wait_for_ends`].
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Shutdown {
    /// The number of runs that ended in time.
    pub ended: usize,
    /// The runs that had not ended at the deadline.
    pub undelivered: Vec<Undelivered>,
}

impl Shutdown {
    /// Returns `true` if all runs ended in time.
    #[must_use]
    pub const fn is_complete(&self) -> bool {
        self.undelivered.is_empty()
    }
}

impl fmt::Display for Shutdown {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "runs that ended in time: {}", self.ended)?;
        self.undelivered.iter().try_for_each(|run| {
            let Undelivered { namespace, run_id, skipped, has_ended } = run;
            let end = if *has_ended { "" } else { ", has not ended" };
            write!(f, "\n  run {run_id} of `{namespace}`: {skipped} listeners skipped{end}")
        })
    }
}

/// A run that had not ended at the deadline.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Undelivered {
    /// The namespace of the run's instance.
    pub namespace: String,
    /// The run's id.
    pub run_id: Uuid,
    /// The number of times that an async listener was skipped, or was dropped while it was awaited.
    pub skipped: usize,
    /// `true` if the run had ended when the report was made. If not, its work or a listener blocks a thread.
    pub has_ended: bool,
}
