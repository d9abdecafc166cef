//! The cost of a token on the page of a browser, beside an event that axum sends.
//!
//! ```text
//! cargo bench --manifest-path benches/Cargo.toml --features web --bench web
//! ```
//!
//! Server and client are on one thread, and speak HTTP over loopback. Each token is sent before the next one is known,
//! in the bare response too.

use std::convert::Infallible;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Instant;

use axum::Router;
use axum::extract::Path;
use axum::response::sse::{Event, KeepAlive, Sse};
use axum::routing::get;
use emitree::agent::NewToken;
use emitree::middleware::store::MemoryStore;
use emitree::web::Chat;
use futures_util::{Stream, StreamExt};
use serde_json::json;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::runtime::{Builder, Runtime};

use crate::pages::{TOKEN, agent, one_by_one, question};
use crate::support::{Case, Extra, Suite};

#[path = "support/pages.rs"]
mod pages;
mod support;

/// The tokens of the two answers whose difference is measured.
const TOKENS: [u32; 2] = [100, 2_100];

fn main() {
    let server = Arc::new(Server::start());
    let mut suite = Suite::new(&["emitree", "axum", "the agent alone"]);
    let per_token = |suite: &mut Suite, case: &dyn Fn(u32) -> Box<dyn Case>| {
        let [few, many] = TOKENS.map(|tokens| suite.case(case(tokens)));
        Extra::shared(many, few, TOKENS[1] - TOKENS[0])
    };
    let page = per_token(&mut suite, &|tokens| Box::new(server.page("/chat", tokens)));
    let ag_ui = per_token(&mut suite, &|tokens| Box::new(server.page("/agent", tokens)));
    let bare = per_token(&mut suite, &|tokens| Box::new(server.bare(tokens)));
    let alone = per_token(&mut suite, &|tokens| Box::new(server.alone(tokens)));
    for (name, what, page) in [("UT", "a token on a page of the AI SDK", page), ("", "... of AG-UI", ag_ui)] {
        let row = suite.row(name, what, page);
        row.beside("axum", bare).beside("the agent alone", alone).at_most(1.5, "an event of axum", bare);
    }
    suite.run();
}

struct Server {
    runtime: Runtime,
    address: SocketAddr,
}

impl Server {
    fn start() -> Self {
        let runtime = Builder::new_current_thread().enable_all().build().expect("a runtime");
        // A run of a closed connection ends, so nothing but the store grows.
        let chat = Chat::new(agent(), MemoryStore::new()).public();
        let app = Router::new()
            .nest("/chat", chat.ui_messages())
            .nest("/agent", chat.ag_ui())
            .route("/bare/{tokens}", get(bare));
        let listener = runtime.block_on(TcpListener::bind("127.0.0.1:0")).expect("a port");
        let address = listener.local_addr().expect("an address");
        runtime.spawn(async move { axum::serve(listener, app).await });
        Self { runtime, address }
    }

    fn page(self: &Arc<Self>, path: &'static str, tokens: u32) -> impl Case + use<> {
        let server = Arc::clone(self);
        move |n| {
            let start = Instant::now();
            (0..n).for_each(|_| server.read("POST", path, &question(path, &tokens.to_string()), tokens));
            start.elapsed()
        }
    }

    fn bare(self: &Arc<Self>, tokens: u32) -> impl Case + use<> {
        let server = Arc::clone(self);
        move |n| {
            let start = Instant::now();
            (0..n).for_each(|_| server.read("GET", &format!("/bare/{tokens}"), "", tokens));
            start.elapsed()
        }
    }

    /// Asks the agent without a page.
    fn alone(self: &Arc<Self>, tokens: u32) -> impl Case + use<> {
        let (server, agent) = (Arc::clone(self), agent());
        move |n| {
            let start = Instant::now();
            for _ in 0..n {
                let run = agent.ask(tokens.to_string());
                let run = run.on_start(|start, _| start.input.options.stream = Some(true));
                let run = run.observe("*.new_token", |_: &NewToken, _| {});
                server.runtime.block_on(run.into_future()).expect("an answer");
            }
            start.elapsed()
        }
    }

    /// Reads a whole response. Panics if it does not have all tokens.
    fn read(&self, method: &str, path: &str, body: &str, tokens: u32) {
        self.runtime.block_on(async {
            let mut stream = TcpStream::connect(self.address).await.expect("a connection");
            let head = format!(
                "{method} {path} HTTP/1.1\r\nhost: x\r\nconnection: close\r\ncontent-type: application/json\r\n\
                 content-length: {}\r\n\r\n{body}",
                body.len()
            );
            stream.write_all(head.as_bytes()).await.expect("a request");
            let mut response = Vec::new();
            stream.read_to_end(&mut response).await.expect("a response");
            let found = response.windows(TOKEN.len()).filter(|bytes| *bytes == TOKEN.as_bytes()).count();
            assert_eq!(found, tokens as usize, "{}", String::from_utf8_lossy(&response));
        });
    }
}

/// Sends tokens as a program by hand would.
async fn bare(Path(tokens): Path<u32>) -> Sse<impl Stream<Item = Result<Event, Infallible>>> {
    let events = one_by_one(tokens).map(|()| {
        let chunk = json!({"type": "text-delta", "id": "1", "delta": TOKEN});
        Ok(Event::default().data(chunk.to_string()))
    });
    Sse::new(events).keep_alive(KeepAlive::default())
}
