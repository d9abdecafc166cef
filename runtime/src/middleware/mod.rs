//! What is bound to a run before it starts.

pub(crate) mod explain;
pub(crate) mod map_value;
pub(crate) mod nested;
pub(crate) mod order;
pub(crate) mod summary;

use std::any::type_name;
use std::fmt;
use std::sync::Arc;

use crate::context::inherited::InheritedList;
use crate::{LayerInfo, Order, Result, RunContext, Summary, ordered};

/// Something bound to each run that it is given to: it registers what it listens to on the run's context.
///
/// A function of `&RunContext` [becomes one](IntoMiddleware). State of one run belongs into that run's context, never into
/// the middleware: one instance may be bound to many runs at the same time.
#[diagnostic::on_unimplemented(
    message = "`{Self}` is not a middleware",
    label = "expected a `Middleware`",
    note = "a function `|ctx: &RunContext| -> Result<()>` becomes one by `middleware_fn`"
)]
pub trait Middleware: fmt::Debug + Send + Sync + 'static {
    /// Binds it to a run, before the run's `start`.
    ///
    /// # Errors
    ///
    /// If it cannot be bound: then the run ends with this error, and has not started.
    fn bind(&self, ctx: &RunContext) -> Result<()>;

    /// What it is called where middlewares are listed.
    fn name(&self) -> &str {
        type_name::<Self>()
    }

    /// What it says of itself where middlewares are listed: by default its `Debug`, of at most [`Summary::MAX_BYTES`].
    fn debug_summary(&self) -> Summary {
        Summary::of(self)
    }

    /// The layers that it adds to a run, where they are known before it is bound: by default none.
    fn layers(&self) -> Vec<LayerInfo> {
        Vec::new()
    }

    /// Where it stands among those that are bound to the same run: by default where it was given.
    fn order(&self) -> Option<&Order> {
        None
    }
}

/// What can be given as a middleware: a [`Middleware`], or a function of `&RunContext`.
///
/// The parameter keeps the two apart: `()`, or the function's type. The compiler finds it.
#[diagnostic::on_unimplemented(
    message = "`{Self}` is not a middleware",
    label = "expected a `Middleware`, or a function `|ctx: &RunContext| -> Result<()>`",
    note = "the function returns `emitree_runtime::Result<()>`: end it with `Ok(())`"
)]
pub trait IntoMiddleware<Sort> {
    /// What it becomes.
    type Middleware: Middleware;

    /// Makes a middleware of it.
    fn into_middleware(self) -> Self::Middleware;
}

impl<M: Middleware> IntoMiddleware<()> for M {
    type Middleware = M;

    fn into_middleware(self) -> M {
        self
    }
}

impl<F: Fn(&RunContext) -> Result<()> + Send + Sync + 'static> IntoMiddleware<fn(&RunContext) -> Result<()>> for F {
    type Middleware = MiddlewareFn<F>;

    fn into_middleware(self) -> MiddlewareFn<F> {
        middleware_fn(self)
    }
}

/// A middleware that is a function, and is named as that is. Made by [`middleware_fn`].
#[derive(Clone, Copy)]
pub struct MiddlewareFn<F>(F);

/// Makes a middleware of a function, for where one is kept: in an `Arc<dyn Middleware>`, or a field.
///
/// Where one is given, as to [`Run::middleware`](crate::Run::middleware), a function is taken as it is.
pub const fn middleware_fn<F: Fn(&RunContext) -> Result<()> + Send + Sync + 'static>(f: F) -> MiddlewareFn<F> {
    MiddlewareFn(f)
}

impl<F: Fn(&RunContext) -> Result<()> + Send + Sync + 'static> Middleware for MiddlewareFn<F> {
    fn bind(&self, ctx: &RunContext) -> Result<()> {
        self.0(ctx)
    }

    fn name(&self) -> &str {
        type_name::<F>()
    }
}

impl<F> fmt::Debug for MiddlewareFn<F> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(type_name::<F>())
    }
}

impl<M: Middleware + ?Sized> Middleware for Arc<M> {
    fn bind(&self, ctx: &RunContext) -> Result<()> {
        (**self).bind(ctx)
    }

    fn name(&self) -> &str {
        (**self).name()
    }

    fn debug_summary(&self) -> Summary {
        (**self).debug_summary()
    }

    fn layers(&self) -> Vec<LayerInfo> {
        (**self).layers()
    }

    fn order(&self) -> Option<&Order> {
        (**self).order()
    }
}

/// The middlewares that runs started in a run inherit (M4).
pub(crate) type Inherited = InheritedList<Arc<dyn Middleware>>;

impl RunContext {
    /// Binds a middleware to every run that is started in this one from now on, however deep, before the run's own.
    ///
    /// ```
    /// use emitree_runtime::{RunContext, Stage};
    ///
    /// /// Looks at the input of every run below before anybody changes it.
    /// fn audit(ctx: &RunContext) -> emitree_runtime::Result<()> {
    ///     ctx.bind_nested(|nested: &RunContext| {
    ///         let first = emitree_emitter::Options::new().priority(i32::MAX);
    ///         nested.emitter().with(first).on(Stage::Start, |start: &mut dyn emitree_emitter::AnyEvent, _| {
    ///             println!("{}", start.to_json());
    ///         })?;
    ///         Ok(())
    ///     });
    ///     Ok(())
    /// }
    /// # drop(emitree_runtime::middleware_fn(audit));
    /// ```
    pub fn bind_nested<Sort>(&self, middleware: impl IntoMiddleware<Sort>) {
        let middleware: Arc<dyn Middleware> = Arc::new(middleware.into_middleware());
        self.inherited().change(|inherited| inherited.push(middleware));
        self.bound();
    }

    /// How many middlewares runs started in this one inherit.
    pub(crate) fn count_inherited(&self) -> usize {
        self.inherited().all().map_or(0, |inherited| inherited.len())
    }

    /// Has those beyond the first so many stand where an order says, unless they say so themselves.
    pub(crate) fn order_inherited(&self, beyond: usize, order: &Order) {
        let Some(inherited) = self.inherited().all().filter(|inherited| inherited.len() > beyond) else { return };
        // What they say is asked under no lock. Others may be handed down meanwhile: they come behind.
        let handed_down = inherited.iter().enumerate().skip(beyond);
        let silent = handed_down.filter(|(_, middleware)| middleware.order().is_none());
        let silent: Vec<(usize, Arc<dyn Middleware>)> =
            silent.map(|(at, it)| (at, Arc::new(ordered(Arc::clone(it), order.clone())) as Arc<_>)).collect();
        self.inherited().change(|inherited| {
            for (at, ordered) in silent {
                inherited.get_mut(at).into_iter().for_each(|it| *it = Arc::clone(&ordered));
            }
        });
    }
}
