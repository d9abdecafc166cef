//! If a run fails or times out, the alternatives are tried in order, and an event names the alternative that answers.
//! By default, other control flow is not caught.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use crate::support::{Any, Failing, TestResult, instance};
use emitree_emitter::{Emitter, EventMeta};
use emitree_middleware::fallback::{Exhausted, FallbackError, FellBack};
use emitree_middleware::{CircuitBreaker, Fallback, Retry};
use emitree_runtime::{AnyRunnable, Error, ErrorKind, Interrupt, RunContext, Runnable, Stage, StreamItem, for_tree};
use futures_util::{FutureExt, StreamExt};
use serde_json::{Value, json};

/// Returns a tool that answers with its name and the input.
fn answers(root: &Emitter, name: &'static str) -> impl Runnable<Input = u32, Output = String> + use<> {
    instance(root, "Tool", name, move |n: u32, _: RunContext| async move { Ok(format!("{name} {n}")) })
}

/// Returns a tool that fails with an error.
fn fails(root: &Emitter, name: &'static str, error: &Error) -> impl Runnable<Input = u32, Output = String> + use<> {
    let error = error.clone();
    instance(root, "Tool", name, move |_: u32, _: RunContext| {
        let error = error.clone();
        async move { Err::<String, _>(error) }
    })
}

fn broken() -> Error {
    Error::new("broken")
}

/// The recorded `answered` events, as JSON.
#[derive(Clone, Default)]
struct Said(Arc<Mutex<Vec<Value>>>);

impl Said {
    fn answered(&self) -> impl Fn(&mut FellBack, &EventMeta<'_>) + Send + Sync + use<> {
        let all = Arc::clone(&self.0);
        move |event, _| all.lock().expect("nobody panics").push(json!(event))
    }

    fn exhausted(&self) -> impl Fn(&mut Exhausted, &EventMeta<'_>) + Send + Sync + use<> {
        let all = Arc::clone(&self.0);
        move |event, _| all.lock().expect("nobody panics").push(json!(event))
    }

    fn take(&self) -> Vec<Value> {
        std::mem::take(&mut *self.0.lock().expect("nobody panics"))
    }
}

const ANSWERED: &str = "middleware.fallback.answered";

// R7
#[tokio::test]
async fn no_alternative_begins_if_the_work_fails_after_an_abort() -> TestResult {
    let root = Emitter::new();
    let begun = Arc::new(Mutex::new(0));
    let count = Arc::clone(&begun);
    root.observe(Stage::Start, move |_: &Any, _| *count.lock().expect("nobody panics") += 1)?;
    let work = instance(&root, "Tool", "aborts", |_: u32, ctx: RunContext| async move {
        ctx.abort("enough");
        Err::<String, _>(broken())
    });
    let run = work.run(1).middleware(Fallback::to(answers(&root, "second")));
    assert!(run.await.expect_err("it is aborted").is_aborted());
    assert_eq!(*begun.lock().expect("nobody panics"), 1);
    Ok(())
}

#[tokio::test]
async fn the_first_alternative_that_succeeds_answers_and_an_event_names_it() -> TestResult {
    let (root, said) = (Emitter::new(), Said::default());
    let first = fails(&root, "first", &broken());
    let fallback = Fallback::to(fails(&root, "second", &Error::timed_out("late")))
        .or(answers(&root, "third"))
        .or(answers(&root, "fourth"));
    assert_eq!(first.run(7).middleware(fallback).on(ANSWERED, said.answered()).await?, "third 7");
    let after = json!([
        {"by": "first", "cause": "broken", "kind": "failed"},
        {"by": "second", "cause": "late", "kind": "timed_out"},
    ]);
    assert_eq!(said.take(), [json!({"by": "third", "after": after})]);
    Ok(())
}

#[tokio::test]
async fn a_successful_run_keeps_its_output_and_no_fallback_event_is_emitted() -> TestResult {
    let (root, said) = (Emitter::new(), Said::default());
    let run = answers(&root, "first");
    let run = run.run(7).middleware(Fallback::to(answers(&root, "second"))).on(ANSWERED, said.answered());
    assert_eq!(run.await?, "first 7");
    assert_eq!(said.take(), [json!(null); 0]);
    Ok(())
}

#[tokio::test]
async fn if_all_alternatives_fail_the_run_returns_the_last_error_with_the_earlier_causes() -> TestResult {
    let (root, said) = (Emitter::new(), Said::default());
    let (first, last) = (fails(&root, "first", &broken()), Error::new("empty").retryable(true).detail("shelf", 3));
    let fallback = Fallback::to(fails(&root, "second", &Error::new("gone"))).or(fails(&root, "third", &last));
    fallback.emitter().on("exhausted", said.exhausted())?;
    let error = first.run(7).middleware(fallback).await.expect_err("all fail");
    assert_eq!((error.to_string(), error.is_retryable()), ("empty".to_owned(), true));
    let cause = |by: &str, cause: &str| json!({"by": by, "cause": cause, "kind": "failed"});
    let before = [cause("first", "broken"), cause("second", "gone")];
    assert_eq!((&error.details()["shelf"], &error.details()["after"]), (&json!(3), &json!(before)));
    let [first, second] = before;
    assert_eq!(said.take(), [json!({"after": [first, second, cause("third", "empty")]})]);
    Ok(())
}

#[tokio::test]
async fn a_fallback_catches_failures_panics_and_timeouts_by_default_and_nothing_else() {
    let rows = [
        (broken(), true),
        (Error::timed_out("late"), true),
        (Error::denied("desk", "no"), false),
        (Error::halted("desk", "stop"), false),
        (Error::aborted("gone"), false),
        (Error::interrupted(Interrupt::new("question", 1)), false),
        (Error::retry("again"), false),
    ];
    let root = Emitter::new();
    for (error, answered) in rows {
        // The error of the run itself, and the error of an alternative.
        let itself = fails(&root, "first", &error);
        let itself = itself.run(1).middleware(Fallback::to(answers(&root, "second"))).await;
        let other = fails(&root, "first", &broken());
        let other =
            other.run(1).middleware(Fallback::to(fails(&root, "second", &error)).or(answers(&root, "third"))).await;
        for result in [itself, other] {
            let ended = result.map_err(|error| error.kind().clone()).err();
            assert_eq!(ended.as_ref(), (!answered).then_some(error.kind()), "{error}");
        }
    }
    let panics = instance(&root, "Tool", "panics", |n: u32, _: RunContext| async move {
        assert!(n > 1, "a planned panic");
        Ok(String::new())
    });
    let panics = panics.run(1).middleware(Fallback::to(answers(&root, "second"))).await;
    assert_eq!(panics.expect("answered"), "second 1");
}

#[tokio::test]
async fn on_selects_the_error_kinds_and_a_denial_is_caught_only_by_its_name() -> TestResult {
    let root = Emitter::new();
    let denied = |by: &str| ErrorKind::Denied { by: by.to_owned() };
    let rows = [
        (vec![ErrorKind::TimedOut], broken(), false),
        (vec![ErrorKind::TimedOut], Error::timed_out("late"), true),
        (vec![denied("desk")], Error::denied("desk", "no"), true),
        (vec![denied("desk")], Error::denied("policy", "no"), false),
    ];
    for (on, error, answered) in rows {
        let fallback = Fallback::to(answers(&root, "second")).on(on)?;
        let result = fails(&root, "first", &error).run(1).middleware(fallback).await;
        assert_eq!(
            result.map_err(|error| error.kind().clone()).ok(),
            answered.then(|| "second 1".to_owned()),
            "{error}"
        );
    }
    Ok(())
}

#[tokio::test(start_paused = true)]
async fn a_fallback_answers_for_an_open_circuit_breaker_that_on_names() -> TestResult {
    let root = Emitter::new();
    let by_breaker = ErrorKind::Denied { by: "circuit_breaker".to_owned() };
    let fallback = Fallback::to(answers(&root, "second")).on([ErrorKind::Failed, by_breaker])?;
    let (first, breaker) = (fails(&root, "first", &broken()), CircuitBreaker::builder().failures(1).build()?);
    let said = Said::default();
    for kind in ["failed", "denied"] {
        let run = first.run(1).middleware(fallback.clone()).middleware(breaker.clone()).on(ANSWERED, said.answered());
        assert_eq!(run.await?, "second 1");
        let cause = said.take()[0]["after"][0]["kind"].clone();
        assert!(cause == kind || cause[kind]["by"] == "circuit_breaker", "{cause}");
    }
    Ok(())
}

#[tokio::test]
async fn a_fallback_to_any_runnable_answers_runs_of_any_type() -> TestResult {
    let root = Emitter::new();
    let any: Arc<dyn AnyRunnable> = Arc::new(fails(&root, "second", &broken()));
    let last: Arc<dyn AnyRunnable> = Arc::new(instance(
        &root,
        "Tool",
        "third",
        |input: Value, _: RunContext| async move { Ok(json!({"got": input})) },
    ));
    let fallback = Fallback::any(any).or_any(last);
    let number = instance(&root, "Tool", "number", |_: u32, _: RunContext| async { Err::<Value, _>(broken()) });
    assert_eq!(number.run(3).middleware(fallback.clone()).await?, json!({"got": 3}));
    let text = instance(&root, "Tool", "text", |_: String, _: RunContext| async { Err::<u32, _>(broken()) });
    let error = text.run("x".to_owned()).middleware(fallback).await.expect_err("an object is no number");
    // The second alternative accepts only numbers.
    assert_eq!(error.kind(), &ErrorKind::Invalid);
    assert!(error.to_string().starts_with(r#"the input `"x"` does not fit `u32`"#), "{error}");
    Ok(())
}

#[tokio::test]
async fn a_fallback_of_other_types_fails_the_run_with_an_error_that_names_both_types() {
    let root = Emitter::new();
    let other = instance(&root, "Tool", "other", |(): (), _: RunContext| async { Ok(true) });
    let error = other.run(()).middleware(Fallback::to(answers(&root, "second"))).await.expect_err("other types");
    assert_eq!(error.kind(), &ErrorKind::Invalid);
    assert!(error.to_string().contains("from `u32` to `alloc::string::String`"), "{error}");
    assert!(error.to_string().contains("from `()` to `bool`"), "{error}");
}

#[tokio::test]
async fn an_alternative_runs_as_a_child_of_the_failed_run() -> TestResult {
    let root = Emitter::new();
    let parents = Arc::new(Mutex::new(Vec::new()));
    let heard = Arc::clone(&parents);
    let first = fails(&root, "first", &broken());
    let second = answers(&root, "second");
    second.emitter().on(Stage::Start, move |_: &mut Any, meta: &EventMeta<'_>| {
        let trace = meta.trace().expect("it is of a run");
        heard.lock().expect("nobody panics").push((trace.parent_run_id, RunContext::current().map(|run| run.depth())));
    })?;
    let own = Arc::new(Mutex::new(None));
    let keep = Arc::clone(&own);
    let run = first.run(1).middleware(Fallback::to(second)).middleware(move |ctx: &RunContext| {
        *keep.lock().expect("nobody panics") = Some(ctx.run_id());
        Ok(())
    });
    run.await?;
    assert_eq!(*parents.lock().expect("nobody panics"), [(*own.lock().expect("nobody panics"), Some(1))]);
    Ok(())
}

#[tokio::test(start_paused = true)]
async fn a_fallback_outside_a_retry_answers_after_the_last_attempt_and_inside_in_the_first() -> TestResult {
    let root = Emitter::new();
    let calls = Arc::new(Mutex::new(0));
    let counted = Arc::clone(&calls);
    let first = instance(&root, "Tool", "first", move |_: u32, _: RunContext| {
        *counted.lock().expect("nobody panics") += 1;
        async { Err::<String, _>(broken().retryable(true)) }
    });
    let fallback = || Fallback::to(answers(&root, "second"));
    let take = || std::mem::take(&mut *calls.lock().expect("nobody panics"));
    assert_eq!(first.run(1).middleware(fallback()).middleware(Retry::new()).await?, "second 1");
    assert_eq!(take(), 3);
    assert_eq!(first.run(1).middleware(Retry::new()).middleware(fallback()).await?, "second 1");
    assert_eq!(take(), 1);
    Ok(())
}

// M7
#[tokio::test]
async fn events_streamed_before_the_failure_are_marked_as_discarded() -> TestResult {
    let root = Emitter::new();
    let tell = |name: &'static str, is_broken: bool| {
        instance(&root, "Tool", name, move |n: u32, ctx: RunContext| async move {
            ctx.emitter().emit("token", &mut { n }).await?;
            if is_broken { Err(broken()) } else { Ok(name.to_owned()) }
        })
    };
    let first = tell("first", true);
    let run = || first.run(1).middleware(Fallback::to(tell("second", false)));
    let line = |item: StreamItem<String>| match item {
        StreamItem::Event(event) => Some(event.path.to_string()),
        _ => None,
    };
    let shown: Vec<_> = run().into_stream().filter_map(|item| async move { line(item) }).collect().await;
    let told: Vec<_> = shown.iter().map(String::as_str).filter(|path| !path.contains(".run.")).collect();
    let discarded = "tool.first.attempt_discarded";
    assert_eq!(told, ["tool.first.token", discarded, "tool.second.token", ANSWERED]);
    let held: Vec<_> = run().into_stream().held(true).filter_map(|item| async move { line(item) }).collect().await;
    let told: Vec<_> = held.iter().map(String::as_str).filter(|path| !path.contains(".run.")).collect();
    assert_eq!(told, [discarded, "tool.second.token", ANSWERED]);
    Ok(())
}

#[tokio::test]
async fn for_tree_applies_a_fallback_to_runs_below_except_in_its_alternatives() -> TestResult {
    let root = Emitter::new();
    let inner = Arc::new(fails(&root, "inner", &broken()));
    // The alternative runs the failing runnable, and then fails itself.
    let below = Arc::clone(&inner);
    let last = instance(&root, "Tool", "last", move |n: u32, _: RunContext| {
        let below = Arc::clone(&below);
        async move { below.run(n).await }
    });
    let outer = instance(&root, "Assistant", "Desk", move |n: u32, _: RunContext| {
        let inner = Arc::clone(&inner);
        async move { inner.run(n).await.map_err(|error| Error::denied("desk", error.to_string())) }
    });
    let said = Said::default();
    let fallback = Fallback::to(last);
    fallback.emitter().on("exhausted", said.exhausted())?;
    let error = outer.run(1).middleware(for_tree(fallback)).await.expect_err("all fail");
    assert!(error.is_denied(), "{error:?}");
    let cause = |by: &str| json!({"by": by, "cause": "broken", "kind": "failed"});
    assert_eq!(said.take(), [json!({"after": [cause("inner"), cause("last")]})]);
    Ok(())
}

#[tokio::test(start_paused = true)]
async fn dropping_the_run_drops_the_answering_alternative() {
    let root = Emitter::new();
    let waits = instance(&root, "Tool", "waits", |_: u32, _: RunContext| async {
        tokio::time::sleep(Duration::from_secs(9)).await;
        Ok(String::new())
    });
    let ended = Arc::new(Mutex::new(Vec::new()));
    let keep = Arc::clone(&ended);
    root.on(Stage::Finish, move |_: &mut Any, meta: &EventMeta<'_>| {
        keep.lock().expect("nobody panics").push(meta.path().to_owned());
    })
    .expect("a matcher");
    let first = fails(&root, "first", &broken());
    let mut run = Box::pin(first.run(1).middleware(Fallback::to(waits)));
    assert!((&mut run).now_or_never().is_none());
    drop(run);
    assert_eq!(*ended.lock().expect("nobody panics"), ["tool.waits.run.finish", "tool.first.run.finish"]);
}

#[tokio::test]
async fn a_fallback_is_shared_by_100_concurrent_runs() {
    let root = Emitter::new();
    let (first, fallback) = (fails(&root, "first", &broken()), Fallback::to(answers(&root, "second")));
    let runs = (0..100).map(|n| first.run(n).middleware(fallback.clone()));
    for (n, result) in futures_util::future::join_all(runs).await.into_iter().enumerate() {
        assert_eq!(result.expect("answered"), format!("second {n}"));
    }
}

#[tokio::test]
async fn events_of_a_fallback_reach_its_emitter_and_the_run_with_the_run_s_ids() -> TestResult {
    let root = Emitter::new();
    let (fallback, heard) = (Fallback::to(answers(&root, "second")), Arc::new(Mutex::new(Vec::new())));
    let note = |who: &'static str| {
        let heard = Arc::clone(&heard);
        move |event: &mut FellBack, meta: &EventMeta<'_>| {
            let run_id = meta.trace().map(|trace| trace.run_id);
            heard.lock().expect("nobody panics").push((who, run_id, event.by.clone()));
        }
    };
    fallback.emitter().on("answered", note("own"))?;
    let run_id = Arc::new(Mutex::new(None));
    let keep = Arc::clone(&run_id);
    let first = fails(&root, "first", &broken());
    let run = first.run(1).middleware(fallback).on(ANSWERED, note("run")).middleware(move |ctx: &RunContext| {
        *keep.lock().expect("nobody panics") = Some(ctx.run_id());
        Ok(())
    });
    run.await?;
    let run_id = *run_id.lock().expect("nobody panics");
    assert_eq!(*heard.lock().expect("nobody panics"), ["own", "run"].map(|who| (who, run_id, "second".to_owned())));
    Ok(())
}

// M5: observers fail open.
#[tokio::test]
async fn a_failing_listener_does_not_affect_a_fallback() -> TestResult {
    let root = Emitter::new();
    let (first, failing) = (fails(&root, "first", &broken()), Failing::default());
    let run = first.run(1).middleware(Fallback::to(answers(&root, "second")));
    assert_eq!(run.on(ANSWERED, failing.listener::<FellBack>()).await?, "second 1");
    assert_eq!(failing.calls(), 1);
    Ok(())
}

#[test]
fn error_kinds_that_a_fallback_cannot_catch_are_errors_that_quote_the_kind() {
    let root = Emitter::new();
    let kinds = [
        ErrorKind::Halted { by: "desk".to_owned() },
        ErrorKind::Aborted,
        ErrorKind::Interrupted,
        ErrorKind::Dropped,
        ErrorKind::Retry,
    ];
    for kind in kinds {
        let error =
            Fallback::to(answers(&root, "second")).on([ErrorKind::Failed, kind.clone()]).expect_err("no failure");
        assert_eq!(error, FallbackError::Kind { kind: kind.clone() });
        assert!(error.to_string().starts_with(&format!("a fallback cannot catch `{kind:?}`: list ")), "{error}");
    }
    let error = Fallback::to(answers(&root, "second")).on([]).expect_err("it would never answer");
    assert_eq!(error, FallbackError::NoKinds);
}

#[test]
fn explain_lists_a_fallback_with_its_alternatives_and_kinds() {
    let root = Emitter::new();
    let first = answers(&root, "first");
    let fallback = Fallback::to(answers(&root, "second")).or(answers(&root, "third"));
    let lines = [
        "first",
        "  bound:",
        "    fallback: to second, then third, on Failed, Panicked, TimedOut",
        "  passes:",
        "    retry     fallback: to second, then third, on Failed, Panicked, TimedOut",
    ];
    assert_eq!(first.run(1).middleware(fallback).explain().to_string(), lines.join("\n"));
}
