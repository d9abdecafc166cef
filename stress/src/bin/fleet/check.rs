//! The check at the end.

use std::collections::{BTreeMap, BTreeSet};

use crate::answers::{Decision, UNKNOWN};
use crate::effects::{Deed, Line};
use crate::jobs::{Done, Kind, Order, charged, noted};
use crate::parent::Notes;

/// The output of a job, or its error.
pub(crate) type Ended = Result<Done, String>;

/// How often a job that does not get on is run.
pub(crate) const ATTEMPTS: usize = 5;
/// The precision of the times of effects, in milliseconds.
const PRECISION: u64 = 10;
const GIVEN_UP: &str = "a person has given it up";

/// Returns what is wrong with jobs, their ends, and what was done for them. Without their ends, checks what was done.
pub(crate) fn check(jobs: &[Order], ends: &BTreeMap<String, Ended>, lines: &[Line], notes: &Notes) -> Vec<String> {
    let mut faults = Vec::new();
    let mut done: BTreeMap<_, Vec<_>> = BTreeMap::new();
    for line in lines {
        done.entry(&*line.job).or_default().push(line);
    }
    for job in jobs {
        let lines = done.remove(&*job.id).unwrap_or_default();
        let decision = notes.decisions.get(&job.id).cloned().unwrap_or_default();
        let approved_by = notes.approved.get(&job.id).cloned();
        let seen = Seen { job, lines: &lines, decision, approved_by, shut_down: &notes.shut_down };
        let is_stuck = notes.stuck.contains(&job.id);
        if is_stuck && job.kind != Kind::Poison {
            faults.push(format!("{} waits for a person, and does not abort its processes", job.id));
        }
        faults.extend(seen.doubled().into_iter().chain(seen.early()));
        if let Some(ended) = ends.get(&job.id) {
            faults.extend(seen.wrong_end(ended).into_iter().chain(seen.lost(ended)));
        }
        if job.id.starts_with("undisturbed") {
            faults.extend(seen.disturbed());
        }
    }
    faults.extend(done.keys().map(|id| format!("somebody has worked for `{id}`, which is no job")));
    faults
}

/// A job, and what was seen of it.
struct Seen<'a> {
    job: &'a Order,
    lines: &'a [&'a Line],
    decision: Decision,
    approved_by: Option<String>,
    /// The processes that were told to end.
    shut_down: &'a BTreeSet<u32>,
}

impl Seen<'_> {
    fn count(&self, deed: Deed) -> usize {
        self.lines.iter().filter(|line| line.deed == deed).count()
    }

    /// Returns what was done too often.
    fn doubled(&self) -> Option<String> {
        let id = &self.job.id;
        let charges = self.count(Deed::Charge);
        if charges > 1 {
            return Some(format!("the plain step of {id} had {charges} effects"));
        }
        // A process that is told to end gives the attempt back.
        let counts = |line: &&&Line| line.deed == Deed::Run && !self.shut_down.contains(&line.process);
        let runs = self.lines.iter().filter(counts).count();
        let is_too_often = self.job.kind == Kind::Poison && runs > ATTEMPTS;
        is_too_often.then(|| format!("{id} was run {runs} times, although it aborts its processes"))
    }

    /// Returns how a sleep was too short (F6). The effect of a step that a person has ended may have come later.
    fn early(&self) -> Option<String> {
        let at = |deed| self.lines.iter().find(|line| line.deed == deed).map(|line| line.at);
        let (charge, note) = (at(Deed::Charge)?, at(Deed::Note)?);
        let slept = note.saturating_sub(charge);
        let is_early = slept + PRECISION < self.job.sleep && self.decision.output.is_none();
        is_early.then(|| format!("{} has slept for {slept} ms instead of {}", self.job.id, self.job.sleep))
    }

    /// Returns how the end of the job is not as it has to be.
    fn wrong_end(&self, ended: &Ended) -> Option<String> {
        let id = &self.job.id;
        if self.job.kind == Kind::Poison {
            let is_right = ended.as_ref().is_err_and(|error| error.contains(GIVEN_UP));
            return (!is_right).then(|| format!("{id} aborts its processes, and has ended with {ended:?}"));
        }
        let charge = self.decision.output.clone().unwrap_or_else(|| charged(id));
        let expected = Done { charge, note: noted(id), approved_by: self.approved_by.clone() };
        let is_right = ended.as_ref() == Ok(&expected) && (self.job.kind == Kind::Asks) == self.approved_by.is_some();
        (!is_right).then(|| format!("{id} has ended with {ended:?} instead of {expected:?}"))
    }

    /// Returns the effect that is missing of a job that has ended.
    fn lost(&self, ended: &Ended) -> Option<String> {
        ended.as_ref().ok()?;
        let is_unknown = self.decision.output.as_deref() == Some(UNKNOWN);
        let is_lost = (self.count(Deed::Charge) == 0 && !is_unknown) || self.count(Deed::Note) == 0;
        is_lost.then(|| format!("an effect of {} is missing", self.job.id))
    }

    /// Returns how often a job was run while nothing disturbed its worker.
    fn disturbed(&self) -> Option<String> {
        let runs = self.count(Deed::Run);
        (runs != 1).then(|| format!("{} was run {runs} times, although its worker was not disturbed", self.job.id))
    }
}
