//! A replay prints the live lines again, byte for byte.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use crate::support::{Any, LINES, Page, TestResult, desk, failing_desk, instance, question};
use emitree_emitter::{Emitter, EventRecord, SinkRecord};
use emitree_middleware::trajectory::TrajectoryBuilder;
use emitree_middleware::{RunInfo, Runs};
use emitree_runtime::{Error, Result, RunContext, Runnable};
use emitree_sinks::{JsonlFile, Memory, read_jsonl};
use serde_json::json;

type Options = fn(TrajectoryBuilder) -> TrajectoryBuilder;

/// Records everything that reaches an emitter.
fn record(emitter: &Emitter) -> Arc<Mutex<Vec<EventRecord>>> {
    let records = Arc::<Mutex<Vec<_>>>::default();
    let kept = Arc::clone(&records);
    let observed = emitter.observe("*.*", move |event: &Any, meta| {
        kept.lock().expect("nobody panics here").push(meta.to_record(event));
    });
    observed.expect("a matcher");
    records
}

fn replayed(options: Options, records: &[EventRecord]) -> String {
    let page = Page::new();
    let mut replay = page.built(options).replay();
    for record in records {
        replay.show_event(record).expect("a page takes all");
    }
    page.take()
}

#[tokio::test]
async fn a_replay_prints_the_live_lines_with_any_options() -> TestResult {
    let options: [Options; 9] = [
        |builder| builder,
        |builder| builder.pretty(true),
        TrajectoryBuilder::json,
        |builder| builder.json().pretty(true),
        |builder| builder.events("**.{note,aside}"),
        |builder| builder.included(Runs::of_kind("Tool")).excluded(Runs::named("read_file")),
        |builder| builder.excluded(Runs::of_type::<Vec<u8>>()),
        |builder| {
            let outermost = |run: &dyn RunInfo| run.trace().is_some_and(|trace| trace.parent_run_id.is_none());
            builder.included(Runs::matching(outermost).or(Runs::matching(|run| run.namespace() == "tool.read_file")))
        },
        |builder| builder.prefix_by_kind("Tool", "* "),
    ];
    for options in options {
        let root = Emitter::new();
        let records = record(&root);
        let page = Page::new();
        let trajectory = page.built(options);
        desk(&root).run(question()).middleware(trajectory.clone()).await?;
        failing_desk(&root).run(question()).middleware(trajectory.clone()).await?;
        noisy(&root).run(()).middleware(trajectory.clone()).await.unwrap_err();
        Nameless(root.child("nameless")?).run(()).middleware(trajectory).await?;
        let records = records.lock().expect("nobody panics here");
        // Read the records back, as from a file.
        let read = records.iter().map(|record| serde_json::from_str(&serde_json::to_string(record)?));
        let read = read.collect::<std::result::Result<Vec<EventRecord>, serde_json::Error>>()?;
        assert_eq!(replayed(options, &read), page.take());
    }
    Ok(())
}

/// Returns a tool that emits further events, and fails with details, causes and unusual numbers.
fn noisy(root: &Emitter) -> impl Runnable<Input = (), Output = ()> + 'static {
    instance(root, "Tool", "noisy", |(): (), ctx: RunContext| async move {
        ctx.emitter().emit("note", &mut json!({"z": 0.1, "a": [null, "é\n\""]})).await?;
        ctx.emitter().child("sub")?.emit("dotted.aside", &mut 0.1_f32).await?;
        let cause = Error::new("inner").detail("ratio", 0.1 + 0.2).detail("a", json!({"z": 1, "b": 2}));
        Err(cause.message("outer"))
    })
}

/// A runnable whose emitter has no creator.
struct Nameless(Emitter);

impl Runnable for Nameless {
    type Input = ();
    type Output = ();
    fn emitter(&self) -> &Emitter {
        &self.0
    }
    async fn execute(&self, (): &(), ctx: &RunContext) -> Result<()> {
        ctx.emitter().emit("dotted.note", &mut ()).await?;
        Ok(())
    }
}

#[tokio::test]
async fn a_recording_on_disk_is_replayed_with_the_live_lines() -> TestResult {
    let folder = tempfile::tempdir()?;
    let path = folder.path().join("run.jsonl");
    let (root, page) = (Emitter::new(), Page::new());
    let recording = root.pipe_to(JsonlFile::open(&path)?)?;
    desk(&root).run(question()).middleware(page.trajectory()).await?;
    recording.close(Duration::from_secs(10)).await.complete()?;
    page.expect(LINES);

    let mut replay = page.trajectory().replay();
    for record in read_jsonl(&path)? {
        replay.show(&record?)?;
    }
    page.expect(LINES);
    Ok(())
}

#[tokio::test]
async fn a_replay_can_show_only_one_run_and_the_runs_below_it() -> TestResult {
    let root = Emitter::new();
    let records = record(&root);
    desk(&root).run(question()).await?;
    desk(&root).run(question()).await?;
    let records = records.lock().expect("nobody panics here");
    let reads: Vec<_> = records.iter().filter(|record| &*record.path == "tool.read_file.run.start").collect();
    let picked = reads[1].trace.expect("a run").run_id;

    let page = Page::new();
    let mut replay = page.trajectory().replay().only(picked);
    for record in &*records {
        replay.show_event(record)?;
    }
    page.expect([
        "Tool[read_file][start]: path: README.md",
        "--> Tool[decode][start]: [1,2]",
        "<-- Tool[decode][success]: 2",
        "Tool[read_file][success]: README.md has 2",
    ]);
    Ok(())
}

#[tokio::test]
async fn a_replay_with_timing_shows_the_time_between_recorded_start_and_success_on_each_success_line() -> TestResult {
    let root = Emitter::new();
    let records = record(&root);
    desk(&root).run(question()).await?;
    let mut records = records.lock().expect("nobody panics here");
    // Each event of the recording is 100 ms later than the event before. A run emits `start`, `success` and `finish`.
    let begun = records[0].created_at;
    for (nth, record) in (0..).zip(&mut *records) {
        record.created_at = begun + Duration::from_millis(100 * nth);
    }
    let text = replayed(|builder| builder.timing(true), &records);
    let durations: Vec<_> = text.lines().filter_map(|line| line.split_once("][success] ")).collect();
    let durations = durations.iter().map(|(_, after)| &after[..after.find(' ').unwrap_or_default()]);
    assert_eq!(durations.collect::<Vec<_>>(), ["(100.0ms):", "(400.0ms):", "(700.0ms):"], "{text}");
    Ok(())
}

#[tokio::test]
async fn a_replay_skips_the_trajectory_s_own_events_in_the_recording() -> TestResult {
    let (root, page) = (Emitter::new(), Page::new());
    let memory = Memory::new();
    let trajectory = page.built(|builder| builder.events("*.*"));
    let recording = root.pipe_to(memory.clone())?;
    let _pipe = trajectory.emitter().pipe(&root);
    desk(&root).run(question()).middleware(trajectory.clone()).await?;
    recording.flush().await.complete()?;
    let live = page.take();
    let mut replay = trajectory.replay();
    assert_eq!(memory.len(), 18);
    for record in memory.records() {
        replay.show(&record)?;
    }
    assert_eq!(page.take(), live);
    Ok(())
}

#[test]
fn a_replay_shows_where_events_were_lost() -> TestResult {
    let page = Page::new();
    let gap = SinkRecord::from_json(r#"{"gap":{"lost":3}}"#)?;
    page.trajectory().replay().show(&gap)?;
    page.expect(["[gap]: events were lost here: 3"]);
    Ok(())
}

#[tokio::test]
async fn a_replay_accepts_incomplete_reversed_and_malformed_recordings() -> TestResult {
    let root = Emitter::new();
    let records = record(&root);
    failing_desk(&root).run(question()).await?;
    let records = records.lock().expect("nobody panics here").clone();
    // Any record may be missing, and the records may arrive in another order.
    for missing in 0..records.len() {
        let mut some = records.clone();
        some.remove(missing);
        replayed(|builder| builder.timing(true), &some);
        some.reverse();
        replayed(|builder| builder.events("*.*"), &some);
    }
    // A payload of `error` that is not an error report is printed unchanged.
    let mut odd = records.clone();
    for record in &mut odd {
        record.payload = serde_json::value::RawValue::from_string("[1]".to_owned())?;
    }
    let text = replayed(|builder| builder, &odd);
    assert!(text.contains("<-- Tool[read_file][error]: [1]\n"), "{text}");
    // A run whose start was lost has no line.
    assert_eq!(replayed(|builder| builder, &records[records.len() - 1..]), "");
    Ok(())
}
