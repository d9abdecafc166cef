//! What is bound to a run, and the end of the run, at which all of it is dropped (R14): listeners, layers, middlewares, subscribers,
//! end hooks, and the functions that errors and context values pass.
//!
//! 1. Each binding is dropped once, under no lock, with the run as the current one. Runs that are started meanwhile belong to the
//!    next run above that takes some (R1).
//! 2. A binder adds, and then marks the run as bound; the end marks the run as released, and then looks. Both marks are in one word
//!    ([`RunState`](crate::run::state::RunState)), so one of the two sees the other: what is bound too late is dropped at once.
//! 3. A binding that panics as it is dropped keeps no other from being dropped.

use std::mem::take;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};

use parking_lot::Mutex;
use smallvec::SmallVec;

use crate::chain::list::SmallList;
use crate::chain::{AnyChain, Chain};
use crate::context::current::enter;
use crate::run::exit_maps::ExitMaps;
use crate::run::panic::{discard_all, isolated};
use crate::runnable::value::Data;
use crate::{Middleware, RunContext, Status};

/// The middlewares that a run began with: those of the runs above, the instance's, then its own.
pub(crate) type Bound = SmallList<Arc<dyn Middleware>>;

type EndHook = Box<dyn FnOnce(&RunContext, Status) + Send>;

/// What is bound to a run, except listeners, subscribers and middlewares for the runs below.
pub(crate) struct Bindings {
    pub(crate) make_chain: fn() -> Box<dyn AnyChain>,
    /// Made with the first layer. The run's state says whether the work passes it.
    pub(crate) chain: OnceLock<Box<dyn AnyChain>>,
    pub(crate) middlewares: Option<Mutex<Bound>>,
    /// Most runs have none.
    pub(crate) exit_maps: OnceLock<Box<ExitMaps>>,
    end_hooks: Mutex<SmallVec<[EndHook; 1]>>,
    /// Looked at before the lock is taken, and again when the hooks have been called.
    has_end_hooks: AtomicBool,
}

impl Bindings {
    pub(crate) fn new<I: Data, O: Data>(middlewares: Option<Bound>) -> Self {
        Self {
            make_chain: || Box::new(Chain::<I, O>::default()),
            chain: OnceLock::new(),
            middlewares: middlewares.map(Mutex::new),
            exit_maps: OnceLock::new(),
            end_hooks: Mutex::default(),
            has_end_hooks: AtomicBool::new(false),
        }
    }

    fn take_end_hooks(&self) -> SmallVec<[EndHook; 1]> {
        let mut hooks = self.end_hooks.lock();
        self.has_end_hooks.store(false, Ordering::Relaxed);
        take(&mut *hooks)
    }
}

impl RunContext {
    /// Has a function called once, when the run is over: after `finish`, in order of registration, and before whoever
    /// awaits the run gets its result. It can change nothing; a panic of its is logged.
    ///
    /// What is bound to a run calls this to count it, or to let go of what it holds for it: it is called however the
    /// run ends (R4), dropped and panicked ones too, and also if the run ends before `start` because something else
    /// could not be bound. Unlike a listener of `finish` it does not make the run emit anything. In a run that has
    /// ended it is dropped, and never called.
    ///
    /// ```
    /// use emitree_runtime::{RunContext, Runnable, runnable_fn};
    ///
    /// /// Says how runs end.
    /// fn say(ctx: &RunContext) -> emitree_runtime::Result<()> {
    ///     ctx.on_end(|ctx, status| println!("{} after {:?}", status.as_str(), ctx.elapsed()));
    ///     Ok(())
    /// }
    ///
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> emitree_runtime::Result<()> {
    /// let double = runnable_fn("double", |n: u32, _: RunContext| async move { Ok(n * 2) });
    /// assert_eq!(double.run(2).middleware(say).await?, 4);
    /// # Ok(())
    /// # }
    /// ```
    pub fn on_end(&self, f: impl FnOnce(&Self, Status) + Send + 'static) {
        let bindings = &self.shared().bindings;
        let mut hooks = bindings.end_hooks.lock();
        hooks.push(Box::new(f));
        bindings.has_end_hooks.store(true, Ordering::Release);
        drop(hooks);
        self.bound();
    }

    /// Marks the run as bound, after something was bound to it. In a run that has released its bindings, drops what was bound.
    pub(crate) fn bound(&self) {
        if !self.node().state.bind() {
            enter(self, || self.drop_bound());
        }
    }

    /// Ends the run, inside of it, when everything has been emitted: calls the end hooks, drops what is bound, and leaves the run above.
    pub(crate) fn end(&self, status: impl FnOnce() -> Status) {
        let run = self.shared();
        if run.bindings.has_end_hooks.load(Ordering::Acquire) {
            let status = status();
            // A hook may add another one.
            while run.bindings.has_end_hooks.load(Ordering::Acquire) {
                run.bindings.take_end_hooks().into_iter().for_each(|hook| isolated(|| hook(self, status)));
            }
        }
        if run.node.state.release() {
            self.drop_bound();
        }
        // Ended before it leaves: the run above waits for the runs that it still finds below it (R13).
        run.node.state.end();
        if let Some(above) = &run.parent {
            above.leave();
        }
    }

    /// Drops all that is bound. A layer that is bound from now on is refused, all else is dropped by its binder.
    fn drop_bound(&self) {
        let run = self.shared();
        if let Some(emitter) = run.lazy_emitter.made() {
            emitter.end_run();
        }
        let Bindings { chain, middlewares, exit_maps, has_end_hooks, .. } = &run.bindings;
        if let Some(chain) = chain.get() {
            chain.release();
        }
        if let Some(middlewares) = middlewares {
            let bound = take(&mut *middlewares.lock());
            discard_all(bound);
        }
        if has_end_hooks.load(Ordering::Acquire) {
            discard_all(run.bindings.take_end_hooks());
        }
        if let Some(maps) = exit_maps.get() {
            maps.release();
        }
        run.subscribers.all.release();
        run.inherited.release();
    }
}
