//! The functions that rewrite errors and context values of a run before events and callers see them (R10).
//!
//! An error may come from the work, a layer, a listener or an abort, and any holder of the context may set a value. So
//! the functions are called in one place, where the error or value enters the run's events and result.

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

/// The functions that rewrite errors and context values of a run.
#[derive(Default)]
pub(crate) struct ExitMaps(Mutex<Functions>);

#[derive(Clone, Default)]
struct Functions {
    errors: SmallList<ErrorMap>,
    values: SmallList<ValueMap>,
    /// Set once the warning about a withheld value was logged.
    has_warned: Arc<AtomicBool>,
}

impl ExitMaps {
    /// Drops the functions. From now on, errors are withheld if there was a function for errors, and values are withheld
    /// if there was a function for values.
    pub(crate) fn release(&self) {
        let released = {
            let mut functions = self.0.lock();
            let withholding = functions.withholding();
            replace(&mut *functions, withholding)
        };
        // The drops may call user code, so no lock is held here.
        released.discard();
    }
}

impl Functions {
    /// Returns the functions that replace the dropped functions. They withhold all errors if there was a function for
    /// errors, and all values if there was a function for values.
    fn withholding(&self) -> Self {
        let error = |error: Error| {
            error.withheld(
                "the error was withheld, because its run has ended and the `map_error` functions were dropped"
                    .to_owned(),
            )
        };
        let warned = Arc::clone(&self.has_warned);
        let value = move |key: &str, _| {
            if !warned.swap(true, Ordering::Relaxed) {
                logged(|| tracing::warn!("`{key}` was withheld, because it was set on a run that has ended"));
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
                Err(panic) => {
                    was.withheld(format!("the error was withheld, because a `map_error` function panicked: {panic}"))
                }
            }
        })
    }

    /// Passes a value through the functions. The result of a function that panics is `null`.
    fn value(&self, key: &str, value: Value) -> Value {
        self.values.iter().fold(value, |value, map| {
            caught(|| map(key, value)).unwrap_or_else(|panic| {
                logged(|| {
                    tracing::warn!("`{key}` was withheld, because a `map_context` function panicked: {panic}");
                });
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
    /// Passes an error through the functions of `map_error`, before the run ends with that error.
    pub(crate) fn exit_error(&self, error: Error) -> Error {
        self.pass_out(error, Functions::error)
    }

    /// Passes a value through the functions of `map_context`, before the value is set on the run's context.
    pub(crate) fn exit_value(&self, key: &str, value: Value) -> Value {
        self.pass_out(value, |functions, value| functions.value(key, value))
    }

    fn pass_out<T>(&self, value: T, pass: impl FnOnce(&Functions, T) -> T) -> T {
        let Some(maps) = self.shared().bindings.exit_maps.get() else { return value };
        // Clone the functions, so that no lock is held while they are called. If the run releases them meanwhile, the
        // clone is their last owner, and they are dropped here, inside the run (R14).
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
    /// Registers a function that rewrites the error with which the run ends, before events and the caller see it.
    /// Functions are called in order of registration.
    ///
    /// The function receives errors from the work, layers, listeners, aborts, panics, and middlewares that fail to
    /// bind. The layers of the run, and subscribers of its attempts, see the error before it is rewritten.
    ///
    /// The function can change the message, the causes and the details of an error, but not how the run ends: the
    /// [kind](Error::kind), an interrupt and a requested retry are kept. If the function replaces a denial with another
    /// denial, or a halt with another halt, the new name is used. If the function panics, the error reports only that
    /// panic.
    ///
    /// ```
    /// use emitree_runtime::{Error, RunContext, Runnable, runnable_fn};
    ///
    /// /// Hides the cause of a failure.
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

    /// Registers a function that rewrites each value that is [set](Self::set) on the run's context from now on, before
    /// events and runs below carry it. Functions are called in order of registration. If a function panics, its result
    /// is `null`.
    ///
    /// Values that the context already has, and values that runs below set on their own contexts, are not rewritten. The
    /// function is dropped when the run has ended; a value that is set after that is `null`.
    ///
    /// ```
    /// use emitree_runtime::{RunContext, Runnable, runnable_fn};
    /// use serde_json::Value;
    ///
    /// fn shout(ctx: &RunContext) -> emitree_runtime::Result<()> {
    ///     ctx.map_context(|_key, value| value.as_str().map(str::to_uppercase).map_or(value, Value::from));
    ///     Ok(())
    /// }
    ///
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> emitree_runtime::Result<()> {
    /// let greet = runnable_fn("greet", |(): (), ctx: RunContext| async move {
    ///     ctx.set("greeting", "hello")?;
    ///     Ok(ctx.get("greeting"))
    /// });
    /// assert_eq!(greet.run(()).middleware(shout).await?, Some("HELLO".into()));
    /// # Ok(())
    /// # }
    /// ```
    pub fn map_context(&self, f: impl Fn(&str, Value) -> Value + Send + Sync + 'static) {
        self.add_exit_map(|functions| functions.values.push(Arc::new(f)));
    }
}
