#![doc = include_str!("help.txt")]

mod bad;
mod bind;
mod check;
mod damage;
mod ending;
mod hold;
mod listed;
mod listen;
mod memory;
mod plan;
mod record;
mod soak;
mod tally;
#[cfg(test)]
mod tests;
mod threads;
mod tree;

use std::process::ExitCode;

use emitree::Result;

use check::Rule;
use damage::Damage;
use soak::{Settings, soak};

fn main() -> ExitCode {
    match settings() {
        Ok(Some(settings)) => run(&settings),
        Ok(None) => help(),
        Err(error) => {
            eprintln!("error: {}", error.explain());
            ExitCode::FAILURE
        }
    }
}

/// Parses the command line. Returns `None` for `--help`.
fn settings() -> Result<Option<Settings>> {
    use lexopt::prelude::{Long, ValueExt};
    let mut settings = Settings { seed: fastrand::u64(..), runs: 1_000_000, damage: None };
    let mut parser = lexopt::Parser::from_env();
    while let Some(argument) = parser.next()? {
        match argument {
            Long("seed") => settings.seed = parser.value()?.parse()?,
            Long("runs") => settings.runs = parser.value()?.parse()?,
            Long("break") => settings.damage = Some(parser.value()?.parse()?),
            Long("help") => return Ok(None),
            other => return Err(other.unexpected().into()),
        }
    }
    Ok(Some(settings))
}

fn help() -> ExitCode {
    print!("{}\nThe rules, and the kinds of damage that break them:\n\n", include_str!("help.txt"));
    for rule in Rule::ALL {
        let damages: Vec<_> = Damage::of(*rule).map(Damage::as_str).collect();
        println!("    {rule:45}{}", damages.join(", "));
    }
    ExitCode::SUCCESS
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
    if report.is_fine() && rare.is_empty() {
        println!("every run that started has ended as it should");
        return ExitCode::SUCCESS;
    }
    ExitCode::FAILURE
}
