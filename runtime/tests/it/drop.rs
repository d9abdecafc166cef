//! R8: a run whose future is dropped at any moment ends once. Sync listeners receive its last events during the drop,
//! unless an async listener of an earlier event is awaited. Async listeners receive them in a task. A run that was never
//! polled emits no event.

use std::sync::Arc;

use crate::support::ends::{begun, notes_waiting_at, recorded, settle};
use crate::support::{
    Any, Gate, Manner, Recorder, Slot, TestResult, below, endless, poll_once, silence_planned_panics,
};
use emitree_emitter::{Emitter, EventMeta};
use emitree_runtime::{AbortHandle, Error, ErrorKind, Result, Run, RunContext, Runnable, Stage};

// R8
#[tokio::test]
async fn a_run_that_is_dropped_before_its_first_poll_has_no_effect() {
    let (tree, recorder) = recorded();
    let notes = recorder.clone();
    let run = endless(&tree, "run", &recorder);
    let run = run.run(()).abort_on(AbortHandle::new().signal()).timeout(std::time::Duration::ZERO);
    drop(run.middleware(move |_: &RunContext| {
        notes.note("bound");
        Ok(())
    }));
    settle().await;
    recorder.expect([]);
}

// R8
#[tokio::test]
async fn a_run_dropped_during_its_work_ends_during_the_drop() {
    let (tree, recorder) = recorded();
    let notes = recorder.clone();
    let run = begun(Arc::new(endless(&tree, "run", &recorder)).run_shared(()).on_error(move |failure, _| {
        assert_eq!(failure.error().kind(), &ErrorKind::Dropped);
        notes.note(failure.error().to_string());
    }));
    recorder.expect(["run.run.start", "works"]);
    drop(run);
    recorder.expect(["dropped", "the run's future was dropped", "run.run.error", "run.run.finish dropped"]);
    settle().await;
    recorder.expect([]);
}

// R8: an async listener of `error` that was registered before the sync listener does not delay it. `finish` is emitted
// when the async listeners of `error` are done.
#[tokio::test]
async fn sync_listeners_receive_error_during_the_drop_and_finish_after_async_listeners_of_error() {
    let (tree, recorder) = (Emitter::new(), Recorder::new());
    let gate = Gate::new();
    let notes = recorder.clone();
    let label = move |label: &'static str| {
        let notes = notes.clone();
        move |_: &mut Any, meta: &EventMeta<'_>| notes.note(format!("{label} {}", meta.name()))
    };
    let run = Arc::new(endless(&tree, "run", &Recorder::new())).run_shared(());
    let run = run.register(notes_waiting_at(&gate, &recorder, Stage::Error)).on("*.*", label("sync"));
    let run = begun(run.register(notes_waiting_at(&gate, &recorder, Stage::Finish)));
    recorder.expect(["sync start"]);
    drop(run);
    recorder.expect(["sync error", "waits"]);
    gate.open();
    settle().await;
    recorder.expect(["goes on", "sync finish", "waits"]);
    gate.open();
    settle().await;
    recorder.expect(["goes on"]);
}

// R8, R4: an emit that has begun is finished; the work does not begin.
#[tokio::test]
async fn a_run_dropped_while_a_start_listener_is_awaited_ends_after_the_listener_without_work() {
    let (tree, recorder) = recorded();
    let gate = Gate::new();
    let run = Arc::new(endless(&tree, "run", &recorder)).run_shared(());
    drop(begun(run.register(notes_waiting_at(&gate, &recorder, Stage::Start))));
    settle().await;
    recorder.expect(["waits"]);
    gate.open();
    settle().await;
    recorder.expect(["goes on", "run.run.start", "run.run.error", "run.run.finish dropped"]);
}

// R8, R7: the result of the work is kept.
#[tokio::test]
async fn a_run_dropped_after_its_work_ends_with_the_result_of_the_work() {
    let cases = [
        (true, Stage::Success, "waits, goes on, run.run.success, run.run.finish success"),
        (true, Stage::Finish, "run.run.success, waits, goes on, run.run.finish success"),
        (false, Stage::Error, "waits, goes on, run.run.error, run.run.finish failed"),
        (false, Stage::Finish, "run.run.error, waits, goes on, run.run.finish failed"),
    ];
    for (well, stage, events) in cases {
        let (tree, recorder) = recorded();
        let gate = Gate::new();
        let run = below(&tree, "run", |well: bool, _: RunContext| async move {
            if well { Ok(7) } else { Err(Error::new("broken")) }
        });
        let mut run = Arc::new(run).run_shared(well).register(notes_waiting_at(&gate, &recorder, stage));
        assert!(poll_once(&mut run).is_pending());
        drop(run);
        settle().await;
        gate.open();
        settle().await;
        assert_eq!(recorder.take()[1..].join(", "), events, "{stage:?}");
    }
}

// R9
#[tokio::test]
async fn the_dropped_run_is_current_during_its_end_and_the_dropping_run_afterwards() -> TestResult {
    let (tree, recorder) = (Emitter::new(), Recorder::new());
    let gate = Gate::new();
    let (notes, emitter, opens) = (recorder.clone(), tree.clone(), gate.clone());
    let current = |verb: &'static str, notes: &Recorder| {
        let (notes, current) = (notes.clone(), RunContext::current);
        move || {
            notes.note(format!(
                "{verb} in {}",
                current().map_or("none".into(), |run| run.emitter().namespace().to_owned())
            ));
        }
    };
    let [sync, during_drop, later] = ["sync", "the work's drop", "async"].map(|verb| current(verb, &notes));
    let later = Arc::new(later);
    let child = below(&emitter, "child", {
        let during_drop = Arc::new(during_drop);
        move |(), _: RunContext| {
            let during_drop = Arc::clone(&during_drop);
            async move {
                let _guard = OnDrop(during_drop);
                std::future::pending::<Result<()>>().await
            }
        }
    });
    let child = Arc::new(child).run_shared(()).on_error(move |_, _| sync());
    let child = Slot::with(child.on_async(Stage::Finish, move |_: &mut Any, _| {
        let (later, gate) = (Arc::clone(&later), opens.clone());
        Box::pin(async move {
            gate.pass().await;
            later();
            Ok(())
        })
    }));
    let dropper = below(&tree, "dropper", move |(), ctx: RunContext| {
        let mut child = child.take();
        async move {
            assert!(poll_once(&mut child).is_pending());
            drop(child);
            assert_eq!(RunContext::current().map(|run| run.run_id()), Some(ctx.run_id()));
            Ok(())
        }
    });
    dropper.run(()).await?;
    recorder.expect(["the work's drop in child", "sync in child"]);
    gate.open();
    settle().await;
    recorder.expect(["async in child"]);
    Ok(())
}

struct OnDrop<F: Fn()>(Arc<F>);

impl<F: Fn()> Drop for OnDrop<F> {
    fn drop(&mut self) {
        self.0();
    }
}

// R13: the runs below end first, even if a listener of their end has to be awaited.
#[tokio::test]
async fn runs_below_a_dropped_run_end_before_the_dropped_run() {
    for awaited in [false, true] {
        let (tree, recorder) = recorded();
        let (gate, emitter, notes) = (Gate::new(), tree.clone(), recorder.clone());
        let waits = gate.clone();
        let middle = Arc::new(below(&tree, "middle", move |(), _: RunContext| {
            let inner = endless(&emitter, "inner", &Recorder::new());
            let waits = awaited.then(|| notes_waiting_at(&waits, &notes, Stage::Finish));
            async move { waits.into_iter().fold(inner.run(()), Run::register).await }
        }));
        let top = below(&tree, "top", move |(), _: RunContext| {
            let middle = Arc::clone(&middle);
            async move { middle.run(()).await }
        });
        drop(begun(Arc::new(top).run_shared(())));
        settle().await;
        gate.open();
        settle().await;
        let ends = ["inner.run.error", "inner.run.finish dropped", "waits", "goes on", "middle.run.error"];
        let ends = ends.into_iter().filter(|line| awaited || line.contains('.'));
        let starts = ["top.run.start", "middle.run.start", "inner.run.start"].into_iter();
        recorder.expect(starts.chain(ends).chain([
            "middle.run.finish dropped",
            "top.run.error",
            "top.run.finish dropped",
        ]));
    }
}

// R8
#[tokio::test]
async fn a_dropped_run_emits_error_and_finish_even_if_its_listeners_fail_or_panic() {
    silence_planned_panics();
    for manner in [Manner::Fails, Manner::Panics] {
        let (tree, recorder) = recorded();
        let run = Arc::new(endless(&tree, "run", &recorder)).run_shared(()).on("*.*", move |_: &mut Any, meta| {
            if Stage::of(meta) == Some(Stage::Start) { Ok(()) } else { manner.act() }
        });
        drop(begun(run));
        let events = ["run.run.start", "works", "dropped", "run.run.error", "run.run.finish dropped"];
        recorder.expect(events);
    }
}

// R8
#[test]
fn a_run_dropped_while_its_thread_panics_ends_during_the_drop() {
    silence_planned_panics();
    let (tree, recorder) = recorded();
    let run = begun(Arc::new(endless(&tree, "run", &recorder)).run_shared(()));
    let panics = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
        let _run = run;
        panic!("a planned panic");
    }));
    assert!(panics.is_err());
    recorder.expect(["run.run.start", "works", "dropped", "run.run.error", "run.run.finish dropped"]);
}

// R8, R4: a run that has started always ends.
#[tokio::test]
async fn a_run_emits_error_and_finish_even_if_its_work_panics_when_dropped() {
    struct PanicsOnDrop;
    impl Drop for PanicsOnDrop {
        fn drop(&mut self) {
            drop(Manner::Panics.act());
        }
    }
    silence_planned_panics();
    for aborted in [true, false] {
        let (tree, recorder) = recorded();
        let handle = AbortHandle::new();
        let run = below(&tree, "run", |(), _: RunContext| async {
            let _panics = PanicsOnDrop;
            std::future::pending::<Result<()>>().await
        });
        let run = begun(Arc::new(run).run_shared(()).abort_on(&handle));
        let end = if aborted {
            handle.abort("enough");
            assert_eq!(run.await.expect_err("it was aborted").kind(), &ErrorKind::Aborted);
            "run.run.finish aborted"
        } else {
            drop(run);
            "run.run.finish dropped"
        };
        recorder.expect(["run.run.start", "run.run.error", end]);
    }
}
