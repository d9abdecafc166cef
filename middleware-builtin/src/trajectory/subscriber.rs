//! The live trajectory: a subscriber of a bound run and of the runs below it.

use std::iter::successors;
use std::sync::Arc;

use emitree_emitter::{AnyEvent, EventMeta, Matcher, Options};
use emitree_runtime::{Result, RunContext, RunEvent, RunSubscriber, Stage};
use parking_lot::Mutex;
use rustc_hash::FxHashMap;

use super::TrajectoryPrinter;
use super::level::TreePosition;
use super::line::Line;
use super::own_events::TrajectoryEvent;
use crate::shared::run_address::RunAddress;

/// Prints the events of one bound run and of the runs below it.
pub(super) struct TreeSubscriber {
    printer: Arc<TrajectoryPrinter>,
    bound: RunAddress,
    /// The depth of the bound run.
    depth: usize,
    /// The positions of the runs that are under way.
    positions: Mutex<FxHashMap<RunAddress, TreePosition>>,
}

impl TreeSubscriber {
    /// Subscribes to a run and the runs below it. Registers a listener only if further events are printed, because a
    /// run with listeners needs its own emitter.
    pub(super) fn bind(printer: &Arc<TrajectoryPrinter>, ctx: &RunContext) -> Result<()> {
        let bound = RunAddress::of(ctx);
        let depth = ctx.depth();
        let subscriber = Arc::new(Self { printer: Arc::clone(printer), bound, depth, positions: Mutex::default() });
        if !printer.options.events.is_empty() {
            let subscriber = Arc::clone(&subscriber);
            let nested = ctx.emitter().with(Options::new().nested(true));
            nested.observe(Matcher::every(), move |event: &dyn AnyEvent, meta| subscriber.further(event, meta))?;
        }
        ctx.subscribe(subscriber);
        Ok(())
    }

    /// Prints an event that is not a lifecycle event, if a matcher selects the event and its run is shown.
    fn further(&self, event: &dyn AnyEvent, meta: &EventMeta<'_>) {
        let options = &self.printer.options;
        // Lifecycle events are printed by `RunSubscriber::event`.
        if Stage::of(meta).is_some() || !options.events.iter().any(|matcher| matcher.matches(meta)) {
            return;
        }
        let Some(run) = run_of(meta) else { return };
        let position = self.position(&run, None);
        if position.is_shown {
            let (kind, name) = match meta.creator() {
                Some(creator) => (creator.kind(), creator.name()),
                None => ("Event", meta.path().rsplit_once('.').map_or("", |(above, _)| above)),
            };
            // The event may come from an emitter below the run's emitter, so the line names the event's creator.
            let line = Line { position, kind, name, event: meta.name(), stage: None, duration: None };
            self.printer.output.write_or_count(&line, &line.render(event.to_json(), options), options);
        }
    }

    /// Returns the position of a run. It is fixed from `start` to `finish`.
    fn position(&self, run: &RunContext, stage: Option<Stage>) -> TreePosition {
        let address = RunAddress::of(run);
        let known = match stage {
            Some(Stage::Start) => None,
            Some(Stage::Finish) => self.positions.lock().remove(&address),
            _ => self.positions.lock().get(&address).copied(),
        };
        known.unwrap_or_else(|| self.position_anew(run, address, stage == Some(Stage::Start)))
    }

    /// Computes the position of a run that starts, or that had started before the subscription.
    fn position_anew(&self, run: &RunContext, address: RunAddress, starts: bool) -> TreePosition {
        // Predicates are user code: call them without the lock.
        let is_shown = self.printer.options.shows(run);
        let mut positions = self.positions.lock();
        let above = if address == self.bound {
            None
        } else {
            let above = run.parent().and_then(|above| positions.get(&RunAddress::of(above)).copied());
            // If the parent started before the subscription, show the run directly below the bound run.
            Some(above.unwrap_or_else(|| TreePosition::new(None, self.depth, true)))
        };
        let position = TreePosition::new(above, run.depth(), is_shown);
        // Keep positions only from `start` to `finish`, so that the map never contains runs that have ended.
        if starts {
            positions.insert(address, position);
        }
        position
    }

    /// Emits the event of a line before the line is written. Returns the message as listeners left it.
    fn emit(&self, event: &RunEvent<'_>, line: &Line<'_>, message: String) -> String {
        let run = event.run();
        // Use the bound run's ids, so that listeners can tell trees apart.
        let bound = successors(Some(run), |run| run.parent()).find(|run| RunAddress::of(run) == self.bound);
        let own = TrajectoryEvent { message, level: line.position.level, origin: event.to_record() };
        own.emit(&self.printer.emitter, bound.unwrap_or(run).trace(), event.stage())
    }
}

impl RunSubscriber for TreeSubscriber {
    fn event(&self, event: &RunEvent<'_>) {
        let run = event.run();
        let stage = event.stage();
        let options = &self.printer.options;
        let position = self.position(run, Some(stage));
        // `finish` has no line: without listeners of the trajectory's events, there is nothing to do for it.
        let has_listeners = self.printer.emitter.has_listeners();
        let is_written = stage != Stage::Finish;
        if !position.is_shown || !(is_written || has_listeners) {
            return;
        }
        let duration = matches!(stage, Stage::Success | Stage::Error).then(|| run.elapsed());
        let kind = run.kind();
        let name = run.name();
        let event_name = stage.as_str();
        let line = Line { position, kind, name, event: event_name, stage: Some(stage), duration };
        let mut message = line.render(event.payload().to_json(), options);
        if has_listeners {
            message = self.emit(event, &line, message);
        }
        if is_written {
            self.printer.output.write_or_count(&line, &message, options);
        }
    }
}

/// Returns the run that emitted an event, if it is the current run or a run above it.
fn run_of(meta: &EventMeta<'_>) -> Option<RunContext> {
    let current = RunContext::current()?;
    let run_id = meta.trace()?.run_id;
    successors(Some(&current), |run| run.parent()).find(|run| run.run_id() == run_id).cloned()
}

#[cfg(test)]
mod tests {
    use emitree_runtime::{Error, Runnable, runnable_fn};

    use super::*;
    use crate::Trajectory;

    #[tokio::test]
    async fn the_position_of_a_run_is_forgotten_when_the_run_ends() -> Result<()> {
        let trajectory = Trajectory::builder().writer(std::io::sink()).build()?;
        let below = Arc::new(runnable_fn("below", |n: u32, _: RunContext| async move {
            if n < 50 { Ok(()) } else { Err(Error::new("many")) }
        }));
        let subscriber = Arc::new(Mutex::new(None::<Arc<TreeSubscriber>>));
        let known = move |subscriber: &Mutex<Option<Arc<TreeSubscriber>>>| {
            subscriber.lock().as_ref().map(|subscriber| subscriber.positions.lock().len())
        };
        let looks = Arc::clone(&subscriber);
        let binds = Arc::clone(&subscriber);
        let top = runnable_fn("top", move |(): (), _: RunContext| {
            let below = Arc::clone(&below);
            let looks = Arc::clone(&looks);
            async move {
                for n in 0..100 {
                    below.run(n).await.ok();
                }
                Ok(known(&looks))
            }
        });
        let run = top.run(()).middleware(move |ctx: &RunContext| {
            let printer = Arc::clone(&trajectory.0);
            let bound = RunAddress::of(ctx);
            let depth = ctx.depth();
            let subscriber = Arc::new(TreeSubscriber { printer, bound, depth, positions: Mutex::default() });
            *binds.lock() = Some(Arc::clone(&subscriber));
            ctx.subscribe(subscriber);
            Ok(())
        });
        // While the run is under way, only the bound run's position is known; after its end, no position is known.
        assert_eq!(run.await?, Some(1));
        assert_eq!(known(&subscriber), Some(0));
        Ok(())
    }
}
