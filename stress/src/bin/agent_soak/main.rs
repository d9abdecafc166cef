#![doc = include_str!("help.txt")]

mod agents;
mod history;
mod lives;
mod plan;
mod soak;
#[cfg(test)]
mod tests;

use std::process::ExitCode;

use emitree::Result;

fn main() -> ExitCode {
    let (seed, runs) = match settings() {
        Ok(Some(settings)) => settings,
        Ok(None) => {
            print!("{}", include_str!("help.txt"));
            return ExitCode::SUCCESS;
        }
        Err(error) => {
            eprintln!("error: {}", error.explain());
            return ExitCode::FAILURE;
        }
    };
    println!("seed {seed}, {runs} runs");
    let report = soak::soak(seed, runs);
    println!("{report}");
    if report.is_fine() { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

/// Parses the command line into a seed and a number of runs. Returns `None` for `--help`.
fn settings() -> Result<Option<(u64, u64)>> {
    use lexopt::prelude::{Long, ValueExt};
    let mut seed = fastrand::u64(..);
    let mut runs = 100_000;
    let mut parser = lexopt::Parser::from_env();
    while let Some(argument) = parser.next()? {
        match argument {
            Long("seed") => seed = parser.value()?.parse()?,
            Long("runs") => runs = parser.value()?.parse()?,
            Long("help") => return Ok(None),
            other => return Err(other.unexpected().into()),
        }
    }
    Ok(Some((seed, runs)))
}
