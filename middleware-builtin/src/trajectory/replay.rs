//! The trajectories of recorded runs.

use std::io;
use std::sync::Arc;
use std::time::SystemTime;

use emitree_emitter::{EventRecord, SinkRecord};
use emitree_runtime::Stage;
use rustc_hash::FxHashMap;
use uuid::Uuid;

use super::TrajectoryPrinter;
use super::level::TreePosition;
use super::line::Line;
use super::recorded_event::RecordedEvent;
use crate::shared::runs::RunInfo;

/// Prints the trajectories of recorded runs. Except for durations, each line equals the live line, byte for byte.
/// Returned by [`Trajectory::replay`](super::Trajectory::replay).
///
/// ```
/// use emitree_emitter::Emitter;
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
/// A run without a recorded parent is shown like a run that a trajectory was bound to; [`only`](Self::only) selects one
/// run. Lines are in the order of the recording; a live trajectory may have printed events of several threads in
/// another order. A matcher function that was passed to [`events`](super::TrajectoryBuilder::events) matches no
/// recorded event, because a recording has no [meta](emitree_emitter::EventMeta).
#[must_use = "a replay shows nothing until it is given records"]
#[derive(Debug)]
pub struct TrajectoryReplay {
    printer: Arc<TrajectoryPrinter>,
    only: Option<Uuid>,
    runs: FxHashMap<Uuid, KnownRun>,
}

/// A recorded run that is under way.
#[derive(Clone, Copy, Debug)]
struct KnownRun {
    /// `None` for runs outside the selected tree.
    position: Option<TreePosition>,
    depth: usize,
    started: SystemTime,
}

impl TrajectoryReplay {
    pub(super) fn new(printer: Arc<TrajectoryPrinter>) -> Self {
        Self { printer, only: None, runs: FxHashMap::default() }
    }

    /// Shows only the run with this id and the runs below it, as if the trajectory were bound to that run.
    pub const fn only(mut self, run_id: Uuid) -> Self {
        self.only = Some(run_id);
        self
    }

    /// Writes the line of the next record, if the record is shown. A gap, where events were lost, has a line too.
    ///
    /// # Errors
    ///
    /// Returns an error if the line cannot be written.
    pub fn show(&mut self, record: &SinkRecord) -> io::Result<()> {
        match record {
            SinkRecord::Event(event) => self.show_event(event),
            SinkRecord::Gap(gap) => self.printer.output.write(format!("[gap]: events were lost here: {}", gap.lost)),
            _ => Ok(()),
        }
    }

    /// Writes the line of the next event, if the event is shown.
    ///
    /// # Errors
    ///
    /// Returns an error if the line cannot be written.
    pub fn show_event(&mut self, event: &EventRecord) -> io::Result<()> {
        let recorded = RecordedEvent::new(event);
        let Some(run_id) = event.trace.map(|trace| trace.run_id) else { return Ok(()) };
        let run = match recorded.stage {
            Some(Stage::Start) => Some(self.start(run_id, &recorded)),
            Some(Stage::Finish) => {
                // `finish` is a run's last event: forget the run, so that memory does not grow with the recording.
                self.runs.remove(&run_id);
                None
            }
            _ => self.runs.get(&run_id).copied(),
        };
        let is_printed = recorded.stage.is_some() || self.prints_further(&recorded);
        match run {
            Some(KnownRun { position: Some(position), started, .. }) if position.is_shown && is_printed => {
                self.print(&recorded, position, started)
            }
            _ => Ok(()),
        }
    }

    /// Remembers a run that starts.
    fn start(&mut self, run_id: Uuid, start: &RecordedEvent<'_>) -> KnownRun {
        let parent_id = start.event.trace.and_then(|trace| trace.parent_run_id);
        let above = parent_id.and_then(|id| self.runs.get(&id));
        let depth = above.map_or(0, |above| above.depth + 1);
        // Without a selected run, each run whose parent was not recorded begins a tree.
        let is_outermost = self.only.map_or(above.is_none(), |only| only == run_id);
        let above = above.and_then(|above| above.position);
        let position = if is_outermost || above.is_some() {
            let above = if is_outermost { None } else { above };
            Some(TreePosition::new(above, depth, self.printer.options.shows(start)))
        } else {
            None
        };
        let run = KnownRun { position, depth, started: start.event.created_at.into() };
        self.runs.insert(run_id, run);
        run
    }

    fn prints_further(&self, recorded: &RecordedEvent<'_>) -> bool {
        let matchers = &self.printer.options.events;
        !recorded.is_own_event() && matchers.iter().any(|matcher| matcher.matches_record(recorded.event) == Some(true))
    }

    fn print(&self, recorded: &RecordedEvent<'_>, position: TreePosition, started: SystemTime) -> io::Result<()> {
        let options = &self.printer.options;
        let event = recorded.event;
        let took = || SystemTime::from(event.created_at).duration_since(started).unwrap_or_default();
        let line = Line {
            position,
            kind: recorded.kind(),
            name: recorded.name(),
            event: event.name(),
            stage: recorded.stage,
            duration: matches!(recorded.stage, Some(Stage::Success | Stage::Error)).then(took),
        };
        // A payload from another recorder may be nested deeper than `serde_json` reads: print it as text.
        let payload = event.payload().unwrap_or_else(|_| event.payload.get().into());
        self.printer.output.write_line(&line, &line.render(payload, options), options)
    }
}
