//! The bindings of a run, and the end of the run, which drops them (R14). Bindings are listeners, layers, middlewares,
//! subscribers, functions of `on_end`, and the functions that rewrite errors and context values.
//!
//! 1. Each binding is dropped once, with no lock held and with the run as the current run. Runs that are started in
//!    such a drop belong to the nearest run above that accepts runs (R1).
//! 2. A binding is added before the run is marked as bound, and the run is marked as released before its bindings are
//!    dropped. Both marks are in one word ([`RunState`](crate::run::state::RunState)), so the code that sets the second
//!    mark also sees the first: a binding that comes too late is dropped at once.
//! 3. If the drop of a binding panics, the others are still dropped.

use std::mem::take;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};

use parking_lot::Mutex;
use smallvec::SmallVec;

use crate::chain::list::SmallList;
use crate::chain::{AnyChain, Chain};
use crate::context::current::enter;
use crate::run::exit_maps::ExitMaps;
use crate::run::panic::{discard, discard_all, isolated};
use crate::runnable::value::Data;
use crate::{Middleware, RunContext, Status};

/// The middlewares that a run began with: inherited middlewares, the instance's, then the run's own.
pub(crate) type Bound = SmallList<Arc<dyn Middleware>>;

type EndFn = Box<dyn FnOnce(&RunContext, Status) + Send>;

/// The bindings of a run, except its listeners, its subscribers, and the middlewares for the runs below.
pub(crate) struct Bindings {
    pub(crate) make_chain: fn() -> Box<dyn AnyChain>,
    /// Made when the first layer or value middleware is bound, or when the number of retries is set. The run's state
    /// determines whether the work uses the chain.
    pub(crate) chain: OnceLock<Box<dyn AnyChain>>,
    pub(crate) middlewares: Option<Mutex<Bound>>,
    /// Empty for most runs.
    pub(crate) exit_maps: OnceLock<Box<ExitMaps>>,
    on_end: Mutex<SmallVec<[EndFn; 1]>>,
    /// `true` if there may be functions of `on_end`. Checked before the lock is taken, because most runs have none.
    has_on_end: AtomicBool,
}

impl Bindings {
    pub(crate) fn new<I: Data, O: Data>(middlewares: Option<Bound>) -> Self {
        Self {
            make_chain: || Box::new(Chain::<I, O>::default()),
            chain: OnceLock::new(),
            middlewares: middlewares.map(Mutex::new),
            exit_maps: OnceLock::new(),
            on_end: Mutex::default(),
            has_on_end: AtomicBool::new(false),
        }
    }

    fn take_on_end(&self) -> SmallVec<[EndFn; 1]> {
        let mut functions = self.on_end.lock();
        self.has_on_end.store(false, Ordering::Relaxed);
        take(&mut *functions)
    }
}

impl RunContext {
    /// Registers a function that is called once when the run ends: after `finish`, in order of registration, and before
    /// the caller receives the result. It cannot change the result; a panic is logged.
    ///
    /// Middlewares use this method to count runs, or to release resources that belong to a run. The function is called
    /// however the run ends, even if the run is dropped, panics, or ends before `start` because a middleware failed to
    /// bind. Unlike a listener of `finish`, the function does not make the run emit events. While the run is
    /// ending, a function that another thread registers, and any function that it registers in turn, is either called
    /// or dropped. After the end, functions are dropped without a call.
    ///
    /// ```
    /// use std::sync::Arc;
    /// use std::sync::atomic::{AtomicU32, Ordering};
    /// use emitree_runtime::{RunContext, Runnable, runnable_fn};
    ///
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> emitree_runtime::Result<()> {
    /// let failures = Arc::new(AtomicU32::new(0));
    /// let counter = Arc::clone(&failures);
    /// let count = move |ctx: &RunContext| -> emitree_runtime::Result<()> {
    ///     let failures = Arc::clone(&counter);
    ///     ctx.on_end(move |_, status| {
    ///         if status.as_str() != "success" {
    ///             failures.fetch_add(1, Ordering::Relaxed);
    ///         }
    ///     });
    ///     Ok(())
    /// };
    ///
    /// let parse = runnable_fn("parse", |text: String, _: RunContext| async move { Ok(text.parse::<u32>()?) }).middleware(count);
    /// assert!(parse.run("7".to_owned()).await.is_ok());
    /// assert!(parse.run("seven".to_owned()).await.is_err());
    /// assert_eq!(failures.load(Ordering::Relaxed), 1);
    /// # Ok(())
    /// # }
    /// ```
    pub fn on_end(&self, f: impl FnOnce(&Self, Status) + Send + 'static) {
        let bindings = &self.shared().bindings;
        let function: EndFn = Box::new(f);
        let mut functions = bindings.on_end.lock();
        // Set the flag before the run is marked as bound: code that releases the run afterwards sees the flag, and waits
        // for the lock.
        bindings.has_on_end.store(true, Ordering::Relaxed);
        if self.node().state.bind() {
            return functions.push(function);
        }
        drop(functions);
        enter(self, || discard(function));
    }

    /// Marks the run as bound, after something was bound to it. If the run has been released, drops the bindings here.
    pub(crate) fn bound(&self) {
        if !self.node().state.bind() {
            enter(self, || self.drop_bound());
        }
    }

    /// Ends the run, after its last event: calls the functions of `on_end`, drops the bindings, and deregisters the run
    /// from its parent. Called inside the run.
    pub(crate) fn end(&self, status: impl Fn() -> Status) {
        let run = self.shared();
        let has_on_end = || run.bindings.has_on_end.load(Ordering::Acquire);
        // A function may add another function: repeat until none is left.
        while has_on_end() {
            self.call_on_end(status());
        }
        if run.node.state.release() {
            // Another thread may have added functions just before the release. None is added after it.
            if has_on_end() {
                self.call_on_end(status());
            }
            self.drop_bound();
        }
        // End the run before it leaves its parent: the parent waits only for registered children, and could otherwise
        // emit `finish` before this run has ended (R13).
        run.node.state.end();
        if let Some(above) = &run.parent {
            above.leave();
        }
    }

    /// Calls the functions of `on_end` that have been added so far.
    fn call_on_end(&self, status: Status) {
        for function in self.shared().bindings.take_on_end() {
            isolated(|| function(self, status));
        }
    }

    /// Drops all bindings. From now on layers are refused, and other bindings are dropped by the code that binds them.
    fn drop_bound(&self) {
        let run = self.shared();
        // End the emitter first, so that an event that arrives meanwhile reaches no listener. Otherwise, the event could
        // reach a listener after the middleware that redacts it is gone.
        if let Some(emitter) = run.lazy_emitter.made() {
            emitter.end_run();
        }
        let Bindings { chain, middlewares, exit_maps, .. } = &run.bindings;
        if let Some(chain) = chain.get() {
            chain.release();
        }
        if let Some(middlewares) = middlewares {
            // Take the middlewares out first: their drops may call user code, and no lock may be held then (invariant
            // 1).
            let bound = take(&mut *middlewares.lock());
            discard_all(bound);
        }
        if let Some(maps) = exit_maps.get() {
            maps.release();
        }
        run.subscribers.all.release();
        run.inherited.release();
    }
}
