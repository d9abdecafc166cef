//! Runs batches on several threads at the same time.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

/// Runs the same batch on several threads at the same time, and returns the average time of a thread. If the machine
/// was too busy to run all threads concurrently, the batch is repeated.
pub(crate) fn on_threads(threads: usize, batch: impl Fn() -> Duration + Sync) -> Duration {
    for _ in 0..10_000 {
        if let Some(took) = together(threads, &batch) {
            return took;
        }
    }
    panic!("{threads} threads never ran at the same time: this machine is too busy to tell");
}

fn together(threads: usize, batch: &(impl Fn() -> Duration + Sync)) -> Option<Duration> {
    let waiting = AtomicUsize::new(threads);
    let run = || {
        waiting.fetch_sub(1, Ordering::AcqRel);
        while waiting.load(Ordering::Acquire) > 0 {
            std::hint::spin_loop();
        }
        (Instant::now(), batch(), Instant::now())
    };
    let took = std::thread::scope(|scope| {
        let running: Vec<_> = (0..threads).map(|_| scope.spawn(run)).collect();
        running.into_iter().map(|thread| thread.join().expect("a batch panicked")).collect::<Vec<_>>()
    });
    let (from, to) = (took.iter().map(|run| run.0).max()?, took.iter().map(|run| run.2).min()?);
    let longest = took.iter().map(|run| run.1).max()?;
    let overlap = to.saturating_duration_since(from);
    let total: Duration = took.iter().map(|run| run.1).sum();
    (overlap >= longest * 4 / 5).then(|| total / u32::try_from(threads).expect("a handful"))
}
