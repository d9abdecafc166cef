//! A trajectory from a recording.

use std::io;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use emitree_emitter::{EventRecord, Gap, SinkRecord, Trace};
use emitree_runtime::Stage;
use rustc_hash::FxHashMap;
use uuid::Uuid;

use super::level::Place;
use super::payload::Payload;
use super::{Line, NAMESPACE, Origin, Shared};

/// Shows the trajectories of recorded runs, byte for byte as they were live, durations aside. Made by
/// [`Trajectory::replay`](super::Trajectory::replay).
///
/// ```
/// use emitree_emitter::{Emitter, Overflow};
/// use emitree_middleware::Trajectory;
/// use emitree_runtime::{RunContext, Runnable, runnable_fn};
/// use emitree_sinks::Memory;
///
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> emitree_runtime::Result<()> {
/// let memory = Memory::new();
/// let recording = Emitter::root().pipe_to(memory.clone())?;
/// let double = runnable_fn("double", |n: u32, _: RunContext| async move { Ok(n * 2) });
/// double.run(21).await?;
/// recording.flush().await.complete()?;
///
/// let mut replay = Trajectory::stdout().replay();
/// for record in memory.records() {
///     replay.show(&record)?;
/// }
/// # Ok(())
/// # }
/// ```
///
/// Each run without a recorded parent is taken for one that a trajectory was bound to;
/// [`only`](Self::only) picks one run. The order is that of the recording: events that several threads emitted at the
/// same time may have been shown in another one. What a recording does not have cannot be shown: events told by a
/// function of their meta.
#[must_use = "a replay shows nothing until it is given records"]
#[derive(Debug)]
pub struct Replay {
    shared: Arc<Shared>,
    only: Option<Uuid>,
    runs: FxHashMap<Uuid, Known>,
}

/// A recorded run that is under way.
#[derive(Clone, Copy, Debug)]
struct Known {
    /// None outside of what is shown.
    place: Option<Place>,
    depth: usize,
    began: SystemTime,
}

impl Replay {
    pub(super) fn new(shared: Arc<Shared>) -> Self {
        Self { shared, only: None, runs: FxHashMap::default() }
    }

    /// Shows that run and what is below it, as a trajectory that was bound to it.
    pub const fn only(mut self, run_id: Uuid) -> Self {
        self.only = Some(run_id);
        self
    }

    /// Takes the next record, and writes its line, if it has one. A gap gets a line too.
    ///
    /// # Errors
    ///
    /// If the line cannot be written.
    pub fn show(&mut self, record: &SinkRecord) -> io::Result<()> {
        match record {
            SinkRecord::Event(event) => self.show_event(event),
            SinkRecord::Gap(gap) => self.show_gap(*gap),
            _ => Ok(()),
        }
    }

    /// Takes the next event, and writes its line, if it has one.
    ///
    /// # Errors
    ///
    /// If the line cannot be written.
    pub fn show_event(&mut self, event: &EventRecord) -> io::Result<()> {
        let (stage, origin) = (Stage::of_record(event), Origin::recorded(event));
        let Some(trace) = origin.trace() else { return Ok(()) };
        let known = match stage {
            Some(Stage::Start) => Some(self.enter(&trace, &origin)),
            Some(Stage::Finish) => self.runs.remove(&trace.run_id),
            _ => self.runs.get(&trace.run_id).copied(),
        };
        let is_line = match stage {
            Some(stage) => stage != Stage::Finish,
            None => !is_own(&event.path) && self.shared.settings.shows_recorded(event),
        };
        match known {
            Some(known) if is_line => self.write(&known, stage, event),
            _ => Ok(()),
        }
    }

    fn show_gap(&self, gap: Gap) -> io::Result<()> {
        let settings = &self.shared.settings;
        if settings.is_enabled { self.shared.output.write(settings.gap(gap.lost)) } else { Ok(()) }
    }

    fn enter(&mut self, trace: &Trace, origin: &Origin<'_>) -> Known {
        let above = trace.parent_run_id.and_then(|id| self.runs.get(&id));
        let depth = above.map_or(0, |above| above.depth + 1);
        let is_outermost = self.only.map_or(above.is_none(), |only| only == trace.run_id);
        let is_shown = self.shared.settings.shows(origin);
        let place = if is_outermost {
            Some(Place::outermost(depth, is_shown))
        } else {
            above.and_then(|above| above.place).map(|above| above.below(is_shown))
        };
        let known = Known { place, depth, began: origin.created_at().into() };
        self.runs.insert(trace.run_id, known);
        known
    }

    fn write(&mut self, known: &Known, stage: Option<Stage>, event: &EventRecord) -> io::Result<()> {
        let settings = &self.shared.settings;
        let is_shown = |place: &Place| place.is_shown && (settings.is_nested || place.is_outermost);
        let Some(place) = known.place.filter(is_shown).filter(|_| settings.is_enabled) else { return Ok(()) };
        let line = Line {
            origin: Origin::recorded(event),
            stage,
            level: place.level(),
            is_outermost: place.is_outermost,
            duration: settings.times(stage).then(|| known.lasted_until(event.created_at.into())),
            prefix: "",
            payload: "",
        };
        self.shared.output.write(settings.render(line, Payload::Recorded(event.payload.get())))
    }
}

impl Known {
    fn lasted_until(&self, time: SystemTime) -> Duration {
        time.duration_since(self.began).unwrap_or_default()
    }
}

/// A trajectory's own events are not shown by it, though they carry the bound run's ids.
fn is_own(path: &str) -> bool {
    path.strip_prefix(NAMESPACE.as_str()).is_some_and(|rest| rest.starts_with('.'))
}
