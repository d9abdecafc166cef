//! Runnables whose types are not known: through JSON.

use emitree_emitter::Emitter;
use futures_core::future::BoxFuture;
use serde_json::Value;

use crate::lifecycle::fit;
use crate::{Error, Result, Runnable};

/// A [`Runnable`] of any types, to be stored: `Arc<dyn AnyRunnable>`, `Box<dyn AnyRunnable>`.
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
/// assert_eq!(error.to_string(), "input `\"many\"` does not fit `u32`: invalid type: string \"many\", expected u32");
/// # Ok(())
/// # }
/// ```
pub trait AnyRunnable: Send + Sync {
    /// What sort of thing it is.
    fn kind(&self) -> &str;
    /// What it is called.
    fn name(&self) -> &str;
    /// The instance's emitter.
    fn emitter(&self) -> &Emitter;
    /// Runs it. An input that does not fit is an error that says where; the run has not started then.
    ///
    /// The run's parent is the run in which this is called.
    fn run_json(&self, input: Value) -> BoxFuture<'_, Result<Value>>;
}

impl<R: Runnable> AnyRunnable for R {
    fn kind(&self) -> &str {
        Runnable::kind(self)
    }

    fn name(&self) -> &str {
        Runnable::name(self)
    }

    fn emitter(&self) -> &Emitter {
        Runnable::emitter(self)
    }

    fn run_json(&self, input: Value) -> BoxFuture<'_, Result<Value>> {
        let run = fit("input", input).map(|input| self.run(input));
        Box::pin(async move { serde_json::to_value(run?.await?).map_err(Error::from) })
    }
}

impl std::fmt::Debug for dyn AnyRunnable {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}[{}]", self.kind(), self.name())
    }
}
