//! Cases of runs below another run: runs with siblings, runs on several threads, and runs that are ended by abort.

use std::future::{Future, pending};
use std::hint::black_box;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::{Context, Waker};
use std::time::{Duration, Instant};

use emitree::emitter::Creator;
use emitree::{Emitter, Result, RunContext, Runnable, runnable_fn};

use crate::Adder;
use crate::support::{Case, timed};

/// A runnable whose work never ends.
struct Forever(Emitter);

impl Forever {
    fn new() -> Self {
        let creator = Creator::new("Tool", "forever");
        Self(Emitter::new().child_builder("tool.forever").creator(creator).build().expect("a valid name"))
    }
}

impl Runnable for Forever {
    type Input = ();
    type Output = ();

    fn emitter(&self) -> &Emitter {
        &self.0
    }

    async fn execute(&self, (): &(), _: &RunContext) -> Result<()> {
        pending().await
    }
}

fn poll_once<F: Future + Unpin>(future: &mut F) {
    let mut context = Context::from_waker(Waker::noop());
    assert!(Pin::new(future).poll(&mut context).is_pending(), "it has to wait");
}

/// Starts a number of runs below the current run. These runs do not end.
fn started(forever: &Forever, how_many: usize) -> Vec<impl Future + use<'_>> {
    let mut runs: Vec<_> = (0..how_many).map(|_| forever.run(())).collect();
    runs.iter_mut().for_each(poll_once);
    runs
}

/// A case that calls `batch` inside a new run each time. `batch` returns the measured time.
pub(crate) fn inside(batch: impl Fn(RunContext, u64) -> Duration + Send + Sync + 'static) -> impl Case {
    let batch = Arc::new(batch);
    let host = runnable_fn("host", move |n: u64, ctx: RunContext| {
        let batch = Arc::clone(&batch);
        async move { Ok(batch(ctx, n)) }
    });
    let host = host.with_emitter(Emitter::new());
    move |n| {
        let mut took = Duration::ZERO;
        timed(async { took = host.run(n).await.expect("a batch") });
        took
    }
}

/// A case of runs, one after the other, with a number of living siblings.
pub(crate) fn runs(siblings: usize) -> impl Case {
    let (adder, forever) = (Adder::new(), Forever::new());
    inside(move |_, n| {
        let alive = started(&forever, siblings);
        let took = batch(&adder, n);
        drop(alive);
        took
    })
}

fn batch(adder: &Adder, n: u64) -> Duration {
    timed(async {
        for i in 0..n {
            black_box(adder.run(black_box(i)).await.ok());
        }
    })
}

/// A case that starts a run with a number of children, aborts it, and polls it to its end. All of this is timed.
pub(crate) fn aborted(children: usize) -> impl Case {
    let forever = Arc::new(Forever::new());
    let host = runnable_fn("host", move |(): (), _: RunContext| {
        let forever = Arc::clone(&forever);
        async move {
            let alive = started(&forever, children);
            pending::<()>().await;
            drop(alive);
            Ok(())
        }
    });
    let host = host.with_emitter(Emitter::new());
    move |n| {
        let start = Instant::now();
        for _ in 0..n {
            let handle = emitree::abort::AbortHandle::new();
            let mut run = host.run(()).abort_on(&handle);
            poll_once(&mut run);
            handle.abort("enough");
            let mut context = Context::from_waker(Waker::noop());
            assert!(Pin::new(&mut run).poll(&mut context).is_ready(), "an aborted run ends");
        }
        start.elapsed()
    }
}

/// A case of tasks in one run, on a number of threads at a time. Each task has its own runnable. If the machine was too
/// busy to run all tasks concurrently, the batch is repeated.
pub(crate) fn on_threads(threads: usize) -> impl Case {
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(threads).build().expect("a runtime");
    let host = runnable_fn("host", move |n: u64, ctx: RunContext| async move {
        let waiting = Arc::new(AtomicUsize::new(threads));
        let tasks: Vec<_> = (0..threads).map(|_| ctx.spawn(timed_together(Arc::clone(&waiting), n))).collect();
        let mut took = Vec::new();
        for task in tasks {
            took.push(task.await?);
        }
        Ok(overlapping(&took))
    });
    let host = host.with_emitter(Emitter::new());
    move |n| {
        let attempt = || runtime.block_on(host.run(n).into_future()).expect("a batch");
        std::iter::repeat_with(attempt).take(10_000).flatten().next().expect("the machine is too busy to tell")
    }
}

async fn timed_together(waiting: Arc<AtomicUsize>, n: u64) -> (Instant, Duration, Instant) {
    let adder = Adder::new();
    waiting.fetch_sub(1, Ordering::AcqRel);
    while waiting.load(Ordering::Acquire) > 0 {
        std::hint::spin_loop();
    }
    (Instant::now(), batch(&adder, n), Instant::now())
}

/// Returns the average time of a task, or `None` if all tasks ran together for less than 80 % of the longest task's
/// time.
fn overlapping(took: &[(Instant, Duration, Instant)]) -> Option<Duration> {
    let (from, to) = (took.iter().map(|run| run.0).max()?, took.iter().map(|run| run.2).min()?);
    let longest = took.iter().map(|run| run.1).max()?;
    let total: Duration = took.iter().map(|run| run.1).sum();
    let count = u32::try_from(took.len()).ok()?;
    (to.saturating_duration_since(from) >= longest * 4 / 5).then(|| total / count)
}
