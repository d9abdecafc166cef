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

use emitree::agent::{
    Agent, AgentOutput, AgentRun, ChatModel, ChatRequest, Reply, Role, ScriptedModel, Session, tool_fn,
};
use emitree::context::Answer;
use emitree::middleware::Runs;
use emitree::middleware::approval::{Approval, Decision};
use emitree::{Result, Run, RunContext, for_tree};
use schemars::JsonSchema;
use serde::Deserialize;
use serde_json::json;

#[path = "shared/help.rs"]
mod help;

/// The exit code while questions are open.
const OPEN_QUESTIONS: u8 = 3;

#[derive(Deserialize, JsonSchema)]
struct Payment {
    to: String,
    amount: u32,
}

/// Calls `pay` for each name that a number follows. When there are results, answers with them.
fn reply(request: &ChatRequest) -> Reply {
    let results: Vec<_> = request.messages.iter().flat_map(|message| message.tool_results()).collect();
    if !results.is_empty() {
        let texts =
            results.iter().map(|result| result.response.as_str().map_or(result.response.to_string(), Into::into));
        return Reply::text(texts.collect::<Vec<_>>().join("; "));
    }
    let question = request.messages.iter().rfind(|message| message.role == Role::User);
    let text = question.map(|message| message.text()).unwrap_or_default();
    let words: Vec<_> = text.split_whitespace().collect();
    let payments = words.windows(2).filter_map(|pair| Some((pair[0], pair[1].parse::<u32>().ok()?)));
    let calls: Vec<_> = payments.map(|(to, amount)| ("pay", json!({"to": to, "amount": amount}))).collect();
    if calls.is_empty() { Reply::text("There is nothing to pay.") } else { Reply::calls(calls) }
}

fn payer() -> Result<Agent> {
    let pay = tool_fn("pay", "Pays somebody", |Payment { to, amount }: Payment, ctx: RunContext| async move {
        // A bank that knows this key pays once, however often it is asked.
        let key = ctx.key().map(|key| key.to_string()).unwrap_or_default();
        println!("   ... pays {to} {amount} ({key})");
        Ok(format!("paid {to} {amount}"))
    })?;
    let approval = Approval::by_interrupt().runs(Runs::named("pay"));
    let model = ChatModel::new(ScriptedModel::by("scripted", reply))?;
    Agent::builder("payer", model).tool(pay).middleware(for_tree(approval)).build()
}

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

fn print_questions(session: &Session) {
    for question in session.questions() {
        let refused = &question.data["refused"];
        println!("{}\n   pay {}", question.id, question.data["input"]);
        if let Some(reason) = refused["reason"].as_str() {
            println!("   refused: {} ({reason})", refused["answer"]["value"]);
        }
    }
}

/// Reads an answer from words such as `reject "too much" --by ada`.
fn answer(words: &[String]) -> Result<Answer, Box<dyn Error>> {
    let (words, by) = match words {
        [words @ .., flag, by] if flag == "--by" => (words, Some(by)),
        words => (words, None),
    };
    let decision = match words {
        [word] if word == "approve" => Decision::Approve,
        [word, json] if word == "edit" => Decision::Edit(serde_json::from_str(json)?),
        [word, reason] if word == "reject" => Decision::reject(reason),
        [word, text] if word == "respond" => Decision::Respond(text.as_str().into()),
        _ => {
            return Err(
                format!("{words:?} is no answer: write approve, edit JSON, reject REASON or respond TEXT").into()
            );
        }
    };
    let answer = Answer::from(decision);
    Ok(match by {
        Some(by) => answer.by(by),
        None => answer,
    })
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
            run(payer()?.ask(text.as_str()).session(&session), &session, &file).await
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
            run(payer()?.resume(&session), &session, &file).await
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
