//! M8: a question of a run has an id that lasts, its answer serves that question only, and an answer that does not fit
//! is struck out.

use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, SystemTime};

use crate::support::{TestResult, poll_once};
use emitree_runtime::{
    AbortHandle, Answer, Answers, Data, Error, ErrorKind, Interrupt, Result, RunContext, RunKey, Runnable,
    UnmatchedAnswers, runnable_fn,
};
use futures_core::future::BoxFuture;
use futures_util::future::join_all;
use proptest::collection::vec;
use proptest::prelude::*;
use serde_json::{Value, json};
use tokio::sync::Semaphore;

fn colour() -> Interrupt {
    Interrupt::new("colour", json!({"choices": ["red", "blue"]}))
}

/// Returns a runnable whose work is a function of its context.
fn work<O: Data>(
    name: &'static str,
    work: impl Fn(RunContext) -> BoxFuture<'static, Result<O>> + Send + Sync,
) -> impl Runnable<Input = (), Output = O> {
    runnable_fn(name, move |(): (), ctx: RunContext| work(ctx))
}

/// Returns a runnable that asks for a colour.
fn paint(name: &'static str) -> impl Runnable<Input = (), Output = String> {
    work(name, |ctx| Box::pin(async move { ctx.ask(colour()) }))
}

#[track_caller]
fn question<T: std::fmt::Debug>(result: Result<T>) -> Interrupt {
    let error = result.expect_err("it is asked");
    error.interrupt().unwrap_or_else(|| panic!("{error}")).clone()
}

#[tokio::test]
async fn a_run_that_asks_is_interrupted_until_its_question_has_an_answer() -> TestResult {
    let (paint, answers) = (paint("paint"), Answers::new());
    let run = || paint.run(()).key("order-17").extension(answers.clone());
    let asked = question(run().await);
    assert_eq!((&*asked.kind, &asked.data), ("colour", &colour().data));
    assert_eq!(asked.id, "order-17/e856c6101c622a5f");
    assert_eq!(question(run().await), asked, "the same question when the run is made again");
    assert_eq!(question(paint.run(()).key("order-17").await), asked, "nobody keeps answers");
    answers.answer(&*asked.id, json!("red"));
    for _ in 0..2 {
        assert_eq!(run().await?, "red");
    }
    assert_eq!(
        question(paint.run(()).key("order-18").extension(answers.clone()).await).id,
        "order-18/e856c6101c622a5f"
    );
    Ok(())
}

#[tokio::test]
async fn without_a_key_equal_questions_of_runs_of_one_kind_and_name_share_their_answer() -> TestResult {
    let (here, answers) = (paint("here"), Answers::new());
    let asked = question(here.run(()).await);
    assert!(asked.id.starts_with("colour-"), "{}", asked.id);
    answers.answer(&*asked.id, json!("red"));
    assert_eq!(here.run(()).extension(answers.clone()).await?, "red");
    assert_ne!(question(paint("there").run(()).extension(answers).await).id, asked.id);
    let other = work("here", |ctx| Box::pin(async move { ctx.ask::<String>(Interrupt::new("shade", colour().data)) }));
    assert_ne!(question(other.run(()).await).id.trim_start_matches("shade"), asked.id.trim_start_matches("colour"));
    Ok(())
}

#[tokio::test]
async fn equal_questions_of_runs_without_a_key_below_two_keys_are_two_questions() -> TestResult {
    let inner = Arc::new(paint("paint"));
    let outer = work("outer", move |_| {
        let inner = Arc::clone(&inner);
        Box::pin(async move { inner.run(()).await })
    });
    let answers = Answers::new();
    let run = |key: &str| outer.run(()).key(key.to_owned()).extension(answers.clone());
    let (first, second) = (question(run("a").await).id, question(run("b").await).id);
    assert!(first.starts_with("a/paint/colour-") && second.starts_with("b/paint/colour-"), "{first} {second}");
    assert_eq!(first[1..], second[1..]);
    answers.answer(&*first, json!("red"));
    assert_eq!(run("a").await?, "red");
    assert_eq!(question(run("b").await).id, second);
    Ok(())
}

#[tokio::test]
async fn the_nearest_answers_are_read() -> TestResult {
    let id = question(paint("paint").run(()).key("a").await).id;
    let [outer, inherited, own] = ["outer", "inherited", "own"].map(|value| {
        let answers = Answers::new();
        answers.answer(&*id, json!(value));
        answers
    });
    let paint = Arc::new(paint("paint"));
    let below = Arc::clone(&paint);
    let above = work("above", move |_| Box::pin(below.run_shared(()).key("a")));
    assert_eq!(above.run(()).extension(outer.clone()).await?, "outer");
    let run = || paint.run(()).key("a").extension(inherited.clone());
    assert_eq!(run().await?, "inherited");
    assert_eq!(run().own_extension(own).await?, "own");
    Ok(())
}

#[tokio::test]
async fn an_answer_that_does_not_fit_is_struck_out_and_the_question_is_open_again_under_its_id() -> TestResult {
    for data in [json!({"choices": ["red"], "refused": "before"}), json!("which?"), json!(null), json!([1])] {
        let (asks, answers) = (data.clone(), Answers::new());
        let ask = work("ask", move |ctx| {
            let question = Interrupt::new("colour", asks.clone());
            Box::pin(async move { ctx.ask::<String>(question) })
        });
        let run = || ask.run(()).key("a").extension(answers.clone());
        let asked = question(run().await);
        answers.answer(&*asked.id, Answer::from(json!({"red": 1})).by("ada"));
        let given = answers.get(&asked.id).expect("an answer");
        let again = question(run().await);
        assert_eq!(again.id, asked.id);
        let refused = &again.data["refused"];
        assert_eq!(refused["answer"], json!(given));
        let reason = refused["reason"].as_str().unwrap_or_default();
        assert!(reason.contains(r#"{"red":1}"#) && reason.contains("String"), "{reason}");
        match data {
            Value::Object(_) => assert_eq!(again.data["choices"], json!(["red"])),
            data => assert_eq!(again.data["data"], data),
        }
        assert!(answers.is_empty());
        assert_eq!(again.clone().about(&RunKey::new("a")?).id, asked.id, "a refused question keeps its id");
        answers.answer(&*asked.id, json!("blue"));
        assert_eq!(run().await?, "blue");
    }
    Ok(())
}

#[tokio::test]
async fn an_answer_that_was_replaced_meanwhile_is_not_struck_out() {
    let (answers, question) = (Answers::new(), colour().with_id("q"));
    let refused = Answer::from(json!(7));
    answers.answer("q", json!("red"));
    let open = answers.refuse(question, &refused, "not a colour");
    assert_eq!(open.data["refused"], json!({"answer": {"value": 7}, "reason": "not a colour"}));
    assert_eq!(answers.get("q").map(|answer| answer.value), Some(json!("red")));
}

// R15
#[tokio::test]
async fn work_that_has_begun_and_is_not_idempotent_cannot_ask() -> TestResult {
    let begins = || {
        work("charge", |ctx| {
            Box::pin(async move {
                ctx.begin();
                ctx.ask::<String>(colour())
            })
        })
    };
    let answers = Answers::new();
    let error = begins().run(()).key("order-17").extension(answers.clone()).await.expect_err("it cannot ask");
    let text = error.to_string();
    assert!(!error.is_interrupted(), "{text}");
    for part in ["`colour`", "order-17/e856c6101c622a5f", "charge`", "mark the tool `idempotent`, or ask at the gate"] {
        assert!(text.contains(part), "{part} in: {text}");
    }
    question(begins().run(()).key("order-17").idempotent().await);
    question(begins().run(()).await);

    let above = |is_idempotent: bool| {
        let above = work("above", move |ctx| {
            Box::pin(async move {
                ctx.begin();
                paint("below").run(()).key("below").await
            })
        });
        async move {
            let run = above.run(()).key("order-17");
            if is_idempotent { run.idempotent().await } else { run.await }
        }
    };
    let error = above(false).await.expect_err("it cannot ask");
    assert!(!error.is_interrupted() && error.to_string().contains("above`"), "{error}");
    question(above(true).await);

    // An answer that was given before the work began serves a further attempt.
    answers.answer("order-17/e856c6101c622a5f", json!("red"));
    assert_eq!(begins().run(()).key("order-17").extension(answers.clone()).await?, "red");
    // An answer that does not fit stays, because the question cannot be open again.
    answers.answer("order-17/e856c6101c622a5f", json!(7));
    let error = begins().run(()).key("order-17").extension(answers.clone()).await.expect_err("it cannot ask");
    assert!(!error.is_interrupted() && answers.len() == 1, "{error}");
    Ok(())
}

#[tokio::test]
async fn the_function_of_open_questions_is_called_for_runs_that_ask_through_this_value() -> TestResult {
    static OPEN: Mutex<Vec<String>> = Mutex::new(Vec::new());
    let opened = || std::mem::take(&mut *OPEN.lock().expect("nobody panics here"));
    let note = |question: &Interrupt, run: &RunContext| {
        OPEN.lock().expect("nobody panics here").push(format!("{} {}", run.name(), question.id));
    };
    let answers = Answers::new().on_open(note);
    let paint = paint("paint");
    let run = |answers: Answers| paint.run(()).key("a").extension(answers);
    let id = question(run(answers.clone()).await).id;
    assert_eq!(opened(), [format!("paint {id}")]);
    question(run(Answers::new().or(answers.clone())).await);
    assert!(opened().is_empty(), "the run has other answers");
    answers.answer(&*id, json!(7));
    question(run(answers.clone()).await);
    assert_eq!(opened(), [format!("paint {id}")], "an answer that does not fit");
    answers.answer(&*id, json!("red"));
    assert_eq!(run(answers).await?, "red");
    assert!(opened().is_empty());
    Ok(())
}

#[test]
fn a_question_was_asked_if_a_run_has_looked_it_up_since_it_was_answered() {
    let answers = Answers::new();
    assert!(!answers.was_asked("q"));
    assert_eq!(answers.look_up("q"), None);
    assert!(answers.was_asked("q") && answers.clone().was_asked("q"));
    answers.answer("q", json!(1));
    assert!(!answers.was_asked("q"));
    assert_eq!(answers.get("q").map(|answer| answer.value), Some(json!(1)));
    assert!(!answers.was_asked("q"), "`get` does not ask");
    assert!(answers.look_up("q").is_some() && answers.was_asked("q"));
    answers.forget("q");
    assert!(!answers.was_asked("q") && answers.get("q").is_none());
}

#[test]
fn answers_are_stored_as_an_object_from_ids_to_values_authors_and_times() -> TestResult {
    let (answers, at) = (Answers::new(), SystemTime::UNIX_EPOCH + Duration::from_millis(1_500));
    let mut answer = Answer::from(json!("red")).by("ada");
    answer.at = Some(at);
    answers.answer("b", answer.clone());
    assert_eq!(serde_json::to_string(&answers)?, r#"{"b":{"value":"red","by":"ada","at":"1970-01-01T00:00:01.500Z"}}"#);
    let restored: Answers = serde_json::from_value(json!({"b": answer, "a": {"value": null}}))?;
    assert_eq!(restored.get("b"), Some(answer));
    assert_eq!(restored.get("a"), Some(Answer::from(Value::Null)));
    assert!(!restored.was_asked("a") && restored.len() == 2);
    for damaged in [json!({"a": "red"}), json!({"a": {"by": "ada"}}), json!({"a": {"value": 1, "at": "today"}})] {
        assert!(serde_json::from_value::<Answers>(damaged.clone()).is_err(), "{damaged}");
    }
    Ok(())
}

#[test]
fn an_answer_without_a_time_gets_the_current_time_and_replaces_an_earlier_one() {
    let (answers, before) = (Answers::new(), SystemTime::now());
    answers.clone().answer("q", json!(1));
    answers.answer("q", Answer::from(json!(2)).by("eve"));
    let answer = answers.get("q").expect("an answer");
    assert_eq!((answer.value, answer.by.as_deref(), answers.len()), (json!(2), Some("eve"), 1));
    assert!(answer.at.is_some_and(|at| at >= before));
    assert_eq!(format!("{answers:?}"), "Answers(1)", "values may be secrets");
}

#[test]
fn the_mark_of_settled_edits_belongs_to_one_value_and_is_not_stored() -> TestResult {
    let answers = Answers::new();
    let settles = answers.clone().settling_edits();
    assert!(settles.settles_edits() && settles.clone().settles_edits() && !answers.settles_edits());
    settles.answer("q", json!(1));
    assert_eq!(answers.len(), 1, "they share their answers");
    assert!(!serde_json::from_value::<Answers>(json!(settles))?.settles_edits());
    Ok(())
}

#[tokio::test]
async fn data_or_an_answer_that_is_nested_too_deeply_is_refused() -> TestResult {
    let deep = || (0..1_000).fold(json!(1), |inner, _| json!([inner]));
    let ask = work("ask", move |ctx| Box::pin(async move { ctx.ask::<Value>(Interrupt::new("deep", deep())) }));
    let error = ask.run(()).key("a").await.expect_err("it is too deep");
    assert_eq!(error.kind(), &ErrorKind::Invalid);
    assert!(error.to_string().contains("`deep`"), "{error}");

    let (paint, answers) = (paint("paint"), Answers::new());
    let run = || paint.run(()).key("a").extension(answers.clone());
    answers.answer(question(run().await).id, deep());
    let refused = &question(run().await).data["refused"];
    assert_eq!(refused["answer"]["value"], "…");
    assert!(refused["reason"].as_str().unwrap_or_default().contains("nested deeper"), "{refused}");
    Ok(())
}

/// A responder whose answer comes when its gate is opened.
#[derive(Clone)]
struct Responder {
    answers: Answers,
    gate: Arc<Semaphore>,
    asked: Arc<AtomicU32>,
}

impl Responder {
    fn new() -> Self {
        Self { answers: Answers::new(), gate: Arc::new(Semaphore::new(0)), asked: Arc::default() }
    }

    /// Returns a runnable that asks the responder, who answers with `result`.
    fn asked_by_a_run(&self, result: Result<Value>) -> Arc<impl Runnable<Input = (), Output = Value> + use<>> {
        let this = self.clone();
        Arc::new(work("asks", move |ctx| {
            let (Self { answers, gate, asked }, result) = (this.clone(), result.clone());
            Box::pin(async move {
                let ask = async {
                    asked.fetch_add(1, Ordering::Relaxed);
                    gate.acquire().await.map_err(|_| Error::new("closed"))?.forget();
                    result.map(Answer::from)
                };
                Ok(answers.ask_once("q", &ctx, ask).await?.value)
            })
        }))
    }

    fn count(&self) -> u32 {
        self.asked.load(Ordering::Relaxed)
    }
}

#[tokio::test]
async fn runs_with_one_question_ask_once_and_get_its_answer() -> TestResult {
    let responder = Responder::new();
    let asks = responder.asked_by_a_run(Ok(json!("red")));
    let mut runs: Vec<_> = (0..3).map(|_| asks.run_shared(())).collect();
    assert!(runs.iter_mut().all(|run| poll_once(run).is_pending()));
    responder.gate.add_permits(1);
    for result in join_all(runs).await {
        assert_eq!(result?, "red");
    }
    assert_eq!(asks.run(()).await?, "red");
    assert_eq!(responder.count(), 1);
    assert!(responder.answers.was_asked("q"));
    assert!(responder.answers.get("q").is_some_and(|answer| answer.at.is_some()));
    Ok(())
}

#[tokio::test]
async fn a_failure_is_shared_by_the_runs_that_wait_and_is_not_an_answer() -> TestResult {
    let responder = Responder::new();
    let fails = responder.asked_by_a_run(Err(Error::new("no line")));
    let mut runs: Vec<_> = (0..3).map(|_| fails.run_shared(())).collect();
    assert!(runs.iter_mut().all(|run| poll_once(run).is_pending()));
    responder.gate.add_permits(2);
    for result in join_all(runs).await {
        assert_eq!(result.expect_err("nobody answers").to_string(), "no line");
    }
    assert_eq!(responder.count(), 1);
    assert!(responder.answers.is_empty());
    assert_eq!(responder.asked_by_a_run(Ok(json!("red"))).run(()).await?, "red");
    Ok(())
}

#[tokio::test]
async fn if_the_asking_run_is_aborted_or_dropped_a_waiting_run_asks() -> TestResult {
    for is_dropped in [true, false] {
        let responder = Responder::new();
        let asks = responder.asked_by_a_run(Ok(json!("red")));
        let handle = AbortHandle::new();
        let mut first = asks.run_shared(()).abort_on(&handle);
        let mut second = asks.run_shared(());
        assert!(poll_once(&mut first).is_pending() && poll_once(&mut second).is_pending());
        assert_eq!(responder.count(), 1);
        if is_dropped {
            drop(first);
        } else {
            handle.abort("enough");
            assert!(first.await.expect_err("it is aborted").is_aborted());
        }
        responder.gate.add_permits(1);
        assert_eq!(second.await?, "red");
        assert_eq!(responder.count(), 2);
    }
    Ok(())
}

/// Any JSON value, and the same value as a text whose objects have their keys in reverse order.
fn value() -> impl Strategy<Value = Value> {
    let leaf = prop_oneof![
        Just(json!(null)),
        any::<bool>().prop_map(Value::from),
        any::<i64>().prop_map(Value::from),
        any::<f64>().prop_map(Value::from),
        ".*".prop_map(Value::from),
    ];
    leaf.prop_recursive(3, 16, 4, |inner| {
        prop_oneof![
            vec(inner.clone(), 0..4).prop_map(Value::from),
            vec(("[a-z]{0,3}", inner), 0..4).prop_map(|members| Value::Object(members.into_iter().collect())),
        ]
    })
}

/// Returns the value as text, with the keys of all objects in reverse order.
fn reversed(value: &Value) -> String {
    match value {
        Value::Array(items) => format!("[{}]", items.iter().map(reversed).collect::<Vec<_>>().join(",")),
        Value::Object(members) => {
            let members = members.iter().rev().map(|(key, value)| format!("{}:{}", json!(key), reversed(value)));
            format!("{{{}}}", members.collect::<Vec<_>>().join(","))
        }
        leaf => leaf.to_string(),
    }
}

proptest! {
    #[test]
    fn an_id_depends_on_key_kind_and_data_but_not_on_the_order_of_keys_or_a_refused_answer(
        data in value(),
        other in value(),
        refused in value(),
        kind in "[a-z]{1,4}",
    ) {
        let (key, at) = (RunKey::new("order-17").expect("a key"), |id: &str| RunKey::new(id).expect("a key"));
        let id = |kind: &str, data: &Value| Interrupt::new(kind, data.clone()).about(&key).id;
        let first = id(&kind, &data);
        let hash = first.strip_prefix("order-17/").expect("it begins with the key");
        prop_assert!(hash.len() == 16 && hash.bytes().all(|byte| byte.is_ascii_hexdigit()), "{hash}");

        let parsed: Value = serde_json::from_str(&reversed(&data)).expect("JSON");
        prop_assert_eq!(&id(&kind, &parsed), &first);
        let open = Answers::new().refuse(Interrupt::new(&*kind, data.clone()), &Answer::from(refused), "not this");
        prop_assert_eq!(&id(&kind, &open.data), &first);

        prop_assert_ne!(&id(&format!("{kind}x"), &data), &first);
        let elsewhere = Interrupt::new(&*kind, data.clone()).about(&at("order-18")).id;
        prop_assert_eq!(elsewhere, format!("order-18/{hash}"));
        if data != other && !is_same_question(&data, &other) {
            prop_assert_ne!(id(&kind, &other), first);
        }
    }
}

/// Returns `true` for an object whose only member is `data`, and that member.
fn is_same_question(a: &Value, b: &Value) -> bool {
    let only = |value: &Value, data: &Value| *value == json!({ "data": data });
    only(a, b) || only(b, a)
}

/// Runs `paint` with answers, and returns the events `unmatched_answers`.
async fn unmatched(answers: &Answers) -> Vec<UnmatchedAnswers> {
    let seen = Arc::new(Mutex::new(Vec::new()));
    let sees = Arc::clone(&seen);
    let paint = paint("paint");
    let run = paint.run(()).key("order-17").extension(answers.clone());
    run.observe("unmatched_answers", move |event: &UnmatchedAnswers, _| sees.lock().unwrap().push(event.clone()))
        .await
        .ok();
    let seen = seen.lock().unwrap();
    seen.clone()
}

#[tokio::test]
async fn answers_that_match_no_question_of_an_interrupted_run_are_reported_at_its_end() {
    let answers = Answers::new();
    answers.answer("order-16/e856c6101c622a5f", json!("red"));
    let question = "order-17/e856c6101c622a5f".to_owned();
    let of_other = "order-16/e856c6101c622a5f".to_owned();
    let [event] = &*unmatched(&answers).await else { panic!("one event is expected") };
    assert_eq!((&event.question, &event.ids), (&question, &vec![of_other]));
    answers.answer(question, json!("red"));
    assert_eq!(unmatched(&answers).await, [], "the run is not interrupted");
    assert_eq!(unmatched(&Answers::new()).await, [], "there are no answers");
}

#[tokio::test]
async fn an_answer_that_a_run_has_asked_for_is_not_reported_if_another_question_interrupts_it() {
    let both = work("both", |ctx| {
        Box::pin(async move {
            let colour: String = ctx.ask(colour())?;
            ctx.ask::<String>(Interrupt::new("size", json!({}))).map(|size| colour + &size)
        })
    });
    let answers = Answers::new();
    let run = || both.run(()).key("order-19").extension(answers.clone());
    let first = question(run().await);
    answers.answer(&*first.id, json!("red"));
    let seen = Arc::new(Mutex::new(0));
    let sees = Arc::clone(&seen);
    let second = run().observe("unmatched_answers", move |_: &UnmatchedAnswers, _| *sees.lock().unwrap() += 1).await;
    assert_eq!(question(second).kind, "size");
    assert_eq!(*seen.lock().unwrap(), 0);
}
