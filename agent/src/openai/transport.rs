//! The bytes of a reply, with timeouts and a maximum size.

use std::fmt;
use std::time::Duration;

use bytes::Bytes;
use emitree_runtime::{Error, Result};
use futures_core::Stream;
use futures_util::stream;
use reqwest::{RequestBuilder, Response};
use tokio::time::{Instant, timeout, timeout_at};

use crate::openai::failure::Server;
use crate::openai::{Limits, Shared};

/// The longest timeout, because the clock may not represent a much longer duration.
const ENDLESS: Duration = Duration::from_secs(30 * 365 * 24 * 60 * 60);

/// The number of bytes after which the body of an error response is not read further.
const MAX_ERROR: usize = 64 * 1024;

/// A response whose status is a success, and the deadline for its first byte.
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
    // An error does not need the body: if reading the body fails, the error has the status alone.
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

/// An error of the byte stream, which the event parser passes on.
#[derive(Debug)]
pub(super) struct BytesError(pub(super) Error);

impl fmt::Display for BytesError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

impl std::error::Error for BytesError {}

impl Incoming {
    /// Returns the bytes of the body as they arrive. The stream owns the connection: dropping it closes the connection.
    pub(super) fn bytes(self, shared: &Shared) -> impl Stream<Item = Result<Bytes, BytesError>> + Send + use<> {
        let Self { response, deadline } = self;
        let Shared { server, limits, .. } = shared;
        let body = Body { response, deadline: Some(deadline), received: 0, limits: *limits, server: server.clone() };
        stream::try_unfold(body, |mut body| async {
            let bytes = body.next().await.map_err(BytesError)?;
            Ok(bytes.map(|bytes| (bytes, body)))
        })
    }
}

struct Body {
    response: Response,
    /// The deadline of the first byte, until it has arrived.
    deadline: Option<Instant>,
    received: usize,
    limits: Limits,
    server: std::sync::Arc<Server>,
}

impl Body {
    async fn next(&mut self) -> Result<Option<Bytes>> {
        let Self { response, deadline, received, limits, server } = self;
        let bytes = match deadline.take() {
            Some(deadline) => {
                timeout_at(deadline, response.chunk()).await.map_err(|_| server.timed_out("did not answer in time"))
            }
            None => timeout(limits.between_chunks, response.chunk())
                .await
                .map_err(|_| server.timed_out("stopped in the middle of a reply")),
        };
        let bytes = bytes?.map_err(|error| server.disconnected(error))?;
        *received += bytes.as_ref().map_or(0, Bytes::len);
        if *received > limits.max_bytes {
            return Err(server.too_large(limits.max_bytes));
        }
        Ok(bytes)
    }
}
