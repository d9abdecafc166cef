//! Listeners of lifecycle events, and the types of runs (E4, E7).

use std::sync::Arc;

use emitree_emitter::{Emitter, EventMeta, IntoMatcher, Matcher, Options, Registration};
use emitree_runtime::{
    Failure, Finish, Lifecycle, Result, Run, RunContext, Runnable, Stage, Start, Success, lifecycle, lifecycle_of,
    runnable_fn,
};

use crate::support::{Any, Recorder, Slot, TestResult, below, emitter_of};

const SHORT: &str = "emitree_runtime::lifecycle::";

fn double(tree: &Emitter) -> impl Runnable<Input = u32, Output = u32> + use<> {
    below(tree, "double", |n: u32, _: RunContext| async move { Ok(n * 2) })
}

/// Returns a runnable whose run starts a run of `double`.
fn calls(tree: &Emitter) -> impl Runnable<Input = String, Output = u32> + use<> {
    let double = Arc::new(double(tree));
    below(tree, "calls", move |n: String, _: RunContext| {
        let double = Arc::clone(&double);
        async move { double.run(u32::try_from(n.len()).unwrap_or(0)).await }
    })
}

/// Returns a listener of a stage, with an input type other than the input type of `double`. The listener records its
/// calls.
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

// E7: the listener is registered on the run or on its instance, and is sync or async.
#[tokio::test]
async fn a_lifecycle_listener_of_other_types_fails_the_run_with_an_error_that_names_both() -> TestResult {
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
                    "runtime/tests/it/types.rs:".into(),
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

// E7, R10: a listener of `finish` cannot make the run fail.
#[tokio::test]
async fn a_listener_of_finish_of_other_types_does_not_fail_the_run_and_is_counted() -> TestResult {
    let (tree, recorder) = (Emitter::new(), Recorder::new());
    let double = double(&tree);
    for (matcher, failures) in matchers(Stage::Finish, &double).iter().zip(1..) {
        assert_eq!(double.run(1).register(of_stage(Stage::Finish, matcher, &recorder)).await?, 2, "{matcher:?}");
        let registered = emitter_of(&double).register(of_stage(Stage::Finish, matcher, &recorder))?;
        assert_eq!(double.run(1).await?, 2, "{matcher:?}");
        registered.off();
        assert_eq!(emitter_of(&double).isolated_failures(), failures, "{matcher:?}");
    }
    recorder.expect([]);
    Ok(())
}

// E7, E11: no observer can make the run fail.
#[tokio::test]
async fn an_observer_of_other_types_does_not_fail_the_run_and_is_counted() -> TestResult {
    let tree = Emitter::new();
    let double = double(&tree);
    emitter_of(&double).observe(Stage::Finish, |_: &Finish<u64, u32>, _| ())?;
    emitter_of(&double).observe(Stage::Start, |_: &Start<u64, u32>, _| ())?;
    assert_eq!(double.run(1).await?, 2);
    assert_eq!(emitter_of(&double).isolated_failures(), 2);
    Ok(())
}

// E7: `lifecycle_of` matches one instance, so the payload has one type, on any emitter.
#[tokio::test]
async fn lifecycle_of_an_instance_requires_the_types_of_the_instance_on_any_emitter() -> TestResult {
    let tree = Emitter::new();
    let [one, other] = [(); 2].map(|()| double(&tree));
    let text = below(&tree, "text", |n: String, _: RunContext| async move { Ok(n) });
    tree.on(lifecycle_of(&one).only([Stage::Start]), |_: &mut Start<u64, u32>, _| ())?;
    let error = one.run(1).await.expect_err("the listener takes other types");
    assert!(error.to_string().contains("Start<u64, u32>"), "{error}");
    assert_eq!((other.run(1).await?, text.run("a".into()).await?), (2, "a".to_owned()), "they are not meant");
    Ok(())
}

// E7: above the instances, a stage matches runs of any types, so a listener skips runs with other types.
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
async fn a_listener_of_nested_lifecycle_events_filters_by_type() -> TestResult {
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
    // `on_start` of the instance needs no filter, because all runs of the instance have its types.
    number.on_start(move |_, _| c.note("on_start"))?;
    text.run("a".into()).await?;
    recorder.expect([]);
    number.run(1).await?;
    recorder.expect(["stage", "lifecycle_of", "on_start"]);
    Ok(())
}

// E9: equal matchers
#[test]
fn off_matching_a_stage_removes_a_listener_of_the_stage_with_of_types() -> TestResult {
    let emitter = Emitter::new();
    emitter.on(Stage::Start.of_types(), |_: &mut Start<u32, u32>, _| ())?;
    assert_eq!(emitter.off_matching(Stage::Start)?, 1);
    Ok(())
}

// E7: a stage does not match other events with the name of a lifecycle event.
#[tokio::test]
async fn a_users_event_under_the_name_of_a_stage_is_not_a_type_mismatch() -> TestResult {
    let emitter = Emitter::new();
    emitter.on(Stage::Start, |_: &mut Start<u32, u32>, _| ())?;
    emitter.emit("run.start", &mut 1_u32).await?;
    Ok(())
}

/// The places where a listener receives the run's events as own events.
const PLACES: [&str; 3] = ["run", "instance", "middleware"];

/// Runs `double` with listeners at one of the `PLACES`.
async fn listened(at: &str, n: u32, listeners: Vec<Registration>) -> Result<u32> {
    let double = below(&Emitter::new(), "double", |n: u32, _: RunContext| async move {
        if n == 0 { Err(emitree_runtime::Error::new("nothing to double")) } else { Ok(n * 2) }
    });
    match at {
        "run" => listeners.into_iter().fold(double.run(n), Run::register).await,
        "instance" => {
            for listener in listeners {
                emitter_of(&double).register(listener)?;
            }
            double.run(n).await
        }
        _ => {
            let listeners = Slot::with(listeners);
            let bind = move |ctx: &RunContext| {
                for listener in listeners.take() {
                    ctx.emitter().register(listener)?;
                }
                Ok(())
            };
            double.run(n).middleware(bind).await
        }
    }
}

// E4: programs written for BeeAI listen for events by plain names, such as `"start"`.
#[tokio::test]
async fn a_plain_lifecycle_name_matches_the_runs_own_event_for_a_listener_of_exactly_its_type() -> TestResult {
    for (at, others) in PLACES.into_iter().flat_map(|at| [(at, 0), (at, 20)]) {
        let recorder = Recorder::new();
        let listeners = || {
            let [a, b, c, d, e] = [(); 5].map(|()| recorder.clone());
            let options = Options::new();
            let mut listeners = vec![
                options.on("start", move |start: &mut Start<u32, u32>, meta| {
                    a.note(format!("{} {}", meta.path(), start.input));
                    start.input += u32::from(start.input > 0);
                }),
                options.on_async("success", move |success: &mut Success<u32, u32>, _| {
                    b.note(format!("success {}", success.output));
                    success.output += 1;
                    Box::pin(async { Ok(()) })
                }),
                options.on("error", move |failure: &mut Failure, _| c.note(failure.error().to_string())),
                options.observe("finish", move |finish: &Finish<u32, u32>, _| {
                    d.note(format!("{:?}", finish.outcome().status()));
                }),
                options.observe_async("finish", move |_: &Finish<u32, u32>, meta| {
                    e.note(meta.name());
                    Box::pin(async { Ok(()) })
                }),
            ];
            listeners.extend((0..others).map(|_| options.on("new_*", |_: &mut Any, _| ())));
            listeners
        };
        assert_eq!(listened(at, 20, listeners()).await?, 43, "{at}");
        listened(at, 0, listeners()).await.expect_err("nothing to double");
        recorder.expect([
            "double.run.start 20",
            "success 42",
            "Success",
            "finish",
            "double.run.start 0",
            "nothing to double",
            "Failed",
            "finish",
        ]);
    }
    Ok(())
}

// E7
#[tokio::test]
async fn a_plain_lifecycle_name_with_an_event_of_other_types_is_an_error_that_names_both() {
    for at in PLACES {
        let wrong = [
            Options::new().on("start", |_: &mut Start<u64, u32>, _| ()),
            Options::new().on("success", |_: &mut Success<u32, String>, _| ()),
        ];
        for (wrong, (heard, carried)) in
            wrong.into_iter().zip([("Start<u64, u32>", "Start<u32, u32>"), ("Success<u32, alloc", "Success<u32, u32>")])
        {
            let error = listened(at, 1, vec![wrong]).await.expect_err("other types").to_string();
            assert!(error.contains(&format!("a listener takes `{SHORT}{heard}")), "{error}");
            assert!(error.contains(&format!("carries `{SHORT}{carried}")), "{error}");
        }
    }
}

// E7, R10: `error` and `finish` only report.
#[tokio::test]
async fn a_plain_lifecycle_name_with_the_payload_of_another_stage_is_an_error_that_names_both() -> TestResult {
    type Of<T> = fn(&'static str) -> (Registration, T);
    let start: Of<&str> = |name| (Options::new().on(name, |_: &mut Start<u32, u32>, _| ()), "Start<u32, u32>");
    let success: Of<&str> = |name| (Options::new().on(name, |_: &mut Success<u32, u32>, _| ()), "Success<u32, u32>");
    let failure: Of<&str> = |name| (Options::new().on(name, |_: &mut Failure, _| ()), "Failure");
    let finish: Of<&str> = |name| (Options::new().on(name, |_: &mut Finish<u32, u32>, _| ()), "Finish<u32, u32>");
    for (name, n, carried, others) in [
        ("start", 1, "Start<u32, u32>", [success, failure, finish]),
        ("success", 1, "Success<u32, u32>", [start, failure, finish]),
        ("error", 0, "Failure", [start, success, finish]),
        ("finish", 1, "Finish<u32, u32>", [start, success, failure]),
    ] {
        for other in others {
            let (listener, taken) = other(name);
            let tree = Emitter::new();
            let double = below(&tree, "double", |n: u32, _: RunContext| async move {
                if n == 0 { Err(emitree_runtime::Error::new("nothing to double")) } else { Ok(n * 2) }
            });
            emitter_of(&double).register(listener)?;
            let ended = double.run(n).await;
            let isolated = emitter_of(&double).isolated_failures();
            if matches!(name, "error" | "finish") {
                assert_eq!(isolated, 1, "{name} {taken}");
                continue;
            }
            let error = ended.expect_err(taken).to_string();
            assert!(error.contains(&format!("a listener takes `{SHORT}{taken}")), "{name}: {error}");
            assert!(error.contains(&format!("carries `{SHORT}{carried}")), "{name}: {error}");
        }
    }
    Ok(())
}

// E4
#[tokio::test]
async fn a_plain_lifecycle_name_with_a_users_type_or_any_matches_the_users_event() -> TestResult {
    #[derive(serde::Serialize)]
    struct Engine(u32);
    let (tree, recorder) = (Emitter::new(), Recorder::new());
    let car =
        below(
            &tree,
            "car",
            |(), ctx: RunContext| async move { Ok(ctx.emitter().emit("start", &mut Engine(7)).await?) },
        );
    let [a, b] = [(); 2].map(|()| recorder.clone());
    let run = car.run(()).on("start", move |engine: &mut Engine, meta| {
        a.note(format!("engine {} {}", meta.path(), engine.0));
    });
    run.on("start", move |_: &mut Any, meta| b.note(format!("any {}", meta.path()))).await?;
    recorder.expect(["engine car.start 7", "any car.start"]);
    // The work emits an own event `start` whose type differs from the type of the run's `start`, so this listener fails
    // (E7).
    let run = car.run(()).on("start", |_: &mut Start<(), ()>, _| ());
    assert!(run.await.expect_err("an engine is no run").to_string().contains("Engine"));
    Ok(())
}

// E4: a plain name matches only own events.
#[tokio::test]
async fn a_plain_lifecycle_name_does_not_match_events_of_other_runs() -> TestResult {
    let (tree, recorder) = (Emitter::new(), Recorder::new());
    let (calls, own, root) = (calls(&tree), recorder.clone(), recorder.clone());
    tree.on("start", move |_: &mut Start<u32, u32>, _| root.note("the root"))?;
    let run = calls.run("abc".into()).on("start", move |_: &mut Start<String, u32>, _| own.note("own"));
    let nested = Options::new().nested(true);
    run.register(nested.on("start", |_: &mut Start<String, u32>, _| ())).await?;
    recorder.expect(["own"]);
    Ok(())
}

// R3: a user's event with the path of a lifecycle event is not a lifecycle event.
#[tokio::test]
async fn a_users_event_that_looks_like_a_start_is_not_matched_by_the_plain_name() -> TestResult {
    for others in [0, 20] {
        let (tree, recorder) = (Emitter::new(), Recorder::new());
        let double = double(&tree);
        let notes = recorder.clone();
        emitter_of(&double).on("start", move |_: &mut Start<u32, u32>, _| notes.note("start"))?;
        (0..others).try_for_each(|_| emitter_of(&double).on("new_*", |_: &mut Any, _| ()).map(drop))?;
        for _ in 0..2 {
            let mut looks_alike = Start { input: 1_u32, output: None::<u32> };
            emitter_of(&double).emit("run.start", &mut looks_alike).await?;
            recorder.expect([]);
            double.run(1).await?;
            recorder.expect(["start"]);
        }
    }
    Ok(())
}

// E7: a declared lifecycle name has the type of the run's event; other lifecycle names need no declaration.
#[tokio::test]
async fn a_plain_lifecycle_name_is_declared_with_the_type_of_the_runs_event() -> TestResult {
    let recorder = Recorder::new();
    let emitter = Emitter::new().child_builder("double").declares::<Start<u32, u32>>("start").build()?;
    let double = runnable_fn("double", |n: u32, _: RunContext| async move { Ok(n * 2) }).with_emitter(emitter);
    let (start, success) = (recorder.clone(), recorder.clone());
    let run = double.run(1).on("start", move |_: &mut Start<u32, u32>, _| start.note("start"));
    run.on("success", move |_: &mut Success<u32, u32>, _| success.note("success")).await?;
    recorder.expect(["start", "success"]);
    let refused = double.run(1).on("start", |_: &mut String, _| ()).await;
    assert!(refused.expect_err("another type").to_string().contains("`start` is declared with payload"));
    Ok(())
}

// E4: see the table in the documentation of `Matcher`.
#[tokio::test]
async fn a_stage_matches_own_starts_all_starts_on_a_namespace_and_nested_starts_on_request() -> TestResult {
    let (own, all) = (&["double.run.start"][..], &["double.run.start", "tool.run.start"][..]);
    let rows = [
        (Options::new(), [own, own, all, all, &[]]),
        (Options::new().nested(false), [own, own, all, all, &[]]),
        (Options::new().nested(true), [all, all, all, all, all]),
    ];
    for (options, columns) in rows {
        for (column, expected) in columns.into_iter().enumerate() {
            for matcher in [Stage::Start.into_matcher()?, lifecycle().only([Stage::Start]).into_matcher()?] {
                assert_eq!(heard_in_nest(column, options, matcher).await?, expected, "{options:?} column {column}");
            }
        }
    }
    Ok(())
}

/// Returns the paths of the events that a listener receives, except `desk.run.start`. The column selects where the
/// listener is registered: on the run of `double`, its instance, the namespace above, the root, or the run above.
async fn heard_in_nest(column: usize, options: Options, matcher: Matcher) -> Result<Vec<String>> {
    let (root, recorder) = (Emitter::new(), Recorder::new());
    let space = root.child(())?;
    let tool = Arc::new(below(&root, "tool", |(), _: RunContext| async move { Ok(()) }));
    let notes = recorder.clone();
    let of = |meta: &EventMeta<'_>| meta.path() != "desk.run.start";
    let note = move |_: &mut Any, meta: &EventMeta<'_>| {
        if of(meta) {
            notes.note(meta.path());
        }
    };
    let listener = Arc::new(Slot::with(options.on(matcher, note)));
    let at_run = Arc::clone(&listener);
    let double = Arc::new(below(&space, "double", move |(), ctx: RunContext| {
        let tool = Arc::clone(&tool);
        async move { tool.run(()).await.map(|()| drop(ctx)) }
    }));
    let inner = Arc::clone(&double);
    let desk = below(&root, "desk", move |(), _: RunContext| {
        let (inner, at_run) = (Arc::clone(&inner), Arc::clone(&at_run));
        async move {
            let run = inner.run(());
            if column == 0 { run.register(at_run.take()).await } else { run.await }
        }
    });
    match column {
        1 => drop(emitter_of(&*double).register(listener.take())?),
        2 => drop(space.register(listener.take())?),
        3 => drop(root.register(listener.take())?),
        _ => {}
    }
    let run = desk.run(());
    if column == 4 {
        run.register(listener.take()).await?;
    } else {
        run.await?;
    }
    Ok(recorder.take())
}
