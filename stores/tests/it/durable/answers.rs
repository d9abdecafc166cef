//! Answers and submissions that race with other processes, and replies of the store that are lost (F3, F5, M13).

use std::fmt;
use std::future::IntoFuture;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use emitree_middleware::Durable;
use emitree_middleware::durable::AlreadyAnswered;
use emitree_middleware::store::{
    Append, Entry, EntryHead, Filter, MemoryStore, Post, Posted, Revision, Store, StoreError, StoreId, Take, WorkerHead,
};
use emitree_runtime::{Answer, Interrupt, Result, RunContext, Runnable, runnable_fn};
use futures_util::future::{BoxFuture, join};
use serde_json::json;
use tokio::sync::{Notify, oneshot};
use tokio::time::sleep;

use super::ID;
use super::kill::{Killer, OfProcess};

/// The time after which a question gets its own answer.
const SOON: Duration = Duration::from_millis(20);

/// The work of another process, which it does once.
type Meanwhile = Mutex<Option<BoxFuture<'static, ()>>>;

/// The store of a process, between whose calls another process does something.
#[derive(Clone)]
struct Slow {
    id: StoreId,
    store: MemoryStore,
    after_load: Arc<Meanwhile>,
    /// The reply to this append is lost.
    after_append: Arc<Meanwhile>,
    after_post: Arc<Meanwhile>,
    has_loaded: Arc<Notify>,
}

impl fmt::Debug for Slow {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a slow store")
    }
}

impl Slow {
    fn new(store: &MemoryStore) -> Self {
        let (after_load, after_append, after_post) = Default::default();
        let has_loaded = Arc::default();
        Self { id: StoreId::new(), store: store.clone(), after_load, after_append, after_post, has_loaded }
    }
}

fn take(meanwhile: &Meanwhile) -> Option<BoxFuture<'static, ()>> {
    meanwhile.lock().expect("a lock").take()
}

impl Store for Slow {
    fn store_id(&self) -> StoreId {
        self.id
    }

    fn load<'a>(&'a self, id: &'a str) -> BoxFuture<'a, Result<Option<Entry>, StoreError>> {
        Box::pin(async move {
            let entry = self.store.load(id).await;
            if let Some(meanwhile) = take(&self.after_load) {
                meanwhile.await;
                self.has_loaded.notify_one();
            }
            entry
        })
    }

    fn append<'a>(&'a self, append: &'a Append) -> BoxFuture<'a, Result<Revision, StoreError>> {
        Box::pin(async move {
            let stored = self.store.append(append).await;
            let Some(meanwhile) = take(&self.after_append) else { return stored };
            meanwhile.await;
            Err(StoreError::failed("no reply", fmt::Error))
        })
    }

    fn post<'a>(&'a self, id: &'a str, post: &'a Post) -> BoxFuture<'a, Result<Posted, StoreError>> {
        Box::pin(async move {
            let posted = self.store.post(id, post).await;
            if let Some(meanwhile) = take(&self.after_post) {
                meanwhile.await;
            }
            posted
        })
    }

    fn posts<'a>(&'a self, id: &'a str) -> BoxFuture<'a, Result<Vec<Post>, StoreError>> {
        self.store.posts(id)
    }

    fn list<'a>(&'a self, filter: &'a Filter) -> BoxFuture<'a, Result<Vec<EntryHead>, StoreError>> {
        self.store.list(filter)
    }

    fn take<'a>(&'a self, take: &'a Take) -> BoxFuture<'a, Result<Vec<EntryHead>, StoreError>> {
        self.store.take(take)
    }

    fn workers(&self) -> BoxFuture<'_, Result<Vec<WorkerHead>, StoreError>> {
        self.store.workers()
    }

    fn remove<'a>(&'a self, id: &'a str, after: Revision) -> BoxFuture<'a, Result<(), StoreError>> {
        self.store.remove(id, after)
    }
}

/// The job in a process of its own.
fn elsewhere(store: &MemoryStore) -> Durable {
    Durable::new(&OfProcess::new(store, &Killer::at(usize::MAX)), ID)
}

/// Runs a job that asks who answers.
async fn start(job: Durable) -> Result<String> {
    let asks =
        runnable_fn(
            "job",
            |(): (), ctx: RunContext| async move { ctx.ask::<String>(Interrupt::new("who", json!({}))) },
        );
    asks.run(()).middleware(job).await
}

/// Returns a store with a job that has asked, and the id of its question.
async fn asked() -> (MemoryStore, String) {
    let store = MemoryStore::new();
    start(elsewhere(&store)).await.expect_err("a question");
    let question = elsewhere(&store).questions().await.expect("a store").remove(0);
    (store, question.id)
}

/// F5
#[tokio::test]
async fn of_a_deadline_and_an_answer_that_is_sent_after_the_claim_one_counts() {
    for is_late in [false, true] {
        let (store, sent) = (MemoryStore::new(), Arc::new(Notify::new()));
        let start = async |job: Durable, is_sent: Arc<Notify>| {
            let asks = runnable_fn("job", move |(): (), ctx: RunContext| {
                let is_sent = Arc::clone(&is_sent);
                async move {
                    is_sent.notified().await;
                    let question = Interrupt::new("who", json!({})).with_deadline(SOON, json!("nobody"));
                    ctx.ask::<String>(question)
                }
            });
            asks.run(()).middleware(job).await
        };
        sent.notify_one();
        start(elsewhere(&store), Arc::clone(&sent)).await.expect_err("a question");
        let question = elsewhere(&store).questions().await.expect("a store").remove(0);
        sleep(2 * SOON).await;

        let slow = Slow::new(&store);
        let other = elsewhere(&store);
        let send = Arc::clone(&sent);
        let answers = async move {
            let answered = other.answer(&question.id, json!("Ada")).await;
            send.notify_one();
            answered
        };
        let meanwhile = if is_late { &slow.after_post } else { &slow.after_append };
        let (tell, told) = oneshot::channel();
        *meanwhile.lock().expect("a lock") = Some(Box::pin(async { _ = tell.send(answers.await) }));
        let output = start(Durable::new(&slow, ID), sent).await.expect("an output");
        let told = told.await.expect("an answer");
        match is_late {
            false => told.expect("the first answer"),
            true => assert!(told.expect_err("too late").find::<AlreadyAnswered>().is_some()),
        }
        assert_eq!(output, if is_late { "nobody" } else { "Ada" });
    }
}

/// F5
#[tokio::test]
async fn an_answer_that_did_not_fit_leaves_a_place_for_another_also_after_the_parts_were_replaced() {
    let store = MemoryStore::new();
    let process = elsewhere(&store);
    let start = async |number: u32| {
        let asks = runnable_fn("job", move |(): (), ctx: RunContext| async move {
            // Each start adds more than there was, so its end replaces all parts.
            let step = runnable_fn("step", |text: String, _: RunContext| async move { Ok(text.len()) });
            step.run("x".repeat(100_000 * 3_usize.pow(number))).key(number.to_string()).await?;
            ctx.ask::<String>(Interrupt::new("who", json!({})))
        });
        asks.run(()).middleware(process.clone()).await
    };
    start(0).await.expect_err("a question");
    let question = process.questions().await.expect("a store").remove(0);
    for unfit in [1, 2] {
        process.answer(&question.id, json!(unfit)).await.expect("an answer");
        assert!(start(unfit).await.expect_err("it does not fit").is_interrupted());
    }
    elsewhere(&store).answer(&question.id, json!("Ada")).await.expect("an answer");
    assert_eq!(start(3).await.expect("an output"), "Ada");
}

/// F5
#[tokio::test]
async fn an_answer_that_was_sent_to_a_start_under_way_counts_though_the_question_was_asked_or_its_deadline_is_over() {
    for [is_asked, is_refused] in [[false, false], [false, true], [true, false], [true, true]] {
        let (store, go) = (MemoryStore::new(), Arc::new(Notify::new()));
        let goes = Arc::clone(&go);
        let asks = runnable_fn("job", move |(): (), ctx: RunContext| {
            let goes = Arc::clone(&goes);
            async move {
                let ask = || {
                    let deadline = if is_asked { 1_000 * SOON } else { SOON };
                    ctx.ask::<String>(Interrupt::new("who", json!({})).with_deadline(deadline, json!("nobody")))
                };
                let asked = if is_asked { Some(ask()) } else { None };
                goes.notified().await;
                asked.unwrap_or_else(ask)
            }
        });
        let start = || asks.run(()).middleware(elsewhere(&store)).into_future();
        go.notify_one();
        start().await.expect_err("a question");
        let question = elsewhere(&store).questions().await.expect("a store").remove(0);
        if is_refused {
            elsewhere(&store).answer(&question.id, json!(1)).await.expect("an answer");
            go.notify_one();
            assert!(start().await.expect_err("it does not fit").is_interrupted());
        }
        // This process has read the job before the next start closes the question.
        let slow = Slow::new(&store);
        let theirs = Durable::new(&slow, ID);
        let running = start();
        let (tell, claimed) = oneshot::channel();
        *slow.after_load.lock().expect("a lock") = Some(Box::pin(async { _ = claimed.await }));
        let sends = async {
            let answers = theirs.answer(&question.id, json!("Ada"));
            let begins = async {
                let is_held =
                    async || store.load(ID).await.expect("a store").is_some_and(|it| it.head.holder.is_some());
                while !is_held().await {
                    sleep(Duration::from_millis(1)).await;
                }
                _ = tell.send(());
            };
            join(answers, begins).await.0.expect("the first answer");
            // The start takes it.
            while store.load(ID).await.expect("a store").expect("an entry").head.posts > 0 {
                sleep(Duration::from_millis(10)).await;
            }
            sleep(2 * SOON).await;
            go.notify_one();
        };
        let ended = join(running, sends).await.0;
        let output = match ended {
            Ok(output) => output,
            Err(error) => {
                assert!(error.is_interrupted(), "{error}");
                assert_eq!(elsewhere(&store).questions().await.expect("a store"), []);
                go.notify_one();
                start().await.expect("an output")
            }
        };
        assert_eq!(output, "Ada", "{is_asked} {is_refused}");
    }
}

/// F5
#[tokio::test]
async fn an_answer_whose_reply_is_lost_is_the_first_although_the_job_has_ended_since() {
    let (store, question) = asked().await;
    let slow = Slow::new(&store);
    let goes_on = elsewhere(&store);
    let ends = async { assert_eq!(start(goes_on).await.expect("an output"), "Ada") };
    *slow.after_append.lock().expect("a lock") = Some(Box::pin(ends));
    Durable::new(&slow, ID).answer(&question, json!("Ada")).await.expect("the first answer");
    assert!(take(&slow.after_append).is_none(), "the reply was lost");
    let error = Durable::new(&slow, ID).answer(&question, json!("Ada")).await.expect_err("the same again");
    assert!(error.find::<AlreadyAnswered>().is_some(), "{error:?}");
}

/// F5
#[tokio::test]
async fn an_answer_whose_reply_is_lost_is_the_first_although_a_worker_holds_the_job_since() {
    let (store, question) = asked().await;
    let slow = Slow::new(&store);
    let worker = store.clone();
    let takes = async move {
        let head = worker.load(ID).await.expect("a store").expect("an entry").head;
        let held = Append::new(head).by("worker").holding(Duration::from_secs(600));
        worker.append(&held).await.expect("nobody holds it");
    };
    *slow.after_append.lock().expect("a lock") = Some(Box::pin(takes));
    Durable::new(&slow, ID).answer(&question, json!("Ada")).await.expect("the first answer");
    assert!(take(&slow.after_append).is_none(), "the reply was lost");
}

/// F5
#[tokio::test]
async fn an_answer_is_not_accepted_if_a_read_of_its_process_has_replaced_it_by_that_of_another() {
    let (store, question) = asked().await;
    let slow = Slow::new(&store);
    let (other, id) = (elsewhere(&store), question.clone());
    let answers =
        async move { other.answer(&id, Answer::from(json!("Bob")).by("Bob")).await.expect("the first answer") };
    *slow.after_load.lock().expect("a lock") = Some(Box::pin(answers));
    let job = Durable::new(&slow, ID);
    let reads = async {
        // The answer waits for its commit now, and the job is read before it.
        slow.has_loaded.notified().await;
        job.questions().await
    };
    let (answered, questions) = join(job.answer(&question, json!("Ada")), reads).await;
    assert!(questions.expect("a store").is_empty());
    let error = answered.expect_err("the second answer");
    assert_eq!(error.find::<AlreadyAnswered>().and_then(|answered| answered.first.by.as_deref()), Some("Bob"));
    assert_eq!(start(elsewhere(&store)).await.expect("an output"), "Bob");
}

/// F3
#[tokio::test]
async fn a_submission_that_a_read_of_its_process_has_replaced_is_made_again() {
    let store = MemoryStore::new();
    let slow = Slow::new(&store);
    let begins = elsewhere(&store);
    let meanwhile = async move { _ = start(begins).await.expect_err("a question") };
    *slow.after_load.lock().expect("a lock") = Some(Box::pin(meanwhile));
    let job = Durable::new(&slow, ID);
    let reads = async {
        slow.has_loaded.notified().await;
        job.questions().await
    };
    let (submitted, questions) = join(job.submit("queue", &()), reads).await;
    assert_eq!(questions.expect("a store").len(), 1);
    assert!(submitted.expect("a store").is_new);
    let head = store.load(ID).await.expect("a store").expect("an entry").head;
    assert_eq!(head.queue.as_deref(), Some("queue"));
}

/// F5
#[tokio::test]
async fn an_answer_that_comes_when_its_holder_has_just_gone_is_not_accepted_beside_that_of_another() {
    let (store, question) = asked().await;
    let head = store.load(ID).await.expect("a store").expect("an entry").head;
    let held = Append::new(head).by("worker").holding(Duration::from_secs(600));
    store.append(&held).await.expect("nobody holds it");
    let slow = Slow::new(&store);
    let (other, id, shared) = (elsewhere(&store), question.clone(), store.clone());
    let answers = async move {
        let head = shared.load(ID).await.expect("a store").expect("an entry").head;
        shared.append(&Append::new(head).by("worker")).await.expect("its own entry");
        other.answer(&id, Answer::from(json!("Bob")).by("Bob")).await.expect("the first answer");
    };
    *slow.after_load.lock().expect("a lock") = Some(Box::pin(answers));
    let error = Durable::new(&slow, ID).answer(&question, json!("Ada")).await.expect_err("the second answer");
    assert_eq!(error.find::<AlreadyAnswered>().and_then(|answered| answered.first.by.as_deref()), Some("Bob"));
    assert_eq!(start(elsewhere(&store)).await.expect("an output"), "Bob");
}
