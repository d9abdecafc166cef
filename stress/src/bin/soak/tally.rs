//! Counts how often each case occurred.

use std::collections::HashMap;
use std::fmt;

use emitree::Status;
use emitree::lifecycle::Stage;

use crate::check::Life;
use crate::ending::{Drawn, Ending, Reported};
use crate::plan::{Binding, Manner, Place, STAGES, VERBS, Verb};
use crate::record::{Entry, Id};

/// The places where a run can be started.
const PLACES: [&str; 3] = ["top level", "nested", "spawned"];
const TOP: usize = 0;

/// Counts of the ends of runs, the failures of listeners, and the bindings.
#[derive(Clone, Debug, Default)]
pub(crate) struct Tally {
    endings: [[u64; PLACES.len()]; Ending::ALL.len()],
    /// Runs in which a listener failed: for each stage, first errors, then panics.
    failed: [[u64; PLACES.len()]; 2 * STAGES.len()],
    /// Failures of listeners, by stage: for each verb, first errors, then panics.
    raised: [[u64; 8]; 4],
    /// Bindings, by kind and by behavior.
    bound: [[u64; Manner::ALL.len()]; Place::ALL.len()],
    pub(crate) runs: u64,
    pub(crate) deepest: usize,
}

impl Tally {
    pub(crate) fn count(&mut self, log: &[Entry], lives: &HashMap<Id, Life<'_>>, drawn: &[Drawn]) {
        let reported = Reported::new(log, lives, drawn);
        for life in lives.values() {
            self.count_life(life, &reported);
            self.deepest = self.deepest.max(reported.above(life).count());
        }
        for entry in log {
            match entry {
                Entry::Raised { stage, verb, panics, .. } => {
                    self.raised[stage_index(*stage)][verb_index(*verb) * 2 + usize::from(*panics)] += 1;
                }
                Entry::Binds(Binding { place, manner }) => self.bound[*place as usize][*manner as usize] += 1,
                _ => {}
            }
        }
    }

    fn count_life(&mut self, life: &Life<'_>, reported: &Reported<'_>) {
        let Some(begun) = life.begun else { return };
        self.runs += 1;
        let place = match (life.parent, begun.is_spawned) {
            (None, _) => TOP,
            (Some(_), false) => 1,
            (Some(_), true) => 2,
        };
        if let Some(ending) = reported.ending(life) {
            self.endings[ending as usize][place] += 1;
        }
        for (index, stage) in STAGES.into_iter().enumerate() {
            if let Some(status) = life.raised(stage) {
                self.failed[2 * index + usize::from(status == Status::Panicked)][place] += 1;
            }
        }
    }

    /// Returns the rows of the table whose columns are places.
    fn lines(&self) -> impl Iterator<Item = (String, [Option<u64>; 3])> {
        let endings = Ending::ALL.iter().zip(&self.endings).map(|(ending, counts)| {
            let mut counts = counts.map(Some);
            counts[TOP] = counts[TOP].filter(|_| !ending.needs_parent());
            (ending.to_string(), counts)
        });
        let kinds = STAGES.into_iter().flat_map(|stage| ["failed", "panicked"].map(|how| (stage, how)));
        let failed = kinds
            .zip(&self.failed)
            .map(|((stage, how), counts)| (format!("a listener of `{}` {how}", stage.as_str()), counts.map(Some)));
        endings.chain(failed)
    }

    /// Returns the cases that occurred fewer than `least` times.
    pub(crate) fn below(&self, least: u64) -> Vec<String> {
        let places = self.lines().flat_map(|(row, counts)| {
            let cells = PLACES.into_iter().zip(counts);
            cells.filter_map(move |(place, count)| Some((row.clone(), place, count?)))
        });
        let raised = STAGES.into_iter().zip(&self.raised).flat_map(|(stage, counts)| {
            RAISED.into_iter().zip(counts).map(move |(verb, count)| (stage.as_str().to_owned(), verb, *count))
        });
        let bound = Place::ALL.iter().zip(&self.bound).flat_map(|(place, counts)| {
            let cells = Manner::ALL.iter().zip(counts);
            cells.map(move |(manner, count)| (format!("{place} is bound"), manner.as_str(), *count))
        });
        let rare = places.chain(raised).chain(bound).filter(|(.., count)| *count < least);
        rare.map(|(row, column, count)| format!("{row}, {column}: {count}")).collect()
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

fn stage_index(stage: Stage) -> usize {
    STAGES.iter().position(|each| *each == stage).unwrap_or_default()
}

fn verb_index(verb: Verb) -> usize {
    VERBS.iter().position(|each| *each == verb).unwrap_or_default()
}

impl fmt::Display for Tally {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "{:40}{:>11}{:>11}{:>11}", "how it ended", PLACES[0], PLACES[1], PLACES[2])?;
        for (row, counts) in self.lines() {
            let [top, nested, spawned] = counts.map(|count| count.map_or_else(|| "-".to_owned(), |n| n.to_string()));
            writeln!(f, "{row:40}{top:>11}{nested:>11}{spawned:>11}")?;
        }
        writeln!(f, "\n{:40}{:>11}{:>11}{:>11}{:>11}", "a listener failed", "start", "success", "error", "finish")?;
        for (column, raised) in RAISED.iter().enumerate() {
            write!(f, "{raised:40}")?;
            self.raised.iter().try_for_each(|counts| write!(f, "{:>11}", counts[column]))?;
            writeln!(f)?;
        }
        write!(f, "\n{:40}", "what was bound")?;
        Manner::ALL.iter().try_for_each(|manner| write!(f, "{manner:>11}"))?;
        for (place, counts) in Place::ALL.iter().zip(&self.bound) {
            write!(f, "\n{place:40}")?;
            counts.iter().try_for_each(|count| write!(f, "{count:>11}"))?;
        }
        writeln!(f)?;
        write!(f, "\nnested up to {} deep", self.deepest)
    }
}
