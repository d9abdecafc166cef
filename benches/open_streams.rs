//! The memory of streams that are open at the same time.
//!
//! ```text
//! cargo bench --manifest-path benches/Cargo.toml --features models --bench open_streams
//! ```
//!
//! This is a separate bench, because counting allocations takes time. The clients of the bench `models` receive the
//! first half of an answer and wait for the rest. The bench counts the bytes that the clients' thread has
//! allocated and not freed. The server is not counted, because it runs on another thread.

use std::future::Future;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use allocation_counter::measure;
use emitree::Runnable;
use emitree::agent::NewToken;
use tokio::runtime::Builder;
use tokio::task::yield_now;

use crate::clients::{GenAi, PROMPT, bare, emitree, streamed};
use crate::server::{Form, OPEN_TOKENS};

#[path = "support/bare.rs"]
mod bare;
#[path = "support/clients.rs"]
mod clients;
#[path = "support/server.rs"]
mod server;

/// The number of streams.
const STREAMS: usize = 1_000;

/// The number of tokens that the current client has received.
static RECEIVED: AtomicUsize = AtomicUsize::new(0);

fn receive() {
    RECEIVED.fetch_add(1, Ordering::Relaxed);
}

fn main() {
    let url = server::url(server::start(), Form::Open);
    let (model, bare, genai) = (Arc::new(emitree(&url)), Arc::new(bare(&url)), Arc::new(GenAi::new(&url)));
    let emitree = bytes(|| {
        let run = model.run_shared(streamed()).on("new_token", |_: &mut NewToken, _| receive());
        async move { drop(run.await) }
    });
    let bare = bytes(|| {
        let client = Arc::clone(&bare);
        async move { drop(client.stream(PROMPT, |_| receive()).await) }
    });
    let genai = bytes(|| {
        let client = Arc::clone(&genai);
        async move { drop(client.stream(|_| receive()).await) }
    });
    let ratio = emitree as f64 / bare as f64;
    println!("| case | | emitree | bare | genai | emitree / bare |\n|---|---|---:|---:|---:|---:|");
    println!("| MM | 1,000 open streams: bytes each | {emitree} | {bare} | {genai} | {ratio:.2} |");
}

/// Returns the average number of bytes per stream, while many streams wait for the rest of their answers.
fn bytes<F: Future<Output = ()> + Send + 'static>(stream: impl Fn() -> F) -> i64 {
    // The first streams include one-time work, so they are not counted.
    open(&stream, 10);
    open(&stream, STREAMS) / STREAMS as i64
}

/// Opens a number of streams one after the other, and returns the number of bytes that all of them hold.
fn open<F: Future<Output = ()> + Send + 'static>(stream: &impl Fn() -> F, streams: usize) -> i64 {
    let runtime = Builder::new_current_thread().enable_all().build().expect("a runtime");
    RECEIVED.store(0, Ordering::Relaxed);
    let opened = measure(|| {
        runtime.block_on(async {
            for i in 1..=streams {
                tokio::spawn(stream());
                while RECEIVED.load(Ordering::Relaxed) < i * OPEN_TOKENS {
                    yield_now().await;
                }
            }
        });
    });
    opened.bytes_current
}
