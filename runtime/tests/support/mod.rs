//! Helpers for the integration tests: a recorder, runnables, and listeners that fail or panic.
#![allow(dead_code, reason = "each test file uses its own part of this")]

use std::future::Future;
use std::pin::Pin;
use std::sync::{Arc, Mutex, Once};
use std::task::{Context as TaskContext, Poll, Waker};

use emitree_emitter::{BoxError, Emitter, EventMeta, IntoMatcher, Options, Registration};
use emitree_runtime::{AsInstance, Data, LifecycleRef, Result, RunContext, Runnable, RunnableFn, runnable_fn};
use tokio::sync::Semaphore;

pub(crate) mod ends;
pub(crate) mod layers;
pub(crate) mod pace;
#[path = "../../../tests/support/recorder.rs"]
mod recorder;
pub(crate) use recorder::{Any, Recorder};

pub(crate) type TestResult = std::result::Result<(), BoxError>;

impl Recorder {
    /// Returns a listener for `observe` that records paths.
    pub(crate) fn paths(&self) -> impl Fn(&Any, &EventMeta<'_>) + Send + Sync + 'static {
        let recorder = self.clone();
        move |_, meta| recorder.note(meta.path())
    }

    /// Returns a listener for `on` that records paths.
    pub(crate) fn changes(&self) -> impl Fn(&mut Any, &EventMeta<'_>) + Send + Sync + 'static {
        let recorder = self.clone();
        move |_, meta| recorder.note(meta.path())
    }

    /// Records the path of every event that reaches an emitter.
    pub(crate) fn watch(&self, emitter: &Emitter) {
        emitter.observe("*.*", self.paths()).expect("a valid matcher");
    }

    /// Records the path of every event that reaches an emitter, with a label.
    pub(crate) fn watch_as(&self, label: &str, emitter: &Emitter) {
        emitter.observe("*.*", self.sees(label)).expect("a valid matcher");
    }
}

/// Returns a runnable with its own namespace below an emitter.
pub(crate) fn below<F, Fut, I, O>(parent: &Emitter, namespace: &str, f: F) -> RunnableFn<F, I, O>
where
    F: Fn(I, RunContext) -> Fut + Send + Sync,
    Fut: Future<Output = Result<O>> + Send,
    I: Data + Clone,
    O: Data,
{
    runnable_fn(namespace.to_owned(), f).with_emitter(parent.child(namespace).expect("a valid name"))
}

/// Returns the emitter of an instance.
pub(crate) fn emitter_of(instance: &impl AsInstance) -> &Emitter {
    instance.instance_emitter()
}

/// Returns the id of the current run.
pub(crate) fn current_id() -> Option<String> {
    RunContext::current().map(|run| run.run_id().to_string())
}

/// A value whose drop calls a function.
pub(crate) struct AtDrop<F: FnMut()>(pub(crate) F);

impl<F: FnMut()> Drop for AtDrop<F> {
    fn drop(&mut self) {
        (self.0)();
    }
}

/// The behavior of a listener.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Manner {
    Fine,
    Fails,
    Panics,
}

impl Manner {
    pub(crate) fn act(self) -> TestResult {
        match self {
            Self::Fine => Ok(()),
            Self::Fails => Err("a planned failure".into()),
            Self::Panics => panic!("a planned panic"),
        }
    }
}

/// The method with which a listener is registered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Verb {
    On,
    OnAsync,
    Observe,
    ObserveAsync,
}

impl Verb {
    /// Returns `true` if a failing listener that was registered with this method makes the emit fail.
    pub(crate) const fn may_fail(self) -> bool {
        matches!(self, Self::On | Self::OnAsync)
    }

    /// Returns a listener with the behavior `manner`. Async listeners yield first.
    pub(crate) fn registration(self, options: Options, matcher: impl IntoMatcher, manner: Manner) -> Registration {
        match self {
            Self::On => options.on(matcher, move |_: &mut Any, _| manner.act()),
            Self::OnAsync => options.on_async(matcher, move |_: &mut Any, _| Box::pin(slowly(manner))),
            Self::Observe => options.observe(matcher, move |_: &Any, _| manner.act()),
            Self::ObserveAsync => options.observe_async(matcher, move |_: &Any, _| Box::pin(slowly(manner))),
        }
    }
}

async fn slowly(manner: Manner) -> TestResult {
    tokio::task::yield_now().await;
    manner.act()
}

/// Keeps the planned panics of a test out of its output; other panics are printed as usual.
pub(crate) fn silence_planned_panics() {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        let print = std::panic::take_hook();
        std::panic::set_hook(Box::new(move |panic| {
            let planned = panic.payload_as_str().is_some_and(|text| text.contains("planned"));
            if !planned {
                print(panic);
            }
        }));
    });
}

impl Recorder {
    /// Records the path of every event, and for `finish` the status of the run.
    pub(crate) fn ends(&self, emitter: &Emitter) {
        let notes = self.clone();
        let note = move |event: &Any, meta: &EventMeta<'_>| match LifecycleRef::of(event, meta) {
            Some(LifecycleRef::Finish(finish)) => notes.note(format!("{} {}", meta.path(), finish.status().as_str())),
            _ => notes.note(meta.path()),
        };
        emitter.observe("*.*", note).expect("a valid matcher");
    }
}

/// A value that records its drop.
pub(crate) struct Noted(pub(crate) Recorder, pub(crate) &'static str);

impl Drop for Noted {
    fn drop(&mut self) {
        self.0.note(self.1);
    }
}

/// A gate that lets one task through each time it is opened.
#[derive(Clone)]
pub(crate) struct Gate(Arc<Semaphore>);

impl Gate {
    pub(crate) fn new() -> Self {
        Self(Arc::new(Semaphore::new(0)))
    }

    pub(crate) fn open(&self) {
        self.0.add_permits(1);
    }

    pub(crate) async fn pass(&self) {
        self.0.acquire().await.expect("nobody closes it").forget();
    }
}

/// A slot in which one task or thread leaves a value for another.
pub(crate) struct Slot<T>(Arc<Mutex<Option<T>>>);

impl<T> Slot<T> {
    pub(crate) fn new() -> Self {
        Self(Arc::default())
    }

    pub(crate) fn with(value: T) -> Self {
        let slot = Self::new();
        slot.put(value);
        slot
    }

    pub(crate) fn put(&self, value: T) {
        *self.0.lock().expect("nobody panics here") = Some(value);
    }

    pub(crate) fn take(&self) -> T {
        self.0.lock().expect("nobody panics here").take().expect("somebody has left it")
    }
}

impl<T> Clone for Slot<T> {
    fn clone(&self) -> Self {
        Self(Arc::clone(&self.0))
    }
}

/// Polls a future once, with a waker that does nothing.
pub(crate) fn poll_once<F: Future + Unpin>(future: &mut F) -> Poll<F::Output> {
    Pin::new(future).poll(&mut TaskContext::from_waker(Waker::noop()))
}

/// Returns a runnable whose work records its beginning, waits forever, and records its drop.
pub(crate) fn endless(
    parent: &Emitter,
    namespace: &'static str,
    recorder: &Recorder,
) -> impl Runnable<Input = (), Output = ()> + use<> {
    let recorder = recorder.clone();
    below(parent, namespace, move |(), _: RunContext| {
        let recorder = recorder.clone();
        async move {
            recorder.note("works");
            let _noted = Noted(recorder, "dropped");
            std::future::pending::<Result<()>>().await
        }
    })
}
