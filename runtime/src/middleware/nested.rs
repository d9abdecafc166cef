//! Middleware for all runs below a run, with or without the run itself (M4).

use crate::middleware::unmet::HandedDown;
use crate::{Description, IntoMiddleware, Middleware, Order, Result, RunContext};

/// A middleware for every run below the run that it is bound to. Created by [`for_nested`].
#[derive(Debug)]
pub struct ForNested<M>(HandedDown<M>);

/// Wraps a middleware so that it is bound to every run below a run, however deep, but not to the run itself. Use
/// [`for_tree`] to include the run.
///
/// In each run below, the middleware is bound before that run's own middlewares, unless an [`Order`] moves it.
///
/// ```
/// use emitree_runtime::{Error, RunContext, Runnable, for_nested, for_tree, runnable_fn};
///
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() {
/// let closed = |_: &RunContext| Err(Error::halted("desk", "closed"));
/// let child = || runnable_fn("child", |(): (), _: RunContext| async { Ok(()) });
/// let desk = runnable_fn("desk", move |is_busy: bool, _: RunContext| async move {
///     if is_busy { child().run(()).await } else { Ok(()) }
/// });
///
/// assert!(desk.run(false).middleware(for_nested(closed)).await.is_ok());
/// assert!(desk.run(true).middleware(for_nested(closed)).await.is_err());
/// assert!(desk.run(false).middleware(for_tree(closed)).await.is_err());
/// # }
/// ```
///
/// A [`Stack`](crate::Stack) for one input and output type makes a run of other types fail. Use a `Stack` of
/// [`AnyRun`](crate::AnyRun), which fits all runs.
pub fn for_nested<Sort, M: IntoMiddleware<Sort>>(middleware: M) -> ForNested<M::Middleware> {
    ForNested(HandedDown::new(middleware.into_middleware()))
}

impl<M: Middleware> Middleware for ForNested<M> {
    fn bind(&self, ctx: &RunContext) -> Result<()> {
        self.0.bind_nested(ctx);
        Ok(())
    }

    fn name(&self) -> &str {
        self.0.middleware.name()
    }

    // `handles` stays `true`, here and for `ForTree`: the middleware is for the runs below.

    fn describe(&self) -> Description<'_> {
        let middleware = &self.0.middleware;
        // There are no layers and no hooks: the middleware adds neither to the run that it is bound to.
        Description::of(self)
            .with_summary(|| {
                let summary = middleware.describe().summary().to_string();
                if summary == middleware.name() {
                    return "for the runs below".to_owned();
                }
                format!("{summary} (for the runs below)")
            })
            .with_names_below(|see| middleware.describe().names_below(see))
    }

    fn order(&self) -> Option<&Order> {
        self.0.middleware.order()
    }
}

/// A middleware for a run and every run below it. Created by [`for_tree`].
#[derive(Debug)]
pub struct ForTree<M>(HandedDown<M>);

/// Wraps a middleware so that it is bound to a run and to every run below it, however deep. Use [`for_nested`] to leave
/// the run itself out.
///
/// Retries and limits then apply at each level. For example, if a run with a child has a `Retry` with two retries, the
/// child's work may be attempted nine times. `Retry`, `Concurrency` and `RateLimit` of `emitree-middleware` can
/// [warn](crate::Layer::nesting_warning) about this once. Apply such a middleware at one level: select the runs with
/// `Runs::only`, or bind the middleware without `for_tree` to the run that needs it.
///
/// If a middleware that selects runs by kind or name has handled no run when the run ends, and a run below has
/// [nearly](Description::with_near_miss) a selected kind or name, one warning is logged: the name is probably misspelled.
/// Names are near if they differ in case, in `-` and `_`, or in up to two letters, fewer in short names. The tools of an
/// agent count as runs below, also those that were not called. The same holds for each kind that a limit counts, and for
/// the calls that a budget counts.
///
/// A [`Stack`](crate::Stack) for one input and output type makes a run of other types fail. Use a `Stack` of
/// [`AnyRun`](crate::AnyRun), which fits all runs.
///
/// ```
/// use std::sync::Arc;
/// use std::sync::atomic::{AtomicU32, Ordering};
/// use emitree_runtime::{RunContext, Runnable, for_tree, runnable_fn};
///
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> emitree_runtime::Result<()> {
/// let runs = Arc::new(AtomicU32::new(0));
/// let counter = Arc::clone(&runs);
/// let count = move |_: &RunContext| {
///     counter.fetch_add(1, Ordering::Relaxed);
///     Ok(())
/// };
/// let desk = runnable_fn("desk", |(): (), _: RunContext| async move {
///     runnable_fn("letter", |(): (), _: RunContext| async { Ok(()) }).run(()).await
/// });
/// desk.run(()).middleware(for_tree(count)).await?;
/// assert_eq!(runs.load(Ordering::Relaxed), 2);
/// # Ok(())
/// # }
/// ```
pub fn for_tree<Sort, M: IntoMiddleware<Sort>>(middleware: M) -> ForTree<M::Middleware> {
    ForTree(HandedDown::new(middleware.into_middleware()))
}

impl<M: Middleware> Middleware for ForTree<M> {
    fn bind(&self, ctx: &RunContext) -> Result<()> {
        // Bind the middleware to this run first: if that fails, the run ends, and nothing has been handed down.
        self.0.middleware.bind(ctx)?;
        self.0.bind_nested(ctx);
        Ok(())
    }

    fn name(&self) -> &str {
        self.0.middleware.name()
    }

    fn describe(&self) -> Description<'_> {
        self.0.middleware.describe()
    }

    fn order(&self) -> Option<&Order> {
        self.0.middleware.order()
    }
}
