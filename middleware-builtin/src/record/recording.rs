//! The journal of a run that is under way.

use std::collections::HashMap;
use std::fmt;
use std::sync::{Arc, OnceLock};

use emitree_emitter::{AnyEvent, Options};
use emitree_runtime::{
    AnyRun, Layer, LifecycleRef, Middleware, Next, Op, Phase, Result, RunContext, Stack, Stage, Status, Summary,
};
use parking_lot::Mutex;
use serde_json::Value;
use uuid::Uuid;

use super::{Answer, Entry, Journal};
use crate::voice::called;

/// What is known of a run so far, and of those below it.
pub(super) struct Recording(Mutex<State>);

struct State {
    journal: Arc<Journal>,
    /// Which entry a run is.
    ids: HashMap<Uuid, u64>,
    rounds: u32,
    ended: u64,
    is_finished: bool,
}

impl Recording {
    pub(super) fn of(ctx: &RunContext) -> Self {
        let (kind, name) = called(ctx);
        Self::new(Journal::new(kind, name))
    }

    fn new(journal: Journal) -> Self {
        let state = State { journal: Arc::new(journal), ids: HashMap::new(), rounds: 0, ended: 0, is_finished: false };
        Self(Mutex::new(state))
    }

    /// The run itself has ended: what it comes to.
    pub(super) fn finish(&self, status: Status) -> Arc<Journal> {
        let mut state = self.0.lock();
        state.is_finished = true;
        state.change(|journal| journal.status = Some(status));
        Arc::clone(&state.journal)
    }

    /// What it came to, if the run has ended.
    pub(super) fn finished(&self) -> Option<Arc<Journal>> {
        let state = self.0.lock();
        state.is_finished.then(|| Arc::clone(&state.journal))
    }

    /// A run below has begun: its entry.
    fn begin(&self, run: &Below, input: Value) -> u64 {
        let mut state = self.0.lock();
        let id = state.journal.entries.len() as u64 + 1;
        let parent = run.parent.and_then(|parent| state.ids.get(&parent).copied());
        state.ids.insert(run.run_id, id);
        let (round, path) = (state.rounds, run.path.clone());
        let (kind, name) = (run.kind.clone(), run.name.clone());
        let (answers, status, error, ended) = (Vec::new(), None, None, None);
        let entry = Entry { id, parent, round, kind, name, path, input, answers, status, error, ended };
        state.change(|journal| journal.entries.push(entry));
        id
    }

    fn change(&self, id: u64, change: impl FnOnce(&mut Entry)) {
        let index = usize::try_from(id - 1).unwrap_or(usize::MAX);
        self.0.lock().change(|journal| {
            if let Some(entry) = journal.entries.get_mut(index) {
                change(entry);
            }
        });
    }

    fn end(&self, id: u64, status: Status) {
        let ended = {
            let mut state = self.0.lock();
            state.ended += 1;
            state.ended
        };
        self.change(id, |entry| (entry.status, entry.ended) = (Some(status), Some(ended)));
    }
}

impl State {
    /// Nobody else has the journal before it is finished.
    fn change(&mut self, change: impl FnOnce(&mut Journal)) {
        change(Arc::make_mut(&mut self.journal));
    }
}

impl Default for Recording {
    fn default() -> Self {
        Self::new(Journal::new(String::new(), String::new()))
    }
}

/// Counts the attempts of the run itself.
pub(super) struct Rounds(pub(super) Arc<Recording>);

impl<O: Op> Layer<O> for Rounds {
    async fn call(&self, input: &O::In, _: &RunContext, next: Next<'_, O>) -> Result<O::Out> {
        let result = next.run(input).await;
        self.0.0.lock().rounds += 1;
        result
    }

    fn name(&self) -> &str {
        "record"
    }

    fn debug_summary(&self) -> Summary {
        "attempts".into()
    }
}

impl fmt::Debug for Rounds {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Rounds")
    }
}

/// What is bound to the runs below.
pub(super) struct Nested(Arc<Recording>);

impl Nested {
    pub(super) fn new(recording: &Arc<Recording>) -> Self {
        Self(Arc::clone(recording))
    }
}

impl Middleware for Nested {
    fn bind(&self, ctx: &RunContext) -> Result<()> {
        let below = Arc::new(Below::of(ctx, &self.0));
        let stack = Stack::<AnyRun>::builder().layer_in(Phase::Observe, Answers(Arc::clone(&below))).build();
        stack.bind(ctx)?;
        let first = Options::new().priority(i32::MAX);
        for stage in [Stage::Start, Stage::Error, Stage::Finish] {
            let below = Arc::clone(&below);
            ctx.emitter().with(first).observe(stage, move |event: &dyn AnyEvent, meta| {
                LifecycleRef::of(event, meta).into_iter().for_each(|event| below.hear(&event));
            })?;
        }
        Ok(())
    }

    fn name(&self) -> &str {
        "record"
    }
}

/// A run below.
struct Below {
    recording: Arc<Recording>,
    run_id: Uuid,
    parent: Option<Uuid>,
    kind: String,
    name: String,
    path: String,
    /// Once it has begun.
    id: OnceLock<u64>,
}

impl Below {
    fn of(ctx: &RunContext, recording: &Arc<Recording>) -> Self {
        let ((kind, name), trace) = (called(ctx), ctx.trace());
        let (recording, path) = (Arc::clone(recording), ctx.emitter().namespace().to_owned());
        Self { recording, run_id: trace.run_id, parent: trace.parent_run_id, kind, name, path, id: OnceLock::new() }
    }

    fn hear(&self, event: &LifecycleRef<'_>) {
        match (event, self.id.get()) {
            (LifecycleRef::Start(start), None) => {
                self.id.set(self.recording.begin(self, start.input_json())).ok();
            }
            (LifecycleRef::Error(failure), Some(id)) => {
                let report = Box::new(failure.error().report());
                self.recording.change(*id, |entry| entry.error = Some(report));
            }
            (LifecycleRef::Finish(finish), Some(id)) => self.recording.end(*id, finish.status()),
            _ => {}
        }
    }
}

/// Keeps what the layers of a run below give.
struct Answers(Arc<Below>);

impl Layer<AnyRun> for Answers {
    async fn call(&self, input: &Value, _: &RunContext, next: Next<'_, AnyRun>) -> Result<Value> {
        let result = next.run(input).await;
        if let Some(id) = self.0.id.get() {
            self.0.recording.change(*id, |entry| entry.answers.push(Answer::of(&result)));
        }
        result
    }

    fn name(&self) -> &str {
        "record"
    }

    fn debug_summary(&self) -> Summary {
        "answers".into()
    }
}

impl fmt::Debug for Answers {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Answers")
    }
}
