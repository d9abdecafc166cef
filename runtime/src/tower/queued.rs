//! A service that several runs call, one after the other (invariants 1 and 2).

use std::error::Error as StdError;
use std::future::poll_fn;

use emitree_emitter::BoxError;
use tokio::sync::Mutex;
use tower_service::Service;

use crate::{Error, ErrorKind, Result};

/// It has to be `Send` only, and is never cloned: a limit is one limit.
pub(crate) struct Queued<S>(Mutex<S>);

impl<S> Queued<S> {
    pub(crate) fn new(service: S) -> Self {
        Self(Mutex::new(service))
    }

    pub(crate) async fn call<I>(&self, request: I) -> Result<S::Response>
    where
        S: Service<I, Error: Into<BoxError>>,
    {
        self.admit(request).await?.await.map_err(error_of)
    }

    async fn admit<I>(&self, request: I) -> Result<S::Future>
    where
        S: Service<I, Error: Into<BoxError>>,
    {
        let mut service = self.0.lock().await;
        poll_fn(|cx| service.poll_ready(cx)).await.map_err(error_of)?;
        Ok(service.call(request))
    }
}

/// An [`Error`] of ours that went through the service is that error again.
fn error_of(error: impl Into<BoxError>) -> Error {
    let error = error.into();
    if is_elapsed(&*error) { Error::of_source(ErrorKind::TimedOut, error.into()) } else { Error::from_boxed(error) }
}

/// tower's `Elapsed`, or tokio's, known by what it prints: who names tower's type depends on all of tower. It carries
/// nothing, so errors that carry something are not printed for this.
fn is_elapsed(error: &(dyn StdError + 'static)) -> bool {
    size_of_val(error) == 0 && format!("{error:?}") == "Elapsed(())"
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn time_outs_are_known_by_what_they_print() {
        let of_tokio = tokio::time::timeout(std::time::Duration::ZERO, std::future::pending::<()>()).await;
        let table: [(BoxError, ErrorKind); 4] = [
            (tower::timeout::error::Elapsed::new().into(), ErrorKind::TimedOut),
            (of_tokio.expect_err("nothing comes").into(), ErrorKind::TimedOut),
            (std::fmt::Error.into(), ErrorKind::Failed),
            ("Elapsed(())".into(), ErrorKind::Failed),
        ];
        for (error, kind) in table {
            let text = format!("{error:?}");
            assert_eq!(error_of(error).kind(), &kind, "{text}");
        }
    }
}
