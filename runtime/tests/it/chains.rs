//! M1, M2, M5, M7: the chain of a run is fixed when its work begins, is in the documented order, and is listed in that
//! order.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use crate::support::layers::Notes;
use crate::support::{Recorder, TestResult, below};
use emitree_emitter::Emitter;
use emitree_runtime::{
    AnyRun, Error, ErrorKind, Guard, JsonRun, Middleware, Op, Result, RunContext, Runnable, Stack, map_input,
    map_output,
};

/// A kind of work that takes a number and returns a number.
struct Number;

impl Op for Number {
    type In = u32;
    type Out = u32;
}

fn set(n: &mut u32, value: u32) -> Result<()> {
    *n = value;
    Ok(())
}

/// Returns one middleware for each way in which values can be intercepted.
fn of_all_sorts(recorder: &Recorder) -> [Arc<dyn Middleware>; 5] {
    let notes = || Notes("late", recorder.clone());
    [
        Arc::new(Stack::<Number>::builder().layer(notes()).build()),
        Arc::new(Stack::<JsonRun>::builder().layer(notes()).build()),
        Arc::new(Stack::<AnyRun>::builder().layer(notes()).build()),
        Arc::new(map_input(|n: &mut u32, _: &RunContext| set(n, 7))),
        Arc::new(map_output(|n: &mut u32, _: &RunContext| set(n, 7))),
    ]
}

/// Returns a runnable that binds a middleware in its work, and checks that this fails.
fn binds_late(late: Arc<dyn Middleware>) -> impl Runnable<Input = u32, Output = u32> + 'static {
    below(&Emitter::new(), "double", move |n: u32, ctx: RunContext| {
        let bound = late.bind(&ctx).map_err(|error| error.to_string());
        assert_eq!(bound, Err("the run's work has begun: bind layers and middlewares earlier".to_owned()));
        async move { Ok(n * 2) }
    })
}

// M4, M5: a guard that is bound too late would be skipped silently, so it is refused.
#[tokio::test]
async fn binding_a_middleware_after_the_work_has_begun_is_an_error() -> TestResult {
    let recorder = Recorder::new();
    for late in of_all_sorts(&recorder) {
        let double = binds_late(late);
        assert_eq!(double.run(2).max_middleware_retries(1).await?, 4, "with nothing to pass");
        let layer = Stack::<Number>::builder().layer(Notes("early", Recorder::new())).build();
        assert_eq!(double.run(2).middleware(layer).await?, 4, "with a layer");
        let input = map_input(|_: &mut u32, _: &RunContext| Ok(()));
        assert_eq!(double.run(2).middleware(input).await?, 4, "with a `map_input`");
    }
    recorder.expect([]);
    Ok(())
}

// M4, M5
#[tokio::test]
async fn binding_the_first_middleware_after_the_work_has_begun_is_an_error() -> TestResult {
    for late in of_all_sorts(&Recorder::new()) {
        assert_eq!(binds_late(late).run(2).await?, 4);
    }
    Ok(())
}

/// Returns a middleware that, while it is being bound, records the names of the layers that `explain` lists.
fn explains(recorder: &Recorder) -> impl Fn(&RunContext) -> Result<()> + Send + Sync + 'static {
    let recorder = recorder.clone();
    move |ctx| {
        ctx.explain().chain.iter().for_each(|layer| recorder.note(&*layer.name));
        Ok(())
    }
}

// M2
#[tokio::test]
async fn explain_lists_layers_in_the_order_of_phases_while_the_run_is_being_bound() -> TestResult {
    let (recorder, notes) = (Recorder::new(), |name| Notes(name, Recorder::new()));
    let double = below(&Emitter::new(), "double", |n: u32, _: RunContext| async move { Ok(n * 2) });
    double
        .run(2)
        .middleware(Stack::<Number>::builder().guard(notes("guard")).build())
        .middleware(Stack::<Number>::builder().transform(notes("transform")).build())
        .middleware(Stack::<Number>::builder().observe(notes("observe")).build())
        .middleware(explains(&recorder))
        .await?;
    recorder.expect(["observe", "transform", "guard"]);
    Ok(())
}

// M2
#[tokio::test]
async fn any_run_layers_are_called_in_their_phases_among_typed_layers() -> TestResult {
    let recorder = Recorder::new();
    let note = |name| Notes(name, recorder.clone());
    let opaque = Stack::<AnyRun>::builder().guard(note("guard")).observe(note("observe")).build();
    let typed = Stack::<Number>::builder().layer(note("layer")).build();
    let double = below(&Emitter::new(), "double", |n: u32, _: RunContext| async move { Ok(n * 2) });
    double.run(2).middleware(opaque).middleware(typed).await?;
    recorder.expect(["observe <- ()", "layer <- 2", "guard <- ()", "guard -> ()", "layer -> 4", "observe -> ()"]);
    Ok(())
}

/// A guard that rejects one output.
#[derive(Debug)]
struct Never(&'static str, u32);

impl Guard<Number> for Never {
    async fn check_output(&self, output: &u32, _: &RunContext) -> Result<()> {
        if *output == self.1 { Err(Error::new("not this one")) } else { Ok(()) }
    }

    fn name(&self) -> &str {
        self.0
    }
}

// M2
#[tokio::test]
async fn joined_stacks_have_all_layers_in_their_phases() {
    let double = below(&Emitter::new(), "double", |n: u32, _: RunContext| async move { Ok(n * 2) });
    let recorder = Recorder::new();
    let note = |name| Notes(name, recorder.clone());
    let first = Stack::<Number>::builder().guard(Never("guard", 4)).layer(note("first")).build();
    let joined = Stack::builder().stack(&first).layer(note("second")).stack(&first).build();
    assert_eq!((first.len(), joined.len()), (2, 5));
    let error = double.run(2).middleware(joined).await.expect_err("it is denied");
    assert_eq!(error.kind(), &ErrorKind::Denied { by: "guard".into() });
    let [first, second] = ["first", "second"].map(|name| format!("{name} -> error: not this one"));
    recorder.expect(["first <- 2", "second <- 2", "first <- 2", &first, &second, &first]);
}

// M7
#[tokio::test]
async fn map_output_receives_the_output_of_its_own_attempt() -> TestResult {
    let recorder = Recorder::new();
    let notes = recorder.clone();
    let double = below(&Emitter::new(), "count", |_: u32, ctx: RunContext| async move { Ok(ctx.attempt()) });
    let again = map_output(move |output: &mut u32, ctx: &RunContext| {
        notes.note(output.to_string());
        if ctx.attempt() == 0 { Err(Error::retry("again")) } else { Ok(()) }
    });
    double.run(0).middleware(again).max_middleware_retries(1).await?;
    recorder.expect(["0", "1"]);
    Ok(())
}

// M7: aborts are never retried. If a run was aborted, its request for a retry has no effect.
#[tokio::test]
async fn an_aborted_run_is_not_attempted_again() {
    let attempts = Arc::new(AtomicU32::new(0));
    let counts = Arc::clone(&attempts);
    let aborts = below(&Emitter::new(), "aborts", move |(): (), ctx: RunContext| {
        counts.fetch_add(1, Ordering::Relaxed);
        ctx.abort("enough");
        async { Result::<()>::Err(Error::retry("once more")) }
    });
    let error = aborts.run(()).max_middleware_retries(3).await.expect_err("it was aborted");
    assert_eq!((error.kind(), attempts.load(Ordering::Relaxed)), (&ErrorKind::Aborted, 1));
}
