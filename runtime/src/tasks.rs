//! Tasks of a run: they know which run they belong to, and do not outlive it (R9, R13).

use std::future::Future;
use std::panic::AssertUnwindSafe;
use std::pin::Pin;
use std::sync::OnceLock;
use std::task::{Context as TaskContext, Poll};

use futures_util::FutureExt;
use parking_lot::Mutex;
use tokio::sync::oneshot;
use tokio::task::JoinSet;
use tracing::Instrument;

use crate::abort::Stop;
use crate::current::within;
use crate::fate::Fate;
use crate::{Error, ErrorKind, Result, RunContext};

/// The tasks that a run has spawned. A run whose work is over takes no more.
#[derive(Debug, Default)]
pub(crate) struct Tasks {
    set: OnceLock<Box<Mutex<Option<JoinSet<()>>>>>,
}

impl Tasks {
    fn spawn(&self, fate: &Fate<Stop>, task: impl Future<Output = ()> + Send + 'static) {
        let set = self.set.get_or_init(|| Box::new(Mutex::new(Some(JoinSet::new()))));
        if !fate.take_task() {
            return;
        }
        if let Some(tasks) = &mut *set.lock() {
            // Those that are done go, lest a run that lives long collects them.
            while tasks.try_join_next().is_some() {}
            tasks.spawn(task);
        }
    }

    /// Takes no more, and gives those that there are.
    pub(crate) fn close(&self) -> Option<JoinSet<()>> {
        self.set.get()?.lock().take()
    }
}

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
            let output = AssertUnwindSafe(future).catch_unwind().await.map_err(|panic| Error::of_panic(&*panic));
            // Whoever dropped the handle does not want it.
            drop(sender.send(output));
        };
        self.tasks().spawn(self.node().fate(), within(self.for_task(), work.instrument(self.span().clone())));
        Task(output)
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
