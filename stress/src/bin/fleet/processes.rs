//! The processes of the workers, and the signals that they get.

use std::collections::BTreeSet;
use std::fs::File;
use std::io;
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use crate::proxy::{Network, Proxy};

const SIGABRT: i32 = 6;

/// The numbers of processes that have ended, and do nothing any more.
#[derive(Clone, Default)]
pub(crate) struct Gone(Arc<Mutex<BTreeSet<u32>>>);

impl Gone {
    fn add(&self, process: u32) {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).insert(process);
    }

    pub(crate) fn has(&self, process: u32) -> bool {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).contains(&process)
    }
}

/// How a process has ended.
pub(crate) enum End {
    /// It was shut down.
    Shutdown,
    /// A poisonous job has aborted it.
    Abort,
    Other(ExitStatus),
}

/// The place of a worker: its process, which is replaced when it has ended, and its network.
pub(crate) struct Place {
    start: Start,
    child: Child,
    network: Proxy,
    /// When the process goes on that was stopped.
    stopped_until: Option<Instant>,
    /// When the network works again.
    cut_until: Option<Instant>,
    is_shut_down: bool,
}

/// How the process of a place is started.
pub(crate) struct Start {
    pub(crate) folder: PathBuf,
    pub(crate) url: String,
    pub(crate) lease: Duration,
    pub(crate) gone: Gone,
    /// The library libfaketime, for a process whose clock is an hour ahead.
    pub(crate) wrong_clock: Option<PathBuf>,
}

impl Start {
    fn process(&self) -> io::Result<Child> {
        let log = File::options().create(true).append(true).open(log(&self.folder))?;
        let mut command = Command::new(std::env::current_exe()?);
        command.args(["--lease", &self.lease.as_millis().to_string(), "--worker", &self.url]).arg(&self.folder);
        if let Some(library) = &self.wrong_clock {
            // Its timers measure the right time.
            command.env("LD_PRELOAD", library).env("FAKETIME", "+1h").env("FAKETIME_DONT_FAKE_MONOTONIC", "1");
        }
        command.stdin(Stdio::piped()).stdout(log.try_clone()?).stderr(log).spawn()
    }
}

/// Returns the file into which the processes write.
pub(crate) fn log(folder: &Path) -> PathBuf {
    folder.join("log")
}

impl Place {
    /// Starts a process behind a network of its own.
    pub(crate) async fn start(mut start: Start) -> io::Result<Self> {
        let network = Proxy::start(&start.url).await;
        start.url.clone_from(&network.url);
        let child = start.process()?;
        Ok(Self { start, child, network, stopped_until: None, cut_until: None, is_shut_down: false })
    }

    fn replace(&mut self) -> io::Result<()> {
        self.start.gone.add(self.child.id());
        self.child = self.start.process()?;
        self.stopped_until = None;
        self.is_shut_down = false;
        Ok(())
    }

    /// Ends what is over, and replaces a process that has ended.
    pub(crate) fn look(&mut self, now: Instant) -> io::Result<Option<End>> {
        if self.cut_until.is_some_and(|until| until <= now) {
            self.mend();
        }
        if self.stopped_until.is_some_and(|until| until <= now) {
            self.go_on()?;
        }
        let Some(status) = self.child.try_wait()? else { return Ok(None) };
        let end = match status.signal() {
            Some(SIGABRT) => End::Abort,
            None if status.success() && self.is_shut_down => End::Shutdown,
            _ => End::Other(status),
        };
        self.replace()?;
        Ok(Some(end))
    }

    /// Kills the process, also one that is stopped, and starts another one.
    pub(crate) fn kill(&mut self) -> io::Result<()> {
        self.child.kill()?;
        self.child.wait()?;
        self.replace()
    }

    /// Stops the process for a time. Returns `false` if it is stopped already.
    pub(crate) fn stop(&mut self, time: Duration) -> io::Result<bool> {
        if self.stopped_until.is_some() {
            return Ok(false);
        }
        self.signal("-STOP")?;
        self.stopped_until = Some(Instant::now() + time);
        Ok(true)
    }

    /// Lets a process go on that was stopped.
    pub(crate) fn go_on(&mut self) -> io::Result<()> {
        if self.stopped_until.take().is_some() { self.signal("-CONT") } else { Ok(()) }
    }

    /// Cuts the network for a time.
    pub(crate) fn cut(&mut self, network: Network, time: Duration) {
        self.network.set(network);
        self.cut_until = Some(Instant::now() + time);
    }

    pub(crate) fn mend(&mut self) {
        self.network.set(Network::Works);
        self.cut_until = None;
    }

    /// Tells the process to end, and returns its number, or `None` if it was told before.
    pub(crate) fn shut_down(&mut self) -> Option<u32> {
        self.is_shut_down = true;
        self.child.stdin.take().map(|_| self.child.id())
    }

    fn signal(&self, signal: &str) -> io::Result<()> {
        let status = Command::new("kill").args([signal, &self.child.id().to_string()]).status()?;
        let failed = || io::Error::other(format!("`kill {signal}` has failed: {status}"));
        if status.success() { Ok(()) } else { Err(failed()) }
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        // It may have ended by itself.
        self.child.kill().ok();
        self.child.wait().ok();
    }
}
