//! Tasks that end before their run does, and scopes, which make a run the current run in other tasks and on other
//! threads (R9, R13).

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

/// The tasks of a run. The set is made with the first task, and taken out when the work of the run is over.
pub(crate) type TaskSet = OnceLock<Box<Mutex<Option<JoinSet<()>>>>>;

impl RunContext {
    /// Spawns a task that belongs to the run: [`current`](Self::current) returns this run in the task. A task that is
    /// still running when the work of the run is over is aborted, and awaited before the run ends.
    ///
    /// If the work of the run is over, nothing is spawned, and awaiting the returned [`Task`] returns an error of kind
    /// `Aborted`.
    ///
    /// ```
    /// use emitree_runtime::{RunContext, Runnable, runnable_fn};
    ///
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> emitree_runtime::Result<()> {
    /// let sum = runnable_fn("sum", |n: u32, ctx: RunContext| async move {
    ///     let halves = [0..n / 2, n / 2..n].map(|half| ctx.spawn(async move { half.sum::<u32>() }));
    ///     let mut sum = 0;
    ///     for half in halves {
    ///         sum += half.await?;
    ///     }
    ///     Ok(sum)
    /// });
    /// assert_eq!(sum.run(10).await?, 45);
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Panics
    ///
    /// Panics outside a tokio runtime, as [`tokio::spawn`] does.
    pub fn spawn<T: Send + 'static>(&self, future: impl Future<Output = T> + Send + 'static) -> Task<T> {
        let (sender, output) = oneshot::channel();
        let work = async move {
            let output = caught_async(future).await;
            // If the handle was dropped, the output is dropped here, and its drop may panic.
            discard(sender.send(output));
        };
        // The set drops tasks under its lock, so the drop of a task must not panic.
        let task = Isolated::new(self.scope(work));
        let set = self.shared().tasks.get_or_init(|| Box::new(Mutex::new(Some(JoinSet::new()))));
        // Mark the run before the task is added. Either the run sees the mark when its work ends, and waits for its
        // tasks, or the run is settled already, and accepts no task (R13).
        if self.node().state.take_task()
            && let Some(tasks) = &mut *set.lock()
        {
            // Remove finished tasks, so that a long-lived run does not accumulate them.
            while tasks.try_join_next().is_some() {}
            tasks.spawn(task);
        }
        Task(output)
    }

    /// Returns a future that is inside the run wherever it is polled or dropped: [`current`](Self::current) returns
    /// this run, and the run's span is entered. Use it for tasks in your own [`JoinSet`] or actor. Otherwise prefer
    /// [`spawn`](Self::spawn), because its tasks end with the run.
    ///
    /// The run does not wait for the future. Runs that the future starts are children of this run, and inherit the
    /// middlewares that are bound for the runs below. Once this run has ended, the future cannot start any more runs.
    ///
    /// ```
    /// # use emitree_runtime::{RunContext, Runnable, runnable_fn};
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> emitree_runtime::Result<()> {
    /// let outer = runnable_fn("outer", |n: u32, ctx: RunContext| async move {
    ///     let double = runnable_fn("double", |n: u32, ctx: RunContext| async move { Ok((n * 2, ctx.depth())) });
    ///     // Without `scope`, the task would be outside the run, and its runs would be neither nested nor guarded.
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

    /// Calls a function inside the run, as [`scope`](Self::scope) does with a future. Use it in
    /// [`tokio::task::spawn_blocking`], or on a thread of a pool.
    ///
    /// You can enter the [`parent`](Self::parent) in the same way. A run that is made inside the parent is a child of
    /// the parent. Middleware that is bound for the runs below this run, including guards, does not apply to that
    /// child.
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

/// A handle to a task that was spawned by [`RunContext::spawn`]. Awaiting it returns the task's output, or an error if
/// the task panicked or was aborted with its run.
///
/// Dropping the handle detaches the task, which continues until it completes or the work of the run is over.
#[must_use = "the task's output is lost unless the task is awaited"]
#[derive(Debug)]
pub struct Task<T>(oneshot::Receiver<Result<T>>);

impl<T> Future for Task<T> {
    type Output = Result<T>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut TaskContext<'_>) -> Poll<Result<T>> {
        let gone = |_| Err(Error::of_kind(ErrorKind::Aborted, "the task was aborted with its run"));
        Pin::new(&mut self.0).poll(cx).map(|output| output.unwrap_or_else(gone))
    }
}
