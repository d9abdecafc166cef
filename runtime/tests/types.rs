//! Listeners of lifecycle events, and the types of runs (E4, E7).

mod support;

use std::sync::Arc;

use emitree_emitter::{Emitter, IntoMatcher, Matcher, Options, Registration};
use emitree_runtime::{
    Finish, Lifecycle, RunContext, Runnable, Stage, Start, Success, lifecycle, lifecycle_of, runnable_fn,
};

use crate::support::{Recorder, TestResult, below, emitter_of};

const SHORT: &str = "emitree_runtime::lifecycle::";

fn double(tree: &Emitter) -> impl Runnable<Input = u32, Output = u32> + use<> {
    below(tree, "double", |n: u32, _: RunContext| async move { Ok(n * 2) })
}

/// A run of `u32`, and in it one of `double`.
fn calls(tree: &Emitter) -> impl Runnable<Input = String, Output = u32> + use<> {
    let double = Arc::new(double(tree));
    below(tree, "calls", move |n: String, _: RunContext| {
        let double = Arc::clone(&double);
        async move { double.run(u32::try_from(n.len()).unwrap_or(0)).await }
    })
}

/// Listeners of a stage, by verb; each notes that it was called.
fn of_stage(stage: Stage, matcher: &Matcher, recorder: &Recorder) -> Registration {
    let notes = recorder.clone();
    match stage {
        Stage::Start => Options::new().on(matcher, move |_: &mut Start<u64, u32>, _| notes.note("called")),
        Stage::Success => Options::new().on_async(matcher, move |_: &mut Success<u64, u32>, _| {
            notes.note("called");
            Box::pin(async { Ok(()) })
        }),
        _ => Options::new().on(matcher, move |_: &mut Finish<u64, u32>, _| notes.note("called")),
    }
}

fn matchers(stage: Stage, double: &impl Runnable) -> [Matcher; 4] {
    [
        stage.into_matcher(),
        lifecycle_of(double).only([stage]).into_matcher(),
        lifecycle().only([stage]).into_matcher(),
        format!("double.run.{}", stage.as_str()).into_matcher(),
    ]
    .map(|matcher| matcher.expect("a matcher"))
}

// E7: on the run and on its instance, sync and async.
#[tokio::test]
async fn a_lifecycle_listener_of_other_types_than_the_runs_fails_the_run_with_an_error_that_names_both() -> TestResult {
    for stage in [Stage::Start, Stage::Success] {
        let (tree, recorder) = (Emitter::new(), Recorder::new());
        let double = double(&tree);
        for matcher in matchers(stage, &double) {
            let on_run = double.run(1).register(of_stage(stage, &matcher, &recorder)).await;
            let registered = emitter_of(&double).register(of_stage(stage, &matcher, &recorder))?;
            let on_instance = double.run(1).await;
            registered.off();
            for ended in [on_run, on_instance] {
                let error = ended.expect_err("the listener takes other types").to_string();
                let name = if stage == Stage::Start { "Start" } else { "Success" };
                for part in [
                    format!("`double.run.{}` carries `{SHORT}{name}<u32, u32>`", stage.as_str()),
                    format!("a listener takes `{SHORT}{name}<u64, u32>`"),
                    "runtime/tests/types.rs:".into(),
                ] {
                    assert!(error.contains(&part), "{error}\n{part}\n{matcher:?}");
                }
            }
        }
        recorder.expect([]);
        assert_eq!(double.run(1).await?, 2, "nobody listens any more");
    }
    Ok(())
}

// E7: `finish` cannot fail the run (R10), and an observer fails no event: both are counted or logged.
#[tokio::test]
async fn an_observer_of_other_types_than_the_runs_is_counted() -> TestResult {
    let tree = Emitter::new();
    let double = double(&tree);
    emitter_of(&double).observe(Stage::Finish, |_: &Finish<u64, u32>, _| ())?;
    emitter_of(&double).observe(Stage::Start, |_: &Start<u64, u32>, _| ())?;
    assert_eq!(double.run(1).await?, 2);
    assert_eq!(emitter_of(&double).isolated_failures(), 2);
    Ok(())
}

// E7: `lifecycle_of` is of one instance, so of one type, wherever it listens.
#[tokio::test]
async fn lifecycle_of_an_instance_is_exact_about_its_types_above_the_instance_too() -> TestResult {
    let tree = Emitter::new();
    let [one, other] = [(); 2].map(|()| double(&tree));
    let text = below(&tree, "text", |n: String, _: RunContext| async move { Ok(n) });
    tree.on(lifecycle_of(&one).only([Stage::Start]), |_: &mut Start<u64, u32>, _| ())?;
    let error = one.run(1).await.expect_err("the listener takes other types");
    assert!(error.to_string().contains("Start<u64, u32>"), "{error}");
    assert_eq!((other.run(1).await?, text.run("a".into()).await?), (2, "a".to_owned()), "they are not meant");
    Ok(())
}

// E7: a stage above instances is that of runs of any type.
#[tokio::test]
async fn lifecycle_events_that_are_not_own_are_filtered_by_type() -> TestResult {
    let (tree, recorder) = (Emitter::new(), Recorder::new());
    let (calls, notes) = (calls(&tree), recorder.clone());
    tree.on(Stage::Start, move |start: &mut Start<u32, u32>, meta| {
        notes.note(format!("{} {}", meta.path(), start.input));
    })?;
    calls.run("abc".into()).await?;
    recorder.expect(["double.run.start 3"]);
    Ok(())
}

// E7
#[tokio::test]
async fn to_ask_for_nested_lifecycle_events_is_to_filter_by_type() -> TestResult {
    let (tree, recorder) = (Emitter::new(), Recorder::new());
    let (calls, notes) = (calls(&tree), recorder.clone());
    let nested = Options::new().nested(true).on(Stage::Start, move |start: &mut Start<u32, u32>, meta| {
        notes.note(format!("{} {}", meta.path(), start.input));
    });
    assert_eq!(calls.run("abc".into()).register(nested).await?, 6);
    recorder.expect(["double.run.start 3"]);
    Ok(())
}

// E7
#[tokio::test]
async fn of_types_filters_own_lifecycle_events_by_type() -> TestResult {
    let recorder = Recorder::new();
    let shared = Emitter::new().child("shared")?;
    let number = runnable_fn("number", |n: u32, _: RunContext| async move { Ok(n) }).with_emitter(shared.clone());
    let text = runnable_fn("text", |n: String, _: RunContext| async move { Ok(n) }).with_emitter(shared.clone());
    let [a, b, c] = [(); 3].map(|()| recorder.clone());
    shared.on(Stage::Start.of_types(), move |_: &mut Start<u32, u32>, _| a.note("stage"))?;
    let of_number = lifecycle_of(&number).only([Stage::Start]).of_types();
    shared.on(of_number, move |_: &mut Start<u32, u32>, _| b.note("lifecycle_of"))?;
    // The types of these are the instance's own.
    number.on_start(move |_, _| c.note("on_start"))?;
    text.run("a".into()).await?;
    recorder.expect([]);
    number.run(1).await?;
    recorder.expect(["stage", "lifecycle_of", "on_start"]);
    Ok(())
}

// E9: equal matchers
#[test]
fn a_stage_of_types_is_removed_as_the_stage_is() -> TestResult {
    let emitter = Emitter::new();
    emitter.on(Stage::Start.of_types(), |_: &mut Start<u32, u32>, _| ())?;
    assert_eq!(emitter.off_matching(Stage::Start)?, 1);
    Ok(())
}

// E7: what is emitted under the name of a stage, and is none, is not meant by a stage.
#[tokio::test]
async fn an_event_of_ones_own_under_the_name_of_a_stage_is_no_mismatch() -> TestResult {
    let emitter = Emitter::new();
    emitter.on(Stage::Start, |_: &mut Start<u32, u32>, _| ())?;
    emitter.emit("run.start", &mut 1_u32).await?;
    Ok(())
}
