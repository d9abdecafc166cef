//! Runs what was submitted: [`Worker`] (F2, F7).
//!
//! 1. One task takes what is due, and owns a task for each entry. It ends when the handle is dropped or shut down.
//! 2. An entry is held from the moment in which it is taken. Its journal goes on under the name of the worker, so its run
//!    renews and releases what the worker has taken.
//! 3. What fails before its run has claimed it is held by its worker for some time more, under the revision at which it
//!    was taken, and is due when this lease is over.

use std::any::type_name;
use std::collections::BTreeMap;
use std::collections::btree_map::Entry;
use std::fmt;
use std::future::pending;
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

use emitree_runtime::{AnyRun, Error, IntoShared, Phase, Result, Runnable, Stack, guards_of};
use futures_core::future::BoxFuture;
use futures_util::future::select;
use parking_lot::Mutex;
use serde_json::{Value, json};
use tokio::sync::Notify;
use tokio::task::{JoinHandle, JoinSet};
use tokio::time::{Instant, timeout};

use super::Durable;
use super::job::{Job, KIND, open};
use super::state::JobState;
use super::taken::{Adopted, IsAdopted, TakenEntry};
use crate::shared::difference::quoted;
use crate::shared::panic::caught_async;
use crate::store::{Append, EntryHead, Lease, Rest, Store, StoreError, Take, Watch};

/// How often a worker looks for work.
const POLL: Duration = Duration::from_secs(1);
/// How often a shutdown aborts the jobs that still run.
const AGAIN: Duration = Duration::from_millis(10);
/// Each of this many looks asks the queues in reverse, so that none waits for ever.
const REVERSED: u32 = 10;

/// Runs the jobs that are [submitted](Durable::submit) to its queues: those that are new, whose questions have answers,
/// whose processes are gone, and those that come back after a failure. If an agent serves the queue, it goes on with
/// sessions in the same way.
///
/// Any number of workers, in any number of processes, may serve a queue of one [`Store`]. Each job is run by one of them
/// at a time. [`Durable::submit`] has an example.
///
/// # How it goes on
///
/// A worker looks for work when the store [wakes](Store::wakes) it, each second, and when one of its jobs has ended, in the
/// order in which its queues were named; each tenth look is in reverse, so that no queue waits for ever. Within a queue,
/// what has been due for longest is first.
///
/// A job whose process is gone is taken by another worker when its [`Lease`] is over. A failure that is
/// [retryable](Error::is_retryable), and each error of a store, brings it back after 1 s, then 4 s, up to 5 min. Other
/// failures, and aborts, end it: [`Durable::ended`] returns them. A question makes it wait; its answer, also in another
/// process, makes it due, and so does the deadline of a question.
///
/// While a job [sleeps](emitree_runtime::RunContext::sleep) for longer than a lease, and no run below it is under way,
/// nobody holds it: it is due when the sleep is over. Then it is run again, as after a question.
///
/// # A job that kills its processes
///
/// A job that was taken 5 times without getting on, because its processes were gone or it has failed, is not run again.
/// It gets the question `worker.stuck`, whose data has the `job`, its `attempts`, its last `error` and the `choices`. The
/// answer `"again"` runs it again, and `"fail"` lets it fail. A job gets on when one of its steps has ended, or a question has got
/// its answer.
///
/// # What does not travel
///
/// A job is run with the middleware of the runnable that is served, and no other: what a run inherits where the job is
/// submitted, such as budgets and listeners, stays there. The names of inherited guards are stored: if the runnable lacks
/// one, the job does not begin, and gets the question `worker.stuck`, whose data `lacks` them.
pub struct Worker {
    store: Arc<dyn Store>,
    lease: Lease,
    concurrency: usize,
    served: Vec<(String, Arc<dyn Serve>)>,
}

/// Goes on with the entries of a queue.
trait Serve: Send + Sync {
    fn guards(&self) -> Vec<String>;

    fn run_job(&self, job: Durable, input: &Value) -> Result<BoxFuture<'static, Result<()>>>;

    /// Goes on with an entry that has its input itself, such as a session.
    fn run_entry(&self, taken: &TakenEntry) -> Result<BoxFuture<'static, Result<()>>>;
}

struct Served<R>(Arc<R>);

impl<R: Runnable + 'static> Serve for Served<R> {
    fn guards(&self) -> Vec<String> {
        guards_of(&*self.0)
    }

    fn run_job(&self, job: Durable, input: &Value) -> Result<BoxFuture<'static, Result<()>>> {
        let input = serde_json::from_value(input.clone()).map_err(|error| {
            let message = format!("the input {} of {job:?} is no `{}`", quoted(input), type_name::<R::Input>());
            Error::from(error).message(message)
        })?;
        let run = self.0.run_shared(input).middleware(job);
        Ok(Box::pin(async move { run.await.map(drop) }))
    }

    fn run_entry(&self, taken: &TakenEntry) -> Result<BoxFuture<'static, Result<()>>> {
        let input = serde_json::from_value(json!({})).map_err(|error| {
            let EntryHead { id, kind, .. } = taken.head();
            let message = format!("a runnable with the input `{}` goes on with no {kind}", type_name::<R::Input>());
            Error::from(error).message(format!("{message}, and has got the {kind} `{id}`"))
        })?;
        let check = Stack::<AnyRun>::builder().layer_in(Phase::Observe, IsAdopted(taken.clone())).build();
        let run = self.0.run_shared(input).own_extension(taken.clone()).middleware(check);
        Ok(Box::pin(async move { run.await.map(drop) }))
    }
}

impl Worker {
    /// Creates a worker without queues, which runs 16 jobs at a time.
    #[must_use]
    pub fn new<S: Store + Clone>(store: &S) -> Self {
        Self { store: Arc::new(store.clone()), lease: Lease::new(), concurrency: 16, served: Vec::new() }
    }

    /// Serves a queue with a runnable. A queue that is named again gets the new one.
    #[must_use]
    pub fn serve<R>(mut self, queue: impl Into<String>, runnable: impl IntoShared<Runnable = R>) -> Self
    where
        R: Runnable + 'static,
    {
        let queue = queue.into();
        self.served.retain(|(before, _)| *before != queue);
        self.served.push((queue, Arc::new(Served(runnable.into_shared()))));
        self
    }

    /// Sets how many jobs run at a time. 0 counts as 1.
    #[must_use]
    pub fn concurrency(mut self, concurrency: usize) -> Self {
        self.concurrency = concurrency.max(1);
        self
    }

    /// Sets the lease of the jobs, and the name of the worker.
    #[must_use]
    pub fn lease(mut self, lease: Lease) -> Self {
        self.lease = lease;
        self
    }

    /// Starts the worker in the tokio runtime of the caller, which needs a clock.
    ///
    /// # Errors
    ///
    /// Returns an error if no queue is served, if the name of a queue is not valid, and if the store cannot be used, or
    /// has no queues.
    pub async fn start(self) -> Result<RunningWorker> {
        if self.served.is_empty() {
            return Err(Error::new("the worker serves no queue: call `serve` before `start`"));
        }
        let by = self.lease.holder();
        let working = Arc::new(Working {
            worker: self,
            by,
            running: Mutex::default(),
            taken: AtomicUsize::new(0),
            stops: AtomicBool::new(false),
            wake: Notify::new(),
        });
        working.worker.store.take(&working.take(0, false)).await?;
        let task = tokio::spawn(Arc::clone(&working).work());
        Ok(RunningWorker { working, task: Some(task) })
    }
}

/// Shows the queues.
impl fmt::Debug for Worker {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let queues: Vec<_> = self.served.iter().map(|(queue, _)| queue).collect();
        f.debug_struct("Worker")
            .field("queues", &queues)
            .field("concurrency", &self.concurrency)
            .finish_non_exhaustive()
    }
}

/// A worker that works. Returned by [`Worker::start`].
///
/// # Dropping
///
/// The jobs that it runs are aborted, and other workers go on with them.
#[must_use = "a worker that is dropped stops"]
#[derive(Debug)]
pub struct RunningWorker {
    working: Arc<Working>,
    task: Option<JoinHandle<JoinSet<()>>>,
}

impl RunningWorker {
    /// Takes no more jobs, waits for a time until those that run have ended, and aborts the others. They are due at once,
    /// so other workers go on with them.
    ///
    /// # Cancel safety
    ///
    /// If the future is dropped, the worker is dropped.
    pub async fn shutdown(mut self, wait: Duration) {
        self.working.stops.store(true, Ordering::Relaxed);
        self.working.wake.notify_one();
        let Some(task) = &mut self.task else { return };
        // The task returns at once, or has panicked.
        let ended = task.await;
        self.task = None;
        let Ok(mut jobs) = ended else { return };
        // If this future is dropped, before the jobs are.
        let _hands_over = HandsOver(&self.working);
        let all = async { while jobs.join_next().await.is_some() {} };
        if timeout(wait, all).await.is_err() {
            // A job that was about to begin has no run to abort at first.
            while !jobs.is_empty() {
                self.working.hand_over();
                timeout(AGAIN, jobs.join_next()).await.ok();
            }
        }
        let mut take = self.working.take(0, false);
        take.lease = Duration::ZERO;
        if let Err(error) = self.working.worker.store.take(&take).await {
            tracing::warn!(%error, "a worker that has ended is listed until its lease is over");
        }
    }
}

impl Drop for RunningWorker {
    fn drop(&mut self) {
        if let Some(task) = self.task.take() {
            self.working.hand_over();
            task.abort();
        }
    }
}

/// Hands the jobs over that run when it is dropped.
struct HandsOver<'a>(&'a Working);

impl Drop for HandsOver<'_> {
    fn drop(&mut self) {
        self.0.hand_over();
    }
}

/// A place for a job that runs.
struct Slot(Arc<Working>);

impl Slot {
    fn new(working: &Arc<Working>) -> Self {
        working.taken.fetch_add(1, Ordering::Relaxed);
        Self(Arc::clone(working))
    }
}

impl Drop for Slot {
    fn drop(&mut self) {
        self.0.taken.fetch_sub(1, Ordering::Relaxed);
        self.0.wake.notify_one();
    }
}

struct Working {
    worker: Worker,
    /// The name under which entries are taken.
    by: String,
    /// The entries whose runs are under way, by their ids.
    running: Mutex<BTreeMap<String, TakenEntry>>,
    /// The number of slots that are taken.
    taken: AtomicUsize,
    stops: AtomicBool,
    wake: Notify,
}

impl Working {
    fn take(&self, most: usize, is_reversed: bool) -> Take {
        let mut queues: Vec<_> = self.worker.served.iter().map(|(queue, _)| queue.clone()).collect();
        if is_reversed {
            queues.reverse();
        }
        Take::new(&*self.by, self.worker.lease.time, queues).most(most)
    }

    /// Takes what is due until the worker is stopped. Returns the jobs that still run.
    async fn work(self: Arc<Self>) -> JoinSet<()> {
        let mut jobs = JoinSet::new();
        let mut looks = 0_u32;
        let mut has_failed = false;
        let queues = self.worker.served.iter().map(|(queue, _)| &**queue);
        let watch = self.worker.store.wakes().map(|wakes| wakes.watch_work(queues));
        let third = self.worker.lease.time / 3;
        let mut last_look = Instant::now();
        while !self.stops.load(Ordering::Relaxed) {
            looks = looks.wrapping_add(1);
            // After a stop of the process, it would take its own jobs.
            if last_look.elapsed() > third + POLL {
                self.confirm().await;
            }
            last_look = Instant::now();
            let take = self.take(self.free(), looks.is_multiple_of(REVERSED));
            match self.worker.store.take(&take).await {
                Ok(heads) => {
                    has_failed = false;
                    let at = Instant::now();
                    for head in heads {
                        jobs.spawn(Arc::clone(&self).run(head, at, Slot::new(&self)));
                    }
                }
                Err(error) if !has_failed => {
                    has_failed = true;
                    tracing::warn!(%error, "a worker cannot look for work, and tries again each second");
                }
                Err(_) => {}
            }
            let work = self.wait_for_work(watch.as_ref());
            // Woken by each job that has ended, and by a shutdown.
            timeout(POLL.min(third), select(pin!(self.wake.notified()), pin!(work))).await.ok();
            while jobs.try_join_next().is_some() {}
        }
        jobs
    }

    /// Returns the number of slots that are free.
    fn free(&self) -> usize {
        self.worker.concurrency.saturating_sub(self.taken.load(Ordering::Relaxed))
    }

    /// Waits until work is due, if a slot is free.
    async fn wait_for_work(&self, watch: Option<&Watch>) {
        match watch.filter(|_| self.free() > 0) {
            Some(watch) => watch.woken().await,
            None => pending().await,
        }
    }

    /// Returns the owners of the entries whose runs are under way.
    fn owners(&self) -> Vec<Arc<dyn Adopted>> {
        self.running.lock().values().filter_map(|taken| taken.owner().cloned()).collect()
    }

    /// Renews what is held.
    async fn confirm(&self) {
        for owner in self.owners() {
            // A claim that is lost aborts the run.
            owner.journal().confirm().await.ok();
        }
    }

    /// Goes on with an entry that was taken.
    async fn run(self: Arc<Self>, head: EntryHead, at: Instant, _slot: Slot) {
        let Worker { store, lease, .. } = &self.worker;
        let guards = self.served(&head).map_or_else(Vec::new, |served| served.guards());
        let taken = TakenEntry::new(Arc::clone(store), lease.clone(), head, at, guards);
        let head = taken.head();
        match self.running.lock().entry(head.id.clone()) {
            // Taken again after its lease: the run that has lost it is aborted, and the entry is due after a lease.
            Entry::Occupied(_) => return,
            Entry::Vacant(vacant) => _ = vacant.insert(taken.clone()),
        }
        let ended = caught_async(|| self.go_on(&taken)).await;
        let running = self.running.lock().remove(&head.id);
        drop(running);
        let failed = match ended {
            Ok(Ok(())) => return,
            Ok(Err(error)) => error,
            Err(panic) => Error::new(format!("its run has panicked: {panic}")),
        };
        if let Some(owner) = taken.owner() {
            owner.journal().disown();
        }
        match self.keep(&taken).await {
            // The run has claimed the entry, and stored its end.
            Err(StoreError::Conflict { .. } | StoreError::Held { .. }) => {}
            Ok(()) if taken.waits() => {
                tracing::debug!(error = %failed, "the {} `{}` waits for a post", head.kind, head.id);
            }
            Ok(()) => tracing::warn!(error = %failed, "the {} `{}` cannot begin, and comes back", head.kind, head.id),
            Err(error) => tracing::warn!(%error, "the {} `{}` comes back when its lease is over", head.kind, head.id),
        }
    }

    async fn go_on(&self, taken: &TakenEntry) -> Result<()> {
        let EntryHead { queue, kind, .. } = taken.head();
        let unserved = || Error::new(format!("the store has given a {kind} of the queue {queue:?}"));
        let served = self.served(taken.head()).ok_or_else(unserved)?;
        if kind == KIND { go_on_with_job(taken, served).await } else { served.run_entry(taken)?.await }
    }

    /// Returns what serves the queue of an entry.
    fn served(&self, head: &EntryHead) -> Option<&dyn Serve> {
        let served = self.worker.served.iter().find(|(queue, _)| head.queue.as_ref() == Some(queue));
        served.map(|(_, served)| &**served)
    }

    /// Holds an entry that could not begin for some time more.
    async fn keep(&self, taken: &TakenEntry) -> Result<(), StoreError> {
        let mut head = taken.head().clone();
        let mut time = Rest::backoff(head.attempts);
        if taken.waits() {
            // It was no attempt, and the post that it waits for may come soon.
            (head.attempts, time) = (head.attempts.saturating_sub(1), POLL);
        }
        let append = Append::new(head).by(&*self.by).holding(time);
        self.worker.store.append(&append).await.map(drop)
    }

    /// Aborts the runs that are under way, for other workers to go on with their entries.
    fn hand_over(&self) {
        self.owners().iter().for_each(|owner| owner.hand_over());
    }
}

async fn go_on_with_job(taken: &TakenEntry, served: &dyn Serve) -> Result<()> {
    let head = taken.head();
    let job = open(taken.store(), &head.id, taken.lease()).await?;
    taken.set_owner(Arc::clone(&job) as _);
    taken.adopt().await?;
    job.state.lock().is_handed_over = false;
    if head.posts > 0 {
        // Posts that cannot be read would make it due again and again.
        taken.store().posts(&head.id).await?;
    }
    if head.posts > 0 || job.is_at_rest() {
        // The posts are taken first: they decide whether the job is due. Nothing was tried.
        return release_with(&job, |state| {
            state.is_handed_over = true;
            Ok(())
        })
        .await;
    }
    let stuck = {
        let state = job.state.lock();
        let guards = state.submission.iter().flat_map(|submission| &submission.guards);
        taken.stuck(guards.map(|guard| &**guard), state.last_error().as_ref())
    };
    if let Some(question) = stuck {
        return release_with(&job, |state| state.ask_stuck(question)).await;
    }
    let input = job.state.lock().input.clone();
    let input = input.ok_or_else(|| Error::new(format!("the job `{}` has no input", head.id)))?;
    match served.run_job(Durable::by_worker(taken.store(), &head.id, taken.lease()), &input) {
        Ok(run) => run.await,
        Err(error) => {
            tracing::warn!(%error, "the job `{}` cannot begin, and comes back", head.id);
            release_with(&job, |state| state.note_failed_begin(&error)).await
        }
    }
}

/// Changes a job that does not run, and releases it.
async fn release_with(job: &Job, change: impl FnOnce(&mut JobState) -> Result<()>) -> Result<()> {
    let claim = job.journal.claim().await?;
    change(&mut job.state.lock())?;
    let released = claim.release().await;
    job.state.lock().is_handed_over = false;
    released?;
    Ok(())
}

impl fmt::Debug for Working {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let running = self.running.lock().len();
        f.debug_struct("Working").field("by", &self.by).field("running", &running).finish_non_exhaustive()
    }
}
