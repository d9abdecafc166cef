//! The tree of runs: links of a run to its parent and to its children.

pub(crate) mod children;
pub(crate) mod parent;

use std::future::poll_fn;
use std::task::Poll;

use crate::RunContext;

impl RunContext {
    /// Returns the runs that were started in this run and have not ended.
    ///
    /// A run that begins on another thread during the call may be missing. Such a run sees everything that the calling
    /// code has written before the call, at the latest when its middlewares are bound: code that refuses new runs sets
    /// a flag before it calls this method, and checks the flag in [`Middleware::bind`](crate::Middleware::bind).
    ///
    /// ```
    /// use std::future::pending;
    /// use emitree_runtime::{Result, RunContext, Runnable, runnable_fn};
    ///
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<()> {
    /// let outer = runnable_fn("outer", |(): (), ctx: RunContext| async move {
    ///     let endless = runnable_fn("endless", |(): (), _: RunContext| pending::<Result<()>>());
    ///     let task = ctx.spawn(async move { endless.run(()).await });
    ///     tokio::task::yield_now().await;
    ///     for child in ctx.children() {
    ///         child.abort("it takes too long");
    ///         child.ended().await;
    ///     }
    ///     assert!(ctx.children().is_empty());
    ///     Ok(task.await?.unwrap_err().explain())
    /// });
    /// assert_eq!(outer.run(()).await?, "aborted: it takes too long");
    /// # Ok(())
    /// # }
    /// ```
    #[must_use]
    pub fn children(&self) -> Vec<Self> {
        let mut children = self.node().below.arrived();
        children.retain(|child| !child.has_ended());
        children
    }

    /// Waits until the run has ended. The run does not end if its future is neither polled nor dropped, so a run cannot
    /// wait for its own end.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future loses nothing.
    pub async fn ended(&self) {
        poll_fn(|cx| match self.has_ended() || self.shared().core.is_over(cx.waker()) {
            true => Poll::Ready(()),
            false => Poll::Pending,
        })
        .await;
    }
}
