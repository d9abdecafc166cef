//! A recording is read as heads and runs while it grows: no record is missed, and none is read twice.

use std::fs::{self, OpenOptions};
use std::io::Write;
use std::path::PathBuf;
use std::time::{Duration, UNIX_EPOCH};

use emitree_emitter::{Emitter, SinkRecord};
use emitree_sinks::JsonlFile;
use emitree_sinks::runs::{Batch, Cursor, ErrorDetails, Fact, Head, RecordingFile, Runs, Source, SourceError};
use serde_json::{Value, json};
use tempfile::TempDir;

const EVER: Duration = Duration::MAX;

struct Recording {
    _folder: TempDir,
    path: PathBuf,
    source: RecordingFile,
}

impl Recording {
    fn new() -> Self {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("events.jsonl");
        Self { source: RecordingFile::new(&path), path, _folder: folder }
    }

    /// Records events with these numbers.
    fn record(&self, numbers: impl IntoIterator<Item = u32>) {
        let emitter = Emitter::new();
        let handle = emitter.pipe_to(JsonlFile::open(&self.path).unwrap()).unwrap();
        for mut number in numbers {
            emitter.emit_now(format!("n{number}"), &mut number).unwrap();
        }
        handle.close_blocking(EVER).complete().unwrap();
    }

    fn append(&self, text: impl AsRef<[u8]>) {
        let mut file = OpenOptions::new().append(true).create(true).open(&self.path).unwrap();
        file.write_all(text.as_ref()).unwrap();
    }

    fn heads(&self, after: Option<Cursor>) -> Batch {
        self.source.heads(after, 100).unwrap()
    }
}

fn paths(batch: &Batch) -> Vec<String> {
    let path = |head: &Head| match &head.fact {
        Fact::Gap { lost } => format!("-{lost}"),
        Fact::Malformed { reason } => reason.to_string(),
        _ => head.path.to_string(),
    };
    batch.heads.iter().map(path).collect()
}

fn last(batch: &Batch) -> Option<Cursor> {
    batch.heads.last().map(|head| head.cursor)
}

#[test]
fn a_reader_receives_each_record_once_whatever_the_size_of_its_batches() {
    let recording = Recording::new();
    recording.record(0..7);
    for limit in 1..9 {
        let (mut after, mut read) = (None, Vec::new());
        loop {
            let batch = recording.source.heads(after, limit).unwrap();
            assert!(batch.heads.len() <= limit && !batch.has_restarted);
            read.extend(paths(&batch));
            after = last(&batch).or(after);
            if batch.is_end {
                break;
            }
        }
        assert_eq!(read, ["n0", "n1", "n2", "n3", "n4", "n5", "n6"], "batches of {limit}");
    }
}

#[test]
fn a_line_that_is_still_written_is_read_once_when_it_is_whole() {
    let whole = Recording::new();
    whole.record(0..3);
    let bytes = fs::read(&whole.path).unwrap();
    let growing = Recording::new();
    let (mut after, mut read) = (None, Vec::new());
    for at in 0..bytes.len() {
        growing.append(&bytes[at..=at]);
        let batch = growing.heads(after);
        let begin = bytes[..=at].iter().rposition(|byte| *byte == b'\n').map_or(0, |end| end + 1);
        assert_eq!((batch.is_end, batch.incomplete), (true, (at + 1 - begin) as u64));
        read.extend(paths(&batch));
        after = last(&batch).or(after);
    }
    assert_eq!(read, ["n0", "n1", "n2"]);
}

#[test]
fn a_file_that_does_not_exist_yet_is_an_empty_recording() {
    let recording = Recording::new();
    assert_eq!(recording.heads(None), Batch { is_end: true, ..Batch::default() });
    recording.record(0..1);
    assert_eq!(paths(&recording.heads(None)), ["n0"]);
}

/// Also if the new recording has grown past the old length before somebody looks.
#[test]
fn a_recording_that_was_emptied_begins_anew() {
    for count in [0, 1, 9] {
        let recording = Recording::new();
        recording.record(0..3);
        let after = last(&recording.heads(None));
        fs::write(&recording.path, "").unwrap();
        recording.record(10..10 + count);
        let batch = recording.heads(after);
        assert!(batch.has_restarted);
        assert_eq!(paths(&batch), (10..10 + count).map(|n| format!("n{n}")).collect::<Vec<_>>());
    }
}

#[test]
fn a_recording_that_was_removed_begins_anew() {
    let recording = Recording::new();
    recording.record(0..3);
    let after = last(&recording.heads(None));
    fs::remove_file(&recording.path).unwrap();
    assert_eq!(recording.heads(after), Batch { has_restarted: true, is_end: true, ..Batch::default() });
}

/// Opening the recording again moves the torn line to another file, which makes the recording shorter.
#[test]
fn a_torn_line_that_is_set_aside_does_not_begin_the_recording_anew() {
    let recording = Recording::new();
    recording.record(0..2);
    recording.append("{\"id\":\"torn");
    let batch = recording.heads(None);
    assert_eq!((paths(&batch), batch.incomplete), (vec!["n0".to_owned(), "n1".to_owned()], 11));
    recording.record(2..4);
    let next = recording.heads(last(&batch));
    assert_eq!((paths(&next), next.has_restarted), (vec!["n2".to_owned(), "n3".to_owned()], false));
}

#[test]
fn gaps_and_malformed_lines_are_heads_with_count_and_line_number() {
    let recording = Recording::new();
    recording.record(0..1);
    recording.append("{\"gap\":{\"lost\":3}}\n\nnonsense\n\"\u{fc}\"\n");
    recording.append(b"\xff\n");
    recording.record(1..2);
    let batch = recording.heads(None);
    let read = paths(&batch);
    assert_eq!((&*read[0], &*read[1], &*read[5]), ("n0", "-3", "n1"));
    assert!(read[2].starts_with("line 4 is not a record: ") && read[2].ends_with("`nonsense`"), "{}", read[2]);
    assert!(read[3].starts_with("line 5 is not a record: "), "{}", read[3]);
    assert!(read[4].starts_with("line 6 is not a record: "), "{}", read[4]);
    // The number is right as well if the reader begins after a cursor.
    let after = batch.heads[1].cursor;
    assert_eq!(paths(&recording.heads(Some(after))), read[2..]);
}

#[test]
fn a_record_is_the_line_at_its_cursor_and_a_malformed_line_is_a_string() {
    let recording = Recording::new();
    recording.record(5..6);
    recording.append("say \"nonsense\"\n{\"gap\":{\"lost\":3}}\n");
    let records: Vec<Value> = (recording.heads(None).heads.iter())
        .map(|head| serde_json::from_str(&recording.source.record(head.cursor).unwrap()).unwrap())
        .collect();
    assert_eq!(records[0]["payload"], 5);
    assert_eq!(records[1..], [json!("say \"nonsense\""), json!({"gap": {"lost": 3}})]);
}

#[test]
fn an_unknown_cursor_is_an_error_that_quotes_it() {
    let recording = Recording::new();
    recording.record(0..2);
    let first = recording.heads(None).heads[0].cursor;
    let inside = Cursor { position: first.position + 1, ..first };
    for result in [recording.source.record(inside).map(drop), recording.source.heads(Some(inside), 1).map(drop)] {
        let error = result.unwrap_err();
        assert!(matches!(error, SourceError::NoRecord(at) if at == inside));
        assert!(error.to_string().ends_with(&format!("`{inside}`")), "{error}");
    }
    let behind = Cursor { position: 1 << 40, ..first };
    let foreign = Cursor { recording: first.recording ^ 1, ..first };
    for at in [behind, foreign] {
        assert!(matches!(recording.source.record(at), Err(SourceError::NoRecord(_))), "{at}");
    }
}

const RUN: &str = "01a220d4-9313-70f2-b2ad-6751bb32e81b";
const CHILD: &str = "01a220d4-9314-7676-8175-bcad47efc75a";

/// Returns the head of an event of a run, at a second of 1970.
fn head(second: u64, name: &str, payload: &Value, run: &str) -> Head {
    let parent = (run == CHILD).then_some(RUN);
    let is_lifecycle = name.starts_with("run.");
    let record = json!({
        "id": "01a220d4-9313-71fe-a093-78e0a2246515", "path": format!("tool.{name}"),
        "created_at": format!("1970-01-01T00:00:{second:02}.5Z"),
        "creator": {"kind": if is_lifecycle { "Tool" } else { "Middleware" }, "name": "count", "id": 7},
        "context": if is_lifecycle { json!({"internal": true}) } else { json!({}) }, "group_id": null,
        "trace": {"id": RUN, "run_id": run, "parent_run_id": parent}, "payload_type": "T", "payload": payload,
    });
    let record = SinkRecord::from_json(&record.to_string()).unwrap();
    Head::of(&record, Cursor { recording: 0, position: second, number: second })
}

#[test]
fn a_head_in_json_has_the_facts_of_its_record() {
    let finish = json!({"input": 1, "outcome": {"status": "denied", "by": "x", "reason": "y"}, "duration_ns": 1500});
    let bytes = finish.to_string().len();
    let head = serde_json::to_value(head(7, "run.finish", &finish, CHILD)).unwrap();
    let expected = json!({
        "at": 7, "number": 7, "fact": "finish", "outcome": "denied", "duration_ns": 1500, "time": 7_500_000,
        "run": CHILD, "parent": RUN, "path": "tool.run.finish", "kind": "Tool", "name": "count", "bytes": bytes,
    });
    assert_eq!(head, expected);
}

#[test]
fn only_lifecycle_events_begin_and_end_a_run() {
    for name in ["start", "success", "error", "finish"] {
        assert_eq!(head(1, name, &json!({}), RUN).fact, Fact::Event, "{name}");
    }
    assert_eq!(head(1, "run.start", &json!({}), RUN).fact, Fact::Start);
    assert_eq!(head(1, "run.success", &json!({}), RUN).fact, Fact::Success);
}

/// A middleware may have replaced a payload.
#[test]
fn a_payload_that_cannot_be_read_leaves_the_fact_without_its_values() {
    for payload in [json!(null), json!("***"), json!([1]), json!({"outcome": "***", "duration_ns": "***", "error": 1})]
    {
        let finish = Fact::Finish { outcome: None, duration: None };
        assert_eq!(head(1, "run.finish", &payload, RUN).fact, finish, "{payload}");
        let error = Fact::Error { message: "".into(), details: ErrorDetails::default() };
        assert_eq!(head(1, "run.error", &payload, RUN).fact, error);
        assert_eq!(head(1, "usage", &payload, RUN).fact, Fact::Event);
        assert_eq!(head(1, "attempt_discarded", &payload, RUN).fact, Fact::Event);
    }
    let half = head(1, "run.finish", &json!({"outcome": "***", "duration_ns": 1500}), RUN).fact;
    assert_eq!(half, Fact::Finish { outcome: None, duration: Some(Duration::from_nanos(1500)) });
}

#[test]
fn heads_fold_to_runs() {
    let tokens = json!({"input_tokens": 10, "output_tokens": 2, "cached_input_tokens": 4, "reasoning_tokens": 1});
    let usage = json!({"usage": tokens, "cost": "0.1"});
    let free = json!({"usage": {"input_tokens": 5, "output_tokens": 1}});
    let discarded = json!({"attempt": 0, "reason": "busy", "metadata": null});
    let gap = SinkRecord::from_json("{\"gap\":{\"lost\":4}}").unwrap();
    let gap = |at| Head::of(&gap, Cursor { recording: 0, position: at, number: at });
    let heads = [
        gap(0),
        head(1, "run.start", &json!({"input": 1}), RUN),
        head(2, "run.start", &json!({"input": 1}), CHILD),
        gap(3),
        head(4, "usage", &usage, CHILD),
        head(5, "attempt_discarded", &discarded, CHILD),
        head(6, "usage", &usage, CHILD),
        head(7, "usage", &free, CHILD),
        head(8, "run.error", &json!({"error": {"message": "no"}}), CHILD),
        head(9, "run.finish", &json!({"outcome": {"status": "failed"}, "duration_ns": 7_000_000_000_u64}), CHILD),
        gap(10),
    ];
    let mut runs = Runs::default();
    for head in &heads {
        assert_eq!(runs.add(head).map(|run| run.id), head.run);
    }
    let all: Vec<_> = runs.iter().collect();
    let [above, below] = &*all else { panic!("{all:?}") };
    assert_eq!((above.is_unfinished(), above.lost, above.discarded, above.cost), (true, 8, 0, None));
    assert_eq!((&*below.kind, &*below.name, below.parent), ("Tool", "count", Some(above.id)));
    assert_eq!((below.input_tokens, below.output_tokens, below.cost), (25, 5, Some("0.2".parse().unwrap())));
    assert_eq!((below.cached_input_tokens, below.reasoning_tokens), (8, 2));
    assert_eq!((below.trace, above.trace), (Some(above.id), Some(above.id)));
    assert_eq!((below.outcome.as_deref(), below.error.as_deref()), (Some("failed"), Some("no")));
    assert_eq!((below.discarded, below.lost, below.duration), (1, 4, Some(Duration::from_secs(7))));
    assert_eq!(below.ended.unwrap(), below.started.unwrap() + Duration::from_secs(7));
    assert_eq!((runs.lost(), runs.malformed()), (12, 0));
}

#[test]
fn the_kind_the_status_and_the_causes_of_an_error_are_read_from_its_report() {
    let by = |by: &str| Some(by.into());
    let rows = [
        (json!({"kind": "failed"}), ("failed", None, None, 0)),
        (json!({"kind": {"denied": {"by": "policy"}}}), ("denied", by("policy"), None, 0)),
        (json!({"kind": "failed", "details": {"status": 503, "kind": "status"}}), ("failed", None, Some(503), 0)),
        (json!({"kind": "failed", "details": {"status": "gone"}, "causes": ["a", "b"]}), ("failed", None, None, 2)),
        (json!({"kind": 7, "causes": "***", "details": "***"}), ("", None, None, 0)),
    ];
    for (mut report, (kind, by, status, causes)) in rows {
        report["message"] = "no".into();
        let Fact::Error { message, details } = head(1, "run.error", &json!({"error": report}), RUN).fact else {
            panic!("{report}")
        };
        assert_eq!((&*message, &*details.kind, details.by, details.status), ("no", kind, by, status), "{report}");
        assert_eq!(details.causes.len(), causes, "{report}");
    }
}

#[test]
fn a_run_that_is_removed_is_returned_with_its_facts_and_begins_anew_with_a_later_event() {
    let gap = SinkRecord::from_json("{\"gap\":{\"lost\":4}}").unwrap();
    let mut runs = Runs::default();
    let above = runs.add(&head(1, "run.start", &json!({}), RUN)).unwrap().id;
    let below = runs.add(&head(2, "run.start", &json!({}), CHILD)).unwrap().id;
    runs.add(&Head::of(&gap, Cursor { recording: 0, position: 3, number: 3 }));
    assert_eq!(runs.get(below).map(|run| (run.id, run.lost)), Some((below, 4)));
    assert_eq!(runs.remove(below).map(|run| (run.id, run.lost)), Some((below, 4)));
    assert_eq!((runs.remove(below), runs.get(below)), (None, None));
    assert_eq!(runs.iter().map(|run| run.id).collect::<Vec<_>>(), [above]);
    runs.add(&head(4, "run.start", &json!({}), CHILD));
    assert_eq!(runs.iter().map(|run| (run.id, run.lost)).collect::<Vec<_>>(), [(above, 4), (below, 0)]);
}

#[test]
fn a_usage_that_says_so_is_an_estimate_and_so_is_its_sum() {
    let usage = |estimated: Value| json!({"usage": {"input_tokens": 5, "output_tokens": 1, "estimated": estimated}});
    for (estimated, expected) in
        [(json!(true), true), (json!(false), false), (json!(null), false), (json!("***"), false)]
    {
        let mut runs = Runs::default();
        let head = head(1, "usage", &usage(estimated.clone()), RUN);
        assert_eq!(serde_json::to_value(&head).unwrap().get("estimated").is_some(), expected, "{estimated}");
        runs.add(&head);
        runs.add(&self::head(2, "usage", &usage(json!(false)), RUN));
        let run = runs.iter().next().unwrap();
        assert_eq!((run.is_estimated, run.input_tokens), (expected, 10), "{estimated}");
    }
}

#[test]
fn a_run_whose_start_was_lost_begins_at_its_end_minus_its_duration() {
    let mut runs = Runs::default();
    runs.add(&head(3, "progress", &json!(50), CHILD));
    let run = runs.iter().next().unwrap();
    assert_eq!((&*run.kind, run.started, run.is_unfinished()), ("", None, true));
    runs.add(&head(
        9,
        "run.finish",
        &json!({"outcome": {"status": "success"}, "duration_ns": 8_000_000_000_u64}),
        CHILD,
    ));
    let run = runs.iter().next().unwrap();
    assert_eq!(
        (&*run.kind, run.started.map(|at| run.ended.unwrap() - (Duration::from_secs(8)) == at)),
        ("Tool", Some(true))
    );
}

#[test]
fn a_run_whose_start_was_recorded_late_begins_at_its_end_minus_its_duration() {
    let finish = json!({"outcome": {"status": "success"}, "duration_ns": 6_000_000_000_u64});
    // The second of `start`, and the beginning in tenths of seconds.
    for (second, began) in [(2, 25), (3, 35), (5, 35), (9, 35)] {
        let mut runs = Runs::default();
        runs.add(&head(second, "run.start", &json!({}), RUN));
        runs.add(&head(9, "run.finish", &finish, RUN));
        let started = runs.iter().next().and_then(|run| run.started).unwrap();
        assert_eq!(started, UNIX_EPOCH + Duration::from_millis(began * 100), "{second}");
    }
}
