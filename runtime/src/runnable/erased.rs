//! Runnables as trait objects that hide the input and output types and work with JSON.

use std::sync::Arc;

use emitree_emitter::Emitter;
use futures_core::future::BoxFuture;
use serde_json::Value;

use crate::runnable::value::fit;
use crate::{AsInstance, Error, Result, Runnable};

/// A [`Runnable`] with any input and output types as a trait object: `Arc<dyn AnyRunnable>` or `Box<dyn AnyRunnable>`.
///
/// Its runs are runs of the runnable inside, and have that runnable's types.
///
/// ```
/// use std::sync::Arc;
/// use emitree_runtime::{AnyRunnable, RunContext, runnable_fn};
///
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> emitree_runtime::Result<()> {
/// let double = runnable_fn("double", |n: u32, _: RunContext| async move { Ok(n * 2) });
/// let tools: Vec<Arc<dyn AnyRunnable>> = vec![Arc::new(double)];
///
/// assert_eq!(tools[0].run_json(21.into()).await?, 42);
/// let error = tools[0].run_json("many".into()).await.unwrap_err();
/// assert_eq!(error.to_string(), "the input `\"many\"` does not fit `u32`: invalid type: string \"many\", expected u32");
/// # Ok(())
/// # }
/// ```
pub trait AnyRunnable: Send + Sync {
    /// Runs the runnable with an input in JSON, and returns the output as JSON.
    ///
    /// The run's parent is the run in which this method is called. If the input does not fit the input type, no run
    /// starts. The error shows which part of the JSON does not fit.
    fn run_json(&self, input: Value) -> BoxFuture<'_, Result<Value>>;

    // These methods are named differently from the methods of `Runnable`, so that no call is ambiguous where both
    // traits are imported.
    #[doc(hidden)]
    fn any_kind(&self) -> &str;
    #[doc(hidden)]
    fn any_name(&self) -> &str;
    #[doc(hidden)]
    fn any_emitter(&self) -> &Emitter;
}

impl<R: Runnable> AnyRunnable for R {
    fn run_json(&self, input: Value) -> BoxFuture<'_, Result<Value>> {
        // Create the run here and not in the future, so that its parent is the run in which `run_json` is called (R1).
        let run = fit("input", &input).map(|input| self.run(input));
        Box::pin(async move { emitree_emitter::json::to_value(&run?.await?).map_err(Error::from) })
    }

    fn any_kind(&self) -> &str {
        self.kind()
    }

    fn any_name(&self) -> &str {
        self.name()
    }

    fn any_emitter(&self) -> &Emitter {
        self.emitter()
    }
}

impl<R: AnyRunnable + ?Sized> AnyRunnable for Arc<R> {
    fn run_json(&self, input: Value) -> BoxFuture<'_, Result<Value>> {
        (**self).run_json(input)
    }

    fn any_kind(&self) -> &str {
        (**self).any_kind()
    }

    fn any_name(&self) -> &str {
        (**self).any_name()
    }

    fn any_emitter(&self) -> &Emitter {
        (**self).any_emitter()
    }
}

impl dyn AnyRunnable + '_ {
    /// Returns the kind, as [`Runnable::kind`] does.
    #[must_use]
    pub fn kind(&self) -> &str {
        self.any_kind()
    }

    /// Returns the name, as [`Runnable::name`] does.
    #[must_use]
    pub fn name(&self) -> &str {
        self.any_name()
    }

    /// Returns the instance's emitter.
    #[must_use]
    pub fn emitter(&self) -> &Emitter {
        self.any_emitter()
    }
}

impl AsInstance for dyn AnyRunnable + '_ {
    fn instance_emitter(&self) -> &Emitter {
        self.any_emitter()
    }
}

impl std::fmt::Debug for dyn AnyRunnable + '_ {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}[{}]", self.kind(), self.name())
    }
}
