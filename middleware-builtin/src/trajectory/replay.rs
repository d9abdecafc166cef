//! The trajectories of recorded runs.

use std::io;
use std::sync::Arc;
use std::time::SystemTime;

use emitree_emitter::{EventRecord, SinkRecord};
use emitree_runtime::Stage;
use parking_lot::Mutex;
use rustc_hash::FxHashMap;
use serde::Deserialize;
use serde_json::Value;
use uuid::Uuid;

use super::line::{Line, Payload};
use super::notes;
use super::printer::{Further, Staged, TrajectoryPrinter};
use super::recorded_event::RecordedEvent;
use super::tree::{Starting, Tree};
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
    runs: FxHashMap<Uuid, RecordedRun>,
    /// The runs of the selected tree.
    tree: Mutex<Tree<Uuid>>,
}

/// A recorded run that is under way.
#[derive(Debug)]
struct RecordedRun {
    kind: Box<str>,
    name: Box<str>,
    depth: usize,
    started: SystemTime,
}

/// The part of the payload of a `success` that a line shows.
#[derive(Deserialize)]
struct RecordedSuccess {
    output: Value,
}

impl TrajectoryReplay {
    pub(super) fn new(printer: Arc<TrajectoryPrinter>) -> Self {
        // Recorded runs do not overlap with live runs.
        Self { printer, only: None, runs: FxHashMap::default(), tree: Mutex::new(Tree::new(Arc::default())) }
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
        let Some(run) = event.trace.map(|trace| trace.run_id) else { return Ok(()) };
        match recorded.stage {
            Some(Stage::Start) => self.start(run, &recorded),
            None if !self.shows_further(&recorded) => return Ok(()),
            _ => {}
        }
        let mut written = Ok(());
        let placed = self.tree.get_mut().find(run);
        if let (Some(known), Some(placed)) = (self.runs.get(&run), placed) {
            let printer = &self.printer;
            let write = &mut |line: &Line<'_>, message: &str| {
                let result = printer.output.write_line(line, message, &printer.options);
                if written.is_ok() {
                    written = result;
                }
            };
            let (kind, name) = (&*known.kind, &*known.name);
            match recorded.stage {
                Some(stage) => {
                    let took = || SystemTime::from(event.created_at).duration_since(known.started).unwrap_or_default();
                    let is_end = matches!(stage, Stage::Success | Stage::Error);
                    let duration = if is_end { Some(took()) } else { None };
                    let staged = Staged { run, placed, kind, name, stage, duration };
                    let is_json = printer.options.is_json;
                    printer.staged(&self.tree, &staged, || payload(event, stage, is_json), None, write);
                }
                None => {
                    let is_selected = self.is_selected(&recorded);
                    let creator = (recorded.kind(), recorded.name());
                    let further = Further { run, placed, kind, name, creator, event: event.name(), is_selected };
                    printer.further(&self.tree, &further, whole(event), write);
                }
            }
        }
        if recorded.stage == Some(Stage::Finish) {
            // `finish` is a run's last event: forget the run, so that memory does not grow with the recording.
            self.runs.remove(&run);
        }
        written
    }

    /// Remembers a run that starts.
    fn start(&mut self, run: Uuid, start: &RecordedEvent<'_>) {
        let parent = start.event.trace.and_then(|trace| trace.parent_run_id);
        let above = parent.and_then(|parent| Some((parent, self.runs.get(&parent)?)));
        let depth = above.map_or(0, |(_, above)| above.depth + 1);
        // Without a selected run, each run whose parent was not recorded begins a tree.
        let is_outermost = self.only.map_or(above.is_none(), |only| only == run);
        let tree = self.tree.get_mut();
        let parent = above.map(|(parent, _)| parent).filter(|parent| tree.has(*parent));
        let (kind, name) = (start.kind(), start.name());
        if is_outermost || parent.is_some() {
            let options = &self.printer.options;
            let parent = if is_outermost { None } else { parent };
            let is_shown = options.shows(start);
            tree.start(&Starting { run, parent, depth, is_shown, kind, name, folds: !options.is_every });
        }
        let started = start.event.created_at.into();
        self.runs.insert(run, RecordedRun { kind: kind.into(), name: name.into(), depth, started });
    }

    fn shows_further(&self, recorded: &RecordedEvent<'_>) -> bool {
        !recorded.is_own_event() && (self.is_selected(recorded) || notes::has_text(recorded.event.name()))
    }

    fn is_selected(&self, recorded: &RecordedEvent<'_>) -> bool {
        let matchers = &self.printer.options.events;
        matchers.iter().any(|matcher| matcher.matches_record(recorded.event) == Some(true))
    }
}

fn payload(event: &EventRecord, stage: Stage, is_json: bool) -> Payload {
    if stage == Stage::Success
        && !is_json
        && let Ok(RecordedSuccess { output }) = event.payload()
    {
        return Payload::Output(output);
    }
    Payload::Whole(whole(event))
}

/// Returns the whole payload. One from another recorder may be nested deeper than `serde_json` reads: it is text.
fn whole(event: &EventRecord) -> Value {
    event.payload().unwrap_or_else(|_| event.payload.get().into())
}
