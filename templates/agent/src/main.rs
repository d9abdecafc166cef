//! `MODEL=openai:gpt-5-mini OPENAI_API_KEY=… cargo run -- "What does notes.txt say?"`

use std::path::Path;

use emitree::agent::{AgentRun, ChatModel};
use emitree::middleware::Trajectory;
use emitree::{Result, for_tree};
use my_agent::librarian;
use tracing_subscriber::EnvFilter;

#[tokio::main]
async fn main() -> Result<()> {
    let filter = EnvFilter::try_from_default_env().unwrap_or_else(|_| EnvFilter::new("warn"));
    tracing_subscriber::fmt().with_env_filter(filter).with_writer(std::io::stderr).init();
    let question = std::env::args().skip(1).collect::<Vec<_>>().join(" ");
    let model = std::env::var("MODEL").unwrap_or_else(|_| "ollama:granite4".to_owned());
    let agent = librarian(ChatModel::from_name(&model)?, Path::new("."))?;

    let run = agent.ask(question).on_token(|token| print!("{}", token.text()));
    let run = run.middleware(for_tree(Trajectory::stderr()));
    tokio::select! {
        answer = run => { answer?; }
        // Dropping the run ends the model's call and the tools.
        interrupted = tokio::signal::ctrl_c() => interrupted?,
    }
    println!();
    Ok(())
}
