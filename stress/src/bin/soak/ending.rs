//! The cause of the end of a run, derived from the recording and from the plan of its tree.

use std::collections::HashMap;
use std::ops::Range;

use emitree::Status;
use emitree::lifecycle::Stage;

use crate::check::Life;
use crate::listed::listed;
use crate::plan::{Holder, Stop, Then};
use crate::record::{Begun, Entry, Id};

listed! {
    /// The cause of an end. The strings are rows of the printed table.
    pub(crate) enum Ending {
        Succeeded = "success",
        Answered = "answered at the start",
        Failed = "failed in its work",
        FailedAtStart = "failed by a listener of `start`",
        FailedAtSuccess = "failed by a listener of `success`",
        Panicked = "panicked in its work",
        PanickedBadly = "panicked in its work, and its payload",
        PanickedAtStart = "panicked in a listener of `start`",
        PanickedAtSuccess = "panicked in a listener of `success`",
        Denied = "denied",
        Halted = "halted",
        Interrupted = "interrupted",
        AbortedBefore = "aborted before it began",
        AbortedBetween = "aborted by a listener of `start`",
        AbortedInWork = "aborted during its work",
        /// The abort comes before or after `start`, depending on the timing of the threads.
        AbortedUnseen = "aborted from a thread before its work",
        AbortedInWide = "by the abort of a wide tree from a thread",
        AbortedWithParent = "by the abort or timeout of its parent",
        LeftByParent = "by the end of its parent",
        PassedOn = "by an abort or timeout that it passes on",
        TimedOut = "timed out",
        Dropped = "its future dropped",
        RuntimeDropped = "its runtime dropped",
    }
}

impl Ending {
    /// Returns `true` if only a run with a parent can end in this way.
    pub(crate) const fn needs_parent(self) -> bool {
        matches!(self, Self::AbortedInWide | Self::AbortedWithParent | Self::LeftByParent)
    }
}

/// The parts of a node's plan that can explain its end.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Drawn {
    pub(crate) holder: Holder,
    pub(crate) stop: Option<Stop>,
    /// `true` if the payload of the run's panic panics when it is dropped.
    pub(crate) panics_badly: bool,
}

impl Drawn {
    /// Returns `true` if the holder of the run may drop it before it is over.
    const fn is_dropped(&self) -> bool {
        match self.holder {
            Holder::Awaited | Holder::Spawned { .. } | Holder::Task { then: Then::Awaited | Then::Detached } => false,
            Holder::Task { then: Then::AbortedAfter(_) }
            | Holder::Dropped { .. }
            | Holder::Thread { .. }
            | Holder::Kept { .. } => true,
        }
    }

    const fn has_token(&self) -> bool {
        matches!(self.stop, Some(Stop::Token | Stop::TokenBefore | Stop::TokenAmid { .. }))
    }

    const fn is_top_of_wide(&self) -> bool {
        matches!(self.stop, Some(Stop::ThreadAmid { .. } | Stop::TokenAmid { .. }))
    }
}

/// Returns the planned reason for an abort of this node. Runs below the node also end with this reason. A run above
/// ends with this reason if it passes the error on.
pub(crate) fn reason(node: u32) -> String {
    format!("{PLANNED}{node}")
}

const PLANNED: &str = "planned for node ";

fn planned_for(reason: &str) -> Option<u32> {
    reason.strip_prefix(PLANNED)?.parse().ok()
}

/// The recording of a tree, and its plan.
pub(crate) struct Reported<'a> {
    lives: &'a HashMap<Id, Life<'a>>,
    drawn: &'a [Drawn],
    /// The part of the recording during which the tree's runtime was dropped.
    dropped: Option<Range<usize>>,
}

impl<'a> Reported<'a> {
    pub(crate) fn new(log: &[Entry], lives: &'a HashMap<Id, Life<'a>>, drawn: &'a [Drawn]) -> Self {
        let goes = log.iter().position(|entry| matches!(entry, Entry::RuntimeGoes));
        let gone = log.iter().position(|entry| matches!(entry, Entry::RuntimeGone));
        Self { lives, drawn, dropped: goes.zip(gone).map(|(goes, gone)| goes..gone) }
    }

    /// Returns the ending of a run, or `None` if the recording is too damaged to determine it.
    pub(crate) fn ending(&self, life: &Life<'_>) -> Option<Ending> {
        let begun = life.begun?;
        let drawn = self.drawn_for(life)?;
        let raised = |status| life.raised(Stage::Start) == Some(status);
        Some(match life.status(Stage::Finish)? {
            Status::Success if begun.is_answered => Ending::Answered,
            Status::Success => Ending::Succeeded,
            Status::Failed if life.has_succeeded() => Ending::FailedAtSuccess,
            Status::Failed if raised(Status::Failed) => Ending::FailedAtStart,
            Status::Failed => Ending::Failed,
            Status::Panicked if life.has_succeeded() => Ending::PanickedAtSuccess,
            Status::Panicked if raised(Status::Panicked) => Ending::PanickedAtStart,
            Status::Panicked if drawn.panics_badly => Ending::PanickedBadly,
            Status::Panicked => Ending::Panicked,
            Status::Denied => Ending::Denied,
            Status::Halted => Ending::Halted,
            Status::Interrupted => Ending::Interrupted,
            Status::TimedOut if matches!(drawn.stop, Some(Stop::After(_))) => Ending::TimedOut,
            Status::TimedOut => Ending::PassedOn,
            Status::Dropped if self.is_dropped_by_runtime(life) => Ending::RuntimeDropped,
            Status::Dropped => Ending::Dropped,
            Status::Aborted => self.aborted(life, begun, drawn)?,
            _ => return None,
        })
    }

    fn aborted(&self, life: &Life<'_>, begun: &Begun, drawn: &Drawn) -> Option<Ending> {
        let reason = life.reason()?;
        if self.above(life).any(|above| self.drawn_for(above).is_some_and(Drawn::is_top_of_wide)) {
            return Some(Ending::AbortedInWide);
        }
        let fell = |is_it: &dyn Fn(&Life<'_>) -> bool| {
            if self.above(life).any(is_it) { Ending::AbortedWithParent } else { Ending::PassedOn }
        };
        Some(match planned_for(reason) {
            Some(node) if node == begun.node => self.aborted_itself(life, drawn)?,
            Some(node) => fell(&|above| above.begun.is_some_and(|begun| begun.node == node)),
            None if reason.contains("the cancellation token") && drawn.has_token() => {
                self.aborted_itself(life, drawn)?
            }
            None if reason.contains("the cancellation token") => {
                fell(&|above| self.drawn_for(above).is_some_and(Drawn::has_token))
            }
            None if reason.starts_with("the run above") => Ending::AbortedWithParent,
            None if reason.starts_with("the parent run has ended") => Ending::LeftByParent,
            None => Ending::PassedOn,
        })
    }

    fn aborted_itself(&self, life: &Life<'_>, drawn: &Drawn) -> Option<Ending> {
        Some(match drawn.stop? {
            Stop::Before | Stop::TokenBefore => Ending::AbortedBefore,
            Stop::AtStart => Ending::AbortedBetween,
            Stop::After(_) => return None,
            _ if life.has_worked => Ending::AbortedInWork,
            _ => Ending::AbortedUnseen,
        })
    }

    /// Returns `true` if the drop of the runtime ended the run: the run ended during this drop, and its holder and the
    /// holders of the dropped runs above it never drop their runs early.
    fn is_dropped_by_runtime(&self, life: &Life<'_>) -> bool {
        let is_within = |at| self.dropped.as_ref().is_some_and(|dropped| dropped.contains(&at));
        let is_dropped = |life: &Life<'_>| life.status(Stage::Finish) == Some(Status::Dropped);
        let is_held = |life: &Life<'_>| self.drawn_for(life).is_some_and(|drawn| !drawn.is_dropped());
        life.place_of(Stage::Error).is_some_and(is_within)
            && is_held(life)
            && self.above(life).take_while(|above| is_dropped(above)).all(is_held)
    }

    fn drawn_for(&self, life: &Life<'_>) -> Option<&'a Drawn> {
        self.drawn.get(life.begun?.node as usize)
    }

    /// Returns the runs above this run, the nearest first.
    pub(crate) fn above(&self, life: &Life<'_>) -> impl Iterator<Item = &'a Life<'a>> {
        let lives = self.lives;
        let next = |life: &Life<'_>| self.lives.get(&life.parent?);
        // A damaged recording may nest runs in a circle.
        std::iter::successors(next(life), move |life| lives.get(&life.parent?)).take(lives.len())
    }
}
