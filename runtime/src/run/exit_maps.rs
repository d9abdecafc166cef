//! What passes functions before it leaves a run: the values that are set on its context, and what it fails with.
//!
//! These two come from anywhere: an error from the work, a layer, a listener or who aborts; a value from whoever holds
//! the run. So they pass where they enter what events and callers are shown, and nobody has a way around.

use std::mem::replace;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use parking_lot::Mutex;
use serde_json::Value;

use crate::chain::list::SmallList;
use crate::context::current::enter;
use crate::run::panic::{caught, discard_all, logged};
use crate::{Error, RunContext};

type ErrorMap = Arc<dyn Fn(Error) -> Error + Send + Sync>;
type ValueMap = Arc<dyn Fn(&str, Value) -> Value + Send + Sync>;

/// The functions that errors and context values of a run pass.
#[derive(Default)]
pub(crate) struct ExitMaps(Mutex<Functions>);

#[derive(Clone, Default)]
struct Functions {
    errors: SmallList<ErrorMap>,
    values: SmallList<ValueMap>,
    /// Set once it was logged that a value is withheld.
    has_warned: Arc<AtomicBool>,
}

impl ExitMaps {
    /// Drops the functions. Errors and values that would have passed one are withheld from now on.
    pub(crate) fn release(&self) {
        let released = {
            let mut functions = self.0.lock();
            let withholding = functions.withholding();
            replace(&mut *functions, withholding)
        };
        // The drops are user code, called under no lock.
        released.discard();
    }
}

impl Functions {
    /// What takes the place of functions that were dropped: it says nothing.
    fn withholding(&self) -> Self {
        let error = |error: Error| error.withheld("the run has ended, and with it what its errors pass".to_owned());
        let warned = Arc::clone(&self.has_warned);
        let value = move |key: &str, _| {
            if !warned.swap(true, Ordering::Relaxed) {
                logged(|| tracing::warn!("`{key}` was withheld, for it was set on a run that has ended"));
            }
            Value::Null
        };
        Self {
            errors: (!self.errors.is_empty()).then(|| Arc::new(error) as ErrorMap).into_iter().collect(),
            values: (!self.values.is_empty()).then(|| Arc::new(value) as ValueMap).into_iter().collect(),
            has_warned: Arc::clone(&self.has_warned),
        }
    }

    fn error(&self, error: Error) -> Error {
        self.errors.iter().fold(error, |error, map| {
            let was = error.clone();
            match caught(|| map(error)) {
                Ok(error) => error.ending_as(&was),
                Err(panic) => was.withheld(format!("what the error passes panicked: {panic}")),
            }
        })
    }

    /// Where a function panics, there is no value.
    fn value(&self, key: &str, value: Value) -> Value {
        self.values.iter().fold(value, |value, map| {
            caught(|| map(key, value)).unwrap_or_else(|panic| {
                logged(|| tracing::warn!("`{key}` was withheld, for what it passes panicked: {panic}"));
                Value::Null
            })
        })
    }

    fn discard(self) {
        discard_all(self.errors);
        discard_all(self.values);
    }
}

impl RunContext {
    /// Passes an error with which the run is about to end through the functions of `map_error`.
    pub(crate) fn exit_error(&self, error: Error) -> Error {
        self.pass_out(error, Functions::error)
    }

    /// Passes a value that is about to be set on the run's context through the functions of `map_context`.
    pub(crate) fn exit_value(&self, key: &str, value: Value) -> Value {
        self.pass_out(value, |functions, value| functions.value(key, value))
    }

    fn pass_out<T>(&self, value: T, pass: impl FnOnce(&Functions, T) -> T) -> T {
        let Some(maps) = self.shared().bindings.exit_maps.get() else { return value };
        // Cloned, so that they are called under no lock. If the run releases them meanwhile, the clones are the last: they are dropped
        // here, inside of the run, on whatever thread this is (R14).
        let functions = maps.0.lock().clone();
        enter(self, || {
            let value = pass(&functions, value);
            functions.discard();
            value
        })
    }

    fn add_exit_map(&self, add: impl FnOnce(&mut Functions)) {
        add(&mut self.shared().bindings.exit_maps.get_or_init(Box::default).0.lock());
        self.bound();
    }
}

impl RunContext {
    /// Has what the run fails with pass a function before anybody is told, in order of registration: whatever it fails with, from
    /// the work, a layer, a listener, an abort, a panic, or because something could not be bound. What is passed on to layers
    /// and subscribers of attempts inside of the run has not passed it yet.
    ///
    /// The error can be said in other words; the run ends as it does, so its [kind](Error::kind) stays, and what an interrupt
    /// or a request for a retry carries. Where the function panics, the error says that and nothing else.
    ///
    /// ```
    /// use emitree_runtime::{Error, RunContext, Runnable, runnable_fn};
    ///
    /// /// Says nothing of what is inside.
    /// fn discreet(ctx: &RunContext) -> emitree_runtime::Result<()> {
    ///     ctx.map_error(|_| Error::new("something went wrong"));
    ///     Ok(())
    /// }
    ///
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() {
    /// let read = runnable_fn("read", |(): (), _: RunContext| async move {
    ///     Err::<(), _>(Error::aborted("the password hunter2 is wrong"))
    /// });
    /// let error = read.run(()).middleware(discreet).await.unwrap_err();
    /// assert_eq!(error.explain(), "aborted: something went wrong");
    /// # }
    /// ```
    pub fn map_error(&self, f: impl Fn(Error) -> Error + Send + Sync + 'static) {
        self.add_exit_map(|functions| functions.errors.push(Arc::new(f)));
    }

    /// Has each value that is [set](Self::set) on the run's context from now on, by whomever, pass a function before events and
    /// runs below carry it, in order of registration. Where the function panics, the value is `null`.
    ///
    /// What the context holds already, and what runs below set on theirs, does not pass it. When the run has ended, the function
    /// is dropped; a value that is set after that is `null`.
    pub fn map_context(&self, f: impl Fn(&str, Value) -> Value + Send + Sync + 'static) {
        self.add_exit_map(|functions| functions.values.push(Arc::new(f)));
    }
}
