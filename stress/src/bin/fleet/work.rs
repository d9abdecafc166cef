//! The jobs and the sessions of a test.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use emitree::agent::History;
use tokio::task::JoinSet;
use tokio::time::sleep;

use crate::Options;
use crate::check::{Ended, check};
use crate::effects::Line;
use crate::histories::Histories;
use crate::jobs::{Kind, Order, orders};
use crate::parent::{Notes, Parent};
use crate::sessions::{JOBS, Talk, talks};

pub(crate) struct Work {
    pub(crate) jobs: Vec<Order>,
    pub(crate) talks: Vec<Talk>,
}

/// The ends of jobs, and the histories of sessions.
#[derive(Default)]
pub(crate) struct Outcome {
    pub(crate) ends: BTreeMap<String, Ended>,
    pub(crate) histories: Vec<History>,
}

impl Work {
    pub(crate) fn new(options: &Options, random: &mut fastrand::Rng) -> Self {
        Self { jobs: orders(options.jobs, random), talks: talks(options.jobs, random) }
    }

    /// Returns jobs whose steps take longer than a lease, and sessions, for workers that nothing disturbs.
    pub(crate) fn undisturbed(options: &Options, random: &mut fastrand::Rng) -> Self {
        let note = options.lease.as_millis() as u64 * 3 / 2;
        let order = |n| Order { id: format!("undisturbed-{n}"), kind: Kind::Plain, sleep: 50, note };
        let talk = |n| Talk::new(format!("undisturbed-session-{n}"), random);
        Self {
            jobs: (0..options.workers * 2).map(order).collect(),
            talks: (0..options.workers.div_ceil(2)).map(talk).collect(),
        }
    }

    pub(crate) fn ids(&self) -> BTreeSet<String> {
        let jobs = self.jobs.iter().map(|job| &job.id);
        jobs.chain(self.talks.iter().map(|talk| &talk.id)).cloned().collect()
    }

    /// Submits each job and the messages of each session, after a pause that depends on the number of jobs before.
    pub(crate) fn submit(
        &self,
        parent: &Arc<Parent>,
        submitting: &mut JoinSet<()>,
        mut pause: impl FnMut(usize) -> Duration,
    ) {
        for (n, job) in self.jobs.iter().enumerate() {
            let parent = Arc::clone(parent);
            let job = job.clone();
            let pause = pause(n);
            submitting.spawn(async move {
                sleep(pause).await;
                parent.submit(job).await;
            });
        }
        for (n, talk) in self.talks.iter().enumerate() {
            let parent = Arc::clone(parent);
            let talk = talk.clone();
            let pause = pause(n * JOBS);
            submitting.spawn(async move {
                sleep(pause).await;
                parent.talk(talk).await;
            });
        }
    }

    pub(crate) fn extend(&mut self, other: Self) {
        self.jobs.extend(other.jobs);
        self.talks.extend(other.talks);
    }

    /// Adds to the notes what is wrong with an outcome, and with the effects.
    pub(crate) fn check(&self, outcome: &Outcome, lines: Vec<Line>, notes: &mut Notes) {
        let letters: BTreeSet<_> = self.talks.iter().flat_map(Talk::letters).map(|letter| &letter.text).collect();
        let (of_talks, of_jobs): (Vec<_>, Vec<_>) = lines.into_iter().partition(|line| letters.contains(&line.job));
        let mut faults = check(&self.jobs, &outcome.ends, &of_jobs, notes);
        let mut histories = Histories { lines: &of_talks, notes, results: Vec::new() };
        faults.extend(self.talks.iter().flat_map(|talk| histories.check_effects(talk)));
        for (talk, history) in self.talks.iter().zip(&outcome.histories) {
            faults.extend(histories.check(talk, history));
        }
        notes.results = histories.results;
        notes.faults.append(&mut faults);
    }
}
