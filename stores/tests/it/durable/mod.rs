//! Jobs that survive a kill (M13).

mod answers;
mod kill;
mod questions;
mod timers;
mod worker;

use std::future::pending;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use emitree_middleware::durable::{Answered, Durable, JobStore, OwnSteps, Unused};
use emitree_middleware::store::{Append, EntryHead, EntryStatus, Holder, Lease, MemoryStore, Store, StoreError};
use emitree_runtime::{Error, Interrupt, Result, RunContext, Runnable, middleware_fn, runnable_fn, wait_for_ends};
use emitree_stores::SqliteStore;
use futures_util::future::try_join_all;
use serde_json::{Value, json};
use tokio::sync::Notify;

use kill::{Killer, OfProcess};

const ID: &str = "import-7";

fn counted(calls: &Arc<AtomicUsize>) -> Arc<impl Runnable<Input = Value, Output = Value> + use<>> {
    let calls = Arc::clone(calls);
    Arc::new(runnable_fn("step", move |input: Value, _: RunContext| {
        calls.fetch_add(1, Ordering::Relaxed);
        async move { if input == json!("fail") { Err(Error::new("no").detail("at", 3)) } else { Ok(input) } }
    }))
}

async fn status(store: &MemoryStore) -> (EntryStatus, Option<Holder>) {
    let head = store.load(ID).await.expect("a store").expect("an entry").head;
    (head.status, head.holder)
}

/// M13
#[tokio::test]
async fn a_job_that_has_ended_returns_its_output_and_executes_nothing() {
    let (store, calls) = (MemoryStore::new(), Arc::new(AtomicUsize::new(0)));
    let job = runnable_fn("job", {
        let calls = Arc::clone(&calls);
        move |n: f64, _: RunContext| {
            calls.fetch_add(1, Ordering::Relaxed);
            async move { Ok(n / 3.0) }
        }
    });
    let first = job.run(0.1).middleware(Durable::new(&store, ID)).await.expect("an output");
    let again = job.run(0.1).middleware(Durable::new(&store, ID)).await.expect("an output");
    assert_eq!((first.to_bits(), calls.load(Ordering::Relaxed)), (again.to_bits(), 1));
    assert_eq!(status(&store).await, (EntryStatus::Ended, None));
}

/// M13
#[tokio::test]
async fn a_step_that_failed_is_answered_with_its_error_once_per_start() {
    let (store, calls) = (MemoryStore::new(), Arc::new(AtomicUsize::new(0)));
    let step = counted(&calls);
    let job = runnable_fn("job", move |tries: Value, _: RunContext| {
        let step = Arc::clone(&step);
        async move {
            let mut result = Ok(json!(null));
            for _ in 0..tries.as_u64().unwrap_or_default() {
                result = step.run(json!("fail")).key("step").await;
            }
            result
        }
    });
    let run = async |tries: u64| {
        let before = calls.load(Ordering::Relaxed);
        let error = job.run(json!(tries)).middleware(Durable::new(&store, ID)).await.expect_err("it fails");
        assert_eq!((error.to_string(), error.details().get("at")), ("no".to_owned(), Some(&json!(3))));
        calls.load(Ordering::Relaxed) - before
    };
    assert_eq!(run(2).await, 2, "in one start, the job decides");
    assert_eq!(status(&store).await, (EntryStatus::Failed, None));
    assert_eq!(run(2).await, 1);
}

/// M13
#[tokio::test]
async fn a_step_that_failed_with_a_retryable_error_is_executed_again() {
    let (store, calls) = (MemoryStore::new(), Arc::new(AtomicUsize::new(0)));
    let job = runnable_fn("job", {
        let calls = Arc::clone(&calls);
        move |(): (), _: RunContext| {
            let calls = Arc::clone(&calls);
            let step = runnable_fn("step", move |(): (), _: RunContext| {
                let call = calls.fetch_add(1, Ordering::Relaxed);
                async move { if call == 0 { Err(Error::new("busy").retryable(true)) } else { Ok(call) } }
            });
            async move { step.run(()).key("step").await }
        }
    });
    assert!(job.run(()).middleware(Durable::new(&store, ID)).await.is_err());
    assert_eq!(job.run(()).middleware(Durable::new(&store, ID)).await.expect("an output"), 1);
}

/// M13
#[tokio::test]
async fn another_input_of_the_job_or_a_step_halts_it_and_names_both_and_changes_nothing() {
    let (store, calls) = (MemoryStore::new(), Arc::new(AtomicUsize::new(0)));
    let steps = Arc::new(Mutex::new(vec![("a", json!({"n": 1})), ("b", json!("fail"))]));
    let step = counted(&calls);
    let job = runnable_fn("job", {
        let steps = Arc::clone(&steps);
        move |_: Value, _: RunContext| {
            let (step, steps) = (Arc::clone(&step), steps.lock().expect("a lock").clone());
            async move {
                for (key, input) in steps {
                    // A job that goes on after a halt is halted nevertheless.
                    let result = step.run(input).key(key).await;
                    result.or_else(|error| if error.is_halted() { Ok(json!(0)) } else { Err(error) })?;
                }
                Ok(json!("ended"))
            }
        }
    });
    let run = async |input: Value| job.run(input).middleware(Durable::new(&store, ID)).await;
    run(json!({"rows": [1]})).await.expect_err("b fails");
    let before = store.load(ID).await.expect("a store");

    let error = run(json!({"rows": [2]})).await.expect_err("another input");
    assert_eq!(
        error.explain(),
        "halted by durable: the job `import-7` was stored with the input `{\"rows\":[1]}`, and is run with \
         `{\"rows\":[2]}`: the inputs differ at `$.rows[0]`; give it another id or key"
    );
    assert_eq!(store.load(ID).await.expect("a store"), before);

    *steps.lock().expect("a lock") = vec![("a", json!({"n": 2})), ("c", json!(3))];
    let error = run(json!({"rows": [1]})).await.expect_err("another input");
    assert!(error.is_halted(), "{error:?}");
    assert!(error.to_string().starts_with("the step `import-7/a` was stored with the input `{\"n\":1}`"), "{error}");
    assert_eq!(calls.load(Ordering::Relaxed), 2, "c is not executed");

    // The order does not matter.
    *steps.lock().expect("a lock") = vec![("c", json!(3)), ("a", json!({"n": 1}))];
    assert_eq!(run(json!({"rows": [1]})).await.expect("an output"), json!("ended"));
    assert_eq!(calls.load(Ordering::Relaxed), 3);
}

/// M13
#[tokio::test]
async fn a_step_that_had_begun_is_a_question_whose_answers_are_checked() {
    let (store, calls) = (MemoryStore::new(), Arc::new(AtomicUsize::new(0)));
    let (began, hangs) = (Arc::new(Notify::new()), Arc::new(Mutex::new(true)));
    let step = Arc::new(runnable_fn("charge", {
        let (calls, began, hangs) = (Arc::clone(&calls), Arc::clone(&began), Arc::clone(&hangs));
        move |euros: u32, _: RunContext| {
            let (began, hangs) = (Arc::clone(&began), *hangs.lock().expect("a lock"));
            calls.fetch_add(1, Ordering::Relaxed);
            async move {
                began.notify_one();
                if hangs { pending().await } else { Ok(euros) }
            }
        }
    }));
    let job = runnable_fn("job", move |(): (), _: RunContext| {
        let step = Arc::clone(&step);
        // The job goes on, and ends with the question nevertheless.
        async move { Ok(step.run(5).key("charge").await.unwrap_or(0)) }
    });
    let handle = Durable::new(&store, ID);
    let run = || job.run(()).middleware(handle.clone());
    let killed = async {
        tokio::select! {
            _ = run() => unreachable!("the step hangs"),
            () = began.notified() => {}
        }
        wait_for_ends(Duration::from_secs(5)).await;
    };
    killed.await;
    assert_eq!(status(&store).await, (EntryStatus::Paused, None));

    let error = run().await.expect_err("a question");
    let question = error.interrupt().expect("a question").clone();
    assert_eq!(
        (&*question.kind, &question.data["key"], &question.data["input"]),
        ("durable.began", &json!("import-7/charge"), &json!(5))
    );
    assert_eq!(handle.questions().await.expect("a store"), std::slice::from_ref(&question));
    assert_eq!(status(&store).await, (EntryStatus::Waiting, None));

    let error = handle.answer("other", json!("again")).await.expect_err("no question").to_string();
    assert_eq!(error, format!("the job has no open question `other`; open questions: `{}`", question.id));
    let error = handle.answer(&question.id, json!("maybe")).await.expect_err("no answer").to_string();
    assert_eq!(error, r#"`"maybe"` is no answer to `durable.began`: use `{"output": …}` or `"again"`"#);

    // An output that does not fit is struck out, and asked again.
    handle.answer(&question.id, json!({"output": "five"})).await.expect("stored");
    let error = run().await.expect_err("a question");
    let again = error.interrupt().expect("a question");
    assert_eq!(
        (&again.id, again.data["refused"]["answer"]["value"].clone()),
        (&question.id, json!({"output": "five"}))
    );

    handle.answer(&question.id, json!("again")).await.expect("stored");
    *hangs.lock().expect("a lock") = false;
    assert_eq!(run().await.expect("an output"), 5);
    assert_eq!(calls.load(Ordering::Relaxed), 2);
}

/// M13, S7
#[tokio::test]
async fn a_second_run_of_a_job_gets_the_holder_and_a_job_that_was_taken_over_is_aborted() {
    let (store, began, goes_on) = (MemoryStore::new(), Arc::new(Notify::new()), Arc::new(Notify::new()));
    let calls = Arc::new(AtomicUsize::new(0));
    let step = counted(&calls);
    let job = Arc::new(runnable_fn("job", {
        let (began, goes_on) = (Arc::clone(&began), Arc::clone(&goes_on));
        move |(): (), _: RunContext| {
            let (step, began, goes_on) = (Arc::clone(&step), Arc::clone(&began), Arc::clone(&goes_on));
            async move {
                began.notify_one();
                goes_on.notified().await;
                step.run(json!(1)).key("step").await
            }
        }
    }));
    let run = tokio::spawn(Arc::clone(&job).run_shared(()).middleware(Durable::new(&store, ID)));
    began.notified().await;
    let (_, holder) = status(&store).await;
    let elsewhere = OfProcess::new(&store, &Killer::at(usize::MAX));
    for other in [Durable::new(&store, ID), Durable::new(&elsewhere, ID)] {
        let error = job.run(()).middleware(other).await.expect_err("held");
        let held = error.find::<StoreError>();
        assert!(
            matches!(held, Some(StoreError::Held { holder: of, .. }) if Some(&of.by) == holder.as_ref().map(|holder| &holder.by)),
            "{held:?}"
        );
    }

    let mut head = store.load(ID).await.expect("a store").expect("an entry").head;
    let holder = head.holder.take().expect("a holder");
    head.revision = store.append(&Append::new(head.clone()).by(holder.by)).await.expect("the end of its lease");
    let other = Append::new(head).by("other").holding(Duration::from_secs(30));
    store.append(&other).await.expect("the current revision");
    let before = store.load(ID).await.expect("a store");
    goes_on.notify_one();
    let error = run.await.expect("no panic").expect_err("taken over");
    assert!(error.is_aborted() && error.to_string().contains("lost its claim to `other` at"), "{error:?}");
    assert_eq!((calls.load(Ordering::Relaxed), store.load(ID).await.expect("a store")), (0, before));
}

/// S9
#[tokio::test]
async fn a_job_that_is_dropped_is_paused_and_its_claim_is_released() {
    let (store, began) = (MemoryStore::new(), Arc::new(Notify::new()));
    let job = runnable_fn("job", {
        let began = Arc::clone(&began);
        move |(): (), _: RunContext| {
            began.notify_one();
            pending::<Result<()>>()
        }
    });
    tokio::select! {
        _ = job.run(()).middleware(Durable::new(&store, ID)) => unreachable!("it hangs"),
        () = began.notified() => {}
    }
    wait_for_ends(Duration::from_secs(5)).await;
    assert_eq!(status(&store).await, (EntryStatus::Paused, None));
}

/// M13
#[tokio::test]
async fn a_guard_decides_before_a_step_has_begun_and_about_an_answered_output() {
    use emitree_middleware::Approval;
    use emitree_middleware::approval::Decision;

    let (store, calls) = (MemoryStore::new(), Arc::new(AtomicUsize::new(0)));
    let step = counted(&calls);
    let job = runnable_fn("job", move |(): (), _: RunContext| {
        let step = Arc::clone(&step);
        async move { step.run(json!(1)).key("step").middleware(Approval::by_interrupt()).await }
    });
    let handle = Durable::new(&store, ID);
    let run = || job.run(()).middleware(handle.clone());
    assert!(run().await.expect_err("a question").is_interrupted());
    let [question] = &handle.questions().await.expect("a store")[..] else { panic!("one question") };
    assert_eq!((&*question.kind, calls.load(Ordering::Relaxed)), ("approval", 0));
    let approve = serde_json::to_value(Decision::Approve).expect("JSON");
    handle.answer(&question.id, approve).await.expect("stored");
    assert_eq!(run().await.expect("an output"), json!(1));
    assert_eq!(calls.load(Ordering::Relaxed), 1);
}

#[tokio::test]
async fn answered_steps_and_steps_that_are_no_longer_started_are_reported() {
    let (store, calls) = (MemoryStore::new(), Arc::new(AtomicUsize::new(0)));
    let keys = Arc::new(Mutex::new(vec!["a", "b", "fail"]));
    let step = counted(&calls);
    let job = runnable_fn("job", {
        let keys = Arc::clone(&keys);
        move |(): (), _: RunContext| {
            let (step, keys) = (Arc::clone(&step), keys.lock().expect("a lock").clone());
            async move { try_join_all(keys.into_iter().map(|key| step.run(json!(key)).key(key))).await.map(|all| all.len()) }
        }
    });
    let events = Arc::new(Mutex::new(Vec::new()));
    let run = || {
        let (answered, unused) = (Arc::clone(&events), Arc::clone(&events));
        job.run(())
            .middleware(Durable::new(&store, ID))
            .observe("middleware.durable.answered", move |event: &Answered, _| {
                answered.lock().expect("a lock").push(format!("{} {}", event.key, event.failed));
            })
            .observe("middleware.durable.unused", move |event: &Unused, _| {
                unused.lock().expect("a lock").push(format!("{:?}", event.keys));
            })
    };
    run().await.expect_err("it fails");
    *keys.lock().expect("a lock") = vec!["b", "c"];
    assert_eq!(run().await.expect("an output"), 2);
    assert_eq!(run().await.expect("an output"), 2);
    let expected = ["import-7/b false", r#"["import-7/a", "import-7/fail"]"#, "import-7 false"];
    assert_eq!(*events.lock().expect("a lock"), expected);
}

/// M13
#[tokio::test]
async fn a_run_that_keeps_its_steps_itself_goes_on_after_a_kill_and_may_ask() {
    let (store, calls) = (MemoryStore::new(), Arc::new(AtomicUsize::new(0)));
    let call = Arc::new(runnable_fn("call", {
        let calls = Arc::clone(&calls);
        move |(): (), ctx: RunContext| {
            calls.fetch_add(1, Ordering::Relaxed);
            async move {
                let job = ctx.extension::<JobStore>().expect("the store of the job");
                let pay: bool = ctx.ask(Interrupt::new("pay", json!({})))?;
                let above = ctx.parent().expect("the agent").key().expect("a key");
                assert!(above.fence().is_some() && ctx.key().expect("a key").fence().is_none());
                Ok((pay, above.to_string(), format!("{:?}", job.store().store_id())))
            }
        }
    }));
    let agent = Arc::new(runnable_fn("agent", move |(): (), _: RunContext| {
        let call = Arc::clone(&call);
        async move { call.run(()).key("call").await }
    }));
    let job = runnable_fn("job", move |(): (), _: RunContext| {
        let agent = Arc::clone(&agent);
        let keeps = |ctx: &RunContext| {
            ctx.set_extension(OwnSteps::new());
            Ok(())
        };
        async move { agent.run(()).key("agent").middleware(middleware_fn(keeps)).await }
    });
    let handle = Durable::new(&store, ID);
    let error = job.run(()).middleware(handle.clone()).await.expect_err("a question");
    let question = &error.interrupt().expect("a question");
    assert_eq!(question.kind, "pay", "{error:?}");
    handle.answer(&question.id, json!(true)).await.expect("stored");
    // It had begun, and is executed again without a question.
    let output = job.run(()).middleware(handle.clone()).await.expect("an output");
    assert_eq!(output, (true, "import-7/agent".to_owned(), format!("{:?}", store.store_id())));
    assert_eq!(calls.load(Ordering::Relaxed), 2);
}

/// M13
#[tokio::test]
async fn a_job_in_a_job_is_one_step_of_it() {
    let (store, calls) = (MemoryStore::new(), Arc::new(AtomicUsize::new(0)));
    let step = counted(&calls);
    let inner = Arc::new(runnable_fn("inner", move |(): (), ctx: RunContext| {
        let step = Arc::clone(&step);
        async move {
            step.run(json!(1)).key("step").await?;
            ctx.ask::<u32>(Interrupt::new("more", json!({})))
        }
    }));
    let outer = runnable_fn("outer", {
        let store = store.clone();
        move |(): (), _: RunContext| {
            let (inner, job) = (Arc::clone(&inner), Durable::new(&store, "inner"));
            async move { inner.run(()).key("inner").middleware(job).await }
        }
    });
    let handle = Durable::new(&store, ID);
    let error = outer.run(()).middleware(handle.clone()).await.expect_err("a question");
    let question = error.interrupt().expect("a question").id.clone();
    assert!(question.starts_with("import-7/inner/"), "{question}");
    Durable::new(&store, "inner").answer(&question, json!(5)).await.expect("stored");
    assert_eq!(outer.run(()).middleware(handle).await.expect("an output"), 5);
    assert_eq!(calls.load(Ordering::Relaxed), 1);
    let parts = store.load(ID).await.expect("a store").expect("an entry").parts;
    assert!(
        !parts.iter().any(|part| String::from_utf8_lossy(part).contains("inner/step")),
        "the step of the inner job"
    );
}

#[tokio::test]
async fn what_cannot_be_stored_fails_before_anything_is_executed() {
    let (store, calls) = (MemoryStore::new(), Arc::new(AtomicUsize::new(0)));
    store.append(&Append::new(EntryHead::new(ID, "session")).part("1")).await.expect("a new entry");
    let before = store.load(ID).await.expect("a store");
    let run = async |id: &str, input: Value| {
        let job = counted(&calls).run(input).middleware(Durable::new(&store, id)).await;
        job.expect_err("it cannot be stored").to_string()
    };
    let error = run(ID, json!(1)).await;
    assert_eq!(
        error,
        "the entry \"import-7\" is not valid: it is of the kind `session`, not a job: give the job another id"
    );
    assert_eq!(store.load(ID).await.expect("a store"), before);

    let deep = (0..127).fold(json!(1), |value, _| json!([value]));
    assert!(run("deep", deep).await.contains("nested"), "a deep input");
    let nan = runnable_fn("nan", |_: f64, _: RunContext| async move { Ok(1) });
    let error = nan.run(f64::NAN).middleware(Durable::new(&store, "nan")).await.expect_err("a NaN").to_string();
    assert!(error.starts_with("the input of the job cannot be stored: the number at `.` is NaN"), "{error}");
    assert_eq!(calls.load(Ordering::Relaxed), 0);
}

/// M13
#[tokio::test]
async fn concurrent_steps_are_stored_and_answered() {
    let (store, calls) = (MemoryStore::new(), Arc::new(AtomicUsize::new(0)));
    let step = counted(&calls);
    let fails = Arc::new(AtomicUsize::new(1));
    let job = runnable_fn("job", {
        let fails = Arc::clone(&fails);
        move |(): (), _: RunContext| {
            let (step, fails) = (Arc::clone(&step), fails.swap(0, Ordering::Relaxed) == 1);
            async move {
                let steps = (0..50).map(|n| step.run(json!(n)).key(n.to_string()));
                let all = try_join_all(steps).await?;
                if fails { Err(Error::new("once")) } else { Ok(all) }
            }
        }
    });
    job.run(()).middleware(Durable::new(&store, ID)).await.expect_err("once");
    let all = job.run(()).middleware(Durable::new(&store, ID)).await.expect("an output");
    assert_eq!((all, calls.load(Ordering::Relaxed)), ((0..50).map(|n| json!(n)).collect::<Vec<_>>(), 50));
}

/// M13, S10
#[tokio::test]
async fn a_job_whose_parts_were_replaced_is_answered_as_before() {
    let (store, calls) = (MemoryStore::new(), Arc::new(AtomicUsize::new(0)));
    let step = counted(&calls);
    let long = "x".repeat(60_000);
    let job = runnable_fn("job", move |(): (), ctx: RunContext| {
        let (step, long) = (Arc::clone(&step), long.clone());
        async move {
            let mut sum = 0;
            for n in 0..100 {
                let output = step.run(json!({"n": n, "text": long})).key(n.to_string()).await?;
                sum += output["n"].as_u64().unwrap_or_default();
            }
            let failed = step.run(json!("fail")).key("fail").await;
            let more = if ctx.ask(Interrupt::new("more", json!({})))? { 1 } else { 0 };
            failed.map_or_else(|error| Ok(sum + more + error.details()["at"].as_u64().unwrap_or_default()), |_| Ok(0))
        }
    });
    let handle = Durable::new(&store, ID);
    let error = job.run(()).middleware(handle.clone()).await.expect_err("a question");
    handle.answer(&error.interrupt().expect("a question").id, json!(true)).await.expect("stored");
    let head = store.load(ID).await.expect("a store").expect("an entry").head;
    assert!(head.whole_bytes > 1024 * 1024, "{}", head.whole_bytes);
    assert_eq!(job.run(()).middleware(handle).await.expect("an output"), 99 * 100 / 2 + 1 + 3);
    assert_eq!(calls.load(Ordering::Relaxed), 101);
}

#[tokio::test]
async fn a_job_that_is_not_as_it_was_stored_is_refused_and_stays_as_it_is() {
    let table: &[(&[&str], &str)] = &[
        (&[r#"{"input":{"format":2,"input":1}}"#], "its part 0: the job has format 2, and this version reads format 1"),
        (
            &[r#"{"input":{"format":1,"input":1}}"#, r#"{"ended":{"key":"a","output":1}}"#],
            "its part 1: the step `a` has ended, and not begun",
        ),
        (&[r#"{"paused":true}"#], "its part 0 cannot be read: unknown variant `paused`"),
        (&["{"], "its part 0 cannot be read: EOF"),
    ];
    for (parts, problem) in table {
        let (store, calls) = (MemoryStore::new(), Arc::new(AtomicUsize::new(0)));
        let append = parts.iter().fold(Append::new(EntryHead::new(ID, "job")), |append, part| append.part(*part));
        store.append(&append).await.expect("a new entry");
        let before = store.load(ID).await.expect("a store");
        let handle = Durable::new(&store, ID);
        let error = counted(&calls).run(json!(1)).middleware(handle.clone()).await.expect_err("damaged").to_string();
        let expected = format!("the stored entry `{ID}` is damaged: {problem}");
        assert!(error.starts_with(&expected), "{error}, not {expected}");
        handle.questions().await.expect_err("damaged");
        assert_eq!((store.load(ID).await.expect("a store"), calls.load(Ordering::Relaxed)), (before, 0));
    }
}

/// M13
#[tokio::test]
async fn a_full_disk_is_an_error_before_a_step_is_executed_and_the_next_start_goes_on() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("jobs.db");
    let calls = Arc::new(AtomicUsize::new(0));
    let step = counted(&calls);
    let job = runnable_fn("job", move |count: u64, _: RunContext| {
        let step = Arc::clone(&step);
        async move {
            for n in 0..count {
                step.run(json!("x".repeat(10_000))).key(n.to_string()).await?;
            }
            Ok(count)
        }
    });
    let store = SqliteStore::open_with(&path, "PRAGMA max_page_count = 40").await.expect("a store");
    let handle = Durable::new(&store, ID).lease(Lease::new().time(Duration::from_millis(10)));
    let error = job.run(50).middleware(handle.clone()).await.expect_err("full").explain();
    assert!(error.contains("jobs.db` cannot be written: free space on its disk"), "{error}");
    let executed = calls.load(Ordering::Relaxed);
    assert!((1..20).contains(&executed), "{executed}");
    drop((store, handle));

    let store = SqliteStore::open(&path).await.expect("a store");
    // The claim could not be released on the full disk.
    let output = loop {
        match job.run(50).middleware(Durable::new(&store, ID)).await {
            Err(error) if error.find::<StoreError>().is_some() => tokio::task::yield_now().await,
            Err(error) if error.is_interrupted() => {
                let handle = Durable::new(&store, ID);
                handle.answer(&error.interrupt().expect("a question").id, json!("again")).await.expect("stored");
            }
            ended => break ended,
        }
    };
    assert_eq!(output.expect("an output"), 50);
    assert!(calls.load(Ordering::Relaxed) <= 51, "{}", calls.load(Ordering::Relaxed));
}
