//! The event that reports a counted run. It is emitted at the run's `finish`, where async listeners can be awaited. If
//! the run has no `finish`, or if there were no listeners when the middleware was bound, the event is emitted after the
//! run is counted.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use emitree_emitter::AnyEvent;
use emitree_runtime::{LifecycleRef, Result, RunContext, Stage, Status};
use serde::{Deserialize, Serialize};

use crate::shared::own_events::{OwnEvents, own_events};

/// A run that [`Metrics`](super::Metrics) counts has ended.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct Counted {
    /// The kind of the instance.
    pub kind: String,
    /// The name of the instance.
    pub name: String,
    /// The outcome of the run, as in the label `outcome`.
    pub status: Status,
    /// The duration of the run until this event, by tokio's clock, in whole nanoseconds.
    pub duration_ns: u64,
}

own_events! { Counted = "counted"; }

impl Counted {
    fn of(run: &RunContext, status: Status) -> Self {
        let duration_ns = u64::try_from(run.elapsed().as_nanos()).unwrap_or(u64::MAX);
        Self { kind: run.kind().to_owned(), name: run.name().to_owned(), status, duration_ns }
    }
}

/// Emits [`Counted`] at most once for a run; without listeners, it does nothing.
pub(super) struct CountedOnce {
    /// Set to `true` when the event is emitted at `finish`. `None` if there were no listeners when the middleware was
    /// bound.
    at_finish: Option<Arc<AtomicBool>>,
}

impl CountedOnce {
    pub(super) fn of(own_events: &OwnEvents, run: &RunContext) -> Self {
        Self { at_finish: own_events.has_listeners(run).then(|| emit_at_finish(own_events, run)) }
    }

    /// Emits the event after the run has ended, unless it was emitted at `finish`.
    pub(super) fn end(&self, own_events: &OwnEvents, run: &RunContext, status: Status) {
        if own_events.has_listeners(run)
            && !self.at_finish.as_ref().is_some_and(|is_emitted| is_emitted.load(Ordering::Acquire))
        {
            emit_now(own_events, run, status);
        }
    }
}

#[cold]
fn emit_now(own_events: &OwnEvents, run: &RunContext, status: Status) {
    own_events.emit_now(run, || Counted::of(run, status));
}

/// Registers an observer of `finish` that emits the event and sets the returned flag.
#[cold]
fn emit_at_finish(own_events: &OwnEvents, run: &RunContext) -> Arc<AtomicBool> {
    let is_emitted = Arc::new(AtomicBool::new(false));
    if let Err(error) = observe_finish(own_events, run, &is_emitted) {
        tracing::warn!(%error, "the event `counted` of a run cannot be emitted");
    }
    is_emitted
}

fn observe_finish(own_events: &OwnEvents, run: &RunContext, is_emitted: &Arc<AtomicBool>) -> Result<()> {
    let own_events = own_events.clone();
    let is_emitted = Arc::clone(is_emitted);
    run.emitter().observe_async(Stage::Finish, move |event: &dyn AnyEvent, meta| {
        let status = match LifecycleRef::of(event, meta) {
            Some(LifecycleRef::Finish(finish)) => Some(finish.status()),
            _ => None,
        };
        // Set the flag before the first await, so that an emit that is dropped halfway is not repeated.
        is_emitted.store(true, Ordering::Release);
        // Look up the current run on each call: a listener that owned its run would keep the run alive.
        let run = RunContext::current();
        let own_events = own_events.clone();
        Box::pin(async move {
            if let (Some(run), Some(status)) = (run, status) {
                own_events.emit(&run, || Counted::of(&run, status)).await;
            }
            Ok(())
        })
    })?;
    Ok(())
}
