//! Records: events as sinks receive them, owned and serializable (E13).

use std::borrow::Cow;
use std::time::SystemTime;

use chrono::{DateTime, Utc};
use serde::{Deserialize, Serialize, Serializer};
use serde_json::Value;
use serde_json::value::RawValue;
use uuid::Uuid;

use crate::panic::caught_or;
use crate::rt::{EventStamp, Facet};
use crate::{AnyEvent, Context, Creator, CreatorRecord, Detail, Emitter, EventMeta, EventName, Trace};

/// An event with its payload, owned and serializable.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[non_exhaustive]
pub struct EventRecord {
    /// The id of the event, a version 7 UUID.
    pub id: Uuid,
    /// The path: namespace and name, joined by dots.
    pub path: Box<str>,
    /// The time at which the event was emitted (RFC 3339, UTC).
    pub created_at: DateTime<Utc>,
    /// The creator of the event.
    pub creator: Option<CreatorRecord>,
    /// The context of the event.
    pub context: Context,
    /// The group id of the event's source.
    pub group_id: Option<Box<str>>,
    /// The ids of the run in which the event happened.
    pub trace: Option<Trace>,
    /// The name of the payload's Rust type.
    pub payload_type: Cow<'static, str>,
    /// The detail of the payload. In JSON, the member is missing if the payload is whole.
    #[serde(default, skip_serializing_if = "Detail::is_full")]
    pub detail: Detail,
    /// The payload as JSON text. With [`Detail::Heads`], the head of the payload, or `null` if it has none.
    pub payload: Box<RawValue>,
}

impl EventRecord {
    pub(crate) fn new(meta: &EventMeta<'_>, event: &dyn AnyEvent, detail: Detail) -> Self {
        let id = meta.id();
        let time = meta.time();
        let payload = match detail {
            Detail::Full => payload(event),
            Detail::Heads => head(event, meta.emit.facet),
        };
        let record = Self::of(meta.source(), meta.to_path(), meta.context().clone(), (id, time), payload);
        // The type comes from the meta, because `event` is a placeholder when a meta is serialized without its payload.
        Self { payload_type: Cow::Borrowed(meta.payload_type()), detail, ..record }
    }

    /// Returns a record whose payload type is not known yet.
    fn of(
        source: &Emitter,
        path: Box<str>,
        context: Context,
        (id, time): (Uuid, SystemTime),
        payload: Box<RawValue>,
    ) -> Self {
        Self {
            id,
            path,
            created_at: time.into(),
            creator: source.creator().map(Creator::to_record),
            context,
            group_id: source.group_id().map(Into::into),
            trace: source.trace(),
            payload_type: Cow::Borrowed(""),
            detail: Detail::Full,
            payload,
        }
    }

    /// Returns the last segment of the path.
    #[must_use]
    pub fn name(&self) -> &str {
        self.path.rsplit_once('.').map_or(&self.path, |(_, name)| name)
    }

    /// Returns the payload as JSON, as [`to_json`](trait.AnyEvent.html#method.to_json) of the event did.
    ///
    /// A payload that cannot be read as JSON becomes a string that contains the reason. This is possible only if the
    /// record was read from elsewhere.
    #[must_use]
    pub fn to_json(&self) -> Value {
        let unreadable = |error| Value::String(format!("<{} cannot be read: {error}>", self.payload_type));
        serde_json::from_str(self.payload.get()).unwrap_or_else(unreadable)
    }

    /// Deserializes the payload as a `T`.
    ///
    /// # Errors
    ///
    /// Returns an error if the payload does not fit the type.
    pub fn payload<'de, T: Deserialize<'de>>(&'de self) -> Result<T, serde_json::Error> {
        serde_json::from_str(self.payload.get())
    }
}

impl Emitter {
    /// Returns the record that an event of this emitter would have, without emitting the event.
    #[doc(hidden)]
    #[must_use]
    pub fn record(&self, name: EventName, event: &dyn AnyEvent, facet: &Facet, stamp: &EventStamp) -> EventRecord {
        let context = stamp.context(|| self.context_with(Some(facet))).clone();
        let path = self.join(name.as_str()).into();
        let record = EventRecord::of(self, path, context, (stamp.id(), stamp.time()), payload(event));
        EventRecord { payload_type: Cow::Borrowed(event.type_name()), ..record }
    }

    /// Returns the context of this emitter's events, with the keys that a facet adds.
    pub(crate) fn context_with(&self, facet: Option<&Facet>) -> Context {
        match facet {
            Some(facet) => facet.over(self.context()),
            None => self.context(),
        }
    }
}

/// Serializes a payload. If the serialization panics, the result is a string with the panic's message, so that the
/// event is not lost.
fn payload(event: &dyn AnyEvent) -> Box<RawValue> {
    let placeholder =
        |panic| format!("<{} cannot be serialized: it panicked: {panic}>", event.type_name()).to_raw_json();
    caught_or(|| event.to_raw_json(), placeholder)
}

/// Serializes the head of a payload. If the head panics, the result is a string with the panic's message.
fn head(event: &dyn AnyEvent, facet: Option<&Facet>) -> Box<RawValue> {
    let placeholder = |panic| Some(Value::String(format!("<{} has no head: it panicked: {panic}>", event.type_name())));
    let head = caught_or(|| facet.and_then(|facet| facet.head(event)), placeholder);
    head.map_or_else(|| RawValue::NULL.to_owned(), |head| payload(&head))
}

/// A record that a sink receives: an event, or a gap where events were lost.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub enum SinkRecord {
    /// An event.
    Event(Box<EventRecord>),
    /// Events were lost here.
    Gap(Gap),
}

/// A place where events were lost because a sink or stream was slower than the emits.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct Gap {
    /// The number of events lost in a row.
    pub lost: u64,
}

impl Gap {
    pub(crate) const fn of(lost: u64) -> Self {
        Self { lost }
    }
}

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct GapLine {
    gap: Gap,
}

impl SinkRecord {
    /// Reads a record from JSON text.
    ///
    /// # Errors
    ///
    /// Returns an error if the text is neither an event nor a gap.
    pub fn from_json(text: &str) -> Result<Self, serde_json::Error> {
        // The first key selects the type, so that the error for a malformed event describes the event and not a gap.
        if text.trim_start().starts_with("{\"gap\"") {
            return serde_json::from_str::<GapLine>(text).map(|line| Self::Gap(line.gap));
        }
        serde_json::from_str(text).map(|event| Self::Event(Box::new(event)))
    }

    /// Returns the event, or `None` for a gap.
    #[must_use]
    pub fn as_event(&self) -> Option<&EventRecord> {
        match self {
            Self::Event(event) => Some(event),
            Self::Gap(_) => None,
        }
    }
}

/// Serializes an event as itself, and a gap as `{"gap": {"lost": n}}`.
impl Serialize for SinkRecord {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        match self {
            Self::Event(event) => event.serialize(serializer),
            Self::Gap(gap) => GapLine { gap: *gap }.serialize(serializer),
        }
    }
}
