//! A trajectory writes to standard output, standard error, any writer, or `tracing`; lines that cannot be written are
//! counted.

#[path = "../../tests/support/journal.rs"]
mod journal;
mod support;

use std::io::{self, Seek, Write};
use std::sync::{Arc, Mutex};

use emitree_emitter::Emitter;
use emitree_middleware::Runs;
use emitree_middleware::trajectory::Trajectory;
use emitree_runtime::{Middleware, RunContext, Runnable, runnable_fn};
use futures_util::FutureExt;
use journal::Journal;

use support::{LINES, TestResult, desk, question};

#[tokio::test]
async fn a_trajectory_writes_its_lines_to_a_file() -> TestResult {
    let mut file = tempfile::tempfile()?;
    let trajectory = Trajectory::builder().writer(file.try_clone()?).build()?;
    desk(&Emitter::new()).run(question()).middleware(trajectory).await?;
    file.rewind()?;
    let text = io::read_to_string(file)?;
    assert_eq!(text.lines().collect::<Vec<_>>(), LINES);
    Ok(())
}

#[tokio::test]
async fn stdout_and_stderr_accept_lines_by_default() -> TestResult {
    for trajectory in [Trajectory::stdout(), Trajectory::stderr()] {
        desk(&Emitter::new()).run(question()).middleware(trajectory.clone()).await?;
        assert_eq!(trajectory.write_failures(), 0);
    }
    Ok(())
}

#[test]
fn the_summary_of_a_trajectory_contains_its_target_and_the_options_that_are_not_default() -> TestResult {
    let said = |trajectory: Trajectory| trajectory.describe().summary().to_string();
    assert_eq!(said(Trajectory::stdout()), "to stdout");
    let busy = Trajectory::builder().stderr().included(Runs::of_kind("Tool"));
    let busy = busy
        .excluded(Runs::named("think"))
        .prefix_by_kind("Tool", "* ")
        .json()
        .pretty(true)
        .timing(true)
        .full()
        .every();
    let expected =
        "to stderr, only of Tool, without named think, prefix \"* \" for Tool, as JSON, pretty, timed, full, every run";
    assert_eq!(said(busy.build()?), expected);
    Ok(())
}

#[tokio::test]
async fn failures_of_a_writer_are_counted_and_the_run_continues() -> TestResult {
    struct Full;
    impl Write for Full {
        fn write(&mut self, _: &[u8]) -> io::Result<usize> {
            Err(io::Error::from(io::ErrorKind::StorageFull))
        }
        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }
    let trajectory = Trajectory::builder().writer(Full).build()?;
    let journal = Journal::default();
    let _guard = tracing::subscriber::set_default(journal.clone());
    assert_eq!(desk(&Emitter::new()).run(question()).middleware(trajectory.clone()).await?, "README.md has 2");
    assert_eq!(trajectory.write_failures(), 6);
    assert_eq!(journal.take(), ["a line of a trajectory could not be written; further failures are only counted"]);
    Ok(())
}

/// Starts a run for each line, in the same thread or in another, and waits for the run.
struct RunsPerLine {
    in_thread: bool,
    lines: Arc<Mutex<Vec<String>>>,
}

impl Write for RunsPerLine {
    fn write(&mut self, line: &[u8]) -> io::Result<usize> {
        self.lines.lock().unwrap().push(String::from_utf8_lossy(line).trim_end().to_owned());
        let send = runnable_fn("send", |(): (), _: RunContext| async { Ok(()) });
        let above = RunContext::current();
        let call = move || above.map_or(Ok(()), |above| above.in_scope(|| send.run(()).now_or_never().unwrap()));
        if self.in_thread { std::thread::spawn(call).join().unwrap() } else { call() }
            .map_err(|_| io::ErrorKind::Other)?;
        Ok(line.len())
    }
    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

#[tokio::test]
async fn lines_of_runs_that_a_writer_starts_are_refused_and_counted_and_no_lock_is_waited_for() -> TestResult {
    for in_thread in [false, true] {
        let lines = Arc::default();
        let writer = RunsPerLine { in_thread, lines: Arc::clone(&lines) };
        let trajectory = Trajectory::builder().writer(writer).build()?;
        desk(&Emitter::new()).run(question()).middleware(trajectory.clone()).await?;
        assert_eq!(*lines.lock().unwrap(), LINES);
        // Each line starts a run with two lines.
        assert_eq!(trajectory.write_failures(), 2 * LINES.len() as u64);
    }
    Ok(())
}

#[tokio::test]
async fn tracing_receives_an_event_for_each_line() -> TestResult {
    let trajectory = Trajectory::builder().tracing().build()?;
    let journal = Journal::default();
    let _guard = tracing::subscriber::set_default(journal.clone());
    desk(&Emitter::new()).run(question()).middleware(trajectory).await?;
    assert_eq!(journal.take(), LINES);
    Ok(())
}
