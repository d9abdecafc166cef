//! R2, E15: a run that begins without listeners has no emitter until the emitter is first used. The difference is not
//! observable.

use std::sync::Arc;

use crate::support::{Recorder, TestResult, below, current_id, emitter_of};
use emitree_emitter::Emitter;
use emitree_runtime::{RunContext, Runnable};
use serde_json::json;

// R9
#[tokio::test]
async fn what_is_set_on_the_instance_after_the_run_began_is_not_the_runs() -> TestResult {
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
async fn what_such_a_run_sets_is_its_own_and_of_runs_started_later() -> TestResult {
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
async fn who_begins_to_listen_during_the_run_hears_what_comes_then_everywhere_above() -> TestResult {
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
async fn what_is_emitted_on_it_from_elsewhere_is_heard_inside_of_the_run() -> TestResult {
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
async fn however_many_ask_for_it_at_the_same_time_there_is_one_emitter() -> TestResult {
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
