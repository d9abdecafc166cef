//! What subscribers see of a run: its events, and what its attempts came to.

use std::any::{Any, type_name};
use std::fmt;
use std::sync::OnceLock;
use std::time::SystemTime;

use emitree_emitter::rt::EventStamp;
use emitree_emitter::{AnyEvent, Context, EventRecord};
use serde_json::Value;
use uuid::Uuid;

use crate::{Data, Error, ErrorKind, LifecycleRef, Result, RunContext, Stage};

/// One of the four events of a run, as its [subscribers](crate::RunSubscriber) see it: when its listeners have heard it, if it
/// has any, and made of it what they would.
///
/// It says what an [`EventMeta`](emitree_emitter::EventMeta) says of it; ids, paths and times are made at the first look.
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

    /// The run.
    #[must_use]
    pub const fn run(&self) -> &'a RunContext {
        self.run
    }

    /// Which of the four it is.
    #[must_use]
    pub const fn stage(&self) -> Stage {
        self.stage
    }

    /// What it carries, of a type that is not known: as JSON, or brought back to its type.
    #[must_use]
    pub const fn payload(&self) -> &'a dyn AnyEvent {
        self.payload
    }

    /// What it carries, as what it is.
    #[must_use]
    pub fn lifecycle(&self) -> Option<LifecycleRef<'a>> {
        self.run.core().stages().look(self.stage, self.payload)
    }

    /// A version 7 UUID.
    #[must_use]
    pub fn id(&self) -> Uuid {
        self.stamp.id()
    }

    /// When it was emitted: when that was first asked for, by listeners or here, or a listener first had to be awaited.
    #[must_use]
    pub fn time(&self) -> SystemTime {
        self.stamp.time()
    }

    /// Its path: `backend.chat.run.start`.
    #[must_use]
    pub fn path(&self) -> &str {
        let instance = self.run.instance_ref();
        self.path.get_or_init(|| instance.path_of(self.stage.event_name()).unwrap_or_default().into())
    }

    /// The context that it carries: the run's, as it was when somebody first asked for it, or a listener first had to be
    /// awaited.
    #[must_use]
    pub fn context(&self) -> &Context {
        let facet = self.run.core().stages().facet(self.stage);
        self.stamp.context(|| facet.over(self.run.context()))
    }

    /// An owned, serialisable copy, as a sink gets it.
    #[must_use]
    pub fn to_record(&self) -> EventRecord {
        let facet = self.run.core().stages().facet(self.stage);
        self.run.emitter().record(self.stage.event_name(), self.payload, facet, self.stamp)
    }
}

impl fmt::Debug for RunEvent<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RunEvent").field("run", self.run).field("stage", &self.stage).finish_non_exhaustive()
    }
}

/// What the work of a run and the layers around it came to, in one attempt.
pub struct Attempted<'a> {
    run: &'a RunContext,
    result: std::result::Result<&'a dyn ErasedOutput, &'a Error>,
}

impl<'a> Attempted<'a> {
    pub(crate) fn new<O: Data>(run: &'a RunContext, result: &'a Result<O>) -> Self {
        Self { run, result: result.as_ref().map(|output| output as &dyn ErasedOutput) }
    }

    /// The run; [`RunContext::attempt`] says which attempt it was.
    #[must_use]
    pub const fn run(&self) -> &'a RunContext {
        self.run
    }

    /// The output, if there is one and it is an `O`.
    #[must_use]
    pub fn output<O: 'static>(&self) -> Option<&'a O> {
        (self.result.ok()? as &dyn Any).downcast_ref()
    }

    /// The output as JSON.
    ///
    /// # Errors
    ///
    /// What it failed with; or one of the kind `Invalid`, if its output cannot be shown as JSON.
    pub fn output_json(&self) -> Result<Value> {
        self.result.map_err(Clone::clone)?.to_json()
    }
}

/// An output whose type is not known.
trait ErasedOutput: Any {
    fn to_json(&self) -> Result<Value>;
}

impl<O: Data> ErasedOutput for O {
    fn to_json(&self) -> Result<Value> {
        emitree_emitter::json::to_value(self).map_err(|error| {
            let message = format!("the output, a `{}`, cannot be shown as JSON", type_name::<O>());
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
