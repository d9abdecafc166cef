//! The output that lines are written to.

use std::fmt;
use std::io::{self, IsTerminal, Write};
use std::iter::successors;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread::{self, ThreadId};

use emitree_runtime::RunContext;
use parking_lot::Mutex;

use super::builder::TrajectoryOptions;
use super::line::Line;
use super::terminal;
use crate::shared::built_in::debug_as;

/// A target, and the number of lines that could not be written to it.
pub(super) struct Output {
    target: Target,
    failures: AtomicU64,
}

#[derive(Default)]
pub(super) enum Target {
    #[default]
    Stdout,
    Stderr,
    Tracing,
    Writer(LineWriter),
}

impl Target {
    pub(super) fn writer(writer: impl Write + Send + 'static) -> Self {
        Self::Writer(LineWriter { writer: Mutex::new(Box::new(writer)), busy: Mutex::new(None) })
    }
}

impl Output {
    pub(super) const fn new(target: Target) -> Self {
        Self { target, failures: AtomicU64::new(0) }
    }

    /// Writes a line and a line feed.
    pub(super) fn write(&self, mut line: String) -> io::Result<()> {
        if let Target::Tracing = self.target {
            tracing::info!(target: "emitree::trajectory", "{line}");
            return Ok(());
        }
        // Write the line and its line feed in one call, so that lines of concurrent runs do not mix.
        line.push('\n');
        match &self.target {
            // On a terminal, the line is colored, unless `NO_COLOR` is set.
            Target::Stdout if io::stdout().is_terminal() => anstream::stdout().lock().write_all(line.as_bytes()),
            Target::Stderr if io::stderr().is_terminal() => anstream::stderr().lock().write_all(line.as_bytes()),
            Target::Stdout => io::stdout().write_all(line.as_bytes()),
            Target::Stderr => io::stderr().write_all(line.as_bytes()),
            Target::Writer(writer) => writer.write(&line),
            Target::Tracing => Ok(()),
        }
    }

    /// Returns the columns of the terminal that lines are written to, if it is one.
    pub(super) fn columns(&self) -> Option<usize> {
        match self.target {
            Target::Stdout => terminal::columns_of_stdout(),
            Target::Stderr => terminal::columns_of_stderr(),
            Target::Tracing | Target::Writer(_) => None,
        }
    }

    /// Writes a line with a message.
    pub(super) fn write_line(&self, line: &Line<'_>, message: &str, options: &TrajectoryOptions) -> io::Result<()> {
        self.write(line.written(message, options, self.columns()))
    }

    /// Writes a line with a message; counts failures, and logs the first failure.
    pub(super) fn write_or_count(&self, line: &Line<'_>, message: &str, options: &TrajectoryOptions) {
        if let Err(error) = self.write_line(line, message, options)
            && self.failures.fetch_add(1, Ordering::Relaxed) == 0
        {
            tracing::warn!(%error, "a line of a trajectory could not be written; further failures are only counted");
        }
    }

    pub(super) fn failures(&self) -> u64 {
        self.failures.load(Ordering::Relaxed)
    }
}

/// A user's writer. A line that the writer itself causes is refused: it would wait for the line that is being written.
pub(super) struct LineWriter {
    writer: Mutex<Box<dyn Write + Send>>,
    /// The line that is being written.
    busy: Mutex<Option<CurrentLine>>,
}

/// The thread and the run of a line.
struct CurrentLine {
    thread: ThreadId,
    run: Option<RunContext>,
}

impl LineWriter {
    fn write(&self, line: &str) -> io::Result<()> {
        let current = CurrentLine { thread: thread::current().id(), run: RunContext::current() };
        // A run that the writer starts begins after `busy` was set, so it is always found here.
        if self.busy.lock().as_ref().is_some_and(|busy| busy.causes(&current)) {
            return Err(io::Error::other("the writer of the trajectory caused this line while it wrote another line"));
        }
        let mut writer = self.writer.lock();
        let _busy = Busy::set(&self.busy, current);
        writer.write_all(line.as_bytes())
    }
}

impl CurrentLine {
    /// Returns `true` if another line is written by the same thread, or in a run below this line's run. All other runs
    /// below that run are over, or have not begun, when it emits a lifecycle event.
    fn causes(&self, other: &Self) -> bool {
        let is_this = |run: &RunContext| self.run.as_ref().is_some_and(|this| this.run_id() == run.run_id());
        let above = other.run.as_ref().and_then(RunContext::parent);
        self.thread == other.thread || successors(above, |run| run.parent()).any(is_this)
    }
}

/// Marks a writer as busy. Its drop removes the mark, even if the writer panics.
struct Busy<'a>(&'a Mutex<Option<CurrentLine>>);

impl<'a> Busy<'a> {
    fn set(busy: &'a Mutex<Option<CurrentLine>>, line: CurrentLine) -> Self {
        *busy.lock() = Some(line);
        Self(busy)
    }
}

impl Drop for Busy<'_> {
    fn drop(&mut self) {
        // Drop the run's context when the lock is released.
        let line = self.0.lock().take();
        drop(line);
    }
}

impl fmt::Debug for Target {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Stdout => "stdout",
            Self::Stderr => "stderr",
            Self::Tracing => "tracing",
            Self::Writer(_) => "a writer",
        })
    }
}

debug_as!(Output, |this| this.target);
