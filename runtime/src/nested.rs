//! Middleware for a run and all that is below it (M4).

use std::sync::Arc;

use crate::{IntoMiddleware, LayerInfo, Middleware, Order, Result, RunContext, Summary};

/// A middleware for a run and every run below it. Made by [`for_nested`].
#[derive(Debug)]
pub struct ForNested<M>(Arc<M>);

/// Binds a middleware to the run, and to every run started in it, however deep, before the run's own.
///
/// What is run in a bare `tokio::spawn` is started in no run. [`RunContext::spawn`] and [`RunContext::scope`] take the run along.
///
/// A [`Stack`](crate::Stack) of certain types would be an error in runs of others: one of [`AnyRun`](crate::AnyRun)
/// fits all.
pub fn for_nested<Sort, M: IntoMiddleware<Sort>>(middleware: M) -> ForNested<M::Middleware> {
    ForNested(Arc::new(middleware.into_middleware()))
}

impl<M: Middleware> Middleware for ForNested<M> {
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
