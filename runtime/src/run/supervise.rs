//! Ends that are still to come when a run's future is gone (R8).
//!
//! 1. An end is counted before a task is spawned for it, and until it has come.
//! 2. Where no task can be had, or it is dropped because its runtime shuts down, the end comes at once: who would have
//!    to be awaited is skipped.

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

/// The ends that are still to come, of the whole process.
static PENDING: LazyLock<Mutex<Slab<RunContext>>> = LazyLock::new(Mutex::default);

/// One of them has come, or a run alive is over.
pub(crate) static OVER: Event = Event::new();

/// Ends a run whose work is gone: sync listeners hear it now, those that are awaited from a task.
pub(crate) fn supervise(run: &RunContext) {
    run.delivery().sync_first();
    let mut cx = TaskContext::from_waker(Waker::noop());
    if run.drive(Driver::Supervisor, &mut cx) != Driven::Pending {
        return;
    }
    run.supervised();
    let supervised = Supervised { key: PENDING.lock().insert(run.clone()), run: run.clone() };
    match Handle::try_current() {
        Ok(runtime) => drop(runtime.spawn(supervised)),
        Err(_) => drop(supervised),
    }
}

/// Drives a run to its end. Dropped before, it ends it there.
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

/// Ends a run here and now. If somebody else is at it, it goes on when that one stops.
fn cut(run: &RunContext) {
    run.delivery().cut();
    let waker = Waker::from(Arc::new(Again(run.clone())));
    run.drive(Driver::Supervisor, &mut TaskContext::from_waker(&waker));
}

/// Wakes by going on.
struct Again(RunContext);

impl Wake for Again {
    fn wake(self: Arc<Self>) {
        self.0.drive(Driver::Supervisor, &mut TaskContext::from_waker(&Waker::from(Arc::clone(&self))));
    }
}

/// Waits for the ends of runs whose futures were dropped, until the deadline; then the rest come at once, and who would
/// have to be awaited is skipped.
///
/// Call it before the runtime goes: a runtime that shuts down cannot await anybody, and what is still to come is cut
/// then too. Runs that are alive are not touched: a program that has awaited its runs calls this, and then closes its
/// sinks, `handle.close(deadline)`. [`shutdown`](crate::shutdown) aborts what is alive.
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
/// In a runtime without a clock, and outside of one, as [`tokio::time::timeout`] does.
pub async fn wait_for_ends(deadline: Duration) -> Shutdown {
    let waiting = to_come();
    tokio::time::timeout(deadline, until_over()).await.ok();
    let ended = waiting.iter().filter(|run| run.has_ended()).count();
    Shutdown { ended, undelivered: to_come().iter().map(give_up_on).collect() }
}

/// Not those that were cut before: their tasks may not have noticed yet.
pub(crate) fn to_come() -> Vec<RunContext> {
    PENDING.lock().iter().map(|(_, run)| run).filter(|run| !run.has_ended()).cloned().collect()
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

/// Ends a run as far as that can be done now.
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
    /// How many runs ended in time, of those that it waited for.
    pub ended: usize,
    /// The runs that had not ended at the deadline.
    pub undelivered: Vec<Undelivered>,
}

impl Shutdown {
    /// Whether all of them ended in time.
    #[must_use]
    pub const fn is_complete(&self) -> bool {
        self.undelivered.is_empty()
    }
}

impl fmt::Display for Shutdown {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} ended in time", self.ended)?;
        self.undelivered.iter().try_for_each(|run| {
            let Undelivered { namespace, run_id, skipped, has_ended } = run;
            let end = if *has_ended { "" } else { ", has not ended" };
            write!(f, "\n  run {run_id} of `{namespace}`: {skipped} listeners skipped{end}")
        })
    }
}

/// A run that had not ended at the deadline, and was cut then.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Undelivered {
    /// Where it ran.
    pub namespace: String,
    /// Which run it is.
    pub run_id: Uuid,
    /// How many times a listener that would have had to be awaited was not, or was dropped.
    pub skipped: usize,
    /// Whether it has ended now. If not, its work blocks a thread, or a listener does.
    pub has_ended: bool,
}
