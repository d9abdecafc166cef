//! Checks the lifecycle events of all runs while they arrive (R4, R13).

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};

use emitree::lifecycle::Stage;
use emitree::{AnyEvent, Emitter, Result, Subscription};

/// A run that has started and not finished.
struct Life {
    parent: Option<u128>,
    ends: u32,
    children: u32,
}

#[derive(Clone, Default)]
pub(crate) struct Lives(Arc<Mutex<Open>>);

#[derive(Default)]
struct Open {
    runs: HashMap<u128, Life>,
    started: u64,
    broken: Vec<String>,
}

impl Lives {
    /// Observes all runs below an emitter.
    pub(crate) fn observe(&self, root: &Emitter) -> Result<Subscription> {
        let lives = self.clone();
        let observer = move |_: &dyn AnyEvent, meta: &emitree::EventMeta<'_>| {
            if let (Some(stage), Some(trace)) = (Stage::of(meta), meta.trace()) {
                lives.take(stage, trace.run_id.as_u128(), trace.parent_run_id.map(|id| id.as_u128()));
            }
        };
        Ok(root.observe("*.*", observer)?)
    }

    pub(crate) fn take(&self, stage: Stage, run: u128, parent: Option<u128>) {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).take(stage, run, parent);
    }

    /// Returns the number of runs started so far, and the violations since the last call. No run may be under way.
    pub(crate) fn settle(&self) -> (u64, Vec<String>) {
        let mut open = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let mut broken = std::mem::take(&mut open.broken);
        broken.extend(open.runs.drain().map(|(run, _)| format!("run {run:x} has not finished")));
        (open.started, broken)
    }
}

impl Open {
    fn take(&mut self, stage: Stage, run: u128, parent: Option<u128>) {
        let broken = match (stage, self.runs.get_mut(&run)) {
            (Stage::Start, None) => self.start(run, parent),
            (Stage::Success | Stage::Error, Some(life)) => {
                life.ends += 1;
                None
            }
            (Stage::Finish, Some(_)) => self.finish(run),
            (Stage::Start, Some(_)) => Some("starts twice"),
            (_, None) => Some("ends without a start"),
        };
        self.broken.extend(broken.map(|what| format!("run {run:x} {what}")));
    }

    fn start(&mut self, run: u128, parent: Option<u128>) -> Option<&'static str> {
        self.started += 1;
        self.runs.insert(run, Life { parent, ends: 0, children: 0 });
        match parent.map(|parent| self.runs.get_mut(&parent)) {
            Some(Some(parent)) => {
                parent.children += 1;
                None
            }
            Some(None) => Some("starts outside the life of its parent"),
            None => None,
        }
    }

    fn finish(&mut self, run: u128) -> Option<&'static str> {
        let life = self.runs.remove(&run)?;
        if let Some(parent) = life.parent.and_then(|parent| self.runs.get_mut(&parent)) {
            parent.children -= 1;
        }
        match (life.ends, life.children) {
            (1, 0) => None,
            (1, _) => Some("finishes before a run below it"),
            _ => Some("does not have exactly one of `success` and `error`"),
        }
    }
}
