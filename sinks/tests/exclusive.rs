//! E13, for recordings: a file has one recorder at a time, across all processes. The recorder notices if its file is
//! removed, renamed or replaced, and later events do not count as delivered.

use std::fs;
use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::time::Duration;

use emitree_emitter::{Emitter, Report, SinkHandle};
use emitree_sinks::{FlushPolicy, JsonlError, JsonlFile, JsonlOptions, read_jsonl};
use tempfile::TempDir;

const EVER: Duration = Duration::MAX;

/// The environment variable with the path of the recording, set for the process that the tests start.
const RECORD_TO: &str = "EMITREE_TEST_RECORD_TO";

fn folder() -> (TempDir, PathBuf) {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("events.jsonl");
    (folder, path)
}

fn on_close() -> JsonlOptions {
    JsonlFile::options().flush(FlushPolicy::OnClose)
}

fn recording(options: &JsonlOptions, path: &Path) -> (Emitter, SinkHandle) {
    let emitter = Emitter::new();
    let handle = emitter.pipe_to(options.clone().open(path).unwrap()).unwrap();
    (emitter, handle)
}

fn emit(emitter: &Emitter, count: usize) {
    futures(async {
        for mut number in 0..count {
            emitter.emit("n", &mut number).await.unwrap();
        }
    });
}

fn futures<T>(future: impl Future<Output = T>) -> T {
    tokio::runtime::Builder::new_current_thread().build().unwrap().block_on(future)
}

fn lines(path: &Path) -> usize {
    read_jsonl(path).unwrap().filter(Result::is_ok).count()
}

fn is_in_use(path: &Path) -> bool {
    match JsonlFile::open(path) {
        Err(JsonlError::InUse { path: named }) => named == path,
        Err(error) => panic!("{error}"),
        Ok(_) => false,
    }
}

/// Returns `[delivered, failed]`, whose sum is the number of emitted events.
fn outcome(report: &Report) -> [u64; 2] {
    assert_eq!((report.lost, report.pending, report.buffered), (0, 0, 0), "{report}");
    [report.delivered, report.failed]
}

/// E13.
#[test]
fn a_second_recorder_of_a_file_is_refused_and_changes_nothing() {
    let (_folder, path) = folder();
    let (emitter, handle) = recording(&JsonlFile::options(), &path);
    emit(&emitter, 60);
    handle.flush_blocking().complete().unwrap();
    // The first recorder may have written half a line when the second recorder opens the file.
    let half = fs::read_to_string(&path).unwrap() + "{\"id";
    fs::write(&path, &half).unwrap();
    let error = JsonlFile::open(&path).unwrap_err();
    let expected = format!(
        "`{}` is open in another recorder; close that recorder first, or record to another file",
        path.display()
    );
    assert_eq!(error.to_string(), expected);
    assert_eq!(fs::read_to_string(&path).unwrap(), half);
    assert_eq!(lines(&path), 60, "it can be read meanwhile");
    assert_eq!(handle.close_blocking(EVER).complete().unwrap(), 60);
}

/// E13: the lock holds for every path to the file.
#[cfg(unix)]
#[test]
fn a_link_to_a_recording_is_locked_with_the_recording() {
    let (folder, path) = folder();
    let file = JsonlFile::open(&path).unwrap();
    let (soft, hard) = (folder.path().join("soft"), folder.path().join("hard"));
    std::os::unix::fs::symlink(&path, &soft).unwrap();
    fs::hard_link(&path, &hard).unwrap();
    assert!(is_in_use(&soft) && is_in_use(&hard));
    drop(file);
    assert!(!is_in_use(&soft) && !is_in_use(&hard));
}

/// E13.
#[test]
fn a_recording_can_be_opened_again_once_its_recorder_is_closed_or_dropped() {
    let (_folder, path) = folder();
    let dropped = JsonlFile::open(&path).unwrap();
    assert!(is_in_use(&path));
    drop(dropped);
    let mut closed = JsonlFile::open(&path).unwrap();
    emitree_emitter::Sink::close(&mut closed).unwrap();
    assert!(!is_in_use(&path));
    let error = emitree_emitter::Sink::flush(&mut closed).unwrap_err();
    assert_eq!(
        error.to_string(),
        format!("the recorder of `{}` is closed; open the file again to continue", path.display())
    );
    let (emitter, handle) = recording(&JsonlFile::options(), &path);
    assert!(is_in_use(&path));
    emit(&emitter, 1);
    handle.close_blocking(EVER).complete().unwrap();
    assert!(!is_in_use(&path), "a close that has returned has closed the file");
}

/// Not a test, but the process that the tests below start. It records three events, prints a line, waits for the end of
/// its standard input, and records two more events.
#[test]
fn another_process_that_records() {
    let Some(path) = std::env::var_os(RECORD_TO) else { return };
    let (emitter, handle) = recording(&JsonlFile::options(), path.as_ref());
    emit(&emitter, 3);
    handle.flush_blocking().complete().unwrap();
    println!("\nrecorded");
    let _ = std::io::stdin().read_line(&mut String::new());
    emit(&emitter, 2);
    handle.close_blocking(EVER).complete().unwrap();
}

fn start_recorder(path: &Path) -> Child {
    let mut child = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "another_process_that_records", "--nocapture", "--test-threads=1"])
        .env(RECORD_TO, path)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut lines = BufReader::new(child.stdout.as_mut().unwrap()).lines();
    assert!(lines.any(|line| line.unwrap() == "recorded"), "it records");
    child
}

/// Closes the standard input of the process, reads the rest of its output, and waits until the process exits. If the
/// output were closed first, the process could not write to it.
fn to_its_end(child: Child) -> Output {
    child.wait_with_output().unwrap()
}

/// E13.
#[test]
fn a_file_that_another_process_records_to_is_refused_until_that_process_is_done() {
    let (_folder, path) = folder();
    let child = start_recorder(&path);
    assert!(is_in_use(&path));
    assert_eq!(lines(&path), 3);
    // The process continues when its standard input is closed.
    let output = to_its_end(child);
    assert!(output.status.success(), "{output:?}");
    assert!(!is_in_use(&path));
    assert_eq!(lines(&path), 5);
}

/// E13: events that were reported as flushed are in the file, and the operating system has released the lock.
#[test]
fn a_recording_whose_process_was_killed_can_be_read_and_opened_again() {
    let (_folder, path) = folder();
    let mut child = start_recorder(&path);
    child.kill().unwrap();
    let output = to_its_end(child);
    assert!(!output.status.success(), "{output:?}");
    assert_eq!(lines(&path), 3);
    let (emitter, handle) = recording(&JsonlFile::options(), &path);
    emit(&emitter, 4);
    handle.close_blocking(EVER).complete().unwrap();
    assert_eq!(lines(&path), 7);
}

/// A change to the file of a recording, and the error that the recorder returns.
#[cfg(unix)]
type Trouble = (fn(&Path), &'static str);

#[cfg(unix)]
const TROUBLES: [Trouble; 3] = [
    (|path| fs::remove_file(path).unwrap(), "was removed or renamed"),
    (|path| fs::rename(path, path.with_extension("old")).unwrap(), "was removed or renamed"),
    (
        |path| {
            fs::rename(path, path.with_extension("old")).unwrap();
            fs::write(path, "").unwrap();
        },
        "was replaced by another file",
    ),
];

/// E13: events flushed before the change count as delivered; later events never do.
#[cfg(unix)]
#[test]
fn a_file_that_is_removed_renamed_or_replaced_is_noticed_at_the_next_flush() {
    for ((trouble, expected), policy) in TROUBLES
        .into_iter()
        .flat_map(|trouble| [FlushPolicy::OnClose, FlushPolicy::EachRecord].map(|policy| (trouble, policy)))
    {
        let (_folder, path) = folder();
        let (emitter, handle) = recording(&JsonlFile::options().flush(policy), &path);
        emit(&emitter, 10);
        handle.flush_blocking().complete().unwrap();
        trouble(&path);
        emit(&emitter, 7);
        let report = handle.flush_blocking();
        assert_eq!(outcome(&report), [10, 7], "{report}");
        let message = format!("`{}` {expected} during the recording; open it again to continue", path.display());
        assert_eq!(report.error.as_ref(), Some(&message));
        emit(&emitter, 3);
        assert_eq!(outcome(&handle.flush_blocking()), [10, 10]);
        let report = handle.close_blocking(EVER);
        assert_eq!((outcome(&report), report.error), ([10, 10], Some(message)));
        assert_eq!(if path.exists() { lines(&path) } else { 0 }, 0, "nothing is written to another file");
        assert!(!is_in_use(&path), "it can be opened again");
    }
}

/// E13: closing the recorder writes its buffer and detects the change.
#[cfg(unix)]
#[test]
fn a_file_that_is_removed_renamed_or_replaced_is_noticed_by_close() {
    for (trouble, expected) in TROUBLES {
        let (_folder, path) = folder();
        let (emitter, handle) = recording(&on_close(), &path);
        emit(&emitter, 5);
        trouble(&path);
        let report = handle.close_blocking(EVER);
        assert_eq!(outcome(&report), [0, 5], "{report}");
        assert!(report.error.unwrap().contains(expected));
    }
}

/// E13: after the change, the buffer becomes full and is written before the recorder is closed.
#[cfg(unix)]
#[test]
fn each_event_counts_once_if_the_file_is_removed_under_a_busy_recorder() {
    for (trouble, _) in TROUBLES {
        let (_folder, path) = folder();
        let (emitter, handle) = recording(&on_close(), &path);
        emit(&emitter, 2_000);
        let before = handle.flush_blocking();
        assert_eq!(before.delivered, 2_000);
        trouble(&path);
        emit(&emitter, 2_000);
        let report = handle.close_blocking(EVER);
        assert_eq!(outcome(&report), [2_000, 2_000], "{report}");
    }
}

/// E13: the file has kept its name, but its path no longer leads to it.
#[cfg(unix)]
#[test]
fn a_renamed_folder_of_the_recording_is_noticed() {
    let (folder, _) = folder();
    let inner = folder.path().join("inner");
    fs::create_dir(&inner).unwrap();
    let (emitter, handle) = recording(&on_close(), &inner.join("events.jsonl"));
    emit(&emitter, 1);
    fs::rename(&inner, folder.path().join("moved")).unwrap();
    assert_eq!(outcome(&handle.close_blocking(EVER)), [0, 1]);
}

/// Only users who may read the recording can read a torn line.
#[cfg(unix)]
#[test]
fn the_file_of_torn_lines_is_never_more_readable_than_the_recording() {
    use std::fs::Permissions;
    use std::os::unix::fs::PermissionsExt;

    let mode = |path: &Path| fs::metadata(path).unwrap().permissions().mode() & 0o7777;
    for (recording, torn_before, expected) in [
        (0o600, None, 0o600),
        (0o640, None, 0o640),
        (0o666, None, 0o666),
        (0o600, Some(0o644), 0o600),
        (0o644, Some(0o600), 0o600),
    ] {
        let (_folder, path) = folder();
        let torn = path.with_extension("jsonl.torn");
        fs::write(&path, "{\"id").unwrap();
        fs::set_permissions(&path, Permissions::from_mode(recording)).unwrap();
        if let Some(mode) = torn_before {
            fs::write(&torn, "earlier\n").unwrap();
            fs::set_permissions(&torn, Permissions::from_mode(mode)).unwrap();
        }
        JsonlFile::open(&path).unwrap();
        assert!(fs::read_to_string(&torn).unwrap().ends_with("{\"id\n"));
        assert_eq!((mode(&path), mode(&torn)), (recording, expected), "{recording:o} {torn_before:?}");
    }
}

/// A device may have any number of recorders. They do not check whether it was removed.
#[cfg(unix)]
#[test]
fn a_device_is_not_locked() {
    let first = JsonlFile::open("/dev/null").unwrap();
    let second = JsonlFile::open("/dev/null").unwrap();
    drop((first, second));
}
