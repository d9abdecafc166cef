//! Imports the lines of a file as a job that survives a kill.
//!
//! ```text
//! cargo run -p emitree-stores --example durable_job -- import-7 rows.csv
//! cargo run -p emitree-stores --example durable_job -- import-7 answer QUESTION true
//! ```
//!
//! Kill it at any moment, and run it again: each row is in `target.txt` once. The job is stored in `jobs.db`; `--folder
//! FOLDER` sets the folder of both files, and `--pause MS` a pause after each row. When all rows are written, the job
//! asks whether to publish them: it prints the question, and exits with 3. If it was killed while it published, it asks
//! whether that has happened; the answer is `{"output": null}` or `"again"`.

use std::error::Error;
use std::fs::{self, OpenOptions};
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use emitree_middleware::Durable;
use emitree_middleware::store::{Lease, StoreError};
use emitree_runtime::{BoxRunnable, Interrupt, Result, RunContext, Runnable, runnable_fn};
use emitree_stores::SqliteStore;
use serde_json::json;

#[path = "../../examples/shared/help.rs"]
mod help;

/// The exit code while a question is open.
const OPEN_QUESTION: u8 = 3;

/// A file that has at most one line for a key, as a database with a unique index has.
#[derive(Clone)]
struct Target(PathBuf);

impl Target {
    fn has(&self, key: &str) -> bool {
        let lines = fs::read_to_string(&self.0).unwrap_or_default();
        lines.lines().any(|line| line.split_once(": ").is_some_and(|(of, _)| of == key))
    }

    fn insert(&self, key: &str, row: &str) -> std::io::Result<()> {
        if self.has(key) {
            return Ok(());
        }
        let mut file = OpenOptions::new().create(true).append(true).open(&self.0)?;
        writeln!(file, "{key}: {row}")?;
        file.sync_all()
    }
}

fn import(target: &Target, pause: Duration) -> BoxRunnable<Vec<String>, usize> {
    let (rows, published) = (target.clone(), target.clone());
    // A step that may be executed again: the target knows the key.
    let write = Arc::new(runnable_fn("write", move |row: String, ctx: RunContext| {
        let target = rows.clone();
        async move {
            let key = ctx.key().map(|key| key.to_string()).unwrap_or_default();
            target.insert(&key, &row)?;
            println!("   ... {key} is written");
            tokio::time::sleep(pause).await;
            Ok(())
        }
    }));
    // A step that must not be executed twice.
    let publish = Arc::new(runnable_fn("publish", move |rows: usize, _: RunContext| {
        let target = published.clone();
        async move { Ok(target.insert(&format!("published at {:?}", SystemTime::now()), &rows.to_string())?) }
    }));
    BoxRunnable::new(runnable_fn("import", move |rows: Vec<String>, ctx: RunContext| {
        let (write, publish) = (Arc::clone(&write), Arc::clone(&publish));
        async move {
            for (n, row) in rows.iter().enumerate() {
                write.run(row.clone()).key(format!("row {}", n + 1)).idempotent().await?;
            }
            if ctx.ask::<bool>(Interrupt::new("publish", json!({"rows": rows.len()})))? {
                publish.run(rows.len()).key("publish").await?;
            }
            Ok(rows.len())
        }
    }))
}

/// Runs the job. If another process works on it, or was killed, tries again until its lease has run out.
async fn run(
    job: &Durable,
    import: &BoxRunnable<Vec<String>, usize>,
    rows: Vec<String>,
) -> Result<ExitCode, Box<dyn Error>> {
    loop {
        let error = match import.run(rows.clone()).middleware(job.clone()).await {
            Ok(rows) => {
                println!("imported {rows} rows");
                return Ok(ExitCode::SUCCESS);
            }
            Err(error) if error.is_interrupted() => {
                for question in job.questions().await? {
                    println!("{}\n   {} {}", question.id, question.kind, question.data);
                }
                return Ok(OPEN_QUESTION.into());
            }
            Err(error) => error,
        };
        let Some(StoreError::Held { .. }) = error.find::<StoreError>() else { return Err(error.into()) };
        eprintln!("{error}");
        tokio::time::sleep(Duration::from_secs(1)).await;
    }
}

/// Takes an option and its value out of the arguments.
fn take_option(arguments: &mut Vec<String>, name: &str) -> Option<String> {
    let at = arguments.iter().position(|argument| argument == name)?;
    arguments.remove(at);
    (at < arguments.len()).then(|| arguments.remove(at))
}

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<ExitCode, Box<dyn Error>> {
    if help::is_asked(include_str!("durable_job.rs")) {
        return Ok(ExitCode::SUCCESS);
    }
    let mut arguments: Vec<String> = std::env::args().skip(1).collect();
    let folder = take_option(&mut arguments, "--folder").unwrap_or_else(|| ".".to_owned());
    let pause = take_option(&mut arguments, "--pause").map_or(Ok(0), |pause| pause.parse())?;
    let store = SqliteStore::open(Path::new(&folder).join("jobs.db")).await?;
    // After a kill, nobody waits for longer than this.
    let lease = Lease::new().time(Duration::from_secs(2));
    let arguments: Vec<_> = arguments.iter().map(String::as_str).collect();
    match arguments[..] {
        [id, "answer", question, answer] => {
            let answer: serde_json::Value = serde_json::from_str(answer)?;
            Durable::new(&store, id).lease(lease).answer(question, answer).await?;
            Ok(ExitCode::SUCCESS)
        }
        [id, file] => {
            let rows = fs::read_to_string(file).map_err(|error| format!("{file}: {error}"))?;
            let target = Target(Path::new(&folder).join("target.txt"));
            let import = import(&target, Duration::from_millis(pause));
            run(&Durable::new(&store, id).lease(lease), &import, rows.lines().map(str::to_owned).collect()).await
        }
        _ => Err("name a job and a file, such as `import-7 rows.csv`; see --help".into()),
    }
}
