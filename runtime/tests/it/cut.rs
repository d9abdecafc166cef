//! R8, R13: a run that is dropped where no listener can be awaited ends immediately, with all runs below it, even if
//! their tasks or futures are held elsewhere.

use std::sync::Arc;

use crate::support::{Any, Gate, Manner, Recorder, Slot, Verb, below, endless, poll_once, silence_planned_panics};
use emitree_emitter::{Emitter, Options, Registration};
use emitree_runtime::{Result, Run, RunContext, Runnable, Stage};
use tokio::runtime::Builder;

/// Returns a listener that is called at a stage, and waits forever.
fn blocks(stage: Stage) -> Registration {
    Options::new().on_async(stage, |_: &mut Any, _| {
        Box::pin(async {
            Gate::new().pass().await;
            Ok(())
        })
    })
}

/// Begins a run that waits forever, with a listener that blocks one of its stages.
fn begun(tree: &Emitter, blocked: Stage) -> Run<'static, impl Runnable<Input = (), Output = ()> + use<>> {
    let mut run = Arc::new(endless(tree, "run", &Recorder::new())).run_shared(()).register(blocks(blocked));
    assert!(poll_once(&mut run).is_pending());
    run
}

/// Begins a run with a child in a runtime that is never driven, drops the run outside the runtime, and returns the
/// events.
fn dropped_outside(begin_child: impl Fn(&RunContext, &Emitter) + Send + Sync + 'static) -> Vec<String> {
    let (tree, recorder) = (Emitter::new(), Recorder::new());
    recorder.ends(&tree);
    let runtime = Builder::new_current_thread().build().expect("a runtime");
    let emitter = tree.clone();
    let parent = Arc::new(below(&tree, "parent", move |(), ctx: RunContext| {
        begin_child(&ctx, &emitter);
        std::future::pending::<Result<()>>()
    }));
    let run = {
        let _inside = runtime.enter();
        let mut run = parent.run_shared(());
        assert!(poll_once(&mut run).is_pending());
        run
    };
    drop(run);
    recorder.take()
}

const CHILD_FIRST: [&str; 6] = [
    "parent.run.start",
    "run.run.start",
    "run.run.error",
    "run.run.finish dropped",
    "parent.run.error",
    "parent.run.finish dropped",
];

// R8, R13: the end of a run that is held elsewhere is cut short too.
#[test]
fn outside_a_runtime_a_held_run_ends_with_its_parent_and_no_listener_is_awaited() {
    let held = Slot::new();
    let recorded = dropped_outside({
        let held = held.clone();
        move |_, tree| held.put(Box::new(begun(tree, Stage::Error)) as Box<dyn Send>)
    });
    assert_eq!(recorded, CHILD_FIRST);
    drop(held.take());
}

// R8, R13: an end that is pending in a task of an idle runtime is cut short too.
#[test]
fn outside_a_runtime_the_pending_end_of_a_child_completes_before_its_parent_ends() {
    let recorded = dropped_outside(|_, tree| drop(begun(tree, Stage::Error)));
    assert_eq!(recorded, CHILD_FIRST);
}

// R8, R13: a task that cannot be awaited is only aborted.
#[test]
fn outside_a_runtime_a_run_does_not_wait_for_its_tasks() {
    let recorded = dropped_outside(|ctx, _| drop(ctx.spawn(std::future::pending::<()>())));
    assert_eq!(recorded, ["parent.run.start", "parent.run.error", "parent.run.finish dropped"]);
}

// R8, E11: if a listener that is cut short panics when it is dropped, the panic is isolated.
#[test]
fn a_run_emits_finish_even_if_a_listener_that_is_cut_panics_when_dropped() {
    struct PanicsOnDrop;
    impl Drop for PanicsOnDrop {
        fn drop(&mut self) {
            drop(Manner::Panics.act());
        }
    }
    silence_planned_panics();
    for verb in [Verb::OnAsync, Verb::ObserveAsync] {
        let (tree, recorder) = (Emitter::new(), Recorder::new());
        recorder.ends(&tree);
        let run = Arc::new(endless(&tree, "run", &Recorder::new())).run_shared(());
        let never = || async {
            let _panics = PanicsOnDrop;
            std::future::pending().await
        };
        let mut run = match verb {
            Verb::OnAsync => run.on_async(Stage::Error, move |_: &mut Any, _| Box::pin(never())),
            _ => run.observe_async(Stage::Error, move |_: &Any, _| Box::pin(never())),
        };
        assert!(poll_once(&mut run).is_pending());
        drop(run);
        recorder.expect(["run.run.start", "run.run.error", "run.run.finish dropped"]);
    }
}
