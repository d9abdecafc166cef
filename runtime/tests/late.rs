//! R1: a run that is made or first polled when the current run accepts no more runs either starts in a run further up
//! that accepts runs, or does not begin. So it does not evade middlewares that are bound above.

mod support;

use std::future::pending;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};

use emitree_emitter::Emitter;
use emitree_runtime::{
    Error, ErrorKind, JsonRun, Middleware, Next, Result, RunContext, Runnable, Stack, Stage, for_tree, layer_fn,
};
use futures_util::FutureExt;
use serde::{Deserialize, Serialize};
use serde_json::Value;
use support::{Any, AtDrop, Slot, TestResult, below, poll_once};
use tracing::Subscriber;
use tracing_subscriber::layer::{Context as LayerContext, Layer, SubscriberExt};

/// Returns a guard that denies runs with this name.
fn denies(name: &'static str) -> impl Middleware + 'static {
    let guard = layer_fn("guard", move |input: &Value, ctx: &RunContext, next: Next<'_, JsonRun>| {
        let (input, is_denied) = (input.clone(), ctx.name() == name);
        Box::pin(async move { if is_denied { Err(Error::denied("guard", "never")) } else { next.run(&input).await } })
    });
    for_tree(Stack::<JsonRun>::builder().layer(guard).build())
}

fn deletes(tree: &Emitter) -> Arc<impl Runnable<Input = (), Output = usize> + 'static> {
    Arc::new(below(tree, "delete", |(): (), ctx: RunContext| async move { Ok(ctx.depth()) }))
}

/// Creates runs while a nested run reports its end, and returns their depths, or their errors.
async fn made_at_the_end(of: fn(&RunContext, Arc<dyn Fn() + Send + Sync>)) -> Result<Vec<Result<usize>>> {
    let (tree, made) = (Emitter::new(), Arc::new(Mutex::new(Vec::new())));
    let (delete, makes) = (deletes(&tree), Arc::clone(&made));
    let make: Arc<dyn Fn() + Send + Sync> = Arc::new(move || {
        let run = delete.run(()).now_or_never().expect("it waits for nothing");
        makes.lock().expect("no panic").push(run);
    });
    let child = below(&tree, "child", move |(): (), ctx: RunContext| {
        of(&ctx, Arc::clone(&make));
        async { Ok(()) }
    });
    let child = Arc::new(child);
    let parent = below(&tree, "parent", move |(): (), _: RunContext| {
        let child = Arc::clone(&child);
        async move { child.run(()).await }
    });
    parent.run(()).middleware(denies("delete")).await?;
    parent.run(()).await?;
    let made = made.lock().expect("no panic").drain(..).collect();
    Ok(made)
}

// R1, M4: the run starts in the parent, which is still under way, and the parent's guard applies to it.
#[tokio::test]
async fn a_run_made_while_a_child_reports_its_end_is_started_in_the_parent() -> TestResult {
    let at_finish = |ctx: &RunContext, make: Arc<dyn Fn() + Send + Sync>| {
        ctx.emitter().on(Stage::Finish, move |_: &mut Any, _| make()).expect("a stage");
    };
    let on_end = |ctx: &RunContext, make: Arc<dyn Fn() + Send + Sync>| ctx.on_end(move |_, _| make());
    for made in [made_at_the_end(at_finish).await?, made_at_the_end(on_end).await?] {
        let [guarded, done] = &made[..] else { panic!("{made:?}") };
        assert!(guarded.as_ref().is_err_and(Error::is_denied), "{guarded:?}");
        assert!(matches!(done, Ok(1)), "{done:?}");
    }
    Ok(())
}

// R1
#[tokio::test]
async fn a_run_made_in_the_drop_of_work_does_not_begin_if_all_runs_above_have_ended() -> TestResult {
    let tree = Emitter::new();
    let (made, held) = (Slot::new(), Slot::new());
    let (makes, holds, delete) = (made.clone(), held.clone(), deletes(&tree));
    let child = Arc::new(below(&tree, "child", move |(): (), _: RunContext| {
        let (makes, delete) = (makes.clone(), Arc::clone(&delete));
        async move {
            let _makes = AtDrop(move || makes.put(delete.run(()).now_or_never()));
            pending::<Result<()>>().await
        }
    }));
    let parent = below(&tree, "parent", move |(): (), _: RunContext| {
        let mut run = child.run_shared(());
        assert!(poll_once(&mut run).is_pending());
        holds.put(run);
        async { Ok(()) }
    });
    parent.run(()).await?;
    assert!(held.take().await.is_err_and(|error| error.is_aborted()));
    let made = made.take().expect("it waits for nothing");
    assert_eq!(made.expect_err("it does not begin").kind(), &ErrorKind::Aborted);
    Ok(())
}

/// A value whose drop panics.
#[derive(Clone, Serialize, Deserialize)]
struct Bad;

impl Drop for Bad {
    fn drop(&mut self) {
        panic!("a planned panic");
    }
}

// R1, R4: dropping the input calls user code.
#[test]
fn a_run_that_does_not_begin_returns_its_error_even_if_its_input_panics_when_dropped() -> TestResult {
    support::silence_planned_panics();
    for has_listeners in [false, true] {
        let (tree, held) = (Emitter::new(), Slot::new());
        if has_listeners {
            tree.observe("*.*", |_: &Any, _| ())?;
        }
        let (holds, child) = (held.clone(), Arc::new(below(&tree, "child", |_: Bad, _: RunContext| async { Ok(()) })));
        let parent = below(&tree, "parent", move |(): (), _: RunContext| {
            holds.put(child.run_shared(Bad));
            async { Ok(()) }
        });
        parent.run(()).now_or_never().expect("it waits for nothing")?;
        let run = held.take();
        let polled = catch_unwind(AssertUnwindSafe(|| run.now_or_never())).expect("the panic stays inside");
        let error = polled.expect("it waits for nothing").expect_err("it does not begin");
        assert_eq!(error.kind(), &ErrorKind::Aborted, "heard: {has_listeners}");
    }
    Ok(())
}

#[derive(Clone, Default)]
struct Spans(Arc<AtomicUsize>);

impl<S: Subscriber> Layer<S> for Spans {
    fn on_new_span(&self, _: &tracing::span::Attributes<'_>, _: &tracing::Id, _: LayerContext<'_, S>) {
        self.0.fetch_add(1, Ordering::Relaxed);
    }
}

// R1, R12
#[test]
fn a_run_that_does_not_begin_has_no_span() {
    let spans = Spans::default();
    tracing::subscriber::with_default(tracing_subscriber::registry().with(spans.clone()), || {
        let (tree, held) = (Emitter::new(), Slot::new());
        let (holds, child) = (held.clone(), deletes(&tree));
        let parent = below(&tree, "parent", move |(): (), _: RunContext| {
            holds.put(child.run_shared(()));
            async { Ok(()) }
        });
        assert!(parent.run(()).now_or_never().is_some_and(|result| result.is_ok()));
        assert!(held.take().now_or_never().is_some_and(|result| result.is_err()));
    });
    assert_eq!(spans.0.load(Ordering::Relaxed), 1, "that of the parent");
}
