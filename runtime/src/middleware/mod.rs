//! Middlewares, which are bound to a run before the run starts.

pub(crate) mod description;
pub(crate) mod explain;
pub(crate) mod map_value;
pub(crate) mod needs;
pub(crate) mod nested;
pub(crate) mod order;
pub(crate) mod summary;
pub(crate) mod unhandled;
pub(crate) mod unmet;
pub(crate) mod warned;

use std::any::type_name;
use std::fmt;
use std::sync::Arc;

use emitree_emitter::rt::binding;

use self::unhandled::names_of_guards;
use crate::context::inherited::InheritedList;
use crate::{Description, Order, Result, RunContext, ordered};

/// A middleware: it is bound to a run before the run starts, and registers listeners, layers or functions on it.
///
/// A function that takes a `&RunContext` [is converted](IntoMiddleware) into a middleware. One middleware may be bound
/// to many runs at the same time, so keep the state of a run in that run, for example with
/// [`RunContext::set_own_extension`].
///
/// The middlewares of a run are bound in this order, unless an [`Order`] moves them:
///
/// 1. middlewares inherited from the runs above ([`for_nested`](crate::for_nested), [`for_tree`](crate::for_tree));
/// 2. middlewares of the run's runnable ([`Runnable::middlewares`](crate::Runnable::middlewares));
/// 3. middlewares and listeners of the run itself ([`Run::middleware`](crate::Run::middleware)), in the order of the
///    calls.
///
/// ```
/// use emitree_runtime::{Middleware, Result, RunContext, Runnable, Stage, Start, runnable_fn};
///
/// #[derive(Debug)]
/// struct Greeting(&'static str);
///
/// impl Middleware for Greeting {
///     fn bind(&self, ctx: &RunContext) -> Result<()> {
///         let greeting = self.0;
///         ctx.emitter().on(Stage::Start, move |start: &mut Start<String, String>, _| start.input.insert_str(0, greeting))?;
///         Ok(())
///     }
/// }
///
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<()> {
/// let echo = runnable_fn("echo", |text: String, _: RunContext| async move { Ok(text) });
/// assert_eq!(echo.run("Ada".to_owned()).middleware(Greeting("Hello, ")).await?, "Hello, Ada");
/// # Ok(())
/// # }
/// ```
#[diagnostic::on_unimplemented(
    message = "`{Self}` is not a middleware",
    label = "expected a `Middleware`",
    note = "convert a function `|ctx: &RunContext| -> Result<()>` with `middleware_fn`"
)]
pub trait Middleware: fmt::Debug + Send + Sync + 'static {
    /// Binds the middleware to a run, before the run emits `start`.
    ///
    /// # Errors
    ///
    /// Return an error if the middleware cannot be bound. The run ends with this error, and emits neither `start` nor
    /// any other lifecycle event.
    fn bind(&self, ctx: &RunContext) -> Result<()>;

    /// Returns the name that [`Explanation`](crate::Explanation) lists and that an [`Order`] refers to. By default it
    /// is the type name.
    fn name(&self) -> &str {
        type_name::<Self>()
    }

    /// Returns `false` if the middleware does nothing in runs of this kind and name, nor in the runs below them. By
    /// default it is `true`, which is also the answer if the kind and the name do not decide.
    ///
    /// A middleware that selects runs by kind or name implements this method, so that a wrong binding is noticed. If a
    /// middleware is bound to a run that it does not handle, by the run's runnable or by the run itself, the run ends
    /// before its `start` if the middleware is a guard. Otherwise, [`bind`](Self::bind) is not called, and one warning
    /// is logged for each instance. [`for_tree`](crate::for_tree) and [`for_nested`](crate::for_nested) handle all
    /// runs.
    ///
    /// ```
    /// use emitree_runtime::{
    ///     AnyRun, Description, Error, ErrorKind, Guard, Middleware, Op, Result, RunContext, Runnable, Stack, for_tree,
    ///     runnable_fn,
    /// };
    ///
    /// /// Denies runs with this name.
    /// #[derive(Clone, Debug)]
    /// struct Deny(&'static str);
    ///
    /// impl<O: Op> Guard<O> for Deny {
    ///     async fn check_input(&self, _: &O::In, _: &RunContext) -> Result<()> {
    ///         Err(Error::new("closed"))
    ///     }
    /// }
    ///
    /// impl Deny {
    ///     fn stack(&self) -> Stack<AnyRun> {
    ///         Stack::builder().guard(self.clone()).build()
    ///     }
    /// }
    ///
    /// impl Middleware for Deny {
    ///     fn bind(&self, ctx: &RunContext) -> Result<()> {
    ///         if self.handles(ctx.kind(), ctx.name()) { self.stack().bind(ctx) } else { Ok(()) }
    ///     }
    ///     fn handles(&self, _kind: &str, name: &str) -> bool {
    ///         name == self.0
    ///     }
    ///     fn describe(&self) -> Description<'_> {
    ///         Description::of(self).with_layers(|| self.stack().layers())
    ///     }
    /// }
    ///
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() {
    /// let desk = runnable_fn("desk", |(): (), _: RunContext| async move {
    ///     runnable_fn("delete", |(): (), _: RunContext| async { Ok(()) }).run(()).await
    /// });
    /// assert!(desk.run(()).middleware(for_tree(Deny("delete"))).await.unwrap_err().is_denied());
    /// // Without `for_tree`, the guard would guard nothing, so the run does not begin.
    /// assert_eq!(desk.run(()).middleware(Deny("delete")).await.unwrap_err().kind(), &ErrorKind::Invalid);
    /// # }
    /// ```
    fn handles(&self, kind: &str, name: &str) -> bool {
        let _ = (kind, name);
        true
    }

    /// Describes the middleware for [`Explanation`](crate::Explanation)s and warnings. By default it is described by its
    /// `Debug` output.
    ///
    /// A middleware that wraps another returns the description of the other.
    fn describe(&self) -> Description<'_> {
        Description::of(self)
    }

    /// Returns the order of the middleware relative to other middlewares of the same run. By default it is `None`, and
    /// the middleware keeps its place in the order of registration.
    fn order(&self) -> Option<&Order> {
        None
    }
}

/// A conversion into a [`Middleware`], implemented for every middleware and for functions of `&RunContext`.
///
/// The type parameter keeps the two implementations apart. The compiler infers it.
#[diagnostic::on_unimplemented(
    message = "`{Self}` is not a middleware",
    label = "expected a `Middleware`, or a function `|ctx: &RunContext| -> Result<()>`",
    note = "the function returns `emitree_runtime::Result<()>`: end it with `Ok(())`"
)]
pub trait IntoMiddleware<Sort> {
    /// The middleware type.
    type Middleware: Middleware;

    /// Converts the value into a middleware.
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

/// A middleware that calls a function. Its name is the name of the function's type. Created by [`middleware_fn`].
#[derive(Clone, Copy)]
pub struct MiddlewareFn<F>(F);

/// Converts a function into a middleware, to be stored in an `Arc<dyn Middleware>` or a field.
///
/// [`Run::middleware`](crate::Run::middleware) and similar methods accept the function itself.
///
/// ```
/// use std::sync::Arc;
/// use emitree_runtime::{Error, Middleware, RunContext, Runnable, middleware_fn, runnable_fn};
///
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() {
/// let closed: Arc<dyn Middleware> = Arc::new(middleware_fn(|_: &RunContext| Err(Error::halted("desk", "closed"))));
/// let desk = runnable_fn("desk", |(): (), _: RunContext| async { Ok(()) });
/// assert!(desk.run(()).middleware(closed).await.unwrap_err().is_halted());
/// # }
/// ```
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

    fn handles(&self, kind: &str, name: &str) -> bool {
        (**self).handles(kind, name)
    }

    fn describe(&self) -> Description<'_> {
        (**self).describe()
    }

    fn order(&self) -> Option<&Order> {
        (**self).order()
    }
}

/// The middlewares that a run hands down to the runs below it (M4).
pub(crate) type Inherited = InheritedList<Arc<dyn Middleware>>;

impl RunContext {
    /// Binds a middleware to this run, as [`Run::middleware`](crate::Run::middleware) does. A middleware that consists of
    /// others binds them with this method in its own [`bind`](Middleware::bind).
    ///
    /// # Errors
    ///
    /// Returns the error of `bind`, or an error if the middleware is a guard that does not
    /// [handle](Middleware::handles) this run. Any other middleware that does not handle the run is not bound, and one
    /// warning is logged for each instance.
    pub fn bind(&self, middleware: &dyn Middleware) -> Result<()> {
        if unhandled::check_bound(middleware, self)? { binding(|| middleware.bind(self)) } else { Ok(()) }
    }

    /// Binds a middleware to the children of this run that begin from now on, and to all runs below those children. In
    /// each of these runs, the middleware is bound before the run's own middlewares, unless an [`Order`] moves it.
    ///
    /// ```
    /// use emitree_runtime::{Error, RunContext, Runnable, runnable_fn};
    ///
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> emitree_runtime::Result<()> {
    /// let child = || runnable_fn("child", |(): (), _: RunContext| async { Ok(()) });
    /// let parent = runnable_fn("parent", move |(): (), ctx: RunContext| async move {
    ///     let is_open = child().run(()).await.is_ok();
    ///     let close = |nested: &RunContext| Err(Error::denied("parent", format!("no {} any more", nested.name())));
    ///     ctx.bind_nested(close);
    ///     Ok((is_open, child().run(()).await.is_ok()))
    /// });
    /// assert_eq!(parent.run(()).await?, (true, false));
    /// # Ok(())
    /// # }
    /// ```
    pub fn bind_nested<Sort>(&self, middleware: impl IntoMiddleware<Sort>) {
        let middleware: Arc<dyn Middleware> = Arc::new(middleware.into_middleware());
        self.shared().inherited.change(|inherited| inherited.push(middleware));
        // Without this call, a run that ends meanwhile on another thread would not drop the middleware (R14).
        self.bound();
    }

    /// Returns `true` if this run hands down middlewares to the runs below.
    #[must_use]
    pub fn binds_nested(&self) -> bool {
        self.count_inherited() > 0
    }

    /// Returns the names of the guards that this run hands down to the runs below, for code that starts runs in other
    /// processes, where nothing is handed down.
    #[must_use]
    pub fn nested_guards(&self) -> Vec<String> {
        self.shared().inherited.all().map_or_else(Vec::new, |inherited| names_of_guards(&inherited))
    }

    /// Returns the number of middlewares that this run hands down.
    pub(crate) fn count_inherited(&self) -> usize {
        self.shared().inherited.all().map_or(0, |inherited| inherited.len())
    }

    /// Sets the order of the middlewares that the run hands down, starting at index `beyond`. A middleware that already
    /// has an order keeps it.
    pub(crate) fn order_inherited(&self, beyond: usize, order: &Order) {
        let Some(inherited) = self.shared().inherited.all().filter(|inherited| inherited.len() > beyond) else {
            return;
        };
        // `order()` is user code: call it on a snapshot, with no lock held. Another thread may bind further middlewares
        // meanwhile; they are appended, so the indices stay valid.
        let handed_down = inherited.iter().enumerate().skip(beyond);
        let silent = handed_down.filter(|(_, middleware)| middleware.order().is_none());
        let silent: Vec<(usize, Arc<dyn Middleware>)> =
            silent.map(|(at, it)| (at, Arc::new(ordered(Arc::clone(it), order.clone())) as Arc<_>)).collect();
        self.shared().inherited.change(|inherited| {
            for (at, ordered) in silent {
                if let Some(middleware) = inherited.get_mut(at) {
                    *middleware = Arc::clone(&ordered);
                }
            }
        });
    }
}
