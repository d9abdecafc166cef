//! A trajectory at work: bound to one run, it sees what that run tells, and those below it.

use std::iter::successors;
use std::sync::Arc;

use emitree_emitter::{AnyEvent, EventMeta, Matcher, Options, matcher_fn};
use emitree_runtime::{Result, RunContext, Stage};
use parking_lot::Mutex;

use super::level::{Place, Places};
use super::payload::Payload;
use super::settings::Settings;
use super::speaker::{Speaker, TrajectoryEvent};
use super::{Line, Origin, Shared};
use crate::address::Address;

/// What belongs to one bound run; it goes with what is bound there.
pub(super) struct Bound {
    shared: Arc<Shared>,
    /// The bound run.
    run: Address,
    /// How many runs are above the bound run.
    depth: usize,
    /// Of the runs under way, where some are not shown.
    places: Mutex<Places>,
    speaker: Speaker,
}

impl Bound {
    pub(super) fn new(shared: &Arc<Shared>, ctx: &RunContext) -> Arc<Self> {
        Arc::new(Self {
            shared: Arc::clone(shared),
            run: Address::of(ctx),
            depth: ctx.depth(),
            places: Mutex::default(),
            speaker: Speaker::default(),
        })
    }

    fn settings(&self) -> &Settings {
        &self.shared.settings
    }

    /// Observes the bound run and all below it: each event at once, and then what is left of telling others of it.
    pub(super) fn observe(self: Arc<Self>, ctx: &RunContext) -> Result<()> {
        let emitter = ctx.emitter().with(Options::new().nested(self.settings().is_nested));
        let (hears, asked) = (Arc::clone(&self), Arc::clone(&self));
        emitter.observe(Matcher::every(), move |event: &dyn AnyEvent, meta| hears.hear(event, meta))?;
        let is_left = matcher_fn(move |meta| asked.speaker.has_left(meta));
        emitter.observe_async(is_left, move |_: &dyn AnyEvent, meta| {
            let rest = self.speaker.finish(meta);
            Box::pin(async move {
                rest.await;
                Ok(())
            })
        })?;
        Ok(())
    }

    fn hear(&self, event: &dyn AnyEvent, meta: &EventMeta<'_>) {
        let stage = Stage::of(meta);
        if stage.is_none() && !self.settings().shows_event(meta) {
            return;
        }
        let current = RunContext::current();
        let run = match stage {
            // Listeners of a run's own events are called inside of it.
            Some(_) => current.as_ref(),
            None => run_of(current.as_ref(), meta),
        };
        let origin = Origin::live(meta);
        let place = self.place(&origin, stage, run);
        let own = stage.filter(|_| self.shared.emitter.is_heard());
        let is_line = stage != Some(Stage::Finish) && self.shared.output.is_some();
        if place.is_shown && (is_line || own.is_some()) {
            self.show((place, own), (origin, stage), run, event);
        }
    }

    /// So many levels up from a run is the bound one; it is taken to be right below, if that is not known.
    fn levels_up(&self, run: &RunContext) -> usize {
        successors(Some(run), |run| run.parent()).position(|run| Address::of(run) == self.run).unwrap_or(1)
    }

    /// Where a run stands; below the bound run, if that is not known.
    fn place(&self, origin: &Origin<'_>, stage: Option<Stage>, run: Option<&RunContext>) -> Place {
        let outermost = Place::outermost(self.depth, true);
        let Some(run) = run else { return outermost.below(self.settings().shows(origin)) };
        if self.settings().shows_all() {
            return outermost.so_far_below(self.levels_up(run));
        }
        let known = match stage {
            // What users say is asked with no lock held.
            Some(Stage::Start) => None,
            Some(Stage::Finish) => self.places.lock().leave(run),
            _ => self.places.lock().find(run),
        };
        known.unwrap_or_else(|| self.enter(run, stage == Some(Stage::Start)))
    }

    /// The place of a run that begins, or was under way before.
    fn enter(&self, run: &RunContext, begins: bool) -> Place {
        let is_shown = self.settings().shows(run);
        let mut places = self.places.lock();
        let place = if Address::of(run) == self.run {
            Place::outermost(self.depth, is_shown)
        } else {
            let above = run.parent().and_then(|above| places.find(above));
            above.unwrap_or(Place::outermost(self.depth, true)).below(is_shown).at_depth(run.depth())
        };
        if begins {
            places.enter(run, place);
        }
        place
    }

    /// Writes a line; where it is one of the trajectory's own events that is heard, that is emitted first.
    fn show(
        &self,
        (place, own): (Place, Option<Stage>),
        (origin, stage): (Origin<'_>, Option<Stage>),
        run: Option<&RunContext>,
        event: &dyn AnyEvent,
    ) {
        let level = place.level();
        let duration = run.filter(|_| self.settings().times(stage)).map(RunContext::elapsed);
        let line = Line { origin, stage, level, is_outermost: place.is_outermost, duration, prefix: "", payload: "" };
        let message = self.settings().render(line, Payload::Live(event));
        match (own, run) {
            (Some(stage), Some(run)) => {
                self.tell(run, stage, TrajectoryEvent { message, level, origin: origin.to_record(event) });
            }
            _ => self.shared.output.write_or_count(message),
        }
    }

    fn tell(&self, run: &RunContext, stage: Stage, event: TrajectoryEvent) {
        let bound_run = || successors(Some(run), |run| run.parent()).find(|run| Address::of(run) == self.run);
        let trace = || bound_run().unwrap_or(run).trace();
        self.speaker.tell(&self.shared, trace, stage, event);
    }
}

/// The run that an event happened in, which is the current one or one above it.
fn run_of<'r>(current: Option<&'r RunContext>, meta: &EventMeta<'_>) -> Option<&'r RunContext> {
    let run_id = meta.trace()?.run_id;
    successors(current, |run| run.parent()).find(|run| run.run_id() == run_id)
}

#[cfg(test)]
mod tests {
    use emitree_runtime::{Error, Runnable, runnable_fn};

    use super::*;
    use crate::Trajectory;
    use crate::runs::Runs;
    use crate::trajectory::Target;

    #[tokio::test]
    async fn the_place_of_a_run_is_forgotten_when_it_ends() -> Result<()> {
        let trajectory = Trajectory::builder().target(Target::None).excluded(Runs::named("nobody")).build()?;
        let below = runnable_fn("below", |n: u32, _: RunContext| async move {
            if n < 50 { Ok(()) } else { Err(Error::new("many")) }
        });
        let below = Arc::new(below);
        let bound = Arc::new(Mutex::new(None));
        let (looks, binds) = (Arc::clone(&bound), Arc::clone(&bound));
        let top = runnable_fn("top", move |(): (), _: RunContext| {
            let (below, looks) = (Arc::clone(&below), Arc::clone(&looks));
            async move {
                for n in 0..100 {
                    below.run(n).await.ok();
                }
                Ok(looks.lock().as_ref().map_or(0, |bound: &Arc<Bound>| bound.places.lock().len()))
            }
        });
        let run = top.run(()).middleware(move |ctx: &RunContext| {
            let bound = Bound::new(&trajectory.0, ctx);
            *binds.lock() = Some(Arc::clone(&bound));
            bound.observe(ctx)
        });
        // Itself, while it is under way; then nothing.
        assert_eq!(run.await?, 1);
        assert_eq!(bound.lock().as_ref().map(|bound| bound.places.lock().len()), Some(0));
        Ok(())
    }
}
