//! How a runtime knows, in a listener, which run's event it is (R9).

use std::pin::Pin;
use std::sync::{Arc, Weak};
use std::task::{Context as TaskContext, Poll};

use pin_project_lite::pin_project;
use serde_json::Value;

use crate::Emitter;
use crate::emitter::Node;
use crate::panic::log_catching;

/// Something that is entered around every call of a listener of a run's events, and around every poll of one.
///
/// Implemented by the runtime, whose `RunContext::current()` it makes right wherever a listener is registered.
pub trait Scope: Send + Sync {
    /// Calls `f` exactly once, inside.
    fn within(self: Arc<Self>, f: &mut dyn FnMut());

    /// Whether the run is still there, for a scope that does not keep it. Where it is not, the next one above is entered.
    fn is_there(&self) -> bool {
        true
    }

    /// A value is about to be set on the context of the run's emitter: gives what is set. By default what was given.
    fn admit(self: Arc<Self>, key: &str, value: Value) -> Value {
        _ = key;
        value
    }
}

/// Calls inside a run's scope, where there is one.
#[inline]
pub(crate) fn within<R>(scope: Option<Arc<dyn Scope>>, mut f: impl FnMut() -> R) -> R {
    let Some(scope) = scope else { return f() };
    let mut result = None;
    scope.within(&mut || result = Some(f()));
    result.unwrap_or_else(f)
}

/// Drops something of a run inside of it (R14). A panic is logged, also one of whoever is told of the run's span.
pub(crate) fn drop_within(scope: Option<Arc<dyn Scope>>, mut drop: impl FnMut()) {
    match scope {
        Some(scope) => log_catching(|| scope.within(&mut drop)),
        None => drop(),
    }
}

/// Drops what was registered on an emitter inside of the run that the emitter is of or in, whoever does it.
pub(crate) fn drop_at(home: &Weak<Node>, drop: impl FnMut()) {
    let home = home.upgrade().map(Emitter::from);
    drop_within(home.as_ref().and_then(Emitter::scope_left), drop);
}

/// Awaits inside the scope of an emitter's run, where it is one's.
pub(crate) fn within_run_of<F: Future>(source: &Emitter, future: F) -> Within<'_, F> {
    Within { source, _kept: source.scope(), future: Some(future) }
}

pin_project! {
    /// A future that is polled and dropped inside of a run: it has futures of listeners, and what these failed with.
    pub(crate) struct Within<'e, F> {
        source: &'e Emitter,
        // Most scopes keep their run.
        _kept: Option<Arc<dyn Scope>>,
        // Until it is over, or dropped.
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
    /// Drops what is not over. Out of line: the future of every emit that may be heard has this in it.
    #[cold]
    #[inline(never)]
    fn drop_in_run(self: Pin<&mut Self>) {
        let mut this = self.project();
        drop_within(this.source.scope_left(), || this.future.set(None));
    }
}

impl<F: Future> Future for Within<'_, F> {
    type Output = F::Output;

    #[inline(never)]
    fn poll(self: Pin<&mut Self>, cx: &mut TaskContext<'_>) -> Poll<F::Output> {
        let mut this = self.project();
        within(this.source.scope_left(), || {
            let Some(future) = this.future.as_mut().as_pin_mut() else { return Poll::Pending };
            let polled = future.poll(cx);
            if polled.is_ready() {
                this.future.set(None);
            }
            polled
        })
    }
}
