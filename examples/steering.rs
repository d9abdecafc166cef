//! Talks to an agent while it works.
//!
//! ```text
//! cargo run --example steering                 reads lines from the terminal
//! cargo run --example steering -- --script     says three things by itself
//! ```
//!
//! A scripted model measures mountains, two in each turn. A line is read before the next turn, a line that begins with `+`
//! when the work is done, and a line with `!` also skips the measurement that waits.

use std::time::Duration;

use emitree::agent::{
    Agent, AgentRun, ChatModel, ChatRequest, Message, MessageAdded, Reply, Role, ScriptedModel, Session, Tool,
    hooks_fn, tool_fn,
};
use emitree::{Result, RunContext};
use schemars::JsonSchema;
use serde::Deserialize;
use serde_json::json;

#[path = "shared/help.rs"]
mod help;

const MOUNTAINS: [(&str, u32); 6] =
    [("Everest", 8849), ("K2", 8611), ("Lhotse", 8516), ("Makalu", 8485), ("Manaslu", 8163), ("Annapurna", 8091)];

/// The lines of `--script`, each with the mountain during whose measurement it is said.
const SCRIPT: [(&str, &str); 3] =
    [("Everest", "In feet, please."), ("K2", "+Which is the highest?"), ("Lhotse", "!That is enough.")];

#[derive(Deserialize, JsonSchema)]
struct Measure {
    mountain: String,
}

/// Sends a line to the agent that uses the session.
fn say(session: &Session, line: &str) {
    let sent = match (line.strip_prefix('!'), line.strip_prefix('+')) {
        (Some(line), _) => session.interject(line),
        (_, Some(line)) => session.follow_up(line),
        _ => session.steer(line),
    };
    if let Err(error) = sent {
        println!("{error}");
    }
}

/// A tool that works alone, so that the second call of a turn waits for the first.
fn measure(session: &Session, is_scripted: bool) -> Result<Tool> {
    let session = session.clone();
    let tool = tool_fn("measure", "Measures a mountain", move |args: Measure, _: RunContext| {
        let session = session.clone();
        async move {
            println!("   ... measures {}", args.mountain);
            if is_scripted {
                let lines = SCRIPT.iter().filter(|(mountain, _)| *mountain == args.mountain);
                lines.for_each(|(_, line)| say(&session, line));
            } else {
                tokio::time::sleep(Duration::from_secs(1)).await;
            }
            let height = MOUNTAINS.iter().find(|(name, _)| *name == args.mountain).map(|(_, height)| height);
            Ok(height.map(|height| format!("{}: {height} m", args.mountain)))
        }
    });
    Ok(tool?.exclusive())
}

/// Measures two mountains in each turn, until there are no more or the user has had enough.
fn reply(request: &ChatRequest) -> Reply {
    let said = |word: &str| {
        let user = request.messages.iter().filter(|message| message.role == Role::User);
        user.clone().any(|message| message.text().contains(word))
    };
    let results = request.messages.iter().flat_map(|message| message.tool_results());
    let measured: Vec<_> = results.filter(|result| !result.is_error).filter_map(|it| it.response.as_str()).collect();
    if said("highest") {
        return Reply::text("Everest.");
    }
    if measured.len() < MOUNTAINS.len() && !said("enough") {
        let next = MOUNTAINS[measured.len()..].iter().take(2);
        return Reply::calls(next.map(|(name, _)| ("measure", json!({ "mountain": name }))));
    }
    let heights = measured.iter().map(|height| match height.strip_suffix(" m").and_then(|it| it.split_once(": ")) {
        Some((name, metres)) if said("feet") => format!("{name}: {:.0} ft", metres.parse().unwrap_or(0.0) / 0.3048),
        _ => (*height).to_owned(),
    });
    Reply::text(heights.collect::<Vec<_>>().join(", "))
}

fn print(message: &Message) {
    match message.role {
        Role::User => println!("you:   {}", message.text()),
        Role::Assistant if !message.text().is_empty() => println!("model: {}", message.text()),
        _ => {}
    }
}

#[tokio::main]
async fn main() -> Result<()> {
    if help::is_asked(include_str!("steering.rs")) {
        return Ok(());
    }
    let is_scripted = std::env::args().nth(1).as_deref() == Some("--script");
    let session = Session::new();
    if !is_scripted {
        println!("Say something, for example: In feet, please.   +Which is the highest?   !That is enough.");
        let session = session.clone();
        std::thread::spawn(move || {
            std::io::stdin().lines().map_while(Result::ok).for_each(|line| say(&session, &line));
        });
    }
    let skipped = hooks_fn("skipped", |hooks| {
        hooks.on_skip(|calls, _| calls.iter().for_each(|call| println!("   ... skips {}", call.arguments)));
    });
    let agent = Agent::builder("surveyor", ChatModel::new(ScriptedModel::by("scripted", reply))?)
        .tool(measure(&session, is_scripted)?)
        .with(skipped)
        .build()?;
    let run = agent.ask("How high are the mountains?").session(&session);
    run.on("message", |added: &mut MessageAdded, _| print(&added.message)).await?;
    for message in session.undelivered() {
        println!("too late: {}", message.text());
    }
    Ok(())
}
