//! Layers around work, erased to what goes in and what comes out: the one place where their types are.

use std::fmt;
use std::marker::PhantomData;
use std::sync::Arc;

use futures_core::future::BoxFuture;
use tracing::Instrument;

use crate::noted::Noted;
use crate::{Layer, Next, Op, Phase, Result, RunContext, Summary};

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
    RawNext { rest: layers, work, ctx, noted: &Noted::default(), depth: 0 }.run(input).await
}

/// What is inside of a layer.
pub(crate) struct RawNext<'a, I, O> {
    rest: &'a [Entry<I, O>],
    work: &'a dyn Work<I, O>,
    ctx: &'a RunContext,
    noted: &'a Noted,
    depth: usize,
}

impl<I, O> Clone for RawNext<'_, I, O> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<I, O> Copy for RawNext<'_, I, O> {}

impl<'a, I, O> RawNext<'a, I, O> {
    pub(crate) async fn run(self, input: &I) -> Result<O> {
        if let Some(error) = self.noted.pending() {
            return Err(error);
        }
        let called = match self.rest.split_first() {
            None => self.work.call(input, self.ctx),
            Some((first, rest)) => {
                let next = RawNext { rest, depth: self.depth + 1, ..self };
                first.layer.call(first.phase, input, self.ctx, next)
            }
        };
        self.noted.settle(self.depth, called.await)
    }

    pub(crate) fn absorb(self, error: &crate::Error) {
        self.noted.absorb(error);
    }

    /// The same place in the same call, for work of other types.
    pub(crate) const fn around<'b, J, P>(self, work: &'b dyn Work<J, P>) -> RawNext<'b, J, P>
    where
        'a: 'b,
    {
        RawNext { rest: &[], work, ctx: self.ctx, noted: self.noted, depth: self.depth }
    }
}
