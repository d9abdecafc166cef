//! Where a line comes from: an event, live or recorded.

use std::fmt;

use chrono::{DateTime, Utc};
use emitree_emitter::{AnyEvent, Context, EventMeta, EventRecord, Trace};
use emitree_runtime::{RunContext, Stage};

use crate::runs::Candidate;

/// The event that a line is about, live or from a recording.
#[derive(Clone, Copy)]
pub struct Origin<'a>(Source<'a>);

#[derive(Clone, Copy)]
enum Source<'a> {
    Live(&'a EventMeta<'a>),
    Recorded(&'a EventRecord),
}
use Source::{Live, Recorded};

impl<'a> Origin<'a> {
    pub(super) const fn live(meta: &'a EventMeta<'a>) -> Self {
        Self(Live(meta))
    }

    pub(super) const fn recorded(record: &'a EventRecord) -> Self {
        Self(Recorded(record))
    }

    /// The kind of what emitted it: `Tool`. `Event`, where nobody is known to have emitted it.
    #[must_use]
    pub fn kind(&self) -> &'a str {
        self.labels().0
    }

    /// What that is called: `read_file`. The namespace, where nobody is known to have emitted it.
    #[must_use]
    pub fn name(&self) -> &'a str {
        self.labels().1
    }

    /// Kind and name.
    pub(super) fn labels(&self) -> (&'a str, &'a str) {
        let labels = match self.0 {
            Live(meta) => meta.creator().map(|creator| (creator.kind(), creator.name())),
            Recorded(record) => record.creator.as_ref().map(|creator| (&*creator.kind, &*creator.name)),
        };
        labels.unwrap_or_else(|| ("Event", self.path().rsplit_once('.').map_or("", |(namespace, _)| namespace)))
    }

    /// The last segment of the event's path: `start`.
    #[must_use]
    pub fn event(&self) -> &'a str {
        match self.0 {
            Live(meta) => meta.name(),
            Recorded(record) => record.name(),
        }
    }

    /// The event's path: `tool.read_file.run.start`.
    #[must_use]
    pub fn path(&self) -> &'a str {
        match self.0 {
            Live(meta) => meta.path(),
            Recorded(record) => &record.path,
        }
    }

    /// When it was emitted.
    #[must_use]
    pub fn created_at(&self) -> DateTime<Utc> {
        match self.0 {
            Live(meta) => meta.created_at(),
            Recorded(record) => record.created_at,
        }
    }

    /// The run that it happened in.
    #[must_use]
    pub fn trace(&self) -> Option<Trace> {
        match self.0 {
            Live(meta) => meta.trace(),
            Recorded(record) => record.trace,
        }
    }

    /// The context that it carries.
    #[must_use]
    pub fn context(&self) -> &'a Context {
        match self.0 {
            Live(meta) => meta.context(),
            Recorded(record) => &record.context,
        }
    }

    /// The name of the payload's Rust type.
    #[must_use]
    pub fn payload_type(&self) -> &'a str {
        match self.0 {
            Live(meta) => meta.payload_type(),
            Recorded(record) => &record.payload_type,
        }
    }

    /// An owned copy of the event, with its payload.
    pub(super) fn to_record(self, payload: &dyn AnyEvent) -> EventRecord {
        match self.0 {
            Live(meta) => meta.to_record(payload),
            Recorded(record) => record.clone(),
        }
    }

    /// What comes before the event's name, which is `run.start` for the start of a run.
    fn namespace(&self) -> &'a str {
        match self.0 {
            Live(meta) => meta.source().namespace(),
            Recorded(record) => {
                let above = record.path.rsplit_once('.').map_or("", |(above, _)| above);
                let own = Stage::of_record(record).and_then(|_| above.strip_suffix("run"));
                own.map_or(above, |own| own.strip_suffix('.').unwrap_or(own))
            }
        }
    }
}

/// The run that it is an event of.
impl Candidate for Origin<'_> {
    fn kind(&self) -> &str {
        self.kind()
    }

    fn name(&self) -> &str {
        self.name()
    }

    fn namespace(&self) -> &str {
        self.namespace()
    }

    fn context(&self) -> Context {
        self.context().clone()
    }

    fn trace(&self) -> Option<Trace> {
        self.trace()
    }

    fn has_type(&self, name: &str) -> bool {
        let runnable = match self.0 {
            Live(meta) => Stage::runnable_type(meta),
            Recorded(_) => None,
        };
        runnable == Some(name) || is_input_or_output(self.payload_type(), name)
    }

    fn run(&self) -> Option<RunContext> {
        match self.0 {
            Live(_) => RunContext::current(),
            Recorded(_) => None,
        }
    }
}

/// A lifecycle payload is a `Start<I, O>`; a type's name has commas only in brackets of its own.
fn is_input_or_output(payload_type: &str, name: &str) -> bool {
    let types = payload_type.split_once('<').and_then(|(_, types)| types.strip_suffix('>'));
    types.is_some_and(|types| {
        types.strip_prefix(name).is_some_and(|rest| rest.starts_with(", "))
            || types.strip_suffix(name).is_some_and(|rest| rest.ends_with(", "))
    })
}

impl fmt::Debug for Origin<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}[{}][{}]", self.kind(), self.name(), self.event())
    }
}
