//! The process of a server: we own it, because rmcp reports neither its exit status nor its stderr.
//!
//! Invariants:
//!
//! 1. The process is the leader of a group of its own, so that a signal to the group reaches what it has started.
//! 2. Dropping the [`Child`] kills the group at once. The task that watches the process reaps it, and then ends: it
//!    waits for nothing but the process and, for [`LAST_WORDS`], its stderr.
//! 3. When the process has ended by itself, the rest of its group is killed, so that it holds no pipe open.

mod command;
mod stderr;

pub(crate) mod lines;

use std::io;
use std::process::{ExitStatus, Stdio};
use std::sync::Arc;
use std::time::Duration;

use tokio::process::{Child as Process, ChildStdin, ChildStdout};
use tokio::sync::{oneshot, watch};
use tokio::time::timeout;

pub(crate) use self::command::Command;
use self::stderr::Stderr;
use crate::error::Exit;
use crate::events::Exited;
use crate::server::report::Report;

/// The time in which the rest of stderr is read after the end of the process.
const LAST_WORDS: Duration = Duration::from_millis(200);

/// A process, which ends at the latest when this is dropped.
#[derive(Debug)]
pub(crate) struct Child {
    group: Group,
    exit: watch::Receiver<Option<Exit>>,
    /// Dropped with the child, which the watching task notices.
    _alive: oneshot::Sender<()>,
}

impl Child {
    /// Starts the process. Lines on stderr are reported as events.
    pub(crate) fn spawn(command: &Command, report: &Report) -> io::Result<(Self, ChildStdin, ChildStdout)> {
        let mut process = command.build();
        process.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped()).kill_on_drop(true);
        let mut process = process.spawn()?;
        let missing = || io::Error::other("the process has no pipes");
        let (stdin, stdout) = (process.stdin.take().ok_or_else(missing)?, process.stdout.take().ok_or_else(missing)?);
        let stderr = Stderr::new(process.stderr.take().ok_or_else(missing)?, report.clone());
        let (alive, dropped) = oneshot::channel();
        let (told, exit) = watch::channel(None);
        let group = Group::of(&process);
        tokio::spawn(watch_process(process, stderr, dropped, group.clone(), told, report.clone()));
        Ok((Self { group, exit, _alive: alive }, stdin, stdout))
    }

    /// Waits for the end of the process.
    pub(crate) async fn exited(&self) -> Exit {
        let mut exit = self.exit.clone();
        let ended = exit.wait_for(Option::is_some).await.ok().and_then(|exit| exit.clone());
        // The watching task has been dropped with its runtime, which has killed the process.
        ended.unwrap_or_else(|| Exit { status: "was killed with the runtime".to_owned(), stderr: None })
    }

    /// Waits for the end of the process, and kills its group if that takes too long.
    pub(crate) async fn end(&self, patience: Duration) {
        if timeout(patience, self.exited()).await.is_err() {
            self.group.kill();
            self.exited().await;
        }
    }
}

impl Drop for Child {
    fn drop(&mut self) {
        if self.exit.borrow().is_none() {
            self.group.kill();
        }
    }
}

/// Reaps the process, and reports its end.
async fn watch_process(
    mut process: Process,
    stderr: Stderr,
    dropped: oneshot::Receiver<()>,
    group: Group,
    told: watch::Sender<Option<Exit>>,
    report: Report,
) {
    let last = stderr.last_line();
    let mut reading = std::pin::pin!(stderr.read());
    let mut dropped = std::pin::pin!(dropped);
    let mut is_dropped = false;
    let mut has_read = false;
    let status = loop {
        tokio::select! {
            status = process.wait() => break status,
            () = &mut reading, if !has_read => has_read = true,
            _ = &mut dropped, if !is_dropped => {
                is_dropped = true;
                // On Unix, the drop has killed the whole group already.
                drop(process.start_kill());
            }
        }
    };
    // The group cannot have another process with the id of its leader yet: ids are not reused within microseconds.
    group.kill();
    if !has_read {
        drop(timeout(LAST_WORDS, reading).await);
    }
    let stderr = last.lock().take();
    let exit = Exit { status: describe(status), stderr };
    report.send(Exited { status: exit.status.clone(), stderr: exit.stderr.clone() });
    drop(told.send(Some(exit)));
}

fn describe(status: io::Result<ExitStatus>) -> String {
    match status {
        Ok(status) => match status.code() {
            Some(code) => format!("has exited with status {code}"),
            None => format!("was killed: {status}"),
        },
        Err(error) => format!("cannot be waited for: {error}"),
    }
}

/// The group of a process.
#[derive(Clone, Debug)]
struct Group {
    #[cfg(unix)]
    id: Option<rustix::process::Pid>,
}

impl Group {
    #[cfg(unix)]
    fn of(process: &Process) -> Self {
        let id = process.id().and_then(|id| i32::try_from(id).ok());
        Self { id: id.and_then(rustix::process::Pid::from_raw) }
    }

    #[cfg(not(unix))]
    fn of(_: &Process) -> Self {
        Self {}
    }

    /// Kills each process of the group. That the group is empty is no failure.
    fn kill(&self) {
        #[cfg(unix)]
        if let Some(id) = self.id {
            let _ = rustix::process::kill_process_group(id, rustix::process::Signal::KILL);
        }
    }
}

/// The last line that a process has written to stderr.
type LastLine = Arc<parking_lot::Mutex<Option<String>>>;
