//! The sleeps of a job, the deadlines of its questions, and the values that it publishes (M13). Time is paused, so the wall clock stands still: `later` moves the times that are stored.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, SystemTime};

use bytes::Bytes;
use chrono::{DateTime, Utc};
use emitree_middleware::durable::AlreadyAnswered;
use emitree_middleware::store::{Append, EntryStatus, MemoryStore, Store, StoreError};
use emitree_middleware::{Durable, Retry};
use emitree_runtime::{
    AbortHandle, BoxRunnable, Error, Interrupt, Result, RunContext, Runnable, runnable_fn, wait_for_ends,
};
use futures_util::future::{BoxFuture, join};
use serde_json::{Value, json};
use tokio::sync::Notify;
use tokio::time::{Instant, timeout};

use super::ID;
use super::kill::{Killer, OfProcess};

const MINUTE: Duration = Duration::from_secs(60);
const HOUR: Duration = Duration::from_secs(3_600);

type Job = Arc<BoxRunnable<(), Value>>;

fn job(work: impl Fn(RunContext) -> BoxFuture<'static, Result<Value>> + Send + Sync + 'static) -> Job {
    Arc::new(BoxRunnable::new(runnable_fn("job", move |(): (), ctx: RunContext| work(ctx))))
}

/// Returns a job that sleeps once.
fn sleeper(duration: Duration) -> Job {
    job(move |ctx| {
        Box::pin(async move {
            ctx.sleep("pause", duration).await?;
            Ok(json!("ended"))
        })
    })
}

/// Returns the handle of another process.
fn handle(store: &MemoryStore) -> Durable {
    Durable::new(&OfProcess::new(store, &Killer::at(usize::MAX)), ID)
}

/// Returns the records of the job.
async fn records(store: &MemoryStore) -> Vec<Value> {
    let parts = store.load(ID).await.expect("a store").expect("an entry").parts;
    parts.iter().map(|part| serde_json::from_slice(part).expect("JSON")).collect()
}

async fn sleeps(store: &MemoryStore) -> usize {
    records(store).await.iter().filter(|record| record.get("sleeps").is_some()).count()
}

/// Lets time pass until the next start: moves the stored times back.
async fn later(store: &MemoryStore, after: Duration) {
    let mut records = records(store).await;
    let members = records.iter_mut().filter_map(Value::as_object_mut).flatten();
    let times = members.flat_map(|(name, of)| match name.as_str() {
        "sleeps" => vec![&mut of["until"]],
        "deadlines" => of.as_object_mut().into_iter().flatten().map(|(_, answer)| &mut answer["at"]).collect(),
        _ => Vec::new(),
    });
    for time in times {
        let at: DateTime<Utc> = time.as_str().expect("a text").parse().expect("a time");
        *time = json!(at - after);
    }
    let head = store.load(ID).await.expect("a store").expect("an entry").head;
    let parts = records.iter().map(|record| Bytes::from(record.to_string()));
    let append = parts.fold(Append::new(head), Append::part).replacing();
    store.append(&append).await.expect("stored");
}

/// Returns a result, and the whole minutes that it took.
async fn minutes<T>(run: impl Future<Output = T>) -> (T, u64) {
    let began = Instant::now();
    let result = run.await;
    // The clock of the wall has gone on by some milliseconds.
    (result, (began.elapsed() + Duration::from_secs(30)).as_secs() / 60)
}

/// M13
#[tokio::test(start_paused = true)]
async fn a_later_start_sleeps_only_the_rest_and_the_claim_is_held_meanwhile() {
    let store = MemoryStore::new();
    let first = sleeper(HOUR).run_shared(()).middleware(handle(&store));
    let elsewhere = async {
        // Some leases later.
        tokio::time::sleep(10 * MINUTE).await;
        sleeper(HOUR).run_shared(()).middleware(handle(&store)).await.expect_err("held")
    };
    let held = tokio::select! {
        ended = first => panic!("{ended:?}"),
        held = elsewhere => held,
    };
    assert!(matches!(held.find::<StoreError>(), Some(StoreError::Held { .. })), "{held}");
    wait_for_ends(MINUTE).await;
    later(&store, 50 * MINUTE).await;

    // The end is stored, whatever the next start is called with.
    let (ended, after) = minutes(sleeper(5 * HOUR).run_shared(()).middleware(handle(&store))).await;
    assert_eq!((ended.expect("an output"), after), (json!("ended"), 10));
    assert_eq!(sleeps(&store).await, 1);
}

/// F6
#[tokio::test(start_paused = true)]
async fn a_sleep_and_a_deadline_end_by_the_clock_of_the_store() {
    // Of two machines, the clock of one is behind that of the store.
    let on = |store: &MemoryStore, behind: u32| Durable::new(&OfProcess::behind(store, behind * MINUTE), ID);
    for [first, second, rest] in [[0, 40, 20], [40, 0, 100], [40, 40, 60], [0, 60, 0]] {
        let store = MemoryStore::new();
        let killed = sleeper(HOUR).run_shared(()).middleware(on(&store, first));
        timeout(Duration::from_secs(1), killed.into_future()).await.expect_err("it sleeps");
        wait_for_ends(MINUTE).await;
        let (ended, after) = minutes(sleeper(HOUR).run_shared(()).middleware(on(&store, second))).await;
        assert_eq!((ended.expect("an output"), after), (json!("ended"), u64::from(rest)), "{first} and {second}");

        let store = MemoryStore::new();
        asks(1).run_shared(()).middleware(on(&store, first)).await.expect_err("a question");
        let again = asks(1).run_shared(()).middleware(on(&store, second)).await;
        assert_eq!(again.ok(), (rest == 0).then_some(Value::Bool(false)), "{first} and {second}");
    }
}

/// M13
#[tokio::test(start_paused = true)]
async fn a_sleep_that_has_ended_meanwhile_takes_no_time() {
    let store = MemoryStore::new();
    timeout(MINUTE, sleeper(HOUR).run_shared(()).middleware(handle(&store))).await.expect_err("it sleeps");
    wait_for_ends(MINUTE).await;
    later(&store, 2 * HOUR).await;
    let (ended, after) = minutes(sleeper(HOUR).run_shared(()).middleware(handle(&store))).await;
    assert_eq!((ended.expect("an output"), after), (json!("ended"), 0));
}

/// M13
#[tokio::test(start_paused = true)]
async fn an_abort_and_a_timeout_end_a_sleep_at_once() {
    let (store, abort) = (MemoryStore::new(), AbortHandle::new());
    let aborts = async {
        tokio::time::sleep(MINUTE).await;
        abort.abort("enough");
    };
    let run = sleeper(HOUR).run_shared(()).middleware(handle(&store)).abort_on(&abort);
    let ((error, ()), after) = minutes(join(run, aborts)).await;
    assert_eq!((error.expect_err("aborted").explain(), after), ("aborted: enough".to_owned(), 1));

    let run = sleeper(HOUR).run_shared(()).middleware(handle(&store)).timeout(3 * MINUTE);
    let (error, after) = minutes(run).await;
    assert!(error.expect_err("too late").is_timed_out());
    assert_eq!(after, 3);
    let head = store.load(ID).await.expect("a store").expect("an entry").head;
    assert_eq!((head.status, head.holder), (EntryStatus::Paused, None));
}

/// M13
#[tokio::test(start_paused = true)]
async fn two_sleeps_with_one_key_in_one_attempt_are_an_error_that_quotes_the_key() {
    let twice = || {
        job(|ctx| {
            Box::pin(async move {
                ctx.sleep("a nap", MINUTE).await?;
                ctx.sleep("a nap", MINUTE).await?;
                Ok(json!("ended"))
            })
        })
    };
    let expected = "cannot sleep with the key \"a nap\": the run `Run job` (";
    for run in [twice().run_shared(()), twice().run_shared(()).middleware(handle(&MemoryStore::new()))] {
        let error = run.await.expect_err("twice").to_string();
        assert!(error.contains(expected) && error.ends_with("give each sleep a key of its own"), "{error}");
    }
    // Two runs without keys in a job.
    let store = MemoryStore::new();
    let both = job(|_| {
        Box::pin(async {
            sleeper(MINUTE).run_shared(()).await?;
            sleeper(MINUTE).run_shared(()).await
        })
    });
    let error = both.run_shared(()).middleware(handle(&store)).await.expect_err("twice").to_string();
    assert!(error.contains("with the key \"pause\""), "{error}");

    // Another attempt sleeps the rest of the first.
    let (store, tries) = (MemoryStore::new(), Arc::new(AtomicUsize::new(0)));
    let retried = job({
        let tries = Arc::clone(&tries);
        move |ctx| {
            let is_first = tries.fetch_add(1, Ordering::Relaxed) == 0;
            Box::pin(async move {
                ctx.sleep("a nap", MINUTE).await?;
                if is_first { Err(Error::new("busy").retryable(true)) } else { Ok(json!("ended")) }
            })
        }
    });
    let run = retried.run_shared(()).middleware(handle(&store)).middleware(Retry::new());
    assert_eq!(run.await.expect("an output"), json!("ended"));
    assert_eq!((tries.load(Ordering::Relaxed), sleeps(&store).await), (2, 1));
}

/// M13
#[tokio::test(start_paused = true)]
async fn a_sleep_that_cannot_be_stored_is_an_error_and_does_not_sleep() {
    let problem = async |key: &'static str, duration: Duration| {
        let run = job(move |ctx| {
            Box::pin(async move {
                ctx.sleep(key, duration).await?;
                Ok(json!("ended"))
            })
        });
        let (error, after) = minutes(run.run_shared(()).middleware(handle(&MemoryStore::new()))).await;
        assert_eq!(after, 0);
        error.expect_err("not stored").to_string()
    };
    assert!(problem("a/b", MINUTE).await.starts_with("\"a/b\" cannot be the key of a run, because it contains `/`"));
    for duration in [Duration::MAX, Duration::from_secs(9_000 * 366 * 86_400)] {
        let expected = format!("the sleep `{ID}/a` of {duration:?} is too long: it ends after the year 9999");
        assert_eq!(problem("a", duration).await, expected);
    }
}

#[tokio::test(start_paused = true)]
async fn without_a_job_a_sleep_takes_its_whole_time() {
    for _ in 0..2 {
        let (ended, after) = minutes(sleeper(HOUR).run_shared(()).key("a")).await;
        assert_eq!((ended.expect("an output"), after), (json!("ended"), 60));
    }
}

/// M13
#[tokio::test(start_paused = true)]
async fn a_question_ends_the_sleeps_of_the_job_and_not_those_of_a_step_under_way() {
    let store = MemoryStore::new();
    let asks = |ctx: RunContext| async move {
        tokio::time::sleep(MINUTE).await;
        ctx.ask::<bool>(Interrupt::new("agree", json!({})))
    };
    let beside = job(move |ctx| {
        Box::pin(async move {
            let (slept, asked) = join(ctx.sleep("pause", HOUR), asks(ctx.clone())).await;
            assert!(slept.is_err_and(|error| error.is_interrupted()));
            // It is not stored: it would begin after the question.
            assert!(ctx.sleep("later", HOUR).await.is_err_and(|error| error.is_interrupted()));
            asked.map(Value::from)
        })
    });
    let (error, after) = minutes(beside.run_shared(()).middleware(handle(&store))).await;
    assert!(error.expect_err("a question").is_interrupted());
    assert_eq!((after, sleeps(&store).await), (1, 1));

    // A sleep that is over is answered.
    later(&store, 2 * HOUR).await;
    let again = job(move |ctx| {
        Box::pin(async move {
            let asked = asks(ctx.clone()).await;
            ctx.sleep("pause", HOUR).await?;
            asked.map(Value::from)
        })
    });
    assert!(again.run_shared(()).middleware(handle(&store)).await.expect_err("a question").is_interrupted());

    let store = MemoryStore::new();
    let beside_step = job(move |ctx| {
        Box::pin(async move {
            let (slept, asked) = join(sleeper(HOUR).run_shared(()).key("step").into_future(), asks(ctx)).await;
            assert_eq!(slept.expect("an output"), json!("ended"));
            asked.map(Value::from)
        })
    });
    let (error, after) = minutes(beside_step.run_shared(()).middleware(handle(&store))).await;
    assert!(error.expect_err("a question").is_interrupted());
    assert_eq!(after, 60);
}

/// M13, S10
#[tokio::test(start_paused = true)]
async fn sleeps_and_published_values_are_kept_when_the_parts_of_their_job_are_replaced() {
    let store = MemoryStore::new();
    let long = job(|ctx| {
        Box::pin(async move {
            ctx.publish("progress", &1)?;
            ctx.sleep("pause", HOUR).await?;
            let step = runnable_fn("step", |text: String, _: RunContext| async move { Ok(text.len()) });
            step.run("x".repeat(200_000)).key("step").await?;
            ctx.ask::<Value>(Interrupt::new("agree", json!({})))
        })
    });
    let (error, after) = minutes(long.run_shared(()).middleware(handle(&store))).await;
    assert!(error.expect_err("a question").is_interrupted());
    let head = store.load(ID).await.expect("a store").expect("an entry").head;
    assert_eq!((after, head.whole_bytes > 200_000, sleeps(&store).await), (60, true, 1));
    assert_eq!(published(&store).await, json!({"progress": 1}));
}

/// Returns a job that asks with a deadline of an hour, after a step with a long output.
fn asks(bytes: usize) -> Job {
    job(move |ctx| {
        Box::pin(async move {
            let step = runnable_fn("step", |bytes: usize, _: RunContext| async move { Ok("x".repeat(bytes)) });
            step.run(bytes).key("step").await?;
            let question = Interrupt::new("agree", json!({})).with_deadline(HOUR, json!(false));
            ctx.ask::<bool>(question).map(Value::from)
        })
    })
}

/// M8, M13
#[tokio::test(start_paused = true)]
async fn a_deadline_counts_from_the_first_time_that_the_question_is_asked() {
    // The parts of a long job are replaced at the end of each start.
    for bytes in [1, 200_000] {
        let (store, began) = (MemoryStore::new(), SystemTime::now());
        let mut seen = Vec::new();
        for _ in 0..2 {
            let error = asks(bytes).run_shared(()).middleware(handle(&store)).await.expect_err("a question");
            let asked = error.interrupt().expect("a question").clone();
            assert_eq!(handle(&store).questions().await.expect("a store"), std::slice::from_ref(&asked));
            seen.push(asked.deadline.expect("a deadline"));
            later(&store, 10 * MINUTE).await;
        }
        let [first, second] = [0, 1].map(|n| seen[n].at.expect("a time"));
        assert!(first >= began + HOUR && first <= SystemTime::now() + HOUR, "{first:?}");
        assert_eq!((second, &seen[0].value), (first - 10 * MINUTE, &json!(false)));
    }
}

/// M8, M13
#[tokio::test(start_paused = true)]
async fn the_first_ask_after_a_deadline_stores_its_answer_and_a_later_one_is_an_error() {
    let store = MemoryStore::new();
    let start = async || asks(1).run_shared(()).middleware(handle(&store)).await;
    let id = start().await.expect_err("a question").interrupt().expect("a question").id.clone();
    later(&store, HOUR - MINUTE).await;
    assert!(start().await.expect_err("a question").is_interrupted());
    later(&store, 2 * MINUTE).await;
    assert_eq!(handle(&store).questions().await.expect("a store").len(), 1, "nobody has asked yet");
    assert_eq!(start().await.expect("an output"), json!(false));
    assert_eq!(start().await.expect("an output"), json!(false));
    let error = handle(&store).answer(&id, json!(true)).await.expect_err("too late");
    let answered = error.find::<AlreadyAnswered>().expect("the stored answer");
    assert_eq!(answered.first.value, json!(false));
    let answers = records(&store).await.into_iter().filter(|record| record["answered"].get(&id).is_some()).count();
    assert_eq!(answers, 1);
}

/// M8, M13
#[tokio::test(start_paused = true)]
async fn an_answer_before_the_ask_wins_over_a_deadline_unless_it_does_not_fit() {
    for (answer, expected) in [(json!(true), json!(true)), (json!("perhaps"), json!(false))] {
        let store = MemoryStore::new();
        let start = async || asks(1).run_shared(()).middleware(handle(&store)).await;
        let id = start().await.expect_err("a question").interrupt().expect("a question").id.clone();
        later(&store, 2 * HOUR).await;
        handle(&store).answer(&id, answer).await.expect("stored");
        assert_eq!(start().await.expect("an output"), expected);
    }
}

/// M8
#[tokio::test]
async fn the_answer_of_a_deadline_is_checked_and_only_a_job_keeps_it() {
    let ask = |answer: Value| {
        job(move |ctx| {
            let question = Interrupt::new("agree", json!({})).with_deadline(Duration::ZERO, answer.clone());
            Box::pin(async move { ctx.ask::<bool>(question).map(Value::from) })
        })
    };
    let runs =
        [ask(json!("no")).run_shared(()), ask(json!("no")).run_shared(()).middleware(handle(&MemoryStore::new()))];
    for run in runs {
        let error = run.await.expect_err("it does not fit").to_string();
        let expected =
            "the question `agree` cannot be asked: at its deadline, the answer `\"no\"` does not fit `bool`: ";
        assert!(error.starts_with(expected), "{error}");
    }
    let deep = (0..200).fold(json!(1), |value, _| json!([value]));
    assert!(ask(deep).run_shared(()).await.expect_err("too deep").to_string().contains("nested"));
    let asked = ask(json!(true)).run_shared(()).await.expect_err("nobody keeps it");
    let deadline = asked.interrupt().and_then(|question| question.deadline.clone()).expect("a deadline");
    assert_eq!(deadline.value, json!(true));
    let job = ask(json!(true)).run_shared(()).middleware(handle(&MemoryStore::new()));
    assert_eq!(job.await.expect("it is over already"), json!(true));
}

/// Returns the values that a job has published, as another process sees them.
async fn published(store: &MemoryStore) -> Value {
    json!(handle(store).published().await.expect("a store"))
}

/// M13
#[tokio::test(start_paused = true)]
async fn a_published_value_is_stored_by_the_next_commit_or_after_a_second_and_of_several_only_the_last() {
    let (store, done) = (MemoryStore::new(), Arc::new(Notify::new()));
    let ends = Arc::clone(&done);
    let counts = job(move |ctx| {
        let ends = Arc::clone(&ends);
        Box::pin(async move {
            for percent in 1..=40 {
                ctx.publish("progress", &percent)?;
            }
            let step = job(|ctx| {
                Box::pin(async move {
                    ctx.publish("page", "of a step")?;
                    Ok(json!(1))
                })
            });
            step.run_shared(()).await?;
            ends.notified().await;
            // The commit of the job's end stores it.
            ctx.publish("progress", &100)?;
            Ok(json!("ended"))
        })
    });
    let reads = async {
        tokio::time::sleep(Duration::from_millis(900)).await;
        assert_eq!(published(&store).await, json!({}));
        tokio::time::sleep(Duration::from_millis(200)).await;
        assert_eq!(published(&store).await, json!({"progress": 40, "page": "of a step"}));
        let revision = store.load(ID).await.expect("a store").expect("an entry").head.revision;
        tokio::time::sleep(Duration::from_secs(5)).await;
        let later = store.load(ID).await.expect("a store").expect("an entry").head.revision;
        assert_eq!(later, revision, "nothing is left to store");
        done.notify_one();
    };
    let (ended, ()) = join(counts.run_shared(()).middleware(handle(&store)).into_future(), reads).await;
    ended.expect("an output");
    assert_eq!(published(&store).await, json!({"progress": 100, "page": "of a step"}));
    let progress = |record: &Value| record["published"].get("progress").cloned();
    let stored: Vec<_> = records(&store).await.iter().filter_map(progress).collect();
    assert_eq!(stored, [40, 100]);
}

#[tokio::test]
async fn what_cannot_be_published_is_an_error_and_without_a_job_nothing_is() {
    let store = MemoryStore::new();
    let kept = Arc::new(Mutex::new(None));
    let keeps = Arc::clone(&kept);
    let publishes = job(move |ctx| {
        let keeps = Arc::clone(&keeps);
        Box::pin(async move {
            let deep = (0..126).fold(json!(1), |value, _| json!([value]));
            let errors = [ctx.publish("ratio", &f64::NAN), ctx.publish("deep", &deep)];
            ctx.publish("fine", &1)?;
            *keeps.lock().expect("a lock") = Some(ctx);
            Ok(json!(errors.map(|error| error.err().map(|error| error.explain()))))
        })
    });
    let errors = publishes.run_shared(()).middleware(handle(&store)).await.expect("an output");
    let [nan, deep] = [0, 1].map(|n| errors[n].as_str().expect("an error").to_owned());
    assert!(nan.starts_with("the value \"ratio\" cannot be published\n  caused by: the number at `.` is NaN"), "{nan}");
    assert!(deep.contains("nested"), "{deep}");
    assert_eq!(published(&store).await, json!({"fine": 1}));
    let ctx = kept.lock().expect("a lock").take().expect("a run");
    let error = ctx.publish("late", &1).expect_err("the job has ended").to_string();
    assert_eq!(error, "the job `import-7` keeps nothing, because it is not under way");

    // Without a job, nothing is read.
    let alone = publishes.run_shared(()).await.expect("an output");
    assert_eq!(alone, json!([null, null]));
}
