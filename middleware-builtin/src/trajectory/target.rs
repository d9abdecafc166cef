//! Where lines go.

use std::fmt;
use std::fs::OpenOptions;
use std::io::{self, Write};
use std::path::PathBuf;
use std::sync::atomic::{AtomicU64, Ordering};

use parking_lot::Mutex;

use super::TrajectoryError;

/// Where a trajectory is written to.
#[derive(Default)]
#[non_exhaustive]
pub enum Target {
    /// The standard output.
    #[default]
    Stdout,
    /// The standard error output.
    Stderr,
    /// A file, which is appended to, and made if there is none.
    File(PathBuf),
    /// Whatever can be written to. Each line, or record of several lines, is one `write_all`; nothing is flushed.
    Writer(Box<dyn Write + Send>),
    /// Events of `tracing`, at level `INFO`, with the target `emitree::trajectory` and the line as their message.
    Tracing,
    /// Nowhere: the trajectory's own events are all there is.
    None,
}

impl Target {
    /// Whatever can be written to.
    pub fn writer(writer: impl Write + Send + 'static) -> Self {
        Self::Writer(Box::new(writer))
    }
}

impl fmt::Debug for Target {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Stdout => f.write_str("Stdout"),
            Self::Stderr => f.write_str("Stderr"),
            Self::File(path) => f.debug_tuple("File").field(path).finish(),
            Self::Writer(_) => f.write_str("Writer(..)"),
            Self::Tracing => f.write_str("Tracing"),
            Self::None => f.write_str("None"),
        }
    }
}

/// A target that is open, and what could not be written to it.
pub(super) struct Output {
    sink: Sink,
    failures: AtomicU64,
}

enum Sink {
    Stdout,
    Stderr,
    Writer(Mutex<Box<dyn Write + Send>>),
    Tracing,
    None,
}

impl Output {
    pub(super) fn open(target: Target) -> Result<Self, TrajectoryError> {
        let sink = match target {
            Target::Stdout => Sink::Stdout,
            Target::Stderr => Sink::Stderr,
            Target::File(path) => match OpenOptions::new().append(true).create(true).open(&path) {
                Ok(file) => Sink::Writer(Mutex::new(Box::new(file))),
                Err(source) => return Err(TrajectoryError::Open { path, source }),
            },
            Target::Writer(writer) => Sink::Writer(Mutex::new(writer)),
            Target::Tracing => Sink::Tracing,
            Target::None => Sink::None,
        };
        Ok(Self { sink, failures: AtomicU64::new(0) })
    }

    pub(super) const fn stdout() -> Self {
        Self { sink: Sink::Stdout, failures: AtomicU64::new(0) }
    }

    pub(super) const fn stderr() -> Self {
        Self { sink: Sink::Stderr, failures: AtomicU64::new(0) }
    }

    /// Whether anything comes of writing.
    pub(super) const fn is_some(&self) -> bool {
        !matches!(self.sink, Sink::None)
    }

    /// Writes a message and a line feed, at once.
    pub(super) fn write(&self, mut message: String) -> io::Result<()> {
        if let Sink::Tracing = self.sink {
            tracing::info!(target: "emitree::trajectory", "{message}");
            return Ok(());
        }
        message.push('\n');
        match &self.sink {
            Sink::Stdout => io::stdout().lock().write_all(message.as_bytes()),
            Sink::Stderr => io::stderr().lock().write_all(message.as_bytes()),
            Sink::Writer(writer) => writer.lock().write_all(message.as_bytes()),
            Sink::Tracing | Sink::None => Ok(()),
        }
    }

    /// The same, where nobody can be told of a failure: it is counted, and the first is logged.
    pub(super) fn write_or_count(&self, message: String) {
        if let Err(error) = self.write(message)
            && self.failures.fetch_add(1, Ordering::Relaxed) == 0
        {
            tracing::warn!(%error, "a line of a trajectory could not be written; further ones are only counted");
        }
    }

    pub(super) fn failures(&self) -> u64 {
        self.failures.load(Ordering::Relaxed)
    }
}

impl fmt::Debug for Output {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self.sink {
            Sink::Stdout => "stdout",
            Sink::Stderr => "stderr",
            Sink::Writer(_) => "a writer",
            Sink::Tracing => "tracing",
            Sink::None => "nowhere",
        })
    }
}
