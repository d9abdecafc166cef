//! What is bound to a run before it starts.

use std::any::type_name;
use std::sync::Arc;

use crate::{Result, RunContext};

/// Something bound to each run that it is given to: it registers what it listens to on the run's context.
///
/// A function of `&RunContext` is one. State of one run belongs into that run's context, never into the
/// middleware: one instance may be bound to many runs at the same time.
#[diagnostic::on_unimplemented(
    message = "`{Self}` is not a middleware",
    label = "expected a `Middleware`, or a function `|ctx: &RunContext| -> Result<()>`",
    note = "the function returns `emitree_runtime::Result<()>`: end it with `Ok(())`"
)]
pub trait Middleware: Send + Sync + 'static {
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
}

impl<F: Fn(&RunContext) -> Result<()> + Send + Sync + 'static> Middleware for F {
    fn bind(&self, ctx: &RunContext) -> Result<()> {
        self(ctx)
    }
}

impl<M: Middleware + ?Sized> Middleware for Arc<M> {
    fn bind(&self, ctx: &RunContext) -> Result<()> {
        (**self).bind(ctx)
    }

    fn name(&self) -> &str {
        (**self).name()
    }
}
