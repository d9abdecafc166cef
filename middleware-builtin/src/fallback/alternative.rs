//! The alternatives of a fallback: runnables with the types of the run, or any runnables through JSON.

use std::pin::Pin;
use std::sync::Arc;

use emitree_emitter::Emitter;
use emitree_runtime::{AnyRunnable, Result, Runnable};
use serde_json::Value;

/// The future of an alternative's run.
pub(super) type AnswerFuture<'a, O> = Pin<Box<dyn Future<Output = Result<O>> + Send + 'a>>;

/// A runnable that takes an `I` and returns an `O`.
pub(super) trait Alternative<I, O>: Send + Sync {
    /// Runs the alternative, nested in the current run.
    fn run<'a>(&'a self, input: &'a I) -> AnswerFuture<'a, O>;
    fn name(&self) -> &str;
    fn emitter(&self) -> &Emitter;
}

/// A runnable with the same types as the run.
pub(super) struct OfTypes<R>(pub(super) Arc<R>);

impl<R: Runnable> Alternative<R::Input, R::Output> for OfTypes<R>
where
    R::Input: Clone,
{
    fn run<'a>(&'a self, input: &'a R::Input) -> AnswerFuture<'a, R::Output> {
        Box::pin(self.0.run(input.clone()))
    }

    fn name(&self) -> &str {
        self.0.name()
    }

    fn emitter(&self) -> &Emitter {
        self.0.emitter()
    }
}

impl Alternative<Value, Value> for Arc<dyn AnyRunnable> {
    fn run<'a>(&'a self, input: &'a Value) -> AnswerFuture<'a, Value> {
        self.run_json(input.clone())
    }

    fn name(&self) -> &str {
        (**self).name()
    }

    fn emitter(&self) -> &Emitter {
        (**self).emitter()
    }
}
