//! The journal of a run that is under way.

use std::fmt;
use std::sync::Arc;

use emitree_emitter::{AnyEvent, EventMeta, Options};
use emitree_runtime::{
    AnyRun, Layer, LifecycleRef, Middleware, Next, Op, Phase, Result, RunContext, Stack, Stage, Status, Summary,
};
use parking_lot::Mutex;
use rustc_hash::FxHashMap;
use serde_json::Value;
use uuid::Uuid;

use super::{Answer, Entry, Journal};
use crate::voice::called;

/// What is known of a run so far, and of those below it.
pub(super) struct Recording(Mutex<State>);

struct State {
    journal: Arc<Journal>,
    /// Which entry a run is.
    ids: FxHashMap<Uuid, u64>,
    rounds: u32,
    ended: u64,
    is_finished: bool,
}

impl Recording {
    pub(super) fn of(ctx: &RunContext) -> Self {
        let (kind, name) = called(ctx.creator());
        Self::new(Journal::new(kind, name))
    }

    fn new(journal: Journal) -> Self {
        let state =
            State { journal: Arc::new(journal), ids: FxHashMap::default(), rounds: 0, ended: 0, is_finished: false };
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

    fn hear(&self, run: Below, event: &LifecycleRef<'_>, meta: &EventMeta<'_>) {
        match event {
            LifecycleRef::Start(start) => self.begin(run, start.input_json(), meta),
            LifecycleRef::Error(failure) => {
                let report = Box::new(failure.error().report());
                self.change(run.id, |entry| entry.error = Some(report));
            }
            _ => {}
        }
    }

    /// A run below has begun.
    fn begin(&self, run: Below, input: Value, meta: &EventMeta<'_>) {
        let ((kind, name), path) = (called(meta.source().creator()), meta.source().namespace().to_owned());
        let (answers, status, error, ended) = (Vec::new(), None, None, None);
        let mut state = self.0.lock();
        let id = state.journal.entries.len() as u64 + 1;
        let parent = run.parent.and_then(|parent| state.ids.get(&parent).copied());
        let round = state.rounds;
        let entry = Entry { id, parent, round, kind, name, path, input, answers, status, error, ended };
        state.ids.insert(run.id, id);
        state.change(|journal| journal.entries.push(entry));
    }

    /// Changes the entry of a run, if that has begun.
    fn change(&self, run: Uuid, change: impl FnOnce(&mut Entry)) {
        self.0.lock().change_entry(run, change);
    }

    /// A run has ended; one that has not begun is none of the journal's.
    fn end(&self, run: Uuid, status: Status) {
        let mut state = self.0.lock();
        let ended = state.ended + u64::from(state.ids.contains_key(&run));
        state.ended = ended;
        state.change_entry(run, |entry| (entry.status, entry.ended) = (Some(status), Some(ended)));
    }
}

impl State {
    /// Nobody else has the journal before it is finished.
    fn change(&mut self, change: impl FnOnce(&mut Journal)) {
        change(Arc::make_mut(&mut self.journal));
    }

    fn change_entry(&mut self, run: Uuid, change: impl FnOnce(&mut Entry)) {
        let Some(index) = self.ids.get(&run).and_then(|id| usize::try_from(id - 1).ok()) else { return };
        self.change(|journal| {
            if let Some(entry) = journal.entries.get_mut(index) {
                change(entry);
            }
        });
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
pub(super) struct Nested {
    recording: Arc<Recording>,
    stack: Stack<AnyRun>,
}

impl Nested {
    pub(super) fn new(recording: &Arc<Recording>) -> Self {
        let answers = Answers(Arc::clone(recording));
        Self { recording: Arc::clone(recording), stack: Stack::builder().layer_in(Phase::Observe, answers).build() }
    }
}

impl Middleware for Nested {
    fn bind(&self, ctx: &RunContext) -> Result<()> {
        self.stack.bind(ctx)?;
        let (run, first) = (Below::of(ctx), Options::new().priority(i32::MAX));
        for stage in [Stage::Start, Stage::Error] {
            let recording = Arc::clone(&self.recording);
            ctx.emitter().with(first).observe(stage, move |event: &dyn AnyEvent, meta| {
                LifecycleRef::of(event, meta).iter().for_each(|event| recording.hear(run, event, meta));
            })?;
        }
        // A listener of `finish` would make each run tell what it otherwise need not.
        let recording = Arc::clone(&self.recording);
        ctx.at_end(move |_, status| recording.end(run.id, status));
        Ok(())
    }

    fn name(&self) -> &str {
        "record"
    }
}

/// A run below.
#[derive(Clone, Copy)]
struct Below {
    id: Uuid,
    parent: Option<Uuid>,
}

impl Below {
    fn of(ctx: &RunContext) -> Self {
        let trace = ctx.trace();
        Self { id: trace.run_id, parent: trace.parent_run_id }
    }
}

/// Keeps what the layers of a run below give.
struct Answers(Arc<Recording>);

impl Layer<AnyRun> for Answers {
    async fn call(&self, input: &Value, ctx: &RunContext, next: Next<'_, AnyRun>) -> Result<Value> {
        let result = next.run(input).await;
        self.0.change(ctx.run_id(), |entry| entry.answers.push(Answer::of(&result)));
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
