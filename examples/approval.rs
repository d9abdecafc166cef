//! Pays bills that a person has to approve, in a process of its own for each step.
//!
//! ```text
//! cargo run --example approval -- --file order-17.json start "Pay Ada 5 and Bob 5"
//! cargo run --example approval -- --file order-17.json questions
//! cargo run --example approval -- --file order-17.json answer QUESTION approve
//! cargo run --example approval -- --file order-17.json answer QUESTION edit JSON
//! cargo run --example approval -- --file order-17.json answer QUESTION reject REASON
//! cargo run --example approval -- --file order-17.json answer QUESTION respond TEXT
//! cargo run --example approval -- --file order-17.json resume
//! ```
//!
//! The session is kept in the file between the processes. `--by NAME` after an answer names its author. While questions
//! are open, `start` and `resume` print them and exit with 3. A scripted model reads the payments from the text.

use std::error::Error;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Duration;

use emitree::agent::{Agent, AgentOutput, AgentRun, Session};
use emitree::{Result, Run};

use crate::payments::{OPEN_QUESTIONS, answer, payer, print_questions};

#[path = "shared/help.rs"]
mod help;
#[path = "shared/payments.rs"]
mod payments;

fn read(file: &Path) -> Result<Session, Box<dyn Error>> {
    let stored = std::fs::read(file).map_err(|error| format!("{}: {error}", file.display()))?;
    Ok(serde_json::from_slice(&stored).map_err(|error| format!("{}: {error}", file.display()))?)
}

fn write(file: &Path, session: &Session) -> Result<(), Box<dyn Error>> {
    std::fs::write(file, serde_json::to_vec_pretty(session)?)?;
    Ok(())
}

/// Runs the agent, and keeps its session in the file, however the run ends.
async fn run(run: Run<'_, Agent>, session: &Session, file: &Path) -> Result<ExitCode, Box<dyn Error>> {
    let ended: Result<AgentOutput> = run.await;
    write(file, session)?;
    match ended {
        Err(error) if error.is_interrupted() => {
            print_questions(session);
            Ok(OPEN_QUESTIONS.into())
        }
        ended => {
            println!("{}", ended?.text());
            Ok(ExitCode::SUCCESS)
        }
    }
}

async fn step() -> Result<ExitCode, Box<dyn Error>> {
    let arguments: Vec<_> = std::env::args().skip(1).collect();
    let [flag, file, command, rest @ ..] = arguments.as_slice() else {
        return Err("write `--file FILE start TEXT`, `questions`, `answer QUESTION …` or `resume`; see --help".into());
    };
    let file = PathBuf::from(file);
    match (flag.as_str(), command.as_str(), rest) {
        ("--file", "start", [text]) => {
            let id = file.file_stem().map(|stem| stem.to_string_lossy()).unwrap_or_default();
            let session = Session::with_id(id)?;
            run(payer(Duration::ZERO)?.ask(text.as_str()).session(&session), &session, &file).await
        }
        ("--file", "questions", []) => {
            print_questions(&read(&file)?);
            Ok(ExitCode::SUCCESS)
        }
        ("--file", "answer", [question, words @ ..]) => {
            let session = read(&file)?;
            session.answer(question, answer(words)?).await?;
            write(&file, &session)?;
            println!("open questions: {}", session.questions().len());
            Ok(ExitCode::SUCCESS)
        }
        ("--file", "resume", []) => {
            let session = read(&file)?;
            run(payer(Duration::ZERO)?.resume(&session), &session, &file).await
        }
        _ => Err(format!("{arguments:?} is no command; see --help").into()),
    }
}

#[tokio::main(flavor = "current_thread")]
async fn main() -> ExitCode {
    if help::is_asked(include_str!("approval.rs")) {
        return ExitCode::SUCCESS;
    }
    step().await.unwrap_or_else(|error| {
        eprintln!("{error}");
        ExitCode::FAILURE
    })
}
