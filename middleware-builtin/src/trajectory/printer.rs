//! The lines of a trajectory, which are the same for live and recorded events.

use std::fmt;
use std::hash::Hash;
use std::sync::Arc;
use std::time::Duration;

use emitree_emitter::{Emitter, FnMatcher, matcher_fn};
use emitree_runtime::Stage;
use parking_lot::Mutex;
use serde_json::Value;

use super::builder::TrajectoryOptions;
use super::line::{Line, LineEvent, LineParts, Payload};
use super::notes::{self, Note};
use super::output::Output;
use super::tree::{Fold, PlacedRun, RunNotes, Siblings, Tree};

/// The state that all runs with a trajectory share.
pub(super) struct TrajectoryPrinter {
    pub(super) options: TrajectoryOptions,
    pub(super) output: Output,
    /// The emitter of the trajectory's own events.
    pub(super) emitter: Emitter,
    /// The outermost runs that are under way.
    pub(super) outermost: Arc<Mutex<Siblings>>,
    /// Matches the events that may have notes.
    pub(super) notes: FnMatcher,
}

/// A lifecycle event of a run.
pub(super) struct Staged<'a, K> {
    pub(super) run: K,
    pub(super) placed: PlacedRun,
    pub(super) kind: &'a str,
    pub(super) name: &'a str,
    pub(super) stage: Stage,
    /// On success and error.
    pub(super) duration: Option<Duration>,
}

/// Another event of a run.
pub(super) struct Further<'a, K> {
    pub(super) run: K,
    pub(super) placed: PlacedRun,
    pub(super) kind: &'a str,
    pub(super) name: &'a str,
    /// The kind and the name of the event's creator.
    pub(super) creator: (&'a str, &'a str),
    pub(super) event: &'a str,
    /// `true` if the event was selected with [`events`](super::TrajectoryBuilder::events).
    pub(super) is_selected: bool,
}

/// A function that may change the message of a line before it is written.
pub(super) type Change<'a> = &'a dyn Fn(&Line<'_>, String) -> String;
/// A function that writes the message of a line.
pub(super) type Write<'a> = &'a mut dyn FnMut(&Line<'_>, &str);

impl TrajectoryPrinter {
    pub(super) fn new(options: TrajectoryOptions, output: Output, emitter: Emitter) -> Self {
        let notes = matcher_fn(|_| true).named(notes::NAMES);
        Self { options, output, emitter, outermost: Arc::default(), notes }
    }

    /// Prints a lifecycle event. Without a function that changes messages, payloads of lines that are not written are
    /// not read.
    pub(super) fn staged<K: Copy + Eq + Hash>(
        &self,
        tree: &Mutex<Tree<K>>,
        staged: &Staged<'_, K>,
        payload: impl FnOnce() -> Payload,
        change: Option<Change<'_>>,
        write: Write<'_>,
    ) {
        let Staged { run, ref placed, kind, name, stage, duration } = *staged;
        let options = &self.options;
        if stage != Stage::Start {
            // All runs below have ended, so that the counts of the folded ones are complete.
            let folded = tree.lock().take_folded(run);
            let below = placed.one_below();
            for folded in &folded {
                let event = LineEvent::Stage(Stage::Success);
                let parts = LineParts { run: &below, kind: &folded.kind, name: &folded.name, event, duration: None };
                let line = Line::new(parts, options);
                write(&line, &line.folded(folded));
            }
        }
        if stage == Stage::Success && matches!(placed.fold, Fold::Counted { .. }) {
            tree.lock().count(run, kind, name, duration.unwrap_or_default());
        }
        // The place is copied already: nothing is kept beyond `finish`, also for a run that is hidden.
        if stage == Stage::Finish {
            tree.lock().end(run);
        }
        if !placed.position.is_shown {
            return;
        }
        let parts = LineParts { run: placed, kind, name, event: LineEvent::Stage(stage), duration };
        if stage == Stage::Start && placed.fold == (Fold::Counted { is_first: true }) {
            let line = Line::new(LineParts { event: LineEvent::Note, ..parts }, options);
            write(&line, &line.note("from here on, successes are counted and shown at the end"));
        }
        let is_written = stage != Stage::Finish && (placed.fold == Fold::Open || stage == Stage::Error);
        // The input is kept even if it has no line, because an error repeats it.
        if !is_written && stage != Stage::Start && change.is_none() {
            return;
        }
        let line = Line::new(parts, options);
        let payload = payload();
        let mut input = String::new();
        if stage == Stage::Error {
            let mut tree = tree.lock();
            if let Some(notes) = tree.notes_mut(run) {
                input = std::mem::take(&mut notes.input);
            }
            // The agent above reports failed calls as well: remember that this one has a line.
            if let Payload::Whole(payload) = &payload
                && let Some(message) = payload.pointer("/error/message").and_then(Value::as_str)
                && let Some(above) = tree.above(run)
                && let Some(notes) = tree.notes_mut(above)
                && notes.has_begun
            {
                notes.failed.push((name.to_owned(), message.to_owned()));
            }
        }
        let mut message = line.message(payload, &input, options);
        if let Some(change) = change {
            message = change(&line, message);
        }
        if stage == Stage::Start {
            let input = line.short_value(&message);
            if let Some(notes) = tree.lock().notes_mut(run) {
                notes.input = input;
            }
        }
        if is_written {
            write(&line, &message);
        }
    }

    /// Prints an event that is not a lifecycle event, if it is selected or has a note.
    pub(super) fn further<K: Copy + Eq + Hash>(
        &self,
        tree: &Mutex<Tree<K>>,
        further: &Further<'_, K>,
        payload: Value,
        write: Write<'_>,
    ) {
        let Further { run, ref placed, kind, name, creator, event, is_selected } = *further;
        let options = &self.options;
        let by = if creator.0 == "Middleware" { creator.1 } else { creator.0 };
        let note = Note { by, name: event, payload: &payload };
        // Notes also keep count of what has happened, so they are told of events that have no line.
        let note = match tree.lock().notes_mut(run) {
            Some(notes) => note.text(notes),
            None => note.text(&mut RunNotes::default()),
        };
        if !placed.position.is_shown || placed.fold != Fold::Open {
            return;
        }
        let parts = LineParts { run: placed, kind, name, event: LineEvent::Note, duration: None };
        if is_selected {
            // The event may come from an emitter below the run's emitter, so the line names the event's creator.
            let parts = LineParts { kind: creator.0, name: creator.1, event: LineEvent::Further(event), ..parts };
            let line = Line::new(parts, options);
            write(&line, &line.message(Payload::Whole(payload), "", options));
        } else if let Some(text) = note {
            let line = Line::new(parts, options);
            write(&line, &line.note(&text));
        }
    }
}

/// Writes a description like `to stdout, without named think, pretty`.
impl fmt::Debug for TrajectoryPrinter {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "to {:?}{:?}", self.output, self.options)
    }
}
