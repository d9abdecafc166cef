//! Prints the trajectory of a recording again, as the live run printed it.
//!
//! ```text
//! cargo run --example quickstart -- --record run.jsonl README.md > live.txt
//! cargo run --example replay -- run.jsonl | diff live.txt -
//! ```

use std::process::ExitCode;

use emitree::middleware::Trajectory;
use emitree::sinks::read_jsonl;
use emitree::{Error, Result};

#[path = "shared/help.rs"]
mod help;

fn main() -> ExitCode {
    if help::is_asked(include_str!("replay.rs")) {
        return ExitCode::SUCCESS;
    }
    match replay() {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("error: {}", error.explain());
            ExitCode::FAILURE
        }
    }
}

fn replay() -> Result<()> {
    let path = std::env::args().nth(1).ok_or_else(|| Error::new("usage: replay FILE"))?;
    // This is the renderer of the live run. It receives records instead of events.
    let mut replay = Trajectory::stdout().replay();
    for record in read_jsonl(path)? {
        replay.show(&record?)?;
    }
    Ok(())
}
