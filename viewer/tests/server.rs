//! The server sends records only to who knows the token, and each reader receives each head once (V1, V3).

mod shared;

use std::fs::{self, OpenOptions};
use std::io::{ErrorKind, Write};
use std::net::SocketAddr;
use std::ops::Deref;
use std::path::PathBuf;

use emitree_emitter::Emitter;
use emitree_sinks::JsonlFile;
use emitree_sinks::runs::{RecordingFile, Source};
use emitree_viewer::{Viewer, ViewerError};
use serde_json::{Value, json};
use tempfile::TempDir;
use tokio::io::{AsyncReadExt, AsyncWriteExt};

use crate::shared::{Client, Result, status};

struct Server {
    client: Client,
    viewer: Viewer<RecordingFile>,
    path: PathBuf,
    folder: TempDir,
}

impl Deref for Server {
    type Target = Client;

    fn deref(&self) -> &Client {
        &self.client
    }
}

impl Server {
    async fn start() -> Result<Self> {
        let folder = tempfile::tempdir()?;
        Self::again(folder, None).await
    }

    async fn again(folder: TempDir, token: Option<(&str, SocketAddr)>) -> Result<Self> {
        let path = folder.path().join("run.jsonl");
        let viewer = loop {
            let address = token.map_or_else(|| "127.0.0.1:0".to_owned(), |(_, address)| address.to_string());
            let mut options = Viewer::bind(address).source(RecordingFile::new(&path)).title("a <title>");
            if let Some((token, _)) = token {
                options = options.token(token);
            }
            match options.await {
                // The task of a viewer that was dropped closes its listener when it is next polled.
                Err(ViewerError::Listen { source, .. }) if source.kind() == ErrorKind::AddrInUse => {
                    tokio::task::yield_now().await;
                }
                viewer => break viewer?,
            }
        };
        Ok(Self { client: Client::of(&viewer)?, viewer, path, folder })
    }

    /// Stops the server, and starts another one on the same port with the same token.
    async fn restart(self) -> Result<Self> {
        drop(self.viewer);
        Self::again(self.folder, Some((&self.client.token, self.client.address))).await
    }

    async fn record(&self, numbers: impl IntoIterator<Item = u32>) -> Result<()> {
        let emitter = Emitter::new();
        let handle = emitter.pipe_to(JsonlFile::open(&self.path)?).map_err(|error| error.to_string())?;
        for mut number in numbers {
            emitter.emit(format!("n{number}"), &mut number).await.map_err(|error| error.to_string())?;
        }
        handle.close(std::time::Duration::MAX).await.complete()?;
        Ok(())
    }
}

const RECORDS: [&str; 3] = ["/heads", "/record/0-0-1", "/nothing"];
const SHELL: [&str; 3] = ["/", "/style.css", "/live.js"];

#[tokio::test]
async fn the_shell_needs_no_token() -> Result<()> {
    let server = Server::start().await?;
    let host = format!("Host: {}\r\n", server.address);
    for path in SHELL {
        assert_eq!(status(&server.ask(&format!("GET {path}"), &host).await?), "200", "{path}");
    }
    Ok(())
}

#[tokio::test]
async fn records_are_sent_only_with_the_token_as_a_header() -> Result<()> {
    let server = Server::start().await?;
    server.record(0..1).await?;
    let cursor = RecordingFile::new(&server.path).heads(None, 1)?.heads[0].cursor;
    let (host, right, token) = (format!("Host: {}\r\n", server.address), server.authorization(), &server.token);
    let path = format!("GET /record/{cursor}");
    assert_eq!(status(&server.ask(&path, &format!("{host}{right}")).await?), "200");
    let bearer = |token: &str| format!("Authorization: Bearer {token}\r\n");
    let headers = [
        String::new(),
        bearer(""),
        bearer(&token[1..]),
        bearer(&format!("{token}0")),
        bearer(&format!("0000{}", &token[4..])),
        format!("Authorization: Basic {token}\r\n"),
        format!("Authorization: {token}\r\n"),
        format!("{right}{right}"),
        format!("Cookie: emitree_view_{}={token}\r\n", server.address.port()),
    ];
    for path in [&*path, "GET /heads", "GET /nothing", &format!("GET /heads?token={token}")] {
        for headers in &headers {
            let answer = server.ask(path, &format!("{host}{headers}")).await?;
            assert_eq!(status(&answer), "401", "{path} {headers}");
            assert!(answer.1.contains("open the address that was printed"), "{}", answer.1);
        }
    }
    Ok(())
}

#[tokio::test]
async fn a_request_for_another_host_is_refused() -> Result<()> {
    let server = Server::start().await?;
    for path in SHELL.into_iter().chain(RECORDS) {
        for host in ["evil.example", "127.0.0.1.evil.example", ""] {
            let headers = format!("Host: {host}\r\n{}", server.authorization());
            let answer = server.ask(&format!("GET {path}"), &headers).await?;
            assert_eq!(status(&answer), "403", "{path} {host}");
            assert!(answer.1.contains(&format!("`{host}`")), "{}", answer.1);
        }
    }
    Ok(())
}

#[tokio::test]
async fn no_answer_redirects_or_sets_a_cookie() -> Result<()> {
    let server = Server::start().await?;
    let token = &server.token;
    let host = format!("Host: {}\r\n", server.address);
    for path in ["/", "//evil.example/", "//evil.example/..", "/\\evil.example", "/heads/", "http://evil.example/"] {
        for query in [String::new(), format!("?token={token}")] {
            for headers in [host.clone(), format!("{host}{}", server.authorization())] {
                let (head, _) = server.ask(&format!("GET {path}{query}"), &headers).await?;
                assert!(!head.starts_with("HTTP/1.1 3"), "{path}: {head}");
                let head = head.to_lowercase();
                assert!(!head.contains("\r\nlocation:") && !head.contains("\r\nset-cookie:"), "{path}: {head}");
            }
        }
    }
    Ok(())
}

#[tokio::test]
async fn only_get_is_answered_and_each_answer_has_the_policy() -> Result<()> {
    let server = Server::start().await?;
    let headers = format!("Host: {}\r\n{}", server.address, server.authorization());
    for path in ["/", "/heads", "/style.css", "/record/0-0-1"] {
        for method in ["POST", "PUT", "DELETE", "OPTIONS"] {
            assert_eq!(status(&server.ask(&format!("{method} {path}"), &headers).await?), "405", "{method} {path}");
        }
    }
    for path in SHELL.into_iter().chain(["/record/0-0-1", "/nothing"]) {
        for headers in [&headers, "Host: evil.example\r\n", "Host: localhost\r\n"] {
            let (head, _) = server.ask(&format!("GET {path}"), headers).await?;
            let policy = "\r\ncontent-security-policy: default-src 'none'; script-src 'self';";
            assert!(head.contains(policy), "{path}: {head}");
            assert!(head.contains("\r\nx-content-type-options: nosniff"), "{path}: {head}");
            assert!(head.contains("\r\nreferrer-policy: no-referrer"), "{path}: {head}");
        }
    }
    Ok(())
}

/// The clock is paused, so it goes on to the next timer whenever the program only waits.
#[tokio::test(start_paused = true)]
async fn a_request_head_that_does_not_end_within_10_s_is_closed() -> Result<()> {
    let server = Server::start().await?;
    let answered = format!("GET / HTTP/1.1\r\nHost: {}\r\n\r\n", server.address);
    // Nothing, the half of a head, and the half of a second head.
    for sent in ["", "GET / HTTP/1.1\r\nHost: ", &format!("{answered}GET / HTTP/1.1\r\n")] {
        let mut stream = server.send(sent).await?;
        let began = tokio::time::Instant::now();
        let mut answer = Vec::new();
        // A connection that is reset is closed as well.
        let _ = stream.read_to_end(&mut answer).await;
        assert_eq!(began.elapsed().as_secs(), 10, "{sent}");
        assert_eq!(answer.starts_with(b"HTTP/1.1 200"), sent.starts_with(&answered), "{sent}");
    }
    Ok(())
}

/// Sends a request, and reads the beginning of its answer.
async fn answered(server: &Server, stream: &mut tokio::net::TcpStream, headers: &str) -> Result<String> {
    let request = format!("GET /record/0-0-1 HTTP/1.1\r\nHost: {}\r\n{headers}\r\n", server.address);
    stream.write_all(request.as_bytes()).await?;
    let mut answer = [0; 12];
    stream.read_exact(&mut answer).await?;
    Ok(String::from_utf8(answer.to_vec())?)
}

#[tokio::test]
async fn of_65_connections_without_a_valid_request_the_oldest_is_closed() -> Result<()> {
    let server = Server::start().await?;
    // These connections have the token, so they stay open, and do not count.
    let mut feed = server.feed("").await?;
    feed.next().await?;
    let mut known = server.send("").await?;
    assert_eq!(answered(&server, &mut known, &server.authorization()).await?, "HTTP/1.1 404");
    let mut unknown = Vec::new();
    for _ in 0..65 {
        unknown.push(server.send("").await?);
    }
    let mut oldest = unknown.remove(0);
    assert_eq!(oldest.read(&mut [0; 1]).await?, 0);
    // All others are still there, whether or not they send a request.
    for stream in &mut unknown {
        assert_eq!(answered(&server, stream, "").await?, "HTTP/1.1 401");
    }
    assert_eq!(answered(&server, &mut server.send("").await?, &server.authorization()).await?, "HTTP/1.1 404");
    server.record(0..1).await?;
    assert_eq!(feed.paths(1).await?, ["n0"]);
    Ok(())
}

#[tokio::test]
async fn an_address_that_other_machines_reach_has_to_be_allowed() -> Result<()> {
    let error = Viewer::bind("0.0.0.0:0").await.expect_err("it was not allowed");
    assert!(matches!(error, ViewerError::Remote(_)) && error.to_string().starts_with("`0.0.0.0:0` "), "{error}");
    let viewer = Viewer::bind("0.0.0.0:0").allow_remote().await?;
    assert!(viewer.address().ip().is_unspecified());
    let error = Viewer::bind("nonsense").await.expect_err("it is no address");
    assert_eq!(error.to_string(), "could not listen on `nonsense`");
    Ok(())
}

#[tokio::test]
async fn a_token_that_is_short_or_needs_an_escape_is_refused() -> Result<()> {
    for token in ["", "123456789012345", "1234567890123456;", "1234567890 123456", "äöüäöüäöüäöü"] {
        let bound = Viewer::bind("127.0.0.1:0").token(token).await;
        assert!(matches!(bound, Err(ViewerError::Token)), "{token}");
    }
    let viewer = Viewer::bind("127.0.0.1:0").token("1234567890-ABC_x").await?;
    assert!(viewer.url().ends_with("/#token=1234567890-ABC_x"));
    Ok(())
}

#[tokio::test]
async fn a_record_is_read_by_its_cursor_and_an_unknown_cursor_is_quoted() -> Result<()> {
    let server = Server::start().await?;
    server.record(4..6).await?;
    let second = RecordingFile::new(&server.path).heads(None, 2)?.heads[1].cursor;
    let (_, record) = server.get(&format!("/record/{second}")).await?;
    assert_eq!(serde_json::from_str::<Value>(&record)?["payload"], 5);
    for (cursor, expected) in [("nonsense", "400"), ("0-0-1", "404")] {
        let answer = server.get(&format!("/record/{cursor}")).await?;
        assert_eq!(status(&answer), expected);
        assert!(answer.1.contains(&format!("`{cursor}`")), "{}", answer.1);
    }
    Ok(())
}

#[tokio::test]
async fn a_reader_follows_the_recording_and_continues_after_the_last_id() -> Result<()> {
    let server = Server::start().await?;
    let mut feed = server.feed("").await?;
    assert_eq!(feed.next().await?, ("about".to_owned(), json!({"title": "a <title>"})));
    assert_eq!(feed.next().await?.1, json!({"recording": "0", "heads": [], "end": true, "incomplete": 0}));
    server.record(0..2).await?;
    assert_eq!(feed.paths(2).await?, ["n0", "n1"]);
    server.record(2..3).await?;
    assert_eq!(feed.paths(1).await?, ["n2"]);
    let last = feed.id.clone();
    drop(feed);
    server.record(3..5).await?;
    assert_eq!(server.feed(&last).await?.paths(2).await?, ["n3", "n4"]);
    let server = server.restart().await?;
    assert_eq!(server.feed(&last).await?.paths(2).await?, ["n3", "n4"], "after a restart of the server");
    Ok(())
}

#[tokio::test]
async fn a_long_recording_arrives_in_batches_of_500() -> Result<()> {
    let server = Server::start().await?;
    server.record(0..1201).await?;
    let mut feed = server.feed("").await?;
    feed.next().await?;
    let mut sizes = Vec::new();
    while sizes.iter().sum::<usize>() < 1201 {
        let (_, data) = feed.next().await?;
        sizes.push(data["heads"].as_array().ok_or("no heads")?.len());
    }
    assert_eq!(sizes, [500, 500, 201]);
    Ok(())
}

#[tokio::test]
async fn a_recording_that_begins_anew_is_announced_and_the_old_id_is_forgotten() -> Result<()> {
    let server = Server::start().await?;
    server.record(0..3).await?;
    let mut feed = server.feed("").await?;
    feed.paths(3).await?;
    let old = feed.id.clone();
    fs::write(&server.path, "")?;
    assert_eq!(feed.next().await?.0, "restart");
    assert_eq!(feed.id, "");
    server.record(7..9).await?;
    assert_eq!(feed.paths(2).await?, ["n7", "n8"]);
    let mut late = server.feed(&old).await?;
    let names = [late.next().await?.0, late.next().await?.0];
    assert_eq!(names, ["about", "restart"]);
    assert_eq!(late.paths(2).await?, ["n7", "n8"]);
    Ok(())
}

#[tokio::test]
async fn an_id_that_the_recording_never_had_is_quoted() -> Result<()> {
    let server = Server::start().await?;
    server.record(0..2).await?;
    let answer = {
        let headers = format!("Host: {}\r\n{}Last-Event-ID: nonsense\r\n", server.address, server.authorization());
        server.ask("GET /heads", &headers).await?
    };
    assert_eq!((status(&answer), answer.1.contains("`nonsense`")), ("400", true));
    let first = RecordingFile::new(&server.path).heads(None, 1)?.heads[0].cursor;
    let inside = emitree_sinks::runs::Cursor { position: 1, ..first };
    let mut feed = server.feed(&inside.to_string()).await?;
    feed.next().await?;
    let (name, fault) = feed.next().await?;
    assert_eq!((name.as_str(), fault.to_string().contains(&format!("`{inside}`"))), ("fault", true), "{fault}");
    Ok(())
}

#[tokio::test]
async fn the_page_learns_of_a_line_that_is_not_complete() -> Result<()> {
    let server = Server::start().await?;
    server.record(0..1).await?;
    let mut feed = server.feed("").await?;
    feed.paths(1).await?;
    OpenOptions::new().append(true).open(&server.path)?.write_all(b"{\"id\":")?;
    let (_, data) = feed.next().await?;
    assert_eq!((&data["end"], &data["incomplete"], &data["heads"]), (&json!(true), &json!(6), &json!([])));
    Ok(())
}
