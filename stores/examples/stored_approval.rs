//! Pays bills that a person has to approve, with a session in a database, in a process of its own for each step.
//!
//! ```text
//! cargo run -p emitree-stores --example stored_approval -- start order-17 "Pay Ada 5 and Bob 5"
//! cargo run -p emitree-stores --example stored_approval -- list
//! cargo run -p emitree-stores --example stored_approval -- answer order-17 QUESTION approve
//! cargo run -p emitree-stores --example stored_approval -- answer order-17 QUESTION edit JSON
//! cargo run -p emitree-stores --example stored_approval -- answer order-17 QUESTION reject REASON
//! cargo run -p emitree-stores --example stored_approval -- answer order-17 QUESTION respond TEXT
//! cargo run -p emitree-stores --example stored_approval -- resume order-17
//! ```
//!
//! The sessions are in `agents.db`; `--folder FOLDER`, before the command, sets its folder, or the URL of a PostgreSQL
//! server (`postgres://…`), and `--time MS` the time of each payment. `--by NAME` after an answer names its author. While questions are open, `start` and `resume` print
//! them and exit with 3. While another process works on the session, they say which one, and exit with 4. Kill a process
//! at any moment, and `resume` the session: nobody is paid twice.

use std::error::Error;
use std::path::Path;
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;

use emitree::agent::{Agent, AgentOutput, AgentRun, AnswerError, Session};
use emitree::middleware::store::{Filter, Store, StoreError};
use emitree::{Result, Run};
use emitree_stores::{PostgresStore, SqliteStore};

use crate::payments::{OPEN_QUESTIONS, answer, payer, print_questions};

#[path = "../../examples/shared/help.rs"]
mod help;
#[path = "../../examples/shared/payments.rs"]
mod payments;

/// The exit code while another process works on the session.
const HELD: u8 = 4;

/// Runs the agent, which stores its session at each step.
async fn run(run: Run<'_, Agent>, session: &Session) -> Result<ExitCode, Box<dyn Error>> {
    let ended: Result<AgentOutput> = run.await;
    match ended {
        Err(error) if error.is_interrupted() => {
            print_questions(session);
            Ok(OPEN_QUESTIONS.into())
        }
        Err(error) if matches!(error.find(), Some(StoreError::Held { .. })) => {
            println!("{error}");
            Ok(HELD.into())
        }
        ended => {
            println!("{}", ended?.text());
            Ok(ExitCode::SUCCESS)
        }
    }
}

async fn open(folder: &str) -> Result<Arc<dyn Store>, StoreError> {
    if folder.starts_with("postgres://") {
        Ok(Arc::new(PostgresStore::connect(folder).await?))
    } else {
        Ok(Arc::new(SqliteStore::open(Path::new(folder).join("agents.db")).await?))
    }
}

async fn list(store: &dyn Store) -> Result<ExitCode, Box<dyn Error>> {
    let mut page = Filter::unfinished().limit(50);
    loop {
        let heads = store.list(&page).await?;
        let Some(last) = heads.last() else { return Ok(ExitCode::SUCCESS) };
        page = page.after(&last.id);
        for head in &heads {
            let by = head.holder.as_ref().map(|holder| format!(", held by `{}`", holder.by)).unwrap_or_default();
            println!("{} is {}{by}", head.id, head.status.as_str());
            head.questions.iter().for_each(|question| println!("   {} ({})", question.id, question.kind));
        }
    }
}

async fn step(arguments: &[&str], folder: &str, time: Duration) -> Result<ExitCode, Box<dyn Error>> {
    let store = open(folder).await?;
    match arguments {
        ["list"] => list(&*store).await,
        ["start", id, text] => {
            let session = Session::open(&store, *id).await?;
            run(payer(time)?.ask(*text).session(&session), &session).await
        }
        ["answer", id, question, words @ ..] => {
            let session = Session::open(&store, *id).await?;
            let words: Vec<_> = words.iter().map(|word| (*word).to_owned()).collect();
            match session.answer(question, answer(&words)?).await {
                Err(AnswerError::NotStored { error: error @ StoreError::Held { .. }, .. }) => {
                    println!("{error}");
                    return Ok(HELD.into());
                }
                answered => answered?,
            }
            println!("open questions: {}", session.questions().len());
            Ok(ExitCode::SUCCESS)
        }
        ["resume", id] => {
            let session = Session::open(&store, *id).await?;
            run(payer(time)?.resume(&session), &session).await
        }
        _ => Err(format!("{arguments:?} is no command; see --help").into()),
    }
}

#[tokio::main(flavor = "current_thread")]
async fn main() -> ExitCode {
    if help::is_asked(include_str!("stored_approval.rs")) {
        return ExitCode::SUCCESS;
    }
    let arguments: Vec<_> = std::env::args().skip(1).collect();
    let mut arguments: Vec<_> = arguments.iter().map(String::as_str).collect();
    let mut folder = ".";
    if let ["--folder", of, ..] = *arguments {
        folder = of;
        arguments.drain(..2);
    }
    let mut time = Duration::ZERO;
    if let ["--time", milliseconds, ..] = *arguments {
        time = Duration::from_millis(milliseconds.parse().unwrap_or_default());
        arguments.drain(..2);
    }
    step(&arguments, folder, time).await.unwrap_or_else(|error| {
        eprintln!("{error}");
        ExitCode::FAILURE
    })
}
