//! How long a process holds an entry, and under which name: [`Lease`].

use std::env;
use std::path::Path;
use std::process;
use std::time::Duration;

use emitree_emitter::new_id;

const SHORTEST: Duration = Duration::from_millis(10);
const LONGEST: Duration = Duration::from_secs(24 * 60 * 60);

/// The time for which a process holds an entry if it is killed, and the name of the process, which others see.
///
/// A process renews its lease every third of it. The clock of the store says when it is over.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Lease {
    pub(super) by: String,
    pub(crate) time: Duration,
    wait: Option<Duration>,
}

impl Lease {
    /// Creates a lease of 30 s, with the name of the program and the number of the process, such as `worker 4711`.
    #[must_use]
    pub fn new() -> Self {
        let path = env::args_os().next().unwrap_or_default();
        let name = Path::new(&path).file_stem().unwrap_or_default().to_string_lossy().into_owned();
        Self { by: format!("{name} {}", process::id()), time: Duration::from_secs(30), wait: None }
    }

    /// Sets the name. Each journal adds random digits to it, so that two journals never have the same name.
    #[must_use]
    pub fn by(mut self, name: impl Into<String>) -> Self {
        self.by = name.into();
        self
    }

    /// Sets the time. A time of less than 10 ms counts as 10 ms, and of more than a day as a day.
    #[must_use]
    pub fn time(mut self, time: Duration) -> Self {
        self.time = time.clamp(SHORTEST, LONGEST);
        self
    }

    /// Sets for how long [`Journal::claim_when_free`](super::Journal::claim_when_free) waits for another process, by
    /// default for one lease. Runs in a job use it, for example the agents in its steps: a process that was killed may
    /// have held their sessions a little longer than the job. More than a day counts as a day.
    #[must_use]
    pub fn wait(mut self, wait: Duration) -> Self {
        self.wait = Some(wait.min(LONGEST));
        self
    }

    /// Returns a name under which no other holds an entry.
    pub(crate) fn holder(&self) -> String {
        // The last digits of an id are random.
        format!("{} {:08x}", self.by, new_id().as_u128() as u32)
    }

    pub(super) fn waits(&self) -> Duration {
        self.wait.unwrap_or(self.time)
    }
}

impl Default for Lease {
    fn default() -> Self {
        Self::new()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_wait_without_end_is_a_day() {
        assert_eq!((Lease::new().wait(Duration::MAX).waits(), Lease::new().waits()), (LONGEST, Lease::new().time));
    }
}
