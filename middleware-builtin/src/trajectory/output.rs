//! The output that lines are written to.

use std::fmt;
use std::io::{self, Write};
use std::sync::atomic::{AtomicU64, Ordering};

use parking_lot::Mutex;

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
    Writer(Mutex<Box<dyn Write + Send>>),
}

impl Target {
    pub(super) fn writer(writer: impl Write + Send + 'static) -> Self {
        Self::Writer(Mutex::new(Box::new(writer)))
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
            Target::Stdout => io::stdout().write_all(line.as_bytes()),
            Target::Stderr => io::stderr().write_all(line.as_bytes()),
            Target::Writer(writer) => writer.lock().write_all(line.as_bytes()),
            Target::Tracing => Ok(()),
        }
    }

    /// Writes a line; counts failures, and logs the first failure.
    pub(super) fn write_or_count(&self, line: String) {
        if let Err(error) = self.write(line)
            && self.failures.fetch_add(1, Ordering::Relaxed) == 0
        {
            tracing::warn!(%error, "a line of a trajectory could not be written; further failures are only counted");
        }
    }

    pub(super) fn failures(&self) -> u64 {
        self.failures.load(Ordering::Relaxed)
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
