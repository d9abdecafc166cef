//! Approvals: no work begins without an answer, an answer is used for its own input only, and a failed approval denies
//! the run.

use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use crate::support::{Any, Failing, TestResult, instance, poll_once};
use emitree_emitter::{AnyEvent, Emitter, EventMeta};
use emitree_middleware::approval::{Approval, Choice, Decision, INTERRUPT, Request, RequestError};
use emitree_middleware::{Runs, Timeout};
use emitree_runtime::{
    AbortHandle, Answer, Answers, Error, ErrorKind, Interrupt, JsonRun, Layer, Next, Phase, Result, RunContext, RunKey,
    Runnable, Stack, for_tree, map_input, runnable_fn,
};
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use tokio::sync::Semaphore;
use tokio::time::{Instant, sleep, timeout};

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
struct Delete {
    path: String,
    force: bool,
}

fn delete(path: &str) -> Delete {
    Delete { path: path.to_owned(), force: false }
}

/// The inputs that the work received, in order.
#[derive(Clone, Default)]
struct Done(Arc<Mutex<Vec<String>>>);

impl Done {
    fn note(&self, what: impl Into<String>) {
        self.0.lock().expect("nobody panics here").push(what.into());
    }

    #[track_caller]
    fn expect<'a>(&self, expected: impl IntoIterator<Item = &'a str>) {
        let done = std::mem::take(&mut *self.0.lock().expect("nobody panics here"));
        assert_eq!(done, expected.into_iter().collect::<Vec<_>>());
    }

    /// Returns `Tool[delete]`, which records the paths that it deletes.
    fn tool(&self, root: &Emitter) -> impl Runnable<Input = Delete, Output = String> + use<> {
        let done = self.clone();
        instance(root, "Tool", "delete", move |delete: Delete, _: RunContext| {
            done.note(&delete.path);
            async move { Ok(format!("{} is gone", delete.path)) }
        })
    }
}

/// Returns an approval that gives every request the same answer, and a counter of its questions.
fn always(decision: Decision) -> (Approval, Arc<AtomicU32>) {
    let asked = Arc::new(AtomicU32::new(0));
    let counts = Arc::clone(&asked);
    let approval = Approval::by(move |_| {
        counts.fetch_add(1, Ordering::Relaxed);
        let decision = decision.clone();
        async { Ok(decision) }
    });
    (approval, asked)
}

fn count(asked: &AtomicU32) -> u32 {
    asked.load(Ordering::Relaxed)
}

#[tokio::test]
async fn an_approved_run_gets_its_input_an_edited_run_the_edit_and_a_rejected_run_is_denied() {
    let done = Done::default();
    let tool = done.tool(&Emitter::new());
    let rows = [
        (Decision::Approve, Ok("/tmp is gone"), Some("/tmp")),
        (Decision::Edit(json!({"path": "/tmp/x", "force": true})), Ok("/tmp/x is gone"), Some("/tmp/x")),
        (Decision::reject("too much"), Err("denied by approval: too much"), None),
    ];
    for (decision, expected, got) in rows {
        let (approval, asked) = always(decision);
        let result = tool.run(delete("/tmp")).middleware(approval).await;
        assert_eq!(result.as_deref().map_err(|error| error.explain()), expected.map_err(str::to_owned));
        assert_eq!(count(&asked), 1);
        done.expect(got);
    }
}

#[tokio::test]
async fn the_responder_receives_kind_name_and_the_input_as_the_work_would_get_it() -> TestResult {
    /// Adds a slash to the path.
    #[derive(Debug)]
    struct Slash;
    impl Layer<JsonRun> for Slash {
        async fn call(&self, input: &Value, _: &RunContext, next: Next<'_, JsonRun>) -> Result<Value> {
            let mut input = input.clone();
            input["path"] = format!("{}/", input["path"].as_str().unwrap_or_default()).into();
            next.run(&input).await
        }
    }
    let done = Done::default();
    let shown = Arc::new(Mutex::new(None));
    let show = Arc::clone(&shown);
    let approval = Approval::by(move |request: Request| {
        *show.lock().expect("nobody panics here") = Some(request);
        async { Ok(Decision::Approve) }
    });
    let run = done.tool(&Emitter::new());
    let run = run.run(delete("/tmp")).on_start(|start, _| start.input.force = true);
    run.middleware(approval).middleware(Stack::<JsonRun>::builder().layer(Slash).build()).await?;
    let request = shown.lock().expect("nobody panics here").take().expect("it was asked");
    assert_eq!((&*request.by, &*request.kind, &*request.name), ("approval", "Tool", "delete"));
    assert_eq!(request.input, json!({"path": "/tmp/", "force": true}));
    assert_eq!(request.allowed, [Choice::Approve, Choice::Edit, Choice::Reject, Choice::Respond]);
    done.expect(["/tmp/"]);
    Ok(())
}

/// A layer that replaces its input.
#[derive(Debug)]
struct Swap(Value);

impl Layer<JsonRun> for Swap {
    async fn call(&self, _: &Value, _: &RunContext, next: Next<'_, JsonRun>) -> Result<Value> {
        next.run(&self.0).await
    }
}

#[tokio::test]
async fn an_input_that_a_layer_changes_after_the_approval_is_denied() -> TestResult {
    let done = Done::default();
    let tool = done.tool(&Emitter::new());
    let swap = |path: &str| Stack::<JsonRun>::builder().layer_in(Phase::Guard, Swap(json!(delete(path)))).build();
    for asks in [true, false] {
        let (approval, _) = always(Decision::Approve);
        let run = tool.run(delete("/tmp")).middleware(approval.when(move |_| asks)).middleware(swap("/home"));
        let error = run.await.expect_err("it is another input");
        assert_eq!(error.explain(), "denied by approval: the input was changed after it was approved");
        done.expect([]);
    }
    // A change before the question is allowed. After the question, a change to an equal input is allowed.
    for (before, after) in [(Some("/tmp"), None), (None, Some("/tmp"))] {
        let (approval, asked) = always(Decision::Approve);
        let bind = |path: Option<&str>| path.map(swap).unwrap_or_default();
        let run = tool.run(delete(before.map_or("/tmp", |_| "/home")));
        run.middleware(bind(before)).middleware(approval).middleware(bind(after)).await?;
        assert_eq!(count(&asked), 1);
        done.expect(["/tmp"]);
    }
    // The edited input is converted to the run's input type.
    let (edits, _) = always(Decision::Edit(json!({"force": false, "path": "/tmp/x", "more": 1})));
    tool.run(delete("/tmp")).middleware(edits).await?;
    done.expect(["/tmp/x"]);
    Ok(())
}

#[tokio::test]
async fn an_edit_that_does_not_fit_the_input_type_fails_the_run_with_an_error_that_names_the_field() {
    let done = Done::default();
    let (approval, _) = always(Decision::Edit(json!({"path": 7, "force": true})));
    let tool = done.tool(&Emitter::new());
    let error = tool.run(delete("/tmp")).middleware(approval).await.expect_err("a number is no path");
    assert_eq!(error.kind(), &ErrorKind::Invalid);
    assert!(error.to_string().contains("at `path`: invalid type: integer `7`, expected a string"), "{error}");
    assert_eq!(error.details()["edited_by"], "approval");
    done.expect([]);
}

#[tokio::test]
async fn an_edit_denies_the_run_if_edits_are_not_allowed() {
    let (approval, _) = always(Decision::Edit(json!({"path": "/x", "force": true})));
    let ledger = Answers::new();
    let approval = approval.without_edits().ledger(ledger.clone());
    let done = Done::default();
    let tool = done.tool(&Emitter::new());
    for _ in 0..2 {
        let error = tool.run(delete("/tmp")).middleware(approval.clone()).await.expect_err("it is not allowed");
        let said = "denied by approval: the answer was an edit, which is not allowed here: approve, reject or respond";
        assert_eq!(error.explain(), said);
        assert!(ledger.is_empty());
    }
    // An edit in an answer from the ledger is not allowed either.
    let error = tool.run(delete("/tmp")).middleware(Approval::by_interrupt()).await.expect_err("it is asked");
    ledger.answer(&*error.interrupt().expect("an interrupt").id, Decision::Edit(json!({"path": "/x", "force": true})));
    assert!(tool.run(delete("/tmp")).middleware(approval).await.expect_err("it is not allowed").is_denied());
    done.expect([]);
}

// M5
#[tokio::test(start_paused = true)]
async fn a_responder_that_fails_panics_or_takes_too_long_denies_the_run_with_the_reason() {
    fn by(how: &'static str) -> Approval {
        Approval::by(move |_| {
            assert_ne!(how, "panics at once", "planned");
            async move {
                match how {
                    "errs" => Err(std::io::Error::other("no line").into()),
                    "panics" => panic!("planned"),
                    "times out itself" => Err(Error::timed_out("gone to lunch")),
                    _ => std::future::pending().await,
                }
            }
        })
        .timeout(Duration::from_secs(30))
    }
    let rows = [
        ("errs", "the responder failed: no line"),
        ("panics", "the responder failed: it panicked: planned"),
        ("times out itself", "the responder failed: gone to lunch"),
        ("takes too long", "nobody answered within 30s"),
    ];
    let done = Done::default();
    let tool = done.tool(&Emitter::new());
    for (how, reason) in rows {
        let begun = Instant::now();
        let error = tool.run(delete("/tmp")).middleware(by(how)).await.expect_err("nobody approved");
        assert_eq!((error.kind(), &*error.to_string()), (&ErrorKind::Denied { by: "approval".into() }, reason));
        assert_eq!(begun.elapsed(), Duration::from_secs(if how == "takes too long" { 30 } else { 0 }));
    }
    let error = tool.run(delete("/tmp")).middleware(by("panics at once")).await.expect_err("nobody approved");
    assert!(error.is_denied() && error.to_string().contains("planned"), "{error}");
    done.expect([]);
}

// M5: no timer fires while the responder blocks.
#[tokio::test]
async fn a_responder_that_blocks_past_the_timeout_denies_the_run_and_its_answer_is_not_stored() {
    let (done, moment, approvals) = (Done::default(), Duration::from_millis(1), Answers::new());
    let approval = Approval::by(move |_| async move {
        std::thread::sleep(10 * moment);
        Ok(Decision::Approve)
    });
    let tool = done.tool(&Emitter::new());
    let approval = approval.timeout(moment).ledger(approvals.clone());
    let error = tool.run(delete("/tmp")).middleware(approval).await.expect_err("it is late");
    assert_eq!(error.explain(), "denied by approval: nobody answered within 1ms");
    assert!(approvals.is_empty());
    done.expect([]);
}

// M5
#[tokio::test]
async fn a_panicking_predicate_denies_the_run_with_the_panic_message() {
    let done = Done::default();
    let tool = done.tool(&Emitter::new());
    let (approval, asked) = always(Decision::Approve);
    let rows = [
        (approval.clone().when(|_| panic!("planned")), "the predicate that decides whether to ask panicked: planned"),
        (approval.runs(Runs::matching(|_| panic!("planned"))), "the predicate that selects runs panicked: planned"),
    ];
    for (approval, reason) in rows {
        let error = tool.run(delete("/tmp")).middleware(approval).await.expect_err("nobody was asked");
        assert_eq!((error.is_denied(), &*error.to_string()), (true, reason));
    }
    assert_eq!(count(&asked), 0);
    done.expect([]);
}

// M9
#[tokio::test]
async fn control_flow_returned_by_the_responder_ends_the_run() {
    let approval = Approval::by(|request: Request| async move { Err(Error::interrupted(request.to_interrupt())) });
    let tool = Done::default().tool(&Emitter::new());
    let error = tool.run(delete("/tmp")).middleware(approval).await.expect_err("it is night");
    assert_eq!(error.interrupt().map(|interrupt| &*interrupt.kind), Some(INTERRUPT));
}

#[tokio::test]
async fn the_responder_is_asked_only_about_selected_runs() -> TestResult {
    let done = Done::default();
    let root = Emitter::new();
    let tool = done.tool(&root);
    let (no, asked) = always(Decision::reject("no"));
    let rows = [
        (no.clone().of_kind("Tool"), false),
        (no.clone().of_kind("Agent"), true),
        (no.clone().of_kind("Agent").runs(Runs::named("delete")), false),
        (no.clone().runs(Runs::all().except(Runs::named("delete"))), true),
        (no.clone().runs(Runs::of_kind("Tool").and(Runs::named("read"))), true),
        (no.clone().runs(Runs::matching(|run| run.namespace() == "tool.delete")), false),
        (no.clone().when(|request| request.input["force"] == true), true),
        (no.clone().when(|request| request.input["force"] == false), false),
        (no.when(|_| true).when(|_| false), true),
    ];
    for (i, (approval, goes_on)) in rows.into_iter().enumerate() {
        // `for_tree`: an approval that is bound only to a run that it does not ask about is refused.
        assert_eq!(tool.run(delete("/tmp")).middleware(for_tree(approval)).await.is_ok(), goes_on, "{i}");
    }
    assert_eq!(count(&asked), 4);
    Ok(())
}

/// An agent that deletes the given paths sequentially or concurrently.
fn agent<T>(root: &Emitter, tool: T, at_once: bool) -> impl Runnable<Input = Vec<String>, Output = usize> + use<T>
where
    T: Runnable<Input = Delete, Output = String> + 'static,
{
    let tool = Arc::new(tool);
    instance(root, "Agent", "cleaner", move |paths: Vec<String>, _: RunContext| {
        let tool = Arc::clone(&tool);
        async move {
            let runs = paths.iter().map(|path| tool.run(delete(path)));
            let results = if at_once {
                futures_util::future::join_all(runs).await
            } else {
                let mut results = Vec::new();
                for run in runs {
                    results.push(run.await);
                }
                results
            };
            Ok(results.iter().filter(|result| result.is_ok()).count())
        }
    })
}

#[tokio::test]
async fn for_tree_asks_about_the_runs_below_and_asks_each_question_once_per_run_tree() -> TestResult {
    let (done, root) = (Done::default(), Emitter::new());
    let agent = agent(&root, done.tool(&root), false);
    let (approval, asked) = always(Decision::Approve);
    let approval = for_tree(approval.of_kind("Tool"));
    let paths = ["/a", "/b", "/a"].map(str::to_owned).to_vec();
    assert_eq!(agent.run(paths).middleware(approval).await?, 3);
    assert_eq!(count(&asked), 2);
    done.expect(["/a", "/b", "/a"]);
    Ok(())
}

#[tokio::test]
async fn answers_of_an_approval_on_a_nested_instance_are_remembered_until_the_outermost_run_ends() -> TestResult {
    let root = Emitter::new();
    let (approval, asked) = always(Decision::Approve);
    let tool = instance(&root, "Tool", "delete", |_: Delete, _: RunContext| async { Ok(String::new()) });
    let agent = agent(&root, tool.middleware(approval), false);
    for times in 1..=2 {
        assert_eq!(agent.run(vec!["/a".into(), "/a".into()]).await?, 2);
        assert_eq!(count(&asked), times);
    }
    Ok(())
}

#[tokio::test]
async fn another_attempt_with_the_same_input_is_not_asked_about_again() -> TestResult {
    let (approval, asked) = always(Decision::Edit(json!(2)));
    let seen = Done::default();
    let notes = seen.clone();
    let tool = runnable_fn("flaky", move |n: u32, ctx: RunContext| {
        notes.note(n.to_string());
        async move { if ctx.attempt() < 2 { Err(Error::retry("again")) } else { Ok(n) } }
    });
    assert_eq!(tool.run(1).middleware(approval).max_middleware_retries(5).await?, 2);
    assert_eq!(count(&asked), 1);
    seen.expect(["2", "2", "2"]);
    Ok(())
}

#[tokio::test]
async fn another_attempt_with_another_input_is_asked_about() -> TestResult {
    let (approval, asked) = always(Decision::Approve);
    let tool = runnable_fn("flaky", |n: u32, ctx: RunContext| async move {
        if ctx.attempt() < 2 { Err(Error::retry("again")) } else { Ok(n) }
    });
    let other = map_input(|input: &mut u32, ctx: &RunContext| {
        *input += ctx.attempt();
        Ok(())
    });
    assert_eq!(tool.run(1).middleware(other).middleware(approval).max_middleware_retries(5).await?, 3);
    assert_eq!(count(&asked), 3);
    Ok(())
}

#[tokio::test]
async fn concurrent_runs_with_the_same_question_ask_once() -> TestResult {
    for (answer, goes_on) in [(Ok(Decision::Approve), 100), (Ok(Decision::reject("no")), 0), (Err("no line"), 0)] {
        let (root, asked, gate) = (Emitter::new(), Arc::new(AtomicU32::new(0)), Arc::new(Semaphore::new(0)));
        let (counts, waits) = (Arc::clone(&asked), Arc::clone(&gate));
        let approval = Approval::by(move |_| {
            counts.fetch_add(1, Ordering::Relaxed);
            let (waits, answer) = (Arc::clone(&waits), answer.clone());
            async move {
                waits.acquire().await?.forget();
                answer.map_err(Error::new)
            }
        });
        let agent = Arc::new(agent(&root, Done::default().tool(&root), true));
        let approval = for_tree(approval.of_kind("Tool"));
        let mut run = agent.run_shared(vec!["/a".to_owned(); 100]).middleware(approval);
        assert!(poll_once(&mut run).is_pending());
        gate.add_permits(100);
        assert_eq!(run.await?, goes_on);
        assert_eq!(count(&asked), 1);
    }
    Ok(())
}

#[tokio::test]
async fn if_the_asking_run_is_aborted_a_waiting_run_asks() -> TestResult {
    let (asked, gate, ledger) = (Arc::new(AtomicU32::new(0)), Arc::new(Semaphore::new(0)), Answers::new());
    let (counts, waits) = (Arc::clone(&asked), Arc::clone(&gate));
    let approval = Approval::by(move |_| {
        counts.fetch_add(1, Ordering::Relaxed);
        let waits = Arc::clone(&waits);
        async move {
            waits.acquire().await?.forget();
            Ok(Decision::Approve)
        }
    })
    .ledger(ledger.clone());
    let done = Done::default();
    let tool = Arc::new(done.tool(&Emitter::new()));
    let handle = AbortHandle::new();
    let mut first = tool.run_shared(delete("/a")).middleware(approval.clone()).abort_on(handle.signal());
    let mut second = tool.run_shared(delete("/a")).middleware(approval);
    assert!(poll_once(&mut first).is_pending());
    assert!(poll_once(&mut second).is_pending());
    assert_eq!(count(&asked), 1);
    // Without the abort, the first run would wait forever.
    handle.abort("enough");
    assert!(first.await.expect_err("it was aborted").is_aborted());
    assert!(poll_once(&mut second).is_pending());
    assert_eq!(count(&asked), 2);
    gate.add_permits(1);
    second.await?;
    done.expect(["/a"]);
    assert_eq!(ledger.len(), 1);
    Ok(())
}

#[tokio::test]
async fn an_abort_returned_by_the_responder_does_not_answer_the_waiting_runs() -> TestResult {
    let (asked, gate) = (Arc::new(AtomicU32::new(0)), Arc::new(Semaphore::new(0)));
    let (counts, waits) = (Arc::clone(&asked), Arc::clone(&gate));
    let approval = Approval::by(move |_| {
        let (first, waits) = (counts.fetch_add(1, Ordering::Relaxed) == 0, Arc::clone(&waits));
        async move {
            waits.acquire().await?.forget();
            // A responder returns this error if it awaits a run that is aborted.
            if first { Err(Error::aborted("enough")) } else { Ok(Decision::Approve) }
        }
    })
    .ledger(Answers::new());
    let tool = Arc::new(Done::default().tool(&Emitter::new()));
    let mut first = tool.run_shared(delete("/a")).middleware(approval.clone());
    let mut second = tool.run_shared(delete("/a")).middleware(approval);
    assert!(poll_once(&mut first).is_pending() && poll_once(&mut second).is_pending());
    gate.add_permits(2);
    assert!(first.await.expect_err("it was aborted").is_aborted());
    second.await?;
    assert_eq!(count(&asked), 2);
    Ok(())
}

#[tokio::test]
async fn a_waiting_run_uses_an_answer_added_to_the_ledger_meanwhile() -> TestResult {
    let (ids, ledger) = (Arc::new(Mutex::new(Vec::new())), Answers::new());
    let asked = Arc::clone(&ids);
    let approval = Approval::by(move |request| {
        asked.lock().expect("nobody panics here").push(request.id);
        std::future::pending()
    })
    .ledger(ledger.clone());
    let done = Done::default();
    let tool = Arc::new(done.tool(&Emitter::new()));
    let handle = AbortHandle::new();
    let mut first = tool.run_shared(delete("/a")).middleware(approval.clone()).abort_on(handle.signal());
    let mut second = tool.run_shared(delete("/a")).middleware(approval);
    assert!(poll_once(&mut first).is_pending() && poll_once(&mut second).is_pending());
    let id = ids.lock().expect("nobody panics here")[0].clone();
    ledger.answer(id.as_str(), Decision::Approve);
    handle.abort("enough");
    assert!(first.await.expect_err("it was aborted").is_aborted());
    timeout(Duration::from_secs(60), second).await??;
    done.expect(["/a"]);
    assert_eq!(*ids.lock().expect("nobody panics here"), [id]);
    Ok(())
}

#[tokio::test]
async fn an_edit_answered_to_another_approval_denies_the_run_if_edits_are_not_allowed() -> TestResult {
    let (gate, ledger, done) = (Arc::new(Semaphore::new(0)), Answers::new(), Done::default());
    let waits = Arc::clone(&gate);
    let edits = Approval::by(move |_| {
        let waits = Arc::clone(&waits);
        async move {
            waits.acquire().await?.forget();
            Ok(Decision::Edit(json!({"path": "/x", "force": true})))
        }
    });
    let (never, asked) = always(Decision::Approve);
    let tool = Arc::new(done.tool(&Emitter::new()));
    let mut first = tool.run_shared(delete("/a")).middleware(edits.ledger(ledger.clone()));
    let mut second = tool.run_shared(delete("/a")).middleware(never.without_edits().ledger(ledger));
    assert!(poll_once(&mut first).is_pending() && poll_once(&mut second).is_pending());
    gate.add_permits(1);
    assert_eq!(first.await?, "/x is gone");
    let said = "denied by approval: the answer was an edit, which is not allowed here: approve, reject or respond";
    assert_eq!(second.await.expect_err("it is not allowed").explain(), said);
    assert_eq!(count(&asked), 0);
    done.expect(["/x"]);
    Ok(())
}

#[tokio::test(start_paused = true)]
async fn a_run_waits_for_the_question_of_another_run_only_until_its_own_timeout() {
    let ledger = Answers::new();
    let forever = Approval::by(|_| std::future::pending()).ledger(ledger.clone());
    let tool = Arc::new(Done::default().tool(&Emitter::new()));
    let mut first = tool.run_shared(delete("/a")).middleware(forever.clone());
    assert!(poll_once(&mut first).is_pending());
    let second = tool.run(delete("/a")).middleware(forever.timeout(Duration::from_secs(5)));
    let second = timeout(Duration::from_secs(60), second).await.expect("it does not wait for ever");
    assert_eq!(second.expect_err("nobody answers").to_string(), "nobody answered within 5s");
    assert!(poll_once(&mut first).is_pending());
}

#[tokio::test(start_paused = true)]
async fn a_run_that_waits_for_approval_ends_when_it_times_out() {
    let tool = Done::default().tool(&Emitter::new());
    let approval = Approval::by(|_| std::future::pending());
    let run = tool.run(delete("/a")).middleware(Timeout::overall(Duration::from_secs(1))).middleware(approval.clone());
    assert!(run.await.expect_err("it takes too long").is_timed_out());
    let run = tool.run(delete("/a")).timeout(Duration::from_secs(1)).middleware(approval);
    assert!(run.await.expect_err("it takes too long").is_timed_out());
}

/// Returns the tool and the approval of a new process, with the stored answers.
fn process(done: &Done, approvals: Option<&str>) -> (impl Runnable<Input = Delete, Output = String> + use<>, Approval) {
    let approval = Approval::by_interrupt();
    let stored = approvals.map(|json| serde_json::from_str::<Answers>(json).expect("what was stored"));
    (done.tool(&Emitter::new()), stored.into_iter().fold(approval, Approval::ledger))
}

// M8
#[tokio::test]
async fn an_interrupted_run_is_answered_and_continued_in_another_process() -> TestResult {
    let done = Done::default();
    let (tool, approval) = process(&done, None);
    let error = tool.run(delete("/tmp")).middleware(approval).await.expect_err("it is asked");
    let interrupt = serde_json::to_string(error.interrupt().expect("an interrupt"))?;
    done.expect([]);

    // A person reads the stored request and answers it.
    let interrupt: Interrupt = serde_json::from_str(&interrupt)?;
    let request = Request::of_interrupt(&interrupt)?;
    assert_eq!(
        interrupt.data,
        json!({
            "by": "approval", "kind": "Tool", "name": "delete", "input": {"path": "/tmp", "force": false},
            "input_hash": request.input_hash, "allowed": ["approve", "edit", "reject", "respond"],
        })
    );
    assert_eq!(interrupt.id, format!("approval-{}", request.input_hash));
    let ledger = Answers::new();
    ledger.answer(&*interrupt.id, Decision::Edit(json!({"path": "/tmp/x", "force": false})));
    let stored = serde_json::to_string(&ledger)?;

    // An answered question is never asked again.
    let (tool, approval) = process(&done, Some(&stored));
    for _ in 0..2 {
        assert_eq!(tool.run(delete("/tmp")).middleware(approval.clone()).await?, "/tmp/x is gone");
        done.expect(["/tmp/x"]);
    }

    // A different input is a different question.
    let mut tampered = delete("/tmp");
    tampered.force = true;
    let error = tool.run(tampered).middleware(approval).await.expect_err("it is asked again");
    let other = error.interrupt().expect("an interrupt");
    assert_ne!(other.id, interrupt.id);
    assert_eq!(other.data["input"]["force"], true);
    done.expect([]);
    Ok(())
}

// M8
#[tokio::test]
async fn a_ledger_in_the_run_s_extensions_takes_precedence_and_applies_to_the_runs_below() -> TestResult {
    let (done, root) = (Done::default(), Emitter::new());
    let tool = done.tool(&root);
    let given = Answers::new();
    let approval = Approval::by_interrupt().of_kind("Tool").ledger(given.clone());
    let error = tool.run(delete("/a")).middleware(approval.clone()).await.expect_err("it is asked");
    let id = &error.interrupt().expect("an interrupt").id;
    given.answer(&**id, Decision::Approve);
    let own = Answers::new();
    own.answer(&**id, Decision::reject("not this time"));
    let run = tool.run(delete("/a")).middleware(approval.clone()).extension(own.clone());
    assert_eq!(run.await.expect_err("it is rejected").to_string(), "not this time");
    let agent = agent(&root, tool, false);
    let run = agent.run(vec!["/a".to_owned()]).middleware(for_tree(approval));
    assert_eq!(run.extension(own.clone()).await?, 0);
    own.forget(id);
    assert_eq!((own.len(), given.get(id).map(|answer| answer.value)), (0, Some(json!("approve"))));
    done.expect([]);
    Ok(())
}

#[tokio::test]
async fn a_tampered_interrupt_or_one_of_another_kind_is_rejected_as_a_request() -> TestResult {
    let tool = Done::default().tool(&Emitter::new());
    let error = tool.run(delete("/tmp")).middleware(Approval::by_interrupt()).await.expect_err("it is asked");
    let interrupt = error.interrupt().expect("an interrupt");
    let changed = |change: fn(&mut Interrupt)| {
        let mut interrupt = interrupt.clone();
        change(&mut interrupt);
        Request::of_interrupt(&interrupt)
    };
    // A harmless input is shown, but the answer would approve the original input.
    let shown = changed(|interrupt| interrupt.data["input"]["path"] = "/tmp/harmless".into());
    assert!(matches!(shown, Err(RequestError::Changed { .. })), "{shown:?}");
    let named = changed(|interrupt| interrupt.data["name"] = "read".into());
    assert!(matches!(named, Err(RequestError::Changed { .. })), "{named:?}");
    let other = changed(|interrupt| interrupt.kind = "question".into()).expect_err("it asks something else");
    let said = "an interrupt of the kind `question` is not a request for an approval: its kind must be `approval`";
    assert_eq!(other.to_string(), said);
    let data = changed(|interrupt| interrupt.data = json!(7));
    assert!(matches!(data, Err(RequestError::Data { .. })), "{data:?}");
    assert!(changed(|_| ()).is_ok());
    Ok(())
}

/// Returns the question of a run that was interrupted.
#[track_caller]
fn question<T: std::fmt::Debug>(result: Result<T>) -> Interrupt {
    let error = result.expect_err("it is asked");
    error.interrupt().unwrap_or_else(|| panic!("{error}")).clone()
}

// M8
#[tokio::test]
async fn equal_calls_with_keys_are_two_questions_and_each_answer_serves_its_call_only() -> TestResult {
    let (done, answers) = (Done::default(), Answers::new());
    let (approval, asked) = always(Decision::Approve);
    let tool = done.tool(&Emitter::new());
    for key in ["first", "second", "second"] {
        let run = tool.run(delete("/a")).key(key).middleware(approval.clone()).extension(answers.clone());
        run.await?;
    }
    assert_eq!((count(&asked), answers.len()), (2, 2), "the second call was made twice");
    done.expect(["/a"; 3]);

    let run = |key: &str| {
        let run = tool.run(delete("/a")).key(key).middleware(Approval::by_interrupt());
        run.extension(answers.clone())
    };
    let [third, fourth] = [question(run("third").await), question(run("fourth").await)];
    assert_eq!((third.data == fourth.data, third.id == fourth.id), (true, false));
    assert!(third.id.starts_with("third/") && third.id.len() == "third/".len() + 16, "{}", third.id);
    answers.answer(&*third.id, Decision::Approve);
    run("third").await?;
    assert_eq!(question(run("fourth").await), fourth);
    done.expect(["/a"]);
    Ok(())
}

#[tokio::test]
async fn a_request_of_a_run_with_a_key_is_verified_and_has_the_id_that_the_events_have() -> TestResult {
    let (tool, shown) = (Done::default().tool(&Emitter::new()), Arc::new(Mutex::new(None)));
    let show = Arc::clone(&shown);
    let by = Approval::by(move |request: Request| {
        *show.lock().expect("nobody panics here") = Some(request);
        async { Ok(Decision::Approve) }
    });
    let heard = Done::default();
    let notes = heard.clone();
    by.emitter().observe("*.*", move |event: &dyn AnyEvent, _: &EventMeta<'_>| {
        notes.note(event.to_json()["id"].as_str().unwrap_or_default());
    })?;
    tool.run(delete("/tmp")).key("order-17").key("0").middleware(by).await?;
    let responder = shown.lock().expect("nobody panics here").take().expect("it was asked");
    heard.expect([&*responder.id; 2]);

    let run = tool.run(delete("/tmp")).key("order-17").key("0").middleware(Approval::by_interrupt());
    let interrupt = question(run.await);
    assert_eq!(interrupt.id, responder.id);
    assert_eq!(interrupt.data.get("id"), None, "the id is not hashed");
    let request = Request::of_interrupt(&interrupt)?;
    assert_eq!(request, responder);
    assert_eq!(serde_json::from_value::<Request>(json!(request))?, request);
    assert_eq!(request.to_interrupt(), interrupt);

    let changed: [fn(&mut Interrupt); 4] = [
        |interrupt| interrupt.data["input"]["path"] = "/tmp/harmless".into(),
        |interrupt| interrupt.data["allowed"] = json!(["approve"]),
        |interrupt| interrupt.id = interrupt.id.replace("order-17/0/", "order-17/0/0"),
        |interrupt| interrupt.id = "order-17".into(),
    ];
    for (i, change) in changed.into_iter().enumerate() {
        let mut interrupt = interrupt.clone();
        change(&mut interrupt);
        let read = Request::of_interrupt(&interrupt);
        assert!(matches!(read, Err(RequestError::Changed { .. })), "{i}: {read:?}");
    }
    // Only the person who answers again sees the refused answer.
    let mut open = interrupt.clone();
    open.data["refused"] = json!({"answer": {"value": 7}, "reason": "not a decision"});
    assert_eq!(Request::of_interrupt(&open)?, request);
    // A name may look like a key.
    let named = tool.run(delete("/tmp")).middleware(Approval::by_interrupt().named("a/b"));
    assert_eq!(Request::of_interrupt(&question(named.await))?.by, "a/b");
    Ok(())
}

#[tokio::test]
async fn a_request_about_another_input_has_the_id_that_a_run_with_this_input_asks() -> TestResult {
    let tool = Done::default().tool(&Emitter::new());
    let ask = async |path: &str, key: Option<&str>| {
        let run = tool.run(delete(path)).middleware(Approval::by_interrupt());
        let asked = question(if let Some(key) = key { run.key(key).await } else { run.await });
        Request::of_interrupt(&asked)
    };
    for key in [None, Some("order-17")] {
        let (first, other) = (ask("/a", key).await?, ask("/b", key).await?);
        assert_eq!(first.with_input(json!(delete("/b"))), other);
    }
    // The id for a run with another key.
    let (first, other) = (ask("/a", Some("first")).await?, ask("/b", Some("second")).await?);
    let moved = first.with_input(json!(delete("/b"))).to_interrupt().about(&RunKey::new("second")?);
    assert_eq!(moved.id, other.id);
    Ok(())
}

#[tokio::test]
async fn an_answer_that_does_not_fit_is_struck_out_if_the_approval_interrupts() -> TestResult {
    let (done, answers) = (Done::default(), Answers::new());
    let tool = done.tool(&Emitter::new());
    let (approval, heard) = (Approval::by_interrupt().without_edits(), Done::default());
    let notes = heard.clone();
    approval.emitter().observe("*.*", move |_: &dyn AnyEvent, meta: &EventMeta<'_>| notes.note(meta.name()))?;
    let run = |key: Option<&str>| {
        let run = tool.run(delete("/a")).middleware(approval.clone()).extension(answers.clone());
        if let Some(key) = key { run.key(key) } else { run }
    };
    let edit = Decision::Edit(json!(delete("/x")));
    let rows = [
        (Answer::from(json!("yes")), "`yes`"),
        (Answer::from(edit).by("ada"), "the answer was an edit, which is not allowed here"),
        (Answer::from(Decision::Respond(json!(7))), "does not fit `alloc::string::String`"),
    ];
    for key in [None, Some("order-17")] {
        let asked = question(run(key).await);
        heard.expect(["asked"]);
        for (answer, reason) in rows.clone() {
            answers.answer(&*asked.id, answer);
            let given = answers.get(&asked.id);
            let again = question(run(key).await);
            assert_eq!(again.id, asked.id);
            assert_eq!(again.data["refused"]["answer"], json!(given));
            let said = again.data["refused"]["reason"].as_str().unwrap_or_default();
            assert!(said.contains(reason), "{said}");
            assert!(answers.is_empty());
            assert_eq!(Request::of_interrupt(&again)?.id, asked.id);
            heard.expect(["asked"]);
        }
        assert_eq!(question(run(key).await), asked);
        answers.answer(&*asked.id, Decision::Approve);
        run(key).await?;
        done.expect(["/a"]);
        heard.expect(["asked", "approved"]);
        answers.forget(&asked.id);
    }
    Ok(())
}

#[tokio::test]
async fn a_live_approval_denies_the_run_if_the_answer_does_not_fit() -> TestResult {
    let (done, answers) = (Done::default(), Answers::new());
    let tool = done.tool(&Emitter::new());
    let (approval, asked) = always(Decision::Respond(json!(7)));
    let run = || tool.run(delete("/a")).key("a").middleware(approval.clone()).extension(answers.clone());
    let error = run().await.expect_err("it is no text");
    assert!(error.is_denied() && error.to_string().contains("does not fit `alloc::string::String`"), "{error}");
    assert!(answers.is_empty(), "it is not kept");
    let id = question(tool.run(delete("/a")).key("a").middleware(Approval::by_interrupt()).await).id;
    answers.answer(&*id, json!("yes"));
    let error = run().await.expect_err("it is no decision");
    assert!(error.is_denied() && error.to_string().contains("unknown variant `yes`"), "{error}");
    assert_eq!((count(&asked), answers.len()), (1, 1));
    done.expect([]);
    Ok(())
}

#[tokio::test]
async fn a_response_is_the_result_and_the_run_is_not_executed() -> TestResult {
    /// A guard that denies an output.
    #[derive(Debug)]
    struct NotEmpty;
    impl Layer<JsonRun> for NotEmpty {
        async fn call(&self, input: &Value, _: &RunContext, next: Next<'_, JsonRun>) -> Result<Value> {
            next.run(input).await
        }

        async fn check_output(&self, output: &Value, _: &RunContext) -> Result<()> {
            if output == "" { Err(Error::denied("not_empty", "say something")) } else { Ok(()) }
        }
    }

    #[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
    struct Output {
        content: Value,
    }

    let (done, heard) = (Done::default(), Done::default());
    let tool = done.tool(&Emitter::new());
    for (value, expected) in [("kept", Ok("kept")), ("", Err("denied by not_empty: say something"))] {
        let (approval, notes) = (always(Decision::Respond(json!(value))).0, heard.clone());
        approval.emitter().observe("responded", move |event: &dyn AnyEvent, _: &EventMeta<'_>| {
            notes.note(event.to_json()["output"].to_string());
        })?;
        let guard = Stack::<JsonRun>::builder().layer_in(Phase::Guard, NotEmpty).build();
        let result = tool.run(delete("/a")).middleware(approval).middleware(guard).await;
        assert_eq!(result.as_deref().map_err(|error| error.explain()), expected.map_err(str::to_owned));
    }
    heard.expect([r#""kept""#]);
    done.expect([]);

    // The output of an agent's tool has the response as its content.
    let tool = runnable_fn("tool", |(): (), _: RunContext| async { Ok(Output { content: json!("executed") }) });
    let (text, _) = always(Decision::Respond(json!("a text")));
    assert_eq!(tool.run(()).middleware(text).await?, Output { content: json!("a text") });
    let (whole, _) = always(Decision::Respond(json!({"content": "whole"})));
    assert_eq!(tool.run(()).middleware(whole).await?, Output { content: json!("whole") });
    Ok(())
}

// R15
#[tokio::test]
async fn an_approval_that_interrupts_serves_further_attempts_of_work_that_has_begun_and_asks_nothing_new() -> TestResult
{
    let tool = runnable_fn("flaky", |n: u32, ctx: RunContext| async move {
        ctx.begin();
        if ctx.attempt() == 0 { Err(Error::retry("again")) } else { Ok(n) }
    });
    let answers = Answers::new();
    let run = || tool.run(1).key("a").extension(answers.clone()).max_middleware_retries(1);
    answers.answer(question(run().middleware(Approval::by_interrupt()).await).id, Decision::Approve);
    assert_eq!(run().middleware(Approval::by_interrupt()).await?, 1);

    let other = map_input(|input: &mut u32, ctx: &RunContext| {
        *input += ctx.attempt();
        Ok(())
    });
    let error = run().middleware(other).middleware(Approval::by_interrupt()).await.expect_err("it cannot ask");
    assert!(!error.is_interrupted() && error.to_string().contains("has begun"), "{error}");
    Ok(())
}

#[tokio::test]
async fn the_predicate_is_not_evaluated_for_a_question_that_has_an_answer() -> TestResult {
    let (done, answers, calls) = (Done::default(), Answers::new(), Arc::new(AtomicU32::new(0)));
    let counts = Arc::clone(&calls);
    let approval = Approval::by_interrupt().when(move |_| counts.fetch_add(1, Ordering::Relaxed) == 0);
    let tool = done.tool(&Emitter::new());
    let run = || tool.run(delete("/a")).key("a").middleware(approval.clone()).extension(answers.clone());
    answers.answer(question(run().await).id, Decision::reject("no"));
    for _ in 0..2 {
        assert_eq!(run().await.expect_err("it is rejected").explain(), "denied by approval: no");
    }
    assert_eq!(count(&calls), 1);
    done.expect([]);
    Ok(())
}

#[tokio::test]
async fn an_edit_is_stored_and_interrupts_the_run_if_its_answers_settle_edits() -> TestResult {
    let (done, answers) = (Done::default(), Answers::new());
    let edited = json!({"path": "/x", "force": true});
    let (approval, asked) = always(Decision::Edit(edited.clone()));
    let tool = Arc::new(done.tool(&Emitter::new()));
    let settles = answers.clone().settling_edits();
    // Above is the run of an agent.
    let (inner, bound) = (Arc::clone(&tool), approval.clone());
    let agent = runnable_fn("agent", move |begins: bool, ctx: RunContext| {
        if begins {
            ctx.begin();
        }
        inner.run_shared(delete("/a")).key("call").middleware(bound.clone())
    });
    let run = |begins| agent.run(begins).key("order-17");
    let interrupt = question(run(false).extension(settles.clone()).await);
    assert_eq!(answers.get(&interrupt.id).map(|answer| answer.value), Some(json!({"edit": edited.clone()})));
    assert_eq!(question(run(false).extension(settles.clone()).await), interrupt, "the known answer too");
    let by_interrupt = tool.run(delete("/a")).key("b").middleware(Approval::by_interrupt()).extension(settles.clone());
    let id = question(by_interrupt.await).id;
    answers.answer(&*id, Decision::Edit(edited.clone()));
    let by_interrupt = tool.run(delete("/a")).key("b").middleware(Approval::by_interrupt()).extension(settles.clone());
    assert_eq!(question(by_interrupt.await).id, id);
    assert_eq!(count(&asked), 1);
    done.expect([]);

    // Nobody settles: without the mark, without a key, or inside a call that has begun.
    assert_eq!(run(false).extension(answers.clone()).await?, "/x is gone");
    let unkeyed = tool.run(delete("/b")).middleware(approval.clone()).extension(settles.clone());
    assert_eq!(unkeyed.await?, "/x is gone");
    assert_eq!(run(true).idempotent().extension(settles).await?, "/x is gone");
    done.expect(["/x"; 3]);
    Ok(())
}

#[tokio::test]
async fn approvals_with_different_names_do_not_share_answers() -> TestResult {
    let done = Done::default();
    let (first, first_asked) = always(Decision::Approve);
    let (second, second_asked) = always(Decision::reject("too expensive"));
    let run = done.tool(&Emitter::new());
    let run = run.run(delete("/a")).middleware(first.named("legal")).middleware(second.named("finance"));
    let error = run.await.expect_err("one says no");
    assert_eq!(error.explain(), "denied by finance: too expensive");
    assert_eq!((count(&first_asked), count(&second_asked)), (1, 1));
    done.expect([]);
    Ok(())
}

#[tokio::test]
async fn events_of_an_answer_name_its_author() -> TestResult {
    let done = Done::default();
    let rows = [
        (Decision::Approve, "approved"),
        (Decision::Edit(json!({"path": "/x", "force": true})), "edited"),
        (Decision::reject("no"), "rejected"),
    ];
    for (decision, name) in rows {
        let approval = Approval::by_interrupt();
        let tool = done.tool(&Emitter::new());
        let error = tool.run(delete("/tmp")).middleware(approval.clone()).await.expect_err("a question");
        let answers = Answers::new();
        answers.answer(error.interrupt().expect("a question").id.clone(), Answer::from(decision).by("ada"));
        let heard = Arc::new(Mutex::new(Vec::new()));
        let note = Arc::clone(&heard);
        let see = move |event: &dyn AnyEvent, _: &EventMeta<'_>| {
            note.lock().expect("nobody panics").push(event.to_json()["by"].clone());
        };
        let run = tool.run(delete("/tmp")).middleware(approval).extension(answers);
        run.observe(format!("middleware.approval.{name}"), see).await.ok();
        assert_eq!(*heard.lock().expect("nobody panics"), ["ada"], "{name}");
    }
    Ok(())
}

#[tokio::test]
async fn events_of_an_approval_reach_its_emitter_and_the_run_with_the_answer_and_run_ids() -> TestResult {
    let done = Done::default();
    let rows = [
        (Ok(Decision::Approve), json!({"remembered": false})),
        (
            Ok(Decision::Edit(json!({"path": "/x", "force": true}))),
            json!({"input": {"path": "/x", "force": true}, "remembered": false}),
        ),
        (Ok(Decision::reject("no")), json!({"reason": "no", "remembered": false, "failed": false})),
        (Err("no line"), json!({"reason": "the responder failed: no line", "remembered": false, "failed": true})),
    ];
    for ((answer, told), name) in rows.into_iter().zip(["approved", "edited", "rejected", "rejected"]) {
        let approval = Approval::by(move |_| {
            let answer = answer.clone().map_err(Error::new);
            async { answer }
        });
        let heard = Arc::new(Mutex::new(Vec::new()));
        let note = |who: &'static str| {
            let heard = Arc::clone(&heard);
            move |event: &dyn AnyEvent, meta: &EventMeta<'_>| {
                let run_id = meta.trace().map(|trace| trace.run_id);
                heard.lock().expect("nobody panics").push((who, run_id, meta.path().to_owned(), event.to_json()));
            }
        };
        approval.emitter().observe("*.*", note("own"))?;
        let run_id = Arc::new(Mutex::new(None));
        let keep = Arc::clone(&run_id);
        let tool = done.tool(&Emitter::new());
        let run = tool.run(delete("/tmp")).middleware(approval).observe("middleware.**", note("run"));
        run.middleware(move |ctx: &RunContext| {
            *keep.lock().expect("nobody panics") = Some(ctx.run_id());
            Ok(())
        })
        .await
        .ok();
        let run_id = *run_id.lock().expect("nobody panics");
        let heard = heard.lock().expect("nobody panics");
        let paths = ["middleware.approval.asked".to_owned(), format!("middleware.approval.{name}")];
        for who in ["own", "run"] {
            let own: Vec<_> = heard.iter().filter(|event| event.0 == who).collect();
            assert_eq!(own.iter().map(|event| &event.2).collect::<Vec<_>>(), paths.iter().collect::<Vec<_>>());
            assert!(own.iter().all(|event| event.1 == run_id));
            let (asked, mut ended) = (&own[0].3, own[1].3.clone());
            assert_eq!((&asked["id"], &asked["request"]["input_hash"]), (&ended["id"], &ended["input_hash"]));
            assert_eq!(asked["request"]["input"], json!({"path": "/tmp", "force": false}));
            for key in ["id", "input_hash"] {
                ended.as_object_mut().and_then(|event| event.remove(key)).expect("it is said");
            }
            assert_eq!(ended, told);
        }
    }
    Ok(())
}

#[tokio::test]
async fn a_remembered_answer_is_emitted_as_remembered_without_an_asked_event() -> TestResult {
    let (approval, _) = always(Decision::Approve);
    let approval = approval.ledger(Answers::new());
    let heard = Done::default();
    let notes = heard.clone();
    approval.emitter().observe("*.*", move |event: &dyn AnyEvent, meta| {
        notes.note(format!("{} {}", meta.name(), event.to_json()["remembered"]));
    })?;
    let tool = Done::default().tool(&Emitter::new());
    for _ in 0..2 {
        tool.run(delete("/tmp")).middleware(approval.clone()).await?;
    }
    heard.expect(["asked null", "approved false", "approved true"]);
    Ok(())
}

// M5: observers fail open.
#[tokio::test]
async fn a_failing_listener_does_not_affect_an_approval() -> TestResult {
    let (done, failing) = (Done::default(), Failing::default());
    let (approval, _) = always(Decision::Approve);
    let tool = done.tool(&Emitter::new());
    tool.run(delete("/a")).middleware(approval).on("middleware.**", failing.listener::<Any>()).await?;
    done.expect(["/a"]);
    assert_eq!(failing.calls(), 2, "asked and approved");
    Ok(())
}

#[tokio::test(start_paused = true)]
async fn an_approval_is_shared_by_100_concurrent_runs() {
    let approval = Approval::by(|request: Request| async move {
        let n = request.input["path"].as_str().and_then(|path| path.parse::<u64>().ok()).unwrap_or_default();
        sleep(Duration::from_millis(n)).await;
        Ok(if n.is_multiple_of(2) { Decision::Approve } else { Decision::reject("odd") })
    })
    .ledger(Answers::new());
    let done = Done::default();
    let tool = done.tool(&Emitter::new());
    let runs = (0..100).map(|n| tool.run(delete(&n.to_string())).middleware(approval.clone()));
    let results = futures_util::future::join_all(runs).await;
    for (n, result) in results.iter().enumerate() {
        assert_eq!(result.is_ok(), n % 2 == 0, "{n}: {result:?}");
    }
    let approved: Vec<_> = (0..100).step_by(2).map(|n| n.to_string()).collect();
    done.expect(approved.iter().map(String::as_str));
}

#[tokio::test]
async fn a_run_with_an_output_set_at_start_is_asked_about_too() {
    // M6
    let (approval, asked) = always(Decision::reject("no"));
    let tool = Done::default().tool(&Emitter::new());
    let run = tool.run(delete("/a")).on_start(|start, _| start.output = Some("early".to_owned()));
    assert!(run.middleware(approval).await.expect_err("it is rejected").is_denied());
    assert_eq!(count(&asked), 1);
}

#[test]
fn explain_lists_an_approval_with_its_options_and_layers() {
    let tool = Done::default().tool(&Emitter::new());
    let (approval, _) = always(Decision::Approve);
    let approval = approval.of_kind("Tool").timeout(Duration::from_secs(30)).without_edits();
    let shown = tool.run(delete("/a")).middleware(approval).explain().to_string();
    let said = "asks a responder (timeout 30s), about runs of Tool, without edits";
    let lines = [
        "  bound:",
        &format!("    approval: {said}"),
        "  passes:",
        &format!("    guard     approval: {said}"),
        "    guard     approval: records the inputs that the work may receive",
        "    innermost_guard approval: denies an input that was changed after its approval",
    ];
    assert!(shown.ends_with(&lines.join("\n")), "{shown}");
}
