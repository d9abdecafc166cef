//! An agent that uses the tools of an MCP server: a bank, which asks from which account to pay. The question is kept
//! with the session in a database, and another process answers it.
//!
//! ```text
//! cargo run -p emitree-mcp --example bank -- ask order-17 "Send Ada 5"   prints the bank's question, and exits with 3
//! cargo run -p emitree-mcp --example bank -- answer order-17 savings     goes on with the call: "sent 5 from savings"
//! cargo run -p emitree-mcp --example bank -- serve                       the server alone, on stdin and stdout
//! ```
//!
//! Options, before the command: `--folder FOLDER` for the database, by default the folder for temporary files;
//! `--era old` for the handshake of 2025-11-25, in which the call is made again after the answer; `--kill-once`, which
//! kills the process when it has stored the answer. The same `answer` goes on then.
//!
//! The model is scripted: it calls the tool `bank_transfer`, and repeats the result.

mod server;

use std::env;
use std::error::Error;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use emitree_agent::{Agent, AgentOutput, AgentRun, ChatModel, Reply, ScriptedModel, Session};
use emitree_mcp::{ElicitAnswer, Era, McpServer};
use emitree_stores::SqliteStore;
use rmcp::ServiceExt;
use serde_json::json;

use crate::server::Bank;

const HELP: &str = "\
An agent that uses the tools of an MCP server, whose question another process answers.

    cargo run -p emitree-mcp --example bank -- [OPTIONS] ask SESSION TEXT
    cargo run -p emitree-mcp --example bank -- [OPTIONS] answer SESSION ACCOUNT
    cargo run -p emitree-mcp --example bank -- [--era old|new] serve

    --era old|new     the era of the protocol
    --folder FOLDER   the folder of the database
    --kill-once       kills the process when it has stored the answer";

/// The exit code while a question is open.
const OPEN: u8 = 3;

struct Options {
    era: Option<Era>,
    folder: PathBuf,
    kills: bool,
}

#[tokio::main]
async fn main() -> Result<ExitCode, Box<dyn Error>> {
    let args: Vec<_> = env::args().skip(1).collect();
    let mut args: Vec<_> = args.iter().map(String::as_str).collect();
    let mut options = Options { era: None, folder: env::temp_dir(), kills: false };
    loop {
        let taken = match *args {
            ["--era", era @ ("old" | "new"), ..] => {
                options.era = Some(if era == "old" { Era::Old } else { Era::New });
                2
            }
            ["--folder", folder, ..] => {
                options.folder = folder.into();
                2
            }
            ["--kill-once", ..] => {
                options.kills = true;
                1
            }
            _ => break,
        };
        args.drain(..taken);
    }
    match *args {
        ["serve"] => {
            let running = Bank::new(options.era).serve(rmcp::transport::stdio()).await?;
            running.waiting().await?;
            Ok(ExitCode::SUCCESS)
        }
        ["ask", id, text] => {
            let session = open(&options.folder, id).await?;
            let (bank, agent) = clerk(&options).await?;
            let ended = agent.ask(text).session(&session).await;
            bank.close().await;
            print(ended, &session)
        }
        ["answer", id, account] => {
            let session = open(&options.folder, id).await?;
            for question in session.questions() {
                session.answer(&question.id, ElicitAnswer::accept(json!({"account": account}))).await?;
                if options.kills {
                    std::process::abort();
                }
            }
            let (bank, agent) = clerk(&options).await?;
            let ended = agent.resume(&session).await;
            bank.close().await;
            print(ended, &session)
        }
        _ => {
            println!("{HELP}");
            Ok(ExitCode::from(if args == ["--help"] { 0 } else { 2 }))
        }
    }
}

async fn open(folder: &Path, id: &str) -> Result<Session, Box<dyn Error>> {
    let store = SqliteStore::open(folder.join("bank.db")).await?;
    Ok(Session::open(&store, id).await?)
}

/// Starts the bank, and makes the agent with its tools.
async fn clerk(options: &Options) -> Result<(McpServer, Agent), Box<dyn Error>> {
    let era = options.era.map(|era| if era == Era::Old { ["--era", "old"] } else { ["--era", "new"] });
    let args = era.into_iter().flatten().chain(["serve"]);
    let bank = McpServer::command(env::current_exe()?, args).name("bank").connect().await?;
    let model = ScriptedModel::by("scripted", |request| {
        let results = request.messages.last().into_iter().flat_map(|message| message.tool_results());
        if let Some(result) = results.map(|result| result.response.to_string()).next() {
            return Reply::text(result.trim_matches('"'));
        }
        let text = request.messages.last().map(|message| message.text()).unwrap_or_default();
        let mut words = text.split_whitespace().rev();
        let amount = words.next().and_then(|amount| amount.parse::<u32>().ok());
        Reply::calls([("bank_transfer", json!({"to": words.next(), "amount": amount}))])
    });
    let mut tools = bank.tools().only(["balance", "transfer"]).prefix("bank_");
    if options.era == Some(Era::Old) {
        // The bank has paid nothing before its question is answered, so the call may be made again then.
        tools = tools.idempotent(["transfer"]);
    }
    Ok((bank, Agent::builder("clerk", ChatModel::new(model)?).with(tools).build()?))
}

/// Prints the answer of the agent, or the questions that are open.
fn print(ended: emitree_runtime::Result<AgentOutput>, session: &Session) -> Result<ExitCode, Box<dyn Error>> {
    match ended {
        Err(error) if error.is_interrupted() => {
            for question in session.questions() {
                for (_, request) in question.data["requests"].as_object().into_iter().flatten() {
                    println!("the bank asks: {}", request["message"].as_str().unwrap_or_default());
                }
                if let Some(reason) = question.data["refused"]["reason"].as_str() {
                    println!("{reason}");
                }
            }
            Ok(OPEN.into())
        }
        ended => {
            println!("{}", ended?.text());
            Ok(ExitCode::SUCCESS)
        }
    }
}
