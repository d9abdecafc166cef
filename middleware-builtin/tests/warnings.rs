//! Programs that compile and silently do something else than their author meant: one warning for each instance names the
//! run and the line to write.

#[path = "../../tests/support/journal.rs"]
mod journal;
mod support;

use std::io;
use std::sync::Arc;
use std::time::Duration;

use emitree_emitter::Emitter;
use emitree_middleware::store::MemoryStore;
use emitree_middleware::{Budget, Cache, Durable, Limits, Retry, Runs, Timeout};
use emitree_runtime::{Error, Middleware, RunContext, Runnable, for_nested, for_tree};
use journal::Journal;
use support::{TestResult, instance};

/// Returns the warnings that are logged while a future is awaited.
async fn logged<T>(work: impl Future<Output = T>) -> Vec<String> {
    let journal = Journal::default();
    let _guard = tracing::subscriber::set_default(journal.clone());
    drop(work.await);
    journal.take()
}

/// Returns work that fails with an error.
fn fails(name: &'static str, error: Error) -> impl Runnable<Input = (), Output = ()> + 'static {
    instance(&Emitter::new(), "Tool", name, move |(): (), _: RunContext| {
        let error = error.clone();
        async move { Err(error) }
    })
}

#[tokio::test(start_paused = true)]
async fn a_retry_that_met_only_errors_it_does_not_retry_says_so_once_with_the_line_to_write() {
    let fetch = fails("fetch", Error::new("no answer"));
    let retry = Retry::new();
    let lines = logged(async {
        for _ in 0..3 {
            fetch.run(()).middleware(retry.clone()).await.expect_err("it fails");
        }
        // Another retry of the same instance does not repeat it.
        fetch.run(()).middleware(Retry::new()).await.expect_err("it fails");
    })
    .await;
    let [line] = &*lines else { panic!("{lines:?}") };
    let parts = ["Tool[fetch]", "Retry::when(|error| ", ".retryable(true)"];
    assert!(parts.iter().all(|part| line.contains(part)), "{line}");
}

#[tokio::test(start_paused = true)]
async fn a_retry_does_not_warn_if_it_retried_an_error_or_somebody_said_that_the_error_is_permanent() {
    let reset = || Error::from(io::Error::from(io::ErrorKind::ConnectionReset));
    let both = Retry::new();
    let none = Retry::builder().max_retries(0).build().expect("fine");
    let rows: [(Retry, Error); 8] = [
        (both.clone(), reset()),
        (both, Error::new("wrong after a retry")),
        (Retry::new(), Error::new("not found").retryable(false)),
        (Retry::new(), Error::denied("policy", "not on Sundays")),
        (Retry::new(), Error::aborted("enough")),
        (Retry::new(), Error::timed_out("late")),
        (Retry::when(|_| false), Error::new("wrong")),
        (none, Error::new("wrong")),
    ];
    for (retry, error) in rows {
        let text = error.to_string();
        let work = fails("some", error);
        assert_eq!(logged(async { work.run(()).middleware(retry).await }).await, [""; 0], "{text}");
    }
}

/// Runs `Assistant[desk]`, which runs `Tool[fetch]`, with a middleware, and returns the warnings.
async fn logged_below(middleware: Arc<dyn Middleware>) -> Vec<String> {
    let tree = Emitter::new();
    let fetch = Arc::new(instance(&tree, "Tool", "fetch", |(): (), _: RunContext| async { Ok(()) }));
    let desk = instance(&tree, "Assistant", "desk", move |(): (), _: RunContext| {
        let fetch = Arc::clone(&fetch);
        async move { fetch.run(()).await }
    });
    logged(desk.run(()).middleware(middleware)).await
}

// M12
#[tokio::test]
async fn a_selection_by_a_misspelled_name_or_kind_is_warned_of_in_every_middleware() {
    let second = Duration::from_secs(1);
    let calls = |runs| Budget::builder().calls(9).runs(runs).build().expect("fine");
    let rows: [(&str, &str, Arc<dyn Middleware>); 8] = [
        ("fetsh", "fetch", Arc::new(for_tree(Runs::named("fetsh").only(Retry::new())))),
        ("Tol", "Tool", Arc::new(for_nested(Runs::of_kind("Tol").only(Retry::new())))),
        ("fecth", "fetch", Arc::new(for_tree(Runs::named("fecth").only(Timeout::overall(second))))),
        ("tool", "Tool", Arc::new(Limits::builder().of_kind("tool", 0).build())),
        ("Toool", "Tool", Arc::new(Limits::builder().of_kind("Assistant", 3).group_of_kind("Toool", 3).build())),
        ("tools", "Tool", Arc::new(for_tree(Limits::builder().of_kind("tools", 3).build()))),
        ("TOOL", "Tool", Arc::new(calls(Runs::of_kind("TOOL")))),
        ("ftch", "fetch", Arc::new(calls(Runs::named("ftch")))),
    ];
    for (selected, meant, middleware) in rows {
        let lines = logged_below(Arc::clone(&middleware)).await;
        let [line] = &*lines else { panic!("{selected}: {lines:?}") };
        let selects = format!("it selects `{selected}`");
        assert!([&*selects, meant, "there is Tool `fetch`"].iter().all(|part| line.contains(part)), "{line}");
        assert_eq!(logged_below(middleware).await, [""; 0], "it is logged once");
    }
}

// M12
#[tokio::test]
async fn a_selection_that_met_a_run_or_is_near_to_none_is_not_warned_of() {
    let calls = |runs| Budget::builder().calls(9).runs(runs).build().expect("fine");
    let rows: [Arc<dyn Middleware>; 6] = [
        Arc::new(Limits::builder().of_kind("Tool", 9).build()),
        Arc::new(Limits::builder().of_kind("ChatModel", 0).build()),
        Arc::new(Limits::builder().runs(9).depth(3).build()),
        Arc::new(calls(Runs::of_kind("Tool"))),
        Arc::new(calls(Runs::named("write"))),
        Arc::new(for_tree(Runs::named("fetch").only(Retry::new()))),
    ];
    for middleware in rows {
        let text = format!("{middleware:?}");
        assert_eq!(logged_below(middleware).await, [""; 0], "{text}");
    }
}

// M13
#[tokio::test]
async fn a_run_without_a_key_below_a_job_is_warned_of_once_with_the_line_to_write() {
    let tree = Emitter::new();
    let fetch = Arc::new(instance(&tree, "Tool", "fetch", |(): (), _: RunContext| async { Ok(()) }));
    let job = instance(&tree, "Job", "import", move |(): (), _: RunContext| {
        let fetch = Arc::clone(&fetch);
        async move {
            fetch.run(()).await?;
            fetch.run(()).await
        }
    });
    let lines = logged(job.run(()).middleware(Durable::new(&MemoryStore::new(), "import-7"))).await;
    let [line] = &*lines else { panic!("{lines:?}") };
    assert!(["Tool[fetch]", "`import-7`", ".key(", ".idempotent()"].iter().all(|part| line.contains(part)), "{line}");
}

// M13
#[tokio::test]
async fn a_run_below_a_job_is_not_warned_of_if_it_is_stored_repeatable_part_of_a_step_or_only_starts_runs() {
    let tree = Emitter::new();
    let leaf = Arc::new(instance(&tree, "Tool", "leaf", |(): (), _: RunContext| async { Ok(()) }));
    let inner = Arc::clone(&leaf);
    let step = Arc::new(instance(&tree, "Tool", "step", move |(): (), _: RunContext| {
        let inner = Arc::clone(&inner);
        async move { inner.run(()).await }
    }));
    let starts = Arc::clone(&leaf);
    let group = Arc::new(instance(&tree, "Tool", "group", move |(): (), _: RunContext| {
        let starts = Arc::clone(&starts);
        async move { starts.run(()).key("leaf in a group").await }
    }));
    let inner_job = Durable::new(&MemoryStore::new(), "inner");
    let job = instance(&tree, "Job", "import", move |(): (), _: RunContext| {
        let (leaf, step, group, inner_job) =
            (Arc::clone(&leaf), Arc::clone(&step), Arc::clone(&group), inner_job.clone());
        async move {
            leaf.run(()).key("leaf").await?;
            leaf.run(()).idempotent().await?;
            step.run(()).key("step").await?;
            group.run(()).await?;
            leaf.run(()).middleware(inner_job).await
        }
    });
    let run = job.run(()).middleware(Durable::new(&MemoryStore::new(), "import-8"));
    assert_eq!(logged(run).await, [""; 0]);
    // Outside a job, no run needs a key.
    assert_eq!(logged(fails("plain", Error::denied("x", "y")).run(())).await, [""; 0]);
}

#[tokio::test]
async fn a_cache_over_a_runnable_that_is_made_anew_for_each_call_is_warned_of_once_after_32_instances() -> TestResult {
    let tree = Emitter::new();
    let anew = || instance(&tree, "Tool", "anew", |n: u32, _: RunContext| async move { Ok(n) });
    let calls = |cache: Cache, times: u32| async move {
        for _ in 0..times {
            anew().run(1).middleware(cache.clone()).await.expect("fine");
        }
    };
    let cache = Cache::json().build()?;
    assert_eq!(logged(calls(cache.clone(), 31)).await, [""; 0]);
    let lines = logged(calls(cache, 40)).await;
    let [line] = &*lines else { panic!("{lines:?}") };
    assert!(["32", "Tool[anew]", "Cache::json().by_name()"].iter().all(|part| line.contains(part)), "{line}");
    assert_eq!(logged(calls(Cache::json().by_name().build()?, 40)).await, [""; 0]);
    assert_eq!(logged(calls(Cache::json().scope("all").build()?, 40)).await, [""; 0]);
    Ok(())
}

#[tokio::test]
async fn a_cache_is_not_warned_of_if_an_instance_of_the_name_had_a_hit_or_all_misses_are_of_few_instances() -> TestResult
{
    let tree = Emitter::new();
    let make = |name| instance(&tree, "Tool", name, |n: u32, _: RunContext| async move { Ok(n) });
    let cache = Cache::json().build()?;
    let run = async {
        let few = [make("few"), make("few")];
        for n in 0..40 {
            few[0].run(n).middleware(cache.clone()).await?;
            few[1].run(n).middleware(cache.clone()).await?;
            // Each instance answers its second run from the cache.
            let hits = make("hits");
            hits.run(1).middleware(cache.clone()).await?;
            hits.run(1).middleware(cache.clone()).await?;
        }
        Ok::<(), Error>(())
    };
    assert_eq!(logged(run).await, [""; 0]);
    Ok(())
}
