//! Runs a million runs that end in every way there is, and checks what was told of each.
//!
//! ```text
//! cargo run --release --example soak
//!     --runs N          how many runs have to start; a million
//!     --seed N          what was drawn for each tree is drawn again; the threads' turns are not
//!     --break RULE      damages what was recorded before it is checked: the program has to fail
//! ```
//!
//! Trees of runs are drawn from the seed: nested up to six deep, one after the other or at the same time, awaited, spawned,
//! dropped after some polls, handed to threads, or kept and never polled again. They succeed, are answered early, fail,
//! panic, are denied, halted, interrupted, aborted and timed out; their listeners fail too; and runtimes are dropped while they run.
//! One observer above each tree records what it hears. Once the tree is over, its recording is checked and freed.

mod check;
mod damage;
mod hold;
mod listen;
mod memory;
mod plan;
mod record;
mod soak;
mod tally;
mod threads;
mod tree;

use std::process::ExitCode;

use emitree::Result;

use soak::{Settings, soak};

fn main() -> ExitCode {
    match settings() {
        Ok(settings) => run(&settings),
        Err(error) => {
            eprintln!("error: {}", error.explain());
            ExitCode::FAILURE
        }
    }
}

fn settings() -> Result<Settings> {
    use lexopt::prelude::{Long, ValueExt};
    let mut settings = Settings { seed: fastrand::u64(..), runs: 1_000_000, damage: None };
    let mut parser = lexopt::Parser::from_env();
    while let Some(argument) = parser.next()? {
        match argument {
            Long("seed") => settings.seed = parser.value()?.parse()?,
            Long("runs") => settings.runs = parser.value()?.parse()?,
            Long("break") => settings.damage = Some(parser.value()?.parse()?),
            other => return Err(other.unexpected().into()),
        }
    }
    Ok(settings)
}

fn run(settings: &Settings) -> ExitCode {
    println!("seed {}, {} runs", settings.seed, settings.runs);
    let mut next = settings.runs / 10;
    let report = soak(settings, |report| {
        if report.tally.runs >= next && report.tally.runs < settings.runs {
            println!("{} runs, {:.0} s", report.tally.runs, report.took.as_secs_f64());
            next += settings.runs / 10;
        }
    });
    println!("\n{report}");
    let least = settings.runs / 1000;
    let rare = report.tally.below(least);
    rare.iter().for_each(|cell| println!("FAILED: less than {least}: {cell}"));
    if report.is_fine() && rare.is_empty() && !report.memory.has_grown() {
        println!("every run that started has ended as it should");
        return ExitCode::SUCCESS;
    }
    ExitCode::FAILURE
}
