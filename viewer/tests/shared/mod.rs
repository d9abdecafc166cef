//! A client of the page, without a browser.

use std::net::SocketAddr;

use emitree_viewer::Viewer;
use serde_json::Value;
use tokio::io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader, Lines};
use tokio::net::TcpStream;

pub(crate) type Result<T> = std::result::Result<T, Box<dyn std::error::Error>>;

/// A client that knows the token.
pub(crate) struct Client {
    pub(crate) address: SocketAddr,
    pub(crate) token: String,
}

impl Client {
    pub(crate) fn of<S>(viewer: &Viewer<S>) -> Result<Self> {
        let (address, url) = (viewer.address(), viewer.url());
        let token = url.split_once("token=").ok_or("no token")?.1.to_owned();
        assert_eq!(url, format!("http://{address}/#token={token}"));
        Ok(Self { address, token })
    }

    pub(crate) fn authorization(&self) -> String {
        format!("Authorization: Bearer {}\r\n", self.token)
    }

    pub(crate) async fn send(&self, request: &str) -> Result<TcpStream> {
        let mut stream = TcpStream::connect(self.address).await?;
        stream.write_all(request.as_bytes()).await?;
        Ok(stream)
    }

    /// Sends a request of which each header ends with a line end. Returns the head and the body of the answer.
    pub(crate) async fn ask(&self, line: &str, headers: &str) -> Result<(String, String)> {
        let mut stream = self.send(&format!("{line} HTTP/1.1\r\nConnection: close\r\n{headers}\r\n")).await?;
        let mut answer = String::new();
        stream.read_to_string(&mut answer).await?;
        let (head, body) = answer.split_once("\r\n\r\n").ok_or("no body")?;
        Ok((head.to_owned(), body.to_owned()))
    }

    pub(crate) async fn get(&self, path: &str) -> Result<(String, String)> {
        self.ask(&format!("GET {path}"), &format!("Host: {}\r\n{}", self.address, self.authorization())).await
    }

    /// Opens the feed of heads, after the event with an id.
    pub(crate) async fn feed(&self, after: &str) -> Result<Feed> {
        let (host, authorization) = (self.address, self.authorization());
        let after = if after.is_empty() { String::new() } else { format!("Last-Event-ID: {after}\r\n") };
        let stream = self.send(&format!("GET /heads HTTP/1.1\r\nHost: {host}\r\n{authorization}{after}\r\n")).await?;
        Ok(Feed { lines: BufReader::new(stream).lines(), id: String::new() })
    }
}

/// Server-sent events.
pub(crate) struct Feed {
    lines: Lines<BufReader<TcpStream>>,
    /// The id of the last event.
    pub(crate) id: String,
}

impl Feed {
    /// Waits for the next event.
    pub(crate) async fn next(&mut self) -> Result<(String, Value)> {
        let (mut name, mut data) = (String::new(), String::new());
        while let Some(line) = self.lines.next_line().await? {
            match line.split_once(':').map(|(field, value)| (field, value.trim_start())) {
                Some(("event", value)) => name = value.to_owned(),
                Some(("data", value)) => data.push_str(value),
                Some(("id", value)) => self.id = value.to_owned(),
                _ if line.is_empty() && !name.is_empty() => return Ok((name, serde_json::from_str(&data)?)),
                _ => {}
            }
        }
        Err("the feed has ended".into())
    }

    /// Waits for heads until there are this many, and returns their paths.
    pub(crate) async fn paths(&mut self, count: usize) -> Result<Vec<String>> {
        let mut paths = Vec::new();
        while paths.len() < count {
            let (name, data) = self.next().await?;
            assert!(name == "about" || name == "heads", "{name}: {data}");
            let heads = data["heads"].as_array().map(Vec::as_slice).unwrap_or_default();
            paths.extend(heads.iter().map(|head| head["path"].as_str().unwrap_or("?").to_owned()));
        }
        Ok(paths)
    }
}

pub(crate) fn status(answer: &(String, String)) -> &str {
    answer.0.split(' ').nth(1).unwrap_or_default()
}
