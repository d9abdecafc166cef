//! Tasks of a run: they know which run they belong to, and do not outlive it (R9, R13); and what is done for it by others.

use std::future::Future;
use std::pin::Pin;
use std::sync::OnceLock;
use std::task::{Context as TaskContext, Poll};

use parking_lot::Mutex;
use tokio::sync::oneshot;
use tokio::task::JoinSet;
use tracing::Instrument;

use crate::context::current::within;
use crate::run::panic::{Isolated, caught_async, discard};
use crate::{Error, ErrorKind, Result, RunContext};

/// The tasks that a run has spawned, made with the first one; none once the run's work is over and they have been taken.
pub(crate) type TaskSet = OnceLock<Box<Mutex<Option<JoinSet<()>>>>>;

impl RunContext {
    /// Spawns a task that belongs to the run: [`current`](Self::current) is the run in it, and it is aborted and
    /// awaited before the run ends.
    ///
    /// # Panics
    ///
    /// Outside of a tokio runtime, as [`tokio::spawn`] does.
    pub fn spawn<T: Send + 'static>(&self, future: impl Future<Output = T> + Send + 'static) -> Task<T> {
        let (sender, output) = oneshot::channel();
        let work = async move {
            let output = caught_async(future).await;
            // Whoever dropped the handle does not want it.
            discard(sender.send(output));
        };
        // The set drops tasks under its lock: no panic of theirs may get there.
        let task = Isolated::new(self.scope(work));
        let set = self.shared().tasks.get_or_init(|| Box::new(Mutex::new(Some(JoinSet::new()))));
        // Mark the run as having tasks before the set is locked: the end of the work either sees the mark and waits for the
        // tasks, or has settled the run, which takes none then (R13).
        if self.node().state.take_task()
            && let Some(tasks) = &mut *set.lock()
        {
            // Remove finished tasks, so that a run that lives long does not collect them.
            while tasks.try_join_next().is_some() {}
            tasks.spawn(task);
        }
        Task(output)
    }

    /// Awaits a future inside of the run, wherever that is polled, or dropped: [`current`](Self::current) is the run there, and its
    /// span is entered. For tasks that others own, a [`JoinSet`] or an actor's; mostly [`spawn`](Self::spawn) is better, for its
    /// tasks end with the run.
    ///
    /// The run does not wait for it. A run that is started there belongs to the run, with all that is bound for runs below; once
    /// the run has ended, none begins there any more.
    ///
    /// ```
    /// # use emitree_runtime::{RunContext, Runnable, runnable_fn};
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> emitree_runtime::Result<()> {
    /// let outer = runnable_fn("outer", |n: u32, ctx: RunContext| async move {
    ///     let double = runnable_fn("double", |n: u32, ctx: RunContext| async move { Ok((n * 2, ctx.depth())) });
    ///     // A bare task would be in no run: its runs would not be nested, nor guarded.
    ///     let task = tokio::spawn(ctx.scope(async move { double.run(n).await }));
    ///     task.await?
    /// });
    /// assert_eq!(outer.run(21).await?, (42, 1));
    /// # Ok(())
    /// # }
    /// ```
    pub fn scope<F: Future>(&self, future: F) -> impl Future<Output = F::Output> + use<F> {
        within(self.for_task(), future.instrument(self.span().clone()))
    }

    /// Calls inside of the run, as [`scope`](Self::scope) does for a future: in [`tokio::task::spawn_blocking`], or on a
    /// thread of a pool.
    ///
    /// `ctx.parent()` may be entered as well. A run that is made there is started in the parent: middleware that is bound for the
    /// runs below this one, guards included, does not apply to it.
    ///
    /// ```
    /// # use emitree_runtime::{RunContext, Runnable, runnable_fn};
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> emitree_runtime::Result<()> {
    /// let outer = runnable_fn("outer", |(): (), ctx: RunContext| async move {
    ///     let inside = ctx.clone();
    ///     let is_inside = move || RunContext::current() == Some(inside);
    ///     Ok(tokio::task::spawn_blocking(move || ctx.in_scope(is_inside)).await?)
    /// });
    /// assert!(outer.run(()).await?);
    /// # Ok(())
    /// # }
    /// ```
    pub fn in_scope<T>(&self, f: impl FnOnce() -> T) -> T {
        self.for_task().inside(f)
    }
}

/// A spawned task; awaiting it gives what the task gave, or an error if it panicked or its run has ended.
///
/// Dropping it lets the task go on until the run ends.
#[must_use = "the task's output is lost otherwise"]
#[derive(Debug)]
pub struct Task<T>(oneshot::Receiver<Result<T>>);

impl<T> Future for Task<T> {
    type Output = Result<T>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut TaskContext<'_>) -> Poll<Result<T>> {
        let gone = |_| Err(Error::of_kind(ErrorKind::Aborted, "the task was aborted with its run"));
        Pin::new(&mut self.0).poll(cx).map(|output| output.unwrap_or_else(gone))
    }
}
