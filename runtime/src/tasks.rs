//! Tasks of a run: they know which run they belong to, and do not outlive it (R9, R13).

use std::future::Future;
use std::panic::AssertUnwindSafe;
use std::pin::Pin;
use std::task::{Context as TaskContext, Poll};

use futures_util::FutureExt;
use parking_lot::Mutex;
use tokio::sync::oneshot;
use tokio::task::JoinSet;
use tracing::Instrument;

use crate::current::CURRENT;
use crate::{Error, ErrorKind, Result, RunContext};

/// The tasks that a run has spawned. A run that has ended takes no more.
#[derive(Debug)]
pub(crate) struct Tasks(Mutex<State>);

#[derive(Debug)]
enum State {
    None,
    Some(JoinSet<()>),
    Ended,
}

impl Default for Tasks {
    fn default() -> Self {
        Self(Mutex::new(State::None))
    }
}

impl Tasks {
    fn spawn(&self, task: impl Future<Output = ()> + Send + 'static) {
        let mut state = self.0.lock();
        match &mut *state {
            State::Some(tasks) => {
                // Those that are done go, lest a run that lives long collects them.
                while tasks.try_join_next().is_some() {}
                tasks.spawn(task);
            }
            State::None => {
                let mut tasks = JoinSet::new();
                tasks.spawn(task);
                *state = State::Some(tasks);
            }
            State::Ended => {}
        }
    }

    /// Takes no more, if there never was one; tells whether.
    pub(crate) fn close_if_none(&self) -> bool {
        let mut state = self.0.lock();
        let none = !matches!(&*state, State::Some(_));
        if none {
            *state = State::Ended;
        }
        none
    }

    /// Takes no more, and gives those that there are.
    pub(crate) fn close(&self) -> Option<JoinSet<()>> {
        let state = std::mem::replace(&mut *self.0.lock(), State::Ended);
        match state {
            State::Some(tasks) => Some(tasks),
            State::None | State::Ended => None,
        }
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
        self.tasks().spawn(CURRENT.scope(self.clone(), work.instrument(self.span().clone())));
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
