//! Code that enters a run from another task or thread is inside the run (R9), and starts its runs below that run (R1).

mod support;

use std::future::pending;
use std::sync::Arc;

use emitree_emitter::Emitter;
use emitree_runtime::{
    Error, ErrorKind, JsonRun, Next, Result, RunContext, Runnable, Stack, Stage, for_tree, layer_fn,
};
use futures_util::FutureExt;
use serde_json::Value;
use support::{Any, Recorder, Slot, TestResult, below};
use tokio::task::{JoinSet, spawn_blocking, yield_now};

/// Returns a guard that denies every nested run.
fn guard() -> impl emitree_runtime::Middleware + 'static {
    let guard = layer_fn("guard", |input: &Value, ctx: &RunContext, next: Next<'_, JsonRun>| {
        let (input, is_nested) = (input.clone(), ctx.parent().is_some());
        Box::pin(async move { if is_nested { Err(Error::denied("guard", "never")) } else { next.run(&input).await } })
    });
    for_tree(Stack::<JsonRun>::builder().layer(guard).build())
}

// R1, R9, M4
#[tokio::test]
async fn a_run_started_in_a_scope_is_nested_and_guarded_on_any_task_or_thread() -> TestResult {
    let (tree, recorder) = (Emitter::new(), Recorder::new());
    recorder.watch(&tree);
    let child = Arc::new(below(&tree, "child", |(): (), _: RunContext| async { Ok(()) }));
    let parent = below(&tree, "parent", move |(): (), ctx: RunContext| {
        let (scoped, threaded) = (Arc::clone(&child), Arc::clone(&child));
        async move {
            let mut set = JoinSet::new();
            set.spawn(ctx.scope(async move { scoped.run(()).await }));
            let scoped = set.join_next().await.expect("there is one")?;
            let inside = ctx.clone();
            let runs = move || inside.in_scope(|| threaded.run(()).now_or_never().expect("it waits for nothing"));
            let threaded = spawn_blocking(runs).await?;
            assert!(set.is_empty() && RunContext::current() == Some(ctx));
            Ok([scoped, threaded].map(|result| result.is_err_and(|error| error.is_denied())))
        }
    });
    assert_eq!(parent.run(()).middleware(guard()).await?, [true, true]);
    let child = ["child.run.start", "child.run.error", "child.run.finish"];
    let (start, end) = (["parent.run.start"].as_slice(), ["parent.run.success", "parent.run.finish"].as_slice());
    recorder.expect([start, &child, &child, end].concat());
    Ok(())
}

// R1: a scope that outlives its run does not evade the guard.
#[tokio::test]
async fn a_run_that_is_made_in_a_scope_of_a_run_that_is_ending_or_has_ended_does_not_begin() -> TestResult {
    let tree = Emitter::new();
    let child = Arc::new(below(&tree, "child", |(): (), _: RunContext| async { Ok(()) }));
    let makes = move |ctx: &RunContext| {
        let child = Arc::clone(&child);
        ctx.scope(async move { child.run(()).await }).now_or_never().expect("it waits for nothing")
    };
    let (ended, ending) = (Slot::new(), Slot::new());
    let (keeps, tells, made) = (ended.clone(), ending.clone(), makes.clone());
    let parent = below(&tree, "parent", move |(): (), ctx: RunContext| {
        keeps.put(ctx.clone());
        let made = made(&ctx);
        async move { made }
    });
    let finishes = makes.clone();
    let run = parent.run(()).on(Stage::Finish, move |_: &mut Any, _| {
        tells.put(finishes(&RunContext::current().expect("a listener is inside of the run")));
    });
    run.await?;
    let results: [Result<()>; 2] = [ending.take(), makes(&ended.take())];
    for result in results {
        assert_eq!(result.expect_err("it takes no more").kind(), &ErrorKind::Aborted);
    }
    Ok(())
}

/// A value whose drop runs a runnable, and stores the result.
struct RunsAtDrop<R: Runnable<Input = ()>>(Arc<R>, Slot<Result<R::Output>>);

impl<R: Runnable<Input = ()>> Drop for RunsAtDrop<R> {
    fn drop(&mut self) {
        self.1.put(self.0.run(()).now_or_never().expect("it waits for nothing"));
    }
}

// R9, M4: a task that is aborted is also dropped inside its run, whether or not it has begun.
#[tokio::test]
async fn a_run_made_in_the_drop_of_a_task_or_a_scope_is_nested_and_guarded() -> TestResult {
    for (is_task, is_begun) in [(false, false), (false, true), (true, false), (true, true)] {
        let tree = Emitter::new();
        let child = Arc::new(below(&tree, "child", |(): (), _: RunContext| async { Ok(()) }));
        let told = Slot::new();
        let tells = told.clone();
        let parent = below(&tree, "parent", move |(): (), ctx: RunContext| {
            let runs = RunsAtDrop(Arc::clone(&child), tells.clone());
            let work = async move {
                let _runs = runs;
                pending::<()>().await;
            };
            async move {
                let mut set = JoinSet::new();
                if is_task {
                    drop(ctx.spawn(work));
                } else {
                    set.spawn(ctx.scope(work));
                }
                if is_begun {
                    yield_now().await;
                }
                set.shutdown().await;
                Ok(())
            }
        });
        parent.run(()).middleware(guard()).await?;
        assert!(told.take().is_err_and(|error| error.is_denied()), "task: {is_task}, begun: {is_begun}");
    }
    Ok(())
}

// R12
#[test]
fn the_span_of_the_run_is_entered_in_its_scopes() {
    let subscriber = tracing_subscriber::registry();
    tracing::subscriber::with_default(subscriber, || {
        let run = below(&Emitter::new(), "run", |(): (), ctx: RunContext| {
            let span = ctx.span().id();
            let outside = tracing::Span::none();
            let (scoped, called) = outside.in_scope(|| {
                let current = || tracing::Span::current().id();
                (ctx.scope(async move { current() }).now_or_never().flatten(), ctx.in_scope(current))
            });
            async move { Ok([scoped, called].map(|id| id.is_some() && id == span)) }
        });
        let entered = run.run(()).now_or_never().expect("it waits for nothing");
        assert_eq!(entered.expect("it does not fail"), [true, true]);
    });
}
