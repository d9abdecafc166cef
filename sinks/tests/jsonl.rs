//! E13, for recordings: whole records are never lost or torn, wherever the file was cut off. An error states the number
//! of the bad line.

use std::fs;
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::sync::mpsc::{self, Receiver, Sender};
use std::time::Duration;

use emitree_emitter::{BoxError, Emitter, Overflow, Progress, Report, Sink, SinkRecord};
use emitree_sinks::{FlushPolicy, Jsonl, JsonlFile, JsonlOptions, ReadError, Records, Tail, read_jsonl};
use serde::{Deserialize, Serialize};
use tempfile::TempDir;

const EVER: Duration = Duration::MAX;

#[derive(Debug, Serialize, Deserialize, PartialEq)]
struct Note {
    text: String,
    tags: Vec<u32>,
}

fn gap(lost: u64) -> SinkRecord {
    SinkRecord::from_json(&format!("{{\"gap\":{{\"lost\":{lost}}}}}")).unwrap()
}

/// Returns the payloads of events, `-n` for gaps, and the messages of errors.
fn contents(path: &Path) -> Vec<String> {
    let show = |record| match record {
        Ok(SinkRecord::Event(event)) => event.payload.get().to_owned(),
        Ok(SinkRecord::Gap(gap)) => format!("-{}", gap.lost),
        Ok(other) => format!("{other:?}"),
        Err(error) => ReadError::to_string(&error),
    };
    read_jsonl(path).unwrap().map(show).collect()
}

fn torn(path: &Path) -> PathBuf {
    path.with_extension("jsonl.torn")
}

fn folder() -> (TempDir, PathBuf) {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("events.jsonl");
    (folder, path)
}

async fn record(path: &Path, payloads: &mut [Note]) {
    let emitter = Emitter::new();
    let handle = emitter.pipe_to(JsonlFile::open(path).unwrap()).unwrap();
    for payload in payloads {
        emitter.emit("note", payload).await.unwrap();
    }
    handle.close(EVER).await.complete().unwrap();
}

fn note(text: &str) -> Note {
    Note { text: text.to_owned(), tags: vec![1, 2] }
}

/// E13: a recording reads back as typed records, and opening it again appends.
#[tokio::test]
async fn a_recording_reads_back_as_the_emitted_events_and_opening_it_again_appends() {
    let (_folder, path) = folder();
    record(&path, &mut [note("one"), note("zwei\n\"ü\"")]).await;
    record(&path, &mut [note("three")]).await;
    let records: Vec<SinkRecord> = read_jsonl(&path).unwrap().collect::<Result<_, _>>().unwrap();
    let notes: Vec<Note> = records.iter().map(|record| record.as_event().unwrap().payload().unwrap()).collect();
    assert_eq!(notes, [note("one"), note("zwei\n\"ü\""), note("three")]);
    assert!(records.iter().all(|record| record.as_event().unwrap().name() == "note"));
}

/// E13.
#[tokio::test]
async fn a_recording_cut_at_every_byte_opens_again_without_losing_a_whole_record() {
    let (_folder, path) = folder();
    record(&path, &mut [note("one"), note("ü \\ \n")]).await;
    let whole = fs::read(&path).unwrap();
    // A record is whole once its last brace is written; the newline may be missing.
    let ends: Vec<usize> = (0..whole.len()).filter(|at| whole[*at] == b'\n').collect();
    let all = contents(&path);
    for cut in 0..=whole.len() {
        fs::write(&path, &whole[..cut]).unwrap();
        let _ = fs::remove_file(torn(&path));
        let mut file = JsonlFile::open(&path).unwrap();
        file.write(&gap(7)).unwrap();
        file.close().unwrap();

        let kept = ends.iter().filter(|end| **end <= cut).count();
        let begin = kept.checked_sub(1).map_or(0, |last| (ends[last] + 1).min(cut));
        let mut expected = all[..kept].to_vec();
        expected.push("-7".to_owned());
        assert_eq!(contents(&path), expected, "cut at {cut}");
        let set_aside = fs::read(torn(&path)).unwrap_or_default();
        assert_eq!(set_aside.strip_suffix(b"\n").unwrap_or_default(), &whole[begin..cut], "cut at {cut}");
    }
}

/// E13.
#[test]
fn a_torn_line_is_set_aside_after_earlier_torn_lines() {
    let (_folder, path) = folder();
    for (text, tail) in [
        ("{\"gap\":{\"lost\":1}}\n{\"gap\":{", Tail::SetAside { bytes: 8, to: torn(&path) }),
        ("{\"ga", Tail::SetAside { bytes: 4, to: torn(&path) }),
        ("\0\0", Tail::SetAside { bytes: 2, to: torn(&path) }),
        ("{\"gap\":{\"lost\":2}}", Tail::Completed),
        ("", Tail::Whole),
    ] {
        fs::OpenOptions::new().append(true).create(true).open(&path).unwrap().write_all(text.as_bytes()).unwrap();
        assert_eq!(JsonlFile::open(&path).unwrap().tail(), &tail, "{text:?}");
    }
    assert_eq!(fs::read_to_string(torn(&path)).unwrap(), "{\"gap\":{\n{\"ga\n\0\0\n");
    assert_eq!(contents(&path), ["-1", "-2"]);
}

/// E13.
#[test]
fn a_torn_line_may_be_long() {
    for length in [8191, 8192, 8193, 100_000] {
        let (_folder, path) = folder();
        let tail = "x".repeat(length);
        fs::write(&path, format!("{{\"gap\":{{\"lost\":1}}}}\n{tail}")).unwrap();
        JsonlFile::open(&path).unwrap();
        assert_eq!(contents(&path), ["-1"], "{length}");
        assert_eq!(fs::read_to_string(torn(&path)).unwrap().len(), length + 1);
    }
}

/// E13.
#[test]
fn the_flush_policy_decides_when_a_record_is_in_the_file() {
    let nine = Duration::from_secs(9);
    for (policy, sync, before_flush, interval) in [
        (Some(FlushPolicy::EachRecord), false, 1, None),
        (Some(FlushPolicy::EachRecord), true, 1, None),
        (Some(FlushPolicy::WhenIdle), true, 0, Some(Duration::ZERO)),
        (Some(FlushPolicy::Interval(nine)), false, 0, Some(nine)),
        (Some(FlushPolicy::OnClose), true, 0, None),
        (None, false, 0, Some(Duration::ZERO)),
        (None, true, 0, Some(Duration::from_millis(250))),
    ] {
        let (_folder, path) = folder();
        let options = policy.into_iter().fold(JsonlFile::options(), JsonlOptions::flush);
        let mut file = options.sync(sync).open(&path).unwrap();
        file.write(&gap(1)).unwrap();
        assert_eq!(contents(&path).len(), before_flush, "{policy:?}");
        file.flush().unwrap();
        assert_eq!(contents(&path).len(), 1, "{policy:?}");
        assert_eq!(file.flush_interval(), interval, "{policy:?}");
    }
}

/// E13: the sink's thread writes the records that waited without a flush, a close or a further record.
#[test]
fn a_file_that_is_written_when_idle_has_each_event_although_nothing_follows_it() {
    let (_folder, path) = folder();
    let emitter = Emitter::new();
    let handle = emitter.pipe_to(JsonlFile::open(&path).unwrap()).unwrap();
    for mut number in 1..=3_u32 {
        emitter.emit_now("n", &mut number).unwrap();
        while handle.report().delivered < u64::from(number) {
            std::thread::yield_now();
        }
        assert_eq!(contents(&path).len(), number as usize);
    }
}

/// `/dev/null` is not on a disk: it accepts every line, but syncing it fails.
#[cfg(target_os = "linux")]
#[test]
fn a_flush_and_a_close_sync_the_file_only_if_sync_is_on() {
    for (sync, expected) in [(false, true), (true, false)] {
        let options = JsonlFile::options().flush(FlushPolicy::OnClose).sync(sync);
        let mut file = options.open("/dev/null").unwrap();
        file.write(&gap(1)).unwrap();
        assert_eq!((file.flush().is_ok(), file.close().is_ok()), (expected, expected), "{sync}");
    }
}

/// A file sink that accepts three records, and stalls in the fourth write until the sender of `go` is dropped.
struct Stalls {
    file: JsonlFile,
    writes: u32,
    stalled: Sender<()>,
    go: Receiver<()>,
}

impl Sink for Stalls {
    fn write(&mut self, record: &SinkRecord) -> Result<(), BoxError> {
        self.writes += 1;
        if self.writes == 4 {
            self.stalled.send(())?;
            let _ = self.go.recv();
        }
        self.file.write(record)
    }

    fn flush(&mut self) -> Result<(), BoxError> {
        self.file.flush()
    }

    fn close(&mut self) -> Result<(), BoxError> {
        self.file.close()
    }

    fn progress(&self) -> Option<Progress> {
        self.file.progress()
    }
}

/// E13: a report distinguishes events that are buffered, passed to the operating system, and on disk.
#[test]
fn a_report_distinguishes_buffered_delivered_and_synced_events() {
    let counts = |report: &Report| [report.pending, report.buffered, report.delivered, report.synced];
    for (policy, sync, stalled, flushed) in [
        (FlushPolicy::OnClose, false, [1, 3, 0, 0], [0, 0, 4, 0]),
        (FlushPolicy::OnClose, true, [1, 3, 0, 0], [0, 0, 4, 4]),
        (FlushPolicy::EachRecord, false, [1, 0, 3, 0], [0, 0, 4, 0]),
        (FlushPolicy::EachRecord, true, [1, 0, 3, 3], [0, 0, 4, 4]),
    ] {
        let (_folder, path) = folder();
        let emitter = Emitter::new();
        let file = JsonlFile::options().flush(policy).sync(sync).open(&path).unwrap();
        let ((stalls, is_stalled), (gate, go)) = (mpsc::channel(), mpsc::channel());
        let handle = emitter.pipe_to(Stalls { file, writes: 0, stalled: stalls, go }).unwrap();
        (0..4).for_each(|mut number: u32| emitter.emit_now("n", &mut number).unwrap());
        is_stalled.recv().unwrap();
        assert_eq!(counts(&handle.report()), stalled, "{policy:?} {sync}");
        assert!(!handle.report().is_complete());
        drop(gate);
        assert_eq!(counts(&handle.flush_blocking()), flushed, "{policy:?} {sync}");
        let report = handle.close_blocking(EVER);
        assert_eq!(counts(&report), flushed, "{policy:?} {sync}");
        assert_eq!(report.complete().unwrap(), 4);
    }
}

/// E13.
#[cfg(target_os = "linux")]
#[test]
fn events_of_a_failed_sync_do_not_count_as_synced() {
    for policy in [FlushPolicy::OnClose, FlushPolicy::EachRecord] {
        let emitter = Emitter::new();
        // `/dev/null` is not on a disk: it accepts every line, but syncing it fails.
        let file = JsonlFile::options().flush(policy).sync(true).open("/dev/null").unwrap();
        let handle = emitter.pipe_to(file).unwrap();
        emitter.emit_now("n", &mut 1).unwrap();
        let report = handle.flush_blocking();
        assert_eq!((report.delivered + report.failed, report.synced), (1, 0), "{policy:?}: {report}");
        assert!(report.error.as_deref().unwrap_or_default().starts_with("could not sync `/dev/null`; "), "{report}");
        assert_eq!(handle.close_blocking(EVER).synced, 0);
    }
}

/// E13: the buffer is bounded.
#[test]
fn a_full_buffer_is_written_without_a_flush() {
    let (_folder, path) = folder();
    let mut file = JsonlFile::options().flush(FlushPolicy::OnClose).open(&path).unwrap();
    for _ in 0..10_000 {
        file.write(&gap(1)).unwrap();
    }
    assert!(fs::metadata(&path).unwrap().len() > 64 * 1024);
    file.close().unwrap();
    assert_eq!(contents(&path).len(), 10_000);
}

/// A writer that accepts three bytes at a time, and fails in every other call.
#[derive(Default)]
struct Flaky {
    bytes: Vec<u8>,
    calls: usize,
}

impl Write for Flaky {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.calls += 1;
        if self.calls.is_multiple_of(2) {
            return Err(io::Error::other("no space"));
        }
        let some = bytes.len().min(3);
        self.bytes.extend_from_slice(&bytes[..some]);
        Ok(some)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// E13.
#[test]
fn a_failing_writer_receives_each_line_once_and_whole() {
    let mut sink = Jsonl::new(Flaky::default());
    for lost in 1..=5 {
        sink.write(&gap(lost)).unwrap();
        let _ = sink.flush();
    }
    while sink.flush().is_err() {}
    let records: Vec<_> = Records::new(sink.get_ref().bytes.as_slice()).map(Result::unwrap).collect();
    let lost: Vec<u64> =
        records.iter().map(|record| if let SinkRecord::Gap(gap) = record { gap.lost } else { 0 }).collect();
    assert_eq!(lost, [1, 2, 3, 4, 5]);
}

struct Broken;

impl Write for Broken {
    fn write(&mut self, _: &[u8]) -> io::Result<usize> {
        Err(io::Error::other("no space"))
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// E13: the buffer stays bounded, and records that were not written are counted.
#[test]
fn records_fail_once_the_buffer_of_a_broken_writer_is_full() {
    let emitter = Emitter::new();
    let sink = Jsonl::new(Broken).with_overflow(Overflow::DropNewest).with_capacity(10_000);
    let handle = emitter.pipe_to(sink).unwrap();
    let mut text = "x".repeat(10_000);
    for _ in 0..20 {
        emitter.emit_now("text", &mut text).unwrap();
    }
    let report = handle.close_blocking(EVER);
    assert_eq!((report.delivered, report.failed), (0, 20), "13 were refused, and 7 were left in the buffer: {report}");
    assert_eq!(report.error.as_deref(), Some("no space"));
}

/// E13.
#[test]
fn errors_name_the_file() {
    let (folder, path) = folder();
    let missing = folder.path().join("missing").join("events.jsonl");
    let error = JsonlFile::open(&missing).unwrap_err();
    assert_eq!(error.to_string(), format!("could not open `{}`", missing.display()));
    let error = read_jsonl(&path).unwrap_err();
    assert_eq!(error.to_string(), format!("could not open `{}`", path.display()));
}

/// `/dev/full` is a device that is always full. Not every system has it.
#[test]
fn the_error_of_a_file_that_cannot_be_written_counts_the_buffered_records() {
    let full = Path::new("/dev/full");
    if !full.exists() {
        return;
    }
    let mut file = JsonlFile::open(full).unwrap();
    file.write(&gap(1)).unwrap();
    file.write(&gap(2)).unwrap();
    let error = file.close().unwrap_err();
    assert_eq!(error.to_string(), "could not write to `/dev/full`; 2 records are buffered");
}

/// E13.
#[test]
fn the_error_for_a_bad_line_states_its_number_and_quotes_it() {
    let long = "ü".repeat(100);
    let text =
        format!("{{\"gap\":{{\"lost\":1}}}}\n\n{{\"gap\":3}}\n{long}\n\u{fffd}\n{{\"gap\":{{\"lost\":2}}}}\n{{\"id");
    let shown: Vec<String> = Records::new(text.as_bytes())
        .map(|record| record.map_or_else(|error| error.to_string(), |record| format!("{record:?}")))
        .collect();
    let quoted = "ü".repeat(80);
    assert_eq!(shown[0], "Gap(Gap { lost: 1 })");
    assert!(shown[1].starts_with("line 3 is not a record: ") && shown[1].ends_with(": `{\"gap\":3}`"), "{}", shown[1]);
    assert_eq!(shown[2], format!("line 4 is not a record: expected value at column 1: `{quoted}…`"));
    assert!(shown[3].starts_with("line 5 is not a record"), "{}", shown[3]);
    assert_eq!(shown[4], "Gap(Gap { lost: 2 })");
    assert_eq!(shown[5], "line 7 is incomplete, because its writer crashed or is still writing it: `{\"id`");
    assert_eq!(shown.len(), 6);
}

/// E13: reading a non-UTF-8 line returns an error.
#[test]
fn a_line_that_is_not_utf_8_is_an_error() {
    let mut records = Records::new(&b"\xff\xfe\n{\"gap\":{\"lost\":1}}\n"[..]);
    let error = records.next().unwrap().unwrap_err();
    assert!(matches!(&error, ReadError::Malformed { line: 1, text, .. } if text == "\u{fffd}\u{fffd}"), "{error:?}");
    assert!(records.next().unwrap().is_ok());
    assert!(records.next().is_none());
}

/// E13: each line has one record, even if the payload is JSON with line breaks.
#[test]
fn json_with_line_breaks_is_written_on_one_line() {
    let (_folder, path) = folder();
    let emitter = Emitter::new();
    let handle = emitter.pipe_to(JsonlFile::open(&path).unwrap()).unwrap();
    let mut laid_out = serde_json::value::RawValue::from_string("{\n  \"a\": 1\r\n}".to_owned()).unwrap();
    emitter.emit_now("n", &mut laid_out).unwrap();
    assert!(handle.close_blocking(EVER).is_complete());
    let records: Vec<_> = read_jsonl(&path).unwrap().collect::<Result<_, _>>().unwrap();
    assert_eq!(records[0].as_event().unwrap().payload.get(), "{   \"a\": 1  }");
}
