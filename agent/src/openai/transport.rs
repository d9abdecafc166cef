//! The bytes of a reply, with timeouts and a maximum size.

use std::fmt;
use std::future::poll_fn;
use std::pin::{Pin, pin};
use std::task::Poll;
use std::time::Duration;

use bytes::Bytes;
use emitree_runtime::{Error, Result};
use futures_core::Stream;
use futures_util::stream;
use reqwest::{RequestBuilder, Response};
use tokio::time::{Instant, Sleep, sleep_until, timeout_at};

use crate::openai::failure::{Server, compression};
use crate::openai::{Limits, Shared};

/// The longest timeout. Longer timeouts are shortened, because an `Instant` may be unable to represent the deadline.
const ENDLESS: Duration = Duration::from_secs(30 * 365 * 24 * 60 * 60);

/// The number of bytes after which the body of an error response is not read further.
const MAX_ERROR: usize = 64 * 1024;

/// A successful response, and the deadline for its first byte.
pub(super) struct Incoming {
    pub(super) response: Response,
    deadline: Instant,
}

/// Sends a request, and waits for the headers of the response.
pub(super) async fn send(request: RequestBuilder, shared: &Shared) -> Result<Incoming> {
    let Shared { server, limits, .. } = shared;
    let deadline = Instant::now() + limits.first_byte.min(ENDLESS);
    let late = |_| server.timed_out("did not answer in time");
    let response = timeout_at(deadline, request.send()).await.map_err(late)?;
    let mut response = response.map_err(|error| server.disconnected(error))?;
    let status = response.status();
    if status.is_success() {
        return Ok(Incoming { response, deadline });
    }
    // The error quotes the beginning of the body, if the body can be read.
    let mut body = Vec::new();
    let read = async {
        while body.len() < MAX_ERROR
            && let Ok(Some(bytes)) = response.chunk().await
        {
            body.extend_from_slice(&bytes);
        }
    };
    let _ = timeout_at(deadline, read).await;
    Err(server.status(status, response.headers(), &body))
}

/// An error of the byte stream. The event parser wraps it in its own error.
#[derive(Debug)]
pub(super) struct BytesError(pub(super) Error);

impl fmt::Display for BytesError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

impl std::error::Error for BytesError {}

impl Incoming {
    /// Returns the bytes of the body as they arrive. The stream owns the connection: dropping the stream before its end
    /// closes the connection.
    pub(super) fn bytes(self, shared: &Shared) -> impl Stream<Item = Result<Bytes, BytesError>> + Send + use<> {
        let Self { response, deadline } = self;
        let Shared { server, limits, .. } = shared;
        let timer = Timer(Box::pin(sleep_until(deadline)));
        let server = server.clone();
        let body = Body { response, timer, first_byte: Some(deadline), received: 0, limits: *limits, server };
        // The state is boxed, because it is moved for each piece.
        stream::try_unfold(Box::new(body), |mut body| async {
            let bytes = body.next().await.map_err(BytesError)?;
            Ok(bytes.map(|bytes| (bytes, body)))
        })
    }
}

struct Body {
    response: Response,
    timer: Timer,
    /// The deadline for the first byte, or `None` after the first call of `next`.
    first_byte: Option<Instant>,
    received: usize,
    limits: Limits,
    server: std::sync::Arc<Server>,
}

impl Body {
    async fn next(&mut self) -> Result<Option<Bytes>> {
        let Self { response, timer, first_byte, received, limits, server } = self;
        let is_first = first_byte.is_some();
        let (deadline, late) = match first_byte.take() {
            Some(deadline) => (deadline, "did not answer in time"),
            None => (Instant::now() + limits.between_chunks.min(ENDLESS), "stopped in the middle of a reply"),
        };
        let bytes = timer.until(deadline, response.chunk()).await.ok_or_else(|| server.timed_out(late));
        let bytes = bytes?.map_err(|error| server.disconnected(error))?;
        if is_first && let Some(name) = compression(response.headers(), bytes.as_deref().unwrap_or_default()) {
            return Err(server.compressed(name));
        }
        *received += bytes.as_ref().map_or(0, Bytes::len);
        if *received > limits.max_bytes {
            return Err(server.too_large(limits.max_bytes));
        }
        Ok(bytes)
    }
}

/// A timer for the successive pieces of a reply. A later deadline does not reset the runtime's timer, because a reset
/// costs as much as reading a small piece. The runtime's timer fires at the earlier deadline, and is then reset to the
/// later deadline.
struct Timer(Pin<Box<Sleep>>);

impl Timer {
    /// Waits for a future, or returns `None` if the deadline passes first.
    async fn until<F: Future>(&mut self, deadline: Instant, future: F) -> Option<F::Output> {
        let sleep = &mut self.0;
        if deadline < sleep.deadline() {
            sleep.as_mut().reset(deadline);
        }
        let mut future = pin!(future);
        poll_fn(|cx| {
            if let Poll::Ready(output) = future.as_mut().poll(cx) {
                return Poll::Ready(Some(output));
            }
            while sleep.as_mut().poll(cx).is_ready() {
                if sleep.deadline() >= deadline {
                    return Poll::Ready(None);
                }
                sleep.as_mut().reset(deadline);
            }
            Poll::Pending
        })
        .await
    }
}

#[cfg(test)]
mod tests {
    use std::future::{pending, ready};

    use super::*;

    #[tokio::test(start_paused = true)]
    async fn each_wait_ends_at_its_own_deadline() {
        let start = Instant::now();
        let at = |seconds| start + Duration::from_secs(seconds);
        let mut timer = Timer(Box::pin(sleep_until(at(100))));
        assert_eq!(timer.until(at(100), ready(1)).await, Some(1));
        // The first deadline is earlier than the deadline of the runtime's timer, and the others are later.
        for seconds in [5, 30, 40] {
            assert_eq!(timer.until(at(seconds), pending::<()>()).await, None);
            // The runtime's timer has a resolution of 1 ms, so only whole seconds are compared.
            assert_eq!((Instant::now() - start).as_secs(), seconds);
        }
        let late = async {
            sleep_until(at(60)).await;
            1
        };
        assert_eq!(timer.until(at(80), late).await, Some(1));
    }
}
