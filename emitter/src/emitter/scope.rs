//! Scopes let a runtime find, inside a listener, the run that the event belongs to (R9).
//!
//! The dispatch enters the scope around listeners. Pipes, listeners and futures enter it when they are dropped.

use std::pin::Pin;
use std::sync::{Arc, Weak};
use std::task::{Context as TaskContext, Poll};

use pin_project_lite::pin_project;
use serde_json::Value;

use crate::Emitter;
use crate::emitter::Node;
use crate::panic::logged;

/// A scope that is entered around the listeners of a run's events. It is entered whenever the dispatch calls listeners
/// or polls their futures, unless the calling code is already inside the scope.
///
/// A runtime implements this trait, so that `RunContext::current()` returns the run in every listener, no matter on
/// which emitter the listener is registered.
pub trait Scope: Send + Sync {
    /// Calls `f` exactly once, inside the scope.
    fn within(self: Arc<Self>, f: &mut dyn FnMut());

    /// Returns `false` if the scope does not keep its run alive, and the run is gone. In that case, the scope of the
    /// next run above is entered.
    fn is_there(&self) -> bool {
        true
    }

    /// Returns the value to store under a key of the run's context, when code sets the key to `value`. By default,
    /// returns `value` unchanged.
    fn admit(self: Arc<Self>, key: &str, value: Value) -> Value {
        _ = key;
        value
    }
}

/// Calls `f`, inside a run's scope if there is one.
#[inline]
pub(crate) fn within<R>(scope: Option<Arc<dyn Scope>>, mut f: impl FnMut() -> R) -> R {
    let Some(scope) = scope else { return f() };
    let mut result = None;
    scope.within(&mut || result = Some(f()));
    // If the scope broke its contract and did not call `f`, call `f` without the scope.
    result.unwrap_or_else(f)
}

/// Drops a value of a run inside the run's scope (R14). A panic inside the scope is discarded, for example the panic of
/// a `tracing` subscriber that receives the run's span.
pub(crate) fn drop_within(scope: Option<Arc<dyn Scope>>, mut drop: impl FnMut()) {
    match scope {
        Some(scope) => logged(|| scope.within(&mut drop)),
        None => drop(),
    }
}

/// Calls `drop` inside the scope of the run that `home` is in. Listeners and pipes are dropped this way.
pub(crate) fn drop_in_run_of(home: &Weak<Node>, drop: impl FnMut()) {
    let home = home.upgrade().map(Emitter::from);
    drop_within(home.as_ref().and_then(Emitter::nearest_scope), drop);
}

/// Wraps a future. If `source` is in a run, the future is polled and dropped inside the scope of that run.
pub(crate) fn within_run_of<F: Future>(source: &Emitter, future: F) -> Within<'_, F> {
    Within { source, _kept: source.scope(), future: Some(future) }
}

pin_project! {
    /// A future that is polled and dropped inside a run, because it contains the futures and errors of listeners.
    pub(crate) struct Within<'e, F> {
        source: &'e Emitter,
        // Most scopes keep their run alive, so this field keeps the run alive until the emit ends.
        _kept: Option<Arc<dyn Scope>>,
        // `None` once the future has finished or was dropped.
        #[pin]
        future: Option<F>,
    }

    impl<F> PinnedDrop for Within<'_, F> {
        fn drop(this: Pin<&mut Self>) {
            if this.future.is_some() {
                this.drop_in_run();
            }
        }
    }
}

impl<F> Within<'_, F> {
    /// Drops an unfinished future inside the run. Never inlined, so that it stays out of the code of every emit.
    #[cold]
    #[inline(never)]
    fn drop_in_run(self: Pin<&mut Self>) {
        let mut this = self.project();
        drop_within(this.source.nearest_scope(), || this.future.set(None));
    }
}

impl<F: Future> Future for Within<'_, F> {
    type Output = F::Output;

    #[inline(never)]
    fn poll(self: Pin<&mut Self>, cx: &mut TaskContext<'_>) -> Poll<F::Output> {
        let mut this = self.project();
        within(this.source.nearest_scope(), || {
            let Some(future) = this.future.as_mut().as_pin_mut() else { return Poll::Pending };
            let polled = future.poll(cx);
            if polled.is_ready() {
                this.future.set(None);
            }
            polled
        })
    }
}
