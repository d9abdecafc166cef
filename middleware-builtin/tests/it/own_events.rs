//! A trajectory emits `start`, `success` and `error` on its own emitter before it writes the line of the event. It also
//! emits `finish`, for which it writes no line. It emits these events only if that emitter has listeners.

use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::sync::{Arc, Mutex};

use crate::support::{Any, Failing, LINES, Page, TestResult, desk, failing_desk, instance, question};
use emitree_emitter::{BoxError, Emitter, Options};
use emitree_middleware::Runs;
use emitree_middleware::trajectory::{Trajectory, TrajectoryEvent};
use emitree_runtime::{RunContext, Runnable};
use emitree_sinks::Memory;

/// Writes the path, level and origin of each event of the trajectory to the page, between the trajectory's lines.
fn hear(page: &Page, trajectory: &Trajectory) -> TestResult {
    for name in ["start", "success", "error", "finish"] {
        let page = page.clone();
        trajectory.emitter().on(name, move |event: &mut TrajectoryEvent, meta| {
            use std::io::Write;
            let level = event.level;
            let line = format!("{} {} {}\n", meta.path(), level.relative, event.origin.path);
            page.clone().write_all(line.as_bytes())?;
            Ok(())
        })?;
    }
    Ok(())
}

#[tokio::test]
async fn a_trajectory_emits_each_event_before_its_line_and_writes_no_line_for_finish() -> TestResult {
    let page = Page::new();
    let trajectory = page.built(|builder| builder.excluded(Runs::named("decode")));
    hear(&page, &trajectory)?;
    failing_desk(&Emitter::new()).run(question()).middleware(trajectory).await?;
    page.expect([
        "middleware.trajectory.start 0 assistant.Desk.run.start",
        LINES[0],
        "middleware.trajectory.start 1 tool.read_file.run.start",
        r#"--> Tool[read_file][start]: path: """#,
        "middleware.trajectory.error 1 tool.read_file.run.error",
        "<-- Tool[read_file][error]: not found: no path",
        "  | caused by: entity not found",
        r#"  | input: path: """#,
        "middleware.trajectory.finish 1 tool.read_file.run.finish",
        "middleware.trajectory.success 0 assistant.Desk.run.success",
        "Assistant[Desk][success]: I could not read it",
        "middleware.trajectory.finish 0 assistant.Desk.run.finish",
    ]);
    Ok(())
}

#[tokio::test]
async fn trajectory_events_carry_the_ids_of_the_bound_run_and_the_message() -> TestResult {
    let trajectory = Trajectory::builder().writer(std::io::sink()).build()?;
    let page = Page::new();
    let (seen, bound) = (page.clone(), Arc::new(Mutex::new(Vec::new())));
    let traces = Arc::clone(&bound);
    trajectory.emitter().observe("*", move |event: &TrajectoryEvent, meta| {
        use std::io::Write;
        traces.lock().expect("nobody panics here").push((meta.trace(), event.origin.trace));
        let creator = meta.creator().expect("one");
        assert_eq!((creator.kind(), creator.name()), ("Middleware", "trajectory"));
        if meta.name() != "finish" {
            writeln!(seen.clone(), "{}", event.message)?;
        }
        Ok(())
    })?;
    let root = Emitter::new();
    let ids = Arc::new(Mutex::new(None));
    let kept = Arc::clone(&ids);
    desk(&root)
        .run(question())
        .middleware(move |ctx: &RunContext| {
            *kept.lock().expect("nobody panics here") = Some(ctx.trace());
            Ok(())
        })
        .middleware(trajectory)
        .await?;
    assert_eq!(page.take(), LINES.map(|line| format!("{line}\n")).concat());
    let ids = *ids.lock().expect("nobody panics here");
    let bound = bound.lock().expect("nobody panics here");
    assert_eq!(bound.len(), 9);
    assert!(bound.iter().all(|(trace, _)| *trace == ids));
    // The origin has the ids of its own run.
    assert_ne!(bound[1].1, ids);
    assert_eq!(bound[1].1.and_then(|trace| trace.parent_run_id), ids.map(|trace| trace.run_id));
    Ok(())
}

#[tokio::test]
async fn a_message_that_a_listener_changed_is_written() -> TestResult {
    let page = Page::new();
    let trajectory = page.trajectory();
    trajectory.emitter().on("start", |event: &mut TrajectoryEvent, _| {
        event.message = event.message.replace("README.md", "****");
    })?;
    trajectory.emitter().on("error", |_: &mut TrajectoryEvent, _| Err::<(), BoxError>("never heard".into()))?;
    desk(&Emitter::new()).run(question()).middleware(trajectory).await?;
    let mut lines = LINES;
    lines[1] = "--> Tool[read_file][start]: path: ****";
    page.expect(lines);
    Ok(())
}

#[tokio::test]
async fn a_line_is_written_even_if_a_listener_fails() -> TestResult {
    let page = Page::new();
    let (trajectory, failing) = (page.trajectory(), Failing::default());
    trajectory.emitter().on("*", failing.listener::<Any>())?;
    desk(&Emitter::new()).run(question()).middleware(trajectory).await?;
    page.expect(LINES);
    assert_eq!(failing.calls(), 9, "three runs emit `start`, `success` and `finish`");
    Ok(())
}

// E17
#[tokio::test]
async fn with_an_async_listener_no_event_is_emitted_and_the_line_is_written_unchanged() -> TestResult {
    let page = Page::new();
    let trajectory = page.trajectory();
    trajectory.emitter().on("start", |event: &mut TrajectoryEvent, _| event.message.push('!'))?;
    trajectory.emitter().on_async("start", |event: &mut TrajectoryEvent, _| {
        event.message.push('?');
        Box::pin(async { Ok(()) })
    })?;
    trajectory.emitter().on("success", |event: &mut TrajectoryEvent, _| event.message.push('!'))?;
    desk(&Emitter::new()).run(question()).middleware(trajectory).await?;
    let lines: [String; 6] = std::array::from_fn(|n| format!("{}{}", LINES[n], if n < 3 { "" } else { "!" }));
    page.expect(lines.iter().map(|line| &**line));
    Ok(())
}

#[tokio::test]
async fn a_sink_piped_from_the_trajectory_s_emitter_records_its_events() -> TestResult {
    let (page, memory) = (Page::new(), Memory::new());
    let trajectory = page.trajectory();
    let recording = trajectory.emitter().pipe_to(memory.clone())?;
    desk(&Emitter::new()).run(question()).middleware(trajectory).await?;
    recording.flush().await.complete()?;
    page.expect(LINES);
    let records = memory.records();
    let first = records[0].as_event().expect("an event");
    let payload: serde_json::Value = first.payload()?;
    assert_eq!(payload["message"], LINES[0]);
    assert_eq!(payload["level"], serde_json::json!({"relative": 0, "absolute": 0}));
    assert_eq!(payload["origin"]["path"], "assistant.Desk.run.start");
    assert_eq!(records.len(), 9);
    Ok(())
}

#[tokio::test]
async fn without_listeners_no_value_is_serialized_for_trajectory_events() -> TestResult {
    static LOOKED: AtomicUsize = AtomicUsize::new(0);
    #[derive(Clone, serde::Deserialize)]
    struct Watched;
    impl serde::Serialize for Watched {
        fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
            LOOKED.fetch_add(1, Relaxed);
            serializer.serialize_unit()
        }
    }
    let echo = instance(&Emitter::new(), "Tool", "echo", |watched: Watched, _| async { Ok(watched) });
    let trajectory = Trajectory::builder().writer(std::io::sink()).build()?;
    echo.run(Watched).middleware(trajectory.clone()).await?;
    // The line of `start` contains the input; the line of `success` contains the output.
    assert_eq!(LOOKED.swap(0, Relaxed), 2);
    trajectory.emitter().with(Options::new().once()).on("start", |_: &mut Any, _| ())?;
    echo.run(Watched).middleware(trajectory).await?;
    assert_eq!(LOOKED.load(Relaxed), 3);
    Ok(())
}

#[tokio::test]
async fn a_listener_registered_during_the_run_receives_later_trajectory_events() -> TestResult {
    let page = Page::new();
    let trajectory = page.trajectory();
    let shared = trajectory.clone();
    let below = Arc::new(instance(&Emitter::new(), "Tool", "below", |(): (), _: RunContext| async { Ok(()) }));
    let top = instance(&Emitter::new(), "Tool", "top", move |(): (), _: RunContext| {
        let (trajectory, below) = (shared.clone(), Arc::clone(&below));
        async move {
            below.run(()).await?;
            trajectory.emitter().on("*", |event: &mut TrajectoryEvent, _| event.message.push('!'))?;
            below.run(()).await
        }
    });
    top.run(()).middleware(trajectory).await?;
    page.expect([
        "Tool[top][start]",
        "--> Tool[below][start]",
        "<-- Tool[below][success]",
        "--> Tool[below][start]!",
        "<-- Tool[below][success]!",
        "Tool[top][success]!",
    ]);
    Ok(())
}
