//! A journal of all runs below a run: [`Record`].

mod journal;
mod recording;

use std::fmt;
use std::sync::Arc;

use emitree_emitter::{AnyEvent, BoxError, Emitter, Event, EventName, Namespace};
use emitree_runtime::{
    LayerInfo, LifecycleRef, Middleware, Phase, Result, RunContext, Stack, Stage, Status, Summary, Unseen,
};
use parking_lot::Mutex;
use serde::{Deserialize, Serialize};

pub use self::journal::{Answer, Entry, Journal, JournalError};

use self::recording::{Nested, Recording, Rounds};
use crate::voice::Voice;

const NAMESPACE: Namespace = Namespace::new("middleware.record");

/// Keeps a journal of all runs below the one that it is bound to: what each got and gave, and in which order.
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
/// Clones are the same one. Each run that it is bound to has a journal of its own; of those that have ended,
/// [`journal`](Self::journal) is the last one's, and [`on_end`](Self::on_end) is given every one.
///
/// # What is recorded
///
/// - A run as it starts, with its input as listeners of `start` left it.
/// - What its layers give before output middlewares see it, for each attempt: a layer in [`Phase::Observe`] looks at
///   it, outside of all that are bound after it. It looks at JSON: a run whose input or output cannot be shown as JSON
///   fails, for it could not be replayed.
/// - How it ended, once it has.
///
/// Inputs, outputs and errors are kept **as they are, secrets too**: have them taken out, as the feature `redact` does, or
/// keep the journal as safe as they are. It is kept in memory until the run ends, and grows with each run below.
///
/// # Its own events
///
/// `middleware.record.recorded`, a [`Recorded`], when the run has ended.
#[derive(Clone)]
pub struct Record(Arc<Inner>);

struct Inner {
    last: Mutex<Option<Arc<Journal>>>,
    on_end: Option<OnEnd>,
    voice: Voice,
}

type OnEnd = Box<dyn Fn(&Arc<Journal>) -> Result<(), BoxError> + Send + Sync>;

/// A run has been recorded.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct Recorded {
    /// How many runs there were below it.
    pub runs: u64,
    /// How it ended.
    pub status: Option<Status>,
}

impl Event for Recorded {
    const NAME: EventName = EventName::new("recorded");
}

impl Record {
    /// One that keeps the journal of the run that ended last.
    #[must_use]
    pub fn new() -> Self {
        Self::with(None)
    }

    /// One that gives each journal to a function as well, when its run has ended, or has been dropped. What that fails
    /// with is logged.
    #[must_use]
    pub fn on_end(f: impl Fn(&Arc<Journal>) -> Result<(), BoxError> + Send + Sync + 'static) -> Self {
        Self::with(Some(Box::new(f)))
    }

    fn with(on_end: Option<OnEnd>) -> Self {
        Self(Arc::new(Inner { last: Mutex::default(), on_end, voice: Voice::new("record", NAMESPACE) }))
    }

    /// The journal of the run that ended last.
    #[must_use]
    pub fn journal(&self) -> Option<Arc<Journal>> {
        self.0.last.lock().clone()
    }

    /// The emitter of its own events.
    #[must_use]
    pub fn emitter(&self) -> &Emitter {
        self.0.voice.emitter()
    }

    fn stack(recording: &Arc<Recording>) -> Stack<Unseen> {
        Stack::builder().layer_in(Phase::Observe, Rounds(Arc::clone(recording))).build()
    }

    /// Keeps the journal when the run has ended, and then says so.
    fn keep_at_end(&self, recording: Arc<Recording>, ctx: &RunContext) -> Result<()> {
        let (keeper, speaker) = (Arc::clone(&self.0), Arc::clone(&self.0));
        let said = Arc::clone(&recording);
        ctx.emitter().observe(Stage::Finish, move |event: &dyn AnyEvent, meta| {
            match LifecycleRef::of(event, meta) {
                Some(LifecycleRef::Finish(finish)) => keeper.keep(&recording.finish(finish.status())),
                _ => Ok(()),
            }
        })?;
        ctx.emitter().observe_async(Stage::Finish, move |_: &dyn AnyEvent, _| {
            let (speaker, journal) = (Arc::clone(&speaker), said.finished());
            Box::pin(async move {
                if let (Some(ctx), Some(journal)) = (RunContext::current(), journal) {
                    let recorded = || Recorded { runs: journal.entries.len() as u64, status: journal.status };
                    speaker.voice.say(&ctx, recorded).await;
                }
                Ok(())
            })
        })?;
        Ok(())
    }
}

impl Inner {
    fn keep(&self, journal: &Arc<Journal>) -> Result<(), BoxError> {
        *self.last.lock() = Some(Arc::clone(journal));
        self.on_end.as_ref().map_or(Ok(()), |on_end| on_end(journal))
    }
}

impl Middleware for Record {
    fn bind(&self, ctx: &RunContext) -> Result<()> {
        let recording = Arc::new(Recording::of(ctx));
        Self::stack(&recording).bind(ctx)?;
        ctx.bind_nested(Nested::new(&recording));
        self.keep_at_end(recording, ctx)
    }

    fn name(&self) -> &str {
        "record"
    }

    fn debug_summary(&self) -> Summary {
        Summary::of(self)
    }

    fn layers(&self) -> Vec<LayerInfo> {
        Self::stack(&Arc::default()).layers()
    }
}

impl Default for Record {
    fn default() -> Self {
        Self::new()
    }
}

impl fmt::Debug for Record {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(if self.0.on_end.is_some() { "gives journals to a function" } else { "keeps the last journal" })
    }
}
