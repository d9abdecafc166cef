//! Checks a recording against the rules.

use std::collections::HashMap;
use std::fmt;

use emitree::Status;
use emitree::lifecycle::Stage;

use crate::listed::listed;
use crate::record::{Begun, Entry, Event, Id};

listed! {
    /// The rules for every run in a recording, and for all runs together.
    pub(crate) enum Rule {
        StartFirst = "`start` comes first",
        OneStart = "one `start`",
        OneEnd = "exactly one of `success` and `error`",
        OneFinish = "exactly one `finish`",
        FinishLast = "`finish` comes last",
        ChildStartsWithin = "a child starts after its parent",
        ChildrenFirst = "a child finishes before its parent",
        OneOutcome = "`finish` agrees with `success` or `error`",
        /// R7.
        OneReason = "the reason of an abort reaches all runs below",
        OneParent = "all events name one parent",
        CurrentRun = "code inside of a run has it as the current run",
        Returned = "the caller receives the outcome of `finish`, after `finish`",
        /// R14.
        LetsGo = "nothing stays bound to a run that has ended",
        /// A run is freed when all its handles are dropped.
        Over = "all runs end and are freed",
        Ends = "`wait_for_ends` waits for all ends",
        /// A planned panic stays in its run, and no other code panics.
        Panic = "a panic stays in its run",
        Memory = "memory stays flat",
    }
}

/// The record of one run.
#[derive(Debug, Default)]
pub(crate) struct Life<'a> {
    pub(crate) begun: Option<&'a Begun>,
    pub(crate) parent: Option<Id>,
    pub(crate) has_worked: bool,
    /// The events in order, with their positions in the recording.
    events: Vec<(usize, &'a Event)>,
    /// The stage and the status of each failure of a listener that can make the run fail.
    raised: Vec<(Stage, Status)>,
}

impl Life<'_> {
    pub(crate) fn place_of(&self, stage: Stage) -> Option<usize> {
        self.events.iter().find(|(_, event)| event.stage == stage).map(|(at, _)| *at)
    }

    fn count(&self, is_counted: impl Fn(Stage) -> bool) -> usize {
        self.events.iter().filter(|(_, event)| is_counted(event.stage)).count()
    }

    pub(crate) fn status(&self, stage: Stage) -> Option<Status> {
        self.events.iter().find(|(_, event)| event.stage == stage).and_then(|(_, event)| event.status)
    }

    /// Returns the reason for the run's abort.
    pub(crate) fn reason(&self) -> Option<&str> {
        self.events.iter().find_map(|(_, event)| event.reason.as_deref())
    }

    /// Returns the status of the first failure of a listener at a stage.
    pub(crate) fn raised(&self, stage: Stage) -> Option<Status> {
        self.raised.iter().find(|(at, _)| *at == stage).map(|(_, status)| *status)
    }

    pub(crate) fn has_succeeded(&self) -> bool {
        self.place_of(Stage::Success).is_some()
    }

    /// R4.
    fn check_order(&self) -> impl Iterator<Item = Rule> {
        let starts_first = self.events.first().is_some_and(|(_, event)| event.stage == Stage::Start);
        let ends_last = self.events.last().is_some_and(|(_, event)| event.stage == Stage::Finish);
        let finishes = self.count(|stage| stage == Stage::Finish);
        [
            (Rule::StartFirst, starts_first),
            (Rule::OneStart, self.count(|stage| stage == Stage::Start) <= 1),
            (Rule::OneEnd, self.count(|stage| matches!(stage, Stage::Success | Stage::Error)) == 1),
            (Rule::OneFinish, finishes == 1),
            (Rule::FinishLast, finishes == 0 || ends_last),
        ]
        .into_iter()
        .filter_map(|(rule, holds)| (!holds).then_some(rule))
    }

    /// Returns `true` if `finish` agrees with the events before it. After `success`, only a listener of `success` can
    /// fail the run (R10).
    fn has_one_outcome(&self) -> bool {
        let Some(finish) = self.status(Stage::Finish) else { return true };
        match self.status(Stage::Error) {
            Some(error) => finish == error && finish != Status::Success,
            None => finish == self.raised(Stage::Success).unwrap_or(Status::Success),
        }
    }

    fn has_one_parent(&self) -> bool {
        self.events.iter().all(|(_, event)| event.parent == self.parent)
    }

    /// R13.
    fn check_within(&self, parent: &Life<'_>) -> impl Iterator<Item = Rule> {
        let starts_later = self.place_of(Stage::Start) > parent.place_of(Stage::Start);
        let finish = self.place_of(Stage::Finish);
        let finishes_earlier =
            parent.place_of(Stage::Finish).is_none_or(|parents| finish.is_some_and(|at| at < parents));
        [(Rule::ChildStartsWithin, starts_later), (Rule::ChildrenFirst, finishes_earlier)]
            .into_iter()
            .filter_map(|(rule, holds)| (!holds).then_some(rule))
    }
}

/// Displays a node and its events.
impl fmt::Display for Life<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "node {:?}:", self.begun.map(|begun| begun.node))?;
        self.events.iter().try_for_each(|(at, event)| {
            write!(f, " {at} {}", event.stage.as_str())?;
            event.status.map_or(Ok(()), |status| write!(f, " {}", status.as_str()))?;
            event.reason.as_ref().map_or(Ok(()), |reason| write!(f, " ({reason})"))
        })
    }
}

/// Returns the runs of a recording.
pub(crate) fn lives(log: &[Entry]) -> HashMap<Id, Life<'_>> {
    let mut lives = HashMap::<Id, Life<'_>>::new();
    for (at, entry) in log.iter().enumerate() {
        match entry {
            Entry::Event(event) => {
                let life = lives.entry(event.run).or_default();
                if life.events.is_empty() {
                    life.parent = event.parent;
                }
                life.begun = life.begun.or(event.begun.as_ref());
                life.events.push((at, event));
            }
            Entry::Works { run } => lives.entry(*run).or_default().has_worked = true,
            Entry::Raised { run, stage, verb, panics } if verb.may_fail() => {
                let status = if *panics { Status::Panicked } else { Status::Failed };
                lives.entry(*run).or_default().raised.push((*stage, status));
            }
            _ => {}
        }
    }
    lives
}

/// Returns the broken rules, each with the run that broke it.
pub(crate) fn check(log: &[Entry], lives: &HashMap<Id, Life<'_>>) -> Vec<(Rule, String)> {
    let lived = lives.iter().flat_map(|(run, life)| check_life(life, lives).map(|rule| (rule, *run)));
    let noted = log.iter().filter_map(|entry| match entry {
        Entry::Astray { run } => Some((Rule::CurrentRun, *run)),
        _ => None,
    });
    let of_runs = lived.chain(noted).map(|(rule, run)| (rule, describe(run, lives)));
    of_runs.chain(check_aborts(log, lives)).chain(check_calls(log, lives)).collect()
}

/// Checks trees whose top run was aborted by a thread: each run below must end with the same reason, unless it had
/// already ended (R7).
fn check_aborts(log: &[Entry], lives: &HashMap<Id, Life<'_>>) -> Vec<(Rule, String)> {
    let mut broken = Vec::new();
    for (at, entry) in log.iter().enumerate() {
        let Entry::Aborts { node } = entry else { continue };
        let aborted = |life: &Life<'_>| life.begun.is_some_and(|begun| begun.node == *node);
        let Some(top) = lives.values().find(|life| aborted(life)) else { continue };
        let is_below = |life: &Life<'_>| {
            let parent = |life: &Life<'_>| lives.get(&life.parent?);
            // A damaged recording may nest runs in a circle.
            std::iter::successors(parent(life), |life| parent(life)).take(lives.len()).any(aborted)
        };
        let fell = |life: &Life<'_>| {
            let had_ended = life.place_of(Stage::Finish).is_some_and(|finish| finish < at);
            had_ended || (life.status(Stage::Finish) == Some(Status::Aborted) && life.reason() == top.reason())
        };
        let missed = lives.iter().filter(|(_, life)| is_below(life) && !fell(life));
        broken.extend(missed.map(|(run, _)| (Rule::OneReason, describe(*run, lives))));
    }
    broken
}

fn check_life<'a>(life: &Life<'a>, lives: &HashMap<Id, Life<'a>>) -> impl Iterator<Item = Rule> {
    let mut broken: Vec<_> = life.check_order().collect();
    broken.extend((!life.has_one_outcome()).then_some(Rule::OneOutcome));
    broken.extend((!life.has_one_parent()).then_some(Rule::OneParent));
    match life.parent.map(|parent| lives.get(&parent)) {
        Some(Some(parent)) => broken.extend(life.check_within(parent)),
        Some(None) => broken.push(Rule::ChildStartsWithin),
        None => {}
    }
    broken.into_iter()
}

/// Checks the results that callers received (R10). Each node runs only once, so its number identifies the run.
fn check_calls(log: &[Entry], lives: &HashMap<Id, Life<'_>>) -> Vec<(Rule, String)> {
    let by_node: HashMap<_, _> = lives.values().filter_map(|life| Some((life.begun?.node, life))).collect();
    let broken = |(at, entry): (usize, &Entry)| match entry {
        Entry::Escaped { node } => Some((Rule::Panic, format!("node {node}"))),
        Entry::Returned { node, status } => {
            let life = by_node.get(node)?;
            let is_over = life.place_of(Stage::Finish).is_some_and(|finish| finish < at);
            let holds = is_over && life.status(Stage::Finish) == Some(*status);
            (!holds).then(|| (Rule::Returned, format!("{life}; {at} returned {}", status.as_str())))
        }
        _ => None,
    };
    log.iter().enumerate().filter_map(broken).collect()
}

fn describe(run: Id, lives: &HashMap<Id, Life<'_>>) -> String {
    let Some(life) = lives.get(&run) else { return "a run that is not known".to_owned() };
    let parent = life.parent.and_then(|parent| lives.get(&parent));
    parent.map_or_else(|| life.to_string(), |parent| format!("{life}; in {parent}"))
}
