//! Journals of all runs below a run: [`Record`].

mod journal;
mod recording;

use std::fmt;
use std::sync::Arc;

use emitree_emitter::{AnyEvent, BoxError, Namespace};
use emitree_runtime::{
    Attempted, LifecycleRef, Middleware, Result, RunContext, RunEvent, RunSubscriber, Stage, Status,
};
use parking_lot::Mutex;
use serde::{Deserialize, Serialize};

pub use self::journal::{AttemptResult, Entry, JournalError, RunJournal};

use self::recording::Recording;
use crate::shared::built_in::{built_in, default_as_new};
use crate::shared::own_events::{OwnEvents, own_events};

/// Keeps a journal of all runs below the run that it is bound to: their inputs, their outputs and their order.
///
/// ```
/// use emitree_middleware::Record;
/// use emitree_runtime::{RunContext, Runnable, runnable_fn};
///
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> emitree_runtime::Result<()> {
/// let sum = runnable_fn("sum", |n: u32, _: RunContext| async move {
///     let double = runnable_fn("double", |n: u32, _: RunContext| async move { Ok(n * 2) });
///     Ok(double.run(n).await? + double.run(n + 1).await?)
/// });
/// let record = Record::new();
/// assert_eq!(sum.run(1).middleware(record.clone()).await?, 6);
///
/// let journal = record.journal().expect("the run has ended");
/// assert_eq!(journal.entries.iter().map(|entry| &entry.input).collect::<Vec<_>>(), [&1, &2]);
///
/// let mut file = Vec::new();
/// journal.write_to(&mut file)?;
/// # Ok(())
/// # }
/// ```
///
/// Clones share their journals. Each run that a `Record` is bound to has its own journal. [`journal`](Self::journal)
/// returns the journal of the run that ended last; the function of [`on_end`](Self::on_end) receives every journal.
///
/// # What is recorded
///
/// - Each run below the recorded run, when it starts, with its input as listeners of `start` left it.
/// - The result of each attempt of such a run: the result of its work and layers, before output middlewares change it.
///   If an output cannot be serialized, the journal contains an error in its place, and a replay of the run fails with
///   that error.
/// - The outcome of such a run, when it ends.
///
/// Inputs, outputs and errors are recorded **unchanged, including secrets**: redact them with the feature `redact`, or
/// protect the journal as carefully as the data itself.
///
/// # What it remembers
///
/// The journal is kept in memory until the run ends, and grows with each run below. The last journal is kept until
/// another recorded run ends.
///
/// # Its own events
///
/// `middleware.record.recorded`, a [`Recorded`], at the run's `finish`.
#[derive(Clone)]
pub struct Record(Arc<JournalKeeper>);

struct JournalKeeper {
    last: Mutex<Option<Arc<RunJournal>>>,
    on_end: Option<OnEndFn>,
    own_events: OwnEvents,
}

type OnEndFn = Box<dyn Fn(&Arc<RunJournal>) -> Result<(), BoxError> + Send + Sync>;

/// A run was recorded.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct Recorded {
    /// The number of recorded runs below the run.
    pub runs: u64,
    /// The outcome of the run.
    pub status: Option<Status>,
}

own_events! { Recorded = "recorded"; }

impl Record {
    /// Creates a middleware that keeps the journal of the run that ended last.
    #[must_use]
    pub fn new() -> Self {
        Self::with(None)
    }

    /// Creates a middleware that also passes each journal to a function when the recorded run ends or is dropped.
    /// Errors that the function returns are logged.
    #[must_use]
    pub fn on_end(f: impl Fn(&Arc<RunJournal>) -> Result<(), BoxError> + Send + Sync + 'static) -> Self {
        Self::with(Some(Box::new(f)))
    }

    fn with(on_end: Option<OnEndFn>) -> Self {
        Self(Arc::new(JournalKeeper {
            last: Mutex::default(),
            on_end,
            own_events: OwnEvents::new(Namespace::new("middleware.record")),
        }))
    }

    /// Returns the journal of the run that ended last; `None` before a run has ended.
    #[must_use]
    pub fn journal(&self) -> Option<Arc<RunJournal>> {
        self.0.last.lock().clone()
    }
}

impl JournalKeeper {
    /// Keeps the journal of a run that has ended. Further calls for the same run do nothing.
    fn keep(&self, recording: &Recording, status: Status) {
        let Some(journal) = recording.finish(status) else { return };
        // Dropping a large journal takes time: drop the previous journal after unlocking.
        let before = self.last.lock().replace(Arc::clone(&journal));
        drop(before);
        if let Some(on_end) = &self.on_end
            && let Err(error) = on_end(&journal)
        {
            tracing::warn!(%error, "the function that receives journals failed");
        }
    }
}

/// The subscriber of a recorded run and the runs below it.
struct RecordSubscriber {
    record: Arc<JournalKeeper>,
    recording: Arc<Recording>,
}

impl RecordSubscriber {
    /// Registers an observer of the run's `finish` that keeps the journal and emits [`Recorded`]: unlike a subscriber,
    /// an observer can await the listeners of `Recorded`.
    fn emit_at_finish(&self, run: &RunContext) -> Result<()> {
        let record = Arc::clone(&self.record);
        let recording = Arc::clone(&self.recording);
        run.emitter().observe_async(Stage::Finish, move |event: &dyn AnyEvent, meta| {
            if let Some(LifecycleRef::Finish(finish)) = LifecycleRef::of(event, meta) {
                // Keep the journal before `Recorded` is emitted, so that its listeners can read the journal.
                record.keep(&recording, finish.status());
            }
            let record = Arc::clone(&record);
            let journal = recording.finished();
            Box::pin(async move {
                if let (Some(run), Some(journal)) = (RunContext::current(), journal) {
                    let recorded = || Recorded { runs: journal.entries.len() as u64, status: journal.status };
                    record.own_events.emit(&run, recorded).await;
                }
                Ok(())
            })
        })?;
        Ok(())
    }

    /// Handles the events of the recorded run itself. It registers no listener before `success` or `error`: with a
    /// listener on this run, all runs below would emit their lifecycle events.
    fn on_own_event(&self, event: &RunEvent<'_>) -> Result<()> {
        match event.lifecycle() {
            Some(LifecycleRef::Finish(finish)) => self.record.keep(&self.recording, finish.status()),
            Some(LifecycleRef::Success(_) | LifecycleRef::Error(_)) => {
                let run = event.run();
                if self.record.own_events.has_listeners(run) {
                    return self.emit_at_finish(run);
                }
            }
            _ => {}
        }
        Ok(())
    }
}

impl RunSubscriber for RecordSubscriber {
    fn event(&self, event: &RunEvent<'_>) {
        if !self.recording.is_of(event.run()) {
            self.recording.on_event(event);
        } else if let Err(error) = self.on_own_event(event) {
            tracing::warn!(%error, "the event `recorded` of a run cannot be emitted");
        }
    }

    fn attempted(&self, attempt: &Attempted<'_>) {
        self.recording.attempted(attempt);
    }
}

built_in!(Record, |this| this.0.own_events);

impl Middleware for Record {
    fn bind(&self, ctx: &RunContext) -> Result<()> {
        // Subscribe instead of listening: a subscription does not make runs emit events (E15).
        ctx.subscribe(RecordSubscriber { record: Arc::clone(&self.0), recording: Arc::new(Recording::of(ctx)) });
        Ok(())
    }

    fn name(&self) -> &str {
        "record"
    }
}

default_as_new!(Record);

impl fmt::Debug for Record {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(if self.0.on_end.is_some() { "passes journals to a function" } else { "keeps the last journal" })
    }
}
