//! The live trajectory: a subscriber of a bound run and of the runs below it.

use std::iter::successors;
use std::sync::Arc;

use emitree_emitter::{AnyEvent, EventMeta, Matcher, Options};
use emitree_runtime::{Result, RunContext, RunEvent, RunSubscriber, Stage};
use parking_lot::Mutex;
use rustc_hash::FxHashMap;

use super::Shared;
use super::level::TreePosition;
use super::line::Line;
use super::own_events::TrajectoryEvent;
use crate::shared::run_address::RunAddress;

/// Prints the events of one bound run and of the runs below it.
pub(super) struct TreeSubscriber {
    shared: Arc<Shared>,
    bound: RunAddress,
    /// The depth of the bound run.
    depth: usize,
    /// The places of the runs that are under way.
    places: Mutex<FxHashMap<RunAddress, TreePosition>>,
}

impl TreeSubscriber {
    /// Subscribes to a run and the runs below it; listens only if further events are printed, because a run with listeners
    /// has an emitter of its own.
    pub(super) fn bind(shared: &Arc<Shared>, ctx: &RunContext) -> Result<()> {
        let (bound, depth) = (RunAddress::of(ctx), ctx.depth());
        let subscriber = Arc::new(Self { shared: Arc::clone(shared), bound, depth, places: Mutex::default() });
        if !shared.settings.events.is_empty() {
            let subscriber = Arc::clone(&subscriber);
            let nested = ctx.emitter().with(Options::new().nested(true));
            nested.observe(Matcher::every(), move |event: &dyn AnyEvent, meta| subscriber.further(event, meta))?;
        }
        ctx.subscribe(subscriber);
        Ok(())
    }

    /// Prints an event other than a run's own four.
    fn further(&self, event: &dyn AnyEvent, meta: &EventMeta<'_>) {
        let settings = &self.shared.settings;
        if Stage::of(meta).is_some() || !settings.events.iter().any(|matcher| matcher.matches(meta)) {
            return;
        }
        let Some(run) = run_of(meta) else { return };
        let place = self.place(&run, None);
        if place.is_shown {
            let (kind, name) = match meta.creator() {
                Some(creator) => (creator.kind(), creator.name()),
                None => ("Event", meta.path().rsplit_once('.').map_or("", |(above, _)| above)),
            };
            let line = Line { place, kind, name, event: meta.name(), stage: None, duration: None };
            self.shared.output.write_or_count(line.render(event.to_json(), settings));
        }
    }

    /// Returns the place of a run: that of its `start`, until its `finish`.
    fn place(&self, run: &RunContext, stage: Option<Stage>) -> TreePosition {
        let address = RunAddress::of(run);
        let known = match stage {
            Some(Stage::Start) => None,
            Some(Stage::Finish) => self.places.lock().remove(&address),
            _ => self.places.lock().get(&address).copied(),
        };
        known.unwrap_or_else(|| self.place_anew(run, address, stage == Some(Stage::Start)))
    }

    /// Finds the place of a run that starts, or that had started when this was bound.
    fn place_anew(&self, run: &RunContext, address: RunAddress, starts: bool) -> TreePosition {
        // Predicates of users are called with no lock held.
        let is_shown = self.shared.settings.shows(run);
        let mut places = self.places.lock();
        let above = if address == self.bound {
            None
        } else {
            let above = run.parent().and_then(|above| places.get(&RunAddress::of(above)).copied());
            Some(above.unwrap_or_else(|| TreePosition::new(None, self.depth, true)))
        };
        let place = TreePosition::new(above, run.depth(), is_shown);
        if starts {
            places.insert(address, place);
        }
        place
    }

    /// Emits a line before it is written. Listeners may change its message.
    fn emit(&self, event: &RunEvent<'_>, line: &Line<'_>, message: String) -> String {
        let run = event.run();
        let bound = successors(Some(run), |run| run.parent()).find(|run| RunAddress::of(run) == self.bound);
        let own = TrajectoryEvent { message, level: line.place.level, origin: event.to_record() };
        own.emit(&self.shared.emitter, bound.unwrap_or(run).trace(), event.stage())
    }
}

impl RunSubscriber for TreeSubscriber {
    fn event(&self, event: &RunEvent<'_>) {
        let (run, stage, settings) = (event.run(), event.stage(), &self.shared.settings);
        let place = self.place(run, Some(stage));
        let has_listeners = self.shared.emitter.is_heard();
        let is_written = stage != Stage::Finish;
        if !place.is_shown || !(is_written || has_listeners) {
            return;
        }
        let duration = settings.times(Some(stage)).then(|| run.elapsed());
        let (kind, name, event_name) = (run.kind(), run.name(), stage.as_str());
        let line = Line { place, kind, name, event: event_name, stage: Some(stage), duration };
        let mut message = line.render(event.payload().to_json(), settings);
        if has_listeners {
            message = self.emit(event, &line, message);
        }
        if is_written {
            self.shared.output.write_or_count(message);
        }
    }
}

/// Returns the run that emitted an event: the current run or a run above it.
fn run_of(meta: &EventMeta<'_>) -> Option<RunContext> {
    let (current, run_id) = (RunContext::current()?, meta.trace()?.run_id);
    successors(Some(&current), |run| run.parent()).find(|run| run.run_id() == run_id).cloned()
}

#[cfg(test)]
mod tests {
    use emitree_runtime::{Error, Runnable, runnable_fn};

    use super::*;
    use crate::Trajectory;

    #[tokio::test]
    async fn the_place_of_a_run_is_forgotten_when_it_ends() -> Result<()> {
        let trajectory = Trajectory::builder().writer(std::io::sink()).build()?;
        let below = Arc::new(runnable_fn("below", |n: u32, _: RunContext| async move {
            if n < 50 { Ok(()) } else { Err(Error::new("many")) }
        }));
        let subscriber = Arc::new(Mutex::new(None::<Arc<TreeSubscriber>>));
        let known = move |subscriber: &Mutex<Option<Arc<TreeSubscriber>>>| {
            subscriber.lock().as_ref().map(|subscriber| subscriber.places.lock().len())
        };
        let (looks, binds) = (Arc::clone(&subscriber), Arc::clone(&subscriber));
        let top = runnable_fn("top", move |(): (), _: RunContext| {
            let (below, looks) = (Arc::clone(&below), Arc::clone(&looks));
            async move {
                for n in 0..100 {
                    below.run(n).await.ok();
                }
                Ok(known(&looks))
            }
        });
        let run = top.run(()).middleware(move |ctx: &RunContext| {
            let (shared, bound, depth) = (Arc::clone(&trajectory.0), RunAddress::of(ctx), ctx.depth());
            let subscriber = Arc::new(TreeSubscriber { shared, bound, depth, places: Mutex::default() });
            *binds.lock() = Some(Arc::clone(&subscriber));
            ctx.subscribe(subscriber);
            Ok(())
        });
        // Only the bound run, while it is under way; then none.
        assert_eq!(run.await?, Some(1));
        assert_eq!(known(&subscriber), Some(0));
        Ok(())
    }
}
