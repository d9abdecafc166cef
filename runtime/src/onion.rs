//! Layers around work, erased to what goes in and what comes out: the one place where their types are.

use std::fmt;
use std::future::Future;
use std::marker::PhantomData;
use std::mem::replace;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use futures_core::future::BoxFuture;
use tracing::{Instrument, Level, level_enabled};

use crate::nesting::{LayerId, Nesting, Warned};
use crate::noted::{Frame, Noted};
use crate::panic::{caught, discard};
use crate::traced::is_traced;
use crate::{Error, Layer, Next, Op, Phase, Result, RunContext, Summary};

/// A layer of any kind of work that takes an `I` and gives an `O`.
pub(crate) trait DynLayer<I, O>: Send + Sync {
    fn call<'a>(
        &'a self,
        phase: Phase,
        input: &'a I,
        ctx: &'a RunContext,
        next: RawNext<'a, I, O>,
    ) -> BoxFuture<'a, Result<O>>;
    fn name(&self) -> &str;
    fn summary(&self) -> Summary;
    /// Of a layer that is adapted, that one's.
    fn id(&self) -> LayerId;
    fn warned(&self) -> &Warned;
    fn warning(&self, nesting: &Nesting<'_>) -> Option<String>;
}

/// What layers are laid around; called as often as they like.
pub(crate) trait Work<I, O>: Send + Sync {
    fn call<'a>(&'a self, input: &'a I, ctx: &'a RunContext) -> BoxFuture<'a, Result<O>>;

    /// Whether it only gives what was set at `start`.
    fn is_answered(&self) -> bool {
        false
    }

    /// Whether layers see all of the values, and no JSON that leaves something out.
    fn is_exact(&self) -> bool {
        true
    }
}

struct Erased<L, O> {
    layer: L,
    warned: Warned,
    of: PhantomData<fn() -> O>,
}

impl<O: Op, L: Layer<O>> DynLayer<O::In, O::Out> for Erased<L, O> {
    fn call<'a>(
        &'a self,
        phase: Phase,
        input: &'a O::In,
        ctx: &'a RunContext,
        next: RawNext<'a, O::In, O::Out>,
    ) -> BoxFuture<'a, Result<O::Out>> {
        let call = self.layer.call(input, ctx, Next::new(next));
        // Mostly nobody wants to know: that is seen without making a span.
        if !level_enabled!(Level::DEBUG) || !is_traced() {
            return Box::pin(call);
        }
        let span = tracing::debug_span!("layer", name = self.layer.name(), phase = phase.as_str());
        if span.is_disabled() { Box::pin(call) } else { Box::pin(call.instrument(span)) }
    }

    fn name(&self) -> &str {
        self.layer.name()
    }

    fn summary(&self) -> Summary {
        self.layer.debug_summary()
    }

    fn id(&self) -> LayerId {
        LayerId::of(self)
    }

    fn warned(&self) -> &Warned {
        &self.warned
    }

    fn warning(&self, nesting: &Nesting<'_>) -> Option<String> {
        self.layer.nesting_warning(nesting)
    }
}

/// A layer and its phase.
pub(crate) struct Entry<I, O> {
    pub(crate) phase: Phase,
    /// Inside of all others of its phase, whenever those were registered.
    pub(crate) is_innermost: bool,
    pub(crate) layer: Arc<dyn DynLayer<I, O>>,
}

impl<I, O> Entry<I, O> {
    pub(crate) fn new<K: Op<In = I, Out = O>>(phase: Phase, layer: impl Layer<K>) -> Self {
        let erased = Erased { layer, warned: Warned::default(), of: PhantomData::<fn() -> K> };
        Self { phase, is_innermost: false, layer: Arc::new(erased) }
    }

    /// Where it stands among others (M2).
    pub(crate) const fn place(&self) -> (Phase, bool) {
        (self.phase, self.is_innermost)
    }
}

impl<I, O> Clone for Entry<I, O> {
    fn clone(&self) -> Self {
        Self { phase: self.phase, is_innermost: self.is_innermost, layer: Arc::clone(&self.layer) }
    }
}

impl<I, O> fmt::Debug for Entry<I, O> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.phase.as_str(), self.layer.name())
    }
}

/// Calls work through layers, outermost first.
pub(crate) async fn call<I, O>(
    layers: &[Entry<I, O>],
    work: &dyn Work<I, O>,
    input: &I,
    ctx: &RunContext,
) -> Result<O> {
    Call { layers, work, ctx, noted: &Noted::default(), frame: Frame::OUTSIDE }.next().run(input).await
}

/// One call through layers: what is the same for all of them.
pub(crate) struct Call<'a, I, O> {
    layers: &'a [Entry<I, O>],
    work: &'a dyn Work<I, O>,
    ctx: &'a RunContext,
    noted: &'a Noted,
    /// Who calls the first layer: another layer, where this is called in one.
    frame: Frame,
}

impl<I, O> Call<'_, I, O> {
    pub(crate) const fn next(&self) -> RawNext<'_, I, O> {
        RawNext { call: self, passed: 0, frame: self.frame }
    }
}

/// What is inside of a layer. Every layer's future holds one: it is small.
pub(crate) struct RawNext<'a, I, O> {
    call: &'a Call<'a, I, O>,
    /// How many of the call's layers are outside of it.
    passed: usize,
    /// The layer that it was given to.
    frame: Frame,
}

impl<I, O> Clone for RawNext<'_, I, O> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<I, O> Copy for RawNext<'_, I, O> {}

impl<'a, I, O> RawNext<'a, I, O> {
    pub(crate) const fn run(self, input: &'a I) -> Running<'a, I, O> {
        Running { next: self, input, called: Called::Due }
    }

    /// Calls the first layer that is inside, which is the frame, or the work.
    fn begin(self, input: &'a I, frame: Frame) -> BoxFuture<'a, Result<O>> {
        let Self { call, passed, .. } = self;
        match call.layers.get(passed) {
            None => call.work.call(input, call.ctx),
            Some(first) => first.layer.call(first.phase, input, call.ctx, Self { call, passed: passed + 1, frame }),
        }
    }

    pub(crate) fn is_answered(self) -> bool {
        self.call.work.is_answered()
    }

    pub(crate) fn is_exact(self) -> bool {
        self.call.work.is_exact()
    }

    pub(crate) fn absorb(self, error: &Error) {
        self.call.noted.absorb(self.frame, error);
    }

    /// A call at the same place, of work of other types.
    pub(crate) const fn around<'b, J, P>(self, work: &'b dyn Work<J, P>) -> Call<'b, J, P>
    where
        'a: 'b,
    {
        Call { layers: &[], work, ctx: self.call.ctx, noted: self.call.noted, frame: self.frame }
    }
}

/// What is inside, called at the first poll.
///
/// Written by hand, because every layer's future holds one: an async function would hold all of this twice.
#[must_use = "nothing is called before it is polled"]
pub(crate) struct Running<'a, I, O> {
    next: RawNext<'a, I, O>,
    input: &'a I,
    called: Called<'a, O>,
}

enum Called<'a, O> {
    Due,
    Inside(BoxFuture<'a, Result<O>>, Frame),
    Over,
}

impl<I, O> Running<'_, I, O> {
    fn poll_inside(&mut self, cx: &mut Context<'_>) -> Poll<Result<O>> {
        if let Called::Due = self.called {
            let frame = Frame::new();
            self.called = Called::Inside(self.next.begin(self.input, frame), frame);
        }
        match &mut self.called {
            Called::Inside(inside, _) => inside.as_mut().poll(cx),
            Called::Due | Called::Over => {
                Poll::Ready(Err(Error::new("what is inside was polled again after it had returned")))
            }
        }
    }

    /// Drops what is inside, and takes over what that has noted: nothing of it is lost with the future.
    fn leave(&mut self) -> Option<Frame> {
        let Called::Inside(inside, frame) = replace(&mut self.called, Called::Over) else { return None };
        discard(inside);
        Some(frame)
    }
}

impl<I, O> Future for Running<'_, I, O> {
    type Output = Result<O>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Result<O>> {
        let RawNext { call: Call { noted, .. }, frame: outside, .. } = self.next;
        if let Called::Due = self.called
            && let Some(error) = noted.pending(outside)
        {
            self.called = Called::Over;
            return Poll::Ready(Err(error));
        }
        // What is outside gets a panic as an error, and may call again.
        let polled = caught(|| self.poll_inside(cx)).unwrap_or_else(|panic| Poll::Ready(Err(panic)));
        polled.map(|result| match self.leave() {
            Some(inside) => noted.settle(inside, outside, result),
            None => result,
        })
    }
}

/// What was noted inside counts although nobody waits for it any more (M9).
impl<I, O> Drop for Running<'_, I, O> {
    fn drop(&mut self) {
        if let Some(inside) = self.leave() {
            self.next.call.noted.pass_on(inside, self.next.frame);
        }
    }
}
