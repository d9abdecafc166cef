//! R3: the four lifecycle events of a run, their paths and types, the matchers that match them, and the context key
//! that is reserved for them.

use std::sync::Arc;

use crate::support::{Any, Recorder, TestResult, below, emitter_of};
use emitree_emitter::{Emitter, Event, EventMeta, EventName, Options};
use emitree_runtime::{
    Failure, Finish, Lifecycle, LifecycleMut, LifecycleRef, Result, RunContext, Runnable, Stage, Start, Status,
    Success, lifecycle, lifecycle_of,
};
use serde_json::json;

/// Returns a runnable that doubles its input, or fails if the input is zero.
fn double(parent: &Emitter, namespace: &str) -> impl Runnable<Input = u32, Output = u32> + use<> {
    below(parent, namespace, |n: u32, _: RunContext| async move {
        if n == 0 { Err(emitree_runtime::Error::new("nothing to double")) } else { Ok(n * 2) }
    })
}

// R3
#[tokio::test]
async fn lifecycle_events_are_emitted_under_run_below_the_instances_namespace() -> TestResult {
    let (tree, recorder) = (Emitter::new(), Recorder::new());
    recorder.watch(&tree);
    let chat = double(&tree, "backend.chat");
    chat.run(1).await?;
    assert!(chat.run(0).await.is_err());
    recorder.expect([
        "backend.chat.run.start",
        "backend.chat.run.success",
        "backend.chat.run.finish",
        "backend.chat.run.start",
        "backend.chat.run.error",
        "backend.chat.run.finish",
    ]);
    Ok(())
}

// R3
#[tokio::test]
async fn an_instance_without_a_namespace_emits_run_start() -> TestResult {
    let (tree, recorder) = (Emitter::new(), Recorder::new());
    recorder.watch(&tree);
    let echo = emitree_runtime::runnable_fn("echo", |n: u32, _: RunContext| async move { Ok(n) })
        .with_emitter(tree.child(())?);
    echo.run(1).await?;
    recorder.expect(["run.start", "run.success", "run.finish"]);
    Ok(())
}

// R3
#[tokio::test]
async fn each_lifecycle_event_has_its_payload() -> TestResult {
    let (tree, recorder) = (Emitter::new(), Recorder::new());
    let notes = recorder.clone();
    tree.observe("*.*", move |event: &Any, meta| {
        let mut json = event.to_json();
        json.as_object_mut().map(|fields| fields.remove("duration_ns"));
        notes.note(format!("{} {json}", meta.name()));
    })?;
    let double = double(&tree, "double");
    double.run(4).await?;
    assert!(double.run(0).await.is_err());
    let error = r#"{"kind":"failed","message":"nothing to double","is_retryable":false,"is_fatal":false}"#;
    let error = serde_json::from_str::<serde_json::Value>(error)?;
    recorder.expect([
        &*format!("start {}", json!({"input": 4, "output": null})),
        &format!("success {}", json!({"input": 4, "output": 8})),
        &format!("finish {}", json!({"input": 4, "outcome": {"status": "success", "output": 8}})),
        &format!("start {}", json!({"input": 0, "output": null})),
        &format!("error {}", json!({"error": error})),
        &format!("finish {}", json!({"input": 0, "outcome": {"status": "failed", "error": error}})),
    ]);
    Ok(())
}

// R3
#[tokio::test]
async fn lifecycle_events_are_recognized_by_type_and_not_by_name() -> TestResult {
    let (tree, recorder) = (Emitter::new(), Recorder::new());
    let (notes, look) = (recorder.clone(), recorder.clone());
    tree.on("*.*", move |event: &mut Any, meta| {
        let stage = Stage::of(meta).map(Stage::as_str);
        notes.note(format!("{} {stage:?} {:?}", meta.path(), LifecycleMut::of(event, meta)));
    })?;
    tree.observe("*.*", move |event: &Any, meta| look.note(format!("{:?}", LifecycleRef::of(event, meta))))?;
    double(&tree, "double").run(1).await?;
    tree.child("double")?.emit("run.start", &mut 1).await?;
    recorder.expect([
        r#"double.run.start Some("start") Some(Start)"#,
        "Some(Start)",
        r#"double.run.success Some("success") Some(Success)"#,
        "Some(Success)",
        r#"double.run.finish Some("finish") Some(Finish)"#,
        "Some(Finish)",
        "double.run.start None None",
        "None",
    ]);
    Ok(())
}

// R3
#[tokio::test]
async fn only_lifecycle_events_have_internal_in_their_context() -> TestResult {
    let (tree, recorder) = (Emitter::new(), Recorder::new());
    let notes = recorder.clone();
    tree.observe("*.*", move |_: &Any, meta| {
        let internal = meta.context().get("internal").cloned();
        notes.note(format!("{} {internal:?}", meta.path()));
    })?;
    let talk = below(&tree, "talk", |(), ctx: RunContext| async move {
        assert_eq!(ctx.get("internal"), None);
        Ok(ctx.emitter().emit("word", &mut ()).await?)
    });
    talk.run(()).await?;
    recorder.expect([
        "talk.run.start Some(Bool(true))",
        "talk.word None",
        "talk.run.success Some(Bool(true))",
        "talk.run.finish Some(Bool(true))",
    ]);
    Ok(())
}

// R3
#[tokio::test]
async fn users_cannot_set_the_context_key_internal_on_an_emitter_or_a_run() -> TestResult {
    let tree = Emitter::new();
    let internal = || json!({"internal": true});
    assert!(Emitter::builder().context(internal()).build().is_err());
    assert!(tree.child_builder("talk").context(internal()).build().is_err());
    assert!(tree.set_context("internal", true).is_err());
    let talk = below(&tree, "talk", |(), ctx: RunContext| async move {
        let refused = ctx.set("internal", true).expect_err("it is the runtime's");
        assert!(ctx.emitter().set_context("internal", true).is_err());
        assert_eq!(ctx.get("internal"), None);
        Ok(refused.to_string())
    });
    assert_eq!(
        talk.run(()).await?,
        "context key `internal` is set by the runtime on its own events only; choose another key"
    );
    let refused = talk.run(()).context(internal()).await.expect_err("it is the runtime's");
    assert!(refused.to_string().contains("choose another key"), "{refused}");
    Ok(())
}

// R3
#[tokio::test]
async fn lifecycle_matchers_filter_by_instance_stage_parent_run_and_exception() -> TestResult {
    let (tree, recorder) = (Emitter::new(), Recorder::new());
    let inner = Arc::new(double(&tree, "inner"));
    let nested = Arc::clone(&inner);
    let outer = below(&tree, "outer", move |n: u32, _: RunContext| {
        let inner = Arc::clone(&nested);
        async move { inner.run(n).await }
    });
    tree.observe(lifecycle_of(&*inner), recorder.sees("of inner"))?;
    tree.observe(lifecycle_of(&outer).only([Stage::Start, Stage::Finish]), recorder.sees("only two of outer"))?;
    tree.observe(lifecycle().only([Stage::Start]).except(&*inner), recorder.sees("all but inner"))?;
    let inside = recorder.sees("in this run");
    let inside = Arc::new(inside);
    let bind = {
        let (tree, inside) = (tree.clone(), Arc::clone(&inside));
        move |ctx: &RunContext| {
            let inside = Arc::clone(&inside);
            tree.observe(lifecycle().parent_run(ctx.run_id()), move |event: &Any, meta| inside(event, meta))?;
            Ok(())
        }
    };
    outer.run(1).middleware(bind).await?;
    inner.run(1).await?;
    recorder.expect([
        "only two of outer outer.run.start",
        "all but inner outer.run.start",
        "of inner inner.run.start",
        "in this run inner.run.start",
        "of inner inner.run.success",
        "in this run inner.run.success",
        "of inner inner.run.finish",
        "in this run inner.run.finish",
        "only two of outer outer.run.finish",
        "of inner inner.run.start",
        "of inner inner.run.success",
        "of inner inner.run.finish",
    ]);
    Ok(())
}

// R3
#[tokio::test]
async fn lifecycle_of_distinguishes_instances_in_the_same_namespace() -> TestResult {
    let (tree, recorder) = (Emitter::new(), Recorder::new());
    let [one, two] = [(); 2].map(|()| double(&tree, "double"));
    tree.observe(lifecycle_of(&one).only([Stage::Start]), recorder.sees("one"))?;
    two.run(1).await?;
    recorder.expect([]);
    one.run(1).await?;
    recorder.expect(["one double.run.start"]);
    Ok(())
}

// R3
#[tokio::test]
async fn lifecycle_of_a_runs_instance_does_not_match_nested_runs_by_default() -> TestResult {
    struct Countdown(Emitter, Recorder);
    impl Runnable for Countdown {
        type Input = u32;
        type Output = ();
        fn emitter(&self) -> &Emitter {
            &self.0
        }
        async fn execute(&self, n: &u32, ctx: &RunContext) -> Result<()> {
            if ctx.depth() == 0 {
                let only = lifecycle_of(ctx).only([Stage::Start, Stage::Finish]);
                let nested = lifecycle_of(&ctx.instance()).only([Stage::Finish]);
                ctx.emitter().observe(only, self.1.sees("own"))?;
                ctx.emitter().with(Options::new().nested(true)).observe(nested, self.1.sees("nested too"))?;
            }
            if *n == 0 { Ok(()) } else { self.run(n - 1).await }
        }
    }
    let recorder = Recorder::new();
    Countdown(Emitter::new().child("count")?, recorder.clone()).run(1).await?;
    recorder.expect(["nested too count.run.finish", "own count.run.finish", "nested too count.run.finish"]);
    Ok(())
}

// R3
#[tokio::test]
async fn typed_helpers_of_an_instance_receive_the_events_of_its_runs() -> TestResult {
    let (tree, recorder) = (Emitter::new(), Recorder::new());
    let double = double(&tree, "double");
    let [a, b, c, d] = [(); 4].map(|()| recorder.clone());
    double.on_start(move |start, _| a.note(format!("start {}", start.input)))?;
    double.on_success(move |success, _| b.note(format!("success {}", success.output)))?;
    double.on_error(move |failure, _| c.note(format!("error {}", failure.error())))?;
    double.on_finish(move |finish, _| d.note(format!("finish {:?}", finish.outcome().status())))?;
    double.run(2).await?;
    assert!(double.run(0).await.is_err());
    recorder.expect(["start 2", "success 4", "finish Success", "start 0", "error nothing to double", "finish Failed"]);
    Ok(())
}

// R3
#[tokio::test]
async fn typed_helpers_of_an_instance_made_inside_a_run_receive_the_events_of_its_runs() -> TestResult {
    let (tree, recorder) = (Emitter::new(), Recorder::new());
    let notes = recorder.clone();
    let outer = below(&tree, "outer", move |(), ctx: RunContext| {
        let notes = notes.clone();
        async move {
            let inner = double(ctx.emitter(), "inner");
            inner.on_start(move |start, _| notes.note(format!("start {}", start.input)))?;
            inner.run(3).await
        }
    });
    outer.run(()).await?;
    recorder.expect(["start 3"]);
    Ok(())
}

// R3
#[tokio::test]
async fn typed_helpers_of_a_run_receive_its_events_and_no_events_of_runs_below() -> TestResult {
    let (tree, recorder) = (Emitter::new(), Recorder::new());
    let inner = Arc::new(double(&tree, "inner"));
    let outer = below(&tree, "outer", move |n: u32, _: RunContext| {
        let inner = Arc::clone(&inner);
        async move { inner.run(n).await }
    });
    let listened = |n| {
        let [a, b, c, d] = [(); 4].map(|()| recorder.clone());
        outer
            .run(n)
            .on_start(move |start, _| a.note(format!("start {}", start.input)))
            .on_success(move |success, _| b.note(format!("success {}", success.output)))
            .on_error(move |failure, _| c.note(format!("error {}", failure.error())))
            .on_finish(move |finish, _| d.note(format!("finish {:?}", finish.outcome().status())))
    };
    listened(2).await?;
    assert!(listened(0).await.is_err());
    recorder.expect(["start 2", "success 4", "finish Success", "start 0", "error nothing to double", "finish Failed"]);
    Ok(())
}

// R3
#[tokio::test]
async fn the_plain_name_start_matches_a_components_own_event_and_not_the_runs_start() -> TestResult {
    #[derive(serde::Serialize)]
    struct Engine;
    impl Event for Engine {
        const NAME: EventName = EventName::new("start");
    }
    let (tree, recorder) = (Emitter::new(), Recorder::new());
    let car =
        below(&tree, "car", |(), ctx: RunContext| async move { Ok(ctx.emitter().emit_event(&mut Engine).await?) });
    emitter_of(&car).on_event({
        let heard = recorder.clone();
        move |_: &mut Engine, meta| heard.note(format!("instance {}", meta.path()))
    })?;
    let heard = recorder.clone();
    car.run(()).on("start", move |_: &mut Any, meta| heard.note(format!("run {}", meta.path()))).await?;
    recorder.expect(["run car.start", "instance car.start"]);
    Ok(())
}

// R3
#[tokio::test]
async fn a_stage_matches_its_lifecycle_event_of_any_run() -> TestResult {
    let (tree, recorder) = (Emitter::new(), Recorder::new());
    let [a, b] = ["a", "b"].map(|name| double(&tree, name));
    tree.on(Stage::Start, |start: &mut Start<u32, u32>, _| start.input += 1)?;
    tree.on(Stage::Success, |success: &mut Success<u32, u32>, _| success.output += 1)?;
    let [errors, finishes] = [(); 2].map(|()| recorder.clone());
    tree.observe(Stage::Error, move |_: &Failure, meta| errors.note(meta.path()))?;
    tree.observe(Stage::Finish, move |finish: &Finish<u32, u32>, meta| {
        finishes.note(format!("{} {} {:?}", meta.path(), finish.input(), finish.outcome().status()));
    })?;
    assert_eq!((a.run(1).await?, b.run(2).await?), (5, 7));
    a.run(1)
        .on_start(|start, _| start.input = 0)
        .on("a.run.start", |start: &mut Start<u32, u32>, _| start.input = 0)
        .await?;
    b.run(2).on_start(|_, _| Err("not today".into())).await.expect_err("a listener refuses it");
    recorder.expect([
        "a.run.finish 2 Success",
        "b.run.finish 3 Success",
        "a.run.finish 1 Success",
        "b.run.error",
        "b.run.finish 2 Failed",
    ]);
    Ok(())
}

// R3
#[tokio::test]
async fn stage_of_record_returns_the_stage_of_a_recorded_lifecycle_event() -> TestResult {
    let (tree, recorder) = (Emitter::new(), Recorder::new());
    let notes = recorder.clone();
    tree.observe("*.*", move |event: &Any, meta| {
        let text = serde_json::to_string(&meta.to_record(event)).expect("serialisable");
        let record = serde_json::from_str(&text).expect("it was written by us");
        notes.note(format!("{:?}", Stage::of_record(&record).map(Stage::as_str)));
    })?;
    double(&tree, "double").run(1).await?;
    tree.emit("start", &mut ()).await?;
    recorder.expect([r#"Some("start")"#, r#"Some("success")"#, r#"Some("finish")"#, "None"]);
    Ok(())
}

// R3
#[tokio::test]
async fn finish_contains_the_input_the_outcome_and_a_duration_by_tokios_clock() -> TestResult {
    let (tree, recorder) = (Emitter::new(), Recorder::new());
    tokio::time::pause();
    let slow = below(&tree, "slow", |n: u32, _: RunContext| async move {
        tokio::time::advance(std::time::Duration::from_millis(250)).await;
        Ok(n)
    });
    let notes = recorder.clone();
    tree.observe(Stage::Finish, move |event: &Any, meta| {
        let Some(LifecycleRef::Finish(finish)) = LifecycleRef::of(event, meta) else { panic!("not a finish") };
        assert_eq!((finish.input_json(), finish.status()), (json!(7), Status::Success));
        assert_eq!(finish.outcome_json(), json!({"status": "success", "output": 7}));
        notes.note(format!("{:?} {}", finish.duration(), event.to_json()["duration_ns"]));
    })?;
    slow.run(7).await?;
    recorder.expect(["250ms 250000000"]);
    Ok(())
}

// E9: equal matchers
#[tokio::test]
async fn off_matching_removes_listeners_that_were_registered_with_the_same_stage() -> TestResult {
    let tree = Emitter::new();
    tree.observe(Stage::Start, |_: &Any, _| ())?;
    assert_eq!(tree.off_matching(Stage::Finish)?, 0);
    assert_eq!(tree.off_matching(Stage::Start)?, 1);
    Ok(())
}

// E20
#[tokio::test]
async fn a_lifecycle_event_cannot_be_consumed() -> TestResult {
    let tree = Emitter::new();
    let chat = double(&tree, "chat");
    for (event, starts) in [("start", 0), ("success", 1), ("finish", 1)] {
        let recorder = Recorder::new();
        let notes = recorder.clone();
        let path = format!("chat.run.{event}");
        let run = chat.run(1).on(path, |_: &mut Any, meta: &EventMeta<'_>| Ok(meta.consume()?));
        let result = run.on("chat.run.start", move |_: &mut Any, _| notes.note("later")).await;
        assert_eq!(result.is_err(), event != "finish", "{event}");
        if let Err(error) = result {
            let error = error.explain();
            assert!(error.contains(&format!("`chat.run.{event}` cannot be consumed")), "{error}");
        }
        recorder.expect(vec!["later"; starts]);
    }
    Ok(())
}

// E20
#[tokio::test]
async fn the_listeners_that_middlewares_have_bound_receive_consumed_events() -> TestResult {
    let (tree, recorder) = (Emitter::new(), Recorder::new());
    let emits = below(&tree, "chat", |_: u32, ctx: RunContext| async move {
        ctx.emitter().emit("said", &mut 1_u32).await?;
        Ok(1_u32)
    });
    let (by_middleware, inherited, by_user) = (recorder.clone(), recorder.clone(), recorder.clone());
    let binds = move |ctx: &RunContext| -> Result<()> {
        let notes = by_middleware.clone();
        ctx.emitter().on("said", move |_: &mut u32, _| notes.note("bound"))?;
        Ok(())
    };
    let inherits = move |ctx: &RunContext| -> Result<()> {
        let notes = inherited.clone();
        ctx.emitter().on("**.said", move |_: &mut u32, _| notes.note("inherited"))?;
        Ok(())
    };
    let emits = Arc::new(emits);
    let outer = below(&tree, "outer", move |n: u32, _: RunContext| {
        let (emits, binds, notes) = (Arc::clone(&emits), binds.clone(), by_user.clone());
        async move {
            let run = emits.run(n).on("said", |_: &mut u32, meta: &EventMeta<'_>| Ok(meta.consume()?));
            run.middleware(binds).on("said", move |_: &mut u32, _| notes.note("by a user")).await
        }
    });
    outer.run(1).middleware(emitree_runtime::for_tree(inherits)).await?;
    recorder.expect(["inherited", "bound", "inherited"]);
    Ok(())
}
