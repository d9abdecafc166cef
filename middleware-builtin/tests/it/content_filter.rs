//! The content filter: unwanted content is denied, answered or marked. Content that cannot be checked is denied, unless
//! the filter only marks.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use crate::support::{Failing, TestResult, instance};
use emitree_emitter::{Emitter, Event, EventMeta};
use emitree_middleware::content_filter::{FilterError, Filtered, MARK};
use emitree_middleware::{ContentFilter, Fallback};
use emitree_runtime::{Error, Middleware, RunContext, Runnable, Summary, WouldDeny, for_tree};
use serde_json::{Value, json};

fn echo(root: &Emitter) -> impl Runnable<Input = Value, Output = Value> + 'static {
    instance(root, "Tool", "echo", |value: Value, _: RunContext| async move { Ok(value) })
}

fn rude() -> ContentFilter {
    ContentFilter::new().words("rude", ["darn", "so what?"]).expect("words")
}

#[tokio::test]
async fn words_match_as_whole_words_in_any_case() -> TestResult {
    let rows = [
        (json!("Darn it"), false),
        (json!({"a": [1, "oh DARN!"]}), false),
        (json!("so what?"), false),
        (json!("darning socks"), true),
        (json!({"darn": 1}), true),
        (json!("só what?"), true),
    ];
    let echo = echo(&Emitter::new());
    for (value, passes) in rows {
        assert_eq!(echo.run(value.clone()).middleware(rude()).await.is_ok(), passes, "{value}");
    }
    Ok(())
}

#[tokio::test]
async fn inputs_and_outputs_with_filtered_words_are_denied_by_default_with_the_label() {
    let root = Emitter::new();
    let reached = Arc::new(Mutex::new(0));
    let count = Arc::clone(&reached);
    let work = instance(&root, "Tool", "work", move |value: Value, _: RunContext| {
        *count.lock().expect("nobody panics here") += 1;
        async move { Ok(if value == json!("go") { json!("darn") } else { value }) }
    });
    for (input, expected) in [("darn", 0), ("go", 1)] {
        let error = work.run(json!(input)).middleware(rude()).await.expect_err("it is denied");
        assert_eq!(error.explain(), "denied by content_filter: the content is not allowed\n  label: \"rude\"");
        assert_eq!(*reached.lock().expect("nobody panics here"), expected);
    }
}

#[tokio::test]
async fn a_content_filter_with_an_answer_returns_it_for_a_filtered_input_or_output() -> TestResult {
    let root = Emitter::new();
    let work = instance(&root, "Tool", "work", |_: Value, _: RunContext| async move { Ok(json!("oh darn")) });
    for filter in [rude().outputs(false), rude().inputs(false)] {
        let filter = filter.answer("no comment");
        assert_eq!(work.run(json!("darn")).middleware(filter).await?, json!("no comment"));
    }
    let number = instance(&root, "Tool", "number", |_: String, _: RunContext| async move { Ok(1_u32) });
    let error = number.run("darn".into()).middleware(rude().answer("text")).await.expect_err("no number");
    assert!(error.to_string().contains("does not fit"), "{error}");
    Ok(())
}

#[tokio::test]
async fn a_content_filter_that_marks_sets_marks_in_the_context_and_lets_the_run_pass() -> TestResult {
    let marks = Arc::new(Mutex::new(Value::Null));
    let seen = Arc::clone(&marks);
    let echo = echo(&Emitter::new());
    let run = echo.run(json!({"a": "darn"})).middleware(rude().mark()).on_finish(move |_, meta| {
        *seen.lock().expect("nobody panics here") = meta.context().get(MARK).cloned().unwrap_or_default();
    });
    assert_eq!(run.await?, json!({"a": "darn"}));
    let mark = |part| json!({"part": part, "at": "/a", "label": "rude"});
    assert_eq!(*marks.lock().expect("nobody panics here"), json!([mark("input"), mark("output")]));
    Ok(())
}

#[tokio::test]
async fn a_finding_is_appended_to_a_value_that_other_code_has_set() -> TestResult {
    let (root, marks) = (Emitter::new(), Arc::new(Mutex::new(Value::Null)));
    let (echo, seen) = (echo(&root), Arc::clone(&marks));
    let run = echo.run(json!("darn")).context(json!({MARK: "mine"})).middleware(rude().mark());
    run.on_finish(move |_, meta| {
        *seen.lock().expect("nobody panics here") = meta.context().get(MARK).cloned().unwrap_or_default();
    })
    .await?;
    let marks = marks.lock().expect("nobody panics here").clone();
    assert_eq!((&marks[0], &marks[1]["part"], &marks[2]["part"]), (&json!("mine"), &json!("input"), &json!("output")));
    Ok(())
}

#[tokio::test]
async fn the_event_of_a_finding_contains_its_place_and_label_but_not_the_text() -> TestResult {
    let said = Arc::new(Mutex::new(Vec::new()));
    let heard = Arc::clone(&said);
    let filter = ContentFilter::new().regex("number", "[0-9]{4}")?;
    let echo = echo(&Emitter::new());
    let run = echo.run(json!(["a", "b 1234"])).middleware(filter).observe(
        "middleware.content_filter.filtered",
        move |filtered: &Filtered, meta: &EventMeta<'_>| {
            assert!(meta.trace().is_some());
            heard.lock().expect("nobody panics here").push(serde_json::to_value(filtered).expect("JSON"));
        },
    );
    assert!(run.await.is_err());
    let expected = json!({"part": "input", "at": "/1", "label": "number", "action": "deny"});
    assert_eq!(*said.lock().expect("nobody panics here"), [expected]);
    Ok(())
}

// M5
#[tokio::test]
async fn a_failing_listener_does_not_affect_a_content_filter() -> TestResult {
    let (echo, denies, marks) = (echo(&Emitter::new()), rude(), rude().mark());
    let failing = Failing::default();
    for filter in [&denies, &marks] {
        filter.emitter().on("filtered", failing.listener::<Filtered>())?;
    }
    let error = echo.run(json!("darn")).middleware(denies).await.expect_err("it is denied");
    assert_eq!(error.explain(), "denied by content_filter: the content is not allowed\n  label: \"rude\"");
    assert_eq!(echo.run(json!("darn")).middleware(marks).await?, json!("darn"));
    assert_eq!(failing.calls(), 3, "input; input and output");
    Ok(())
}

#[tokio::test(start_paused = true)]
async fn a_classifier_that_fails_panics_or_takes_too_long_denies_the_run() {
    let failing = ContentFilter::new().classifier(|_| async { Err(Error::new("no answer")) });
    let panicking = ContentFilter::new().classifier(|_| async { panic!("oh") });
    let late = ContentFilter::new().classifier(|_| async { Err(Error::timed_out("gone to lunch")) });
    let slow = ContentFilter::new().classifier(|_| std::future::pending());
    let rows = [
        (failing, "no answer"),
        (panicking, "the guard panicked: oh"),
        (late, "gone to lunch"),
        (slow.clone(), "the guard took longer than 10s"),
        (slow.timeout(Duration::from_millis(5)), "the guard took longer than 5ms"),
    ];
    // A fallback does not answer if the classifier of a filter failed.
    let spare = instance(&Emitter::new(), "Tool", "spare", |value: Value, _: RunContext| async move { Ok(value) });
    let (echo, spare) = (echo(&Emitter::new()), Fallback::any(Arc::new(spare)));
    for (filter, reason) in rows {
        let error = echo.run(json!("x")).middleware(spare.clone()).middleware(filter).await.expect_err("it is denied");
        assert!(error.is_denied());
        assert_eq!(error.to_string(), reason);
    }
}

#[tokio::test(start_paused = true)]
async fn all_classifiers_of_a_check_share_its_timeout() {
    let slow = ContentFilter::new().classifier(|_| async {
        tokio::time::sleep(Duration::from_secs(4)).await;
        Ok(None)
    });
    let echo = echo(&Emitter::new());
    assert!(echo.run(json!(["a", "b"])).middleware(slow.clone()).await.is_ok());
    let error = echo.run(json!(["a", "b", "c"])).middleware(slow).await.expect_err("12 seconds are too long");
    assert_eq!(error.to_string(), "the guard took longer than 10s");
}

#[tokio::test(start_paused = true)]
async fn a_content_filter_that_only_marks_reports_what_it_cannot_check_and_lets_it_pass() -> TestResult {
    let rows: [(ContentFilter, &str); 3] = [
        (ContentFilter::new().classifier(|_| async { Err(Error::halted("desk", "closed")) }), "closed"),
        (ContentFilter::new().classifier(|_| async { panic!("oh") }), "the guard panicked: oh"),
        (ContentFilter::new().classifier(|_| std::future::pending()), "the guard took longer than 10s"),
    ];
    let echo = echo(&Emitter::new());
    for (filter, reason) in rows {
        let said = Arc::new(Mutex::new(Vec::new()));
        let heard = Arc::clone(&said);
        let run = echo.run(json!("x")).middleware(filter.outputs(false).mark()).observe(
            WouldDeny::NAME,
            move |event: &WouldDeny, _: &EventMeta<'_>| {
                heard.lock().expect("nobody panics here").push(event.reason.clone());
            },
        );
        assert_eq!(run.await?, json!("x"));
        let said = said.lock().expect("nobody panics here");
        assert!(said.len() == 1 && said[0].contains(reason), "{said:?}");
    }
    Ok(())
}

#[tokio::test]
async fn a_text_that_cannot_be_checked_does_not_keep_the_next_text_from_being_marked() -> TestResult {
    let marks = Arc::new(Mutex::new(Value::Null));
    let (echo, seen) = (echo(&Emitter::new()), Arc::clone(&marks));
    let filter = rude().outputs(false).mark().classifier(|_| async { Err(Error::new("no answer")) });
    let run = echo.run(json!(["x", "darn"])).middleware(filter).on_finish(move |_, meta| {
        *seen.lock().expect("nobody panics here") = meta.context().get(MARK).cloned().unwrap_or_default();
    });
    run.await?;
    assert_eq!(marks.lock().expect("nobody panics here")[0]["at"], "/1");
    Ok(())
}

#[tokio::test]
async fn a_content_filter_answers_only_its_own_denials() -> TestResult {
    let echo = echo(&Emitter::new());
    let answers = rude().inputs(false).answer("no comment");
    let error = echo.run(json!("darn")).middleware(answers).middleware(rude()).await;
    assert!(error.expect_err("the other filter denies").is_denied());
    let strict = ContentFilter::new().words("strict", ["darn"])?.answer("strict");
    let polite = echo.run(json!("darn")).middleware(strict).middleware(rude().answer("polite")).await;
    assert_eq!(polite.ok(), Some(json!("strict")));
    Ok(())
}

// M5: no timer fires while the classifier blocks.
#[tokio::test]
async fn a_classifier_that_blocks_its_thread_past_its_timeout_denies_the_run() {
    let moment = Duration::from_millis(1);
    let filter = ContentFilter::new().timeout(moment).classifier(move |_| async move {
        std::thread::sleep(10 * moment);
        Ok(None)
    });
    let error = echo(&Emitter::new()).run(json!("x")).middleware(filter).await.expect_err("it is late");
    assert_eq!(error.to_string(), "the guard took longer than 1ms");
}

#[tokio::test]
async fn classifiers_receive_only_texts_that_pass_the_words() -> TestResult {
    let asked = Arc::new(Mutex::new(Vec::new()));
    let texts = Arc::clone(&asked);
    let filter = rude().classifier(move |text| {
        texts.lock().expect("nobody panics here").push(text.clone());
        async move { Ok((text.len() > 5).then(|| "long".to_owned())) }
    });
    let echo = echo(&Emitter::new());
    let error = echo.run(json!(["short", "darn", "too long"])).middleware(filter.clone()).await.expect_err("a word");
    assert_eq!(error.details()["label"], "rude");
    let error = echo.run(json!(["short", "too long", "x"])).middleware(filter).await.expect_err("it is long");
    assert_eq!(error.details()["label"], "long");
    assert_eq!(*asked.lock().expect("nobody panics here"), ["short", "short", "too long"]);
    Ok(())
}

#[test]
fn invalid_empty_or_too_large_patterns_are_errors() {
    let filter = ContentFilter::new;
    assert!(matches!(filter().regex("x", "("), Err(FilterError::Pattern { .. })));
    assert!(matches!(filter().regex("x", &"a".repeat(1025)), Err(FilterError::Length { len: 1025 })));
    assert!(matches!(filter().words("x", [""]), Err(FilterError::Length { len: 0 })));
    assert!(matches!(filter().regex("x", r"\w{1000}\w{1000}"), Err(FilterError::Pattern { .. })));
}

#[tokio::test]
async fn runs_below_are_filtered_only_with_for_tree() -> TestResult {
    let root = Emitter::new();
    let inner = Arc::new(echo(&root));
    let outer = instance(&root, "Tool", "outer", move |(): (), _: RunContext| {
        let inner = Arc::clone(&inner);
        async move { Ok(inner.run(json!("darn")).await.is_err()) }
    });
    assert!(!outer.run(()).middleware(rude()).await?);
    assert!(outer.run(()).middleware(for_tree(rude())).await?);
    Ok(())
}

#[tokio::test]
async fn a_content_filter_judges_each_of_100_concurrent_runs_separately() -> TestResult {
    let filter = rude().classifier(|_| async {
        tokio::task::yield_now().await;
        Ok(None)
    });
    let echo = Arc::new(
        instance(&Emitter::new(), "Tool", "echo", |value: Value, _: RunContext| async move { Ok(value) })
            .middleware(filter),
    );
    let runs: Vec<_> = (0..100)
        .map(|n| {
            let echo = Arc::clone(&echo);
            tokio::spawn(async move { echo.run(json!(if n % 3 == 0 { "darn" } else { "fine" })).await })
        })
        .collect();
    for (n, run) in runs.into_iter().enumerate() {
        assert_eq!(run.await?.is_err(), n % 3 == 0, "{n}");
    }
    Ok(())
}

#[test]
fn the_summary_of_a_content_filter_contains_its_settings_but_not_its_words() {
    let Summary::Text(summary) = rude().mark().describe().summary() else { panic!("a text") };
    let rules = r#"Rules { patterns: 2, labels: ["rude"], classifiers: 0 }"#;
    let options = r#"action: "mark", timeout: 10s, inputs: true, outputs: true"#;
    assert_eq!(summary, format!("ContentFilter {{ rules: {rules}, {options} }}"));
    assert_eq!(rude().describe().layers().len(), 1);
}
