//! The fold of heads to runs.

use std::collections::{BTreeMap, HashMap};
use std::time::{Duration, SystemTime};

use rust_decimal::Decimal;
use uuid::Uuid;

use super::{ErrorDetails, Fact, Head};

/// The runs of a recording, folded from the heads of its records. The cost of each head grows at most with the logarithm
/// of the number of runs.
///
/// A run whose `start` was not recorded is known from its first event. It has a kind and a name once a lifecycle event
/// was recorded, and no end unless one was recorded. Gaps and lines that are not records are counted.
#[derive(Clone, Debug, Default)]
pub struct Runs {
    /// The runs by number, in the order of their first events.
    runs: BTreeMap<usize, Run>,
    by_id: HashMap<Uuid, usize>,
    next: usize,
    lost: u64,
    malformed: u64,
}

/// A run, as its records describe it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Run {
    /// The id of the run.
    pub id: Uuid,
    /// The id that the outermost run and all runs below it share.
    pub trace: Option<Uuid>,
    /// The run in which this run was started. 8 zero bytes and the id of a span if a run without a parent continues the
    /// trace of another process.
    pub parent: Option<Uuid>,
    /// The kind, such as `Tool`; empty if no lifecycle event was recorded.
    pub kind: Box<str>,
    /// The name, such as `read_file`; empty if no lifecycle event was recorded.
    pub name: Box<str>,
    /// The time of `start`, or the time of `finish` minus the duration if that is earlier, or if `start` was not
    /// recorded.
    pub started: Option<SystemTime>,
    /// The time of `finish`.
    pub ended: Option<SystemTime>,
    /// The duration that `finish` reports.
    pub duration: Option<Duration>,
    /// The outcome, such as `success` or `denied`. `None` if the run is unfinished, or its outcome cannot be read.
    pub outcome: Option<Box<str>>,
    /// The message of the error.
    pub error: Option<Box<str>>,
    /// The kind of the error, and its causes.
    pub error_details: Option<ErrorDetails>,
    /// The number of attempts that were given up.
    pub discarded: u32,
    /// Tokens of the requests of this run, without the runs below.
    pub input_tokens: u64,
    /// Tokens of the answers of this run, without the runs below.
    pub output_tokens: u64,
    /// Tokens of the requests that providers read from their caches.
    pub cached_input_tokens: u64,
    /// Tokens of the answers that were spent on reasoning.
    pub reasoning_tokens: u64,
    /// The cost of the tokens of this run, if it is known.
    pub cost: Option<Decimal>,
    /// `true` if some of these numbers are estimates, because a provider reported none.
    pub is_estimated: bool,
    /// The number of events of any run that were lost between this run's first and last record.
    pub lost: u64,
}

impl Run {
    /// Returns `true` if no `finish` was recorded: the run is under way, or its program has crashed.
    #[must_use]
    pub const fn is_unfinished(&self) -> bool {
        self.ended.is_none()
    }
}

impl Runs {
    /// Adds the next head. Returns the run that it belongs to.
    pub fn add(&mut self, head: &Head) -> Option<&Run> {
        match head.fact {
            Fact::Gap { lost } => self.lost = self.lost.saturating_add(lost),
            Fact::Malformed { .. } => self.malformed += 1,
            _ => {}
        }
        let id = head.run?;
        let index = *self.by_id.entry(id).or_insert(self.next);
        let lost = self.lost;
        let run = self.runs.entry(index).or_insert_with(|| {
            self.next += 1;
            // Until `finish`, `lost` is the number of events that were lost before the run.
            Run { id, trace: head.trace, parent: head.parent, lost, ..Run::default() }
        });
        run.add(head, lost);
        Some(run)
    }

    /// Returns a run.
    #[must_use]
    pub fn get(&self, id: Uuid) -> Option<Run> {
        self.by_id.get(&id).and_then(|index| self.runs.get(index)).map(|run| self.counted(run.clone()))
    }

    /// Removes a run, for folds that never end. A later event of the run would begin it anew.
    pub fn remove(&mut self, id: Uuid) -> Option<Run> {
        let run = self.runs.remove(&self.by_id.remove(&id)?)?;
        Some(self.counted(run))
    }

    /// Returns the runs, in the order of their first records.
    pub fn iter(&self) -> impl Iterator<Item = Run> + '_ {
        self.runs.values().map(|run| self.counted(run.clone()))
    }

    /// Counts the events that were lost since an unfinished run began.
    const fn counted(&self, mut run: Run) -> Run {
        if run.is_unfinished() {
            run.lost = self.lost - run.lost;
        }
        run
    }

    /// Returns the number of events that were lost.
    #[must_use]
    pub const fn lost(&self) -> u64 {
        self.lost
    }

    /// Returns the number of lines that are not records.
    #[must_use]
    pub const fn malformed(&self) -> u64 {
        self.malformed
    }
}

impl Run {
    fn add(&mut self, head: &Head, lost: u64) {
        if matches!(head.fact, Fact::Start | Fact::Success | Fact::Error { .. } | Fact::Finish { .. }) {
            self.kind.clone_from(&head.kind);
            self.name.clone_from(&head.name);
        }
        match &head.fact {
            Fact::Start => self.started = self.started.or(head.time),
            Fact::Error { message, details } => {
                (self.error, self.error_details) = (Some(message.clone()), Some(details.clone()));
            }
            Fact::Finish { outcome, duration } if self.is_unfinished() => {
                (self.ended, self.duration) = (head.time, *duration);
                self.outcome.clone_from(outcome);
                // Whatever waits before the `start` of a run is part of its duration, so its record may be late.
                let began = head.time.zip(*duration).and_then(|(ended, duration)| ended.checked_sub(duration));
                if let Some(began) = began {
                    self.started = Some(self.started.map_or(began, |started| started.min(began)));
                }
                self.lost = lost - self.lost;
            }
            Fact::Discarded { .. } => self.discarded += 1,
            Fact::Usage { input_tokens, output_tokens, cached_input_tokens, reasoning_tokens, cost, is_estimated } => {
                self.is_estimated |= is_estimated;
                let add = |to: &mut u64, tokens: u64| *to = to.saturating_add(tokens);
                add(&mut self.input_tokens, *input_tokens);
                add(&mut self.output_tokens, *output_tokens);
                add(&mut self.cached_input_tokens, *cached_input_tokens);
                add(&mut self.reasoning_tokens, *reasoning_tokens);
                let sum = |cost: Decimal| self.cost.unwrap_or_default().checked_add(cost).unwrap_or(Decimal::MAX);
                self.cost = cost.map(sum).or(self.cost);
            }
            _ => {}
        }
    }
}
