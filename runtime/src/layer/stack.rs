//! Stacks of layers, sorted by phase (M2).

use std::any::{Any, type_name};
use std::fmt;
use std::sync::Arc;

use futures_core::future::BoxFuture;

use crate::chain::erased::{LayerEntry, Named, Work, call, check_output};
use crate::chain::{AnyChain, Chain, by_phase};
use crate::layer::guard::GuardLayer;
use crate::layer::nesting::warn_once;
use crate::layer::observe::ObserveLayer;
use crate::layer::transform::TransformLayer;
use crate::{
    AnyRun, Description, Error, ErrorKind, Guard, GuardOptions, JsonRun, Layer, LayerInfo, Middleware, Next, Observe,
    Op, Phase, Result, RunContext, Summary, Transform, layer_fn,
};

/// A stack of layers for a kind of work, outermost first. Clones share the layers.
///
/// Pass your own work to [`call`](Self::call), or bind the stack to runs as a [`Middleware`]. All layers of a run are
/// sorted by phase, including the layers of a stack that is bound to it.
///
/// ```
/// use emitree_runtime::{Guard, Op, Result, RunContext, Runnable, Stack, Transform, runnable_fn};
///
/// #[derive(Debug)]
/// struct Trim;
/// impl<O: Op<In = String>> Transform<O> for Trim {
///     async fn input(&self, text: &String, _: &RunContext) -> Result<Option<String>> {
///         Ok(Some(text.trim().to_owned()))
///     }
/// }
///
/// #[derive(Debug)]
/// struct NotEmpty;
/// impl<O: Op<In = String>> Guard<O> for NotEmpty {
///     async fn check_input(&self, text: &String, _: &RunContext) -> Result<()> {
///         if text.is_empty() { Err(emitree_runtime::Error::new("nothing to say")) } else { Ok(()) }
///     }
/// }
///
/// struct Say;
/// impl Op for Say {
///     type In = String;
///     type Out = String;
/// }
///
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<()> {
/// // A guard sees the trimmed text, although it was registered first.
/// let stack = Stack::<Say>::builder().guard(NotEmpty).transform(Trim).build();
///
/// let echo = runnable_fn("echo", |text: String, _: RunContext| async move { Ok(text) }).middleware(stack);
/// assert_eq!(echo.run(" hello ".to_owned()).await?, "hello");
/// assert!(echo.run("  ".to_owned()).await.unwrap_err().is_denied());
/// # Ok(())
/// # }
/// ```
pub struct Stack<O: Op>(Arc<[LayerEntry<O::In, O::Out>]>);

impl<O: Op> Stack<O> {
    /// Returns a builder without layers.
    pub const fn builder() -> StackBuilder<O> {
        StackBuilder(Vec::new())
    }

    /// Returns the number of layers.
    #[must_use]
    pub fn len(&self) -> usize {
        self.0.len()
    }

    /// Returns `true` if there are no layers.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Returns a stack with the layers of one phase.
    #[must_use]
    pub fn in_phase(&self, phase: Phase) -> Self {
        Self(self.0.iter().filter(|entry| entry.phase == phase).cloned().collect())
    }

    /// Calls work through the layers, which may call it once, several times or not at all. Without layers it is called
    /// once.
    ///
    /// ```
    /// use emitree_runtime::{Op, Result, RunContext, Runnable, Stack, runnable_fn};
    ///
    /// struct Read;
    /// impl Op for Read {
    ///     type In = String;
    ///     type Out = usize;
    /// }
    ///
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<()> {
    /// let read = runnable_fn("read", |key: String, ctx: RunContext| async move {
    ///     let stack = Stack::<Read>::default();
    ///     stack.call(&key, &ctx, |key, _| Box::pin(async move { Ok(key.len()) })).await
    /// });
    /// assert_eq!(read.run("port".to_owned()).await?, 4);
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    ///
    /// Returns the error of the work or of a layer.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future drops layers and work at their current await point.
    pub async fn call(
        &self,
        input: &O::In,
        ctx: &RunContext,
        work: impl for<'a> Fn(&'a O::In, &'a RunContext) -> BoxFuture<'a, Result<O::Out>> + Send + Sync,
    ) -> Result<O::Out> {
        call(&self.0, &ClosureWork(work), input, ctx).await
    }

    /// Calls work that borrows a value, such as a method that borrows `self`, through the layers.
    ///
    /// ```
    /// # use emitree_runtime::{Op, Result, RunContext, Runnable, Stack, runnable_fn};
    /// # struct Read;
    /// # impl Op for Read {
    /// #     type In = String;
    /// #     type Out = usize;
    /// # }
    /// struct Store(Stack<Read>);
    ///
    /// impl Store {
    ///     async fn read(&self, key: &String, ctx: &RunContext) -> Result<usize> {
    ///         self.0.call_with(key, ctx, self, |store, key, _| Box::pin(store.look_up(key))).await
    ///     }
    ///
    ///     async fn look_up(&self, key: &String) -> Result<usize> {
    ///         Ok(key.len())
    ///     }
    /// }
    ///
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<()> {
    /// let read = runnable_fn("read", |key: String, ctx: RunContext| async move {
    ///     Store(Stack::default()).read(&key, &ctx).await
    /// });
    /// assert_eq!(read.run("port".to_owned()).await?, 4);
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    ///
    /// Returns the error of the work or of a layer.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future drops layers and work at their current await point.
    pub async fn call_with<S: Sync + ?Sized>(
        &self,
        input: &O::In,
        ctx: &RunContext,
        borrowed: &S,
        work: impl for<'a> Fn(&'a S, &'a O::In, &'a RunContext) -> BoxFuture<'a, Result<O::Out>> + Send + Sync,
    ) -> Result<O::Out> {
        call(&self.0, &BorrowingWork(borrowed, work), input, ctx).await
    }

    /// Passes an output to the [`check_output`](Layer::check_output) of each layer, innermost first: the guards of the
    /// stack check an output that did not come from a call through the stack.
    ///
    /// # Errors
    ///
    /// Returns the error of the first layer that refuses the output.
    pub async fn check_output(&self, output: &O::Out, ctx: &RunContext) -> Result<()> {
        check_output(&self.0, output, ctx).await
    }

    /// Returns the layers, from the outermost to the innermost, for
    /// [`Description::with_layers`](crate::Description::with_layers).
    #[must_use]
    pub fn layers(&self) -> Vec<LayerInfo> {
        self.0.iter().map(LayerInfo::of).collect()
    }
}

struct ClosureWork<F>(F);

impl<I, O, F> Work<I, O> for ClosureWork<F>
where
    F: for<'a> Fn(&'a I, &'a RunContext) -> BoxFuture<'a, Result<O>> + Send + Sync,
{
    fn call<'a>(&'a self, input: &'a I, ctx: &'a RunContext) -> BoxFuture<'a, Result<O>> {
        (self.0)(input, ctx)
    }
}

struct BorrowingWork<'s, S: ?Sized, F>(&'s S, F);

impl<S, I, O, F> Work<I, O> for BorrowingWork<'_, S, F>
where
    S: Sync + ?Sized,
    F: for<'a> Fn(&'a S, &'a I, &'a RunContext) -> BoxFuture<'a, Result<O>> + Send + Sync,
{
    fn call<'a>(&'a self, input: &'a I, ctx: &'a RunContext) -> BoxFuture<'a, Result<O>> {
        (self.1)(self.0, input, ctx)
    }
}

/// Binds the layers to a run. If the run's input or output type differs from the stack's, the run ends with an error
/// that names these types. A stack of [`JsonRun`] or of [`AnyRun`] fits all runs.
impl<O: Op> Middleware for Stack<O> {
    fn bind(&self, ctx: &RunContext) -> Result<()> {
        let stack: &dyn Any = self;
        let chain = ctx.chain()?;
        // Check for `AnyRun` first: a run from `()` to `()` has the same input and output types, and would match below.
        if let Some(any) = stack.downcast_ref::<Stack<AnyRun>>() {
            chain.add_opaque(&any.0)?;
        } else if let Some(chain) = (chain as &dyn Any).downcast_ref::<Chain<O::In, O::Out>>() {
            chain.layers.extend(self.0.iter().cloned())?;
        } else {
            let json = stack.downcast_ref::<Stack<JsonRun>>().ok_or_else(|| type_mismatch::<O>(chain))?;
            chain.add_json(&json.0)?;
        }
        // A layer may warn if it is bound to a run above as well (M4).
        if ctx.parent().is_some() {
            self.0.iter().for_each(|entry| warn_once(entry.layer.description(), ctx));
        }
        Ok(())
    }

    /// Returns the name of the layer if the stack has only one layer, and `stack` otherwise.
    fn name(&self) -> &str {
        match &*self.0 {
            [only] => only.layer.description().name(),
            _ => "stack",
        }
    }

    fn describe(&self) -> Description<'_> {
        let summary = || match &*self.0 {
            [only] => only.layer.description().summary(),
            all => Summary::Text(format!("{} layers of {}", all.len(), O::name())),
        };
        Description::of(self).with_summary(summary).with_layers(|| self.layers())
    }
}

fn type_mismatch<O: Op>(chain: &dyn AnyChain) -> Error {
    let [input, output] = chain.types();
    let of = O::name();
    let own_input = type_name::<O::In>();
    let own_output = type_name::<O::Out>();
    let message = format!(
        "layers of `{of}`, from `{own_input}` to `{own_output}`, were bound to a run from `{input}` to `{output}`: \
         layers for runs of any type are `Layer<JsonRun>` or `Layer<AnyRun>`"
    );
    Error::of_kind(ErrorKind::Invalid, message)
}

impl<O: Op> Clone for Stack<O> {
    fn clone(&self) -> Self {
        Self(Arc::clone(&self.0))
    }
}

impl<O: Op> Default for Stack<O> {
    fn default() -> Self {
        Self::builder().build()
    }
}

impl<O: Op> fmt::Debug for Stack<O> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_list().entries(&*self.0).finish()
    }
}

/// A builder of a [`Stack`]. Created by [`Stack::builder`].
#[must_use = "layers do nothing until the stack is built"]
pub struct StackBuilder<O: Op>(Vec<LayerEntry<O::In, O::Out>>);

impl<O: Op> StackBuilder<O> {
    /// Adds an [`Observe`], in [`Phase::Observe`].
    pub fn observe(self, observe: impl Observe<O>) -> Self {
        self.layer_in(Phase::Observe, ObserveLayer(observe))
    }

    /// Adds a layer that may call the layers inside again, in [`Phase::Retry`].
    pub fn retry(self, layer: impl Layer<O>) -> Self {
        self.layer_in(Phase::Retry, layer)
    }

    /// Adds a [`Transform`], in [`Phase::Transform`].
    pub fn transform(self, transform: impl Transform<O>) -> Self {
        self.layer_in(Phase::Transform, TransformLayer(transform))
    }

    /// Adds a [`Guard`], in [`Phase::Guard`].
    pub fn guard(self, guard: impl Guard<O>) -> Self {
        self.guard_with(GuardOptions::new(), guard)
    }

    /// Adds a [`Guard`] with options, which set a timeout or let the guard only report denials.
    pub fn guard_with(self, options: GuardOptions, guard: impl Guard<O>) -> Self {
        self.layer_in(Phase::Guard, GuardLayer { guard, options })
    }

    /// Adds the layers of another stack, each in its phase. Binding one joined stack to a run costs less than binding
    /// several stacks.
    pub fn stack(mut self, other: &Stack<O>) -> Self {
        self.0.extend(other.0.iter().cloned());
        self
    }

    /// Adds any layer, in [`Phase::Transform`].
    pub fn layer(self, layer: impl Layer<O>) -> Self {
        self.layer_in(Phase::default(), layer)
    }

    /// Adds any layer, in the given phase.
    pub fn layer_in(mut self, phase: Phase, layer: impl Layer<O>) -> Self {
        self.0.push(LayerEntry::new(phase, layer));
        self
    }

    /// Adds a layer in [`Phase::Guard`], inside all layers that were not added as innermost. Of several innermost
    /// layers, the layer that was added last calls the work itself.
    pub fn innermost(self, layer: impl Layer<O>) -> Self {
        self.innermost_in(Phase::Guard, layer)
    }

    /// Adds a layer in the given phase, inside all layers of this phase that were not added as innermost.
    pub fn innermost_in(mut self, phase: Phase, layer: impl Layer<O>) -> Self {
        self.0.push(LayerEntry { is_innermost: true, ..LayerEntry::new(phase, layer) });
        self
    }

    /// Adds a closure as a layer, in [`Phase::Transform`]; see [`layer_fn`](crate::layer_fn).
    pub fn layer_fn<F>(self, name: impl Into<String>, f: F) -> Self
    where
        F: for<'a> Fn(&'a O::In, &'a RunContext, Next<'a, O>) -> BoxFuture<'a, Result<O::Out>> + Send + Sync + 'static,
    {
        self.layer(layer_fn(name, f))
    }

    /// Adds a name to the errors of the layers that were added so far: an error that one of these layers returns has
    /// the name as its detail `by`. An error of `next` that a layer passes on is left unchanged. Errors that already
    /// have a name are left unchanged too: denials, halts, and errors with a detail `by`.
    ///
    /// ```
    /// use emitree_runtime::{Error, Next, Op, RunContext, Runnable, Stack, runnable_fn};
    ///
    /// # struct Say;
    /// # impl Op for Say {
    /// #     type In = String;
    /// #     type Out = String;
    /// # }
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() {
    /// let stack = Stack::<Say>::builder().layer_fn("check", |text, _, next: Next<'_, Say>| {
    ///     Box::pin(async move { if text.is_empty() { Err(Error::new("no text")) } else { next.run(text).await } })
    /// });
    /// let say = runnable_fn("say", |text: String, _: RunContext| async move { Err::<String, _>(Error::new(text)) })
    ///     .middleware(stack.errors_by("desk.check").build());
    ///
    /// let of_layer = say.run(String::new()).await.unwrap_err();
    /// assert_eq!(of_layer.explain(), "no text\n  by: \"desk.check\"");
    /// let of_work = say.run("no voice".to_owned()).await.unwrap_err();
    /// assert_eq!(of_work.explain(), "no voice");
    /// # }
    /// ```
    pub fn errors_by(mut self, by: impl Into<Arc<str>>) -> Self {
        let by = by.into();
        for entry in &mut self.0 {
            let layer = Arc::clone(&entry.layer);
            let by = Arc::clone(&by);
            entry.layer = Arc::new(Named { layer, by });
        }
        self
    }

    /// Builds the stack. Its layers are sorted by phase, innermost layers last, and otherwise by order of registration.
    #[must_use]
    pub fn build(mut self) -> Stack<O> {
        // The sort is stable, so that layers with the same sort key keep the order of registration (M2).
        by_phase(&mut self.0);
        Stack(self.0.into())
    }
}

impl<O: Op> fmt::Debug for StackBuilder<O> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_list().entries(&self.0).finish()
    }
}
