//! Damage done to a recording on its way to the checker, which has to find it.

use std::str::FromStr;

use emitree::{Stage, Status};

use crate::check::Rule;
use crate::record::{Entry, Event};

/// Which rule is broken, and how.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Damage {
    LostStart,
    NoEnd,
    LostFinish,
    DoubleStart,
    DoubleEnd,
    DoubleFinish,
    EndBeforeStart,
    FinishBeforeEnd,
    EarlyChild,
    LateChild,
    WrongOutcome,
    WrongParent,
    WrongRun,
    WrongResult,
}

impl Damage {
    pub(crate) const ALL: [Self; 14] = [
        Self::LostStart,
        Self::NoEnd,
        Self::LostFinish,
        Self::DoubleStart,
        Self::DoubleEnd,
        Self::DoubleFinish,
        Self::EndBeforeStart,
        Self::FinishBeforeEnd,
        Self::EarlyChild,
        Self::LateChild,
        Self::WrongOutcome,
        Self::WrongParent,
        Self::WrongRun,
        Self::WrongResult,
    ];

    pub(crate) const fn as_str(self) -> &'static str {
        match self {
            Self::LostStart => "lost-start",
            Self::NoEnd => "no-end",
            Self::LostFinish => "lost-finish",
            Self::DoubleStart => "double-start",
            Self::DoubleEnd => "double-end",
            Self::DoubleFinish => "double-finish",
            Self::EndBeforeStart => "end-before-start",
            Self::FinishBeforeEnd => "finish-before-end",
            Self::EarlyChild => "early-child",
            Self::LateChild => "late-child",
            Self::WrongOutcome => "wrong-outcome",
            Self::WrongParent => "wrong-parent",
            Self::WrongRun => "wrong-run",
            Self::WrongResult => "wrong-result",
        }
    }

    /// What the checker has to say, among other things.
    #[cfg_attr(not(test), expect(dead_code, reason = "the program's user sees it; the test asks"))]
    pub(crate) const fn breaks(self) -> Rule {
        match self {
            Self::LostStart | Self::EndBeforeStart => Rule::StartFirst,
            Self::NoEnd | Self::DoubleEnd => Rule::OneEnd,
            Self::LostFinish | Self::DoubleFinish => Rule::OneFinish,
            Self::DoubleStart => Rule::OneStart,
            Self::FinishBeforeEnd => Rule::FinishLast,
            Self::EarlyChild => Rule::ChildStartsWithin,
            Self::LateChild => Rule::ChildrenFirst,
            Self::WrongOutcome => Rule::OneOutcome,
            Self::WrongParent => Rule::OneParent,
            Self::WrongRun => Rule::CurrentRun,
            Self::WrongResult => Rule::Returned,
        }
    }

    /// Damages what is told of one run, if there is one that it can be done to.
    pub(crate) fn apply(self, log: &mut Vec<Entry>) -> Option<()> {
        let start = |event: &Event| event.stage == Stage::Start;
        let end = |event: &Event| matches!(event.stage, Stage::Success | Stage::Error);
        let finish = |event: &Event| event.stage == Stage::Finish;
        match self {
            Self::LostStart => drop(log.remove(find(log, start)?)),
            Self::NoEnd => drop(log.remove(find(log, end)?)),
            Self::LostFinish => drop(log.remove(find(log, finish)?)),
            Self::DoubleStart => double(log, find(log, start)?),
            Self::DoubleEnd => double(log, find(log, end)?),
            Self::DoubleFinish => double(log, find(log, finish)?),
            Self::EndBeforeStart => swap(log, start, end)?,
            Self::FinishBeforeEnd => swap(log, end, finish)?,
            Self::EarlyChild => {
                let at = find(log, |event| start(event) && event.parent.is_some())?;
                let entry = log.remove(at);
                log.insert(0, entry);
            }
            Self::LateChild => {
                let at = find(log, |event| finish(event) && event.parent.is_some())?;
                let entry = log.remove(at);
                log.push(entry);
            }
            Self::WrongOutcome => {
                let status = &mut event_mut(log, finish)?.status;
                *status = Some(if *status == Some(Status::Halted) { Status::Denied } else { Status::Halted });
            }
            Self::WrongParent => event_mut(log, finish)?.parent = Some(0),
            Self::WrongRun => {
                let run = event_mut(log, start)?.run;
                log.push(Entry::Astray { run });
            }
            Self::WrongResult => wrong_result(log)?,
        }
        Some(())
    }
}

impl FromStr for Damage {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let names = || Self::ALL.map(Self::as_str).join(", ");
        let damage = Self::ALL.into_iter().find(|damage| damage.as_str() == text);
        damage.ok_or_else(|| format!("`{text}` is none of {}", names()))
    }
}

/// Where the first such event is.
fn find(log: &[Entry], is_it: impl Fn(&Event) -> bool) -> Option<usize> {
    log.iter().position(|entry| matches!(entry, Entry::Event(event) if is_it(event)))
}

fn event_mut(log: &mut [Entry], is_it: impl Fn(&Event) -> bool) -> Option<&mut Event> {
    log.iter_mut().find_map(|entry| match entry {
        Entry::Event(event) if is_it(event) => Some(event),
        _ => None,
    })
}

fn double(log: &mut Vec<Entry>, at: usize) {
    log.insert(at, log[at].clone());
}

/// Swaps two events of the first run that has both.
fn swap(log: &mut [Entry], a: impl Fn(&Event) -> bool, b: impl Fn(&Event) -> bool) -> Option<()> {
    let first = find(log, a)?;
    let Entry::Event(Event { run, .. }) = log[first] else { return None };
    let second = find(log, |event| event.run == run && b(event))?;
    log.swap(first, second);
    Some(())
}

fn wrong_result(log: &mut [Entry]) -> Option<()> {
    let begun: Vec<_> = log
        .iter()
        .filter_map(|entry| match entry {
            Entry::Event(Event { begun: Some(begun), .. }) => Some(begun.node),
            _ => None,
        })
        .collect();
    log.iter_mut().find_map(|entry| match entry {
        Entry::Returned { node, status } if begun.contains(node) => {
            *status = if *status == Status::Halted { Status::Denied } else { Status::Halted };
            Some(())
        }
        _ => None,
    })
}
