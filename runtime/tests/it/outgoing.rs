//! R7, R9, R10: the error of a run and the values of its context pass through functions before they leave the run.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use crate::support::{Any, TestResult, below, poll_once, silence_planned_panics};
use emitree_emitter::{BoxError, Emitter, EventMeta};
use emitree_runtime::{
    AbortHandle, Error, ErrorKind, Interrupt, JsonRun, Middleware, Next, Result, RunContext, Runnable, Stack, Stage,
    layer_fn, middleware_fn,
};
use serde_json::{Value, json};

const SECRET: &str = "planned secret";

fn hidden(error: &Error) -> Error {
    Error::new(error.explain().replace(SECRET, "***"))
}

/// Work that ends as the input requires.
async fn end(how: String, ctx: RunContext) -> Result<()> {
    match &*how {
        "fails" => Err(Error::new(SECRET)),
        "panics" => panic!("{SECRET}"),
        "interrupts" => Err(Error::interrupted(Interrupt::new(SECRET, 7))),
        "asks again" => Err(Error::retry_with(SECRET, 7)),
        "aborts" => {
            ctx.abort(SECRET);
            std::future::pending().await
        }
        "waits" => std::future::pending().await,
        _ => Ok(()),
    }
}

/// Returns a middleware that makes the run fail as `how` says, or a middleware that does nothing if the work handles
/// `how`.
fn besides(how: &str) -> Arc<dyn Middleware> {
    let fails_at = |stage: Stage| {
        middleware_fn(move |ctx: &RunContext| {
            ctx.emitter().on(stage, |_: &mut Any, _: &EventMeta<'_>| Err::<(), _>(SECRET.into()))?;
            Ok(())
        })
    };
    match how {
        "start fails" => Arc::new(fails_at(Stage::Start)),
        "success fails" => Arc::new(fails_at(Stage::Success)),
        "binding fails" => Arc::new(middleware_fn(|_: &RunContext| Err(Error::new(SECRET)))),
        "a layer denies" => {
            let denies = layer_fn("denies", |_: &Value, _: &RunContext, _: Next<'_, JsonRun>| {
                Box::pin(async { Err(Error::denied("the house", SECRET)) })
            });
            Arc::new(Stack::<JsonRun>::builder().layer(denies).build())
        }
        _ => Arc::new(middleware_fn(|_: &RunContext| Ok(()))),
    }
}

// R7, R10: however the run fails, its listeners and its caller receive the rewritten error, and the error's kind stays
// the same.
#[tokio::test(start_paused = true)]
async fn map_error_rewrites_every_error_of_a_run_before_any_listener_receives_the_error() -> TestResult {
    silence_planned_panics();
    let denied = ErrorKind::Denied { by: "the house".into() };
    let rows = [
        ("fails", ErrorKind::Failed, 3),
        ("panics", ErrorKind::Panicked, 3),
        ("interrupts", ErrorKind::Interrupted, 3),
        ("asks again", ErrorKind::Retry, 3),
        ("aborts", ErrorKind::Aborted, 3),
        ("start fails", ErrorKind::Failed, 3),
        ("success fails", ErrorKind::Failed, 3),
        ("binding fails", ErrorKind::Failed, 0),
        ("a layer denies", denied, 3),
        ("waits", ErrorKind::Aborted, 3),
        ("is aborted before", ErrorKind::Aborted, 3),
    ];
    for (how, kind, events) in rows {
        let (tree, seen) = (Emitter::new(), Arc::new(Mutex::new(Vec::new())));
        let sees = Arc::clone(&seen);
        let see = move |event: &Any, _: &EventMeta<'_>| sees.lock().expect("no panic").push(event.to_json());
        tree.observe("*.*", see)?;
        let work = below(&tree, "work", end);
        let handle = AbortHandle::new();
        let run = work.run(how.to_owned()).abort_on(&handle);
        let run = run.middleware(|ctx: &RunContext| {
            ctx.map_error(|error| hidden(&error));
            Ok(())
        });
        let mut run = run.middleware(besides(how));
        if how == "is aborted before" {
            handle.abort(SECRET);
        }
        if how == "waits" {
            assert!(poll_once(&mut run).is_pending());
            handle.abort(SECRET);
        }
        let error = run.await.expect_err(how);
        assert_eq!(error.kind(), &kind, "{how}");
        assert!(error.explain().contains("***") && !error.explain().contains(SECRET), "{how}: {error:?}");
        // The data of control flow is kept, because callers need it.
        assert_eq!(error.interrupt().map(|interrupt| &interrupt.data), (how == "interrupts").then_some(&json!(7)));
        assert_eq!(error.retry_request().map(|retry| retry.metadata), (how == "asks again").then_some(json!(7)));
        let seen = seen.lock().expect("no panic").clone();
        assert_eq!(seen.len(), events, "{how}: {seen:?}");
        if error.interrupt().is_none() && error.retry_request().is_none() {
            seen.iter().for_each(|event| assert!(!event.to_string().contains(SECRET), "{how}: {event}"));
        }
    }
    Ok(())
}

// R13: the run above ends the child; a later poll of the child returns the same rewritten error.
#[tokio::test]
async fn map_error_rewrites_the_error_of_a_run_that_its_parent_has_ended() -> TestResult {
    let tree = Emitter::new();
    let child = Arc::new(below(&tree, "work", end));
    let held = Arc::new(Mutex::new(None));
    let holds = Arc::clone(&held);
    let parent = below(&tree, "parent", move |(): (), _: RunContext| {
        let run = child.run_shared("waits".to_owned()).middleware(|ctx: &RunContext| {
            ctx.map_error(|_| Error::new("other words"));
            Ok(())
        });
        let mut run = Box::pin(run);
        assert!(poll_once(&mut run).is_pending());
        *holds.lock().expect("no panic") = Some(run);
        async { Ok(()) }
    });
    parent.run(()).await?;
    let run = held.lock().expect("no panic").take().expect("it was left");
    let error = run.await.unwrap_err();
    assert_eq!((error.kind(), error.explain().as_str()), (&ErrorKind::Aborted, "aborted: other words"));
    Ok(())
}

// M5
#[tokio::test(start_paused = true)]
async fn a_panicking_map_error_hides_the_error_and_a_panicking_map_context_hides_the_value() -> TestResult {
    silence_planned_panics();
    let work = below(&Emitter::new(), "work", end);
    let run = work.run("fails".to_owned()).timeout(Duration::from_secs(1)).middleware(|ctx: &RunContext| {
        ctx.map_error(|error| error.message("first").detail("kept", 1));
        ctx.map_error(|_| panic!("planned panic"));
        ctx.map_error(|error| error.detail("last", 2));
        ctx.map_context(|_, _| panic!("planned panic"));
        ctx.set("key", SECRET)?;
        assert_eq!(ctx.get("key"), Some(Value::Null));
        Ok(())
    });
    let error = run.await.unwrap_err();
    assert_eq!(
        error.explain(),
        "the error was withheld, because a `map_error` function panicked: planned panic\n  last: 2"
    );
    Ok(())
}

// R9
#[tokio::test]
async fn map_context_rewrites_every_value_that_is_set_on_the_run_or_its_emitter() -> TestResult {
    let tree = Emitter::new();
    let seen = Arc::new(Mutex::new(Vec::new()));
    let sees = Arc::clone(&seen);
    tree.observe("*.*", move |_: &Any, meta: &EventMeta<'_>| {
        let context = serde_json::to_value(meta.context()).expect("JSON");
        sees.lock().expect("no panic").push((meta.path().to_owned(), context));
    })?;
    let child = Arc::new(below(&tree, "child", |(): (), ctx: RunContext| async move {
        ctx.set("own", SECRET)?;
        Ok(())
    }));
    let work = below(&tree, "work", move |(): (), ctx: RunContext| {
        let child = Arc::clone(&child);
        async move {
            ctx.set("by_run", SECRET)?;
            ctx.emitter().set_context("by_emitter", SECRET)?;
            ctx.emitter().emit("own", &mut 1).await?;
            child.run(()).await
        }
    });
    let run = work.run(()).context(json!({"before": SECRET})).middleware(|ctx: &RunContext| {
        ctx.map_context(|key, value| json!(format!("{key}: {}", value.as_str().unwrap_or_default().len())));
        ctx.emitter().on(Stage::Success, |_: &mut Any, _: &EventMeta<'_>| {
            Ok::<_, BoxError>(RunContext::current().expect("inside").set("late", SECRET)?)
        })?;
        Ok(())
    });
    run.await?;
    let seen = seen.lock().expect("no panic").clone();
    let of = |path: &str| seen.iter().find(|(seen, _)| seen == path).map(|(_, context)| context.clone());
    let set = json!({"before": SECRET, "by_run": "by_run: 14", "by_emitter": "by_emitter: 14"});
    assert_eq!(of("work.own"), Some(set.clone()));
    // A value that the run below sets is not rewritten.
    let mut below = set.clone();
    below["internal"] = true.into();
    assert_eq!(of("child.run.start"), Some(below.clone()));
    below["own"] = SECRET.into();
    assert_eq!(of("child.run.finish"), Some(below));
    assert_eq!(of("work.run.finish").map(|context| context["late"].clone()), Some("late: 14".into()));
    Ok(())
}
