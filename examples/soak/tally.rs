//! How often what has occurred.

use std::collections::HashMap;
use std::fmt;

use emitree::{Stage, Status};

use crate::check::Life;
use crate::plan::{STAGES, VERBS, Verb};
use crate::record::{Entry, Id};

/// Where a run was started.
const PLACES: [&str; 3] = ["top level", "nested", "spawned"];

/// How runs end.
const OUTCOMES: [&str; 11] = [
    "success",
    "success, answered early",
    "failed",
    "panicked",
    "denied",
    "halted",
    "interrupted",
    "aborted",
    "timed out",
    "dropped",
    "failed or panicked after success",
];

/// Counts outcomes by place, and failures of listeners.
#[derive(Clone, Debug, Default)]
pub(crate) struct Tally {
    outcomes: [[u64; 3]; OUTCOMES.len()],
    /// By stage, and by verb: errors, then panics.
    raised: [[u64; 8]; 4],
    pub(crate) runs: u64,
    pub(crate) deepest: usize,
}

impl Tally {
    pub(crate) fn count(&mut self, log: &[Entry], lives: &HashMap<Id, Life<'_>>) {
        for life in lives.values() {
            self.count_life(life);
            self.deepest = self.deepest.max(depth(life, lives));
        }
        for entry in log {
            if let Entry::Raised { stage, verb, panics, .. } = entry {
                self.raised[stage_index(*stage)][verb_index(*verb) * 2 + usize::from(*panics)] += 1;
            }
        }
    }

    fn count_life(&mut self, life: &Life<'_>) {
        let Some(begun) = life.begun else { return };
        self.runs += 1;
        let place = match (life.parent, begun.is_spawned) {
            (None, _) => 0,
            (Some(_), false) => 1,
            (Some(_), true) => 2,
        };
        let Some(status) = life.status(Stage::Finish) else { return };
        if let Some(outcome) = outcome(status, begun.is_answered) {
            self.outcomes[outcome][place] += 1;
        }
        if life.has_succeeded() && status != Status::Success {
            self.outcomes[OUTCOMES.len() - 1][place] += 1;
        }
    }

    /// What occurred less often.
    pub(crate) fn below(&self, least: u64) -> Vec<String> {
        let cells = |row: &str, column: &str, count: u64| (count < least).then(|| format!("{row}, {column}: {count}"));
        let outcomes = OUTCOMES.iter().zip(&self.outcomes);
        let outcomes =
            outcomes.flat_map(|(row, counts)| PLACES.iter().zip(counts).map(move |cell| (*row, *cell.0, *cell.1)));
        let raised = STAGES.iter().zip(&self.raised);
        let raised = raised
            .flat_map(|(row, counts)| RAISED.iter().zip(counts).map(move |cell| (row.as_str(), *cell.0, *cell.1)));
        outcomes.chain(raised).filter_map(|(row, column, count)| cells(row, column, count)).collect()
    }
}

const RAISED: [&str; 8] = [
    "on",
    "on, panic",
    "on_async",
    "on_async, panic",
    "observe",
    "observe, panic",
    "observe_async",
    "observe_async, panic",
];

fn depth(life: &Life<'_>, lives: &HashMap<Id, Life<'_>>) -> usize {
    // A damaged recording may say that runs are nested in a circle.
    std::iter::successors(life.parent, |parent| lives.get(parent)?.parent).take(lives.len()).count()
}

fn outcome(status: Status, is_answered: bool) -> Option<usize> {
    Some(match status {
        Status::Success => usize::from(is_answered),
        Status::Failed => 2,
        Status::Panicked => 3,
        Status::Denied => 4,
        Status::Halted => 5,
        Status::Interrupted => 6,
        Status::Aborted => 7,
        Status::TimedOut => 8,
        Status::Dropped => 9,
        _ => return None,
    })
}

fn stage_index(stage: Stage) -> usize {
    STAGES.iter().position(|each| *each == stage).unwrap_or_default()
}

fn verb_index(verb: Verb) -> usize {
    VERBS.iter().position(|each| *each == verb).unwrap_or_default()
}

impl fmt::Display for Tally {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "{:34}{:>11}{:>11}{:>11}", "outcome", PLACES[0], PLACES[1], PLACES[2])?;
        for (outcome, [top, nested, spawned]) in OUTCOMES.iter().zip(&self.outcomes) {
            writeln!(f, "{outcome:34}{top:>11}{nested:>11}{spawned:>11}")?;
        }
        writeln!(f, "\n{:34}{:>11}{:>11}{:>11}{:>11}", "a listener failed", "start", "success", "error", "finish")?;
        for (column, raised) in RAISED.iter().enumerate() {
            write!(f, "{raised:34}")?;
            self.raised.iter().try_for_each(|counts| write!(f, "{:>11}", counts[column]))?;
            writeln!(f)?;
        }
        write!(f, "\nnested up to {} deep", self.deepest)
    }
}
