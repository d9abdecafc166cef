//! Helpers that the integration tests share: a recorder, and functions that emit and poll.
#![allow(dead_code, reason = "each test file uses its own part of this")]
#![allow(clippy::needless_pass_by_value, reason = "a label is a literal, a number or formatted text")]

use std::future::Future;
use std::pin::pin;
use std::sync::Arc;
use std::task::{Context, Poll, Wake, Waker};
use std::thread::{self, Thread};

use emitree_emitter::rt::RunLinks;
use emitree_emitter::{BoxError, Emitter, EventMeta};
use futures_core::future::BoxFuture;

#[path = "../../../tests/support/recorder.rs"]
mod recorder;
pub(crate) use recorder::{Any, Recorder};

pub(crate) type TestResult = Result<(), BoxError>;

impl Recorder {
    fn heard(&self, who: &str, meta: &EventMeta<'_>) {
        self.note(format!("{who} {}", meta.path()));
    }

    /// Returns a listener for `on` that records its calls.
    pub(crate) fn hears(&self, who: impl ToString) -> impl Fn(&mut Any, &EventMeta<'_>) + Send + Sync + 'static {
        let (recorder, who) = (self.clone(), who.to_string());
        move |_, meta| recorder.heard(&who, meta)
    }

    /// Returns a listener for `on_async` that records its start, yields, and records its end.
    pub(crate) fn hears_async(
        &self,
        who: impl ToString,
    ) -> impl for<'a> Fn(&'a mut Any, &'a EventMeta<'a>) -> BoxFuture<'a, Result<(), BoxError>> + Send + Sync + 'static
    {
        let (recorder, who) = (self.clone(), who.to_string());
        move |_, meta| Box::pin(recorder.clone().slowly(who.clone(), meta))
    }

    /// Returns an observer for `observe_async` that records its start, yields, and records its end.
    pub(crate) fn sees_async(
        &self,
        who: impl ToString,
    ) -> impl for<'a> Fn(&'a Any, &'a EventMeta<'a>) -> BoxFuture<'a, Result<(), BoxError>> + Send + Sync + 'static
    {
        let (recorder, who) = (self.clone(), who.to_string());
        move |_, meta| Box::pin(recorder.clone().slowly(who.clone(), meta))
    }

    async fn slowly(self, who: String, meta: &EventMeta<'_>) -> Result<(), BoxError> {
        self.heard(&who, meta);
        yield_once().await;
        self.note(format!("{who} done"));
        Ok(())
    }
}

/// Yields once: the future wakes its own task, and is ready when it is polled again.
pub(crate) async fn yield_once() {
    let mut yielded = false;
    std::future::poll_fn(|cx| {
        cx.waker().wake_by_ref();
        if std::mem::replace(&mut yielded, true) { Poll::Ready(()) } else { Poll::Pending }
    })
    .await;
}

/// Polls a future until it is ready.
pub(crate) fn block_on<F: Future>(future: F) -> F::Output {
    struct Unpark(Thread);
    impl Wake for Unpark {
        fn wake(self: Arc<Self>) {
            self.0.unpark();
        }
    }
    let waker = Waker::from(Arc::new(Unpark(thread::current())));
    let (mut future, mut cx) = (pin!(future), Context::from_waker(&waker));
    loop {
        match future.as_mut().poll(&mut cx) {
            Poll::Ready(output) => return output,
            Poll::Pending => thread::park(),
        }
    }
}

/// Emits an event with the payload `()`, and panics if a listener fails.
#[track_caller]
pub(crate) fn emit(emitter: &Emitter, name: &str) {
    block_on(emitter.emit(name, &mut ())).expect("no listener fails");
}

/// Returns the emitter of a new run of an instance. The run is started outside any other run.
pub(crate) fn run_of(instance: &Emitter) -> Emitter {
    instance.for_run(RunLinks::new())
}

/// Returns the emitter of a new run of an instance. The run is started in the run `parent`.
pub(crate) fn run_within(instance: &Emitter, parent: &Emitter) -> Emitter {
    instance.for_run(RunLinks::new().parent(parent))
}
