//! What is known of an event besides its payload (E14).

use std::fmt;
use std::sync::OnceLock;
use std::time::SystemTime;

use chrono::{DateTime, Utc};
use serde::{Deserialize, Serialize, Serializer};
use uuid::Uuid;

use crate::dispatch::emit::Emit;
use crate::{AnyEvent, Context, Creator, Emitter, EventRecord};

/// The run that an event happened in.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Trace {
    /// Shared by all runs that one outermost run led to.
    pub id: Uuid,
    /// The run itself.
    pub run_id: Uuid,
    /// The run in which it was started.
    pub parent_run_id: Option<Uuid>,
}

/// What is known of an event: where it comes from, when it happened, in which run.
///
/// Listeners get it by reference. Id and time are made at the first look, at the latest before the emit first
/// awaits; so are path and context.
pub struct EventMeta<'a> {
    pub(crate) emit: &'a Emit<'a>,
    fixed: Option<Fixed>,
    path: OnceLock<Box<str>>,
}

/// What does not move any more while listeners are awaited.
pub(crate) struct Fixed {
    time: SystemTime,
    context: Context,
}

impl<'a> EventMeta<'a> {
    pub(crate) const fn new(emit: &'a Emit<'a>) -> Self {
        Self { emit, fixed: None, path: OnceLock::new() }
    }

    /// Fixes what must not move while listeners are awaited (E14), be it looked at or not.
    pub(crate) fn fix(&mut self) {
        let (time, context) = self.emit.stamp.seen();
        let context = context.cloned().unwrap_or_else(|| self.emit.context());
        self.fixed = Some(Fixed { time: time.unwrap_or_else(SystemTime::now), context });
    }

    /// Puts into the stamp what was fixed: another meta of the same event goes on from there.
    pub(crate) fn save_to_stamp(self) {
        if let Some(Fixed { time, context }) = self.fixed {
            self.emit.stamp.put(time, context);
        }
    }

    /// A version 7 UUID.
    pub fn id(&self) -> Uuid {
        self.emit.stamp.id_at(self.time())
    }

    /// When it was emitted.
    pub fn created_at(&self) -> DateTime<Utc> {
        self.time().into()
    }

    /// The same, as the standard library has it.
    pub fn time(&self) -> SystemTime {
        self.fixed.as_ref().map_or_else(|| self.emit.stamp.time(), |fixed| fixed.time)
    }

    /// The last segment of the path: `start` of `backend.chat.start`.
    pub fn name(&self) -> &str {
        let name = self.emit.name.as_str();
        name.rsplit_once('.').map_or(name, |(_, last)| last)
    }

    /// The name as it was emitted, which may have more than one segment (`run.start`).
    pub fn emitted_name(&self) -> &str {
        self.emit.name.as_str()
    }

    /// Namespace and name, joined by dots.
    pub fn path(&self) -> &str {
        self.path.get_or_init(|| self.join())
    }

    /// The same, for who keeps it.
    pub(crate) fn to_path(&self) -> Box<str> {
        self.path.get().cloned().unwrap_or_else(|| self.join())
    }

    fn join(&self) -> Box<str> {
        self.emit.source.join(self.emit.name.as_str()).into()
    }

    /// The emitter it was emitted on. Equal to the emitter at hand unless the event came by from elsewhere.
    pub fn source(&self) -> &'a Emitter {
        self.emit.source
    }

    /// Who emitted it.
    pub fn creator(&self) -> Option<&'a Creator> {
        self.emit.source.creator()
    }

    /// The source's context, and what the emit itself adds to it.
    pub fn context(&self) -> &Context {
        match &self.fixed {
            Some(fixed) => &fixed.context,
            None => self.emit.stamp.context(|| self.emit.context()),
        }
    }

    /// The group that the source belongs to.
    pub fn group_id(&self) -> Option<&'a str> {
        self.emit.source.group_id()
    }

    /// The run it happened in.
    pub fn trace(&self) -> Option<Trace> {
        self.emit.source.trace()
    }

    /// The name of the payload's type.
    pub fn payload_type(&self) -> &'static str {
        self.emit.carried.name()
    }

    /// The facet of the emit, if it has one and it is an `L`.
    pub fn facet<L: Send + Sync + 'static>(&self) -> Option<&'static L> {
        self.emit.facet?.lens()
    }

    /// An owned, serialisable copy of it and of the payload, for a sink.
    pub fn to_record(&self, event: &dyn AnyEvent) -> EventRecord {
        EventRecord::new(self, event)
    }
}

impl fmt::Debug for EventMeta<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("EventMeta")
            .field("id", &self.id())
            .field("path", &self.path())
            .field("created_at", &self.created_at())
            .field("payload_type", &self.payload_type())
            .field("trace", &self.trace())
            .finish_non_exhaustive()
    }
}

/// Serialises as an [`EventRecord`] whose payload is `null`.
impl Serialize for EventMeta<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        self.to_record(&()).serialize(serializer)
    }
}
