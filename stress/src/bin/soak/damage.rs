//! Damage that the checker has to find: changes to a recording before the check, values that are kept although they
//! must be dropped, and a run that never ends.

use std::any::Any;
use std::future::pending;
use std::str::FromStr;
use std::sync::Arc;

use emitree::lifecycle::Stage;
use emitree::{AnyEvent, Options, Result, RunContext, Runnable, Status, runnable_fn};

use crate::check::Rule;
use crate::hold::poll_idly;
use crate::listed::listed;
use crate::record::{Entry, Event};
use crate::tree::{Shared, Tree};

listed! {
    /// A kind of damage.
    pub(crate) enum Damage {
        LostStart = "lost-start",
        NoEnd = "no-end",
        LostFinish = "lost-finish",
        DoubleStart = "double-start",
        DoubleEnd = "double-end",
        DoubleFinish = "double-finish",
        EndBeforeStart = "end-before-start",
        FinishBeforeEnd = "finish-before-end",
        EarlyChild = "early-child",
        LateChild = "late-child",
        WrongOutcome = "wrong-outcome",
        WrongReason = "wrong-reason",
        WrongParent = "wrong-parent",
        WrongRun = "wrong-run",
        WrongResult = "wrong-result",
        EscapedPanic = "escaped-panic",
        KeptBinding = "kept-binding",
        KeptRun = "kept-run",
        UnreportedEnd = "unreported-end",
        KeptMemory = "kept-memory",
    }
}

impl Damage {
    /// Returns the kinds of damage that break a rule.
    pub(crate) fn of(rule: Rule) -> impl Iterator<Item = Self> {
        Self::ALL.iter().copied().filter(move |damage| damage.breaks() == rule)
    }

    /// Returns the rule that the checker must report, possibly among others.
    const fn breaks(self) -> Rule {
        match self {
            Self::LostStart | Self::EndBeforeStart => Rule::StartFirst,
            Self::NoEnd | Self::DoubleEnd => Rule::OneEnd,
            Self::LostFinish | Self::DoubleFinish => Rule::OneFinish,
            Self::DoubleStart => Rule::OneStart,
            Self::FinishBeforeEnd => Rule::FinishLast,
            Self::EarlyChild => Rule::ChildStartsWithin,
            Self::LateChild => Rule::ChildrenFirst,
            Self::WrongOutcome => Rule::OneOutcome,
            Self::WrongReason => Rule::OneReason,
            Self::WrongParent => Rule::OneParent,
            Self::WrongRun => Rule::CurrentRun,
            Self::WrongResult => Rule::Returned,
            Self::EscapedPanic => Rule::Panic,
            Self::KeptBinding => Rule::LetsGo,
            Self::KeptRun => Rule::Over,
            Self::UnreportedEnd => Rule::Ends,
            Self::KeptMemory => Rule::Memory,
        }
    }

    /// Returns `true` if the damage keeps a batch from ending. The soak does not wait long for such a batch.
    pub(crate) const fn is_endless(self) -> bool {
        matches!(self, Self::KeptBinding | Self::KeptRun | Self::UnreportedEnd)
    }

    /// Applies the damage if it keeps a batch from ending. If a value is returned, the batch cannot end before the
    /// value is dropped.
    pub(crate) fn hold_up(self, tree: &Tree) -> Option<Arc<dyn Any>> {
        match self {
            Self::KeptBinding => Some(Arc::<()>::clone(&tree.shared.bound)),
            Self::KeptRun => Some(Arc::<Shared>::clone(&tree.shared)),
            Self::UnreportedEnd => {
                drop_unreported();
                None
            }
            _ => None,
        }
    }

    /// Damages the record of the first run that fits. Returns `None` if no run fits.
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
            Self::WrongReason => {
                let at = log.iter().position(|entry| matches!(entry, Entry::Aborts { .. }))?;
                event_mut(&mut log[at..], |event| event.reason.is_some() && event.parent.is_some())?.reason = None;
            }
            Self::WrongParent => event_mut(log, finish)?.parent = Some(0),
            Self::WrongRun => {
                let run = event_mut(log, start)?.run;
                log.push(Entry::Astray { run });
            }
            Self::WrongResult => wrong_result(log)?,
            Self::EscapedPanic => {
                let node = event_mut(log, start)?.begun.as_ref()?.node;
                log.push(Entry::Escaped { node });
            }
            Self::KeptBinding | Self::KeptRun | Self::UnreportedEnd | Self::KeptMemory => return None,
        }
        Some(())
    }
}

impl FromStr for Damage {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let names = || Self::ALL.iter().map(|damage| damage.as_str()).collect::<Vec<_>>().join(", ");
        let damage = Self::ALL.iter().find(|damage| damage.as_str() == text);
        damage.copied().ok_or_else(|| format!("`{text}` is none of {}", names()))
    }
}

/// Drops a run whose end waits forever for a listener.
fn drop_unreported() {
    let endless = Arc::new(runnable_fn("endless", |(): (), _: RunContext| pending::<Result<()>>()));
    let deaf = Options::new().observe_async(Stage::Finish, |_: &dyn AnyEvent, _| Box::pin(pending()));
    let run = endless.run_shared(()).register(deaf);
    poll_idly(Box::pin(async { drop(run.await) }), 1);
}

/// Returns the position of the first event for which `is_it` returns `true`.
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

/// Swaps two events of the first run that has event `a`. Returns `None` if no run has event `a`, or if that run lacks
/// event `b`.
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
