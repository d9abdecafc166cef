//! A question without an answer stops the job, on both stores (M8, M13).

use std::sync::{Arc, Mutex};
use std::time::Duration;

use emitree_middleware::approval::Decision;
use emitree_middleware::durable::{AlreadyAnswered, Unused};
use emitree_middleware::store::{Append, EntryStatus, MemoryStore, Revision, Store, StoreError};
use emitree_middleware::{Approval, Durable, Retry};
use emitree_runtime::{
    Answer, Answers, BoxRunnable, Error, Interrupt, JsonRun, Next, Result, RunContext, Runnable, Stack, layer_fn,
    runnable_fn, wait_for_ends,
};
use emitree_stores::SqliteStore;
use futures_util::future::BoxFuture;
use serde_json::{Value, json};
use tokio::sync::Notify;

use super::ID;
use super::kill::{Killer, OfProcess};

/// The keys of steps that were executed.
#[derive(Clone, Debug, Default)]
struct Log(Arc<Mutex<Vec<String>>>);

impl Log {
    fn take(&self) -> Vec<String> {
        std::mem::take(&mut *self.0.lock().expect("a lock"))
    }
}

type Work = Arc<dyn Fn(Job) -> BoxFuture<'static, Result<Value>> + Send + Sync>;

/// The run of a job or of a step, for its work.
#[derive(Clone)]
struct Job {
    ctx: RunContext,
    log: Log,
}

impl Job {
    fn ask(&self, kind: &str) -> Result<bool> {
        self.ctx.ask(Interrupt::new(kind, json!({})))
    }

    /// Makes a step that logs its key, and then does its work.
    fn step(&self, work: impl Fn(Self) -> BoxFuture<'static, Result<Value>> + Send + Sync + 'static) -> Step {
        step(&self.log, Arc::new(work))
    }

    /// Runs a step that only logs its key.
    async fn effect(&self, key: &str) -> Result<Value> {
        self.step(|_| Box::pin(async { Ok(json!(1)) })).run(()).key(key).await
    }
}

type Step = BoxRunnable<(), Value>;

fn step(log: &Log, work: Work) -> Step {
    let log = log.clone();
    BoxRunnable::new(runnable_fn("step", move |(): (), ctx: RunContext| {
        let (log, work) = (log.clone(), Arc::clone(&work));
        async move {
            let key = ctx.key().expect("a key").to_string();
            log.0.lock().expect("a lock").push(key.rsplit_once('/').map_or(key.clone(), |(_, key)| key.to_owned()));
            work(Job { ctx, log }).await
        }
    }))
}

/// A job on one of the stores.
struct Case {
    store: OfProcess,
    log: Log,
    _folder: tempfile::TempDir,
}

/// A job on each store.
async fn cases() -> Vec<Case> {
    let mut cases = Vec::new();
    for in_memory in [true, false] {
        let folder = tempfile::tempdir().expect("a folder");
        let killer = Killer::at(usize::MAX);
        let store = if in_memory {
            OfProcess::new(&MemoryStore::new(), &killer)
        } else {
            OfProcess::new(&SqliteStore::open(folder.path().join("jobs.db")).await.expect("a store"), &killer)
        };
        cases.push(Case { store, log: Log::default(), _folder: folder });
    }
    cases
}

impl Case {
    fn job(&self) -> Durable {
        Durable::new(&self.store, ID)
    }

    /// Runs the job once.
    async fn start(
        &self,
        work: impl Fn(Job) -> BoxFuture<'static, Result<Value>> + Send + Sync + 'static,
    ) -> Result<Value> {
        let log = self.log.clone();
        let job = runnable_fn("job", move |(): (), ctx: RunContext| work(Job { ctx, log: log.clone() }));
        job.run(()).middleware(self.job()).await
    }

    /// Starts the job, and drops it when a step tells so.
    async fn kill(
        &self,
        ready: &Notify,
        work: impl Fn(Job) -> BoxFuture<'static, Result<Value>> + Send + Sync + 'static,
    ) {
        tokio::select! {
            ended = self.start(work) => panic!("it hangs: {ended:?}"),
            () = ready.notified() => {}
        }
        wait_for_ends(Duration::from_secs(5)).await;
    }

    /// Returns the handle of another process.
    fn elsewhere(&self) -> Durable {
        Durable::new(&OfProcess::new(&self.store, &Killer::at(usize::MAX)), ID)
    }

    /// Returns the kinds of the open questions.
    async fn kinds(&self) -> Vec<String> {
        let head = self.store.load(ID).await.expect("a store").expect("an entry").head;
        let mut kinds: Vec<_> =
            self.job().questions().await.expect("a store").into_iter().map(|open| open.kind).collect();
        assert_eq!(head.questions.iter().map(|open| open.kind.clone()).collect::<Vec<_>>(), kinds);
        let expected = if kinds.is_empty() { EntryStatus::Ended } else { EntryStatus::Waiting };
        assert_eq!((head.status, head.holder), (expected, None));
        kinds.sort_unstable();
        kinds
    }

    /// Answers all open questions.
    async fn answer(&self, answer: Value) {
        for question in self.job().questions().await.expect("a store") {
            self.job().answer(&question.id, answer.clone()).await.expect("stored");
        }
    }
}

/// A saga that compensates after every error.
fn saga(job: Job) -> BoxFuture<'static, Result<Value>> {
    Box::pin(async move {
        job.effect("charge").await?;
        match job.ask("ship") {
            Ok(true) => job.effect("ship").await,
            _ => job.effect("refund").await,
        }
    })
}

/// M13
#[tokio::test]
async fn a_compensation_does_not_begin_while_a_question_has_no_answer() {
    for answer in [true, false] {
        for case in cases().await {
            for _ in 0..2 {
                let error = case.start(saga).await.expect_err("a question");
                assert_eq!(error.interrupt().map(|open| &*open.kind), Some("ship"), "{error:?}");
                assert_eq!(case.kinds().await, ["ship"]);
            }
            case.answer(json!(answer)).await;
            assert_eq!(case.start(saga).await.expect("an output"), json!(1));
            assert_eq!(case.log.take(), ["charge", if answer { "ship" } else { "refund" }]);
            assert!(case.kinds().await.is_empty());
        }
    }
}

/// M13
#[tokio::test]
async fn branches_that_ask_beside_one_another_give_all_their_questions_in_one_start() {
    type Branch = fn(Job, &'static str) -> BoxFuture<'static, Result<Value>>;
    let of_job: Branch = |job, kind| Box::pin(async move { Ok(json!(job.ask(kind)?)) });
    let of_step: Branch = |job, kind| {
        let asks = job.step(move |step| Box::pin(async move { Ok(json!(step.ask(kind)?)) }));
        Box::pin(async move { asks.run(()).key(kind).await })
    };
    let of_run: Branch = |job, kind| {
        let asks = runnable_fn(kind, move |(): (), ctx: RunContext| async move {
            Ok(json!(ctx.ask::<bool>(Interrupt::new(kind, json!({})))?))
        });
        // A run with answers of its own, as an agent has.
        Box::pin(async move { asks.run(()).extension(Answers::of(&job.ctx).unwrap_or_default()).await })
    };
    for branch in [of_job, of_step, of_run] {
        for case in cases().await {
            let all = move |job: Job| -> BoxFuture<'static, Result<Value>> {
                Box::pin(async move {
                    let [a, b, c] = ["a", "b", "c"].map(|kind| branch(job.clone(), kind));
                    // Whatever it does with the results, it ends with the questions.
                    let (a, b, c) = tokio::join!(a, b, c);
                    Ok(json!([a.ok(), b.ok(), c.ok()]))
                })
            };
            case.start(all).await.expect_err("questions");
            assert_eq!(case.kinds().await, ["a", "b", "c"]);
            case.answer(json!(true)).await;
            assert_eq!(case.start(all).await.expect("an output"), json!([true, true, true]));
        }
    }
    // `try_join!` drops the other branches at the first question.
    for case in cases().await {
        let first = move |job: Job| -> BoxFuture<'static, Result<Value>> {
            Box::pin(async move {
                tokio::try_join!(of_job(job.clone(), "a"), of_job(job, "b"))?;
                Ok(json!(1))
            })
        };
        case.start(first).await.expect_err("a question");
        assert_eq!(case.kinds().await, ["a"]);
    }
}

/// M13
#[tokio::test]
async fn approvals_of_steps_beside_one_another_are_asked_in_one_start() {
    for case in cases().await {
        let approved = |job: Job| -> BoxFuture<'static, Result<Value>> {
            Box::pin(async move {
                let pay = job.step(|_| Box::pin(async { Ok(json!(1)) }));
                let run = |key: &'static str| pay.run(()).key(key).middleware(Approval::by_interrupt());
                let (a, b) = tokio::join!(run("a"), run("b"));
                Ok(json!([a?, b?]))
            })
        };
        case.start(approved).await.expect_err("questions");
        assert_eq!(case.kinds().await, ["approval", "approval"]);
        case.answer(serde_json::to_value(Decision::Approve).expect("JSON")).await;
        assert_eq!(case.start(approved).await.expect("an output"), json!([1, 1]));
        let mut executed = case.log.take();
        executed.sort_unstable();
        assert_eq!(executed, ["a", "b"]);
    }
}

/// M8, M13
#[tokio::test]
async fn a_step_may_ask_and_is_executed_again_with_the_answer_without_another_question() {
    let reserve = |job: Job| -> BoxFuture<'static, Result<Value>> {
        Box::pin(async move {
            let reserve = job.step(|step| {
                Box::pin(async move {
                    step.effect("hold").await?;
                    match step.ask("agree") {
                        Ok(true) => step.effect("book").await,
                        // A question is no failure.
                        _ => step.effect("release").await.or_else(|_| Ok(json!("released"))),
                    }
                })
            });
            let reserved = reserve.run(()).key("reserve").middleware(Retry::new()).await;
            Ok(reserved.unwrap_or_else(|_| json!("failed")))
        })
    };
    for answer in [true, false] {
        for case in cases().await {
            for _ in 0..2 {
                case.start(reserve).await.expect_err("a question");
                assert_eq!(case.kinds().await, ["agree"]);
            }
            assert_eq!(case.log.take(), ["reserve", "hold", "reserve"]);
            case.answer(json!(answer)).await;
            assert_eq!(case.start(reserve).await.expect("an output"), json!(1));
            assert_eq!(case.log.take(), ["reserve", if answer { "book" } else { "release" }]);
            assert_eq!(case.start(reserve).await.expect("an output"), json!(1));
            assert!(case.log.take().is_empty());
        }
    }
}

/// M13
#[tokio::test]
async fn after_a_question_steps_under_way_finish_and_stored_steps_are_answered() {
    for case in cases().await {
        let before = |job: Job| -> BoxFuture<'static, Result<Value>> {
            Box::pin(async move {
                job.effect("stored").await?;
                Err(Error::new("no"))
            })
        };
        case.start(before).await.expect_err("it fails");
        let asked = Arc::new(Notify::new());
        let work = move |job: Job| -> BoxFuture<'static, Result<Value>> {
            let asked = Arc::clone(&asked);
            Box::pin(async move {
                let waits = Arc::clone(&asked);
                let under_way = job.step(move |step| {
                    let waits = Arc::clone(&waits);
                    Box::pin(async move {
                        waits.notified().await;
                        // A step of a step that asks nothing.
                        step.effect("inner").await
                    })
                });
                let asks = async {
                    // The other step begins before this branch asks.
                    job.effect("first").await?;
                    let question = job.ask("go");
                    asked.notify_one();
                    assert_eq!(job.effect("stored").await.ok(), Some(json!(1)), "{question:?}");
                    let later = job.effect("later").await;
                    assert!(question.is_ok() || later.is_err_and(|error| error.is_interrupted()));
                    question
                };
                let (done, go) = tokio::join!(under_way.run(()).key("under way"), asks);
                Ok(json!([done?, go?]))
            })
        };
        let error = case.start(work.clone()).await.expect_err("a question");
        assert!(error.is_interrupted(), "{error:?}");
        let mut executed = case.log.take();
        executed.sort_unstable();
        assert_eq!(executed, ["first", "inner", "stored", "under way"]);
        assert_eq!(case.kinds().await, ["go"]);
        case.answer(json!(true)).await;
        assert_eq!(case.start(work).await.expect("an output"), json!([1, true]));
        assert_eq!(case.log.take(), ["later"]);
    }
}

/// M13
#[tokio::test]
async fn no_layer_of_the_job_takes_a_question_for_a_failure() {
    for case in cases().await {
        let (log, calls) = (case.log.clone(), Arc::new(Mutex::new(0)));
        let counted = Arc::clone(&calls);
        let job = runnable_fn("job", move |(): (), ctx: RunContext| {
            *counted.lock().expect("a lock") += 1;
            let job = Job { ctx, log: log.clone() };
            async move { job.ask("go").map_err(|_| Error::new("busy").retryable(true)) }
        });
        let error = job.run(()).middleware(case.job()).middleware(Retry::new()).await.expect_err("a question");
        assert!(error.is_interrupted(), "{error:?}");
        assert_eq!(case.kinds().await, ["go"]);
        assert_eq!(*calls.lock().expect("a lock"), 1);
    }
}

/// M13
#[tokio::test]
async fn steps_that_had_begun_are_asked_about_together() {
    for case in cases().await {
        let work = |job: Job| -> BoxFuture<'static, Result<Value>> {
            Box::pin(async move {
                let hang = |_: Job| -> BoxFuture<'static, Result<Value>> { Box::pin(std::future::pending()) };
                let (a, inner, c) = (job.step(hang), Arc::new(job.step(hang)), job.step(hang));
                let outer = job.step(move |_| {
                    let inner = Arc::clone(&inner);
                    Box::pin(async move { inner.run(()).key("inner").await })
                });
                let (a, b, c) = tokio::join!(a.run(()).key("a"), outer.run(()).key("b"), c.run(()).key("c"));
                Ok(json!([a?, b?, c?]))
            })
        };
        let ready = Arc::new(Notify::new());
        let told = Arc::clone(&ready);
        let started = move |job: Job| {
            let (told, log) = (Arc::clone(&told), job.log.clone());
            Box::pin(async move {
                tokio::select! {
                    ended = work(job) => ended,
                    () = all_begun(&log) => {
                        told.notify_one();
                        std::future::pending().await
                    }
                }
            }) as BoxFuture<'static, Result<Value>>
        };
        case.kill(&ready, started).await;
        case.log.take();

        // One after another, so that only the first step is reached.
        let next = |job: Job| -> BoxFuture<'static, Result<Value>> {
            Box::pin(async move {
                let mut all = Vec::new();
                for key in ["a", "b", "c"] {
                    all.push(job.effect(key).await?);
                }
                Ok(json!(all))
            })
        };
        case.start(next).await.expect_err("questions");
        assert_eq!(case.kinds().await, ["durable.began"; 4]);
        let questions = case.job().questions().await.expect("a store");
        let keys: Vec<_> = questions.iter().map(|question| question.data["key"].as_str().expect("a key")).collect();
        assert_eq!(keys, ["import-7/a", "import-7/b", "import-7/b/inner", "import-7/c"]);
        case.job().answer(&questions[1].id, json!({"output": "b"})).await.expect("stored");
        assert_eq!(case.elsewhere().questions().await.expect("a store").len(), 3, "read again");
        case.answer(json!("again")).await;

        let unused = Log::default();
        let seen = unused.clone();
        let log = case.log.clone();
        let job = runnable_fn("job", move |(): (), ctx: RunContext| next(Job { ctx, log: log.clone() }));
        let run = job.run(()).middleware(case.job()).observe("middleware.durable.unused", move |event: &Unused, _| {
            seen.0.lock().expect("a lock").extend(event.keys.clone());
        });
        assert_eq!(run.await.expect("an output"), json!([1, "b", 1]));
        assert_eq!(case.log.take(), ["a", "c"]);
        assert!(unused.take().is_empty(), "`b/inner` is below a step that was answered");
    }
}

/// Returns when all four steps have begun.
async fn all_begun(log: &Log) {
    while log.0.lock().expect("a lock").len() < 4 {
        tokio::task::yield_now().await;
    }
}

/// M13
#[tokio::test]
async fn the_loser_of_two_answers_is_told_the_stored_one() {
    for case in cases().await {
        case.start(saga).await.expect_err("a question");
        let [first, second] = [case.job(), case.elsewhere()];
        let question = second.questions().await.expect("a store").remove(0);
        first.answer(&question.id, Answer::from(json!(true)).by("ada")).await.expect("the first");
        for handle in [&first, &second, &case.elsewhere()] {
            let error = handle.answer(&question.id, json!(false)).await.expect_err("a second answer");
            let answered = error.find::<AlreadyAnswered>().unwrap_or_else(|| panic!("{error:?}"));
            assert_eq!((&answered.id, &answered.first.value), (&question.id, &json!(true)));
            assert_eq!(error.to_string(), format!("the question `{}` was answered with true by ada", question.id));
        }
    }
}

/// M13, F4, F5
#[tokio::test]
async fn an_answer_to_a_job_that_is_held_waits_for_the_next_process() {
    for case in cases().await {
        case.start(saga).await.expect_err("a question");
        let elsewhere = case.elsewhere();
        let question = elsewhere.questions().await.expect("a store").remove(0);
        for lease in [Some(Duration::from_secs(3600)), None] {
            let head = case.store.load(ID).await.expect("a store").expect("an entry").head;
            let mut append = Append::new(head).by("other");
            append.lease = lease;
            case.store.append(&append).await.expect("the current revision");
            if lease.is_some() {
                elsewhere.answer(&question.id, json!(false)).await.expect("it waits in the store");
            }
        }
        for job in [case.job(), elsewhere] {
            let error = job.answer(&question.id, json!(true)).await.expect_err("a second answer");
            assert_eq!(error.find::<AlreadyAnswered>().map(|answered| &answered.first.value), Some(&json!(false)));
            assert_eq!(job.questions().await.expect("a store").len(), 0);
        }
    }
}

/// M13
#[tokio::test]
async fn an_error_of_the_store_is_no_result_of_a_step_and_begins_no_compensation() {
    for case in cases().await {
        let work = |job: Job| -> BoxFuture<'static, Result<Value>> {
            Box::pin(async move {
                let is_first = job.log.0.lock().expect("a lock").is_empty();
                let charge = job.step(move |_| {
                    let failed = StoreError::failed("no disk for a moment", std::fmt::Error);
                    Box::pin(async move { if is_first { Err(failed.into()) } else { Ok(json!("charged")) } })
                });
                match charge.run(()).key("charge").idempotent().await {
                    Ok(charged) => Ok(charged),
                    Err(_) => job.effect("refund").await,
                }
            })
        };
        let error = case.start(work).await.expect_err("no disk");
        assert_eq!(error.to_string(), "no disk for a moment");
        let head = case.store.load(ID).await.expect("a store").expect("an entry").head;
        assert_eq!((head.status, head.holder), (EntryStatus::Paused, None));
        assert_eq!(case.start(work).await.expect("an output"), json!("charged"));
        assert_eq!(case.log.take(), ["charge", "charge"]);
    }
}

/// M13
#[tokio::test]
async fn a_conflict_is_a_failure_of_the_step() {
    for case in cases().await {
        let work = |job: Job| -> BoxFuture<'static, Result<Value>> {
            Box::pin(async move {
                let (after, current) = (Revision::new(1), Revision::new(2));
                let claim = job.step(move |_| {
                    let conflict = StoreError::Conflict { id: "seat-3".to_owned(), after, current };
                    Box::pin(async move { Err(conflict.into()) })
                });
                match claim.run(()).key("claim").await {
                    Ok(_) => Ok(json!("claimed")),
                    Err(_) => job.effect("refund").await,
                }
            })
        };
        assert_eq!(case.start(work).await.expect("an output"), json!(1));
        assert_eq!(case.log.take(), ["claim", "refund"]);
    }
}

/// M13
#[tokio::test]
async fn a_step_that_is_dropped_by_a_layer_after_it_has_asked_waits_for_the_answer() {
    for case in cases().await {
        let reserve = |job: Job| -> BoxFuture<'static, Result<Value>> {
            Box::pin(async move {
                let asked = Arc::new(Notify::new());
                let told = Arc::clone(&asked);
                let reserve = job.step(move |step| {
                    let told = Arc::clone(&told);
                    Box::pin(async move {
                        let answer = step.ask("agree");
                        if answer.is_err() {
                            // Work of another branch, which takes too long.
                            told.notify_one();
                            std::future::pending::<()>().await;
                        }
                        Ok(json!(answer?))
                    })
                });
                let limit = layer_fn("limit", move |input, _, next: Next<'_, JsonRun>| {
                    let asked = Arc::clone(&asked);
                    Box::pin(async move {
                        tokio::select! {
                            result = next.run(input) => result,
                            () = asked.notified() => Err(Error::new("too slow").retryable(false)),
                        }
                    })
                });
                let limit = Stack::builder().layer(limit).build();
                match reserve.run(()).key("reserve").middleware(limit).await {
                    Ok(agreed) => Ok(agreed),
                    Err(_) => job.effect("refund").await,
                }
            })
        };
        case.start(reserve).await.expect_err("a question");
        assert_eq!(case.kinds().await, ["agree"]);
        case.answer(json!(true)).await;
        assert_eq!(case.start(reserve).await.expect("an output"), json!(true));
        assert_eq!(case.log.take(), ["reserve", "reserve"]);
    }
}

/// M13
#[tokio::test]
async fn a_compensation_that_is_a_job_of_its_own_does_not_begin_after_a_question() {
    for case in cases().await {
        let store = case.store.clone();
        let refunds = move |job: Job| -> BoxFuture<'static, Result<Value>> {
            let refund = Durable::new(&store, "refund-7");
            Box::pin(async move {
                match job.ask("ship") {
                    Ok(true) => Ok(json!("shipped")),
                    // Its id is its key, which it gets when its middlewares are bound.
                    _ => job.step(|_| Box::pin(async { Ok(json!(1)) })).run(()).middleware(refund).await,
                }
            })
        };
        case.start(refunds.clone()).await.expect_err("a question");
        assert_eq!((case.kinds().await, case.log.take().len()), (vec!["ship".to_owned()], 0));
        case.answer(json!(false)).await;
        assert_eq!(case.start(refunds).await.expect("an output"), json!(1));
        assert_eq!(case.log.take(), ["refund-7"]);
    }
}

/// M13
#[tokio::test]
async fn neither_an_aborted_run_below_nor_an_error_of_the_store_hides_a_question() {
    let in_step = |error: fn() -> Error| {
        move |job: Job| -> BoxFuture<'static, Result<Value>> {
            Box::pin(async move {
                let asks = job.step(move |step| {
                    Box::pin(async move {
                        let agreed = step.ask("agree");
                        if agreed.is_err() { Err(error()) } else { Ok(json!(agreed?)) }
                    })
                });
                asks.run(()).key("step").await
            })
        }
    };
    let in_job = |error: fn() -> Error| {
        move |job: Job| -> BoxFuture<'static, Result<Value>> {
            Box::pin(async move {
                let before = job.step(move |_| Box::pin(async move { Err(error()) })).run(()).key("before").await;
                let agreed = job.ask("agree");
                if agreed.is_err() { before } else { Ok(json!(agreed?)) }
            })
        }
    };
    let aborted = || Error::aborted("stopped");
    let unstored = || Error::from(StoreError::failed("no disk", std::fmt::Error));
    for case in cases().await {
        case.start(in_step(aborted)).await.expect_err("a question");
        assert_eq!(case.kinds().await, ["agree"]);
        case.answer(json!(true)).await;
        assert_eq!(case.start(in_step(aborted)).await.expect("an output"), json!(true));
    }
    for error in [aborted, unstored] {
        for case in cases().await {
            case.start(in_job(error)).await.expect_err("a question");
            assert_eq!(case.kinds().await.last().map(String::as_str), Some("agree"));
        }
    }
}

/// M13
#[tokio::test]
async fn a_step_below_one_that_has_ended_is_not_asked_about() {
    for case in cases().await {
        let ready = Arc::new(Notify::new());
        let told = Arc::clone(&ready);
        let nested = move |job: Job| -> BoxFuture<'static, Result<Value>> {
            let told = Arc::clone(&told);
            Box::pin(async move {
                let hang = move |_: Job| -> BoxFuture<'static, Result<Value>> {
                    told.notify_one();
                    Box::pin(std::future::pending())
                };
                let inner = hang.clone();
                let outer = job.step(move |step| {
                    let inner = inner.clone();
                    Box::pin(async move { step.step(inner).run(()).key("inner").await })
                });
                outer.run(()).key("outer").await?;
                job.step(hang).run(()).key("later").await
            })
        };
        let about = async || {
            let questions = case.job().questions().await.expect("a store");
            Vec::from_iter(questions.iter().map(|open| open.data["key"].as_str().unwrap_or_default().to_owned()))
        };
        case.kill(&ready, nested.clone()).await;
        case.start(nested.clone()).await.expect_err("questions");
        assert_eq!(about().await, [format!("{ID}/outer"), format!("{ID}/outer/inner")]);
        let outer = case.job().questions().await.expect("a store").remove(0);
        case.job().answer(&outer.id, json!({"output": 5})).await.expect("stored");
        case.kill(&ready, nested.clone()).await;
        case.start(nested).await.expect_err("a question");
        assert_eq!(about().await, [format!("{ID}/later")]);
    }
}
