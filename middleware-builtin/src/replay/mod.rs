//! Runs that are answered from a journal: [`Replay`].

mod difference;
mod nested;
mod progress;

use std::fmt;
use std::future::{Future, poll_fn};
use std::pin::pin;
use std::sync::Arc;
use std::task::Poll;

use emitree_emitter::{Event, EventName, Namespace};
use emitree_runtime::{
    AnyRun, Description, Error, Layer, Middleware, Next, Op, Phase, Result, RunContext, Stack, Summary,
};
use serde::{Deserialize, Serialize};

pub use self::difference::{Call, Difference};

use self::nested::NestedReplay;
use self::progress::ReplayProgress;
use crate::record::RunJournal;
use crate::shared::built_in::built_in;
use crate::shared::own_events::{OwnEvents, UserTexts, own_events, run_label};

/// Answers the runs below a run from a [`RunJournal`], in place of their work, and halts the run at the first difference.
///
/// The run that a replay is bound to does its own work. A program that asks models and calls tools runs as usual, but
/// the journal answers in place of the models and tools.
///
/// ```
/// use emitree_middleware::{Record, Replay};
/// use emitree_runtime::{RunContext, Runnable, runnable_fn};
///
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> emitree_runtime::Result<()> {
/// let ask = |prompt: &'static str| {
///     runnable_fn("agent", move |(): (), _: RunContext| async move {
///         let model = runnable_fn("model", |prompt: String, ctx: RunContext| async move {
///             Ok(format!("{prompt} {}", ctx.run_id()))
///         });
///         model.run(prompt.to_owned()).await
///     })
/// };
/// let record = Record::new();
/// let answer = ask("why?").run(()).middleware(record.clone()).await?;
/// let replay = Replay::from(record.journal().expect("the run has ended"));
///
/// assert_eq!(ask("why?").run(()).middleware(replay.clone()).await?, answer);
///
/// let error = ask("how?").run(()).middleware(replay).await.unwrap_err();
/// assert_eq!(
///     error.to_string(),
///     "in Run[agent], the journal's entry 1 is Run[model] with `\"why?\"`, \
///      but the run has the input `\"how?\"`: the inputs differ at `$`"
/// );
/// # Ok(())
/// # }
/// ```
///
/// # How runs are matched
///
/// A run is matched with the entry that has the same parent, kind, name and input. If several entries match, the first
/// entry that is still unmatched is used. The order of different runs does not matter, so concurrent runs find their
/// entries. An answered run starts no runs itself, so entries below it are skipped.
///
/// The answer is returned at the point where it was recorded: outside the run's layers, and before the run's
/// output middlewares. Input middlewares and listeners are called as usual. If the recorded answer is an error, the run
/// fails with the recorded error, which keeps its kind. A run whose work was dropped, aborted or timed out in the
/// recording stays pending until it is stopped in the replay as well.
///
/// # The first difference
///
/// The replay stops at a run that the journal does not contain, a run with another input, or an additional attempt. It
/// also stops if the work ends before all recorded runs directly below the bound run have started. The bound run is
/// then halted by `replay`. The error's message describes the [`Difference`], and its detail `difference` contains the
/// difference as data. The work of the bound run is dropped, with the runs below it that are under way. If a recorded
/// run has not started and the work has returned an error, that error is the cause of the halt.
///
/// If the recorded run was itself aborted, dropped or timed out, the replay stops where the recording ends, with
/// [`Difference::Ends`].
///
/// Clones share the journal. For each run that a replay is bound to, the comparison begins at the start of the journal.
///
/// # Its own events
///
/// `middleware.replay.replayed`, a [`Replayed`], before an attempt of a run is answered or stays pending;
/// `middleware.replay.differed`, a [`Difference`], before the bound run is halted.
#[derive(Clone)]
pub struct Replay {
    journal: Arc<RunJournal>,
    own_events: OwnEvents,
}

/// An attempt of a run is answered from the journal, or stays pending.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct Replayed {
    /// The id of the journal's entry.
    pub entry: u64,
    /// The kind of the instance.
    pub kind: String,
    /// The name of the instance.
    pub name: String,
}

own_events! { Replayed = "replayed"; }

impl Event for Difference {
    const NAME: EventName = EventName::new("differed");
}

impl UserTexts for Difference {
    fn user_texts(&mut self, change: &mut dyn FnMut(&mut String)) {
        let (call, other) = match self {
            Self::Unexpected { came, expected, .. } => (came, expected.as_mut().map(|(_, call)| call)),
            Self::OtherInput { came, expected, .. } => (came, Some(expected)),
            Self::Missing { expected: call, .. }
            | Self::OneMoreAttempt { came: call, .. }
            | Self::Ends { came: call, .. } => (call, None),
        };
        [Some(call), other].into_iter().flatten().for_each(|call| call.input.user_texts(change));
    }
}

impl Replay {
    fn stack(&self, progress: &Arc<ReplayProgress>) -> Stack<AnyRun> {
        let stops = ReplayLayer { progress: Arc::clone(progress), own_events: self.own_events.clone() };
        Stack::builder().layer_in(Phase::Observe, stops).build()
    }
}

impl From<Arc<RunJournal>> for Replay {
    fn from(journal: Arc<RunJournal>) -> Self {
        Self { journal, own_events: OwnEvents::new(Namespace::new("middleware.replay")) }
    }
}

impl From<RunJournal> for Replay {
    fn from(journal: RunJournal) -> Self {
        Arc::new(journal).into()
    }
}

built_in!(Replay, |this| this.own_events);

impl Middleware for Replay {
    fn bind(&self, ctx: &RunContext) -> Result<()> {
        // Create the progress anew for each run, so that concurrent runs do not share it.
        let progress = Arc::new(ReplayProgress::of(Arc::clone(&self.journal)));
        self.stack(&progress).bind(ctx)?;
        ctx.bind_nested(NestedReplay::new(progress, self.own_events.clone()));
        Ok(())
    }

    fn name(&self) -> &str {
        "replay"
    }

    fn describe(&self) -> Description<'_> {
        Description::of(self)
            .with_layers(|| self.stack(&Arc::new(ReplayProgress::of(Arc::clone(&self.journal)))).layers())
    }
}

impl fmt::Debug for Replay {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let RunJournal { kind, name, entries, .. } = &*self.journal;
        write!(f, "{} runs below {kind}[{name}]", entries.len())
    }
}

/// Halts the run at the first difference.
#[derive(Debug)]
struct ReplayLayer {
    progress: Arc<ReplayProgress>,
    own_events: OwnEvents,
}

impl ReplayLayer {
    /// Awaits the work until it ends or there is a difference.
    async fn unless_different<T>(&self, inside: impl Future<Output = T> + Send) -> Result<T, Box<Difference>> {
        let mut inside = pin!(inside);
        // Check for a difference before the work is polled, so that the work does not continue after a difference.
        poll_fn(|cx| match self.progress.poll_difference(cx) {
            Poll::Ready(difference) => Poll::Ready(Err(difference)),
            Poll::Pending => inside.as_mut().poll(cx).map(Ok),
        })
        .await
    }
}

impl<O: Op> Layer<O> for ReplayLayer {
    async fn call(&self, input: &O::In, ctx: &RunContext, next: Next<'_, O>) -> Result<O::Out> {
        let (difference, cause) = match self.unless_different(next.run(input)).await {
            Err(difference) => (difference, None),
            Ok(result) => match self.progress.end_of_round(&run_label(ctx)) {
                None => return result,
                // The halt replaces the result of the work: without `absorb`, a denial would overrule it (M9).
                Some(difference) => (difference, result.inspect_err(|error| next.absorb(error)).err()),
            },
        };
        let error = difference.to_error();
        self.own_events.emit(ctx, || *difference).await;
        Err(cause.into_iter().fold(error, Error::caused_by))
    }

    fn name(&self) -> &str {
        "replay"
    }

    fn debug_summary(&self) -> Summary {
        "stops at the first difference".into()
    }
}
