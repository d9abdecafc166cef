//! Layers around work, erased to what goes in and what comes out: the one place where their types are.

use std::fmt;
use std::future::Future;
use std::marker::PhantomData;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use futures_core::future::BoxFuture;
use tracing::{Instrument, Level, level_enabled};

use crate::noted::Noted;
use crate::panic::caught;
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
}

/// What layers are laid around; called as often as they like.
pub(crate) trait Work<I, O>: Send + Sync {
    fn call<'a>(&'a self, input: &'a I, ctx: &'a RunContext) -> BoxFuture<'a, Result<O>>;

    /// Whether it only gives what was set at `start`.
    fn is_answered(&self) -> bool {
        false
    }
}

struct Erased<L, O>(L, PhantomData<fn() -> O>);

impl<O: Op, L: Layer<O>> DynLayer<O::In, O::Out> for Erased<L, O> {
    fn call<'a>(
        &'a self,
        phase: Phase,
        input: &'a O::In,
        ctx: &'a RunContext,
        next: RawNext<'a, O::In, O::Out>,
    ) -> BoxFuture<'a, Result<O::Out>> {
        let call = self.0.call(input, ctx, Next::new(next));
        // Mostly nobody wants to know: that is seen without making a span.
        if !level_enabled!(Level::DEBUG) || !is_traced() {
            return Box::pin(call);
        }
        let span = tracing::debug_span!("layer", name = self.0.name(), phase = phase.as_str());
        if span.is_disabled() { Box::pin(call) } else { Box::pin(call.instrument(span)) }
    }

    fn name(&self) -> &str {
        self.0.name()
    }

    fn summary(&self) -> Summary {
        self.0.debug_summary()
    }
}

/// A layer and its phase.
pub(crate) struct Entry<I, O> {
    pub(crate) phase: Phase,
    pub(crate) layer: Arc<dyn DynLayer<I, O>>,
}

impl<I, O> Entry<I, O> {
    pub(crate) fn new<K: Op<In = I, Out = O>>(phase: Phase, layer: impl Layer<K>) -> Self {
        Self { phase, layer: Arc::new(Erased(layer, PhantomData::<fn() -> K>)) }
    }
}

impl<I, O> Clone for Entry<I, O> {
    fn clone(&self) -> Self {
        Self { phase: self.phase, layer: Arc::clone(&self.layer) }
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
    Call { layers, work, ctx, noted: &Noted::default(), depth: 0 }.next().run(input).await
}

/// One call through layers: what is the same for all of them.
pub(crate) struct Call<'a, I, O> {
    layers: &'a [Entry<I, O>],
    work: &'a dyn Work<I, O>,
    ctx: &'a RunContext,
    noted: &'a Noted,
    /// Of the first layer: it is not the outermost where this is called in a layer of another call.
    depth: usize,
}

impl<I, O> Call<'_, I, O> {
    pub(crate) const fn next(&self) -> RawNext<'_, I, O> {
        RawNext { call: self, passed: 0 }
    }
}

/// What is inside of a layer. Every layer's future holds one: it is small.
pub(crate) struct RawNext<'a, I, O> {
    call: &'a Call<'a, I, O>,
    /// How many of the call's layers are outside of it.
    passed: usize,
}

impl<I, O> Clone for RawNext<'_, I, O> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<I, O> Copy for RawNext<'_, I, O> {}

impl<'a, I, O> RawNext<'a, I, O> {
    pub(crate) const fn run(self, input: &'a I) -> Running<'a, I, O> {
        Running { next: self, input, called: None }
    }

    fn begin(self, input: &'a I) -> BoxFuture<'a, Result<O>> {
        let Self { call, passed } = self;
        match call.layers.get(passed) {
            None => call.work.call(input, call.ctx),
            Some(first) => first.layer.call(first.phase, input, call.ctx, Self { call, passed: passed + 1 }),
        }
    }

    pub(crate) fn is_answered(self) -> bool {
        self.call.work.is_answered()
    }

    pub(crate) fn absorb(self, error: &Error) {
        self.call.noted.absorb(error);
    }

    /// A call at the same place, of work of other types.
    pub(crate) const fn around<'b, J, P>(self, work: &'b dyn Work<J, P>) -> Call<'b, J, P>
    where
        'a: 'b,
    {
        Call { layers: &[], work, ctx: self.call.ctx, noted: self.call.noted, depth: self.depth() }
    }

    const fn depth(self) -> usize {
        self.call.depth + self.passed
    }
}

/// What is inside, called at the first poll.
///
/// Written by hand, because every layer's future holds one: an async function would hold all of this twice.
#[must_use = "nothing is called before it is polled"]
pub(crate) struct Running<'a, I, O> {
    next: RawNext<'a, I, O>,
    input: &'a I,
    called: Option<BoxFuture<'a, Result<O>>>,
}

impl<I, O> Future for Running<'_, I, O> {
    type Output = Result<O>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Result<O>> {
        let Self { next, input, called } = &mut *self;
        let noted = next.call.noted;
        if called.is_none()
            && let Some(error) = noted.pending()
        {
            return Poll::Ready(Err(error));
        }
        // What is outside gets a panic as an error, and may call again.
        let poll = || called.get_or_insert_with(|| next.begin(input)).as_mut().poll(cx);
        let polled = caught(poll).unwrap_or_else(|panic| Poll::Ready(Err(panic)));
        polled.map(|result| noted.settle(next.depth(), result))
    }
}
