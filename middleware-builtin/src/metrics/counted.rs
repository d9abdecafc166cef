//! That a run was counted, as an event: said at its `finish`, where listeners can be awaited, or else at its very end.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use emitree_emitter::AnyEvent;
use emitree_runtime::{LifecycleRef, Result, RunContext, Stage, Status};
use serde::{Deserialize, Serialize};

use crate::shared::own_events::{OwnEvents, own_events};

/// A run has ended, and is counted.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct Counted {
    /// The kind of what was run.
    pub kind: String,
    /// What that is called.
    pub name: String,
    /// How the run ended: the label `outcome`.
    pub status: Status,
    /// How long it took by then, by tokio's clock, in whole nanoseconds.
    pub duration_ns: u64,
}

own_events! { Counted = "counted"; }

impl Counted {
    fn of(run: &RunContext, status: Status) -> Self {
        let duration_ns = u64::try_from(run.elapsed().as_nanos()).unwrap_or(u64::MAX);
        Self { kind: run.kind().to_owned(), name: run.name().to_owned(), status, duration_ns }
    }
}

/// What is still to be said of a run that is under way. Where nobody listens there is nothing to it.
pub(super) struct CountedOnce {
    /// Whether it was said at `finish`, where that is listened to.
    at_finish: Option<Arc<AtomicBool>>,
}

impl CountedOnce {
    pub(super) fn of(own_events: &OwnEvents, run: &RunContext) -> Self {
        Self { at_finish: own_events.is_heard(run).then(|| emit_at_finish(own_events, run)) }
    }

    /// The run has ended: who has begun to listen since is told now.
    pub(super) fn end(&self, own_events: &OwnEvents, run: &RunContext, status: Status) {
        if own_events.is_heard(run)
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

/// Gives whether that was done.
#[cold]
fn emit_at_finish(own_events: &OwnEvents, run: &RunContext) -> Arc<AtomicBool> {
    let is_emitted = Arc::new(AtomicBool::new(false));
    if let Err(error) = observe_finish(own_events, run, &is_emitted) {
        tracing::warn!(%error, "what counts runs does not say so");
    }
    is_emitted
}

fn observe_finish(own_events: &OwnEvents, run: &RunContext, is_emitted: &Arc<AtomicBool>) -> Result<()> {
    let (own_events, is_emitted) = (own_events.clone(), Arc::clone(is_emitted));
    run.emitter().observe_async(Stage::Finish, move |event: &dyn AnyEvent, meta| {
        let status = match LifecycleRef::of(event, meta) {
            Some(LifecycleRef::Finish(finish)) => Some(finish.status()),
            _ => None,
        };
        is_emitted.store(true, Ordering::Release);
        // The run is not kept by what listens to it.
        let (run, own_events) = (RunContext::current(), own_events.clone());
        Box::pin(async move {
            if let (Some(run), Some(status)) = (run, status) {
                own_events.emit(&run, || Counted::of(&run, status)).await;
            }
            Ok(())
        })
    })?;
    Ok(())
}
