//! The world outside: a file with a line for each effect, and for each start.

use std::fs::{self, OpenOptions};
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::process;

/// A deed of a process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Deed {
    /// It has called the function of a job.
    Run,
    /// It has called the function of a plain step, or of a tool, whose effect comes a little later.
    Call,
    /// The effect of a plain step, or of a call.
    Charge,
    /// The effect of an idempotent step.
    Note,
}

impl Deed {
    const ALL: [(Self, &'static str); 4] =
        [(Self::Run, "run"), (Self::Call, "call"), (Self::Charge, "charge"), (Self::Note, "note")];

    const fn is_effect(self) -> bool {
        matches!(self, Self::Charge | Self::Note)
    }
}

/// A line of the file.
pub(crate) struct Line {
    pub(crate) deed: Deed,
    /// The id of a job, or the text of a message.
    pub(crate) job: String,
    /// The number of the process.
    pub(crate) process: u32,
    /// The time since the machine was started, in milliseconds.
    pub(crate) at: u64,
}

impl Line {
    fn read(line: &str) -> Option<Self> {
        let mut words = line.split(' ');
        let word = words.next()?;
        let (deed, _) = Deed::ALL.into_iter().find(|(_, name)| *name == word)?;
        let job = words.next()?.to_owned();
        let process = words.next()?.parse().ok()?;
        let at = words.next()?.parse().ok()?;
        words.next().is_none().then_some(Self { deed, job, process, at })
    }
}

/// Returns the time since the machine was started, in milliseconds, with a precision of ten. All processes agree on it,
/// also if their clocks are wrong.
fn uptime() -> io::Result<u64> {
    let text = fs::read_to_string("/proc/uptime")?;
    let seconds = text.split(' ').next().and_then(|seconds| seconds.parse::<f64>().ok());
    seconds.map(|seconds| (seconds * 1000.0) as u64).ok_or_else(|| io::Error::other(format!("{text:?} is no uptime")))
}

#[derive(Clone)]
pub(crate) struct Effects(PathBuf);

impl Effects {
    pub(crate) fn new(folder: &Path) -> Self {
        Self(folder.join("effects"))
    }

    /// Adds a line for a job. An effect is on the disk when this returns.
    pub(crate) fn add(&self, deed: Deed, job: &str) -> io::Result<()> {
        let name = Deed::ALL.into_iter().find(|(of, _)| *of == deed).map_or("", |(_, name)| name);
        let at = uptime()?;
        let mut file = OpenOptions::new().create(true).append(true).open(&self.0)?;
        // One call of `write`, so that a kill leaves whole lines.
        file.write_all(format!("{name} {job} {} {at}\n", process::id()).as_bytes())?;
        if deed.is_effect() { file.sync_all() } else { Ok(()) }
    }

    pub(crate) fn read(&self) -> io::Result<Vec<Line>> {
        let text = fs::read_to_string(&self.0).or_else(|error| match error.kind() {
            io::ErrorKind::NotFound => Ok(String::new()),
            _ => Err(error),
        })?;
        // A line may be written just now.
        let whole = text.rsplit_once('\n').map_or("", |(whole, _)| whole);
        let lines =
            whole.lines().map(|line| Line::read(line).ok_or_else(|| format!("`{line}` is no line of the file")));
        lines.collect::<Result<_, _>>().map_err(io::Error::other)
    }
}
