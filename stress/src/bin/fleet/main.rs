//! Kills and stops workers in a bad network, stops their server, and checks that each job ends once, that each session
//! gets each message once, and that no effect is repeated or lost.
//!
//! ```text
//! cargo run -p emitree-stress --release --bin fleet -- --seed 1
//! cargo run -p emitree-stress --release --bin fleet -- --seed 1 --workers 8 --jobs 500 --server-stops 4
//! cargo run -p emitree-stress --release --bin fleet -- --seed 1 --flaw fence
//! ```
//!
//! Worker processes run jobs on a PostgreSQL server of their own, which `scripts/postgres.sh` starts. Each job has a
//! plain step, a sleep, and an idempotent step; some ask a question. An effect of a step is a line in a file, which is
//! on the disk before the step ends. Each job is submitted twice at once.
//!
//! The same workers go on with sessions, one for each four jobs. Two senders send messages to each session: one
//! submits them, each twice at once, and sends follow-ups; the other one steers. The agent has a model without a
//! network, which calls a tool for each message. The effect of a call is such a line too. One call of each session
//! needs an approval.
//!
//! Meanwhile random workers get SIGKILL, SIGSTOP and later SIGCONT, or are shut down. Each process has a proxy before the
//! server, which closes connections, or swallows requests, replies or both. The server stops as after a crash. A few jobs
//! abort their process whenever they run. This program answers the questions: those of jobs and of agents twice at
//! once, and those about a step that had begun as a careful person would.
//!
//! At the end each job has the right output, and its effects are there once; each submission and each answer was
//! accepted once; exactly the jobs that abort their processes wait for a person; and jobs that are submitted after all
//! this are started once. The history of each session is valid, and has each message once, in the order of its sender,
//! with one call: the call had its effect once, or a person has rejected it, or the model was told that its effect is
//! unknown. If not, the program lists what is wrong, and fails.
//!
//! With `--flaw NAME`, the SQL functions of the store have a flaw, which the check has to notice. A wrong name lists all
//! flaws. `--lease MS` sets the lease of the workers, by default one second.
//!
//! With `--wrong-clock LIBRARY`, the path of libfaketime, the clock of the first worker is an hour ahead.

mod answers;
mod check;
mod disturb;
mod effects;
mod flaws;
#[path = "../../../../examples/shared/help.rs"]
mod help;
mod histories;
mod jobs;
mod parent;
mod processes;
#[path = "../../../../stores/tests/it/postgres/proxy.rs"]
#[expect(dead_code, reason = "tests of the store also rewrite replies, and count connections")]
mod proxy;
mod senders;
mod server;
mod sessions;
mod work;
mod worker;

use std::error::Error;
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use flaws::Flaw;

/// The command line.
struct Options {
    seed: u64,
    workers: usize,
    jobs: usize,
    server_stops: usize,
    lease: Duration,
    flaw: Option<&'static Flaw>,
    wrong_clock: Option<PathBuf>,
    /// For a worker: the URL of its server, and the folder of the effects.
    worker: Option<(String, PathBuf)>,
}

impl Options {
    fn read() -> Result<Self, Box<dyn Error>> {
        use lexopt::prelude::{Long, ValueExt};
        let mut options = Self {
            seed: fastrand::u64(..),
            workers: 4,
            jobs: 60,
            server_stops: 1,
            lease: Duration::from_secs(1),
            flaw: None,
            wrong_clock: None,
            worker: None,
        };
        let mut parser = lexopt::Parser::from_env();
        while let Some(argument) = parser.next()? {
            match argument {
                Long("seed") => options.seed = parser.value()?.parse()?,
                Long("workers") => options.workers = parser.value()?.parse()?,
                Long("jobs") => options.jobs = parser.value()?.parse()?,
                Long("server-stops") => options.server_stops = parser.value()?.parse()?,
                Long("lease") => options.lease = Duration::from_millis(parser.value()?.parse()?),
                Long("flaw") => options.flaw = Some(flaws::find(&parser.value()?.string()?)?),
                Long("wrong-clock") => options.wrong_clock = Some(parser.value()?.into()),
                Long("worker") => options.worker = Some((parser.value()?.string()?, parser.value()?.into())),
                other => return Err(other.unexpected().into()),
            }
        }
        if options.workers == 0 || options.jobs == 0 {
            return Err("there are no workers or no jobs".into());
        }
        if let Some(library) = options.wrong_clock.as_ref().filter(|library| !library.exists()) {
            return Err(format!("there is no `{}`", library.display()).into());
        }
        if options.lease < Duration::from_millis(200) {
            return Err("a lease of less than 200 ms is over before a loaded machine renews it".into());
        }
        Ok(options)
    }
}

fn run(options: &Options) -> Result<bool, Box<dyn Error>> {
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build()?;
    match &options.worker {
        Some((url, folder)) => {
            runtime.block_on(worker::work(url, folder, options.lease))?;
            Ok(true)
        }
        None => runtime.block_on(parent::test(options)),
    }
}

fn main() -> ExitCode {
    if help::is_asked(include_str!("main.rs")) {
        return ExitCode::SUCCESS;
    }
    match Options::read().and_then(|options| run(&options)) {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(error) => {
            eprintln!("error: {error}");
            ExitCode::FAILURE
        }
    }
}
