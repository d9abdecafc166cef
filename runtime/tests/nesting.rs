//! M4: a layer may warn if it is bound to a run and to a run above it. Only the layer's first warning is
//! logged. The explanation of each such run contains the run's own warning.

#[path = "../../tests/support/journal.rs"]
mod journal;
mod support;

use std::sync::Arc;

use emitree_emitter::Emitter;
use emitree_runtime::{
    AnyRun, JsonRun, Layer, Middleware, Nesting, Next, Op, Result, RunContext, Runnable, Stack, for_nested, for_tree,
};
use journal::Journal;
use support::{Recorder, TestResult, below};

/// A layer whose warning lists the runs above to which it is also bound.
#[derive(Debug)]
struct Warns;

impl<O: Op> Layer<O> for Warns {
    async fn call(&self, input: &O::In, _: &RunContext, next: Next<'_, O>) -> Result<O::Out> {
        next.run(input).await
    }

    fn name(&self) -> &str {
        "warns"
    }

    fn nesting_warning(&self, nesting: &Nesting<'_>) -> Option<String> {
        let above: Vec<_> = nesting.above().map(RunContext::name).collect();
        (!above.is_empty()).then(|| format!("{} in {}", nesting.run().name(), above.join(" in ")))
    }
}

/// Returns a runnable that nests three runs, and records the warnings in their explanations.
fn three_deep(recorder: &Recorder) -> impl Runnable<Input = (), Output = ()> + 'static {
    let tree = Emitter::new();
    let note = |ctx: &RunContext, notes: &Recorder| {
        let explained = ctx.explain();
        explained.warnings.iter().for_each(|warning| assert!(explained.to_string().contains(warning)));
        notes.note(format!("{:?}", explained.warnings));
    };
    let notes = recorder.clone();
    let leaf = Arc::new(below(&tree, "leaf", move |(): (), ctx: RunContext| {
        note(&ctx, &notes);
        async { Ok(()) }
    }));
    let notes = recorder.clone();
    let middle = Arc::new(below(&tree, "middle", move |(): (), ctx: RunContext| {
        note(&ctx, &notes);
        let leaf = Arc::clone(&leaf);
        async move { leaf.run(()).await }
    }));
    let notes = recorder.clone();
    below(&tree, "top", move |(): (), ctx: RunContext| {
        note(&ctx, &notes);
        let middle = Arc::clone(&middle);
        async move { middle.run(()).await }
    })
}

// M4
#[tokio::test]
async fn a_layer_bound_at_several_levels_warns_once_in_the_log_and_in_each_explanation() -> TestResult {
    let (recorder, journal) = (Recorder::new(), Journal::default());
    let top = three_deep(&recorder);
    let _guard = tracing::subscriber::set_default(journal.clone());

    let opaque = Stack::<AnyRun>::builder().layer(Warns).build();
    let any = Stack::<JsonRun>::builder().layer(Warns).build();
    let both: [Box<dyn Fn() -> Arc<dyn Middleware>>; 2] =
        [Box::new(move || Arc::new(opaque.clone())), Box::new(move || Arc::new(any.clone()))];
    for layer in both {
        top.run(()).middleware(for_tree(layer())).await?;
        recorder.expect(["[]", r#"["warns: middle in top"]"#, r#"["warns: leaf in middle in top"]"#]);
        assert_eq!(journal.take(), ["`warns`: middle in top"]);

        top.run(()).middleware(for_nested(layer())).await?;
        recorder.expect(["[]", "[]", r#"["warns: leaf in middle"]"#]);
        assert!(journal.take().is_empty(), "it has warned already");
    }
    Ok(())
}

// M4
#[tokio::test]
async fn a_layer_that_is_bound_to_one_level_of_each_path_does_not_warn() -> TestResult {
    let (recorder, journal) = (Recorder::new(), Journal::default());
    let top = three_deep(&recorder);
    let _guard = tracing::subscriber::set_default(journal.clone());

    for level in 0..3 {
        let stack = Stack::<AnyRun>::builder().layer(Warns).build();
        let one_level = move |ctx: &RunContext| if ctx.depth() == level { stack.bind(ctx) } else { Ok(()) };
        top.run(()).middleware(for_tree(one_level)).await?;
        recorder.expect(["[]"; 3]);
    }
    // Each run has a layer of its own here. Different layers of one type cause no warning.
    let stack = || Stack::<AnyRun>::builder().layer(Warns).build();
    top.run(()).middleware(for_tree(move |ctx: &RunContext| stack().bind(ctx))).await?;
    recorder.expect(["[]"; 3]);
    assert!(journal.take().is_empty());
    Ok(())
}

/// A layer whose `nesting_warning` panics.
#[derive(Debug)]
struct Panics;

impl<O: Op> Layer<O> for Panics {
    async fn call(&self, input: &O::In, _: &RunContext, next: Next<'_, O>) -> Result<O::Out> {
        next.run(input).await
    }

    fn nesting_warning(&self, _: &Nesting<'_>) -> Option<String> {
        panic!("planned")
    }
}

// M4, M5
#[tokio::test]
async fn a_panic_in_nesting_warning_is_logged_and_does_not_fail_the_run() -> TestResult {
    let (recorder, journal) = (Recorder::new(), Journal::default());
    let top = three_deep(&recorder);
    let _guard = tracing::subscriber::set_default(journal.clone());
    top.run(()).middleware(for_tree(Stack::<AnyRun>::builder().layer(Panics).build())).await?;
    recorder.expect(["[]"; 3]);
    let logged = journal.take();
    assert!(logged.iter().all(|line| line == "a run continues after a panic: planned"), "{logged:?}");
    assert!(!logged.is_empty());
    Ok(())
}
