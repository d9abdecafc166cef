//! A middleware that is bound to a run and to runs below it applies at each level. In this case, retries and limits log
//! one warning that names the runs.

#[path = "../../tests/support/journal.rs"]
mod journal;
mod support;

use std::sync::atomic::{AtomicU32, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use emitree_emitter::Emitter;
use emitree_middleware::key::Key;
use emitree_middleware::{Concurrency, RateLimit, Retry, Runs};
use emitree_runtime::{Error, IntoMiddleware, RunContext, Runnable, for_nested, for_tree};
use futures_util::future::try_join_all;
use journal::Journal;
use support::{TestResult, instance};

/// `top` runs `middle`, which runs `leaf`. `leaf` counts its calls, stores the warnings from `RunContext::explain`, and
/// fails.
#[derive(Clone, Default)]
struct Path {
    calls: Arc<AtomicU32>,
    explained: Arc<Mutex<Vec<String>>>,
}

impl Path {
    fn build(&self) -> impl Runnable<Input = (), Output = ()> + 'static {
        let (tree, path) = (Emitter::new(), self.clone());
        let leaf = Arc::new(instance(&tree, "Model", "leaf", move |(): (), ctx: RunContext| {
            path.calls.fetch_add(1, Ordering::Relaxed);
            *path.explained.lock().expect("nobody panics") = ctx.explain().warnings;
            async { Err::<(), _>(Error::new("busy").retryable(true)) }
        }));
        let middle = Arc::new(instance(&tree, "Tool", "middle", move |(): (), _: RunContext| {
            let leaf = Arc::clone(&leaf);
            async move { leaf.run(()).await }
        }));
        instance(&tree, "Agent", "top", move |(): (), _: RunContext| {
            let middle = Arc::clone(&middle);
            async move { middle.run(()).await }
        })
    }

    /// Returns the number of calls of `leaf` in a run of `top`, the warnings that `leaf` stored, and the logged
    /// warnings.
    async fn run<Sort>(&self, middleware: impl IntoMiddleware<Sort>) -> (u32, Vec<String>, Vec<String>) {
        let journal = Journal::default();
        let _guard = tracing::subscriber::set_default(journal.clone());
        assert!(self.build().run(()).middleware(middleware).await.is_err());
        let explained = std::mem::take(&mut *self.explained.lock().expect("nobody panics"));
        (self.calls.swap(0, Ordering::Relaxed), explained, journal.take())
    }
}

// M4
#[tokio::test(start_paused = true)]
async fn a_retry_at_three_levels_makes_27_calls_and_logs_one_warning() {
    let (path, retry) = (Path::default(), Retry::new());
    let (calls, explained, logged) = path.run(for_tree(retry.clone())).await;
    assert_eq!(calls, 27);
    let advice = "bind the retry to one level, as `Runs::only` does";
    assert_eq!(
        explained,
        [format!(
            "retry: attempts multiply: `leaf` is tried up to 3 times in each attempt of `middle` above it, up to 27 \
             times in all: {advice}"
        )]
    );
    assert_eq!(
        logged,
        [format!(
            "`retry`: attempts multiply: `middle` is tried up to 3 times in each attempt of `top` above it, up to 9 \
             times in all: {advice}"
        )]
    );
    let (calls, explained, logged) = path.run(for_nested(retry)).await;
    assert_eq!((calls, explained.len(), logged.len()), (9, 1, 0), "it has warned already");
}

// M4
#[tokio::test(start_paused = true)]
async fn a_retry_at_one_level_makes_3_calls_and_logs_no_warning() {
    let path = Path::default();
    let none = (3, Vec::new(), Vec::new());
    assert_eq!(path.run(Retry::new()).await, none);
    for runs in [Runs::named("top"), Runs::of_kind("Tool"), Runs::named("leaf")] {
        assert_eq!(path.run(for_tree(runs.only(Retry::new()))).await, none);
    }
    assert_eq!(path.run(for_nested(Runs::of_kind("Model").only(Retry::new()))).await, none);
}

// M4
#[tokio::test]
async fn a_limit_that_counts_a_run_and_a_run_below_it_together_logs_one_warning() -> TestResult {
    let path = Path::default();
    let (concurrency, minute) = (|| Concurrency::builder(9), Duration::from_secs(60));
    let advice = "bind the limit to one level, as `Runs::only` does";

    let (_, explained, logged) = path.run(for_tree(concurrency().build()?)).await;
    let shares = |run, above| {
        format!(
            "`{run}` shares the permit of `{above}` above it, so the runs below `{above}` are not limited individually: {advice}"
        )
    };
    assert_eq!(explained, [format!("concurrency: {}", shares("leaf", "middle"))]);
    assert_eq!(logged, [format!("`concurrency`: {}", shares("middle", "top"))]);

    let (_, explained, logged) = path.run(for_tree(RateLimit::builder(9, minute).build()?)).await;
    let counted = |run, above| format!("`{run}` and `{above}` above it count as two runs: {advice}");
    assert_eq!(explained, [format!("rate_limit: {}", counted("leaf", "middle"))]);
    assert_eq!(logged, [format!("`rate_limit`: {}", counted("middle", "top"))]);

    // Each kind has its own count, and each kind occurs on one level only.
    let none = (1, Vec::new(), Vec::new());
    assert_eq!(path.run(for_tree(concurrency().by(Key::kind()).build()?)).await, none);
    assert_eq!(path.run(for_tree(concurrency().of_kind("Tool").build()?)).await, none);
    assert_eq!(path.run(for_tree(RateLimit::builder(9, minute).by(Key::kind()).build()?)).await, none);
    assert_eq!(path.run(for_tree(Runs::named("leaf").only(RateLimit::builder(9, minute).build()?))).await, none);
    Ok(())
}

/// The number of runs under way, and its maximum.
#[derive(Default)]
struct Gauge([AtomicUsize; 2]);

// M4
#[tokio::test(start_paused = true)]
async fn a_limit_for_nested_runs_limits_the_children_of_a_batch_and_not_the_batch() -> TestResult {
    let (tree, gauge) = (Emitter::new(), Arc::new(Gauge::default()));
    let seen = Arc::clone(&gauge);
    let nap = Arc::new(instance(&tree, "Tool", "nap", move |(): (), _: RunContext| {
        let seen = Arc::clone(&seen);
        async move {
            let now = seen.0[0].fetch_add(1, Ordering::Relaxed) + 1;
            seen.0[1].fetch_max(now, Ordering::Relaxed);
            tokio::time::sleep(Duration::from_millis(1)).await;
            seen.0[0].fetch_sub(1, Ordering::Relaxed);
            Ok(())
        }
    }));
    let batch = instance(&tree, "Agent", "batch", move |(): (), _: RunContext| {
        let nap = Arc::clone(&nap);
        async move { try_join_all((0..50).map(|_| nap.run(()))).await.map(drop) }
    });
    let limit = Concurrency::builder(5).wait(Duration::MAX).build()?;
    let both = try_join_all((0..7).map(|_| batch.run(()).middleware(for_nested(limit.clone()))));
    both.await?;
    assert_eq!(gauge.0[1].load(Ordering::Relaxed), 5);
    Ok(())
}
