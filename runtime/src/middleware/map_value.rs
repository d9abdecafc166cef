//! `map_input` and `map_output`: functions that change the input and the output of a run.

use std::any::type_name;
use std::fmt;
use std::future::ready;
use std::sync::{Arc, OnceLock};

use futures_core::future::BoxFuture;
use parking_lot::Mutex;

use crate::chain::list::{FreezableList, Frozen};
use crate::chain::sort_few;
use crate::layer::guard::run_check;
use crate::run::panic::discard;
use crate::{Description, Error, ErrorKind, LayerInfo, Middleware, Position, Result, RunContext};

type MapFn<T> = dyn for<'a> Fn(&'a mut T, &'a RunContext) -> BoxFuture<'a, Result<()>> + Send + Sync;

/// A middleware that changes the inputs or outputs of runs with a function. Created by [`map_input`], [`map_output`] and
/// their async forms.
///
/// Bind it to runs whose input, or output, is a `T`. A run with another type ends with an error that names both types.
/// Clones share the function.
pub struct MapValue<T> {
    side: Side,
    /// Copies the value. Inputs are always copied; outputs are changed in place, and copied only to keep the original.
    copy: Option<fn(&T) -> T>,
    map: NamedMap<T>,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Side {
    Input,
    Output,
}

/// Creates a middleware from a function that may change the input, after `start` and before all layers.
///
/// Several functions are called in the order in which they are bound, each with the value that the previous function
/// left; functions marked as [`guard`](MapValue::guard) come last. The functions change a copy of the input, and every
/// [attempt](RunContext::attempt) makes a new copy. `success` and `finish` carry the input as `start` left it.
/// [`RunContext::original`] returns the input as the caller passed it.
///
/// An error ends the attempt before its work. Control flow, such as [`Error::denied`] or [`Error::retry_with`], has its
/// usual effect; any other error makes the run fail.
///
/// ```
/// use emitree_runtime::{Error, RunContext, Runnable, map_input, runnable_fn};
///
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> emitree_runtime::Result<()> {
/// let trim = map_input(|text: &mut String, _: &RunContext| {
///     *text = text.trim().to_owned();
///     Ok(())
/// });
/// let not_empty = map_input(|text: &mut String, _: &RunContext| {
///     if text.is_empty() { Err(Error::new("nothing to say")) } else { Ok(()) }
/// });
/// let echo = runnable_fn("echo", |text: String, _: RunContext| async move { Ok(text) })
///     .middleware(not_empty.named("not_empty").guard())
///     .middleware(trim);
/// assert_eq!(echo.run(" hello ".to_owned()).await?, "hello");
/// assert!(echo.run(" ".to_owned()).await.unwrap_err().explain().starts_with("denied by not_empty: nothing to say"));
/// # Ok(())
/// # }
/// ```
pub fn map_input<I, F>(f: F) -> MapValue<I>
where
    I: Clone + Send + Sync + 'static,
    F: Fn(&mut I, &RunContext) -> Result<()> + Send + Sync + 'static,
{
    MapValue::new::<F>(Side::Input, Some(I::clone), Arc::new(move |input: &mut I, ctx| Box::pin(ready(f(input, ctx)))))
}

/// Creates a middleware from an async function that may change the input. It works like [`map_input`], but the function
/// returns a boxed future.
///
/// ```
/// use emitree_runtime::{RunContext, Runnable, map_input_async, runnable_fn};
///
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> emitree_runtime::Result<()> {
/// let add_one = map_input_async(|n: &mut u32, _: &RunContext| {
///     Box::pin(async move {
///         tokio::task::yield_now().await;
///         *n += 1;
///         Ok(())
///     })
/// });
/// let double = runnable_fn("double", |n: u32, _: RunContext| async move { Ok(n * 2) });
/// assert_eq!(double.run(20).middleware(add_one).await?, 42);
/// # Ok(())
/// # }
/// ```
pub fn map_input_async<I, F>(f: F) -> MapValue<I>
where
    I: Clone + Send + Sync + 'static,
    F: for<'a> Fn(&'a mut I, &'a RunContext) -> BoxFuture<'a, Result<()>> + Send + Sync + 'static,
{
    MapValue::new::<F>(Side::Input, Some(I::clone), Arc::new(f))
}

/// Creates a middleware from a function that may change the output, after all layers and before `success`.
///
/// Several functions are called in the order in which they are bound, each with the value that the previous function
/// left; functions marked as [`guard`](MapValue::guard) come last. An error replaces the output; [`Error::retry_with`]
/// requests another attempt.
///
/// ```
/// use emitree_runtime::{Error, RunContext, Runnable, map_output, runnable_fn};
///
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> emitree_runtime::Result<()> {
/// let positive = map_output(|n: &mut i32, _: &RunContext| {
///     if *n > 0 { Ok(()) } else { Err(Error::retry_with("not positive", *n)) }
/// });
/// let count = runnable_fn("count", |(): (), ctx: RunContext| async move { Ok(i32::try_from(ctx.attempt())?) });
/// assert_eq!(count.run(()).middleware(positive).max_middleware_retries(3).await?, 1);
/// # Ok(())
/// # }
/// ```
pub fn map_output<O, F>(f: F) -> MapValue<O>
where
    O: Send + Sync + 'static,
    F: Fn(&mut O, &RunContext) -> Result<()> + Send + Sync + 'static,
{
    MapValue::new::<F>(Side::Output, None, Arc::new(move |output: &mut O, ctx| Box::pin(ready(f(output, ctx)))))
}

/// Creates a middleware from an async function that may change the output. It works like [`map_output`], but the
/// function returns a boxed future; see [`map_input_async`] for an example.
pub fn map_output_async<O, F>(f: F) -> MapValue<O>
where
    O: Send + Sync + 'static,
    F: for<'a> Fn(&'a mut O, &'a RunContext) -> BoxFuture<'a, Result<()>> + Send + Sync + 'static,
{
    MapValue::new::<F>(Side::Output, None, Arc::new(f))
}

impl<T> MapValue<T> {
    fn new<F>(side: Side, copy: Option<fn(&T) -> T>, f: Arc<MapFn<T>>) -> Self {
        Self { side, copy, map: NamedMap { name: type_name::<F>().into(), is_guard: false, is_last: false, f } }
    }

    /// Sets the name that errors and lists show. By default it is the type name of the function.
    #[must_use]
    pub fn named(mut self, name: impl Into<Arc<str>>) -> Self {
        self.map.name = name.into();
        self
    }

    /// Calls the function after all other functions that change the input or the output, guards included.
    #[must_use]
    pub fn last(mut self) -> Self {
        self.map.is_last = true;
        self
    }

    /// Keeps a copy of the output before the first function changes it, so that this function and the functions after
    /// it can read it with [`RunContext::original_output`]. Inputs are always kept.
    ///
    /// ```
    /// use emitree_runtime::{RunContext, Runnable, map_output, runnable_fn};
    ///
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> emitree_runtime::Result<()> {
    /// let round = map_output(|n: &mut u32, _: &RunContext| {
    ///     *n -= *n % 10;
    ///     Ok(())
    /// });
    /// let note = map_output(|n: &mut u32, ctx: &RunContext| {
    ///     assert_eq!((*n, ctx.original_output::<u32>().as_deref()), (40, Some(&42)));
    ///     Ok(())
    /// });
    /// let count = runnable_fn("count", |(): (), _: RunContext| async { Ok(42_u32) });
    /// assert_eq!(count.run(()).middleware(round).middleware(note.keeping_original()).await?, 40);
    /// # Ok(())
    /// # }
    /// ```
    #[must_use]
    pub fn keeping_original(mut self) -> Self
    where
        T: Clone,
    {
        self.copy = Some(T::clone);
        self
    }

    /// Turns the function into a guard.
    ///
    /// Of the functions that change an input or an output, guards are called last, regardless of the order in which the
    /// functions were bound. A failure, a panic or a timeout of the function becomes a denial with the function's name;
    /// other control flow is passed on unchanged.
    #[must_use]
    pub fn guard(mut self) -> Self {
        self.map.is_guard = true;
        self
    }
}

impl<T: Send + Sync + 'static> Middleware for MapValue<T> {
    fn bind(&self, ctx: &RunContext) -> Result<()> {
        let chain = ctx.chain()?;
        let ([input, output], map) = (chain.types(), self.map.clone());
        match self.side {
            // The chain returns its lists as `Any`: a failed downcast means that the run has another type.
            Side::Input => {
                let inputs = chain.inputs()?.downcast_ref::<InputMaps<T>>();
                inputs.ok_or_else(|| type_mismatch::<T>("input", input))?.push(self.copy, map)
            }
            Side::Output => {
                let outputs = chain.outputs()?.downcast_ref::<OutputMaps<T>>();
                outputs.ok_or_else(|| type_mismatch::<T>("output", output))?.push(self.copy, map)
            }
        }
    }

    fn name(&self) -> &str {
        &self.map.name
    }

    fn describe(&self) -> Description<'_> {
        Description::of(self).with_summary(|| self.name()).with_layers(|| {
            let position = match self.side {
                Side::Input => Position::Input,
                Side::Output => Position::Output,
            };
            vec![self.map.describe(position)]
        })
    }
}

fn type_mismatch<T>(what: &str, run: &str) -> Error {
    let own = type_name::<T>();
    let message = format!("`map_{what}` of `{own}` was bound to a run whose {what} is `{run}`");
    Error::of_kind(ErrorKind::Invalid, message)
}

impl<T> fmt::Debug for MapValue<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("MapValue").field("name", &self.map.name).finish_non_exhaustive()
    }
}

/// A function with its name.
pub(crate) struct NamedMap<T> {
    name: Arc<str>,
    is_guard: bool,
    is_last: bool,
    f: Arc<MapFn<T>>,
}

impl<T> Clone for MapValue<T> {
    fn clone(&self) -> Self {
        Self { side: self.side, copy: self.copy, map: self.map.clone() }
    }
}

impl<T> NamedMap<T> {
    async fn apply(&self, value: &mut T, ctx: &RunContext) -> Result<()> {
        if self.is_guard {
            return run_check(&self.name, || (self.f)(value, ctx)).await;
        }
        (self.f)(value, ctx).await.map_err(|error| error.by(&self.name))
    }

    fn describe(&self, side: Position) -> LayerInfo {
        let position = match side {
            Position::Input if self.is_guard => Position::InputGuard,
            Position::Output if self.is_guard => Position::OutputGuard,
            side => side,
        };
        LayerInfo::new(&*self.name, position, &*self.name)
    }
}

impl<T> Clone for NamedMap<T> {
    fn clone(&self) -> Self {
        Self { name: Arc::clone(&self.name), is_guard: self.is_guard, is_last: self.is_last, f: Arc::clone(&self.f) }
    }
}

/// Functions that change the input or the output of a run.
pub(crate) struct Maps<T>(FreezableList<NamedMap<T>>);

impl<T> Default for Maps<T> {
    fn default() -> Self {
        Self(FreezableList::default())
    }
}

impl<T> Maps<T> {
    fn push(&self, map: NamedMap<T>) -> Result<()> {
        self.0.extend(std::iter::once(map))
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Called when the work begins: rejects further functions from now on, and returns all functions, guards last.
    pub(crate) fn freeze(&self) -> Frozen<NamedMap<T>> {
        self.0.freeze(guards_last)
    }

    pub(crate) fn release(&self) {
        self.0.release();
    }

    pub(crate) fn describe(&self, side: Position) -> Vec<LayerInfo> {
        let mut maps = self.0.snapshot();
        guards_last(&mut maps);
        maps.iter().map(|map| map.describe(side)).collect()
    }

    /// Calls the functions in order, up to the first error.
    pub(crate) async fn apply(&self, value: &mut T, ctx: &RunContext) -> Result<()> {
        for map in self.freeze().iter().flat_map(|maps| maps.iter()) {
            map.apply(value, ctx).await?;
        }
        Ok(())
    }
}

fn guards_last<T>(maps: &mut [NamedMap<T>]) {
    // The sort is stable, so the guards and the other functions each keep their order of binding.
    sort_few(maps, |map| (map.is_last, map.is_guard));
}

/// The `map_input` functions of a run, and the input as the caller passed it.
pub(crate) struct InputMaps<I> {
    pub(crate) maps: Maps<I>,
    copy: OnceLock<fn(&I) -> I>,
    original: OnceLock<Arc<I>>,
}

impl<I> Default for InputMaps<I> {
    fn default() -> Self {
        Self { maps: Maps::default(), copy: OnceLock::new(), original: OnceLock::new() }
    }
}

impl<I> InputMaps<I> {
    fn push(&self, copy: Option<fn(&I) -> I>, map: NamedMap<I>) -> Result<()> {
        if let Some(copy) = copy {
            self.copy.get_or_init(|| copy);
        }
        self.maps.push(map)
    }

    /// Keeps a copy of the caller's input, before listeners of `start` may change it.
    pub(crate) fn keep_original(&self, input: &I) {
        if let Some(copy) = self.copy.get() {
            self.original.get_or_init(|| Arc::new(copy(input)));
        }
    }

    pub(crate) fn original(&self) -> Option<Arc<I>> {
        self.original.get().cloned()
    }

    /// Calls the functions with a copy of the input, and returns the copy, or `None` if there are no functions.
    pub(crate) async fn apply(&self, input: &I, ctx: &RunContext) -> Result<Option<I>> {
        let Some(copy) = self.copy.get() else { return Ok(None) };
        let mut copied = copy(input);
        match self.maps.apply(&mut copied, ctx).await {
            Ok(()) => Ok(Some(copied)),
            Err(error) => {
                // Dropping the copy may call user code: a panic there would replace the error, which may be a denial.
                discard(copied);
                Err(error)
            }
        }
    }
}

/// The `map_output` functions of a run, and the output of the current attempt before them.
pub(crate) struct OutputMaps<O> {
    pub(crate) maps: Maps<O>,
    /// Set if one of the functions asks for the original.
    copy: OnceLock<fn(&O) -> O>,
    original: Mutex<Option<Arc<O>>>,
}

impl<O> Default for OutputMaps<O> {
    fn default() -> Self {
        Self { maps: Maps::default(), copy: OnceLock::new(), original: Mutex::new(None) }
    }
}

impl<O> OutputMaps<O> {
    fn push(&self, copy: Option<fn(&O) -> O>, map: NamedMap<O>) -> Result<()> {
        if let Some(copy) = copy {
            self.copy.get_or_init(|| copy);
        }
        self.maps.push(map)
    }

    /// Keeps a copy of the output of an attempt, if one of the functions asks for it.
    pub(crate) fn keep_original(&self, output: &O) {
        if let Some(copy) = self.copy.get() {
            self.set_original(Some(Arc::new(copy(output))));
        }
    }

    pub(crate) fn original(&self) -> Option<Arc<O>> {
        self.original.lock().clone()
    }

    /// Forgets the output of the previous attempt.
    pub(crate) fn forget_original(&self) {
        if self.copy.get().is_some() {
            self.set_original(None);
        }
    }

    pub(crate) fn release(&self) {
        self.maps.release();
        self.forget_original();
    }

    /// Replaces the original with no lock held while the earlier one is dropped: the drop may call user code.
    fn set_original(&self, original: Option<Arc<O>>) {
        let earlier = std::mem::replace(&mut *self.original.lock(), original);
        earlier.into_iter().for_each(discard);
    }
}
