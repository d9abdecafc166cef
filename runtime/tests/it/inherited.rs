//! M4: middleware that is bound for nested runs is bound to every run below, and to no other run.

use std::sync::Arc;

use crate::support::{Any, Recorder, TestResult};
use emitree_emitter::{Emitter, Options};
use emitree_runtime::{RunContext, Runnable, Stage, runnable_fn};

/// M4: `bind_nested` binds a middleware to every run below, before that run's own middlewares, but not to the calling
/// run.
#[tokio::test]
async fn a_middleware_for_nested_runs_is_bound_to_every_run_below_before_the_runs_own() -> TestResult {
    let recorder = Recorder::new();
    let notes = |label: &'static str| {
        let recorder = recorder.clone();
        move |ctx: &RunContext| {
            recorder.note(format!("{label} {}", ctx.depth()));
            Ok(())
        }
    };
    let (inherited, own) = (notes("inherited"), notes("own"));
    let leaf = Arc::new(runnable_fn("leaf", |(): (), _: RunContext| async { Ok(()) }).middleware(own));
    let inner = Arc::clone(&leaf);
    let middle = Arc::new(runnable_fn("middle", move |(): (), _: RunContext| {
        let inner = Arc::clone(&inner);
        async move { inner.run(()).await }
    }));
    let top = runnable_fn("top", move |(): (), _: RunContext| {
        let middle = Arc::clone(&middle);
        async move { middle.run(()).await }
    });
    top.run(())
        .middleware(move |ctx: &RunContext| {
            ctx.bind_nested(inherited.clone());
            Ok(())
        })
        .await?;
    recorder.expect(["inherited 1", "inherited 2", "own 2"]);
    leaf.run(()).await?;
    recorder.expect(["own 0"]);
    Ok(())
}

/// M4: listeners that a middleware for nested runs registers receive `start`, and are called in order of priority among
/// the run's other listeners.
#[tokio::test]
async fn a_listener_of_a_middleware_for_nested_runs_receives_start_in_order_of_priority() -> TestResult {
    let recorder = Recorder::new();
    let below =
        Arc::new(runnable_fn("below", |n: u32, _: RunContext| async move { Ok(n) }).with_emitter(Emitter::new()));
    let notes = recorder.clone();
    let top = runnable_fn("top", move |(): (), _: RunContext| {
        let below = Arc::clone(&below);
        async move { below.run(1).on_start(|start, _| start.input += 1).await }
    });
    let output = top
        .run(())
        .middleware(move |ctx: &RunContext| {
            let notes = notes.clone();
            ctx.bind_nested(move |nested: &RunContext| {
                let notes = notes.clone();
                let first = nested.emitter().with(Options::new().priority(1));
                first.on(Stage::Start, move |start: &mut Any, _| notes.note(start.to_json()["input"].to_string()))?;
                Ok(())
            });
            Ok(())
        })
        .await?;
    assert_eq!(output, 2);
    recorder.expect(["1"]);
    Ok(())
}
