//! A shutdown of the process releases the claims of its jobs (S9). It ends all runs of a process, so it has a file of
//! its own.

use std::future::pending;
use std::sync::Arc;
use std::time::Duration;

use emitree_middleware::Durable;
use emitree_middleware::store::{EntryStatus, MemoryStore, Store};
use emitree_runtime::{Result, RunContext, Runnable, runnable_fn, shutdown};
use tokio::sync::Notify;

#[tokio::test]
async fn a_shutdown_waits_until_jobs_are_stored_as_paused_and_their_claims_are_released() {
    let (store, began) = (MemoryStore::new(), Arc::new(Notify::new()));
    let job = Arc::new(runnable_fn("job", {
        let began = Arc::clone(&began);
        move |(): (), _: RunContext| {
            began.notify_one();
            pending::<Result<()>>()
        }
    }));
    let run = tokio::spawn(job.run_shared(()).middleware(Durable::new(&store, "import-7")));
    began.notified().await;
    assert!(store.load("import-7").await.expect("a store").expect("an entry").head.holder.is_some());

    let report = shutdown(Duration::from_secs(5)).await;
    assert!(report.is_complete(), "{report}");
    let head = store.load("import-7").await.expect("a store").expect("an entry").head;
    assert_eq!((head.status, head.holder), (EntryStatus::Paused, None));
    assert!(run.await.expect("no panic").expect_err("aborted").is_aborted());
}
