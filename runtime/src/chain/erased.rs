//! Layers around work, with all types erased except the types of input and output.

use std::fmt;
use std::future::{Future, ready};
use std::marker::PhantomData;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{self, Context, Poll};

use futures_core::future::BoxFuture;
use tracing::{Instrument, Level, level_enabled};

use crate::context::span::is_traced;
use crate::layer::nesting::{LayerId, Nesting, Warned};
use crate::layer::swallowed::{Frame, SwallowedControlFlow};
use crate::run::panic::{caught, discard, logged};
use crate::{Error, Layer, Next, Op, Phase, Result, RunContext, Summary};

/// A layer of any kind, around work from `I` to `O`.
pub(crate) trait DynLayer<I, O>: Send + Sync {
    fn call<'a>(
        &'a self,
        phase: Phase,
        input: &'a I,
        ctx: &'a RunContext,
        next: RawNext<'a, I, O>,
    ) -> BoxFuture<'a, Result<O>>;
    /// Checks an output that did not come from `next`.
    fn check_output<'a>(&'a self, output: &'a O, ctx: &'a RunContext) -> BoxFuture<'a, Result<()>>;

    /// Returns the layer's description. An adapter returns the description of the layer that it adapts.
    fn description(&self) -> &dyn LayerDescription;

    /// Returns the name that is added to the layer's errors, if there is one.
    fn by(&self) -> Option<&str> {
        None
    }
}

/// The part of a layer that does not depend on the types of the work.
pub(crate) trait LayerDescription: Send + Sync {
    fn name(&self) -> &str;
    fn summary(&self) -> Summary;
    fn id(&self) -> LayerId;
    fn warned(&self) -> &Warned;
    fn warning(&self, nesting: &Nesting<'_>) -> Option<String>;
}

/// The work inside layers. A layer may call it any number of times.
pub(crate) trait Work<I, O>: Send + Sync {
    fn call<'a>(&'a self, input: &'a I, ctx: &'a RunContext) -> BoxFuture<'a, Result<O>>;

    /// Passes an output to the `check_output` of the layers around the work, if the work is a call through layers.
    fn check_output<'a>(&'a self, output: &'a O, ctx: &'a RunContext) -> BoxFuture<'a, Result<()>> {
        let _ = (output, ctx);
        Box::pin(ready(Ok(())))
    }

    /// Returns `true` if the work only returns the output that was set at `start`.
    fn is_answered(&self) -> bool {
        false
    }

    /// If layers see JSON that lacks a part of the values, such as a NaN, returns the reason.
    fn inexact(&self) -> Option<String> {
        None
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
        let call = self.layer.call(input, ctx, Next(next));
        if !next.call.is_traced {
            return Box::pin(call);
        }
        let span = tracing::debug_span!("layer", name = self.layer.name(), phase = phase.as_str());
        if span.is_disabled() { Box::pin(call) } else { Box::pin(call.instrument(span)) }
    }

    fn check_output<'a>(&'a self, output: &'a O::Out, ctx: &'a RunContext) -> BoxFuture<'a, Result<()>> {
        Box::pin(self.layer.check_output(output, ctx))
    }

    fn description(&self) -> &dyn LayerDescription {
        self
    }
}

/// A layer, and a name that is added to its errors.
pub(crate) struct Named<I, O> {
    pub(crate) layer: Arc<dyn DynLayer<I, O>>,
    pub(crate) by: Arc<str>,
}

impl<I, O> DynLayer<I, O> for Named<I, O> {
    fn call<'a>(
        &'a self,
        phase: Phase,
        input: &'a I,
        ctx: &'a RunContext,
        next: RawNext<'a, I, O>,
    ) -> BoxFuture<'a, Result<O>> {
        self.layer.call(phase, input, ctx, next)
    }

    fn check_output<'a>(&'a self, output: &'a O, ctx: &'a RunContext) -> BoxFuture<'a, Result<()>> {
        self.layer.check_output(output, ctx)
    }

    fn description(&self) -> &dyn LayerDescription {
        self.layer.description()
    }

    fn by(&self) -> Option<&str> {
        Some(&self.by)
    }
}

impl<O: Op, L: Layer<O>> LayerDescription for Erased<L, O> {
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
pub(crate) struct LayerEntry<I, O> {
    pub(crate) phase: Phase,
    /// `true` if the layer is inside all layers of its phase that are not innermost, regardless of the order of
    /// registration.
    pub(crate) is_innermost: bool,
    pub(crate) layer: Arc<dyn DynLayer<I, O>>,
}

impl<I, O> LayerEntry<I, O> {
    pub(crate) fn new<K: Op<In = I, Out = O>>(phase: Phase, layer: impl Layer<K>) -> Self {
        let erased = Erased { layer, warned: Warned::default(), of: PhantomData::<fn() -> K> };
        Self { phase, is_innermost: false, layer: Arc::new(erased) }
    }
}

impl<I, O> Clone for LayerEntry<I, O> {
    fn clone(&self) -> Self {
        Self { phase: self.phase, is_innermost: self.is_innermost, layer: Arc::clone(&self.layer) }
    }
}

impl<I, O> fmt::Debug for LayerEntry<I, O> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.phase.as_str(), self.layer.description().name())
    }
}

/// Calls work through layers, outermost first.
pub(crate) async fn call<I, O>(
    layers: &[LayerEntry<I, O>],
    work: &dyn Work<I, O>,
    input: &I,
    ctx: &RunContext,
) -> Result<O> {
    // Check once for all layers: without a `tracing` subscriber, no layer makes a span.
    let is_traced = level_enabled!(Level::DEBUG) && is_traced();
    Call { layers, work, ctx, noted: &SwallowedControlFlow::default(), frame: Frame::OUTSIDE, is_traced }
        .next()
        .run(input)
        .await
}

/// Passes an output to the `check_output` of each layer, innermost first.
pub(crate) async fn check_output<I, O>(layers: &[LayerEntry<I, O>], output: &O, ctx: &RunContext) -> Result<()> {
    for entry in layers.iter().rev() {
        entry.layer.check_output(output, ctx).await?;
    }
    Ok(())
}

/// One call through layers: the data that the layers share.
pub(crate) struct Call<'a, I, O> {
    layers: &'a [LayerEntry<I, O>],
    work: &'a dyn Work<I, O>,
    ctx: &'a RunContext,
    noted: &'a SwallowedControlFlow,
    /// Identifies the caller of the first layer. If this call is nested in a layer, that layer is the caller.
    frame: Frame,
    /// `true` if layers make `tracing` spans. Determined once, when the call begins.
    is_traced: bool,
}

impl<I, O> Call<'_, I, O> {
    pub(crate) const fn next(&self) -> RawNext<'_, I, O> {
        RawNext { call: self, passed: 0, frame: self.frame }
    }
}

/// The layers inside a layer, and the work. Keep this struct small: the future of every layer contains a copy.
pub(crate) struct RawNext<'a, I, O> {
    call: &'a Call<'a, I, O>,
    /// The number of layers outside the layer that is called next.
    passed: usize,
    /// The call of the layer that received this `RawNext`.
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
        Running { next: self, input, frame: None, inside: None }
    }

    /// Calls the next layer, or the work if no layer is left. `frame` identifies the call of that layer.
    fn begin(self, input: &'a I, frame: Frame) -> BoxFuture<'a, Result<O>> {
        let Self { call, passed, .. } = self;
        match call.layers.get(passed) {
            None => call.work.call(input, call.ctx),
            Some(first) => first.layer.call(first.phase, input, call.ctx, Self { call, passed: passed + 1, frame }),
        }
    }

    /// Adds the name of the next layer to the error that it returned, unless the error comes from further inside.
    #[cold]
    fn name_origin(self, error: Error) -> Error {
        // The notes live as long as the call, so their address identifies the call. A call that is adapted to other
        // types shares the notes.
        let call = std::ptr::from_ref(self.call.noted).addr();
        error.returned_in(call, self.call.layers.get(self.passed).and_then(|entry| entry.layer.by()))
    }

    /// Passes an output to the `check_output` of the layers inside.
    pub(crate) async fn check_output(self, output: &O) -> Result<()> {
        check_output(self.call.layers.get(self.passed..).unwrap_or_default(), output, self.call.ctx).await?;
        self.call.work.check_output(output, self.call.ctx).await
    }

    pub(crate) fn is_answered(self) -> bool {
        self.call.work.is_answered()
    }

    pub(crate) fn inexact(self) -> Option<String> {
        self.call.work.inexact()
    }

    pub(crate) fn absorb(self, error: &Error) {
        self.call.noted.absorb(self.frame, error);
    }

    /// Returns a call without layers, whose work has other types. An adapter passes the `next` of this call to the
    /// layer that it adapts. Notes and frame stay the same.
    pub(crate) const fn around<'b, J, P>(self, work: &'b dyn Work<J, P>) -> Call<'b, J, P>
    where
        'a: 'b,
    {
        let Call { ctx, noted, is_traced, .. } = *self.call;
        Call { layers: &[], work, ctx, noted, frame: self.frame, is_traced }
    }
}

/// The future that [`RawNext::run`] returns. It calls the next layer when it is first polled.
///
/// This future is written by hand, because every layer's future contains one, and an async function would store its
/// arguments twice.
#[must_use = "nothing is called before it is polled"]
pub(crate) struct Running<'a, I, O> {
    next: RawNext<'a, I, O>,
    input: &'a I,
    /// Set at the first poll.
    frame: Option<Frame>,
    /// Set from the first poll until the call has returned.
    inside: Option<BoxFuture<'a, Result<O>>>,
}

impl<'a, I, O> Running<'a, I, O> {
    /// Returns a panic as an error to the layer outside, which may call again. If only the drop of the call panicked,
    /// after the call had returned, logs the panic and returns the call's result.
    #[cold]
    fn panicked(&mut self, polled: Poll<Result<O>>, panic: Error) -> Result<O> {
        discard(self.inside.take());
        let Poll::Ready(result) = polled else { return Err(panic) };
        logged(|| tracing::warn!(error = %panic, "the future inside a layer panicked when it was dropped"));
        result
    }
}

impl<I, O> Future for Running<'_, I, O> {
    type Output = Result<O>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Result<O>> {
        let noted = self.next.call.noted;
        let outside = self.next.frame;
        let frame = match (self.frame, &self.inside) {
            (Some(frame), Some(_)) => frame,
            (Some(_), None) => {
                let error = Error::new("`next` was polled again after it had returned");
                return Poll::Ready(Err(error));
            }
            // If an earlier `next` of the layer outside returned control flow that the layer has not absorbed, return
            // that error again, and call nothing (M9).
            (None, _) => {
                let frame = *self.frame.insert(Frame::new());
                if let Some(error) = noted.pending(outside) {
                    return Poll::Ready(Err(error));
                }
                frame
            }
        };
        let mut polled = Poll::Pending;
        // The future inside is user code, and so is its drop. If only the drop panics, `polled` still holds the result.
        let poll_inside = || {
            let Self { next, input, inside, .. } = &mut *self;
            let future = inside.get_or_insert_with(|| next.begin(input, frame));
            polled = future.as_mut().poll(cx);
            if polled.is_ready() {
                *inside = None;
            }
        };
        let result = match caught(poll_inside) {
            Ok(()) => task::ready!(polled),
            Err(panic) => self.panicked(polled, panic),
        };
        // Name the origin before the error is noted, because the note keeps a copy.
        let result = result.map_err(|error| self.next.name_origin(error));
        // Pass notes of swallowed control flow on to the layer outside before this future is dropped (M9).
        Poll::Ready(noted.settle(frame, outside, result))
    }
}

/// Passes the notes on to the layer outside when a call is dropped before it has returned (M9).
impl<I, O> Drop for Running<'_, I, O> {
    #[inline]
    fn drop(&mut self) {
        if let (Some(frame), Some(inside)) = (self.frame, self.inside.take()) {
            discard(inside);
            self.next.call.noted.pass_on(frame, self.next.frame);
        }
    }
}
