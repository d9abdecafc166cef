//! A process that the program starts, and the signals that it gets.

use std::error::Error;
use std::fs::OpenOptions;
use std::io::{self, BufRead, BufReader, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use serde_json::json;

use crate::Options;

/// The place where a signal reaches a process.
#[derive(Clone, Copy)]
pub(crate) enum At {
    Point(usize),
    /// The first point of a kind, such as `before question`.
    Kind(&'static str, &'static str),
    Moment(Duration),
}

/// A signal: SIGKILL, or SIGSTOP, and SIGCONT after a time.
#[derive(Clone, Copy)]
pub(crate) enum Signal {
    Kill(At),
    Stop(At, Duration),
}

pub(crate) struct Process {
    child: Child,
    folder: PathBuf,
}

impl Process {
    /// Starts a process, which may wait at a point.
    pub(crate) fn start(folder: &Path, options: &Options, at: Option<At>) -> io::Result<Self> {
        let mut command = Command::new(std::env::current_exe()?);
        command.arg("--child").arg(folder).stdin(Stdio::piped()).stdout(Stdio::piped());
        options.flaws.swallowed.iter().for_each(|kind| _ = command.args(["--swallow", kind]));
        if options.flaws.is_blind {
            command.arg("--blind");
        }
        match at {
            Some(At::Point(point)) => _ = command.args(["--stop", &point.to_string()]),
            Some(At::Kind(when, kind)) => _ = command.args(["--stop", &format!("{when} {kind}")]),
            Some(At::Moment(_)) | None => {}
        }
        Ok(Self { child: command.spawn()?, folder: folder.to_owned() })
    }

    /// Waits until the process is where it gets its signal. Returns `false` if it has ended before.
    pub(crate) fn is_at(&mut self, at: At) -> io::Result<bool> {
        match at {
            At::Point(_) | At::Kind(..) => {
                let output = self.child.stdout.take().ok_or(io::ErrorKind::BrokenPipe)?;
                Ok(BufReader::new(output).lines().next().transpose()?.is_some())
            }
            At::Moment(moment) => {
                thread::sleep(moment);
                Ok(self.child.try_wait()?.is_none())
            }
        }
    }

    /// Kills the process. Returns `false` if it has ended before.
    pub(crate) fn kill(mut self, at: At) -> Result<bool, Box<dyn Error>> {
        self.child.kill()?;
        let status = self.child.wait()?;
        if status.code().is_none() {
            self.note("killed", at)?;
            return Ok(true);
        }
        check(status, &self.folder)?;
        Ok(false)
    }

    /// Stops the process. The thread lets it go on after a time, and waits for its end.
    pub(crate) fn stop(mut self, at: At, time: Duration) -> io::Result<JoinHandle<io::Result<ExitStatus>>> {
        self.signal("-STOP")?;
        self.note("stopped", at)?;
        Ok(thread::spawn(move || {
            thread::sleep(time);
            self.note("continued", at)?;
            self.signal("-CONT")?;
            // Ends the wait at a point. The process may have ended, if it has not waited at one.
            let input = self.child.stdin.take();
            input.map_or(Ok(()), |mut input| input.write_all(b"\n")).or_else(|error| match at {
                At::Moment(_) => Ok(()),
                At::Point(_) | At::Kind(..) => Err(error),
            })?;
            self.child.wait()
        }))
    }

    /// Waits for the end of the process.
    pub(crate) fn end(mut self) -> Result<(), Box<dyn Error>> {
        let status = self.child.wait()?;
        check(status, &self.folder)
    }

    fn signal(&self, signal: &str) -> io::Result<()> {
        let status = Command::new("kill").args([signal, &self.child.id().to_string()]).status()?;
        let failed = || io::Error::other(format!("`kill {signal}` has failed: {status}"));
        if status.success() { Ok(()) } else { Err(failed()) }
    }

    /// Adds a line about the process to the log.
    fn note(&self, signal: &str, at: At) -> io::Result<()> {
        let mut log = OpenOptions::new().append(true).create(true).open(self.folder.join("log"))?;
        let at = if matches!(at, At::Moment(_)) { "at a moment" } else { "at a point" };
        // The process may have been killed inside of a line.
        let line = format!("\n{}\n", json!([self.child.id().to_string(), signal, at]));
        log.write_all(line.as_bytes())
    }
}

/// Returns an error unless a process has succeeded.
pub(crate) fn check(status: ExitStatus, folder: &Path) -> Result<(), Box<dyn Error>> {
    match status.code() {
        Some(0) => Ok(()),
        Some(_) => Err(format!("a process has failed, in {}", folder.display()).into()),
        None => Err("a process was killed by another program".into()),
    }
}
