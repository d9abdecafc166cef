//! Values that the work of a run needs, checked before its `start`: [`Needs`].

use std::any::type_name;
use std::fmt;
use std::marker::PhantomData;

use crate::context::span::Title;
use crate::{Description, Error, ErrorKind, Middleware, Order, Result, RunContext};

/// A middleware that checks that a run has an extension. Created by [`needs`].
pub struct Needs<T> {
    order: Order,
    value: PhantomData<fn() -> T>,
}

/// Returns a middleware that checks that a run has an [extension](crate::Run::extension) of type `T`: its own, or one
/// that it inherits. Without it, the run ends before its `start`, with an error that says what to write.
///
/// The check comes [last](Order::last), so that other middlewares of the run can set the extension. Bind it to a
/// runnable whose work, or the runs below it, read the extension: without it, the mistake shows only inside the work,
/// such as in one tool of an agent.
///
/// ```
/// use emitree_runtime::{RunContext, Runnable, needs, runnable_fn};
///
/// struct Db;
///
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() {
/// let count = runnable_fn("count", |(): (), ctx: RunContext| async move {
///     let db = ctx.extension::<Db>();
///     Ok(u32::from(db.is_some()))
/// })
/// .middleware(needs::<Db>());
///
/// let error = count.run(()).await.unwrap_err();
/// assert!(error.to_string().contains("write `.extension("));
/// assert_eq!(count.run(()).extension(Db).await.unwrap(), 1);
/// # }
/// ```
#[must_use]
pub const fn needs<T: Send + Sync + 'static>() -> Needs<T> {
    Needs { order: Order::last(), value: PhantomData }
}

impl<T: Send + Sync + 'static> Middleware for Needs<T> {
    fn bind(&self, ctx: &RunContext) -> Result<()> {
        if ctx.extension::<T>().is_some() || ctx.own_extension::<T>().is_some() {
            return Ok(());
        }
        let run = Title { kind: ctx.kind(), name: ctx.name() };
        let value = type_name::<T>();
        let message = format!(
            "the run of `{run}` needs an extension of the type `{value}`, and has none: write `.extension(value)` on this \
             run or on a run above it"
        );
        Err(Error::of_kind(ErrorKind::Invalid, message))
    }

    fn name(&self) -> &str {
        "needs"
    }

    fn describe(&self) -> Description<'_> {
        Description::of(self)
    }

    fn order(&self) -> Option<&Order> {
        Some(&self.order)
    }
}

impl<T> fmt::Debug for Needs<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(type_name::<T>())
    }
}
