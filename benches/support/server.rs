//! A server on loopback that replays a recorded answer, with its tokens repeated.

use std::fmt::Write as _;
use std::io::Result;
use std::net::{SocketAddr, TcpListener as StdListener};
use std::sync::Arc;
use std::thread;

use serde_json::json;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};

/// A reply of llama.cpp to a request for a stream, as it was received.
const RECORDED: &str = include_str!("../../agent/tests/openai/streams/llama-cpp.txt");
/// The number of tokens of each answer.
const TOKENS: usize = 200;
/// The number of tokens of an answer that stalls.
pub(crate) const OPEN_TOKENS: usize = 100;

/// The form of an answer. Its name is the first segment of the request's path.
#[derive(Clone, Copy)]
pub(crate) enum Form {
    /// A stream, written with one call.
    Once,
    /// A stream, written with one call for each event.
    Pieces,
    /// A stream that stalls after `OPEN_TOKENS` tokens.
    Open,
    /// A whole answer.
    Whole,
}

impl Form {
    const ALL: [Self; 4] = [Self::Once, Self::Pieces, Self::Open, Self::Whole];

    const fn name(self) -> &'static str {
        match self {
            Self::Once => "once",
            Self::Pieces => "pieces",
            Self::Open => "open",
            Self::Whole => "whole",
        }
    }

    /// Returns the bytes of an answer, one vector for each write. As with real servers, each event is one chunk of the
    /// transfer encoding, even if several events are written at once.
    fn writes(self) -> Vec<Vec<u8>> {
        let head = "HTTP/1.1 200 OK\r\nserver: llama.cpp\r\ncontent-type: text/event-stream\r\n\
                    access-control-allow-origin: \r\nkeep-alive: timeout=5, max=100\r\ntransfer-encoding: chunked\r\n\r\n";
        let events = events();
        let first = events.iter().position(|event| is_token(event)).expect("a token");
        let chunks = events.iter().map(|event| format!("{:x}\r\n{event}\r\n", event.len()).into_bytes());
        let end = b"0\r\n\r\n".to_vec();
        match self {
            Self::Once => vec![[head.into()].into_iter().chain(chunks).chain([end]).flatten().collect()],
            Self::Pieces => [head.into()].into_iter().chain(chunks).chain([end]).collect(),
            Self::Open => vec![[head.into()].into_iter().chain(chunks.take(first + OPEN_TOKENS)).flatten().collect()],
            Self::Whole => vec![whole()],
        }
    }
}

/// Returns the events of a stream: the recorded events, with the tokens repeated.
fn events() -> Vec<String> {
    let recorded: Vec<_> = RECORDED.split_inclusive("\n\n").map(str::to_owned).collect();
    let first = recorded.iter().position(|event| is_token(event)).expect("a token");
    let tokens = recorded.iter().filter(|event| is_token(event)).cycle().take(TOKENS);
    let last = recorded.iter().skip(first).filter(|event| !is_token(event));
    recorded[..first].iter().chain(tokens).chain(last).cloned().collect()
}

fn is_token(event: &str) -> bool {
    event.contains(r#""content":""#)
}

/// Returns an answer that is not streamed: the text of the stream, in the JSON that llama.cpp sends.
fn whole() -> Vec<u8> {
    let tokens = events().into_iter().filter_map(|event| {
        let chunk: serde_json::Value = serde_json::from_str(event.strip_prefix("data: ")?).ok()?;
        Some(chunk["choices"][0]["delta"]["content"].as_str()?.to_owned())
    });
    let body = json!({
        "choices": [{
            "finish_reason": "length",
            "index": 0,
            "message": {"role": "assistant", "content": tokens.collect::<String>()},
        }],
        "created": 1_795_467_219,
        "model": "SmolLM2-135M-Instruct.Q4_1.gguf",
        "system_fingerprint": "b0-unknown",
        "object": "chat.completion",
        "usage": {
            "completion_tokens": 9,
            "prompt_tokens": 33,
            "total_tokens": 42,
            "prompt_tokens_details": {"cached_tokens": 0},
        },
        "id": "chatcmpl-vIXqzGIK1nuWpboDeKmKZ3kBW7fX27ic",
    });
    let body = body.to_string();
    let mut answer = "HTTP/1.1 200 OK\r\nserver: llama.cpp\r\ncontent-type: application/json\r\n".to_owned();
    let _ = write!(answer, "content-length: {}\r\n\r\n{body}", body.len());
    answer.into_bytes()
}

/// Starts a server on a thread of its own. The thread ends with the process.
pub(crate) fn start() -> SocketAddr {
    let listener = StdListener::bind("127.0.0.1:0").expect("a port");
    listener.set_nonblocking(true).expect("a socket that does not block");
    let address = listener.local_addr().expect("an address");
    let answers = Arc::new(Form::ALL.map(|form| (format!("POST /{}/", form.name()), form.writes())));
    thread::spawn(move || {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_io().build().expect("a runtime");
        runtime.block_on(async {
            let listener = TcpListener::from_std(listener).expect("a listener");
            while let Ok((socket, _)) = listener.accept().await {
                tokio::spawn(talk(socket, Arc::clone(&answers)));
            }
        });
    });
    address
}

/// Returns the base URL for answers of this form.
pub(crate) fn url(address: SocketAddr, form: Form) -> String {
    format!("http://{address}/{}/v1", form.name())
}

/// Answers the requests of a connection.
async fn talk(mut socket: TcpStream, answers: Arc<[(String, Vec<Vec<u8>>); 4]>) -> Result<()> {
    socket.set_nodelay(true)?;
    let mut request = Vec::new();
    while read(&mut socket, &mut request).await? {
        let answer = answers.iter().find(|(start, _)| request.starts_with(start.as_bytes()));
        for bytes in &answer.expect("the path of a form").1 {
            socket.write_all(bytes).await?;
        }
        request.clear();
    }
    Ok(())
}

/// Reads a request. Returns `false` at the end of the connection.
async fn read(socket: &mut TcpStream, request: &mut Vec<u8>) -> Result<bool> {
    loop {
        if socket.read_buf(request).await? == 0 {
            return Ok(false);
        }
        let Some(end) = request.windows(4).position(|window| window == b"\r\n\r\n") else { continue };
        let head = String::from_utf8_lossy(&request[..end]);
        let length = head.lines().find_map(|line| line.strip_prefix("content-length: ")?.parse().ok());
        if request.len() >= end + 4 + length.unwrap_or(0) {
            return Ok(true);
        }
    }
}
