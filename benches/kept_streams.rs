//! The memory of runs whose pages wait.
//!
//! ```text
//! cargo bench --manifest-path benches/Cargo.toml --features web --bench kept_streams
//! ```
//!
//! This is a separate bench, because counting allocations takes time. The pages have received 20 tokens, and wait.

use allocation_counter::measure;
use axum::Router;
use axum::body::{Body, BodyDataStream};
use axum::http::Request;
use emitree::middleware::store::MemoryStore;
use emitree::web::Chat;
use futures_util::StreamExt;
use tokio::runtime::Builder;
use tower::ServiceExt;

use crate::pages::{TOKEN, agent, question};

#[allow(dead_code, reason = "each bench uses its part")]
#[path = "support/pages.rs"]
mod pages;

/// The number of streams.
const STREAMS: usize = 1_000;
/// The tokens that each page has received.
const TOKENS: usize = 20;

fn main() {
    // The first streams include one-time work, so they are not counted.
    open(10);
    let bytes = open(STREAMS) / STREAMS as i64;
    let verdict = if bytes <= 64 * 1024 { "ok" } else { "**MISS**" };
    println!("| case | | emitree | bound | |\n|---|---|---:|---:|---|");
    println!("| UK | 1,000 kept streams: bytes each | {bytes} | ≤ 65536 | {verdict} |");
}

/// Opens a number of streams, and returns the number of bytes that all of them hold.
fn open(streams: usize) -> i64 {
    let runtime = Builder::new_current_thread().enable_all().build().expect("a runtime");
    let app = Router::new().nest("/chat", Chat::new(agent(), MemoryStore::new()).public().keep_running().ui_messages());
    let mut open: Vec<BodyDataStream> = Vec::new();
    let opened = measure(|| {
        runtime.block_on(async {
            for _ in 0..streams {
                let request = Request::post("/chat").header("content-type", "application/json");
                let body = Body::from(question("/chat", &format!("{TOKENS} and wait")));
                let response = app.clone().oneshot(request.body(body).expect("a request")).await.expect("a response");
                let mut body = response.into_body().into_data_stream();
                let mut found = 0;
                while found < TOKENS {
                    let bytes = body.next().await.expect("an event").expect("bytes");
                    found += bytes.windows(TOKEN.len()).filter(|bytes| *bytes == TOKEN.as_bytes()).count();
                }
                open.push(body);
            }
        });
    });
    assert_eq!(open.len(), streams);
    opened.bytes_current
}
