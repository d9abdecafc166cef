//! An agent uses tools to answer questions about your files, and you watch every step.
//!
//! ```text
//! cargo run --example agent -- "How many words has README.md, and what is that times 17?"
//!     --guarded       adds redaction, limits and a budget, and asks you before each tool call
//!     --record FILE   records every event as JSON lines; `--example replay -- FILE` shows them again
//!     --model NAME    asks a real model, such as `ollama:granite4` or `openai:gpt-5-mini`; needs `--features openai`
//!     --base-url URL  sends the requests to the server at this URL
//! ```
//!
//! By default the model is a set of rules in this example, and no network is needed. The first line of the output names the
//! model. `scripts/local-model.sh start` starts a small real model; `--model openai:local --base-url
//! http://127.0.0.1:18082/v1` selects it. The trajectory is printed to stderr. The answer is printed to stdout, piece by
//! piece as the model writes it.

#[path = "../shared/help.rs"]
mod help;
mod rules;
mod tools;

use std::io::{Write, stdin, stdout};
use std::process::ExitCode;
use std::time::Duration;

use emitree::agent::{Agent, AgentRun, ChatModel, ChatSuccess};
use emitree::middleware::approval::{Approval, Decision, Request};
use emitree::middleware::{Budget, Limits, Redact, Runs, Trajectory};
use emitree::sinks::JsonlFile;
use emitree::{Emitter, Error, Result, for_tree};

fn main() -> ExitCode {
    if help::is_asked(include_str!("main.rs")) {
        return ExitCode::SUCCESS;
    }
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
    let answered = runtime.block_on(async { answer(Arguments::parse()?).await });
    // Do not wait for a thread that still reads an answer from the terminal.
    runtime.shutdown_background();
    match answered {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("error: {}", error.explain());
            ExitCode::FAILURE
        }
    }
}

async fn answer(arguments: Arguments) -> Result<()> {
    let model = model(&arguments)?;
    let recording = match &arguments.record {
        Some(path) => {
            // `JsonlFile` appends, so empty the file for a new recording.
            std::fs::write(path, "").map_err(|error| Error::from(error).message(format!("cannot write {path}")))?;
            Some(Emitter::root().pipe_to(JsonlFile::open(path)?)?)
        }
        None => None,
    };

    let mut librarian = Agent::builder("librarian", model)
        .prompt("You answer questions about files in the current directory. Use the tools; never guess.");
    for tool in tools::all() {
        librarian = librarian.tool(tool);
    }
    if arguments.guarded {
        librarian = librarian
            .middleware(Redact::new())
            .middleware(Limits::builder().of_kind("Tool", 10).build())
            .middleware(Budget::builder().calls(20).build()?)
            .middleware(for_tree(Approval::by(ask).runs(Runs::of_kind("Tool"))));
    }
    let librarian = librarian.build()?;

    let result = librarian
        .ask(arguments.question)
        .on_token(|token| {
            print!("{}", token.text());
            let _ = stdout().flush();
        })
        // End the line of a complete answer, so that the trajectory continues on a new line.
        .observe("backend.chat.*.success", |success: &ChatSuccess, _| {
            if !success.response.text().is_empty() {
                println!();
            }
        })
        .middleware(Trajectory::stderr())
        .await;
    // On success and on failure, wait for the ends of all runs and for the recording before the program ends.
    emitree::shutdown(Duration::from_secs(5)).await;
    if let Some(recording) = recording {
        recording.close(Duration::from_secs(5)).await.complete()?;
    }
    let answer = result?;
    eprintln!("{} turns, {} tool calls", answer.turns, answer.tool_calls().count());
    Ok(())
}

/// Creates the model, and prints its name on the first line.
fn model(arguments: &Arguments) -> Result<ChatModel> {
    let Some(name) = &arguments.model else {
        eprintln!("The model is `rules`: rules of this example, no language model.");
        return Ok(ChatModel::new(rules::model())?);
    };
    real_model(name, arguments.base_url.as_deref())
}

#[cfg(feature = "openai")]
fn real_model(name: &str, url: Option<&str>) -> Result<ChatModel> {
    let Some(url) = url else {
        eprintln!("The model is `{name}`.");
        return ChatModel::from_name(name);
    };
    eprintln!("The model is `{name}` at {url}.");
    Ok(ChatModel::new(emitree::agent::OpenAi::from_name(name)?.base_url(url).build()?)?)
}

#[cfg(not(feature = "openai"))]
fn real_model(name: &str, _: Option<&str>) -> Result<ChatModel> {
    Err(Error::new(format!(
        "`--model {name}` needs the feature `openai`: cargo run --features openai --example agent -- --model {name} …"
    )))
}

/// Asks the user on the terminal whether a tool may run.
async fn ask(request: Request) -> Result<Decision> {
    eprint!("May `{}` run with {}? [y/n] ", request.name, request.input);
    let read = tokio::task::spawn_blocking(|| {
        let mut line = String::new();
        stdin().read_line(&mut line).map(|_| line)
    });
    let line = read.await??;
    Ok(if line.trim().eq_ignore_ascii_case("y") { Decision::Approve } else { Decision::reject("you said no") })
}

struct Arguments {
    question: String,
    guarded: bool,
    record: Option<String>,
    model: Option<String>,
    base_url: Option<String>,
}

impl Arguments {
    fn parse() -> Result<Self> {
        use lexopt::prelude::*;
        let (mut question, mut guarded, mut record, mut model, mut base_url) = (None, false, None, None, None);
        let mut parser = lexopt::Parser::from_env();
        while let Some(argument) = parser.next()? {
            match argument {
                Long("guarded") => guarded = true,
                Long("record") => record = Some(parser.value()?.string()?),
                Long("model") => model = Some(parser.value()?.string()?),
                Long("base-url") => base_url = Some(parser.value()?.string()?),
                Value(value) if question.is_none() => question = Some(value.string()?),
                _ => return Err(argument.unexpected().into()),
            }
        }
        let question = question.ok_or_else(|| {
            Error::new("ask a question: cargo run --example agent -- \"How many words has README.md?\"")
        })?;
        if base_url.is_some() && model.is_none() {
            return Err(Error::new("`--base-url` needs the name of a model: add `--model openai:NAME`"));
        }
        Ok(Self { question, guarded, record, model, base_url })
    }
}
