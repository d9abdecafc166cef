//! Makes the recording that the tests of the page show, by real runs with every outcome.
//!
//! ```text
//! sample_recording FILE              writes the recording, then obeys lines of standard input:
//!     open                           begins a run and leaves it open
//!     more N                         makes N runs, below the open run if there is one
//!     close                          ends the open run
//! sample_recording FILE --events N   writes about N events, and ends
//! sample_recording FILE --page       also shows its events on a page of its own; first prints the address
//! ```
//!
//! It prints `ready` when the recording is written, and after each line.

use std::fs::OpenOptions;
use std::future::{pending, poll_fn};
use std::io::{Write, stdin};
use std::pin::pin;
use std::task::Poll;
use std::time::Duration;

use emitree_emitter::{Creator, Emitter, Event, EventName, Overflow, SinkHandle};
use emitree_runtime::{
    AbortHandle, Error, Interrupt, Result, RunContext, Runnable, RunnableFn, TraceParent, runnable_fn,
};
use emitree_sinks::JsonlFile;
use emitree_viewer::Viewer;
use serde::Serialize;
use serde_json::{Value, json};

/// Texts that would be read as HTML, leave their element, or reverse the text around them.
const HOSTILE: &str =
    "</script><img src=x onerror=\"document.title='hacked'\"><!-- {{7*7}} \u{202e}evil\u{0} 'x\" &amp;";

#[derive(Serialize)]
struct Usage {
    usage: Value,
    cost: &'static str,
}

impl Event for Usage {
    const NAME: EventName = EventName::new("usage");
}

// The page is served on a thread of its own, because `obey` blocks this one.
#[tokio::main(flavor = "multi_thread", worker_threads = 1)]
async fn main() -> Result<()> {
    // The panic of a run is part of the recording.
    std::panic::set_hook(Box::new(|_| ()));
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let path = arguments.first().ok_or_else(|| Error::new("no file is named"))?;
    std::fs::write(path, "")?;
    let file = JsonlFile::options().overflow(Overflow::Block).open(path)?;
    let recording = Emitter::root().pipe_to(file)?;
    let _viewer = if arguments.get(1).is_some_and(|option| option == "--page") { Some(show().await?) } else { None };
    if let Some(events) = arguments.get(2) {
        many(events.parse()?).await?;
    } else {
        every_outcome(path, &recording).await?;
        recording.flush().await.complete()?;
        write_foreign(path)?;
        obey(&recording).await?;
    }
    recording.close(Duration::from_secs(60)).await.complete()?;
    println!("ready");
    Ok(())
}

/// Makes a runnable of a kind.
fn step<F, Fut>(kind: &'static str, name: &'static str, f: F) -> RunnableFn<F, Value, Value>
where
    F: Fn(Value, RunContext) -> Fut + Send + Sync,
    Fut: Future<Output = Result<Value>> + Send,
{
    let namespace = kind.to_lowercase();
    let emitter = Emitter::root().child_builder(namespace).creator(Creator::new(kind, name)).build();
    runnable_fn(name, f).with_emitter(emitter.expect("a name"))
}

async fn every_outcome(path: &str, recording: &SinkHandle) -> Result<()> {
    let question = json!({"role": "user", "parts": [{"type": "text", "content": "How high is K2?"}]});
    let (path, recording) = (path.to_owned(), recording.clone());
    let agent = step("Agent", "guide", move |_, ctx| {
        let (path, recording) = (path.clone(), recording.clone());
        async move {
            ask(&ctx).await?;
            fail().await;
            // Events that are lost between two runs.
            recording.flush().await.complete()?;
            writeln!(OpenOptions::new().append(true).open(path)?, "{{\"gap\":{{\"lost\":1203}}}}")?;
            step("Tool", "after_gap", |_, _| async { Ok(json!({"ok": true})) }).run(json!({})).await
        }
    });
    let context = json!({"tenant": "north", "hostile": HOSTILE});
    agent.run(json!({"messages": [question]})).context(context).await?;
    hostile().await;
    Emitter::root().emit("ready", &mut true).await?;
    Ok(())
}

/// Shows the events of this program.
async fn show() -> Result<Viewer> {
    let viewer = Viewer::bind("127.0.0.1:0").title("sample").await?;
    Emitter::root().pipe_to(viewer.sink())?;
    println!("{}", viewer.url());
    Ok(viewer)
}

/// A model that is asked twice, and reports tokens each time.
async fn ask(ctx: &RunContext) -> Result<()> {
    let answer = json!({"message": {"role": "assistant", "finish_reason": "stop", "parts": [
        {"type": "reasoning", "content": "I know that."}, {"type": "text", "content": "K2: 8611 m"}]}});
    let model = step("ChatModel", "granite", move |_, ctx| {
        let answer = answer.clone();
        async move {
            if ctx.attempt() == 0 {
                ctx.discard_attempt("the server is busy", ()).await?;
            }
            let usage = json!({"input_tokens": 1200, "output_tokens": 34, "cached_input_tokens": 0});
            ctx.emitter().emit_event(&mut Usage { usage, cost: "0.0012" }).await?;
            Ok(answer)
        }
    });
    let asked = json!({"role": "user", "parts": [{"type": "text", "content": "How high is K2?"}]});
    let request = json!({"system": "Answer briefly.", "messages": [asked]});
    let both = tokio::join!(model.run(request.clone()), model.run(request));
    ctx.emitter().emit("progress", &mut 50).await?;
    both.0.and(both.1).map(drop)
}

/// Makes runs that end in every way but success.
async fn fail() {
    let cause = || std::io::Error::other("the disk is full");
    let failed = move || Error::new("cannot write the report").caused_by(cause()).detail("file", "report.txt");
    fail_with("failed", failed).await;
    fail_with("denied", || Error::denied("policy", "not on Sundays")).await;
    fail_with("halted", || Error::halted("budget", "too expensive")).await;
    fail_with("timed_out", || Error::timed_out("took too long")).await;
    fail_with("interrupted", || Error::interrupted(Interrupt::new("approval", json!({"question": "May I?"})))).await;
    fail_with("panicked", || panic!("an index is out of range")).await;

    let aborted = step("Tool", "aborted", |_, _| pending());
    let handle = AbortHandle::new();
    let mut run = pin!(aborted.run(json!({})).abort_on(&handle));
    begin(run.as_mut()).await;
    handle.abort("the user has left");
    drop(run.await);

    let dropped = step("Tool", "dropped", |_, _| pending());
    begin(pin!(dropped.run(json!({})))).await;
}

async fn fail_with(name: &'static str, error: impl Fn() -> Error + Send + Sync) {
    let tool = step("Tool", name, |_, _| async { Err(error()) });
    drop(tool.run(json!({"name": name})).await);
}

/// Polls a run once.
async fn begin<T>(mut run: std::pin::Pin<&mut impl Future<Output = T>>) {
    poll_fn(|cx| {
        let _ = run.as_mut().poll(cx);
        Poll::Ready(())
    })
    .await;
}

/// A run whose kind, name, input, error, details and context are hostile. It continues the trace of another process.
async fn hostile() {
    let emitter = Emitter::root().child_builder("hostile").creator(Creator::new(HOSTILE, HOSTILE)).build();
    let run = runnable_fn(HOSTILE, |_: Value, _: RunContext| async {
        Err::<Value, _>(Error::new(HOSTILE).caused_by(std::io::Error::other(HOSTILE)).detail(HOSTILE, HOSTILE))
    });
    let run = run.with_emitter(emitter.expect("a name"));
    let message = json!({"role": HOSTILE, "parts": [{"type": "text", "content": HOSTILE}]});
    let context = json!({HOSTILE: HOSTILE});
    let client = TraceParent::parse("00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01").ok();
    drop(run.run(json!({"messages": [message], HOSTILE: HOSTILE})).context(context).trace_parent(client).await);
}

/// Writes an event outside of runs, with a path that no emitter has.
fn write_foreign(path: &str) -> Result<()> {
    let record = json!({
        "id": "01a220d4-9313-71fe-a093-78e0a2246515", "path": HOSTILE, "created_at": "2026-01-01T00:00:00Z",
        "creator": null, "context": {}, "group_id": HOSTILE, "trace": null, "payload_type": HOSTILE, "payload": HOSTILE,
    });
    Ok(writeln!(OpenOptions::new().append(true).open(path)?, "{record}")?)
}

/// Obeys the lines of standard input.
async fn obey(recording: &SinkHandle) -> Result<()> {
    ready(recording).await?;
    while let Some(line) = next_line()? {
        if line == "open" {
            let recording = recording.clone();
            step("Job", "open", move |_, _| open(recording.clone())).run(json!({})).await?;
        } else {
            more(&line).await?;
        }
        ready(recording).await?;
    }
    Ok(())
}

/// The work of a run that obeys lines until `close`.
async fn open(recording: SinkHandle) -> Result<Value> {
    ready(&recording).await?;
    while let Some(line) = next_line()?.filter(|line| line != "close") {
        more(&line).await?;
        ready(&recording).await?;
    }
    Ok(json!("done"))
}

async fn ready(recording: &SinkHandle) -> Result<()> {
    recording.flush().await.complete()?;
    println!("ready");
    Ok(())
}

fn next_line() -> Result<Option<String>> {
    Ok(stdin().lines().next().transpose()?)
}

async fn more(line: &str) -> Result<()> {
    let count = line.strip_prefix("more ").ok_or_else(|| Error::new(format!("`{line}` is no command")))?;
    let count: usize = count.parse()?;
    let tick = step("Step", "tick", |n, _| async move { Ok(n) });
    for n in 0..count {
        tick.run(json!(n)).await?;
    }
    Ok(())
}

/// Makes about this many events: 3 for each run, in trees of 100 runs.
async fn many(events: usize) -> Result<()> {
    let leaf = std::sync::Arc::new(step("Tool", "leaf", |n, _| async move { Ok(n) }));
    let trees = events / 300;
    for tree in 0..trees {
        let leaf = std::sync::Arc::clone(&leaf);
        let run = step("Agent", "tree", move |n, _| {
            let leaf = std::sync::Arc::clone(&leaf);
            async move {
                for n in 0..99 {
                    leaf.run(json!({"n": n})).await?;
                }
                Ok(n)
            }
        });
        run.run(json!({"tree": tree})).await?;
    }
    Ok(())
}
