//! Imports lists as jobs that any process submits, and workers run: start some of these in terminals of their own.
//!
//! ```text
//! cargo run -p emitree-stores --example workers -- work
//! cargo run -p emitree-stores --example workers -- submit import-7 Ada Bob Cyd
//! cargo run -p emitree-stores --example workers -- list
//! cargo run -p emitree-stores --example workers -- answer import-7 true
//! cargo run -p emitree-stores --example workers -- ended import-7
//! ```
//!
//! Kill a worker at any moment: another one goes on after two seconds, and each row is printed with *done* once. When
//! the rows are imported, the job asks whether to publish them. The jobs are in `jobs.db`; `--folder FOLDER`, before the
//! command, sets its folder, or the URL of a PostgreSQL server (`postgres://…`), and `--time MS` the time of each row.
//! `work` ends at Ctrl+C, after its jobs have been handed over. While a question is open, `answer` without a value prints
//! it, and exits with 3.

use std::error::Error;
use std::path::Path;
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;

use emitree::error::Interrupt;
use emitree::middleware::Durable;
use emitree::middleware::durable::Worker;
use emitree::middleware::store::{Filter, Lease, Store, StoreError};
use emitree::{Result, RunContext, Runnable, runnable_fn};
use emitree_stores::{PostgresStore, SqliteStore};
use serde_json::{Value, json};

#[path = "../../examples/shared/help.rs"]
mod help;

/// The exit code while a question is open.
const OPEN_QUESTION: u8 = 3;
const QUEUE: &str = "import";
/// The time for which a worker that was killed holds its jobs.
const LEASE: Duration = Duration::from_secs(2);

/// A job with a step for each row. A row may be written again after a kill, because its target knows the key.
fn import(time: Duration) -> impl Runnable<Input = Vec<String>, Output = usize> + 'static {
    let write = Arc::new(runnable_fn("write", move |row: String, ctx: RunContext| async move {
        let key = ctx.key().map(|key| key.to_string()).unwrap_or_default();
        println!("   {key}: {row} ...");
        tokio::time::sleep(time).await;
        println!("   {key}: {row} is done");
        Ok(())
    }));
    runnable_fn("import", move |rows: Vec<String>, ctx: RunContext| {
        let write = Arc::clone(&write);
        async move {
            for (n, row) in rows.iter().enumerate() {
                write.run(row.clone()).key(format!("row {}", n + 1)).idempotent().await?;
            }
            let publishes: bool = ctx.ask(Interrupt::new("publish", json!({"rows": rows.len()})))?;
            Ok(if publishes { rows.len() } else { 0 })
        }
    })
}

async fn open(folder: &str) -> Result<Arc<dyn Store>, StoreError> {
    if folder.starts_with("postgres://") {
        Ok(Arc::new(PostgresStore::connect(folder).await?))
    } else {
        Ok(Arc::new(SqliteStore::open(Path::new(folder).join("jobs.db")).await?))
    }
}

async fn work(store: &Arc<dyn Store>, time: Duration) -> Result<ExitCode, Box<dyn Error>> {
    let worker = Worker::new(store).serve(QUEUE, import(time)).lease(Lease::new().time(LEASE)).start().await?;
    println!("works on the queue `{QUEUE}`");
    tokio::signal::ctrl_c().await?;
    worker.shutdown(Duration::from_secs(1)).await;
    Ok(ExitCode::SUCCESS)
}

async fn list(store: &dyn Store) -> Result<ExitCode, Box<dyn Error>> {
    for worker in store.workers().await? {
        println!("worker `{}`", worker.by);
    }
    for head in store.list(&Filter::unfinished().limit(50)).await? {
        let by = head.holder.as_ref().map(|holder| format!(", held by `{}`", holder.by)).unwrap_or_default();
        println!("{} is {}{by}", head.id, head.status.as_str());
    }
    Ok(ExitCode::SUCCESS)
}

async fn step(arguments: &[&str], folder: &str, time: Duration) -> Result<ExitCode, Box<dyn Error>> {
    let store = open(folder).await?;
    match arguments {
        ["work"] => return work(&store, time).await,
        ["list"] => return list(&*store).await,
        ["submit", id, rows @ ..] => {
            let submitted = Durable::new(&store, *id).submit(QUEUE, rows).await?;
            println!("{}", if submitted.is_new { "submitted" } else { "was submitted before" });
            if !submitted.is_served {
                println!("no worker serves the queue `{QUEUE}` yet");
            }
        }
        ["answer", id, answer @ ..] => {
            let job = Durable::new(&store, *id);
            for question in job.questions().await? {
                let [answer] = answer else {
                    println!("{}: {} {}", question.id, question.kind, question.data);
                    return Ok(OPEN_QUESTION.into());
                };
                job.answer(&question.id, serde_json::from_str::<Value>(answer)?).await?;
                println!("answered");
            }
        }
        ["ended", id] => {
            let published: usize = Durable::new(&store, *id).ended().await?;
            println!("published {published} rows");
        }
        _ => return Err(format!("{arguments:?} is no command; see --help").into()),
    }
    Ok(ExitCode::SUCCESS)
}

#[tokio::main]
async fn main() -> ExitCode {
    if help::is_asked(include_str!("workers.rs")) {
        return ExitCode::SUCCESS;
    }
    let arguments: Vec<_> = std::env::args().skip(1).collect();
    let mut arguments: Vec<_> = arguments.iter().map(String::as_str).collect();
    let mut folder = ".";
    if let ["--folder", of, ..] = *arguments {
        folder = of;
        arguments.drain(..2);
    }
    let mut time = Duration::from_secs(1);
    if let ["--time", milliseconds, ..] = *arguments {
        time = Duration::from_millis(milliseconds.parse().unwrap_or_default());
        arguments.drain(..2);
    }
    step(&arguments, folder, time).await.unwrap_or_else(|error| {
        eprintln!("{error}");
        ExitCode::FAILURE
    })
}
