//! The events and attempts that subscribers of a run receive.

use std::any::{Any, type_name};
use std::fmt;
use std::sync::OnceLock;
use std::time::SystemTime;

use emitree_emitter::rt::EventStamp;
use emitree_emitter::{AnyEvent, Context, EventRecord};
use serde_json::Value;
use uuid::Uuid;

use crate::{Data, Error, ErrorKind, LifecycleRef, Result, RunContext, Stage};

/// One of the four lifecycle events of a run, as its [subscribers](crate::RunSubscriber) receive it: after all
/// listeners, with the payload as the listeners left it.
///
/// The id, path, time and context are the same as in the [`EventMeta`](emitree_emitter::EventMeta) that listeners
/// receive. Each is computed when it is first needed.
///
/// ```
/// use std::sync::{Arc, Mutex};
/// use emitree_runtime::{RunContext, RunEvent, Runnable, Stage, runnable_fn};
///
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> emitree_runtime::Result<()> {
/// let outputs = Arc::new(Mutex::new(Vec::new()));
/// let seen = Arc::clone(&outputs);
/// let subscribe = move |ctx: &RunContext| {
///     let seen = Arc::clone(&seen);
///     ctx.subscribe(move |event: &RunEvent<'_>| {
///         if event.stage() == Stage::Success {
///             seen.lock().unwrap().push(event.payload().to_json()["output"].clone());
///         }
///     });
///     Ok(())
/// };
/// let double = runnable_fn("double", |n: u32, _: RunContext| async move { Ok(n * 2) });
/// double.run(21).middleware(subscribe).await?;
/// assert_eq!(*outputs.lock().unwrap(), [42]);
/// # Ok(())
/// # }
/// ```
pub struct RunEvent<'a> {
    run: &'a RunContext,
    stage: Stage,
    payload: &'a dyn AnyEvent,
    stamp: &'a EventStamp,
    path: OnceLock<Box<str>>,
}

impl<'a> RunEvent<'a> {
    pub(crate) const fn new(
        run: &'a RunContext,
        stage: Stage,
        payload: &'a dyn AnyEvent,
        stamp: &'a EventStamp,
    ) -> Self {
        Self { run, stage, payload, stamp, path: OnceLock::new() }
    }

    /// Returns the run that the event belongs to.
    #[must_use]
    pub const fn run(&self) -> &'a RunContext {
        self.run
    }

    /// Returns the stage, which identifies one of the four events.
    #[must_use]
    pub const fn stage(&self) -> Stage {
        self.stage
    }

    /// Returns the payload, to be read as JSON or downcast to its type.
    #[must_use]
    pub const fn payload(&self) -> &'a dyn AnyEvent {
        self.payload
    }

    /// Returns the payload as a lifecycle event, whose values are read as JSON.
    #[must_use]
    pub fn lifecycle(&self) -> Option<LifecycleRef<'a>> {
        self.run.shared().core.stages().look(self.stage, self.payload)
    }

    /// Returns the id of the event, a version 7 UUID.
    #[must_use]
    pub fn id(&self) -> Uuid {
        self.stamp.id()
    }

    /// Returns the time of the event: the moment at which the time was first read or a listener was first awaited,
    /// whichever came first.
    #[must_use]
    pub fn time(&self) -> SystemTime {
        self.stamp.time()
    }

    /// Returns the path of the event, such as `backend.chat.run.start`.
    #[must_use]
    pub fn path(&self) -> &str {
        // Take the path from the instance: a run without listeners has no emitter, and reading the path must not make
        // one (E15).
        let instance = self.run.instance_ref();
        self.path.get_or_init(|| instance.path_of(self.stage.event_name()).unwrap_or_default().into())
    }

    /// Returns the context values of the run, as they were when they were first read or a listener was first awaited,
    /// whichever came first.
    #[must_use]
    pub fn context(&self) -> &Context {
        let facet = self.run.shared().core.stages().facet(self.stage);
        self.stamp.context(|| facet.over(self.run.context()))
    }

    /// Returns an owned, serializable record, as a sink receives it.
    #[must_use]
    pub fn to_record(&self) -> EventRecord {
        let facet = self.run.shared().core.stages().facet(self.stage);
        self.run.emitter().record(self.stage.event_name(), self.payload, facet, self.stamp)
    }
}

impl fmt::Debug for RunEvent<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RunEvent").field("run", self.run).field("stage", &self.stage).finish_non_exhaustive()
    }
}

/// The result of one attempt, as the outermost layer around the work returned it.
pub struct Attempted<'a> {
    run: &'a RunContext,
    result: std::result::Result<&'a dyn ErasedOutput, &'a Error>,
}

impl<'a> Attempted<'a> {
    pub(crate) fn new<O: Data>(run: &'a RunContext, result: &'a Result<O>) -> Self {
        Self { run, result: result.as_ref().map(|output| output as &dyn ErasedOutput) }
    }

    /// Returns the run; [`RunContext::attempt`] is the number of the attempt.
    #[must_use]
    pub const fn run(&self) -> &'a RunContext {
        self.run
    }

    /// Returns the output, or `None` if the attempt failed or its output is not an `O`.
    #[must_use]
    pub fn output<O: 'static>(&self) -> Option<&'a O> {
        (self.result.ok()? as &dyn Any).downcast_ref()
    }

    /// Returns the output as JSON.
    ///
    /// # Errors
    ///
    /// Returns the error of the attempt, or an error of the kind [`Invalid`](ErrorKind::Invalid) if the output cannot be
    /// serialized.
    pub fn output_json(&self) -> Result<Value> {
        self.result.map_err(Clone::clone)?.to_json()
    }
}

/// An output of any type.
trait ErasedOutput: Any {
    fn to_json(&self) -> Result<Value>;
}

impl<O: Data> ErasedOutput for O {
    fn to_json(&self) -> Result<Value> {
        emitree_emitter::json::to_value(self).map_err(|error| {
            let message = format!("the output, a `{}`, cannot be converted to JSON", type_name::<O>());
            Error::of_kind(ErrorKind::Invalid, message).caused_by(error)
        })
    }
}

impl fmt::Debug for Attempted<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let error = self.result.err();
        f.debug_struct("Attempted").field("run", self.run).field("error", &error).finish_non_exhaustive()
    }
}
