//! R2, E15: a run that begins without listeners has no emitter until the emitter is first used. Code that uses the run
//! cannot observe this.

use std::sync::Arc;

use crate::support::{Recorder, TestResult, below, current_id, emitter_of};
use emitree_emitter::Emitter;
use emitree_runtime::{RunContext, Runnable};
use serde_json::json;

// R9
#[tokio::test]
async fn context_set_on_the_instance_after_a_run_began_does_not_reach_the_run() -> TestResult {
    let tree = Emitter::new();
    let look = below(&tree, "look", |emitter: u8, ctx: RunContext| async move {
        ctx.instance().emitter().set_context("late", emitter)?;
        if emitter == 1 {
            drop(ctx.emitter().clone());
        }
        Ok(serde_json::to_value(ctx.context())?)
    });
    emitter_of(&look).set_context("early", true)?;
    assert_eq!(look.run(0).await?, json!({"early": true}), "before there is an emitter");
    assert_eq!(look.run(1).await?, json!({"early": true, "late": 0}), "after it was made");
    Ok(())
}

// R9
#[tokio::test]
async fn context_set_by_a_run_without_listeners_reaches_the_run_and_later_children() -> TestResult {
    let tree = Emitter::new();
    let inner = Arc::new(below(&tree, "inner", |(), ctx: RunContext| async move { Ok(ctx.get("key")) }));
    let outer = below(&tree, "outer", move |(), ctx: RunContext| {
        let inner = Arc::clone(&inner);
        async move {
            let before = inner.run(()).await?;
            ctx.set("key", 1)?;
            Ok([before, ctx.get("key"), inner.run(()).await?])
        }
    });
    assert_eq!(outer.run(()).await?, [None, Some(json!(1)), Some(json!(1))]);
    Ok(())
}

// E5, R2: the emitters of the runs above are made together with the run's emitter.
#[tokio::test]
async fn a_listener_registered_on_a_run_above_receives_all_later_events() -> TestResult {
    let (tree, recorder) = (Emitter::new(), Recorder::new());
    let note = recorder.clone();
    let inner = Arc::new(below(&tree, "inner", move |(), ctx: RunContext| {
        let note = note.clone();
        async move {
            let outer = ctx.parent().and_then(RunContext::parent).expect("two above").clone();
            outer.emitter().observe("*.*", note.paths())?;
            ctx.emitter().emit("ping", &mut ()).await?;
            Ok(())
        }
    }));
    let middle = Arc::new(below(&tree, "middle", move |(), _: RunContext| {
        let inner = Arc::clone(&inner);
        async move { inner.run(()).await }
    }));
    let outer = below(&tree, "outer", move |(), _: RunContext| {
        let middle = Arc::clone(&middle);
        async move { middle.run(()).await }
    });
    outer.run(()).await?;
    recorder.expect([
        "inner.ping",
        "inner.run.success",
        "inner.run.finish",
        "middle.run.success",
        "middle.run.finish",
        "outer.run.success",
        "outer.run.finish",
    ]);
    Ok(())
}

// R9
#[tokio::test]
async fn an_event_emitted_from_another_task_is_received_with_its_run_as_the_current_run() -> TestResult {
    let (tree, recorder) = (Emitter::new(), Recorder::new());
    let note = recorder.clone();
    let run = below(&tree, "run", move |(), ctx: RunContext| {
        let note = note.clone();
        async move {
            ctx.emitter().on("ping", move |(): &mut (), _| note.note(current_id().unwrap_or_default()))?;
            let emitter = ctx.emitter().clone();
            let elsewhere = tokio::spawn(async move { emitter.emit("ping", &mut ()).await });
            elsewhere.await.expect("nobody panics")?;
            ctx.emitter().emit("ping", &mut ()).await?;
            Ok(ctx.run_id().to_string())
        }
    });
    let id = run.run(()).await?;
    recorder.expect([&*id, &*id]);
    Ok(())
}

// R2
#[tokio::test]
async fn concurrent_requests_for_the_emitter_of_a_run_return_the_same_emitter() -> TestResult {
    let tree = Emitter::new();
    let run = below(&tree, "run", |(), ctx: RunContext| async move {
        let asks: Vec<_> = std::iter::repeat_with(|| ctx.clone()).take(8).collect();
        let threads = asks.into_iter().map(|ctx| std::thread::spawn(move || (ctx.emitter().clone(), ctx.run_id())));
        let found: Vec<_> =
            threads.collect::<Vec<_>>().into_iter().map(|thread| thread.join().expect("no panic")).collect();
        Ok(found.iter().all(|one| *one == found[0]))
    });
    assert!(run.run(()).await?);
    Ok(())
}
