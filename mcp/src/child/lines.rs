//! The pipes of a process as a transport: one JSON message a line.

use std::io;
use std::sync::Arc;

use rmcp::RoleClient;
use rmcp::model::{ErrorCode, ErrorData, JsonRpcMessage, RequestId, ServerJsonRpcMessage};
use rmcp::service::{RxJsonRpcMessage, TxJsonRpcMessage};
use rmcp::transport::Transport;
use serde_json::Value;
use tokio::io::{AsyncBufReadExt, AsyncRead, AsyncWrite, AsyncWriteExt, BufReader};
use tokio::sync::Mutex;

use crate::connection::signals::{End, Signals};
use crate::text::quoted;

/// Reads and writes messages as lines. A line over the limit ends the connection, so that no call waits for an answer
/// that was dropped. A line that is no message is reported, because many servers print texts to stdout.
pub(crate) struct Lines<R, W> {
    input: BufReader<R>,
    /// The beginning of the next line.
    line: Vec<u8>,
    /// Lines are written whole, one after the other.
    output: Arc<Mutex<W>>,
    limit: usize,
    signals: Arc<Signals>,
}

impl<R: AsyncRead + Unpin, W> Lines<R, W> {
    pub(crate) fn new(input: R, output: W, limit: usize, signals: Arc<Signals>) -> Self {
        let (input, output) = (BufReader::with_capacity(64 << 10, input), Arc::new(Mutex::new(output)));
        Self { input, line: Vec::new(), output, limit, signals }
    }

    /// Reads a line into the buffer. A dropped future loses nothing: what was read stays in the buffer.
    async fn read_line(&mut self) -> Result<(), End> {
        loop {
            let bytes = self.input.fill_buf().await.map_err(|_| End::Closed)?;
            if bytes.is_empty() {
                return Err(End::Closed);
            }
            let end = memchr::memchr(b'\n', bytes);
            let part = &bytes[..end.unwrap_or(bytes.len())];
            if self.line.len() + part.len() > self.limit {
                return Err(End::TooLong { limit: self.limit });
            }
            self.line.extend_from_slice(part);
            let used = part.len() + usize::from(end.is_some());
            self.input.consume(used);
            if end.is_some() {
                return Ok(());
            }
        }
    }

    /// Returns the message of the line, and empties the buffer.
    fn take_message(&mut self) -> Option<ServerJsonRpcMessage> {
        let message = parse(&self.line, &self.signals);
        self.line.clear();
        message
    }
}

/// Reads a message. What is no message is reported; an answer that cannot be read becomes an error for its request.
fn parse(line: &[u8], signals: &Signals) -> Option<ServerJsonRpcMessage> {
    if line.iter().all(u8::is_ascii_whitespace) {
        return None;
    }
    if let Ok(message) = serde_json::from_slice(line) {
        return Some(message);
    }
    let text = quoted(&String::from_utf8_lossy(line));
    let answered = serde_json::from_slice::<Value>(line).ok().filter(|message| message.get("method").is_none());
    let id = answered.and_then(|message| serde_json::from_value::<RequestId>(message["id"].clone()).ok());
    let Some(id) = id else {
        signals.stray(text);
        return None;
    };
    let message = format!("the answer is no message of JSON-RPC: `{text}`");
    Some(JsonRpcMessage::error(ErrorData::new(ErrorCode::INTERNAL_ERROR, message, None), Some(id)))
}

impl<R, W> Transport<RoleClient> for Lines<R, W>
where
    R: AsyncRead + Unpin + Send + 'static,
    W: AsyncWrite + Unpin + Send + 'static,
{
    type Error = io::Error;

    fn send(
        &mut self,
        message: TxJsonRpcMessage<RoleClient>,
    ) -> impl Future<Output = Result<(), io::Error>> + Send + 'static {
        let line = serde_json::to_vec(&message);
        let output = Arc::clone(&self.output);
        async move {
            let mut line = line?;
            line.push(b'\n');
            let mut output = output.lock().await;
            output.write_all(&line).await?;
            output.flush().await
        }
    }

    async fn receive(&mut self) -> Option<RxJsonRpcMessage<RoleClient>> {
        loop {
            if let Err(end) = self.read_line().await {
                // Half a line is no message, but may say why there is no whole one.
                if matches!(end, End::Closed) && !self.line.is_empty() {
                    self.signals.stray(quoted(&String::from_utf8_lossy(&self.line)));
                }
                self.signals.end(end);
                return None;
            }
            if let Some(message) = self.take_message() {
                return Some(message);
            }
        }
    }

    async fn close(&mut self) -> Result<(), io::Error> {
        Ok(())
    }
}
