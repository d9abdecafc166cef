//! Kills the process of an agent again and again, and checks that no run was lost and no effect was repeated.
//!
//! ```text
//! cargo run -p emitree-stress --release --bin crash -- --seed 1 --kills 20
//! cargo run -p emitree-stress --release --bin crash -- --seed 1 --kills 200 --all-points
//! cargo run -p emitree-stress --release --bin crash -- --seed 1 --kills 20 --swallow began
//! ```
//!
//! Each run of the agent is a process that gets SIGKILL up to three times, at a random moment or at a point: before or
//! after a commit, or before or after an effect. Other processes go on with the session, the last two of them at the same
//! time, until the agent has answered.
//! Then `crash_check`, a program without code of this library, reads the database, the effects and the logs of the
//! points. With `--all-points`, a run is also killed at each of the points. With `--swallow KIND`, the store says that a
//! commit of this kind is stored, and does not store it (`input`, `response`, `began`, `settled`, `question`, `answer`
//! or `end`): then the check has to fail.

use std::error::Error;
use std::fs::{self, OpenOptions};
use std::io::{self, BufRead, BufReader, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitCode, Stdio};
use std::time::{Duration, Instant};

#[path = "../../../../examples/shared/help.rs"]
mod help;
mod points;
mod process;

/// The kinds of commits that can be swallowed.
const KINDS: [&str; 7] = ["input", "response", "began", "settled", "question", "answer", "end"];
/// The maximum number of kills of a run.
const KILLS: usize = 3;

#[derive(Default)]
struct Options {
    seed: u64,
    kills: usize,
    all_points: bool,
    swallowed: Option<String>,
    /// For a process that is killed: the folder of the run, and the number of the point at which it stops.
    child: Option<PathBuf>,
    stop: Option<usize>,
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
                "--swallow" => options.swallowed = Some(value()?),
                "--child" => options.child = Some(value()?.into()),
                "--stop" => options.stop = Some(value()?.parse()?),
                other => return Err(format!("`{other}` is no option; see --help").into()),
            }
        }
        match options.swallowed.as_deref().filter(|kind| !KINDS.contains(kind)) {
            Some(kind) => Err(format!("`{kind}` is no kind of commit: use one of {}", KINDS.join(", ")).into()),
            None => Ok(options),
        }
    }
}

/// Where a process is killed.
#[derive(Clone, Copy)]
enum Kill {
    Point(usize),
    Moment(Duration),
}

/// Starts processes until the run has ended, and kills the first of them. Returns the number of kills.
fn run(folder: &Path, options: &Options, kills: &[Kill]) -> Result<usize, Box<dyn Error>> {
    fs::create_dir(folder)?;
    for (number, kill) in kills.iter().enumerate() {
        if start(folder, options, *kill)? {
            return Ok(number);
        }
        let mut log = OpenOptions::new().append(true).create(true).open(folder.join("log"))?;
        let at = if matches!(kill, Kill::Point(_)) { "at a point" } else { "at a moment" };
        // The process may have been killed inside of a line.
        writeln!(log, "\n{}", serde_json::json!(["killed", at]))?;
    }
    // One of them works, and the other waits.
    let both = [child(folder, options, None)?, child(folder, options, None)?];
    for mut child in both {
        if !has_ended(&mut child, folder)? {
            return Err("a process was killed by another program".into());
        }
    }
    Ok(kills.len())
}

/// Starts a process, which may stop at a point.
fn child(folder: &Path, options: &Options, kill: Option<Kill>) -> io::Result<Child> {
    let mut command = Command::new(std::env::current_exe()?);
    command.arg("--child").arg(folder).stdout(Stdio::piped());
    options.swallowed.iter().for_each(|kind| _ = command.args(["--swallow", kind]));
    if let Some(Kill::Point(point)) = kill {
        command.args(["--stop", &point.to_string()]);
    }
    command.spawn()
}

/// Runs one process. Returns `false` if it was killed.
fn start(folder: &Path, options: &Options, kill: Kill) -> Result<bool, Box<dyn Error>> {
    let mut child = child(folder, options, Some(kill))?;
    match kill {
        Kill::Moment(moment) => {
            std::thread::sleep(moment);
            child.kill()?;
        }
        Kill::Point(_) if is_at_a_point(&mut child)? => child.kill()?,
        Kill::Point(_) => {}
    }
    has_ended(&mut child, folder)
}

/// Waits for the end of a process. Returns `false` if it was killed.
fn has_ended(child: &mut Child, folder: &Path) -> Result<bool, Box<dyn Error>> {
    match child.wait()?.code() {
        None => Ok(false),
        Some(0) => Ok(true),
        Some(_) => Err(format!("a process has failed, in {}", folder.display()).into()),
    }
}

/// Waits until a process has stopped at its point, or has ended.
fn is_at_a_point(child: &mut Child) -> io::Result<bool> {
    let output = child.stdout.take().ok_or(io::ErrorKind::BrokenPipe)?;
    Ok(BufReader::new(output).lines().next().transpose()?.is_some())
}

/// Kills the processes of many runs, each in a folder of its own.
fn kill_runs(folder: &Path, options: &Options) -> Result<(), Box<dyn Error>> {
    let mut numbers = 0..;
    let mut next = || folder.join(format!("{:04}", numbers.next().unwrap_or_default()));
    let first = next();
    let began = Instant::now();
    run(&first, options, &[])?;
    let time = began.elapsed();
    let log = fs::read_to_string(first.join("log"))?;
    let points = log.lines().filter(|line| line.starts_with("[\"before\"") || line.starts_with("[\"after\"")).count();

    let mut random = fastrand::Rng::with_seed(options.seed);
    let mut kill = |number: usize, also_points: bool| {
        if also_points && random.bool() {
            return Kill::Point(random.usize(..points));
        }
        // A process after a kill waits for the lease first.
        let lease = if number == 0 { Duration::ZERO } else { process::LEASE };
        Kill::Moment(lease + time.mul_f64(random.f64()))
    };
    if options.all_points {
        for point in 0..points {
            let more = (1..=point % KILLS).map(|number| kill(number, true));
            let kills: Vec<_> = [Kill::Point(point)].into_iter().chain(more).collect();
            run(&next(), options, &kills)?;
        }
    }
    let mut left = options.kills;
    while left > 0 {
        let kills: Vec<_> = (0..left.min(KILLS)).map(|number| kill(number, !options.all_points)).collect();
        left -= run(&next(), options, &kills)?;
    }
    Ok(())
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
    let mut check = Command::new(checker()?);
    let folder = tempfile::tempdir()?;
    let killed = kill_runs(folder.path(), options);
    check.arg(folder.path());
    if options.all_points {
        check.arg("--all-points");
    }
    let is_right = killed.and_then(|()| Ok(check.status()?.success()));
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
            let live = process::live(folder, options.stop, options.swallowed);
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
