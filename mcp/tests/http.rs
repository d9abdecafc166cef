//! Servers over HTTP: whose connection it is, and what a server answers instead.

#![cfg(feature = "http")]

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use emitree_agent::{Agent, ChatModel, Reply, ScriptedModel};
use emitree_emitter::{AnyEvent, Emitter};
use emitree_mcp::{Era, Limits, McpServer};
use parking_lot::Mutex;
use serde_json::{Value, json};
use tokio::io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader};
use tokio::net::{TcpListener, TcpStream};

/// A server without sessions. Its tool `who` returns the user of the request's header.
#[derive(Clone, Default)]
struct Server {
    /// The methods and the users of the requests.
    seen: Arc<Mutex<Vec<(String, String)>>>,
    calls: Arc<AtomicUsize>,
    is_public: bool,
}

impl Server {
    fn answer(&self, headers: &Headers, request: &Value) -> Option<Value> {
        let user = headers.get("authorization").map_or("nobody", String::as_str);
        let method = request["method"].as_str()?.to_owned();
        self.seen.lock().push((method.clone(), user.to_owned()));
        let result = match &*method {
            "server/discover" => json!({
                "resultType": "complete", "supportedVersions": ["2026-07-28"], "ttlMs": 0, "cacheScope": "private",
                "capabilities": {"tools": {}},
            }),
            "tools/list" => json!({
                "resultType": "complete", "ttlMs": 60_000, "cacheScope": if self.is_public { "public" } else { "private" },
                "tools": [
                    {"name": "who", "description": user, "inputSchema": {"type": "object"}},
                    {"name": "leak", "inputSchema": {"type": "object"}},
                ],
            }),
            "tools/call" if request["params"]["name"] == "leak" => {
                let error = json!({"code": -32000, "message": format!("the token {user} is wrong")});
                return Some(json!({"jsonrpc": "2.0", "id": request["id"], "error": error}));
            }
            "tools/call" => {
                self.calls.fetch_add(1, Ordering::Relaxed);
                json!({"resultType": "complete", "content": [{"type": "text", "text": user}]})
            }
            _ => return None,
        };
        Some(json!({"jsonrpc": "2.0", "id": request["id"], "result": result}))
    }
}

type Headers = HashMap<String, String>;

/// The status, the headers and the body of a response.
type Response = (u16, Vec<(String, String)>, String);

/// Starts a server, and returns its address.
async fn serve(respond: impl Fn(&Headers, &Value) -> Response + Send + Sync + 'static) -> String {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("http://{}/mcp", listener.local_addr().unwrap());
    let respond = Arc::new(respond);
    tokio::spawn(async move {
        while let Ok((stream, _)) = listener.accept().await {
            let respond = Arc::clone(&respond);
            tokio::spawn(async move { serve_connection(stream, &*respond).await });
        }
    });
    url
}

/// Answers the requests of a connection, until it is closed.
async fn serve_connection(stream: TcpStream, respond: &(impl Fn(&Headers, &Value) -> Response + Sync)) {
    let mut stream = BufReader::new(stream);
    loop {
        let (mut headers, mut line) = (Headers::new(), String::new());
        loop {
            line.clear();
            if stream.read_line(&mut line).await.unwrap_or(0) == 0 {
                return;
            }
            match line.trim_end().split_once(": ") {
                Some((name, value)) => drop(headers.insert(name.to_ascii_lowercase(), value.to_owned())),
                None if line.trim_end().is_empty() => break,
                None => {}
            }
        }
        let length = headers.get("content-length").map_or(0, |length| length.parse().unwrap());
        let mut body = vec![0; length];
        stream.read_exact(&mut body).await.unwrap();
        let (status, headers, body) = respond(&headers, &serde_json::from_slice(&body).unwrap_or_default());
        let headers: String = headers.iter().map(|(name, value)| format!("{name}: {value}\r\n")).collect();
        let head = format!("HTTP/1.1 {status} Status\r\n{headers}content-length: {}\r\n\r\n", body.len());
        if stream.write_all((head + &body).as_bytes()).await.is_err() {
            return;
        }
    }
}

async fn start(server: Server) -> String {
    let respond = move |headers: &Headers, request: &Value| match server.answer(headers, request) {
        Some(answer) => (200, vec![("content-type".to_owned(), "application/json".to_owned())], answer.to_string()),
        None => (202, Vec::new(), String::new()),
    };
    serve(respond).await
}

/// Answers each request with a status and a header.
async fn always(status: u16, header: Option<(&str, &str)>) -> String {
    let headers: Vec<_> = header.into_iter().map(|(name, value)| (name.to_owned(), value.to_owned())).collect();
    serve(move |_, _| (status, headers.clone(), String::new())).await
}

struct User(String);

/// An agent that calls a tool once in each run.
fn agent(server: &McpServer, tool: &'static str) -> Agent {
    let model = ScriptedModel::by("test", move |request| {
        let last = request.messages.last().cloned();
        match last.iter().flat_map(|message| message.tool_results()).next() {
            Some(result) => Reply::text(result.response.as_str().unwrap_or_default()),
            None => Reply::calls([(tool, json!({}))]),
        }
    });
    Agent::builder("client", ChatModel::new(model).unwrap()).with(server.tools()).build().unwrap()
}

async fn by_user(url: &str) -> McpServer {
    let server = McpServer::http(url).name("wiki").era(Era::New);
    let user = |ctx: &emitree_runtime::RunContext| ctx.extension::<User>().map(|user| user.0.clone());
    server.header_from("authorization", user).connect().await.unwrap()
}

async fn error_of(url: &str) -> String {
    let connecting = McpServer::http(url).name("wiki").connect_timeout(Duration::from_secs(5)).connect();
    connecting.await.unwrap_err().to_string()
}

#[tokio::test]
async fn nothing_is_sent_before_the_first_turn() {
    let server = Server::default();
    let wiki = by_user(&start(server.clone()).await).await;
    assert_eq!(server.seen.lock().len(), 0);
    let answer = agent(&wiki, "who").ask("Who am I?").extension(User("ada".to_owned())).await.unwrap();
    assert_eq!(answer.text(), "ada");
    let methods: Vec<_> = server.seen.lock().iter().map(|(method, _)| method.clone()).collect();
    assert_eq!(methods, ["server/discover", "tools/list", "tools/call"]);
}

// P5
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn no_result_and_no_list_of_a_thousand_calls_crosses_between_two_users() {
    let server = Server::default();
    let wiki = by_user(&start(server.clone()).await).await;
    let agent = agent(&wiki, "who");
    let runs = (0..1_000).map(|n| {
        let user = format!("user-{}", n % 2);
        let run = agent.ask("Who am I?").extension(User(user.clone()));
        async move { assert_eq!(run.await.unwrap().text(), user) }
    });
    futures_util::future::join_all(runs).await;
    assert_eq!(server.calls.load(Ordering::Relaxed), 1_000);
    let connections = server.seen.lock().iter().filter(|(method, _)| method == "server/discover").count();
    assert_eq!(connections, 2);
}

#[tokio::test]
async fn a_public_list_is_shared_between_users_and_another_is_not() {
    for (is_public, lists) in [(true, 1), (false, 3)] {
        let server = Server { is_public, ..Server::default() };
        let wiki = by_user(&start(server.clone()).await).await;
        for user in ["ada", "bob", "eve"] {
            let answer = agent(&wiki, "who").ask("Who am I?").extension(User(user.to_owned())).await.unwrap();
            assert_eq!(answer.text(), user);
        }
        assert_eq!(server.seen.lock().iter().filter(|(method, _)| method == "tools/list").count(), lists);
    }
}

#[tokio::test]
async fn a_run_without_a_value_fails_unless_that_is_allowed() {
    let url = start(Server::default()).await;
    let wiki = by_user(&url).await;
    let error = agent(&wiki, "who").ask("Who am I?").await.unwrap_err().to_string();
    assert!(error.contains("the header `authorization` has no value for this run"), "{error}");
    let open = McpServer::http(&*url).name("wiki").header_from("authorization", |_| None).anonymous();
    let open = open.connect().await.unwrap();
    assert_eq!(agent(&open, "who").ask("Who am I?").await.unwrap().text(), "nobody");
}

#[tokio::test]
async fn at_most_sixty_four_connections_are_kept() {
    let server = Server::default();
    let wiki = by_user(&start(server.clone()).await).await;
    let agent = agent(&wiki, "who");
    for n in (0..70).chain([69, 0]) {
        let answer = agent.ask("Who am I?").extension(User(format!("user-{n}"))).await.unwrap();
        assert_eq!(answer.text(), format!("user-{n}"));
    }
    // The last user still has a connection, and the first one needs a new one.
    assert_eq!(server.seen.lock().iter().filter(|(method, _)| method == "server/discover").count(), 71);
}

// P5
#[tokio::test]
async fn a_header_value_is_in_no_error_and_no_event() {
    let events = Arc::new(Mutex::new(String::new()));
    let all = Arc::clone(&events);
    let observe = move |event: &dyn AnyEvent, _: &emitree_emitter::EventMeta<'_>| {
        all.lock().push_str(&event.to_json().to_string());
    };
    let observer = Emitter::root().observe("mcp.*.*", observe).unwrap();
    let wiki = by_user(&start(Server::default()).await).await;
    let answer = agent(&wiki, "leak").ask("Go on.").extension(User("Bearer tide-lamp-4711".to_owned())).await.unwrap();
    assert!(answer.text().contains("the token [hidden] [hidden] is wrong"), "{}", answer.text());
    observer.off();
    assert!(!events.lock().contains("tide-lamp"));
}

#[tokio::test]
async fn refused_credentials_are_errors_with_the_challenge() {
    let url = always(401, Some(("www-authenticate", "Bearer realm=\"wiki\""))).await;
    let expected =
        "the MCP server `wiki` has refused the request with the status 401, and asks for `Bearer realm=\"wiki\"`";
    assert_eq!(error_of(&url).await, expected);
    for status in [401, 403] {
        let expected = format!("the MCP server `wiki` has refused the request with the status {status}");
        assert_eq!(error_of(&always(status, None).await).await, expected);
    }
}

#[tokio::test]
async fn a_busy_or_broken_server_is_an_error_and_not_of_the_old_era() {
    for status in [429, 500, 502, 503] {
        let expected = format!("the MCP server `wiki` has answered with the status {status}");
        assert_eq!(error_of(&always(status, None).await).await, expected);
    }
}

#[tokio::test]
async fn a_redirect_to_another_origin_is_not_followed() {
    let server = Server::default();
    let elsewhere = start(server.clone()).await;
    for status in [301, 302, 307, 308] {
        let error = error_of(&always(status, Some(("location", &*elsewhere))).await).await;
        assert!(error.starts_with("the MCP server `wiki` cannot be reached: "), "{error}");
    }
    assert_eq!(server.seen.lock().len(), 0);
}

#[tokio::test]
async fn a_body_over_the_limit_is_an_error() {
    let url = start(Server::default()).await;
    let server = McpServer::http(url).name("wiki").era(Era::New).limits(Limits::default().message_bytes(100));
    let error = server.connect().await.unwrap_err().to_string();
    assert!(error.starts_with("the MCP server `wiki` has sent a message of more than 100 bytes"), "{error}");
}

#[tokio::test]
async fn a_server_that_is_not_there_is_an_error_without_its_address() {
    let error = error_of("http://127.0.0.1:1/mcp?key=tide-lamp-4711").await;
    assert!(error.starts_with("the MCP server `wiki` cannot be reached: "), "{error}");
    assert!(!error.contains("tide-lamp"), "{error}");
}

#[tokio::test]
async fn wrong_settings_are_errors() {
    let error = error_of("wiki.example").await;
    assert_eq!(
        error,
        "the MCP server `wiki` has a wrong setting: its address has to be like `https://wiki.example/mcp`"
    );
    let error = McpServer::http("http://127.0.0.1:1").name("wiki").header("a b", "c").connect().await.unwrap_err();
    assert_eq!(error.to_string(), "the MCP server `wiki` has a wrong setting: `a b` is no name of a header");
}
