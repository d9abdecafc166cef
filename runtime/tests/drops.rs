//! What panics while it is dropped is contained as any panic of what is run: the run ends all the same (R4, R8).

mod support;

use std::future::{Future, pending};
use std::pin::pin;
use std::task::{Context, Poll, Waker};

use emitree_emitter::Emitter;
use emitree_runtime::{AbortHandle, ErrorKind, Result, RunContext, Runnable, Stage};
use support::{Any, Recorder, below, silence_planned_panics};

/// Panics when it is dropped.
struct Bad;

impl Drop for Bad {
    fn drop(&mut self) {
        panic!("a planned panic");
    }
}

/// Never ends, as work or as a listener.
async fn endless<E>() -> Result<(), E> {
    let _bad = Bad;
    pending().await
}

fn tree() -> (Emitter, Recorder) {
    silence_planned_panics();
    let (tree, recorder) = (Emitter::new(), Recorder::new());
    recorder.watch(&tree);
    (tree, recorder)
}

fn poll<F: Future + Unpin>(mut run: F) -> Poll<F::Output> {
    pin!(&mut run).poll(&mut Context::from_waker(Waker::noop()))
}

const ENDED: [&str; 3] = ["bad.run.start", "bad.run.error", "bad.run.finish"];

#[test]
fn a_run_whose_work_panics_while_the_run_is_dropped_ends() {
    let (tree, recorder) = tree();
    let bad = below(&tree, "bad", |(): (), _: RunContext| endless());
    let mut run = bad.run(());
    assert!(poll(&mut run).is_pending());
    drop(run);
    recorder.expect(ENDED);
}

#[test]
fn a_run_whose_work_panics_while_it_is_aborted_ends_as_aborted() {
    let (tree, recorder) = tree();
    let (bad, handle) = (below(&tree, "bad", |(): (), _: RunContext| endless()), AbortHandle::new());
    let mut run = bad.run(()).abort_on(&handle);
    assert!(poll(&mut run).is_pending());
    handle.abort("enough");
    let Poll::Ready(Err(error)) = poll(&mut run) else { panic!("it goes on") };
    assert_eq!(error.kind(), &ErrorKind::Aborted);
    recorder.expect(ENDED);
}

#[test]
fn a_run_whose_listener_panics_while_it_is_given_up_ends() {
    let (tree, recorder) = tree();
    let good = below(&tree, "good", |(): (), _: RunContext| async { Result::Ok(()) });
    let mut run = good.run(()).observe_async(Stage::Success, |_: &Any, _| Box::pin(endless()));
    assert!(poll(&mut run).is_pending());
    // There is no runtime: what would have to be awaited is skipped.
    drop(run);
    recorder.expect(["good.run.start", "good.run.success", "good.run.finish"]);
}
