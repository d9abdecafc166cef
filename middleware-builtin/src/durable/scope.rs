//! Where a question without an answer stops a job: [`Scope`].
//!
//! A job, and each step that is executed, is a scope. A question stops the scope in which it was asked, and all scopes
//! above it: no step begins in them, and they end with the question, whatever their functions return. A step that asks
//! nothing goes on, and so do the steps in it.

use std::collections::HashSet;
use std::fmt;
use std::iter::successors;
use std::sync::Arc;

use emitree_runtime::{Error, Interrupt, Layer, Next, Op, Result, RunContext, Summary};
use parking_lot::Mutex;
use tokio::sync::Notify;

use super::record::SLEEP;
use crate::store::StoreError;

/// An extension of the job's run and of the runs of its steps, which the runs below inherit.
#[derive(Clone, Default)]
pub(super) struct Scope(Arc<Inner>);

#[derive(Default)]
struct Inner {
    above: Option<Scope>,
    stop: Mutex<Stop>,
    /// Wakes the sleeps of the scope when it is stopped.
    wake: Notify,
}

#[derive(Default)]
struct Stop {
    /// The error with which the scope ends.
    error: Option<Error>,
    /// The questions without an answer, and their ids.
    asked: Vec<Interrupt>,
    ids: HashSet<String>,
}

impl Scope {
    /// Returns the scope in which a run is.
    pub(super) fn of(ctx: &RunContext) -> Self {
        ctx.extension::<Self>().map(Arc::unwrap_or_clone).unwrap_or_default()
    }

    /// Creates the scope of a step.
    pub(super) fn below(above: Self) -> Self {
        Self(Arc::new(Inner { above: Some(above), ..Inner::default() }))
    }

    /// Stops the scope and those above it. A halt replaces a question.
    pub(super) fn stop(&self, error: &Error) {
        for scope in successors(Some(self), |scope| scope.0.above.as_ref()) {
            let mut stop = scope.0.stop.lock();
            let replaces = stop.error.as_ref().is_none_or(|before| error.is_halted() && !before.is_halted());
            let before = if replaces { stop.error.replace(error.clone()) } else { None };
            drop(stop);
            drop(before);
            scope.0.wake.notify_waiters();
            scope.add(error.interrupt().filter(|_| error.is_interrupted()).filter(|asked| is_question(asked)).cloned());
        }
    }

    /// Adds questions that are asked with the one that stops the scope.
    pub(super) fn add(&self, questions: impl IntoIterator<Item = Interrupt>) {
        let mut stop = self.0.stop.lock();
        for question in questions {
            if stop.ids.insert(question.id.clone()) {
                stop.asked.push(question);
            }
        }
    }

    /// Stops the scope if this error of a run in it is a question or an error of the store.
    pub(super) fn note(&self, error: &Error) {
        if error.is_interrupted() {
            self.stop(error);
        } else if is_of_store(error) {
            // Nothing begins any more in this start, so that to retry would only wait.
            self.stop(&error.clone().retryable(false));
        }
    }

    /// Returns the error that has stopped the scope.
    pub(super) fn stopped(&self) -> Option<Error> {
        self.0.stop.lock().error.clone()
    }

    /// Waits until the scope is stopped, and returns the error.
    pub(super) async fn stops(&self) -> Error {
        loop {
            // Created before the look, so that no stop between them is missed.
            let woken = self.0.wake.notified();
            if let Some(error) = self.stopped() {
                return error;
            }
            woken.await;
        }
    }

    /// Returns the questions without an answer.
    pub(super) fn asked(&self) -> Vec<Interrupt> {
        self.0.stop.lock().asked.clone()
    }

    /// Replaces the result of the scope's work if the scope was stopped meanwhile, unless `ctx`, the run of the scope, is
    /// aborted.
    pub(super) fn end<O: Op>(&self, result: Result<O::Out>, ctx: &RunContext, next: Next<'_, O>) -> Result<O::Out> {
        let Some(stop) = self.stopped() else { return result };
        match result {
            Err(error) if error.is_aborted() && ctx.is_aborted() => Err(error),
            result => {
                // Without `absorb`, a denial would overrule it (M9).
                result.inspect_err(|error| next.absorb(error)).err();
                Err(stop)
            }
        }
    }
}

/// Returns `false` for the interrupt of a job that sleeps.
pub(super) fn is_question(interrupt: &Interrupt) -> bool {
    interrupt.kind != SLEEP
}

/// Returns `true` for an error of a store. It says nothing about the work, so it is no result of a step. A conflict does:
/// somebody has changed what the work wanted to change.
pub(super) fn is_of_store(error: &Error) -> bool {
    error.find::<StoreError>().is_some_and(|error| !matches!(error, StoreError::Conflict { .. }))
}

/// Ends the work of a job that was stopped, directly around the work, so that no layer takes the result for a failure.
pub(super) struct StopLayer(pub(super) Scope);

impl<O: Op> Layer<O> for StopLayer {
    async fn call(&self, input: &O::In, ctx: &RunContext, next: Next<'_, O>) -> Result<O::Out> {
        if let Some(stop) = self.0.stopped() {
            return Err(stop);
        }
        self.0.end(next.run(input).await, ctx, next)
    }

    fn name(&self) -> &str {
        "durable"
    }

    fn debug_summary(&self) -> Summary {
        "ends the job with its questions".into()
    }
}

impl fmt::Debug for StopLayer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("the end of a job")
    }
}

/// Notes that a run that is no step has ended with a question, for example an agent, which keeps its own answers. A run
/// that a later middleware has given a key, such as another job or an agent with a stored session, does not begin once
/// the scope is stopped.
pub(super) struct NoteLayer(pub(super) Scope);

impl<O: Op> Layer<O> for NoteLayer {
    async fn call(&self, input: &O::In, ctx: &RunContext, next: Next<'_, O>) -> Result<O::Out> {
        if ctx.key().is_some()
            && let Some(stop) = self.0.stopped()
        {
            return Err(stop);
        }
        next.run(input).await.inspect_err(|error| self.0.note(error))
    }

    fn name(&self) -> &str {
        "durable"
    }

    fn debug_summary(&self) -> Summary {
        "notes questions, and begins no job or agent after one".into()
    }
}

impl fmt::Debug for NoteLayer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("the questions of a run in a job")
    }
}
