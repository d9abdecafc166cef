//! In random combinations of middlewares, each run ends once, after its children, and with the outcome that its caller
//! receives. No limit is exceeded, no guard is bypassed, and control flow is kept. At the end, no permit and no run is
//! held.

use std::collections::{BTreeMap, BTreeSet};
use std::future::{Future, pending, poll_fn};
use std::pin::pin;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, Once};
use std::task::Poll;
use std::time::Duration;

use crate::support::{Any, instance};
use emitree_emitter::{Creator, Emitter, EventMeta};
use emitree_middleware::approval::{Decision, Request};
use emitree_middleware::key::Key;
use emitree_middleware::{
    Approval, Budget, Cache, CircuitBreaker, Concurrency, Fallback, Limits, RateLimit, Redact, Retry, Timeout,
};
use emitree_runtime::{
    AbortHandle, Error, ErrorKind, Interrupt, LifecycleRef, Middleware, Outcome, Result, Run, RunContext, Runnable,
    Stage, Status, for_tree, wait_for_ends,
};
use emitree_secrets::Kind;
use futures_util::future::{Either, join_all, select};
use proptest::collection::vec;
use proptest::prelude::*;
use proptest::sample;
use serde::{Deserialize, Serialize};
use tokio::time::{Instant, sleep, timeout};
use uuid::Uuid;

const PLACES: usize = 2;
const BELOW: usize = 4;
const OVERALL: Duration = ms(100);
const SPARE: u64 = u64::MAX;

const fn ms(ms: u64) -> Duration {
    Duration::from_millis(ms)
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Ware {
    Retry,
    Cache,
    Attempt,
    Overall,
    Breaker,
    Fallback,
    Budget,
    Limits,
    Rate,
    Concurrency,
    Approval,
    Redact,
}

const WARES: [Ware; 12] = [
    Ware::Retry,
    Ware::Cache,
    Ware::Attempt,
    Ware::Overall,
    Ware::Breaker,
    Ware::Fallback,
    Ware::Budget,
    Ware::Limits,
    Ware::Rate,
    Ware::Concurrency,
    Ware::Approval,
    Ware::Redact,
];

/// The place that a middleware is bound to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Place {
    Instance,
    Run,
    Nested,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum End {
    Succeeds,
    Fails,
    FailsForGood,
    Panics,
    IsDenied,
    IsHalted,
    IsInterrupted,
    AsksForMore,
    Hangs,
}

const ENDS: [End; 9] = [
    End::Succeeds,
    End::Fails,
    End::FailsForGood,
    End::Panics,
    End::IsDenied,
    End::IsHalted,
    End::IsInterrupted,
    End::AsksForMore,
    End::Hangs,
];

/// The way in which a run is stopped from outside.
#[derive(Clone, Copy, Debug)]
enum Cut {
    Not,
    Dropped(u64),
    Polled(usize),
    Aborted(u64),
    TimedOut(u64),
}

#[derive(Clone, Debug)]
struct Node {
    wares: Vec<(Ware, Place)>,
    end: End,
    /// The duration of the work before the children run, in milliseconds.
    ms: u64,
    spawned: bool,
    passed_on: bool,
    cut: Cut,
    children: Vec<Self>,
}

impl Node {
    fn hangs(&self) -> bool {
        self.end == End::Hangs || self.children.iter().any(Self::hangs)
    }
}

fn cut() -> impl Strategy<Value = Cut> {
    prop_oneof![
        6 => Just(Cut::Not),
        1 => (0..60_u64).prop_map(Cut::Dropped),
        1 => (0..12_usize).prop_map(Cut::Polled),
        1 => (0..60_u64).prop_map(Cut::Aborted),
        1 => (0..60_u64).prop_map(Cut::TimedOut),
    ]
}

fn node(children: impl Strategy<Value = Vec<Node>>) -> impl Strategy<Value = Node> {
    let places = sample::select(&[Place::Instance, Place::Run, Place::Nested][..]);
    let wares = vec((sample::select(&WARES[..]), places), 0..5);
    let end = prop_oneof![4 => Just(End::Succeeds), 4 => sample::select(&ENDS[..])];
    (wares, end, 0..30_u64, any::<(bool, bool)>(), cut(), children).prop_map(
        |(wares, end, ms, (spawned, passed_on), cut, children)| Node {
            wares,
            end,
            ms,
            spawned,
            passed_on,
            cut,
            children,
        },
    )
}

fn tree() -> impl Strategy<Value = Node> {
    node(Just(Vec::new())).prop_recursive(3, 12, 3, |inner| node(vec(inner, 0..4)))
}

#[derive(Clone, Debug, Serialize, Deserialize)]
struct Job {
    node: usize,
    text: String,
}

/// One middleware of each kind, shared by all runs.
struct Shelf {
    cache: Cache,
    breaker: CircuitBreaker,
    rate: RateLimit,
    concurrency: Concurrency,
    fallback: Fallback<emitree_runtime::JsonRun>,
    approval: Approval,
    budget: Budget,
    limits: Limits,
    retry: Retry,
    redact: Redact,
}

impl Shelf {
    fn new(root: &Emitter) -> Self {
        let spare = instance(root, "Tool", "spare", |_: Job, _: RunContext| async { Ok(SPARE) });
        let approval = Approval::by(|request: Request| async move {
            sleep(ms(3)).await;
            Ok(if is_rejected(&request.input["node"]) { Decision::reject("no") } else { Decision::Approve })
        });
        let breaker = CircuitBreaker::builder().failures(2).cool_down(ms(20)).by(Key::instance());
        let retry = Retry::builder().max_retries(2).base_delay(ms(5)).without_jitter();
        let concurrency = Concurrency::builder(PLACES).wait(ms(60));
        Self {
            cache: Cache::json().build().expect("options that are right"),
            breaker: breaker.build().expect("options that are right"),
            rate: RateLimit::builder(4, ms(20)).wait(ms(30)).build().expect("options that are right"),
            concurrency: concurrency.build().expect("options that are right"),
            fallback: Fallback::any(Arc::new(spare)),
            approval,
            budget: Budget::builder().calls(BELOW as u64).build().expect("options that are right"),
            limits: Limits::builder().runs(BELOW as u64).build(),
            retry: retry.build().expect("options that are right"),
            redact: Redact::new().only([Kind::Email]),
        }
    }

    fn take(&self, ware: Ware) -> Arc<dyn Middleware> {
        match ware {
            Ware::Retry => Arc::new(self.retry.clone()),
            Ware::Cache => Arc::new(self.cache.clone()),
            Ware::Attempt => Arc::new(Timeout::per_attempt(ms(40))),
            Ware::Overall => Arc::new(Timeout::overall(OVERALL)),
            Ware::Breaker => Arc::new(self.breaker.clone()),
            Ware::Fallback => Arc::new(self.fallback.clone()),
            Ware::Budget => Arc::new(self.budget.clone()),
            Ware::Limits => Arc::new(self.limits.clone()),
            Ware::Rate => Arc::new(self.rate.clone()),
            Ware::Concurrency => Arc::new(self.concurrency.clone()),
            Ware::Approval => Arc::new(self.approval.clone()),
            Ware::Redact => Arc::new(self.redact.clone()),
        }
    }
}

fn is_rejected(node: &serde_json::Value) -> bool {
    node.as_u64().is_some_and(|node| node % 5 == 4)
}

/// A recorded event or call.
#[derive(Clone, Debug)]
enum Entry {
    Event {
        run: Uuid,
        parent: Option<Uuid>,
        call: Option<u64>,
        stage: Stage,
        status: Option<Status>,
        at: Instant,
    },
    Began {
        run: Uuid,
        node: usize,
        text: String,
    },
    Ended {
        run: Uuid,
        result: std::result::Result<u64, Status>,
    },
    Returned {
        call: u64,
        result: std::result::Result<u64, Status>,
    },
    /// The run ends with control flow from its own work.
    Controlled {
        run: Uuid,
    },
}

#[derive(Clone, Default)]
struct Log {
    entries: Arc<Mutex<Vec<Entry>>>,
    calls: Arc<AtomicU64>,
    outputs: Arc<AtomicU64>,
    /// The number of permits held by working runs; `busiest` is its maximum.
    busy: Arc<AtomicUsize>,
    busiest: Arc<AtomicUsize>,
    /// If `true`, all work succeeds immediately.
    is_calm: Arc<AtomicBool>,
    /// Each run and each copy of this log holds a clone of this `Arc`.
    held: Arc<()>,
}

impl Log {
    fn add(&self, entry: Entry) {
        self.entries.lock().expect("nobody panics here").push(entry);
    }

    fn take(&self) -> Vec<Entry> {
        std::mem::take(&mut self.entries.lock().expect("nobody panics here"))
    }

    fn watch(&self, root: &Emitter) {
        let log = self.clone();
        root.observe("*.*", move |event: &Any, meta| log.event(event, meta)).expect("a valid matcher");
    }

    fn event(&self, event: &Any, meta: &EventMeta<'_>) {
        let (Some(stage), Some(trace)) = (Stage::of(meta), meta.trace()) else { return };
        let status = match LifecycleRef::of(event, meta) {
            Some(LifecycleRef::Finish(finish)) => Some(finish.status()),
            Some(LifecycleRef::Error(failure)) => {
                if is_of_work(failure.error()) {
                    self.add(Entry::Controlled { run: trace.run_id });
                }
                Some(status_of(failure.error()))
            }
            _ => None,
        };
        // The run of an alternative inherits the context, so its `call` is ignored.
        let is_called = meta.source().namespace().starts_with("node");
        let call = meta.context().get("call").and_then(serde_json::Value::as_u64).filter(|_| is_called);
        let (run, parent, at) = (trace.run_id, trace.parent_run_id, Instant::now());
        self.add(Entry::Event { run, parent, call, stage, status, at });
    }
}

fn is_of_work(error: &Error) -> bool {
    match error.kind() {
        ErrorKind::Denied { by } | ErrorKind::Halted { by } => by == "desk",
        kind => *kind == ErrorKind::Interrupted,
    }
}

fn status_of(error: &Error) -> Status {
    Outcome::<()>::of_error(error).status()
}

/// A node with an emitter.
struct Branch {
    emitter: Emitter,
    index: usize,
    node: Node,
    /// All middlewares that are bound to its runs, including those bound by nodes above.
    bound: Vec<Ware>,
    takes_permit: bool,
    of_instance: Vec<Arc<dyn Middleware>>,
    children: Vec<Arc<Self>>,
    shelf: Arc<Shelf>,
    log: Log,
}

struct Garden {
    root: Emitter,
    shelf: Arc<Shelf>,
    log: Log,
    branches: Vec<Arc<Branch>>,
}

impl Garden {
    fn new() -> Self {
        let (root, log) = (Emitter::new(), Log::default());
        log.watch(&root);
        let shelf = Arc::new(Shelf::new(&root));
        Self { root, shelf, log, branches: Vec::new() }
    }

    fn grow(&mut self, node: &Node, nested: &[Ware], is_placed: bool) -> Arc<Branch> {
        let own = |place: Place| node.wares.iter().filter(move |ware| ware.1 == place).map(|ware| ware.0);
        let nested: Vec<_> = nested.iter().copied().chain(own(Place::Nested)).collect();
        let bound: Vec<_> = nested.iter().copied().chain(node.wares.iter().map(|ware| ware.0)).collect();
        let has_permit = bound.contains(&Ware::Concurrency);
        let children: Vec<_> =
            node.children.iter().map(|child| self.grow(child, &nested, is_placed || has_permit)).collect();
        let index = self.branches.len();
        let name = format!("node{index}");
        let creator = Creator::new("Tool", name.clone());
        let branch = Arc::new(Branch {
            emitter: self.root.child_builder(name).creator(creator).build().expect("a valid name"),
            index,
            of_instance: own(Place::Instance).map(|ware| self.shelf.take(ware)).collect(),
            node: node.clone(),
            bound,
            takes_permit: has_permit && !is_placed,
            children,
            shelf: Arc::clone(&self.shelf),
            log: self.log.clone(),
        });
        self.branches.push(Arc::clone(&branch));
        branch
    }
}

impl Branch {
    fn job(&self) -> Job {
        Job { node: self.index, text: "to maria@mailbox.org".to_owned() }
    }

    fn built(&self, call: u64) -> Run<'_, Self> {
        let run = self.run(self.job()).extension(Arc::clone(&self.log.held)).max_middleware_retries(1);
        let run = run.context(serde_json::json!({ "call": call }));
        self.node.wares.iter().fold(run, |run, (ware, place)| match place {
            Place::Instance => run,
            Place::Run => run.middleware(self.shelf.take(*ware)),
            Place::Nested => run.middleware(for_tree(self.shelf.take(*ware))),
        })
    }

    /// Returns `None` if the run was dropped.
    async fn call(self: Arc<Self>) -> Option<Result<u64>> {
        let call = self.log.calls.fetch_add(1, Ordering::Relaxed);
        let run = self.built(call);
        let result = match self.node.cut {
            Cut::Not => run.await,
            Cut::Dropped(after) => timeout(ms(after), run).await.ok()?,
            Cut::Polled(times) => polled(run, times).await?,
            Cut::Aborted(after) => aborted(run, after).await,
            Cut::TimedOut(after) => run.timeout(ms(after)).await,
        };
        let returned = result.as_ref().copied().map_err(status_of);
        self.log.add(Entry::Returned { call, result: returned });
        Some(result)
    }

    async fn call_child(child: &Arc<Self>, ctx: &RunContext) -> Result<()> {
        let call = Arc::clone(child).call();
        let result = if child.node.spawned { ctx.spawn(call).await? } else { call.await };
        match result {
            Some(Err(error)) if child.node.passed_on => Err(error),
            _ => Ok(()),
        }
    }

    async fn work(&self, ctx: &RunContext) -> Result<u64> {
        let output = self.log.outputs.fetch_add(1, Ordering::Relaxed);
        if self.log.is_calm.load(Ordering::Relaxed) {
            return Ok(output);
        }
        sleep(ms(self.node.ms)).await;
        let children = join_all(self.children.iter().map(|child| Self::call_child(child, ctx))).await;
        children.into_iter().collect::<Result<()>>()?;
        match self.node.end {
            End::Succeeds => Ok(output),
            End::Fails => Err(Error::new("busy").retryable(true)),
            End::FailsForGood => Err(Error::new("broken")),
            End::Panics => panic!("planned"),
            End::IsDenied => Err(Error::denied("desk", "closed")),
            End::IsHalted => Err(Error::halted("desk", "spent")),
            End::IsInterrupted => Err(Error::interrupted(Interrupt::new("question", self.index))),
            End::AsksForMore => Err(Error::retry("again")),
            End::Hangs => pending().await,
        }
    }
}

async fn polled<F: Future>(future: F, mut times: usize) -> Option<F::Output> {
    let mut future = pin!(future);
    poll_fn(|cx| {
        if times == 0 {
            return Poll::Ready(None);
        }
        times -= 1;
        future.as_mut().poll(cx).map(Some)
    })
    .await
}

async fn aborted(run: Run<'_, Branch>, after: u64) -> Result<u64> {
    let handle = AbortHandle::new();
    let run = run.abort_on(handle.signal());
    let aborts = pin!(async {
        sleep(ms(after)).await;
        handle.abort("cut");
    });
    match select(run, aborts).await {
        Either::Left((result, _)) => result,
        Either::Right(((), run)) => run.await,
    }
}

/// Counts the permits of a run while it works.
struct Busy<'a>(&'a Log, usize);

impl<'a> Busy<'a> {
    fn new(log: &'a Log, places: usize) -> Self {
        let busy = log.busy.fetch_add(places, Ordering::SeqCst) + places;
        log.busiest.fetch_max(busy, Ordering::SeqCst);
        Self(log, places)
    }
}

impl Drop for Busy<'_> {
    fn drop(&mut self) {
        self.0.busy.fetch_sub(self.1, Ordering::SeqCst);
    }
}

impl Runnable for Branch {
    type Input = Job;
    type Output = u64;

    fn emitter(&self) -> &Emitter {
        &self.emitter
    }

    fn middlewares(&self) -> &[Arc<dyn Middleware>] {
        &self.of_instance
    }

    async fn execute(&self, job: &Job, ctx: &RunContext) -> Result<u64> {
        let _busy = Busy::new(&self.log, usize::from(self.takes_permit));
        let run = ctx.run_id();
        self.log.add(Entry::Began { run, node: self.index, text: job.text.clone() });
        let result = self.work(ctx).await;
        self.log.add(Entry::Ended { run, result: result.as_ref().copied().map_err(status_of) });
        result
    }
}

/// The recorded events of one run.
#[derive(Debug, Default)]
struct Life {
    parent: Option<Uuid>,
    stages: Vec<(usize, Stage, Instant)>,
    status: Option<Status>,
    node: Option<usize>,
    began: Vec<usize>,
    ended: Vec<(usize, Status)>,
    is_controlled: bool,
}

type Checked = std::result::Result<(), String>;

fn ensure(holds: bool, otherwise: impl FnOnce() -> String) -> Checked {
    if holds { Ok(()) } else { Err(otherwise()) }
}

/// The time that a test allows for runs and timers, with a paused or a real clock.
#[derive(Clone, Copy)]
struct Pace {
    /// The maximum time to wait for a run that hangs, or that waits for a hanging run.
    patience: Duration,
    /// The maximum delay of a timer.
    slack: Duration,
}

const PAUSED: Pace = Pace { patience: Duration::from_secs(24 * 60 * 60), slack: ms(2) };
const REAL: Pace = Pace { patience: Duration::from_secs(60), slack: Duration::from_secs(10) };

/// All recorded entries, grouped by run.
struct Record<'a> {
    pace: Pace,
    log: &'a [Entry],
    branches: &'a [Arc<Branch>],
    lives: BTreeMap<Uuid, Life>,
    finishes: BTreeMap<u64, Status>,
}

impl<'a> Record<'a> {
    fn new(log: &'a [Entry], branches: &'a [Arc<Branch>], pace: Pace) -> Self {
        let mut record = Self { pace, log, branches, lives: BTreeMap::new(), finishes: BTreeMap::new() };
        for (at, entry) in log.iter().enumerate() {
            record.read(at, entry);
        }
        record
    }

    fn read(&mut self, place: usize, entry: &Entry) {
        match entry {
            Entry::Event { run, parent, call, stage, status, at } => {
                let life = self.lives.entry(*run).or_default();
                life.parent = *parent;
                life.stages.push((place, *stage, *at));
                life.status = status.or(life.status);
                if let (Some(call), Stage::Finish, Some(status)) = (call, stage, status) {
                    self.finishes.insert(*call, *status);
                }
            }
            Entry::Began { run, node, .. } => {
                let life = self.lives.entry(*run).or_default();
                life.node = Some(*node);
                life.began.push(place);
            }
            Entry::Ended { run, result } => {
                let status = result.err().unwrap_or(Status::Success);
                self.lives.entry(*run).or_default().ended.push((place, status));
            }
            Entry::Controlled { run } => self.lives.entry(*run).or_default().is_controlled = true,
            Entry::Returned { .. } => {}
        }
    }

    fn check(&self) -> Checked {
        for (run, life) in &self.lives {
            life.check_order()?;
            if let Some(parent) = life.parent {
                let parent = self.lives.get(&parent).ok_or_else(|| format!("{life:?} has an unknown parent"))?;
                life.check_within(parent)?;
            }
            life.check_control_flow()?;
            let Some(branch) = life.node.map(|node| &self.branches[node]) else { continue };
            if branch.bound.contains(&Ware::Overall) {
                life.check_time(self.pace.slack)?;
            }
            if branch.bound.contains(&Ware::Budget) || branch.bound.contains(&Ware::Limits) {
                self.check_below(*run)?;
            }
        }
        self.check_entries()
    }

    /// Checks that no more runs than the limit have worked below a run.
    fn check_below(&self, run: Uuid) -> Checked {
        let parent = |run: &Uuid| self.lives.get(run).and_then(|life| life.parent);
        let is_below = |of: &Uuid| std::iter::successors(parent(of), parent).any(|above| above == run);
        let below = self.lives.iter().filter(|(of, life)| !life.began.is_empty() && is_below(of)).count();
        ensure(below <= BELOW, || format!("{below} runs below {run}"))
    }

    fn check_entries(&self) -> Checked {
        let mut given = BTreeSet::from([SPARE]);
        for entry in self.log {
            match entry {
                Entry::Began { node, text, .. } => {
                    let bound = &self.branches[*node].bound;
                    let is_allowed = !(bound.contains(&Ware::Approval) && is_rejected(&(*node).into()));
                    ensure(is_allowed, || format!("node{node} worked and was rejected"))?;
                    let is_clean = !(bound.contains(&Ware::Redact) && text.contains('@'));
                    ensure(is_clean, || format!("node{node} got {text}"))?;
                }
                Entry::Ended { result: Ok(output), .. } => {
                    given.insert(*output);
                }
                Entry::Returned { call, result } => {
                    let status = result.err().unwrap_or(Status::Success);
                    let said = self.finishes.get(call);
                    ensure(said == Some(&status), || format!("call {call} gave {status:?}, `finish` said {said:?}"))?;
                    let is_known = result.is_err() || result.is_ok_and(|output| given.contains(&output));
                    ensure(is_known, || format!("call {call} gave {result:?}, which nobody had"))?;
                }
                Entry::Event { .. } | Entry::Ended { .. } | Entry::Controlled { .. } => {}
            }
        }
        Ok(())
    }
}

impl Life {
    // R4
    fn check_order(&self) -> Checked {
        let stages: Vec<_> = self.stages.iter().map(|(_, stage, _)| *stage).collect();
        let ends_once = matches!(stages[..], [Stage::Start, Stage::Success | Stage::Error, Stage::Finish]);
        ensure(ends_once, || format!("{stages:?}: {self:?}"))?;
        let works_within = self.began.iter().all(|at| (self.stages[0].0..self.stages[1].0).contains(at));
        ensure(works_within, || format!("works untimely: {self:?}"))
    }

    // R13
    fn check_within(&self, parent: &Self) -> Checked {
        let is_within = self.stages[0].0 > parent.stages[0].0 && self.stages[2].0 < parent.stages[2].0;
        ensure(is_within, || format!("{self:?} is not within {parent:?}"))
    }

    // M9: a run ends with control flow of the work only if its own work returned it. Such control flow is neither
    // retried nor replaced, unless the run is stopped.
    fn check_control_flow(&self) -> Checked {
        let has_own = self.ended.iter().any(|(_, status)| Some(*status) == self.status);
        ensure(!self.is_controlled || has_own, || format!("it is not its own end: {self:?}"))?;
        use Status::{Aborted, Denied, Dropped, Halted, Interrupted, TimedOut};
        let is_control_flow = |status: &Status| matches!(status, Aborted | Denied | Halted | Interrupted);
        let Some((at, status)) = self.ended.iter().find(|(_, status)| is_control_flow(status)) else { return Ok(()) };
        ensure(self.began.iter().all(|began| began < at), || format!("tried again: {self:?}"))?;
        let stays = self.status == Some(*status) || matches!(self.status, Some(Aborted | Dropped | TimedOut | Halted));
        ensure(stays, || format!("{status:?} was swallowed: {self:?}"))
    }

    fn check_time(&self, slack: Duration) -> Checked {
        let took = self.stages[1].2 - self.stages[0].2;
        ensure(took <= OVERALL + slack, || format!("it took {took:?}: {self:?}"))
    }
}

fn silence_planned_panics() {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        let print = std::panic::take_hook();
        std::panic::set_hook(Box::new(move |panic| {
            if panic.payload_as_str() != Some("planned") {
                print(panic);
            }
        }));
    });
}

impl Garden {
    /// Checks that no permit and no run is held, and that all middlewares let runs pass again.
    async fn check_rest(&self, holders: usize) -> Checked {
        let over = wait_for_ends(ms(1_000)).await;
        ensure(over.is_complete(), || format!("{over}"))?;
        ensure(self.shelf.concurrency.known_keys() == 0, || "a permit is held".to_owned())?;
        ensure(self.is_free(holders).await, || "a run is kept".to_owned())?;
        ensure(self.log.busiest.load(Ordering::SeqCst) <= PLACES, || "too many at once".to_owned())?;
        self.log.is_calm.store(true, Ordering::Relaxed);
        for branch in self.branches.iter().filter(|branch| !is_rejected(&branch.index.into())) {
            sleep(ms(50)).await;
            let run = WARES.iter().fold(branch.run(branch.job()), |run, ware| run.middleware(self.shelf.take(*ware)));
            let result = timeout(Duration::from_secs(10), run).await;
            let is_fine = matches!(result, Ok(Ok(output)) if output != SPARE);
            ensure(is_fine, || format!("node{} afterwards: {result:?}", branch.index))?;
        }
        Ok(())
    }
}

impl Garden {
    /// Waits until no run is held: on another thread, a task may be about to end.
    async fn is_free(&self, holders: usize) -> bool {
        for _ in 0..500 {
            if Arc::strong_count(&self.log.held) == holders {
                return true;
            }
            sleep(ms(10)).await;
        }
        false
    }
}

/// Runs all trees concurrently, each `times` times, and checks the recorded entries.
async fn together(trees: &[Node], times: usize, pace: Pace) -> Checked {
    silence_planned_panics();
    let mut garden = Garden::new();
    let grown: Vec<_> = trees.iter().map(|tree| garden.grow(tree, &[], false)).collect();
    let holders = Arc::strong_count(&garden.log.held);
    let calls = grown.iter().flat_map(|tree| std::iter::repeat_n(tree, times));
    let calls = join_all(calls.map(|tree| tokio::spawn(timeout(pace.patience, Arc::clone(tree).call())))).await;
    let is_stuck = calls.iter().any(|call| !matches!(call, Ok(Ok(_)))) && !trees.iter().any(Node::hangs);
    ensure(!is_stuck, || "somebody waits for ever".to_owned())?;
    drop(calls);
    let rest = garden.check_rest(holders).await;
    let log = garden.log.take();
    let checked = Record::new(&log, &garden.branches, pace).check().and(rest);
    checked.map_err(|fault| format!("{fault}\n{log:#?}"))
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 256, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn in_any_combination_of_built_ins_each_run_ends_once_and_holds_nothing_afterwards(trees in vec(tree(), 1..4), times in 1..4_usize) {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_time().start_paused(true).build();
        let checked = runtime.expect("a runtime").block_on(together(&trees, times, PAUSED));
        prop_assert!(checked.is_ok(), "{}", checked.unwrap_err());
    }
}

#[test]
fn one_instance_of_each_built_in_serves_100_concurrent_runs_on_several_threads() {
    let node =
        |end, cut, children| Node { wares: Vec::new(), end, ms: 1, spawned: true, passed_on: true, cut, children };
    let leaf = |end| node(end, Cut::Not, Vec::new());
    let leaves = || vec![leaf(End::Succeeds), leaf(End::Fails), node(End::Succeeds, Cut::Aborted(2), Vec::new())];
    let ends = [(End::Succeeds, Cut::Not), (End::IsDenied, Cut::Not), (End::Panics, Cut::Not)];
    let cuts = [(End::Succeeds, Cut::Dropped(8)), (End::Succeeds, Cut::Polled(5))];
    let everything = |nth: usize| {
        let wares = WARES.iter().cycle().skip(5 * nth).take(WARES.len());
        wares.map(|ware| (*ware, Place::Nested)).collect()
    };
    let trees: Vec<_> = ends.into_iter().chain(cuts).enumerate().collect();
    let trees: Vec<_> = trees
        .into_iter()
        .map(|(nth, (end, cut))| Node { wares: everything(nth), ..node(end, cut, leaves()) })
        .collect();
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(4).enable_time().build();
    let checked = runtime.expect("a runtime").block_on(together(&trees, 20, REAL));
    assert_eq!(checked, Ok(()));
}
