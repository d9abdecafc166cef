//! Checks the runs of `crash`, whose processes were killed.
//!
//! ```text
//! cargo run -p emitree-stress --bin crash_check -- FOLDER
//! cargo run -p emitree-stress --bin crash_check -- FOLDER --all-points
//! ```
//!
//! `crash` starts this program, which has no code of the library: it reads the tables, the JSON of the records, the file
//! of effects and the log of each run by itself. With `--all-points`, it also checks that a process was killed at each
//! kind of point, and often enough while a call was open.

use std::error::Error;
use std::fs;
use std::path::Path;
use std::process::ExitCode;

use job::check_job;
use log::{Log, Signals, read_log};
use session::{check_effects, check_messages, read_session, results};

#[path = "../../../../examples/shared/help.rs"]
mod help;
mod job;
mod log;
mod places;
mod session;

/// The session of the agent.
const ID: &str = "order";
/// The responses of the models of the sub-agent and of the agent in the job.
const OTHER_TURNS: usize = 4;
/// The kinds of points.
const POINTS: [&str; 21] = [
    "claim",
    "run",
    "input",
    "sent",
    "response",
    "began",
    "effect",
    "settled",
    "turn",
    "question",
    "answer",
    "end",
    "release",
    "job-input",
    "job-began",
    "job-waiting",
    "job-ended",
    "job-sleep",
    "job-question",
    "job-answer",
    "job-output",
];
const PHASES: [&str; 5] = [
    "before the response",
    "from the response to began",
    "from began to the effect",
    "from the effect to settled",
    "after",
];
/// The number of kills that each phase of an open call must have.
const KILLS_BY_PHASE: usize = 20;

/// The number of times that a process must have lost its claim.
const LOST_CLAIMS: usize = 20;

type Checked<T> = Result<T, Box<dyn Error>>;
/// Checks one run. Returns its faults.
fn check(folder: &Path, signals: &mut Signals) -> Checked<Vec<String>> {
    let mut log = read_log(&folder.join("log"), signals)?;
    if let Err(error) = check_stored(folder, &mut log) {
        log.faults.push(error.to_string());
    }
    Ok(log.faults)
}

/// Checks the database and the effects of a run.
fn check_stored(folder: &Path, log: &mut Log) -> Checked<()> {
    let database = folder.join("agents.db");
    let history = read_session(&database, log)?;
    let mut results = results(&history.messages, log);
    check_messages(&history, log);
    results.extend(check_job(&database, log)?);
    check_effects(&fs::read_to_string(folder.join("effects"))?, &results, log);
    let responses = history.messages.iter().filter(|message| message["role"] == "assistant").count() + OTHER_TURNS;
    let most = responses + log.kills + log.late;
    let models = log.models;
    log.check(models <= most, format!("the model was called {models} times, and not at most {most} times"));
    Ok(())
}

/// Returns the faults of all runs, and prints the numbers of kills.
fn check_all(folder: &Path, all_points: bool) -> Checked<Vec<String>> {
    let mut runs = fs::read_dir(folder)?.map(|run| Ok(run?.path())).collect::<Checked<Vec<_>>>()?;
    runs.sort();
    let mut signals = Signals::default();
    let mut faults = Vec::new();
    for run in &runs {
        let found = check(run, &mut signals).unwrap_or_else(|error| vec![error.to_string()]);
        faults.extend(found.into_iter().map(|fault| format!("{}: {fault}", run.display())));
    }
    let kills: usize = signals.by_phase.iter().sum();
    println!("{} runs, {kills} kills, {} stops, {} lost claims", runs.len(), signals.stops, signals.late);
    PHASES.iter().zip(signals.by_phase).for_each(|(phase, number)| println!("{number:6} {phase}"));
    if all_points {
        let points = POINTS.iter().flat_map(|kind| ["before", "after"].map(|when| format!("{when} {kind}")));
        let missed = points.filter(|point| !signals.points.contains(point));
        faults.extend(missed.map(|point| format!("no process was killed at the point `{point}`")));
        let open = PHASES.iter().zip(signals.by_phase).take(4).skip(1);
        let few = open.filter(|(_, number)| *number < KILLS_BY_PHASE);
        faults.extend(few.map(|(phase, number)| format!("only {number} processes were killed {phase}")));
        if signals.late < LOST_CLAIMS {
            faults.push(format!("only {} claims were lost", signals.late));
        }
    }
    Ok(faults)
}

fn main() -> ExitCode {
    if help::is_asked(include_str!("main.rs")) {
        return ExitCode::SUCCESS;
    }
    let arguments: Vec<_> = std::env::args().skip(1).collect();
    let arguments: Vec<_> = arguments.iter().map(String::as_str).collect();
    let faults = match *arguments {
        [folder] => check_all(Path::new(folder), false),
        [folder, "--all-points"] => check_all(Path::new(folder), true),
        _ => Err(format!("{arguments:?} is no folder; see --help").into()),
    };
    let faults = faults.unwrap_or_else(|error| vec![error.to_string()]);
    faults.iter().take(20).for_each(|fault| println!("fault: {fault}"));
    println!("{} faults", faults.len());
    if faults.is_empty() { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}
