//! Programs that compile and silently do something else than their author meant: one warning for each instance names the
//! run and the line to write.

#[path = "../../tests/support/journal.rs"]
mod journal;
mod support;

use std::io;
use std::sync::Arc;

use emitree_emitter::Emitter;
use emitree_middleware::store::MemoryStore;
use emitree_middleware::{Durable, Retry};
use emitree_runtime::{Error, RunContext, Runnable};
use journal::Journal;
use support::instance;

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
