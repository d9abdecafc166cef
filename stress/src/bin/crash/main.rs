//! Kills the processes of an agent and a job again and again, and checks that no run is lost and no effect repeated.
//!
//! ```text
//! cargo run -p emitree-stress --release --bin crash -- --seed 1 --kills 20
//! cargo run -p emitree-stress --release --bin crash -- --seed 1 --kills 200 --all-points
//! cargo run -p emitree-stress --release --bin crash -- --seed 1 --kills 60 --swallow began
//! ```
//!
//! Each run is a process that gets SIGKILL up to three times, at a random moment or at a point: before or after a
//! commit, or before or after an effect. One process of a run also gets SIGSTOP, and SIGCONT after 0.3 to 3 leases.
//! Meanwhile other processes go on, the last two of them at the same time, until the agent has answered and the job has
//! ended. A process that has lost its claim ends its run, and waits like the others.
//!
//! A process first runs the agent on its session. While it works, it sends messages to the session, some of them as
//! follow-ups. Then it runs a job in the same database: steps with effects, a step that asks, a sleep, and a step with
//! another agent.
//!
//! Then `crash_check`, a program without code of this library, reads the database, the effects and the logs of the
//! points. With `--all-points`, a run is also killed at each of the points, and another one stopped.
//!
//! The check has to fail with a store that has a flaw, and ends the program. With `--swallow KIND`, the store says that a
//! commit of this kind is stored, and stores it with the next one: `sent`, `input`, `response`, `began`, `settled`,
//! `question`, `answer` or `end` of a session; `job-input`, `job-began`, `job-waiting`, `job-ended`, `job-sleep`,
//! `job-question`, `job-answer` or `job-output`. Half of the processes are then killed at one of the next points. With
//! `--blind`, the store takes a commit of a process that has lost its claim.

use std::error::Error;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode, ExitStatus, Stdio};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use child::{At, Process, Signal, check};
use log::Stop;
use points::Flaws;
use process::LEASE;

mod agents;
mod child;
#[path = "../../../../examples/shared/help.rs"]
mod help;
mod job;
mod kinds;
mod log;
mod points;
mod process;
mod send;
mod target;

/// The kinds of commits that can be swallowed.
const KINDS: [&str; 16] = [
    "sent",
    "input",
    "response",
    "began",
    "settled",
    "question",
    "answer",
    "end",
    "job-input",
    "job-began",
    "job-waiting",
    "job-ended",
    "job-sleep",
    "job-question",
    "job-answer",
    "job-output",
];
/// The kinds of other points.
const OTHER_KINDS: [&str; 5] = ["claim", "run", "effect", "turn", "release"];
/// The maximum number of kills of a run.
const KILLS: usize = 3;
/// The number of points after a commit that was swallowed, at one of which the process is killed.
const POINTS_AFTER: usize = 5;

#[derive(Default)]
struct Options {
    seed: u64,
    kills: usize,
    all_points: bool,
    flaws: Flaws,
    /// For a process that gets a signal: the folder of the run, and the point at which it waits. If commits
    /// are swallowed, the points after the first of these count.
    child: Option<PathBuf>,
    stop: Option<Stop>,
}

impl Options {
    fn read(mut arguments: impl Iterator<Item = String>) -> Result<Self, Box<dyn Error>> {
        let mut options = Self { kills: 20, ..Self::default() };
        while let Some(argument) = arguments.next() {
            let mut value = || arguments.next().ok_or_else(|| format!("`{argument}` needs a value; see --help"));
            match &*argument {
                "--seed" => options.seed = value()?.parse()?,
                "--kills" => options.kills = value()?.parse()?,
                "--all-points" => options.all_points = true,
                "--swallow" => options.flaws.swallowed = Some(value()?),
                "--blind" => options.flaws.is_blind = true,
                "--child" => options.child = Some(value()?.into()),
                "--stop" => options.stop = Some(Stop::read(value()?)),
                other => return Err(format!("`{other}` is no option; see --help").into()),
            }
        }
        match options.flaws.swallowed.as_deref().filter(|kind| !KINDS.contains(kind)) {
            Some(kind) => Err(format!("`{kind}` is no kind of commit: use one of {}", KINDS.join(", ")).into()),
            None => Ok(options),
        }
    }
}

/// Starts processes until the run has ended, and signals the first of them. Returns the number of kills.
fn run(folder: &Path, options: &Options, signals: &[Signal]) -> Result<usize, Box<dyn Error>> {
    fs::create_dir(folder)?;
    let mut stopped = Vec::new();
    let killed = signal_all(folder, options, signals, &mut stopped);
    for stopped in stopped {
        check(stopped.join().map_err(|_| "a thread has panicked")??, folder)?;
    }
    killed
}

/// Starts processes until the run has ended, except for those that were stopped.
fn signal_all(
    folder: &Path,
    options: &Options,
    signals: &[Signal],
    stopped: &mut Vec<JoinHandle<io::Result<ExitStatus>>>,
) -> Result<usize, Box<dyn Error>> {
    let mut killed = 0;
    for signal in signals {
        let (Signal::Kill(at) | Signal::Stop(at, _)) = *signal;
        let mut process = Process::start(folder, options, Some(at))?;
        if !process.is_at(at)? {
            process.end()?;
            return Ok(killed);
        }
        match *signal {
            Signal::Stop(at, time) => stopped.push(process.stop(at, time)?),
            Signal::Kill(at) if process.kill(at)? => killed += 1,
            Signal::Kill(_) => return Ok(killed),
        }
    }
    // One of them works, and the other waits.
    let both = [Process::start(folder, options, None)?, Process::start(folder, options, None)?];
    let ends = both.map(Process::end);
    ends.into_iter().collect::<Result<(), _>>()?;
    Ok(killed)
}

/// Kills the processes of many runs, each in a folder of its own. If the store has a flaw, ends when the check has
/// noticed it.
fn kill_runs(folder: &Path, options: &Options, checker: &Path) -> Result<(), Box<dyn Error>> {
    let mut numbers = 0..;
    let mut next = || folder.join(format!("{:04}", numbers.next().unwrap_or_default()));
    let first = next();
    let began = Instant::now();
    run(&first, options, &[])?;
    let time = began.elapsed();
    let log = fs::read_to_string(first.join("log"))?;
    let points = log.lines().filter(|line| line.contains(",\"before\",") || line.contains(",\"after\",")).count();

    let random = fastrand::Rng::with_seed(options.seed);
    let is_after = options.flaws.swallowed.is_some();
    let mut random = Random { random, points: if is_after { POINTS_AFTER } else { points }, is_after, time };
    if options.all_points {
        // The number of a point depends on the messages.
        for kind in KINDS.into_iter().chain(OTHER_KINDS) {
            run(&next(), options, &[Signal::Kill(At::Kind("before", kind))])?;
            run(&next(), options, &[Signal::Kill(At::Kind("after", kind))])?;
        }
        for point in 0..points {
            let more = (1..=point % KILLS).map(|number| random.kill(number, true));
            let signals: Vec<_> = [Signal::Kill(At::Point(point))].into_iter().chain(more).collect();
            run(&next(), options, &signals)?;
            let stop = random.stop(At::Point(point), LEASE);
            run(&next(), options, &[stop])?;
        }
    }
    let mut left = options.kills;
    while left > 0 {
        let mut signals: Vec<_> = (0..left.min(KILLS)).map(|number| random.kill(number, !options.all_points)).collect();
        let position = random.random.usize(..=signals.len());
        let at = random.at(position, true);
        signals.insert(position, random.stop(at, LEASE.mul_f64(0.3)));
        match run(&next(), options, &signals) {
            // A process may fail because of the flaw.
            Err(error) if options.flaws.is_any() => {
                eprintln!("{error}");
                left -= 1;
            }
            killed => left -= killed?,
        }
        if options.flaws.is_any() && !Command::new(checker).arg(folder).stdout(Stdio::null()).status()?.success() {
            return Ok(());
        }
    }
    Ok(())
}

/// The signals of a run, which are random.
struct Random {
    random: fastrand::Rng,
    /// The number of points at which a process may get a signal.
    points: usize,
    /// `true` if only points after a commit that was swallowed count.
    is_after: bool,
    /// The time of a run without a signal.
    time: Duration,
}

impl Random {
    /// Returns a place for the signal to a process, by the number of processes before it.
    fn at(&mut self, number: usize, also_points: bool) -> At {
        if also_points && self.random.bool() {
            // The first points after a commit that was swallowed are more likely.
            let points = if self.is_after { 1 + self.random.usize(..self.points) } else { self.points };
            return At::Point(self.random.usize(..points));
        }
        // A process after another one waits for the lease first.
        let lease = if number == 0 { Duration::ZERO } else { LEASE };
        At::Moment(lease + self.time.mul_f64(self.random.f64()))
    }

    fn kill(&mut self, number: usize, also_points: bool) -> Signal {
        Signal::Kill(self.at(number, also_points))
    }

    /// Stops a process for at least a time, and for at most three leases.
    fn stop(&mut self, at: At, least: Duration) -> Signal {
        Signal::Stop(at, least + (3 * LEASE - least).mul_f64(self.random.f64()))
    }
}

/// Returns the path of the program that checks.
fn checker() -> Result<PathBuf, Box<dyn Error>> {
    let path = std::env::current_exe()?.with_file_name("crash_check");
    // `cargo run` has built only this program.
    if let Some(cargo) = std::env::var_os("CARGO") {
        let mut build = Command::new(cargo);
        build.args(["build", "--quiet", "-p", "emitree-stress", "--bin", "crash_check"]);
        if !cfg!(debug_assertions) {
            build.arg("--release");
        }
        let status = build.status()?;
        if !status.success() {
            return Err(format!("`crash_check` could not be built: {status}").into());
        }
    }
    if path.exists() {
        Ok(path)
    } else {
        Err(format!("there is no `{}`: cargo build -p emitree-stress --bins", path.display()).into())
    }
}

fn test(options: &Options) -> Result<bool, Box<dyn Error>> {
    let checker = checker()?;
    let folder = tempfile::tempdir()?;
    let killed = kill_runs(folder.path(), options, &checker);
    let mut check = Command::new(checker);
    check.arg(folder.path());
    if options.all_points {
        check.arg("--all-points");
    }
    // The logs may also tell why a process has failed.
    let is_right = check.status()?.success();
    let is_right = killed.map(|()| is_right);
    if !matches!(is_right, Ok(true)) {
        println!("the logs and databases are in {}", folder.keep().display());
    }
    is_right
}

fn main() -> ExitCode {
    if help::is_asked(include_str!("main.rs")) {
        return ExitCode::SUCCESS;
    }
    let done = Options::read(std::env::args().skip(1)).and_then(|options| match &options.child {
        None => test(&options),
        Some(folder) => {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
            let live = process::live(folder, options.stop, options.flaws);
            runtime.block_on(live)?;
            Ok(true)
        }
    });
    match done {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(error) => {
            eprintln!("{error}");
            ExitCode::FAILURE
        }
    }
}
