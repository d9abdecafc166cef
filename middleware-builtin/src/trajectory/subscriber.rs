//! The live trajectory: a subscriber of a bound run and of the runs below it.

use std::iter::successors;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Weak};

use emitree_emitter::{AnyEvent, EventMeta, Matcher, Options};
use emitree_runtime::{LifecycleRef, Result, RunContext, RunEvent, RunSubscriber, Stage};
use parking_lot::Mutex;

use super::NAME;
use super::line::{Line, Payload};
use super::notes;
use super::own_events::TrajectoryEvent;
use super::printer::{Further, Staged, TrajectoryPrinter};
use super::tree::{PlacedRun, Starting, Tree, TreePosition};
use crate::shared::run_address::RunAddress;

/// The kinds whose runs emit events that have notes.
const NOTED: [&str; 3] = ["Agent", "ChatModel", "Tool"];

/// Prints the events of one bound run and of the runs below it.
pub(super) struct TreeSubscriber {
    this: Weak<Self>,
    printer: Arc<TrajectoryPrinter>,
    bound: RunAddress,
    /// The depth of the bound run.
    depth: usize,
    /// The runs that are under way.
    tree: Mutex<Tree<RunAddress>>,
    /// `true` if the bound run has the listener for events that are not lifecycle events.
    listens: AtomicBool,
}

impl TreeSubscriber {
    /// Subscribes to a run and the runs below it.
    pub(super) fn bind(printer: &Arc<TrajectoryPrinter>, ctx: &RunContext) -> Result<()> {
        let subscriber = Self::new(printer, ctx);
        if !printer.options.events.is_empty() {
            subscriber.listen(ctx)?;
        }
        ctx.subscribe(subscriber);
        Ok(())
    }

    fn new(printer: &Arc<TrajectoryPrinter>, ctx: &RunContext) -> Arc<Self> {
        Arc::new_cyclic(|this| Self {
            this: Weak::clone(this),
            printer: Arc::clone(printer),
            bound: RunAddress::of(ctx),
            depth: ctx.depth(),
            tree: Mutex::new(Tree::new(Arc::clone(&printer.outermost))),
            listens: AtomicBool::new(false),
        })
    }

    /// Registers the listener for events that are not lifecycle events. With a listener, each run below needs an
    /// emitter, so it is only registered for further events, or when a run starts that may have notes.
    fn listen(&self, bound: &RunContext) -> Result<()> {
        self.listens.store(true, Ordering::Relaxed);
        let this = Weak::clone(&self.this);
        let show = move |event: &dyn AnyEvent, meta: &EventMeta<'_>| {
            if let Some(this) = this.upgrade() {
                this.further(event, meta);
            }
        };
        let nested = bound.emitter().with(Options::new().nested(true));
        if self.printer.options.events.is_empty() {
            nested.observe(self.printer.notes.clone(), show)?;
        } else {
            nested.observe(Matcher::every(), show)?;
        }
        Ok(())
    }

    /// Registers the listener when the first run starts that may have notes: a run of an agent, or one with middleware.
    fn listen_for_notes(&self, run: &RunContext) {
        if self.listens.load(Ordering::Relaxed) {
            return;
        }
        let is_noted = NOTED.contains(&run.kind()) || run.has_middleware(|name| name != NAME);
        if is_noted && let Err(error) = self.listen(self.bound_of(run)) {
            tracing::warn!(%error, "a trajectory cannot listen to the events of a run");
        }
    }

    /// Prints an event that is not a lifecycle event, if it is selected or has a note.
    fn further(&self, event: &dyn AnyEvent, meta: &EventMeta<'_>) {
        // Lifecycle events are printed by `RunSubscriber::event`.
        if Stage::of(meta).is_some() {
            return;
        }
        let is_selected = self.printer.options.events.iter().any(|matcher| matcher.matches(meta));
        if !is_selected && !notes::has_text(meta.name()) {
            return;
        }
        let Some(context) = run_of(meta) else { return };
        let run = RunAddress::of(&context);
        let known = self.tree.lock().find(run);
        let placed = known.unwrap_or_else(|| self.without_start(&context));
        let namespace = || meta.path().rsplit_once('.').map_or("", |(above, _)| above);
        let creator = meta.creator().map_or_else(|| ("Event", namespace()), |creator| (creator.kind(), creator.name()));
        let (kind, name) = (context.kind(), context.name());
        let further = Further { run, placed, kind, name, creator, event: meta.name(), is_selected };
        self.printer.further(&self.tree, &further, event.to_json(), &mut |line, message| self.write(line, message));
    }

    /// Adds a run that starts.
    fn start(&self, run: &RunContext) -> PlacedRun {
        // Predicates are user code: call them without the lock.
        let is_shown = self.printer.options.shows(run);
        let address = RunAddress::of(run);
        let mut tree = self.tree.lock();
        // If the parent started before the subscription, show the run directly below the bound run.
        let parent = run.parent().map(RunAddress::of).filter(|parent| tree.has(*parent));
        tree.start(&Starting {
            run: address,
            parent: if address == self.bound { None } else { Some(parent.unwrap_or(self.bound)) },
            depth: run.depth(),
            is_shown,
            kind: run.kind(),
            name: run.name(),
            folds: !self.printer.options.is_every,
        })
    }

    /// Returns the place of a run that had started before the subscription.
    fn without_start(&self, run: &RunContext) -> PlacedRun {
        let is_shown = self.printer.options.shows(run);
        let is_bound = RunAddress::of(run) == self.bound;
        let above = if is_bound { None } else { Some(TreePosition::new(None, self.depth, true)) };
        PlacedRun::without_start(TreePosition::new(above, run.depth(), is_shown))
    }

    /// Returns the bound run, which a run is below.
    fn bound_of<'a>(&self, run: &'a RunContext) -> &'a RunContext {
        successors(Some(run), |run| run.parent()).find(|run| RunAddress::of(run) == self.bound).unwrap_or(run)
    }

    /// Emits the event of a line before the line is written. Returns the message as listeners left it.
    fn emit(&self, event: &RunEvent<'_>, line: &Line<'_>, message: String) -> String {
        // Use the bound run's ids, so that listeners can tell trees apart.
        let bound = self.bound_of(event.run());
        let own = TrajectoryEvent { message, level: line.parts.run.position.level, origin: event.to_record() };
        own.emit(&self.printer.emitter, bound.trace(), event.stage())
    }

    fn write(&self, line: &Line<'_>, message: &str) {
        self.printer.output.write_or_count(line, message, &self.printer.options);
    }
}

impl RunSubscriber for TreeSubscriber {
    fn event(&self, event: &RunEvent<'_>) {
        let run = event.run();
        let stage = event.stage();
        let address = RunAddress::of(run);
        let placed = if stage == Stage::Start {
            self.listen_for_notes(run);
            self.start(run)
        } else {
            let known = self.tree.lock().find(address);
            known.unwrap_or_else(|| self.without_start(run))
        };
        let duration = if matches!(stage, Stage::Success | Stage::Error) { Some(run.elapsed()) } else { None };
        let staged = Staged { run: address, placed, kind: run.kind(), name: run.name(), stage, duration };
        let payload = || match event.lifecycle() {
            // The input is in the line of `start`, and need not be converted again.
            Some(LifecycleRef::Success(success)) if !self.printer.options.is_json => {
                Payload::Output(success.output_json())
            }
            _ => Payload::Whole(event.payload().to_json()),
        };
        let emit = |line: &Line<'_>, message| self.emit(event, line, message);
        let has_listeners = self.printer.emitter.has_listeners();
        let write = &mut |line: &Line<'_>, message: &str| self.write(line, message);
        self.printer.staged(&self.tree, &staged, payload, if has_listeners { Some(&emit) } else { None }, write);
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
            subscriber.lock().as_ref().map(|subscriber| subscriber.tree.lock().len())
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
            let subscriber = TreeSubscriber::new(&trajectory.0, ctx);
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
