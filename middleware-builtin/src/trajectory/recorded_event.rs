//! Recorded events, and the properties of their runs.

use emitree_emitter::{Context, EventRecord, Trace};
use emitree_runtime::{RunContext, Stage};

use super::NAMESPACE;
use crate::shared::runs::RunInfo;

/// A recorded event. Its [`RunInfo`] describes the run that emitted the event.
#[derive(Clone, Copy)]
pub(super) struct RecordedEvent<'a> {
    pub(super) event: &'a EventRecord,
    pub(super) stage: Option<Stage>,
}

impl<'a> RecordedEvent<'a> {
    pub(super) fn new(event: &'a EventRecord) -> Self {
        Self { event, stage: Stage::of_record(event) }
    }

    /// Returns `true` for a trajectory's own events, which carry the bound run's ids.
    pub(super) fn is_own_event(&self) -> bool {
        self.event.path.strip_prefix(NAMESPACE.as_str()).is_some_and(|rest| rest.starts_with('.'))
    }
}

impl RunInfo for RecordedEvent<'_> {
    fn kind(&self) -> &str {
        match &self.event.creator {
            Some(creator) => &creator.kind,
            None if self.stage.is_some() => "Run",
            None => "Event",
        }
    }

    fn name(&self) -> &str {
        self.event.creator.as_ref().map_or_else(|| self.namespace(), |creator| &creator.name)
    }

    /// Returns the path of the event without its name, and without `run` before the name of a lifecycle event.
    fn namespace(&self) -> &str {
        let above = self.event.path.rsplit_once('.').map_or("", |(above, _)| above);
        let of_run = self.stage.and_then(|_| above.strip_suffix("run"));
        of_run.map_or(above, |namespace| namespace.strip_suffix('.').unwrap_or(namespace))
    }

    fn context(&self) -> Context {
        self.event.context.clone()
    }

    fn trace(&self) -> Option<Trace> {
        self.event.trace
    }

    /// Looks for the name at the beginning and at the end of `I, O`, the parameters of the payload type `Start<I, O>`.
    fn has_type(&self, name: &str) -> bool {
        let types = self.event.payload_type.split_once('<').and_then(|(_, types)| types.strip_suffix('>'));
        types.is_some_and(|types| {
            types.strip_prefix(name).is_some_and(|rest| rest.starts_with(", "))
                || types.strip_suffix(name).is_some_and(|rest| rest.ends_with(", "))
        })
    }

    fn run(&self) -> Option<RunContext> {
        None
    }
}
