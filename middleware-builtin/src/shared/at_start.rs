//! What is found out when a run is bound, and said or enforced when it starts: nothing of it has begun by then.

use std::sync::Arc;

use emitree_emitter::{AnyEvent, Event, Options};
use emitree_runtime::{Error, Result, RunContext, Stage};

use crate::shared::own_events::{OwnEvents, UserTexts};
use crate::shared::stop::Stop;

/// What a run ends with that may not begin.
pub(crate) struct Refusal {
    pub(crate) error: Error,
    /// What is stopped with it, and with what.
    pub(crate) stops: Option<(Arc<Stop>, Error)>,
}

/// Has the run that is being bound say something at its start, before anybody else hears of it; a refused one ends so.
pub(crate) fn at_start<E: Event + UserTexts + Clone>(
    ctx: &RunContext,
    own_events: &OwnEvents,
    event: E,
    refusal: Option<Refusal>,
) -> Result<()> {
    let (own_events, refusal) = (own_events.clone(), refusal.map(Arc::new));
    if let Some(refusal) = refusal.clone() {
        // Where somebody else refuses it first, this one is never asked.
        ctx.on_end(move |_, _| drop(refusal.enforce()));
    }
    let first = Options::new().priority(i32::MAX);
    ctx.emitter().with(first).on_async(Stage::Start, move |_: &mut dyn AnyEvent, _| {
        // The run is not kept by what listens to it.
        let (run, own_events, event, refusal) =
            (RunContext::current(), own_events.clone(), event.clone(), refusal.clone());
        Box::pin(async move {
            if let Some(run) = run {
                own_events.emit(&run, || event).await;
            }
            refusal.map_or(Ok(()), |refusal| Err(refusal.enforce().into()))
        })
    })?;
    Ok(())
}

impl Refusal {
    fn enforce(&self) -> Error {
        if let Some((stop, error)) = &self.stops {
            stop.with(error.clone());
        }
        self.error.clone()
    }
}
