//! The runs below the replayed run: each run looks up its entry when it starts, and is answered from the entry.

use std::fmt;
use std::future::pending;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock};

use emitree_emitter::{AnyEvent, Options};
use emitree_runtime::{
    AnyStart, Error, JsonRun, Layer, LifecycleRef, Middleware, Next, Phase, Result, RunContext, Stack, Stage, Summary,
};
use serde_json::Value;

use super::Replayed;
use super::difference::{Call, Difference};
use super::progress::{ReplayProgress, Reply, StartedRun};
use crate::record::AttemptResult;
use crate::shared::own_events::{OwnEvents, kind_and_name, run_label};

/// The middleware that is bound to all runs below the replayed run.
pub(super) struct NestedReplay {
    progress: Arc<ReplayProgress>,
    own_events: OwnEvents,
}

impl NestedReplay {
    pub(super) const fn new(progress: Arc<ReplayProgress>, own_events: OwnEvents) -> Self {
        Self { progress, own_events }
    }
}

impl Middleware for NestedReplay {
    fn bind(&self, ctx: &RunContext) -> Result<()> {
        let progress = Arc::clone(&self.progress);
        let below = Arc::new(NestedRun { progress, own_events: self.own_events.clone(), matched: OnceLock::new() });
        let answers = AnswerLayer { below: Arc::clone(&below), attempts: AtomicUsize::new(0) };
        Stack::<JsonRun>::builder().layer_in(Phase::Observe, answers).build().bind(ctx)?;
        // An observer is called after all listeners that may change the input, so the lookup uses the final input. The
        // journal contains the final input too. With this priority, the observer is called before other observers.
        let first = Options::new().priority(i32::MAX);
        ctx.emitter().with(first).observe(Stage::Start, move |event: &dyn AnyEvent, meta| {
            if let (Some(LifecycleRef::Start(start)), Some(ctx)) =
                (LifecycleRef::of(event, meta), RunContext::current())
            {
                below.find_entry(start, &ctx);
            }
        })?;
        Ok(())
    }

    fn name(&self) -> &str {
        "replay"
    }
}

impl fmt::Debug for NestedReplay {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("answers from a journal")
    }
}

/// A run below the replayed run.
#[derive(Debug)]
struct NestedRun {
    progress: Arc<ReplayProgress>,
    own_events: OwnEvents,
    /// Set when the run starts: the index of its entry, or the difference.
    matched: OnceLock<Result<usize, Box<Difference>>>,
}

impl NestedRun {
    fn find_entry(&self, start: &dyn AnyStart, ctx: &RunContext) {
        let ((kind, name), trace) = (kind_and_name(ctx.creator()), ctx.trace());
        let within = ctx.parent().map(run_label).unwrap_or_default();
        let call = Call::new(kind, name, start.input_json());
        let came = StartedRun { run_id: trace.run_id, parent: trace.parent_run_id, within, call };
        self.matched.get_or_init(|| self.progress.find_entry(&came));
    }

    async fn answer(&self, attempt: usize, ctx: &RunContext) -> Result<Value> {
        // Without a `start` event, there is no entry: the index is out of range, and the run stays pending.
        let matched = self.matched.get().cloned().unwrap_or(Ok(usize::MAX));
        let reply = matched.and_then(|index| Ok((index, self.progress.reply(index, attempt)?)));
        let (index, reply) = reply.map_err(|difference| difference.to_error())?;
        if let Some(entry) = self.progress.entry(index) {
            let kind = entry.kind.clone().into_owned();
            let name = entry.name.clone().into_owned();
            self.own_events.emit(ctx, || Replayed { entry: entry.id, kind, name }).await;
        }
        match reply {
            Reply::Answer(AttemptResult::Output(output)) | Reply::Retried(AttemptResult::Output(output)) => Ok(output),
            Reply::Answer(AttemptResult::Error(report)) => Err((*report).into()),
            Reply::Retried(AttemptResult::Error(report)) => Err(renew_retry_request((*report).into())),
            Reply::Fails(error) => Err(error),
            Reply::Pends => pending().await,
        }
    }
}

/// Recreates a recorded request for a retry: the recorded request counts as fulfilled, and would be ignored.
fn renew_retry_request(error: Error) -> Error {
    match error.retry_request() {
        Some(retry) => {
            let again = Error::retry_with(retry.reason, retry.metadata);
            error.details().iter().fold(again, |again, (key, value)| again.detail(key, value.clone()))
        }
        None => error,
    }
}

/// Answers from the journal instead of calling the inner layers.
#[derive(Debug)]
struct AnswerLayer {
    below: Arc<NestedRun>,
    attempts: AtomicUsize,
}

impl Layer<JsonRun> for AnswerLayer {
    async fn call(&self, _: &Value, ctx: &RunContext, _: Next<'_, JsonRun>) -> Result<Value> {
        let attempt = self.attempts.fetch_add(1, Ordering::Relaxed);
        self.below.answer(attempt, ctx).await
    }

    fn name(&self) -> &str {
        "replay"
    }

    fn debug_summary(&self) -> Summary {
        "answers from the journal".into()
    }
}
