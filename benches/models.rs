//! The cost of a model's answer over HTTP, compared with the same request without a model library.
//!
//! ```text
//! cargo bench --manifest-path benches/Cargo.toml --features models --bench models
//! ```
//!
//! A server on loopback, on a thread of its own, replays a recorded answer. All clients run on one current-thread
//! runtime, each with its own pool, in which one connection stays open.

use std::hint::black_box;
use std::net::SocketAddr;
use std::rc::Rc;
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

use emitree::Runnable;
use emitree::agent::{ChatRequest, NewToken};
use rustix::time::{ClockId, clock_gettime};
use tokio::runtime::{Builder, Runtime};

use crate::clients::{GenAi, PROMPT, bare, emitree, streamed};
use crate::server::Form;
use crate::support::{Case, Suite};

#[path = "support/bare.rs"]
mod bare;
#[path = "support/clients.rs"]
mod clients;
#[path = "support/server.rs"]
mod server;
mod support;

const COLUMNS: &[&str] = &["emitree", "bare", "genai"];

fn main() {
    let runtime = Rc::new(Builder::new_current_thread().enable_all().build().expect("a runtime"));
    let address = server::start();
    let clients = Clients { runtime, address };
    clients.check();
    let mut suite = Suite::new(COLUMNS);
    first_tokens(&mut suite, &clients);
    streams(&mut suite, &clients);
    whole(&mut suite, &clients);
    suite.run();
}

/// ML: the time from the request to the first token. The rest of the stream is received, but not measured.
fn first_tokens(suite: &mut Suite, clients: &Clients) {
    let subject = suite.case(clients.emitree_first_token());
    let bare = suite.case(clients.bare_first_token());
    let genai = suite.case(clients.genai_first_token());
    let row = suite.row("ML", "the first token of a stream, one listener", subject);
    row.beside("bare", bare).beside("genai", genai).at_most(1.15, "bare", bare);
}

/// MS: streams, received to their ends.
fn streams(suite: &mut Suite, clients: &Clients) {
    let at_once = ["a stream of 200 tokens, written at once: nobody listens", "… one listener of `new_token`"];
    let in_pieces = ["… written token by token, processor time: nobody listens", "… one listener of `new_token`"];
    for (form, name, [quiet, received]) in [(Form::Once, "MS", at_once), (Form::Pieces, "", in_pieces)] {
        let bare = suite.case(clients.bare_stream(form));
        let genai = suite.case(clients.genai_stream(form));
        let subject = suite.case(clients.emitree_stream(form));
        let row = suite.row(name, quiet, subject);
        row.beside("bare", bare).beside("genai", genai).at_most(1.15, "bare", bare);
        let subject = suite.case(clients.emitree_heard_stream(form));
        let row = suite.row("", received, subject);
        row.beside("bare", bare).beside("genai", genai).at_most(1.15, "bare", bare);
    }
}

/// MW: answers that are not streamed.
fn whole(suite: &mut Suite, clients: &Clients) {
    let subject = suite.case(clients.emitree_whole());
    let bare = suite.case(clients.bare_whole());
    let genai = suite.case(clients.genai_whole());
    let row = suite.row("MW", "the same answer, not streamed", subject);
    row.beside("bare", bare).beside("genai", genai).at_most(1.15, "bare", bare);
}

/// Makes the cases, each with its own client.
struct Clients {
    runtime: Rc<Runtime>,
    address: SocketAddr,
}

impl Clients {
    /// Makes a case from a function that sends one request and returns the measured time.
    fn case<F: AsyncFn() -> Duration + 'static>(&self, ask: F) -> impl Case + use<F> {
        let runtime = Rc::clone(&self.runtime);
        move |n| {
            runtime.block_on(async {
                let mut took = Duration::ZERO;
                for _ in 0..n {
                    took += ask().await;
                }
                took
            })
        }
    }

    /// Checks that all clients receive the same text and the same number of output tokens.
    fn check(&self) {
        self.runtime.block_on(async {
            for form in [Form::Once, Form::Pieces] {
                let url = self.url(form);
                let answer = emitree(&url).run(streamed()).await.expect("an answer");
                let bare = bare(&url).stream(PROMPT, |_| ()).await.expect("an answer");
                let genai = GenAi::new(&url).stream(|_| ()).await.expect("an answer");
                assert_eq!(answer.text(), bare.text);
                assert_eq!(Some(bare.text.as_str()), genai.captured_first_text());
                let (usage, bare) = (answer.usage.expect("usage"), bare.usage.expect("usage"));
                let genai = genai.captured_usage.expect("usage");
                assert_eq!((usage.input_tokens, usage.output_tokens), (bare.prompt_tokens, bare.completion_tokens));
                assert_eq!(genai.completion_tokens.map(i64::from), i64::try_from(bare.completion_tokens).ok());
            }
        });
    }

    fn url(&self, form: Form) -> String {
        server::url(self.address, form)
    }

    // --- The first token ---

    fn emitree_first_token(&self) -> impl Case + use<> {
        let (model, request) = (emitree(&self.url(Form::Once)), streamed());
        self.case(async move || {
            let first = Arc::new(OnceLock::new());
            let (start, received) = (Instant::now(), Arc::clone(&first));
            let run = model.run(request.clone()).on("new_token", move |_: &mut NewToken, _| {
                received.get_or_init(|| start.elapsed());
            });
            black_box(run.await.expect("an answer"));
            *first.get().expect("a token")
        })
    }

    fn bare_first_token(&self) -> impl Case + use<> {
        let client = bare(&self.url(Form::Once));
        self.case(async move || {
            let (start, mut first) = (Instant::now(), None);
            let answer = client.stream(PROMPT, |_| {
                first.get_or_insert_with(|| start.elapsed());
            });
            black_box(answer.await.expect("an answer"));
            first.expect("a token")
        })
    }

    fn genai_first_token(&self) -> impl Case + use<> {
        let client = GenAi::new(&self.url(Form::Once));
        self.case(async move || {
            let (start, mut first) = (Instant::now(), None);
            let answer = client.stream(|_| {
                first.get_or_insert_with(|| start.elapsed());
            });
            black_box(answer.await.expect("an answer"));
            first.expect("a token")
        })
    }

    // --- Streams ---

    fn emitree_stream(&self, form: Form) -> impl Case + use<> {
        let (model, request) = (emitree(&self.url(form)), streamed());
        self.case(async move || timed(form, async || model.run(request.clone()).await.expect("an answer")).await)
    }

    fn emitree_heard_stream(&self, form: Form) -> impl Case + use<> {
        let (model, request) = (emitree(&self.url(form)), streamed());
        self.case(async move || {
            timed(form, async || {
                let run = model.run(request.clone()).on("new_token", |token: &mut NewToken, _| {
                    black_box(token.text());
                });
                run.await.expect("an answer")
            })
            .await
        })
    }

    fn bare_stream(&self, form: Form) -> impl Case + use<> {
        let client = bare(&self.url(form));
        self.case(async move || timed(form, async || client.stream(PROMPT, |_| ()).await.expect("an answer")).await)
    }

    fn genai_stream(&self, form: Form) -> impl Case + use<> {
        let client = GenAi::new(&self.url(form));
        self.case(async move || timed(form, async || client.stream(|_| ()).await.expect("an answer")).await)
    }

    // --- Whole answers ---

    fn emitree_whole(&self) -> impl Case + use<> {
        let (model, request) = (emitree(&self.url(Form::Whole)), ChatRequest::from(PROMPT));
        self.case(async move || timed(Form::Whole, async || model.run(request.clone()).await.expect("an answer")).await)
    }

    fn bare_whole(&self) -> impl Case + use<> {
        let client = bare(&self.url(Form::Whole));
        self.case(async move || timed(Form::Whole, async || client.whole(PROMPT).await.expect("an answer")).await)
    }

    fn genai_whole(&self) -> impl Case + use<> {
        let client = GenAi::new(&self.url(Form::Whole));
        self.case(async move || timed(Form::Whole, async || client.whole().await.expect("an answer")).await)
    }
}

/// Returns the current time or, if the server writes token by token, the processor time of the client's thread. In that
/// case, waits between the tokens do not count.
fn now(form: Form) -> Duration {
    let clock = if let Form::Pieces = form { ClockId::ThreadCPUTime } else { ClockId::Monotonic };
    clock_gettime(clock).try_into().expect("a time after the start")
}

/// Returns the time until an answer is complete.
async fn timed<T>(form: Form, ask: impl AsyncFnOnce() -> T) -> Duration {
    let start = now(form);
    let answer = black_box(ask().await);
    let took = now(form) - start;
    drop(answer);
    took
}
