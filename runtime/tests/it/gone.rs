//! Runs that outlive the runtime in which they began still end (R4, R7).

use std::future::{Future, pending};
use std::pin::pin;
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use crate::support::{Recorder, below};
use emitree_emitter::Emitter;
use emitree_runtime::{ErrorKind, Result, RunContext, Runnable};

#[test]
fn a_run_with_a_timeout_ends_as_panicked_after_its_runtime_was_dropped() {
    let (tree, recorder) = (Emitter::new(), Recorder::new());
    recorder.watch(&tree);
    let endless = below(&tree, "endless", |(): (), _: RunContext| pending::<Result<()>>());
    let mut run = pin!(endless.run(()).timeout(Duration::from_secs(1)));
    let mut cx = Context::from_waker(Waker::noop());
    let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build().expect("a runtime");
    assert!(runtime.block_on(async { run.as_mut().poll(&mut Context::from_waker(Waker::noop())) }).is_pending());
    drop(runtime);
    let Poll::Ready(Err(error)) = run.poll(&mut cx) else { panic!("the run goes on without a clock") };
    assert_eq!(error.kind(), &ErrorKind::Panicked, "{error:?}");
    recorder.expect(["endless.run.start", "endless.run.error", "endless.run.finish"]);
}
