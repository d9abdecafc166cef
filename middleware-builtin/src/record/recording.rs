//! The journal of a run that is under way.

use std::sync::Arc;

use emitree_emitter::Creator;
use emitree_runtime::{AsInstance, Attempted, LifecycleRef, RunContext, RunEvent, Status};
use parking_lot::Mutex;
use rustc_hash::{FxHashMap, FxHashSet};
use serde_json::Value;

use super::{AttemptResult, Entry, RunJournal};
use crate::shared::own_events::kind_and_name;
use crate::shared::run_address::RunAddress;

/// The journal of a recorded run, while the run is under way and after the run has ended.
pub(super) struct Recording {
    /// The recorded run.
    run: RunAddress,
    state: Mutex<RecordingState>,
}

struct RecordingState {
    journal: RunJournal,
    /// The indices of the entries of runs that are under way.
    under_way: FxHashMap<RunAddress, usize>,
    /// The paths of the entries. Each path is stored once, and shared by the entries that have it.
    paths: FxHashSet<Arc<str>>,
    rounds: u32,
    ended: u64,
    finished: Option<Arc<RunJournal>>,
}

impl Recording {
    pub(super) fn of(ctx: &RunContext) -> Self {
        let (kind, name) = kind_and_name(ctx.creator());
        let journal = RunJournal::new(kind, name);
        let under_way = FxHashMap::default();
        let paths = FxHashSet::default();
        let state = RecordingState { journal, under_way, paths, rounds: 0, ended: 0, finished: None };
        Self { run: RunAddress::of(ctx), state: Mutex::new(state) }
    }

    /// Returns `true` for the recorded run, and `false` for runs below it.
    pub(super) fn is_of(&self, run: &RunContext) -> bool {
        self.run == RunAddress::of(run)
    }

    /// Ends the journal with the outcome of the recorded run, and returns the journal; `None` if it has already ended.
    pub(super) fn finish(&self, status: Status) -> Option<Arc<RunJournal>> {
        let mut state = self.state.lock();
        if state.finished.is_some() {
            return None;
        }
        let mut journal = std::mem::take(&mut state.journal);
        journal.status = Some(status);
        state.finished.insert(Arc::new(journal)).clone().into()
    }

    /// Returns the journal if the recorded run has ended.
    pub(super) fn finished(&self) -> Option<Arc<RunJournal>> {
        self.state.lock().finished.clone()
    }

    /// Records an event of a run below.
    pub(super) fn on_event(&self, event: &RunEvent<'_>) {
        let run = RunAddress::of(event.run());
        match event.lifecycle() {
            // Serialization is user code: call it without the lock.
            Some(LifecycleRef::Start(start)) => {
                let input = start.input_json();
                self.state.lock().begin(event.run(), input);
            }
            Some(LifecycleRef::Error(failure)) => {
                let report = Box::new(failure.error().report());
                self.state.lock().change(run, |entry| entry.error = Some(report));
            }
            Some(LifecycleRef::Finish(finish)) => self.state.lock().end(run, finish.status()),
            Some(LifecycleRef::Success(_)) | None => {}
            // There are no other stages.
            Some(_) => {}
        }
    }

    /// Records the result of an attempt of a run below, or counts an attempt of the recorded run.
    pub(super) fn attempted(&self, attempt: &Attempted<'_>) {
        if self.is_of(attempt.run()) {
            self.state.lock().rounds += 1;
        } else {
            let answer = AttemptResult::of(attempt.output_json());
            self.state.lock().change(RunAddress::of(attempt.run()), |entry| entry.answers.push(answer));
        }
    }
}

impl RecordingState {
    fn begin(&mut self, run: &RunContext, input: Value) {
        let index = self.journal.entries.len();
        // The parent is still under way: a run ends after the runs below it (R13). If the parent has no entry, it is
        // the recorded run.
        let above = run.parent().and_then(|above| self.under_way.get(&RunAddress::of(above)).copied());
        let path = self.shared_path(run.instance_emitter().namespace());
        let creator = run.creator().map(Creator::to_record);
        let (kind, name) = creator.map(|creator| (creator.kind, creator.name)).unwrap_or_default();
        self.journal.entries.push(Entry {
            id: index as u64 + 1,
            parent: above.map(|index| index as u64 + 1),
            round: self.rounds,
            kind,
            name,
            path,
            input,
            // Most runs have one attempt.
            answers: Vec::with_capacity(1),
            status: None,
            error: None,
            ended: None,
        });
        self.under_way.insert(RunAddress::of(run), index);
    }

    fn shared_path(&mut self, path: &str) -> Arc<str> {
        if let Some(path) = self.paths.get(path) {
            return Arc::clone(path);
        }
        let path: Arc<str> = path.into();
        self.paths.insert(Arc::clone(&path));
        path
    }

    /// Changes the entry of a run that is under way.
    fn change(&mut self, run: RunAddress, change: impl FnOnce(&mut Entry)) {
        let index = self.under_way.get(&run).copied();
        if let Some(entry) = index.and_then(|index| self.journal.entries.get_mut(index)) {
            change(entry);
        }
    }

    fn end(&mut self, run: RunAddress, status: Status) {
        let ended = self.ended + 1;
        self.change(run, |entry| (entry.status, entry.ended) = (Some(status), Some(ended)));
        if self.under_way.remove(&run).is_some() {
            self.ended = ended;
        }
    }
}
