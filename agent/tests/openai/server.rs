//! A server on loopback that answers each request with bytes from a script.

use std::io::{ErrorKind, Result};
use std::sync::Arc;
use std::time::Duration;

use emitree_agent::{ChatModel, OpenAi, OpenAiBuilder};
use parking_lot::Mutex;
use serde_json::Value;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::Semaphore;

/// The answer to one request.
#[derive(Clone, Debug)]
pub(super) struct Answer {
    bytes: Vec<u8>,
    then: Then,
}

/// The behavior of the server after the bytes of an answer.
#[derive(Clone, Debug, PartialEq)]
enum Then {
    /// The connection waits for the next request.
    Open,
    Closed,
    /// The connection ends with a reset, which a client sees as an error.
    Reset,
    /// The connection stays open, and nothing is sent.
    Stalled,
    /// The same bytes are sent several times, each time after a pause. Then the stream ends.
    Slow {
        pause: Duration,
        times: usize,
        piece: Vec<u8>,
    },
}

impl Answer {
    pub(super) fn new(status: &str, headers: &[(&str, &str)], body: impl AsRef<[u8]>) -> Self {
        let body = body.as_ref();
        let mut bytes = format!("HTTP/1.1 {status}\r\ncontent-length: {}\r\n", body.len());
        for (name, value) in headers {
            bytes += &format!("{name}: {value}\r\n");
        }
        let bytes = [bytes.as_bytes(), b"\r\n", body].concat();
        Self { bytes, then: Then::Open }
    }

    pub(super) fn json(status: &str, body: &Value) -> Self {
        Self::new(status, &[("content-type", "application/json")], body.to_string())
    }

    /// A stream of pieces. Each piece is a chunk of the transfer encoding, so the client receives each piece separately.
    pub(super) fn stream<'a>(pieces: impl IntoIterator<Item = &'a [u8]>) -> Self {
        let mut answer = Self::open_stream(pieces);
        answer.bytes.extend_from_slice(b"0\r\n\r\n");
        answer
    }

    /// A stream that does not end.
    pub(super) fn open_stream<'a>(pieces: impl IntoIterator<Item = &'a [u8]>) -> Self {
        let head = "HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\nx-request-id: r1\r\n\
                    x-ratelimit-remaining-tokens: 17\r\ntransfer-encoding: chunked\r\n\r\n";
        let mut bytes = head.as_bytes().to_vec();
        for piece in pieces.into_iter().filter(|piece| !piece.is_empty()) {
            bytes.extend_from_slice(format!("{:x}\r\n", piece.len()).as_bytes());
            bytes.extend_from_slice(piece);
            bytes.extend_from_slice(b"\r\n");
        }
        Self { bytes, then: Then::Open }
    }

    /// A response that has a `content-length`, but whose body never arrives completely.
    pub(super) fn endless(status: &str, text: &str) -> Self {
        let head = format!("HTTP/1.1 {status}\r\ncontent-type: application/json\r\ncontent-length: 1000000\r\n\r\n");
        Self { bytes: (head + text).into_bytes(), then: Then::Stalled }
    }

    /// A stream that sends this piece `times` times, with a pause before each piece, and then ends.
    pub(super) fn slow(pause: Duration, times: usize, piece: &[u8]) -> Self {
        let Self { bytes, .. } = Self::open_stream([]);
        let piece = [format!("{:x}\r\n", piece.len()).as_bytes(), piece, b"\r\n"].concat();
        Self { bytes, then: Then::Slow { pause, times, piece } }
    }

    /// A connection that ends before a byte is sent.
    pub(super) const fn nothing() -> Self {
        Self { bytes: Vec::new(), then: Then::Closed }
    }

    pub(super) fn then_close(mut self) -> Self {
        self.then = Then::Closed;
        self
    }

    pub(super) fn then_reset(mut self) -> Self {
        self.then = Then::Reset;
        self
    }

    pub(super) fn then_stall(mut self) -> Self {
        self.then = Then::Stalled;
        self
    }
}

/// A request that the server has received.
#[derive(Clone, Debug)]
pub(super) struct Request {
    /// The request line and the headers.
    pub(super) head: String,
    pub(super) body: Value,
}

#[derive(Clone, Debug)]
pub(super) struct Server {
    address: std::net::SocketAddr,
    shared: Arc<Shared>,
}

#[derive(Debug)]
struct Shared {
    answers: Mutex<Vec<Answer>>,
    requests: Mutex<Vec<Request>>,
    connections: Mutex<usize>,
    /// A permit for each request that the server has answered.
    answered: Semaphore,
    /// A permit for each connection that the client has closed.
    closed: Semaphore,
}

impl Server {
    /// Starts a server that takes the next answer for each request, whichever connection the request arrives on.
    pub(super) async fn start(answers: impl IntoIterator<Item = Answer>) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
        let address = listener.local_addr().expect("an address");
        let mut answers: Vec<_> = answers.into_iter().collect();
        answers.reverse();
        let shared = Arc::new(Shared {
            answers: Mutex::new(answers),
            requests: Mutex::default(),
            connections: Mutex::default(),
            answered: Semaphore::new(0),
            closed: Semaphore::new(0),
        });
        let server = Arc::clone(&shared);
        tokio::spawn(async move {
            while let Ok((socket, _)) = listener.accept().await {
                *server.connections.lock() += 1;
                let server = Arc::clone(&server);
                tokio::spawn(async move {
                    if server.talk(socket).await.is_ok() {
                        server.closed.add_permits(1);
                    }
                });
            }
        });
        Self { address, shared }
    }

    pub(super) fn url(&self) -> String {
        format!("http://{}/v1", self.address)
    }

    pub(super) fn provider(&self) -> OpenAiBuilder {
        OpenAi::builder("m-1").base_url(self.url())
    }

    pub(super) fn model(&self) -> ChatModel {
        ChatModel::new(self.provider().build().expect("a provider")).expect("a model")
    }

    pub(super) fn requests(&self) -> Vec<Request> {
        self.shared.requests.lock().clone()
    }

    pub(super) fn connections(&self) -> usize {
        *self.shared.connections.lock()
    }

    /// Waits until a request has been received, and the bytes of its answer have been sent.
    pub(super) async fn receives(&self) {
        self.shared.answered.acquire().await.expect("an open semaphore").forget();
    }

    /// Waits until the client has closed a connection.
    pub(super) async fn client_closes(&self) {
        self.shared.closed.acquire().await.expect("an open semaphore").forget();
    }
}

impl Shared {
    /// Answers the requests of a connection. Returns `Ok` if the client closed the connection.
    async fn talk(&self, mut socket: TcpStream) -> Result<()> {
        socket.set_nodelay(true)?;
        while let Some(request) = read(&mut socket).await? {
            self.requests.lock().push(request);
            let answer = self.answers.lock().pop().ok_or(ErrorKind::UnexpectedEof)?;
            socket.write_all(&answer.bytes).await?;
            self.answered.add_permits(1);
            match answer.then {
                Then::Open => {}
                Then::Closed => return Err(ErrorKind::ConnectionAborted.into()),
                Then::Reset => {
                    // Give the client time to read the bytes, because the reset discards unread bytes.
                    tokio::time::sleep(Duration::from_millis(20)).await;
                    #[expect(deprecated, reason = "a linger of zero does not block, and is what sends a reset")]
                    socket.set_linger(Some(Duration::ZERO))?;
                    return Err(ErrorKind::ConnectionReset.into());
                }
                Then::Slow { pause, times, piece } => {
                    for _ in 0..times {
                        tokio::time::sleep(pause).await;
                        socket.write_all(&piece).await?;
                    }
                    socket.write_all(b"e\r\ndata: [DONE]\n\n\r\n0\r\n\r\n").await?;
                }
                Then::Stalled => {
                    // The end of the connection and a reset both mean that the client has closed the connection.
                    let _ = socket.read(&mut [0; 1]).await;
                    return Ok(());
                }
            }
        }
        Ok(())
    }
}

/// Reads a request, or returns `None` at the end of the connection.
async fn read(socket: &mut TcpStream) -> Result<Option<Request>> {
    let mut bytes = Vec::new();
    let mut buffer = [0; 4096];
    loop {
        if let Some(end) = bytes.windows(4).position(|window| window == b"\r\n\r\n") {
            let head = String::from_utf8_lossy(&bytes[..end]).to_ascii_lowercase();
            let length = head.lines().find_map(|line| line.strip_prefix("content-length: "));
            let length: usize = length.and_then(|length| length.parse().ok()).unwrap_or(0);
            if bytes.len() >= end + 4 + length {
                let body = serde_json::from_slice(&bytes[end + 4..]).unwrap_or_default();
                return Ok(Some(Request { head, body }));
            }
        }
        match socket.read(&mut buffer).await? {
            0 => return Ok(None),
            n => bytes.extend_from_slice(&buffer[..n]),
        }
    }
}
