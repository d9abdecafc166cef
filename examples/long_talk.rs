//! Talks with an agent for many turns, and prints what the session holds.
//!
//! ```text
//! cargo run --example long_talk -- --turns 500
//! ```
//!
//! The agent has all middlewares for long conversations: summaries, a window, cleared and stored results of tools, limits
//! of calls, a todo list, a selection of tools and a guardrail. The history is checked after each turn.

use emitree::Result;
use emitree::agent::History;

use crate::talk::Talk;

#[path = "shared/help.rs"]
mod help;
#[path = "shared/talk.rs"]
mod talk;

#[tokio::main]
async fn main() -> Result<()> {
    if help::is_asked(include_str!("long_talk.rs")) {
        return Ok(());
    }
    let turns = match turns() {
        Ok(turns) => turns,
        Err(error) => {
            eprintln!("{error}");
            std::process::exit(2);
        }
    };
    let mut talk = Talk::new()?;
    println!("turns  messages  bytes of the session  summaries");
    for turn in 1..=turns {
        talk.turn().await?;
        let history = talk.session.history();
        History::try_from(history.messages().to_vec())?;
        if turn % 100 == 0 || turn == turns {
            let bytes = serde_json::to_string(&talk.session)?.len();
            println!("{turn:5}  {:8}  {bytes:20}  {:9}", history.messages().len(), talk.summaries());
        }
    }
    println!("the history was valid after each of {turns} turns");
    Ok(())
}

fn turns() -> Result<u32, lexopt::Error> {
    use lexopt::prelude::*;
    let (mut parser, mut turns) = (lexopt::Parser::from_env(), 100);
    while let Some(arg) = parser.next()? {
        match arg {
            Long("turns") => turns = parser.value()?.parse()?,
            _ => return Err(arg.unexpected()),
        }
    }
    Ok(turns)
}
