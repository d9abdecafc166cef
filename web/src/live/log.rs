//! The steps of a run, for readers that are at different places.
//!
//! 1. A piece of a text is appended to the piece before it. A reader remembers how much of it it has, so a slow reader
//!    gets many pieces as one.
//! 2. A log that is full is shortened: a reset with all parts takes the place of all steps that it repeats.
//! 3. Numbers of entries grow, and are not used again. A reader that needs an entry that is gone goes on with the reset.

use std::collections::VecDeque;

use crate::step::{Content, End, Part, Size, Step, bytes_of};

/// The place of a reader: an entry, and how much of it was read. For a text, these are bytes, and for any other step
/// events.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Position {
    pub(crate) entry: u64,
    pub(crate) within: usize,
}

/// The steps of a run.
#[derive(Debug, Default)]
pub(crate) struct Log {
    entries: VecDeque<(u64, Step)>,
    /// The number of the last entry.
    last: u64,
    /// The entries and the bytes since the last reset.
    added: Size,
    /// The number of the reset that has shortened the log.
    shortened: u64,
}

impl Log {
    pub(super) fn push(&mut self, step: Step) {
        let bytes = step.bytes();
        let last = self.entries.back_mut().map(|(_, last)| last);
        match joined(last, step) {
            None => self.added.bytes += bytes,
            Some(step) => {
                self.last += 1;
                self.added.add(bytes);
                self.entries.push_back((self.last, step));
            }
        }
    }

    pub(super) const fn is_full(&self) -> bool {
        self.added.is_full()
    }

    /// Replaces the steps that a reset repeats. Readers close what they have open themselves.
    pub(super) fn shorten(&mut self, reset: Step) {
        let Step::Reset { parts, .. } = &reset else { return };
        let shown = self.newest_shown();
        let all = self.entries.iter().filter(|(_, step)| matches!(step, Step::Shown { .. })).count();
        let mut older = all - shown.count;
        self.entries.retain(|(_, step)| match step {
            Step::Started | Step::Resumed(_) | Step::Began => true,
            Step::AgentStarted { .. } | Step::AgentEnded { .. } => true,
            Step::Returned { id, .. } => is_of_earlier_call(parts, id),
            // Snapshots of AG-UI have no events.
            Step::Shown { .. } if older > 0 => {
                older -= 1;
                false
            }
            Step::Shown { .. } => true,
            _ => false,
        });
        self.push(reset);
        (self.shortened, self.added) = (self.last, shown);
    }

    /// Returns the number and the size of the shown events that stay: the newest one at least.
    fn newest_shown(&self) -> Size {
        let mut size = Size::default();
        for (_, step) in self.entries.iter().rev() {
            if let Step::Shown { value, .. } = step {
                let mut with = size;
                with.add(bytes_of(value));
                if size.count > 0 && with.is_half() {
                    break;
                }
                size = with;
            }
        }
        size
    }

    /// Returns the end of the run.
    pub(super) fn end(&self) -> Option<&End> {
        match self.entries.back() {
            Some((_, Step::Ended(end))) => Some(end),
            _ => None,
        }
    }

    /// Returns the position that a page names, or the beginning if steps behind it are gone.
    pub(super) fn position(&self, named: Position) -> Position {
        if named.entry < self.shortened || named.entry > self.last { Position::default() } else { named }
    }

    /// Returns the steps before a position.
    pub(super) fn before(&self, at: Position) -> Vec<Step> {
        let begun = |step: &Step| begin_of(step, at.within);
        let read = self.entries.iter().take_while(|(number, _)| *number <= at.entry);
        read.filter_map(|(number, step)| if *number < at.entry { Some(step.clone()) } else { begun(step) }).collect()
    }

    /// Returns the next step behind a position, and its entry. A text is returned from the position on.
    pub(super) fn after(&self, at: Position) -> Option<(u64, Step)> {
        let first = self.entries.partition_point(|(number, _)| *number < at.entry);
        let mut entries = self.entries.iter().skip(first);
        let (number, step) = entries.next()?;
        if *number != at.entry {
            return Some((*number, step.clone()));
        }
        match rest_of(step, at.within) {
            Rest::Text(step) => Some((*number, step)),
            Rest::Events => Some((*number, step.clone())),
            Rest::Nothing => entries.next().map(|(number, step)| (*number, step.clone())),
        }
    }
}

/// The rest of an entry that a reader has begun.
enum Rest {
    Text(Step),
    /// The reader knows how many events are left.
    Events,
    Nothing,
}

fn rest_of(step: &Step, within: usize) -> Rest {
    let Some(text) = step.text() else { return Rest::Events };
    match text.get(within..).filter(|rest| !rest.is_empty()) {
        Some(rest) => Rest::Text(step.with_text(rest)),
        None => Rest::Nothing,
    }
}

/// Returns the beginning of a text. Any other step is read as a whole.
fn begin_of(step: &Step, within: usize) -> Option<Step> {
    step.text().and_then(|text| text.get(..within)).map(|text| step.with_text(text))
}

/// Returns `true` if the parts have the result of a call that an earlier run has made. A reset does not repeat it for
/// the AI SDK, whose steps of earlier runs hold.
fn is_of_earlier_call(parts: &[Part], call: &str) -> bool {
    parts.iter().any(|part| *part.id == *call && matches!(part.content, Content::Result(_)))
}

/// Appends a piece of a text to the last piece. Returns a step that is none.
fn joined(last: Option<&mut Step>, step: Step) -> Option<Step> {
    match (last, &step) {
        (Some(Step::Delta { id: known, text: so_far, .. }), Step::Delta { id, text, .. })
        | (Some(Step::CallDelta { id: known, text: so_far, .. }), Step::CallDelta { id, text, .. })
            if known == id =>
        {
            so_far.push_str(text);
            None
        }
        _ => Some(step),
    }
}

impl Step {
    fn bytes(&self) -> usize {
        match self {
            Self::Delta { text, .. } | Self::CallDelta { text, .. } => text.len(),
            Self::CallClosed { input: value, .. } | Self::Shown { value, .. } => bytes_of(value),
            Self::Returned { result, .. } => result.bytes(),
            Self::Reset { parts, .. } => parts.iter().map(Part::bytes).sum(),
            _ => 0,
        }
    }

    fn text(&self) -> Option<&str> {
        match self {
            Self::Delta { text, .. } | Self::CallDelta { text, .. } => Some(text),
            _ => None,
        }
    }

    /// Returns a piece of a text with another text.
    fn with_text(&self, text: &str) -> Self {
        let text = text.to_owned();
        match self {
            Self::Delta { id, kind, owner, .. } => {
                Self::Delta { id: id.clone(), kind: *kind, owner: owner.clone(), text }
            }
            Self::CallDelta { id, owner, .. } => Self::CallDelta { id: id.clone(), owner: owner.clone(), text },
            other => other.clone(),
        }
    }
}
