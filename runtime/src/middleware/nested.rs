//! Middleware for the runs below a run, with that run or without it (M4).

use std::sync::Arc;

use crate::{IntoMiddleware, LayerInfo, Middleware, Order, Result, RunContext, Summary};

/// A middleware for every run below the run that it is bound to. Made by [`for_nested`].
#[derive(Debug)]
pub struct ForNested<M>(Arc<M>);

/// Binds a middleware to every run started in this run, however deep, before the run's own. This run itself is left out:
/// [`for_tree`] includes it.
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
/// [`RunContext::bind_nested`] says which runs are started in this run.
///
/// A [`Stack`](crate::Stack) of certain types would be an error in runs of others: one of [`AnyRun`](crate::AnyRun)
/// fits all.
pub fn for_nested<Sort, M: IntoMiddleware<Sort>>(middleware: M) -> ForNested<M::Middleware> {
    ForNested(Arc::new(middleware.into_middleware()))
}

impl<M: Middleware> Middleware for ForNested<M> {
    fn bind(&self, ctx: &RunContext) -> Result<()> {
        ctx.bind_nested(Arc::clone(&self.0));
        Ok(())
    }

    fn name(&self) -> &str {
        self.0.name()
    }

    fn debug_summary(&self) -> Summary {
        let summary = self.0.debug_summary().to_string();
        if summary == self.name() {
            return "for the runs below".into();
        }
        format!("{summary} (for the runs below)").into()
    }

    // Its layers are not this run's.

    fn order(&self) -> Option<&Order> {
        self.0.order()
    }
}

/// A middleware for a run and every run below it. Made by [`for_tree`].
#[derive(Debug)]
pub struct ForTree<M>(Arc<M>);

/// Binds a middleware to this run, and to every run started in it, however deep, before the run's own. [`for_nested`] leaves
/// this run out.
///
/// Layers that call again, and limits, apply at each level then: a `Retry` of two retries on a run with a run below it makes
/// up to nine attempts of the lowest work. That is [warned of](crate::Layer::nesting_warning) once; bind such a layer at one
/// level, with `Runs::only` of `emitree-middleware`, or to the run that needs it.
///
/// A [`Stack`](crate::Stack) of certain types would be an error in runs of others: one of [`AnyRun`](crate::AnyRun)
/// fits all.
pub fn for_tree<Sort, M: IntoMiddleware<Sort>>(middleware: M) -> ForTree<M::Middleware> {
    ForTree(Arc::new(middleware.into_middleware()))
}

impl<M: Middleware> Middleware for ForTree<M> {
    fn bind(&self, ctx: &RunContext) -> Result<()> {
        self.0.bind(ctx)?;
        ctx.bind_nested(Arc::clone(&self.0));
        Ok(())
    }

    fn name(&self) -> &str {
        self.0.name()
    }

    fn debug_summary(&self) -> Summary {
        self.0.debug_summary()
    }

    fn layers(&self) -> Vec<LayerInfo> {
        self.0.layers()
    }

    fn order(&self) -> Option<&Order> {
        self.0.order()
    }
}
