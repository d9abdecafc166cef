//! The limits of `docs/limits.md` that no other test checks.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, mpsc};
use std::thread;
use std::time::Duration;

use emitree::abort::AbortHandle;
use emitree::emitter::BoxError;
use emitree::lifecycle::Stage;
use emitree::{AnyEvent, Emitter, Error, Options, Result, RunContext, Runnable, for_nested, runnable_fn};
use tokio::task::{spawn_blocking, yield_now};

#[tokio::test]
async fn work_that_blocks_past_its_timeout_and_then_returns_succeeds() -> Result<()> {
    let blocks = runnable_fn("blocks", |(): (), _: RunContext| async {
        thread::sleep(Duration::from_millis(20));
        Ok(7)
    });
    assert_eq!(blocks.run(()).timeout(Duration::from_millis(1)).await?, 7);
    Ok(())
}

#[tokio::test]
async fn an_abort_does_not_stop_a_blocking_closure() {
    let (started, has_started) = tokio::sync::oneshot::channel();
    let (go_on, waits) = mpsc::channel::<()>();
    let (done, is_done) = mpsc::channel();
    let closure = move || {
        started.send(()).expect("the test waits for it");
        waits.recv().expect("the test lets it go on");
        done.send("done").expect("the test waits for it");
    };
    let closure = Mutex::new(Some(closure));
    let work = runnable_fn("work", move |(): (), _: RunContext| {
        let closure = closure.lock().expect("no panic").take().expect("one run");
        async move { Ok(spawn_blocking(closure).await?) }
    });
    let handle = AbortHandle::new();
    let run = async { work.run(()).abort_on(&handle).await };
    let aborts = async {
        has_started.await.expect("it starts");
        handle.abort("enough");
    };
    let (result, ()) = tokio::join!(run, aborts);
    assert!(result.unwrap_err().is_aborted());
    go_on.send(()).expect("the closure is alive");
    assert_eq!(is_done.recv(), Ok("done"));
}

/// A value that holds the context of its run.
#[expect(dead_code, reason = "the first field keeps the run's values alive, and the second is counted")]
struct Holds(RunContext, Arc<()>);

#[tokio::test]
async fn an_extension_that_holds_its_own_run_is_kept_and_a_listener_that_does_so_is_dropped() -> Result<()> {
    let (in_extension, in_listener) = (Arc::new(()), Arc::new(()));
    let (extension, listener) = (Arc::clone(&in_extension), Arc::clone(&in_listener));
    let work = runnable_fn("work", move |(): (), ctx: RunContext| {
        let (extension, listener) = (Holds(ctx.clone(), extension.clone()), Holds(ctx.clone(), listener.clone()));
        async move {
            ctx.set_extension(extension);
            ctx.emitter().on("never", move |_: &mut u32, _| _ = &listener)?;
            Ok(())
        }
    });
    work.run(()).await?;
    drop(work);
    assert_eq!((Arc::strong_count(&in_extension), Arc::strong_count(&in_listener)), (2, 1));
    Ok(())
}

#[tokio::test]
async fn a_run_in_a_bare_task_has_no_parent_and_no_guard() -> Result<()> {
    let tree = Emitter::new();
    let child = runnable_fn("child", |(): (), ctx: RunContext| async move { Ok(ctx.parent().is_some()) });
    let child = Arc::new(child.with_emitter(tree.child("child")?));
    let parent = runnable_fn("parent", move |(): (), _: RunContext| {
        let child = Arc::clone(&child);
        async move {
            let nested = child.run(()).await.is_err_and(|error| error.is_denied());
            let bare = tokio::spawn(async move { child.run(()).await }).await??;
            Ok((nested, bare))
        }
    });
    let deny = |ctx: &RunContext| {
        ctx.emitter()
            .on("**.run.start", |_: &mut dyn AnyEvent, _| Err(BoxError::from(Error::denied("guard", "no"))))?;
        Ok(())
    };
    let nested_starts = Arc::new(AtomicUsize::new(0));
    let counted = Arc::clone(&nested_starts);
    let run = parent.run(()).middleware(for_nested(deny)).register(Options::new().nested(true).observe(
        "child.run.start",
        move |_: &dyn AnyEvent, _| {
            counted.fetch_add(1, Ordering::Relaxed);
        },
    ));
    assert_eq!(run.await?, (true, false), "the nested run is denied, the other one has no parent");
    assert_eq!(nested_starts.load(Ordering::Relaxed), 1, "the other one is not received");
    Ok(())
}

#[tokio::test]
async fn an_abort_does_not_cancel_a_running_listener() {
    let handle = AbortHandle::new();
    let aborts = handle.clone();
    let echo = runnable_fn("echo", |n: u32, _: RunContext| async move { Ok(n) });
    let (seen, sees) = mpsc::channel();
    let run = echo.run(1).abort_on(&handle).on_async(Stage::Start, move |_: &mut dyn AnyEvent, _| {
        let (seen, aborts) = (seen.clone(), aborts.clone());
        Box::pin(async move {
            aborts.abort("enough");
            yield_now().await;
            seen.send("the listener went on")?;
            Ok(())
        })
    });
    assert!(run.await.unwrap_err().is_aborted());
    // `try_recv` does not wait: the listener finished before the run ended.
    assert_eq!(sees.try_recv(), Ok("the listener went on"));
}
