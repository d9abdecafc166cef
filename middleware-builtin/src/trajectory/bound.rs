//! A trajectory at work: bound to one run, it sees what that run tells, and those below it.

use std::fmt;
use std::iter::successors;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use emitree_emitter::{AnyEvent, BoxError, EventMeta, Matcher, OnError, Options, matcher_fn};
use emitree_runtime::{Middleware, Result, RunContext, RunEvent, RunObserver, Stage};
use parking_lot::Mutex;
use rustc_hash::FxHashSet;

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
    heard: Heard,
}

/// What a listener has heard that stands there since somebody began to listen under way: it is not to be shown once more
/// when the observer sees it.
#[derive(Default)]
struct Heard {
    listens: AtomicBool,
    events: Mutex<FxHashSet<(Address, Stage)>>,
}

impl Heard {
    fn add(&self, run: &RunContext, stage: Stage) {
        self.events.lock().insert((Address::of(run), stage));
    }

    fn take(&self, run: &RunContext, stage: Stage) -> bool {
        self.listens.load(Ordering::Acquire) && self.events.lock().remove(&(Address::of(run), stage))
    }
}

impl Bound {
    pub(super) fn new(shared: &Arc<Shared>, ctx: &RunContext) -> Arc<Self> {
        Arc::new(Self {
            shared: Arc::clone(shared),
            run: Address::of(ctx),
            depth: ctx.depth(),
            places: Mutex::default(),
            speaker: Speaker::default(),
            heard: Heard::default(),
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
    ///
    /// Where nobody has to be told, runs are only looked at, and none is heard for it. Whoever listens is told while the run
    /// tells, and is waited for, which only a listener can do: then one stands there, from the start or from now on.
    pub(super) fn observe(self: Arc<Self>, ctx: &RunContext) -> Result<()> {
        let hears_runs = self.is_heard();
        if !hears_runs {
            ctx.observe(Watching(Arc::clone(&self)));
        }
        if hears_runs || self.settings().shows_events() {
            let bound = Arc::clone(&self);
            ctx.emitter().with(self.observes()).observe(Matcher::every(), move |event: &dyn AnyEvent, meta| {
                if hears_runs || Stage::of(meta).is_none() {
                    bound.hear(event, meta);
                }
            })?;
        }
        if hears_runs { self.wait_from_now_on(ctx) } else { Ok(()) }
    }

    /// Waits, from the bound run's next event on, for what is left of tellings: right behind where it observes.
    fn wait_from_now_on(self: &Arc<Self>, ctx: &RunContext) -> Result<()> {
        let emitter = ctx.emitter().with(self.observes());
        let (asked, bound) = (Arc::clone(self), Arc::clone(self));
        emitter
            .observe_async(matcher_fn(move |meta| asked.speaker.has_left(meta)), move |_: &dyn AnyEvent, meta| {
                wait(&bound, meta)
            })?;
        Ok(())
    }

    /// Listens from the next event on, as somebody has begun to listen under way.
    #[cold]
    fn listen_from_now_on(self: &Arc<Self>, ctx: &RunContext) -> Result<()> {
        if self.heard.listens.swap(true, Ordering::AcqRel) {
            return Ok(());
        }
        let bound = Arc::clone(self);
        ctx.emitter().with(self.observes()).observe(Matcher::every(), move |event: &dyn AnyEvent, meta| {
            if let (Some(stage), Some(run)) = (Stage::of(meta), RunContext::current())
                && bound.bound_run(&run).is_some()
            {
                bound.heard.add(&run, stage);
                bound.hear(event, meta);
            }
        })?;
        self.wait_from_now_on(ctx)
    }

    /// The bound run, from one below it.
    fn bound_run<'r>(&self, run: &'r RunContext) -> Option<&'r RunContext> {
        successors(Some(run), |run| run.parent()).find(|run| Address::of(run) == self.run)
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
        let bound = Arc::clone(&self);
        emitter.on(Matcher::every(), move |event: &mut dyn AnyEvent, meta| bound.hear(event, meta))?;
        let bound = Arc::clone(&self);
        emitter.on_async(matcher_fn(move |meta| bound.speaker.has_left(meta)), move |_: &mut dyn AnyEvent, meta| {
            wait(&self, meta)
        })?;
        Ok(())
    }

    /// Listens to an event.
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
        let place = self.place(&origin, stage, run, |run| self.levels_up(run));
        self.notice(place, self.is_heard(), (origin, stage), run, event);
    }

    /// Looks at a run's event.
    fn see(self: &Arc<Self>, event: &RunEvent<'_>) {
        let (run, stage) = (event.run(), event.stage());
        // It observes the bound run, and those below it.
        let levels = run.depth() - self.depth;
        if levels > 0 && !self.settings().is_nested || self.heard.take(run, stage) {
            return;
        }
        let is_heard = self.is_heard();
        if is_heard
            && let Some(bound) = self.bound_run(run)
            && let Err(error) = self.listen_from_now_on(bound)
        {
            tracing::warn!(%error, "a trajectory does not wait for its listeners");
        }
        let origin = Origin::told(event);
        let place = self.place(&origin, Some(stage), Some(run), |_| levels);
        self.notice(place, is_heard, (origin, Some(stage)), Some(run), event.payload());
    }

    fn notice(
        &self,
        place: Place,
        is_heard: bool,
        (origin, stage): (Origin<'_>, Option<Stage>),
        run: Option<&RunContext>,
        event: &dyn AnyEvent,
    ) {
        let own = stage.filter(|_| is_heard);
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
    fn place(
        &self,
        origin: &Origin<'_>,
        stage: Option<Stage>,
        run: Option<&RunContext>,
        levels_up: impl FnOnce(&RunContext) -> usize,
    ) -> Place {
        let outermost = Place::outermost(self.depth, true);
        let Some(run) = run else { return outermost.below(self.settings().shows(origin)) };
        if self.settings().shows_all() {
            return outermost.so_far_below(levels_up(run));
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
        let trace = || self.bound_run(run).unwrap_or(run).trace();
        self.speaker.tell(&self.shared, trace, stage, event);
    }
}

/// The run that an event happened in, which is the current one or one above it.
fn run_of<'r>(current: Option<&'r RunContext>, meta: &EventMeta<'_>) -> Option<&'r RunContext> {
    let run_id = meta.trace()?.run_id;
    successors(current, |run| run.parent()).find(|run| run.run_id() == run_id)
}

/// Looks at runs without listening to them.
struct Watching(Arc<Bound>);

impl RunObserver for Watching {
    fn observe(&self, event: &RunEvent<'_>) {
        self.0.see(event);
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

impl fmt::Debug for Below {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.bound.shared.fmt(f)
    }
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
        for priority in [None, Some(1)] {
            let builder = Trajectory::builder().target(Target::None).excluded(Runs::named("nobody"));
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
