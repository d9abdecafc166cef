//! Stopping the work of a run from below it.

use std::future::{Future, poll_fn};
use std::pin::pin;
use std::task::Poll;

use emitree_runtime::{Error, Result};
use tokio::sync::SetOnce;

/// What the work of a run is stopped with; the first wins.
#[derive(Debug, Default)]
pub(crate) struct Stop(SetOnce<Error>);

impl Stop {
    pub(crate) fn with(&self, error: Error) {
        // It may have been stopped before.
        self.0.set(error).ok();
    }

    /// Awaits what is inside until it is stopped. What was stopped while it ended has been stopped all the same.
    pub(crate) async fn unless<T>(&self, inside: impl Future<Output = Result<T>>) -> Result<T> {
        self.check()?;
        let (mut inside, mut stopped) = (pin!(inside), pin!(self.0.wait()));
        poll_fn(|cx| {
            let polled = inside.as_mut().poll(cx);
            match stopped.as_mut().poll(cx) {
                Poll::Ready(error) => Poll::Ready(Err(error.clone())),
                Poll::Pending => polled,
            }
        })
        .await
    }

    fn check(&self) -> Result<()> {
        self.0.get().map_or(Ok(()), |error| Err(error.clone()))
    }
}
