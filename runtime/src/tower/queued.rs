//! A service that several runs share (invariants 1 and 2).

use std::error::Error as StdError;
use std::future::poll_fn;

use emitree_emitter::BoxError;
use tokio::sync::Mutex;
use tower_service::Service;

use crate::{Error, ErrorKind, Result};

/// A service behind a fair lock. The service is never cloned, so that its limits are shared, and it need not be `Sync`.
pub(crate) struct Queued<S>(Mutex<S>);

impl<S> Queued<S> {
    pub(crate) fn new(service: S) -> Self {
        Self(Mutex::new(service))
    }

    pub(crate) async fn call<I>(&self, request: I) -> Result<S::Response>
    where
        S: Service<I, Error: Into<BoxError>>,
    {
        // `admit` releases the lock before the response is awaited, so that runs proceed concurrently (invariant 1).
        self.admit(request).await?.await.map_err(error_of)
    }

    async fn admit<I>(&self, request: I) -> Result<S::Future>
    where
        S: Service<I, Error: Into<BoxError>>,
    {
        let mut service = self.0.lock().await;
        poll_fn(|cx| service.poll_ready(cx)).await.map_err(error_of)?;
        // Nothing is awaited between readiness and the call: a caller that is dropped while it waits has not called the
        // service (invariant 2).
        Ok(service.call(request))
    }
}

/// Converts an error of the service. An [`Error`] that went through the service is returned unchanged.
fn error_of(error: impl Into<BoxError>) -> Error {
    let error = error.into();
    if is_elapsed(&*error) { Error::of_source(ErrorKind::TimedOut, error.into()) } else { Error::from_boxed(error) }
}

/// Returns `true` for `Elapsed` of tower and of tokio, recognized by their `Debug` output: naming tower's type would
/// need a dependency on all of tower. Both types have size zero, so errors of another size are not formatted.
fn is_elapsed(error: &(dyn StdError + 'static)) -> bool {
    size_of_val(error) == 0 && format!("{error:?}") == "Elapsed(())"
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn only_the_elapsed_errors_of_tower_and_tokio_become_timeouts() {
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
