//! Reports and refusals at the `start` of a run. A middleware registers them when it is bound, before the run starts.

use std::sync::Arc;

use emitree_emitter::{AnyEvent, Event, Options};
use emitree_runtime::{Error, Result, RunContext, Stage};

use crate::shared::own_events::{OwnEvents, UserTexts};
use crate::shared::stop::Stop;

/// The refusal of a run that must not begin.
pub(crate) struct Refusal {
    pub(crate) error: Error,
    /// An ancestor to stop as well, and the error that stops it.
    pub(crate) stops: Option<(Arc<Stop>, Error)>,
}

/// Emits a built-in's event at the run's `start`, before other listeners receive `start`. If there is a refusal, the
/// run then fails.
pub(crate) fn at_start<E: Event + UserTexts + Clone>(
    ctx: &RunContext,
    own_events: &OwnEvents,
    event: E,
    refusal: Option<Refusal>,
) -> Result<()> {
    let own_events = own_events.clone();
    let refusal = refusal.map(Arc::new);
    if let Some(refusal) = refusal.clone() {
        // If another listener makes the run fail first, the listener below is never called. Stop the ancestor at the
        // run's end in any case.
        ctx.on_end(move |_, _| drop(refusal.enforce()));
    }
    let first = Options::new().priority(i32::MAX);
    ctx.emitter().with(first).on_async(Stage::Start, move |_: &mut dyn AnyEvent, _| {
        // Look up the current run on each call: a listener that owned its run would keep the run alive.
        let (run, own_events, event, refusal) =
            (RunContext::current(), own_events.clone(), event.clone(), refusal.clone());
        Box::pin(async move {
            if let Some(run) = run {
                own_events.emit(&run, || event).await;
            }
            // Refuse after the event, so that the event is emitted before the run's `error`.
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
