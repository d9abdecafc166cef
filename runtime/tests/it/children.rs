//! The children of a run, and waiting for the end of a run.

use std::future::{Future, pending};
use std::pin::{Pin, pin};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::task::{Context, Wake, Waker};

use crate::support::{Gate, TestResult, poll_once};
use emitree_runtime::{Failure, Result, RunContext, Runnable, runnable_fn};
use tokio::task::yield_now;

/// A waker that keeps that it was woken.
#[derive(Default)]
struct Woken(AtomicBool);

impl Wake for Woken {
    fn wake(self: Arc<Self>) {
        self.0.store(true, Ordering::Relaxed);
    }
}

fn waits() -> impl Runnable<Input = (), Output = ()> {
    runnable_fn("waits", |(): (), _: RunContext| pending::<Result<()>>())
}

#[tokio::test]
async fn the_children_of_a_run_are_the_runs_that_were_started_in_it_and_have_not_ended() -> TestResult {
    let outer = runnable_fn("outer", |(): (), ctx: RunContext| async move {
        let (ends, waits) = (runnable_fn("ends", |(): (), _: RunContext| async { Ok(()) }), waits());
        let (mut first, mut second, _not_begun) = (waits.run(()), waits.run(()), waits.run(()));
        ends.run(()).await?;
        assert!(ctx.children().is_empty());
        assert!(poll_once(&mut first).is_pending() && poll_once(&mut second).is_pending());
        let children = ctx.children();
        assert!(children.iter().all(|child| child.parent() == Some(&ctx) && child.name() == "waits"));
        drop(first);
        assert_eq!((children.len(), ctx.children().len()), (2, 1));
        drop(second);
        assert!(ctx.children().is_empty());
        Ok(())
    });
    Ok(outer.run(()).await?)
}

#[tokio::test]
async fn waiting_for_the_end_of_a_dropped_run_waits_for_the_async_listeners_of_its_last_events() -> TestResult {
    let outer = runnable_fn("outer", |(): (), ctx: RunContext| async move {
        let (waits, gate) = (waits(), Gate::new());
        let of_listener = gate.clone();
        let mut run = waits.run(()).on_async("error", move |_: &mut Failure, _| {
            let gate = of_listener.clone();
            Box::pin(async move {
                gate.pass().await;
                Ok(())
            })
        });
        assert!(poll_once(&mut run).is_pending());
        let child = ctx.children().pop().expect("it has begun");
        drop(run);
        let mut ended = pin!(child.ended());
        yield_now().await;
        assert!(poll_once(&mut ended).is_pending());
        gate.open();
        ended.await;
        assert!(child.has_ended() && ctx.children().is_empty());
        // The end is over: waiting for it again returns at once.
        assert!(poll_once(&mut pin!(child.ended())).is_ready());
        Ok(())
    });
    Ok(outer.run(()).await?)
}

// R13
#[tokio::test]
async fn code_that_waits_for_the_end_of_a_run_without_a_parent_is_woken() -> Result<()> {
    for waits in [false, true] {
        let (waiting, woken) = (Arc::new(Mutex::new(None)), Arc::new(Woken::default()));
        let (keep, waker) = (Arc::clone(&waiting), Waker::from(Arc::clone(&woken)));
        let root = runnable_fn("root", move |(): (), ctx: RunContext| {
            let (keep, waker) = (Arc::clone(&keep), waker.clone());
            async move {
                let mut ended: Pin<Box<dyn Future<Output = ()> + Send>> = Box::pin(async move { ctx.ended().await });
                assert!(ended.as_mut().poll(&mut Context::from_waker(&waker)).is_pending());
                *keep.lock().expect("no panic") = Some(ended);
                if waits {
                    yield_now().await;
                }
                Ok(())
            }
        });
        root.run(()).await?;
        assert!(woken.0.load(Ordering::Relaxed), "waits: {waits}");
        let ended = waiting.lock().expect("no panic").take();
        ended.expect("kept").await;
    }
    Ok(())
}
