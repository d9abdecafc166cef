//! A trajectory at work: bound to one run, it hears that run's events and those of the runs below.

use std::cell::Cell;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use emitree_emitter::{AnyEvent, BoxError, EventMeta, Matcher, OnError, Options, Trace, matcher_fn};
use emitree_runtime::{Middleware, Result, RunContext, Stage};
use parking_lot::Mutex;
use uuid::Uuid;

use super::level::{Address, Place, Places};
use super::payload::Payload;
use super::settings::{Scratch, Settings};
use super::speaker::{Speaker, TrajectoryEvent};
use super::{Line, Origin, Shared};

/// What belongs to one bound run; it goes with that run's listeners.
pub(super) struct Bound {
    shared: Arc<Shared>,
    /// The bound run's.
    emitter: Address,
    trace: Trace,
    /// Above the bound run.
    depth: usize,
    places: Mutex<Places>,
    speaker: Speaker,
    /// Whether what is left of a telling is waited for where the run is observed.
    waits: AtomicBool,
}

impl Bound {
    pub(super) fn new(shared: &Arc<Shared>, ctx: &RunContext) -> Arc<Self> {
        let trace = ctx.trace();
        Arc::new(Self {
            shared: Arc::clone(shared),
            emitter: Address::of(ctx.emitter()),
            trace,
            depth: ctx.depth(),
            places: Mutex::default(),
            speaker: Speaker::new(trace),
            waits: AtomicBool::new(false),
        })
    }

    fn settings(&self) -> &Settings {
        &self.shared.settings
    }

    /// Whether anybody may listen to the trajectory's own events.
    fn is_heard(&self) -> bool {
        self.shared.emitter.is_heard()
    }

    fn observes(&self) -> Options {
        Options::new().nested(self.shared.settings.is_nested)
    }

    /// Observes the bound run, and from there what is below it.
    pub(super) fn observe(self: Arc<Self>, ctx: &RunContext) -> Result<()> {
        let emitter = ctx.emitter().with(self.observes());
        let waits = self.is_heard().then(|| Arc::clone(&self));
        emitter.observe(Matcher::every(), move |event: &dyn AnyEvent, meta| self.hear(event, meta))?;
        waits.map_or(Ok(()), |bound| bound.wait_from_now_on(ctx))
    }

    /// Waits, from the bound run's next event on, for what is left of tellings: right behind where it observes.
    fn wait_from_now_on(self: &Arc<Self>, ctx: &RunContext) -> Result<()> {
        if self.waits.swap(true, Ordering::Relaxed) {
            return Ok(());
        }
        let emitter = ctx.emitter().with(self.observes());
        let (asked, bound) = (Arc::clone(self), Arc::clone(self));
        emitter
            .observe_async(matcher_fn(move |meta| asked.speaker.has_left(meta)), move |_: &dyn AnyEvent, meta| {
                wait(&bound, meta)
            })?;
        Ok(())
    }

    /// The same, where somebody has begun to listen under way.
    #[cold]
    fn wait_after_all(self: &Arc<Self>) -> Result<()> {
        let current = RunContext::current();
        let mut runs = std::iter::successors(current.as_ref(), |run| run.parent());
        let bound = runs.find(|run| Address::of(run.emitter()) == self.emitter);
        bound.map_or(Ok(()), |run| self.wait_from_now_on(run))
    }

    /// Listens in order, on the bound run's emitter and on that of every run below it.
    pub(super) fn listen(self: Arc<Self>, ctx: &RunContext, priority: i32) -> Result<()> {
        Arc::clone(&self).listen_to(ctx, priority)?;
        if self.settings().is_nested {
            ctx.bind_nested(Below { bound: self, priority });
        }
        Ok(())
    }

    fn listen_to(self: Arc<Self>, ctx: &RunContext, priority: i32) -> Result<()> {
        // What only shows must not fail what it shows.
        let options = Options::new().nested(false).priority(priority).on_error(OnError::Isolate);
        let emitter = ctx.emitter().with(options);
        self.waits.store(true, Ordering::Relaxed);
        let bound = Arc::clone(&self);
        emitter.on(Matcher::every(), move |event: &mut dyn AnyEvent, meta| bound.hear(event, meta))?;
        let bound = Arc::clone(&self);
        emitter.on_async(matcher_fn(move |meta| bound.speaker.has_left(meta)), move |_: &mut dyn AnyEvent, meta| {
            wait(&self, meta)
        })?;
        Ok(())
    }

    fn hear(self: &Arc<Self>, event: &dyn AnyEvent, meta: &EventMeta<'_>) {
        let stage = Stage::of(meta);
        if stage.is_none() && !self.settings().shows_event(meta) {
            return;
        }
        let place = self.place(stage, meta);
        if !place.is_shown {
            return;
        }
        let own = stage.filter(|_| self.is_heard());
        if own.is_some() || (stage != Some(Stage::Finish) && self.shared.output.is_some()) {
            self.show(place, own, event, meta);
        }
    }

    /// Where the event's run stands.
    fn place(&self, stage: Option<Stage>, meta: &EventMeta<'_>) -> Place {
        // The four are emitted on the run's own emitter.
        let near = match stage {
            Some(Stage::Start) => return self.place_of_start(meta),
            Some(Stage::Success | Stage::Error) => self.places.lock().at(Address::of(meta.source())),
            Some(Stage::Finish) => self.places.lock().leave_at(Address::of(meta.source())),
            None => None,
        };
        near.unwrap_or_else(|| self.place_of_run(stage, meta))
    }

    /// The place of a run that begins. What users say is asked with no lock held.
    fn place_of_start(&self, meta: &EventMeta<'_>) -> Place {
        let is_shown = self.settings().shows(&Origin::live(meta));
        let emitter = Address::of(meta.source());
        let mut places = self.places.lock();
        let place = if emitter == self.emitter {
            Place::outermost(self.depth, is_shown)
        } else {
            self.below(places.above_of(meta), is_shown)
        };
        // Ids are worked out only for those who ask by them.
        let run_id = self.settings().shows_events().then(|| self.run_id(meta)).flatten();
        if !places.enter_near(emitter, run_id, place)
            && let Some(run_id) = self.run_id(meta)
        {
            places.enter_far(run_id, place);
        }
        place
    }

    fn trace_of(&self, meta: &EventMeta<'_>) -> Option<Trace> {
        if Address::of(meta.source()) == self.emitter { Some(self.trace) } else { meta.trace() }
    }

    fn run_id(&self, meta: &EventMeta<'_>) -> Option<Uuid> {
        self.trace_of(meta).map(|trace| trace.run_id)
    }

    /// The place of a run that has begun, by its id.
    fn place_of_run(&self, stage: Option<Stage>, meta: &EventMeta<'_>) -> Place {
        let trace = self.trace_of(meta);
        let known = trace.and_then(|trace| match stage {
            Some(Stage::Finish) => self.places.lock().leave(trace.run_id),
            _ => self.places.lock().find(trace.run_id),
        });
        known.unwrap_or_else(|| self.place_of_unknown(trace, &Origin::live(meta)))
    }

    fn place_of_unknown(&self, trace: Option<Trace>, origin: &Origin<'_>) -> Place {
        let is_shown = self.settings().shows(origin);
        if trace.is_some_and(|trace| trace.run_id == self.trace.run_id) {
            return Place::outermost(self.depth, is_shown);
        }
        let above = trace.and_then(|trace| self.places.lock().find(trace.parent_run_id?));
        self.below(above, is_shown)
    }

    /// Below what a run was started in; below the bound run, if that is not known.
    fn below(&self, above: Option<Place>, is_shown: bool) -> Place {
        above.unwrap_or(Place::outermost(self.depth, true)).below(is_shown)
    }

    /// Writes a line; where it is one of the trajectory's own events that is heard, that is emitted first.
    fn show(self: &Arc<Self>, place: Place, own: Option<Stage>, event: &dyn AnyEvent, meta: &EventMeta<'_>) {
        let (origin, stage, level) = (Origin::live(meta), Stage::of(meta), place.level());
        let duration = self.settings().times(stage).then(|| RunContext::current().map(|run| run.elapsed())).flatten();
        let line = Line { origin, stage, level, is_outermost: place.is_outermost, duration, prefix: "", payload: "" };
        with_scratch(|scratch| {
            self.settings().render(line, Payload::Live(event), scratch);
            match own {
                None => self.shared.output.write_or_count(&mut scratch.message),
                Some(stage) => {
                    let message = scratch.message_text();
                    self.tell(stage, TrajectoryEvent { message, level, origin: meta.to_record(event) });
                }
            }
        });
    }

    fn tell(self: &Arc<Self>, stage: Stage, event: TrajectoryEvent) {
        if self.speaker.tell(&self.shared, stage, event).is_pending()
            && !self.waits.load(Ordering::Relaxed)
            && let Err(error) = self.wait_after_all()
        {
            tracing::warn!(%error, "a trajectory does not wait for its listeners");
        }
    }
}

type Waiting<'a> = Pin<Box<dyn Future<Output = std::result::Result<(), BoxError>> + Send + 'a>>;

/// What is left of the telling of an event.
fn wait<'a>(bound: &Bound, meta: &EventMeta<'_>) -> Waiting<'a> {
    let rest = bound.speaker.finish(meta);
    Box::pin(async move {
        rest.await;
        Ok(())
    })
}

/// Binds what is bound to a run to the runs below it.
struct Below {
    bound: Arc<Bound>,
    priority: i32,
}

impl Middleware for Below {
    fn bind(&self, ctx: &RunContext) -> Result<()> {
        Arc::clone(&self.bound).listen_to(ctx, self.priority)
    }

    fn name(&self) -> &str {
        "trajectory"
    }
}

/// Lends the thread's buffers. Formatters and listeners are user code, and may lead here again: they find others.
fn with_scratch(f: impl FnOnce(&mut Scratch)) {
    thread_local! {
        static SCRATCH: Cell<Option<Box<Scratch>>> = const { Cell::new(None) };
    }
    let mut scratch = SCRATCH.try_with(Cell::take).ok().flatten().unwrap_or_default();
    f(&mut scratch);
    // A thread that ends keeps none.
    SCRATCH.try_with(|kept| kept.set(Some(scratch))).unwrap_or_default();
}

#[cfg(test)]
mod tests {
    use emitree_runtime::{Error, Runnable, runnable_fn};

    use super::*;
    use crate::Trajectory;
    use crate::trajectory::Target;

    #[tokio::test]
    async fn the_place_of_a_run_is_forgotten_when_it_ends() -> Result<()> {
        for priority in [None, Some(1)] {
            let builder = Trajectory::builder().target(Target::None);
            let builder = priority.into_iter().fold(builder, |builder, priority| builder.priority(priority));
            let trajectory = builder.build()?;
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
                match priority {
                    None => bound.observe(ctx),
                    Some(priority) => bound.listen(ctx, priority),
                }
            });
            // Itself, while it is under way; then nothing.
            assert_eq!(run.await?, 1);
            assert_eq!(bound.lock().as_ref().map(|bound| bound.places.lock().len()), Some(0));
        }
        Ok(())
    }
}
