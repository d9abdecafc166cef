//! Jobs that are submitted, and workers that run them, on all stores (F2, F3, F7, F9).

use std::pin::pin;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Barrier, Mutex, Weak};
use std::time::{Duration, Instant};

use emitree_middleware::approval::Approval;
use emitree_middleware::durable::{AlreadyAnswered, RunningWorker, Submitted, Worker};
use emitree_middleware::store::{
    Append, Change, Entry, EntryHead, EntryStatus, Journal, Journaled, Lease, MemoryStore, Post, Store, StoreError,
    Take,
};
use emitree_middleware::{Durable, Runs};
use emitree_runtime::{Answer, BoxRunnable, Error, Interrupt, Result, RunContext, Runnable, for_tree, runnable_fn};
use futures_util::future::{BoxFuture, join, join_all, select};
use serde_json::{Value, json};
use tokio::sync::Notify;
use uuid::Uuid;

use super::ID;
use super::kill::{Killer, OfProcess};
use crate::place::Place;

/// Long enough for a loaded machine to renew it.
const LEASE: Duration = Duration::from_secs(1);
const SOON: Duration = Duration::from_secs(30);

/// A store that several processes use.
enum Shared {
    Memory(MemoryStore),
    Place(Place, #[expect(dead_code, reason = "the file is in it")] tempfile::TempDir),
}

fn all() -> Vec<Shared> {
    let folder = || tempfile::tempdir().expect("a folder");
    let file = folder();
    let place = Place::file(file.path());
    let mut all = vec![Shared::Memory(MemoryStore::new()), Shared::Place(place, file)];
    all.extend(Place::server().map(|place| Shared::Place(place, folder())));
    all
}

impl Shared {
    /// Returns the store as another process has it.
    async fn process(&self) -> Arc<dyn Store> {
        match self {
            Self::Memory(store) => Arc::new(OfProcess::new(store, &Killer::at(usize::MAX))),
            Self::Place(place, _) => place.open().await,
        }
    }

    async fn job(&self, id: &str) -> Durable {
        Durable::new(&self.process().await, id)
    }

    async fn worker(
        &self,
        work: impl Fn(String, RunContext) -> BoxFuture<'static, Result<Value>> + Send + Sync + 'static,
    ) -> RunningWorker {
        self.worker_for(LEASE, work).await
    }

    async fn worker_for(
        &self,
        lease: Duration,
        work: impl Fn(String, RunContext) -> BoxFuture<'static, Result<Value>> + Send + Sync + 'static,
    ) -> RunningWorker {
        let job = BoxRunnable::new(runnable_fn("job", work));
        let worker = Worker::new(&self.process().await).serve("import", job).lease(Lease::new().time(lease));
        worker.start().await.expect("a worker")
    }

    async fn head(&self) -> EntryHead {
        self.process().await.load(ID).await.expect("a store").expect("an entry").head
    }

    /// Waits until the entry of the job is as it is expected.
    async fn until(&self, expected: impl Fn(&EntryHead) -> bool) -> EntryHead {
        let found = async {
            loop {
                let head = self.head().await;
                if expected(&head) {
                    return head;
                }
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
        };
        match tokio::time::timeout(SOON, found).await {
            Ok(head) => head,
            Err(_) => panic!("{:?}", self.head().await),
        }
    }
}

async fn submit(job: &Durable) -> Submitted {
    job.submit("import", "rows").await.expect("a store")
}

async fn ended(job: &Durable) -> Result<Value> {
    tokio::time::timeout(SOON, job.ended()).await.expect("an end")
}

/// F3, F9
#[tokio::test(flavor = "multi_thread")]
async fn a_job_that_many_submit_is_new_for_one_and_is_run_once() {
    for shared in all() {
        let calls = Arc::new(AtomicUsize::new(0));
        let jobs = join_all((0..8).map(|_| shared.job(ID))).await;
        let submitted = join_all(jobs.iter().map(submit)).await;
        assert_eq!(submitted.iter().filter(|submitted| submitted.is_new).count(), 1, "{submitted:?}");
        assert!(submitted.iter().all(|submitted| !submitted.is_served));
        assert_eq!(shared.head().await.status, EntryStatus::Queued);

        let work = || {
            let calls = Arc::clone(&calls);
            move |input: String, ctx: RunContext| -> BoxFuture<'static, Result<Value>> {
                calls.fetch_add(1, Ordering::Relaxed);
                let key = ctx.key().expect("a key").to_string();
                Box::pin(async move { Ok(json!([input, key])) })
            }
        };
        let workers = [shared.worker(work()).await, shared.worker(work()).await];
        assert!(submit(&jobs[0]).await.is_served);
        for job in &jobs {
            assert_eq!(ended(job).await.expect("an output"), json!(["rows", ID]));
        }
        assert_eq!(calls.load(Ordering::Relaxed), 1);
        assert!(!submit(&jobs[1]).await.is_new, "also after its end");

        let error = jobs[1].submit("import", "other rows").await.expect_err("another input").to_string();
        assert!(error.contains(r#"stored with the input `"rows"`, and is run with `"other rows"`"#), "{error}");
        let error = jobs[1].submit("export", "rows").await.expect_err("another queue").to_string();
        assert!(error.contains("submitted to the queue `import`, and is submitted to `export`"), "{error}");
        let error = shared.job("none").await.ended::<Value>().await.expect_err("no job").to_string();
        assert_eq!(error, "the job `none` was not submitted: submit it first");
        let error = jobs[1].ended::<bool>().await.expect_err("another type").to_string();
        assert!(error.contains("is of another type"), "{error}");
        for worker in workers {
            worker.shutdown(SOON).await;
        }
        assert!(!submit(&jobs[0]).await.is_served);
    }
}

/// F1, F2
#[tokio::test(flavor = "multi_thread")]
async fn many_jobs_are_shared_by_workers_and_long_ones_are_held_for_longer_than_a_lease() {
    for shared in all() {
        let calls = Arc::new(Mutex::new(Vec::new()));
        let work = || {
            let calls = Arc::clone(&calls);
            move |input: String, _: RunContext| -> BoxFuture<'static, Result<Value>> {
                calls.lock().expect("a lock").push(input.clone());
                Box::pin(async move {
                    let time = if input == "long" { LEASE * 2 } else { Duration::from_millis(1) };
                    tokio::time::sleep(time).await;
                    Ok(json!(input))
                })
            }
        };
        let workers = join_all((0..3).map(|_| shared.worker(work()))).await;
        let process = shared.process().await;
        let inputs: Vec<_> = (0..40).map(|n| if n == 7 { "long".to_owned() } else { n.to_string() }).collect();
        for input in &inputs {
            Durable::new(&process, format!("job-{input}")).submit("import", input).await.expect("a store");
        }
        for input in &inputs {
            assert_eq!(ended(&Durable::new(&process, format!("job-{input}"))).await.expect("an output"), json!(input));
        }
        let mut made = calls.lock().expect("a lock").clone();
        made.sort_unstable();
        let mut expected = inputs;
        expected.sort_unstable();
        assert_eq!(made, expected);
        join_all(workers.into_iter().map(|worker| worker.shutdown(SOON))).await;
    }
}

/// F2
#[test]
fn a_job_whose_process_is_gone_is_gone_on_with_and_a_step_that_may_have_had_effects_is_asked_about() {
    let runtime =
        || tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().expect("a runtime");
    let steps = |log: &Arc<Mutex<Vec<&'static str>>>, hangs: Option<Arc<Notify>>| {
        let log = Arc::clone(log);
        move |_: String, _: RunContext| -> BoxFuture<'static, Result<Value>> {
            let (log, hangs) = (Arc::clone(&log), hangs.clone());
            Box::pin(async move {
                for name in ["first", "second"] {
                    let (log, hangs) = (Arc::clone(&log), hangs.clone());
                    let step = runnable_fn("step", move |(): (), _: RunContext| {
                        let (log, hangs) = (Arc::clone(&log), hangs.clone().filter(|_| name == "second"));
                        async move {
                            log.lock().expect("a lock").push(name);
                            if let Some(hangs) = hangs {
                                hangs.notify_one();
                                std::future::pending::<()>().await;
                            }
                            Ok(name.to_owned())
                        }
                    });
                    step.run(()).key(name).await?;
                }
                Ok(json!("done"))
            })
        }
    };
    for shared in all() {
        let log = Arc::default();
        let killed = runtime();
        killed.block_on(async {
            let hangs = Arc::new(Notify::new());
            std::mem::forget(shared.worker(steps(&log, Some(Arc::clone(&hangs)))).await);
            submit(&shared.job(ID).await).await;
            hangs.notified().await;
        });
        // Nothing is stored any more.
        killed.shutdown_background();
        runtime().block_on(async {
            let worker = shared.worker(steps(&log, None)).await;
            let job = shared.job(ID).await;
            shared.until(|head| head.status == EntryStatus::Waiting).await;
            let [question] = <[Interrupt; 1]>::try_from(job.questions().await.expect("a store")).expect("one question");
            assert_eq!(question.kind, "durable.began");
            assert_eq!(shared.until(|head| head.holder.is_none()).await.attempts, 1, "the first step has ended");
            job.answer(&question.id, json!("again")).await.expect("an answer");
            assert_eq!(ended(&job).await.expect("an output"), json!("done"));
            assert_eq!(*log.lock().expect("a lock"), ["first", "second", "second"]);
            assert_eq!(shared.until(|head| head.holder.is_none()).await.attempts, 0, "it has got on");
            worker.shutdown(SOON).await;
        });
    }
}

/// F7
#[tokio::test(flavor = "multi_thread")]
async fn a_job_that_kills_its_processes_is_asked_about_and_its_neighbours_end() {
    for (shared, answer) in all().into_iter().flat_map(|shared| {
        let shared = Arc::new(shared);
        [(Arc::clone(&shared), "again"), (shared, "fail")]
    }) {
        let process = shared.process().await;
        let (id, calls) = (format!("{ID}-{answer}"), Arc::new(AtomicUsize::new(0)));
        let (job, neighbour) = (Durable::new(&process, &*id), Durable::new(&process, format!("{id}-neighbour")));
        submit(&job).await;
        for attempt in 1..=5 {
            let take = Take::new(format!("dead {attempt}"), Duration::from_millis(1), ["import"]);
            let mut taken = Vec::new();
            while taken.is_empty() {
                taken = process.take(&take).await.expect("a store");
            }
            assert_eq!((&taken[0].id, taken[0].attempts), (&id, attempt));
        }
        submit(&neighbour).await;
        let worker = shared
            .worker({
                let calls = Arc::clone(&calls);
                move |_, _| {
                    calls.fetch_add(1, Ordering::Relaxed);
                    Box::pin(async { Ok(json!("done")) })
                }
            })
            .await;
        assert_eq!(ended(&neighbour).await.expect("an output"), json!("done"));
        let questions = async {
            loop {
                let questions = job.questions().await.expect("a store");
                if !questions.is_empty() {
                    return questions;
                }
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
        };
        let questions = tokio::time::timeout(SOON, questions).await.expect("a question");
        assert_eq!((questions.len(), &*questions[0].kind), (1, "worker.stuck"));
        assert_eq!(questions[0].data, json!({"job": id, "attempts": 5, "error": null, "choices": ["again", "fail"]}));
        let head = process.load(&id).await.expect("a store").expect("an entry").head;
        assert_eq!((head.status, head.holder, head.questions.len()), (EntryStatus::Waiting, None, 1));
        assert_eq!(calls.load(Ordering::Relaxed), 1, "the neighbour's");

        let error = job.answer(&questions[0].id, json!("perhaps")).await.expect_err("no answer").to_string();
        assert_eq!(error, r#"`"perhaps"` is no answer to `worker.stuck`: use `"again"` or `"fail"`"#);
        job.answer(&questions[0].id, json!(answer)).await.expect("an answer");
        match ended(&job).await {
            Ok(output) => assert_eq!((answer, output), ("again", json!("done"))),
            Err(error) => assert_eq!(
                (answer, error.to_string()),
                ("fail", "a person has given it up, because its processes were gone again and again".to_owned())
            ),
        }
        worker.shutdown(SOON).await;
    }
}

/// F2
#[tokio::test(flavor = "multi_thread")]
async fn a_job_that_asks_goes_on_after_the_answer_of_another_process_or_of_the_deadline() {
    for shared in all() {
        let worker = shared
            .worker(|_, ctx| {
                Box::pin(async move {
                    let first: String = ctx.ask(Interrupt::new("first", json!({})))?;
                    let at = Duration::from_millis(200);
                    let second: String =
                        ctx.ask(Interrupt::new("second", json!({})).with_deadline(at, json!("nobody")))?;
                    Ok(json!([first, second]))
                })
            })
            .await;
        let job = shared.job(ID).await;
        submit(&job).await;
        let head = shared.until(|head| head.status == EntryStatus::Waiting && head.holder.is_none()).await;
        assert_eq!(head.questions[0].kind, "first");
        shared.job(ID).await.answer(&head.questions[0].id, json!("Ada")).await.expect("an answer");
        assert_eq!(ended(&job).await.expect("an output"), json!(["Ada", "nobody"]));
        worker.shutdown(SOON).await;
    }
}

/// M5, F7
#[tokio::test(flavor = "multi_thread")]
async fn a_job_is_not_begun_by_a_worker_that_lacks_a_guard_of_the_submitting_run() {
    for shared in all() {
        let worker = shared.worker(|_, _| Box::pin(async { panic!("it has begun") })).await;
        let job = shared.job(ID).await;
        let submitter = job.clone();
        let submits = runnable_fn("desk", move |(): (), _: RunContext| {
            let job = submitter.clone();
            async move { Ok(submit(&job).await.is_new) }
        });
        let guard = for_tree(Approval::by_interrupt().runs(Runs::named("pay")));
        let is_new = submits.run(()).middleware(guard).await;
        assert!(is_new.expect("submitted"));
        shared.until(|head| head.status == EntryStatus::Waiting && head.holder.is_none()).await;
        let question = job.questions().await.expect("a store").remove(0);
        assert_eq!((&*question.kind, &question.data["lacks"]), ("worker.stuck", &json!(["approval"])));
        job.answer(&question.id, json!("fail")).await.expect("an answer");
        assert!(ended(&job).await.is_err());
        worker.shutdown(SOON).await;
    }
}

/// Runs a job that sleeps for five leases, and works for two of them meanwhile if `works`. Returns how often it has begun
/// to work.
async fn sleep_for_long(shared: &Shared, works: bool) -> usize {
    let begun = Arc::new(AtomicUsize::new(0));
    let counts = Arc::clone(&begun);
    let step = Arc::new(BoxRunnable::new(runnable_fn("step", move |(): (), _: RunContext| {
        counts.fetch_add(1, Ordering::Relaxed);
        async {
            tokio::time::sleep(2 * LEASE).await;
            Ok(())
        }
    })));
    let worker = shared.worker(move |_, ctx| {
        let step = Arc::clone(&step);
        Box::pin(async move {
            let work = async { if works { step.run_shared(()).key("step").await } else { Ok(()) } };
            let (worked, slept) = join(work, ctx.sleep("pause", 5 * LEASE)).await;
            worked.and(slept).map(Value::from)
        })
    });
    let (worker, job) = (worker.await, shared.job(ID).await);
    let began = Instant::now();
    submit(&job).await;
    let asleep = shared.until(|head| head.status == EntryStatus::Waiting && head.holder.is_none()).await;
    assert!(asleep.questions.is_empty(), "{asleep:?}");
    assert!(began.elapsed() >= if works { 2 * LEASE } else { LEASE }, "it is held while it works");
    ended(&job).await.expect("an output");
    assert!(began.elapsed() >= 5 * LEASE, "it has ended early: {:?}", began.elapsed());
    worker.shutdown(SOON).await;
    begun.load(Ordering::Relaxed)
}

/// F6
#[tokio::test(flavor = "multi_thread")]
async fn a_job_that_sleeps_for_longer_than_a_lease_is_held_by_nobody_unless_it_works() {
    for works in [false, true] {
        let all = all();
        let begun = join_all(all.iter().map(|shared| sleep_for_long(shared, works))).await;
        assert!(begun.iter().all(|begun| *begun == usize::from(works)), "{begun:?}");
    }
}

/// F6, F7
#[tokio::test(flavor = "multi_thread")]
async fn a_job_wakes_for_the_first_of_its_sleeps_however_often_it_sleeps() {
    let shared = Shared::Memory(MemoryStore::new());
    let lease = Duration::from_millis(100);
    let worker = shared.worker_for(lease, move |_, ctx| {
        Box::pin(async move {
            let polls = async {
                for n in 0..8 {
                    ctx.sleep(&format!("poll-{n}"), lease + lease / 2).await?;
                }
                Ok(json!("polled"))
            };
            let limit = async { ctx.sleep("limit", 10 * SOON).await.map(Value::from) };
            select(pin!(polls), pin!(limit)).await.factor_first().0
        })
    });
    let worker = worker.await;
    let job = shared.job(ID).await;
    submit(&job).await;
    shared.until(|head| head.status == EntryStatus::Waiting && head.holder.is_none()).await;
    assert_eq!(ended(&job).await.expect("an output"), json!("polled"));
    worker.shutdown(SOON).await;
}

/// F2
#[tokio::test(flavor = "multi_thread")]
async fn a_failure_that_a_retry_may_help_comes_back_and_others_are_the_end() {
    for shared in all() {
        let calls = Arc::new(AtomicUsize::new(0));
        let worker = shared
            .worker({
                let calls = Arc::clone(&calls);
                move |input, ctx| {
                    let is_first = input == "busy" && calls.fetch_add(1, Ordering::Relaxed) == 0;
                    Box::pin(async move {
                        match &*input {
                            "busy" if is_first => Err(Error::new("busy").retryable(true)),
                            "disk" => Err(StoreError::failed("no disk", std::fmt::Error).into()),
                            "bad" => Err(Error::new("bad input")),
                            "abort" => {
                                ctx.abort("no longer needed");
                                std::future::pending().await
                            }
                            _ => Ok(json!(input)),
                        }
                    })
                }
            })
            .await;
        let process = shared.process().await;
        let job = |input: &str| Durable::new(&process, format!("job-{input}"));
        for input in ["busy", "disk", "bad", "abort"] {
            job(input).submit("import", input).await.expect("a store");
        }
        assert_eq!(ended(&job("busy")).await.expect("an output"), json!("busy"));
        assert_eq!(calls.load(Ordering::Relaxed), 2);
        let error = ended(&job("bad")).await.expect_err("a failure");
        assert_eq!((error.to_string(), error.is_aborted()), ("bad input".to_owned(), false));
        let error = ended(&job("abort")).await.expect_err("an abort");
        assert!(error.is_aborted() && error.to_string().contains("no longer needed"), "{error:?}");
        let status = async |input: &str| {
            process.load(&format!("job-{input}")).await.map(|entry| entry.expect("an entry").head.status)
        };
        assert_eq!(status("bad").await.expect("a store"), EntryStatus::Failed);
        assert_eq!(status("abort").await.expect("a store"), EntryStatus::Paused);
        assert!([EntryStatus::Queued, EntryStatus::Running].contains(&status("disk").await.expect("a store")));
        worker.shutdown(SOON).await;
    }
}

/// F2
#[tokio::test(flavor = "multi_thread")]
async fn a_worker_that_is_shut_down_hands_its_jobs_over_with_their_attempts() {
    for shared in all() {
        let began = Arc::new(Notify::new());
        let worker = shared
            .worker({
                let began = Arc::clone(&began);
                move |_, _| {
                    began.notify_one();
                    Box::pin(std::future::pending())
                }
            })
            .await;
        let job = shared.job(ID).await;
        submit(&job).await;
        began.notified().await;
        assert_eq!(shared.head().await.attempts, 1);
        worker.shutdown(Duration::from_millis(1)).await;
        let head = shared.head().await;
        assert_eq!((head.status, head.holder, head.attempts), (EntryStatus::Queued, None, 0));
        assert!(!submit(&job).await.is_served);
        let worker = shared.worker(|_, _| Box::pin(async { Ok(json!("done")) })).await;
        assert_eq!(ended(&job).await.expect("an output"), json!("done"));
        worker.shutdown(SOON).await;
    }
}

#[tokio::test]
async fn a_worker_that_cannot_work_is_an_error() {
    let error = Worker::new(&MemoryStore::new()).start().await.expect_err("no queue").to_string();
    assert_eq!(error, "the worker serves no queue: call `serve` before `start`");
    let job = || BoxRunnable::new(runnable_fn("job", |(): (), _: RunContext| async { Ok(()) }));
    let error = Worker::new(&MemoryStore::new()).serve("", job()).start().await.expect_err("no name").to_string();
    assert!(error.contains("its id is empty"), "{error}");
}

/// F2
#[tokio::test(flavor = "multi_thread")]
async fn an_input_that_does_not_fit_comes_back_later_and_is_not_lost() {
    let shared = Shared::Memory(MemoryStore::new());
    let job = shared.job(ID).await;
    job.submit("import", &7).await.expect("a store");
    let worker = shared.worker(|_, _| Box::pin(async { Ok(json!(1)) })).await;
    let head = shared.until(|head| head.attempts > 0 && head.holder.is_none()).await;
    assert_eq!(head.status, EntryStatus::Queued);
    worker.shutdown(SOON).await;
    let numbers = BoxRunnable::new(runnable_fn("job", |n: u32, _: RunContext| async move { Ok(n) }));
    let worker = Worker::new(&shared.process().await).serve("import", numbers).start().await.expect("a worker");
    assert_eq!(ended(&job).await.expect("an output"), json!(7));
    worker.shutdown(SOON).await;
}

/// Submits jobs, and ends their workers in each way after some milliseconds. Another worker then runs them.
async fn shut_down(shared: &Shared, after: u64) {
    let process = shared.process().await;
    let jobs = (0..20).map(|n| Durable::new(&process, format!("job-{after}-{n}")));
    let jobs: Vec<_> = jobs.collect();
    for job in &jobs {
        submit(job).await;
    }
    // Not more often than a job may be taken before a person is asked.
    for way in 0..3 {
        let worker = shared.worker(|_, _| Box::pin(std::future::pending())).await;
        tokio::time::sleep(Duration::from_millis(after + way)).await;
        match way {
            0 => worker.shutdown(Duration::ZERO).await,
            // The shutdown is dropped, or the worker.
            1 => _ = tokio::time::timeout(Duration::from_millis(1), worker.shutdown(SOON)).await,
            _ => drop(worker),
        }
    }
    let worker = shared.worker(|input, _| Box::pin(async move { Ok(json!(input)) })).await;
    for job in &jobs {
        assert_eq!(ended(job).await.expect("an output"), json!("rows"), "{job:?}");
    }
    worker.shutdown(SOON).await;
}

/// F2: an abort while the claim is stored leaves a job that workers find.
#[tokio::test(flavor = "multi_thread")]
async fn a_shutdown_at_any_time_hands_each_job_over() {
    for shared in all() {
        for after in [0, 3, 6] {
            shut_down(&shared, after).await;
        }
    }
}

/// F2: the echo of the abort, which a run below returns, is no end of the job.
#[tokio::test(flavor = "multi_thread")]
async fn an_error_that_comes_from_the_shutdown_is_no_failure_of_the_job() {
    for shared in all() {
        let (began, goes_on) = (Arc::new(Notify::new()), Arc::new(Barrier::new(2)));
        let worker = shared
            .worker({
                let (began, goes_on) = (Arc::clone(&began), Arc::clone(&goes_on));
                move |_, _| {
                    let (began, goes_on) = (Arc::clone(&began), Arc::clone(&goes_on));
                    Box::pin(async move {
                        began.notify_one();
                        // The abort comes in the middle of this poll.
                        goes_on.wait();
                        goes_on.wait();
                        let step = runnable_fn("step", |(): (), _: RunContext| async { Ok(json!(1)) });
                        step.run(()).await.map_err(|error| Error::new(format!("the import failed: {error}")))
                    })
                }
            })
            .await;
        let job = shared.job(ID).await;
        submit(&job).await;
        began.notified().await;
        goes_on.wait();
        let down = tokio::spawn(worker.shutdown(Duration::ZERO));
        tokio::time::sleep(Duration::from_millis(100)).await;
        tokio::task::spawn_blocking(move || _ = goes_on.wait()).await.expect("no panic");
        down.await.expect("no panic");
        let worker = shared.worker(|_, _| Box::pin(async { Ok(json!("done")) })).await;
        assert_eq!(ended(&job).await.expect("an output"), json!("done"));
        worker.shutdown(SOON).await;
    }
}

/// F3
#[tokio::test(flavor = "multi_thread")]
async fn a_job_that_runs_is_submitted_again_at_once_and_one_that_has_begun_without_a_queue_gets_one() {
    for shared in all() {
        let (began, goes_on) = (Arc::new(Notify::new()), Arc::new(Notify::new()));
        let worker = shared
            .worker({
                let (began, goes_on) = (Arc::clone(&began), Arc::clone(&goes_on));
                move |_, _| {
                    began.notify_one();
                    let goes_on = Arc::clone(&goes_on);
                    Box::pin(async move {
                        goes_on.notified().await;
                        Ok(json!("done"))
                    })
                }
            })
            .await;
        let job = shared.job(ID).await;
        submit(&job).await;
        began.notified().await;
        let again = tokio::time::timeout(SOON, submit(&shared.job(ID).await)).await.expect("it does not wait");
        assert!(!again.is_new && again.is_served);
        goes_on.notify_one();
        assert_eq!(ended(&job).await.expect("an output"), json!("done"));

        let failing = runnable_fn("import", |_: String, _: RunContext| async { Err::<Value, _>(Error::new("no")) });
        let other = shared.job("other").await;
        failing.run("rows".to_owned()).middleware(other.clone()).await.expect_err("no");
        assert!(submit(&other).await.is_new);
        goes_on.notify_one();
        assert_eq!(ended(&other).await.expect("an output"), json!("done"));
        worker.shutdown(SOON).await;
    }
}

/// F2: a worker that was stopped between the take and the claim does not run what another one has ended.
#[tokio::test(flavor = "multi_thread")]
async fn what_was_taken_and_is_changed_by_another_process_is_not_claimed() {
    for shared in all() {
        let (process, late) = (shared.process().await, shared.process().await);
        submit(&Durable::new(&process, ID)).await;
        let take = |by: &str| Take::new(by, Duration::from_millis(50), ["import"]);
        let [head] = <[EntryHead; 1]>::try_from(late.take(&take("late")).await.expect("a store")).expect("one entry");
        let mut taken = Vec::new();
        while taken.is_empty() {
            taken = process.take(&take("second")).await.expect("a store");
        }
        let back = Append::new(taken.remove(0)).by("second");
        process.append(&back).await.expect("the holder");
        let stored = process.load(ID).await.expect("a store");

        let journal = Journal::new(late, head.clone(), 0, &Lease::new(), ended_owner());
        let adopted =
            journal.adopt(&head, &Lease::new().time(Duration::from_millis(50)), tokio::time::Instant::now()).await;
        let error = adopted.and(journal.claim().await).expect_err("it has moved");
        assert!(matches!(error, StoreError::Lost { .. }), "{error:?}");
        assert_eq!(process.load(ID).await.expect("a store"), stored);
    }
}

/// An owner that is gone.
fn ended_owner() -> Weak<dyn Journaled> {
    struct Gone;
    impl Journaled for Gone {
        fn change(&self, _: bool) -> std::result::Result<Option<Change>, StoreError> {
            Ok(None)
        }

        fn reload(&self, _: &Entry) -> std::result::Result<(), StoreError> {
            Ok(())
        }

        fn take(&self, _: &[Post]) -> Vec<Uuid> {
            Vec::new()
        }

        fn lost(&self, _: &StoreError) {}
    }
    Weak::<Gone>::new()
}

/// F4
#[tokio::test(flavor = "multi_thread")]
async fn an_abort_from_another_process_ends_a_job_under_way_and_pauses_one_that_waits() {
    for shared in all() {
        let (begun, calls) = (Arc::new(Notify::new()), Arc::new(AtomicUsize::new(0)));
        let (begins, counts) = (Arc::clone(&begun), Arc::clone(&calls));
        let job = shared.job(ID).await;
        assert!(!job.abort("too early").await.expect("a store"), "it was not submitted");
        submit(&job).await;
        let waits = shared.job("waits").await;
        submit(&waits).await;
        assert!(waits.abort("not needed").await.expect("a store"));
        assert!(!waits.abort("again").await.expect("a store"));

        let worker = shared.worker(move |_, _| {
            counts.fetch_add(1, Ordering::Relaxed);
            begins.notify_one();
            Box::pin(std::future::pending())
        });
        let worker = worker.await;
        begun.notified().await;
        assert!(shared.job(ID).await.abort("the list is wrong").await.expect("a store"));
        for (job, reason) in [(&job, "the list is wrong"), (&waits, "not needed")] {
            let error = ended(job).await.expect_err("it was stopped");
            assert!(error.is_aborted() && error.to_string() == reason, "{error}");
        }
        let head = shared.until(|head| head.holder.is_none()).await;
        assert_eq!((head.status, head.posts), (EntryStatus::Paused, 0));
        assert!(!job.abort("again").await.expect("a store"));
        // A later job is run, and the stopped ones are not.
        submit(&shared.job("later").await).await;
        begun.notified().await;
        assert_eq!(calls.load(Ordering::Relaxed), 2);
        worker.shutdown(Duration::ZERO).await;
    }
}

/// F4, F5
#[tokio::test(flavor = "multi_thread")]
async fn answers_to_a_job_that_another_process_holds_wait_and_the_first_one_counts() {
    for shared in all() {
        let work = |_: String, ctx: RunContext| -> BoxFuture<'static, Result<Value>> {
            Box::pin(async move { ctx.ask(Interrupt::new("publish", json!({}))) })
        };
        let job = shared.job(ID).await;
        submit(&job).await;
        let worker = shared.worker(work).await;
        let mut head = shared.until(|head| head.status == EntryStatus::Waiting && head.holder.is_none()).await;
        let id = head.questions[0].id.clone();
        // A process that holds the job, and is gone.
        let store = shared.process().await;
        head.revision = store.append(&Append::new(head.clone()).by("gone").holding(LEASE)).await.expect("free");
        job.answer(&id, Answer::from(json!(1)).by("ada")).await.expect("it waits in the store");
        assert_eq!(shared.head().await.posts, 1);
        let error = shared.job(ID).await.answer(&id, json!(2)).await.expect_err("it has an answer");
        let first = &error.find::<AlreadyAnswered>().expect("the first answer").first;
        assert_eq!((&first.value, first.by.as_deref(), first.at.is_some()), (&json!(1), Some("ada"), true));
        assert_eq!(ended(&job).await.expect("an output"), json!(1));
        let error = shared.job(ID).await.answer(&id, json!(2)).await.expect_err("it has an answer");
        assert_eq!(error.find::<AlreadyAnswered>().expect("the first answer").first.by.as_deref(), Some("ada"));
        worker.shutdown(SOON).await;
    }
}
