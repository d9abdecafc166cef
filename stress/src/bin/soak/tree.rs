//! Executes a plan. Each node is a runnable that runs once.

use std::future::{Future, pending};
use std::panic::{AssertUnwindSafe, resume_unwind};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use emitree::abort::AbortHandle;
use emitree::emitter::Registration;
use emitree::error::Interrupt;
use emitree::{Emitter, Error, Options, Result, Run, RunContext, Runnable};
use futures_util::FutureExt;
use futures_util::future::{BoxFuture, join_all};
use tokio::task::yield_now;
use tokio_util::sync::CancellationToken;

use crate::bad::{Bad, Payload};
use crate::bind::bind;
use crate::ending::{Drawn, reason};
use crate::hold::hold;
use crate::listen::{Acting, registration};
use crate::plan::{Act, At, End, Holder, Listening, Node, Plan, Stop};
use crate::record::{IN_PLACE, Log, SPAWNED};
use crate::threads::Threads;

/// State that the runs of a tree share. Each run holds this state until the run is freed. When only the tree holds the
/// state, all runs are freed.
pub(crate) struct Shared {
    pub(crate) log: Log,
    pub(crate) threads: Threads,
    /// Futures of runs, kept until everything else is over.
    kept: Mutex<Vec<BoxFuture<'static, ()>>>,
    amid: Mutex<Option<Amid>>,
    /// Each binding of a run holds a clone.
    pub(crate) bound: Arc<()>,
    /// Contexts of runs with bindings. The bindings must be dropped even while these contexts exist.
    contexts: Mutex<Vec<RunContext>>,
}

/// An action for a new thread. The thread starts when `working` further runs have begun their work.
struct Amid {
    working: u32,
    then: Box<dyn FnOnce() + Send>,
}

impl Shared {
    pub(crate) fn keep(&self, run: BoxFuture<'static, ()>) {
        self.kept.lock().unwrap_or_else(PoisonError::into_inner).push(run);
    }

    fn amid(&self) -> MutexGuard<'_, Option<Amid>> {
        self.amid.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Counts a run that has begun its work, and starts the thread of `Amid` when enough runs have begun their work.
    fn works(&self) {
        let is_due = |amid: &mut Amid| {
            amid.working -= 1;
            amid.working == 0
        };
        let due = self.amid().take_if(is_due);
        if let Some(amid) = due {
            std::thread::spawn(amid.then);
        }
    }

    fn contexts(&self) -> MutexGuard<'_, Vec<RunContext>> {
        self.contexts.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Keeps a run until its bindings are dropped.
    pub(crate) fn hold(&self, run: &RunContext) {
        self.contexts().push(run.clone());
    }

    /// Takes the kept futures.
    pub(crate) fn kept(&self) -> Vec<BoxFuture<'static, ()>> {
        std::mem::take(&mut self.kept.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

/// A plan with an isolated tree of emitters and a recording, ready to run.
pub(crate) struct Tree {
    pub(crate) number: u64,
    pub(crate) shared: Arc<Shared>,
    /// For each node, the parts of its plan that can explain its end.
    pub(crate) drawn: Vec<Drawn>,
    top: Option<Arc<Branch>>,
}

impl Tree {
    pub(crate) fn grow(number: u64, plan: Plan, threads: &Threads) -> Self {
        let shared = Arc::new(Shared {
            log: Log::default(),
            threads: threads.clone(),
            kept: Mutex::default(),
            amid: Mutex::default(),
            bound: Arc::default(),
            contexts: Mutex::default(),
        });
        let mut grower = Grower { root: Emitter::new(), shared: Arc::clone(&shared), drawn: Vec::new() };
        shared.log.observe(&grower.root);
        for (listening, times) in plan.above {
            let registration = grower.registration(listening, Options::new().times(times));
            grower.root.register(registration).expect("a valid matcher");
        }
        let top = Some(grower.branch(plan.top));
        Self { number, shared, drawn: grower.drawn, top }
    }

    /// Returns a future that runs the tree. The future that a second call returns does nothing.
    pub(crate) fn run(&mut self) -> impl Future<Output = ()> + Send + 'static {
        let top = self.top.take();
        async move {
            if let Some(top) = top {
                hold(&top).await;
            }
        }
    }

    /// Returns `true` if all bindings of the tree's runs are dropped, although the runs are still held.
    pub(crate) fn is_bare(&self) -> bool {
        self.top.is_none() && Arc::strong_count(&self.shared.bound) == 1
    }

    /// Drops the kept contexts, and returns `true` if all runs of the tree are freed.
    pub(crate) fn is_over(&self) -> bool {
        let held = std::mem::take(&mut *self.shared.contexts());
        drop(held);
        self.top.is_none() && Arc::strong_count(&self.shared) == 1
    }
}

/// Creates the branches of a tree.
struct Grower {
    root: Emitter,
    shared: Arc<Shared>,
    drawn: Vec<Drawn>,
}

impl Grower {
    fn branch(&mut self, mut node: Node) -> Arc<Branch> {
        let index = u32::try_from(self.drawn.len()).expect("a tree of some dozen nodes");
        let panics_badly = matches!(node.end, End::Panics(Payload::Bad));
        self.drawn.push(Drawn { holder: node.holder, stop: node.stop, panics_badly });
        let is_spawned = matches!(node.holder, Holder::Spawned { .. } | Holder::Task { .. });
        let emitter = self.root.child(if is_spawned { SPAWNED } else { IN_PLACE }).expect("a valid name");
        let mut own = Vec::new();
        for listening in std::mem::take(&mut node.listening) {
            let at = listening.at;
            let registration = self.registration(listening, Options::new());
            match at {
                At::Instance => drop(emitter.register(registration).expect("a valid matcher")),
                At::Run => own.push(registration),
            }
        }
        let children = std::mem::take(&mut node.children).into_iter().map(|child| self.branch(child)).collect();
        Arc::new(Branch { emitter, index, node, children, own: Mutex::new(own), shared: Arc::clone(&self.shared) })
    }

    fn registration(&mut self, listening: Listening, options: Options) -> Registration {
        let Listening { stage, nested, verb, act, .. } = listening;
        let acting = match act {
            Act::Yields(yields) => Acting::Yields(yields),
            Act::Fails(yields) => Acting::Fails(yields),
            Act::Panics(yields, payload) => Acting::Panics(yields, payload),
            Act::Runs(node) => Acting::Runs(self.branch(*node)),
        };
        registration(options.nested(nested), stage, verb, acting, &self.shared.log)
    }
}

/// A node of the plan, with its emitter.
pub(crate) struct Branch {
    emitter: Emitter,
    index: u32,
    pub(crate) node: Node,
    children: Vec<Arc<Self>>,
    /// The listeners that are registered on the run instead of on `emitter`.
    own: Mutex<Vec<Registration>>,
    pub(crate) shared: Arc<Shared>,
}

impl Branch {
    /// Creates a run that borrows the branch. The parent is the run in which this method is called.
    pub(crate) fn call(&self) -> impl Future<Output = Result<u32>> + Send {
        self.noted(self.built(self.run(self.index)))
    }

    /// Creates a run that owns the branch.
    pub(crate) fn call_shared(self: &Arc<Self>) -> impl Future<Output = Result<u32>> + Send + use<> {
        let run = self.built(self.run_shared(self.index));
        let this = Arc::clone(self);
        async move { this.noted(run).await }
    }

    /// Records the result of a run, or the panic that escapes from it.
    async fn noted(&self, run: Run<'_, Self>) -> Result<u32> {
        let result = AssertUnwindSafe(run).catch_unwind().await.unwrap_or_else(|panic| {
            self.shared.log.escaped(self.index);
            resume_unwind(panic)
        });
        self.shared.log.returned(self.index, &result);
        result
    }

    fn built<'a>(&self, run: Run<'a, Self>) -> Run<'a, Self> {
        let own = std::mem::take(&mut *self.own.lock().unwrap_or_else(PoisonError::into_inner));
        let run = own.into_iter().fold(run.extension(Arc::clone(&self.shared)), Run::register);
        let binding = |run: Run<'a, Self>, binding| {
            let shared = Arc::clone(&self.shared);
            run.middleware(move |ctx: &RunContext| bind(ctx, binding, &shared))
        };
        let run = self.node.bindings.iter().copied().fold(run, binding);
        let run = self.node.stop.into_iter().fold(run, |run, stop| self.stopped(run, stop));
        if self.node.is_answered { run.on_start(|start, _| start.output = Some(0)) } else { run }
    }

    fn stopped<'a>(&self, run: Run<'a, Self>, stop: Stop) -> Run<'a, Self> {
        let handle = AbortHandle::new();
        let token = CancellationToken::new();
        let reason = reason(self.index);
        match stop {
            Stop::Before => {
                handle.abort(reason);
                run.abort_on(&handle)
            }
            Stop::AtStart => run.on_start(move |_, _| {
                if let Some(run) = RunContext::current() {
                    run.abort(&*reason);
                }
            }),
            Stop::Thread => {
                let run = run.abort_on(&handle);
                self.shared.threads.do_soon(move || handle.abort(reason));
                run
            }
            Stop::ThreadAmid { working } => {
                let run = run.abort_on(&handle);
                self.amid(working, move || _ = handle.abort(reason));
                run
            }
            Stop::TokenBefore => {
                token.cancel();
                run.abort_on(token)
            }
            Stop::Token => {
                let run = run.abort_on(&token);
                self.shared.threads.do_soon(move || token.cancel());
                run
            }
            Stop::TokenAmid { working } => {
                let run = run.abort_on(&token);
                self.amid(working, move || token.cancel());
                run
            }
            Stop::After(time) => run.timeout(time),
            Stop::Itself | Stop::ThreadInWork => run,
        }
    }

    /// Makes a thread abort the run after `working` runs of the tree, including this run, have begun their work.
    fn amid(&self, working: u32, abort: impl FnOnce() + Send + 'static) {
        let log = self.shared.log.clone();
        let node = self.index;
        let then = Box::new(move || {
            log.aborts(node);
            abort();
        });
        *self.shared.amid() = Some(Amid { working, then });
    }

    async fn work(&self, ctx: &RunContext) -> Result<u32> {
        let run = ctx.run_id().as_u128();
        self.shared.log.works(run);
        self.shared.works();
        for _ in 0..self.node.yields {
            yield_now().await;
            self.shared.log.look_around(run);
        }
        self.stop(ctx);
        self.run_children().await?;
        self.shared.log.look_around(run);
        self.come_to_end().await
    }

    /// Aborts the run if its plan requires it.
    fn stop(&self, ctx: &RunContext) {
        match self.node.stop {
            Some(Stop::Itself) => {
                ctx.abort(reason(self.index));
            }
            Some(Stop::ThreadInWork) => {
                let handle = ctx.abort_handle();
                let reason = reason(self.index);
                self.shared.threads.do_soon(move || handle.abort(reason));
            }
            _ => {}
        }
    }

    async fn run_children(&self) -> Result<()> {
        if self.node.at_once {
            return join_all(self.children.iter().map(run_child)).await.into_iter().collect();
        }
        for child in &self.children {
            run_child(child).await?;
        }
        Ok(())
    }

    async fn come_to_end(&self) -> Result<u32> {
        match self.node.end {
            End::Succeeds => Ok(self.index),
            End::Fails => Err(Error::new("planned")),
            End::Panics(payload) => payload.panic(),
            End::IsDenied => Err(Error::denied("soak", "planned")),
            End::IsHalted => Err(Error::halted("soak", "planned")),
            End::IsInterrupted => Err(Error::interrupted(Interrupt::new("planned", "soak"))),
            End::Hangs => pending().await,
        }
    }
}

async fn run_child(child: &Arc<Branch>) -> Result<()> {
    match hold(child).await {
        Some(result) if child.node.is_passed_on => result.map(drop),
        _ => Ok(()),
    }
}

impl Runnable for Branch {
    type Input = u32;
    type Output = u32;

    fn emitter(&self) -> &Emitter {
        &self.emitter
    }

    async fn execute(&self, _: &u32, ctx: &RunContext) -> Result<u32> {
        let bad = self.node.drops_badly.map(Bad);
        let result = self.work(ctx).await;
        std::mem::forget(bad);
        result
    }
}
