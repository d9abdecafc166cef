//! The fold of heads to runs.

use std::collections::HashMap;
use std::time::{Duration, SystemTime};

use rust_decimal::Decimal;
use uuid::Uuid;

use super::{Fact, Head};

/// The runs of a recording, folded from the heads of its records. The cost of each head is constant.
///
/// A run whose `start` was not recorded is known from its first event. It has a kind and a name once a lifecycle event
/// was recorded.
#[derive(Clone, Debug, Default)]
pub struct Runs {
    /// The runs, in the order of their first events.
    runs: Vec<Run>,
    by_id: HashMap<Uuid, usize>,
    lost: u64,
    malformed: u64,
}

/// A run, as its records describe it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Run {
    /// The id of the run.
    pub id: Uuid,
    /// The run in which this run was started.
    pub parent: Option<Uuid>,
    /// The kind, such as `Tool`; empty if no lifecycle event was recorded.
    pub kind: Box<str>,
    /// The name, such as `read_file`; empty if no lifecycle event was recorded.
    pub name: Box<str>,
    /// The time of `start`. If it was not recorded, the time of `finish` minus the duration.
    pub started: Option<SystemTime>,
    /// The time of `finish`.
    pub ended: Option<SystemTime>,
    /// The duration that `finish` reports.
    pub duration: Option<Duration>,
    /// The outcome, such as `success` or `denied`. `None` if the run is unfinished, or its outcome cannot be read.
    pub outcome: Option<Box<str>>,
    /// The message of the error.
    pub error: Option<Box<str>>,
    /// The number of attempts that were given up.
    pub discarded: u32,
    /// Tokens of the requests of this run, without the runs below.
    pub input_tokens: u64,
    /// Tokens of the answers of this run, without the runs below.
    pub output_tokens: u64,
    /// The cost of the tokens of this run, if it is known.
    pub cost: Option<Decimal>,
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
        let lost = self.lost;
        let index = *self.by_id.entry(id).or_insert_with(|| {
            // Until `finish`, `lost` is the number of events that were lost before the run.
            self.runs.push(Run { id, parent: head.parent, lost, ..Run::default() });
            self.runs.len() - 1
        });
        self.runs[index].add(head, lost);
        Some(&self.runs[index])
    }

    /// Returns the runs, in the order of their first records.
    pub fn iter(&self) -> impl Iterator<Item = Run> + '_ {
        let lost = |run: &Run| if run.is_unfinished() { self.lost - run.lost } else { run.lost };
        self.runs.iter().map(move |run| Run { lost: lost(run), ..run.clone() })
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
            Fact::Start => self.started = head.time,
            Fact::Error { message } => self.error = Some(message.clone()),
            Fact::Finish { outcome, duration } if self.is_unfinished() => {
                (self.ended, self.duration) = (head.time, *duration);
                self.outcome.clone_from(outcome);
                let began = || head.time?.checked_sub((*duration)?);
                self.started = self.started.or_else(began);
                self.lost = lost - self.lost;
            }
            Fact::Discarded { .. } => self.discarded += 1,
            Fact::Usage { input_tokens, output_tokens, cost } => {
                self.input_tokens = self.input_tokens.saturating_add(*input_tokens);
                self.output_tokens = self.output_tokens.saturating_add(*output_tokens);
                let sum = |cost: Decimal| self.cost.unwrap_or_default().checked_add(cost).unwrap_or(Decimal::MAX);
                self.cost = cost.map(sum).or(self.cost);
            }
            _ => {}
        }
    }
}
