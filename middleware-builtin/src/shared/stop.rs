//! A way to stop a run's work from a run below it: [`Stop`].

use std::future::{Future, poll_fn};
use std::pin::pin;
use std::task::Poll;

use emitree_runtime::{Error, Result};
use tokio::sync::SetOnce;

/// The error that stops the work of a run. Errors after the first are ignored.
#[derive(Debug, Default)]
pub(crate) struct Stop(SetOnce<Error>);

impl Stop {
    pub(crate) fn with(&self, error: Error) {
        // Ignore the result: `set` fails if the work has already been stopped, and then the first error stays.
        self.0.set(error).ok();
    }

    /// Awaits the work until it ends or is stopped. A stop during the last poll of the work still takes effect.
    pub(crate) async fn unless<T>(&self, inside: impl Future<Output = Result<T>>) -> Result<T> {
        self.check()?;
        let mut inside = pin!(inside);
        let mut stopped = pin!(self.0.wait());
        poll_fn(|cx| {
            // Poll the work first and check the stop afterwards, so that a stop by a run below during this poll is not
            // missed.
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
