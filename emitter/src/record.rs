//! Events as sinks take them: owned and serialisable (E13).

use std::borrow::Cow;
use std::time::SystemTime;

use chrono::{DateTime, Utc};
use serde::{Deserialize, Serialize, Serializer};
use serde_json::value::RawValue;
use uuid::Uuid;

use crate::panic::catch_or;
use crate::{
    AnyEvent, Canonical, Context, Creator, CreatorRecord, Emitter, EventMeta, EventName, EventStamp, Facet, Trace,
};

/// One event, whole.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[non_exhaustive]
pub struct EventRecord {
    /// A version 7 UUID.
    pub id: Uuid,
    /// Namespace and name, joined by dots.
    pub path: Box<str>,
    /// When it was emitted (RFC 3339, UTC).
    pub created_at: DateTime<Utc>,
    /// Who emitted it.
    pub creator: Option<CreatorRecord>,
    /// The context that it carried.
    pub context: Context,
    /// The group that its source belonged to.
    pub group_id: Option<Box<str>>,
    /// The run it happened in.
    pub trace: Option<Trace>,
    /// The name of the payload's Rust type.
    pub payload_type: Cow<'static, str>,
    /// The payload as JSON text.
    pub payload: Box<RawValue>,
}

impl EventRecord {
    pub(crate) fn new(meta: &EventMeta<'_>, event: &dyn AnyEvent) -> Self {
        let (id, time) = (meta.id(), meta.time());
        let record = Self::of(meta.source(), meta.to_path(), meta.context().clone(), (id, time), event);
        Self { payload_type: Cow::Borrowed(meta.payload_type()), ..record }
    }

    fn of(
        source: &Emitter,
        path: Box<str>,
        context: Context,
        (id, time): (Uuid, SystemTime),
        event: &dyn AnyEvent,
    ) -> Self {
        Self {
            id,
            path,
            created_at: time.into(),
            creator: source.creator().map(Creator::to_record),
            context,
            group_id: source.group_id().map(Into::into),
            trace: source.trace(),
            payload_type: Cow::Borrowed(event.type_name()),
            payload: payload(event),
        }
    }

    /// The last segment of the path.
    #[must_use]
    pub fn name(&self) -> &str {
        self.path.rsplit_once('.').map_or(&self.path, |(_, name)| name)
    }

    /// The payload as a `T`.
    ///
    /// # Errors
    ///
    /// If the payload does not fit the type.
    pub fn payload<'de, T: Deserialize<'de>>(&'de self) -> Result<T, serde_json::Error> {
        serde_json::from_str(self.payload.get())
    }
}

/// All of a record but its payload, which is JSON already.
#[derive(Serialize)]
struct Head<'a> {
    id: Uuid,
    path: &'a str,
    created_at: DateTime<Utc>,
    creator: Option<&'a CreatorRecord>,
    context: &'a Context,
    group_id: Option<&'a str>,
    trace: Option<Trace>,
    payload_type: &'a str,
}

impl<'a> From<&'a EventRecord> for Head<'a> {
    fn from(record: &'a EventRecord) -> Self {
        let EventRecord { id, path, created_at, creator, context, group_id, trace, payload_type, payload: _ } = record;
        let (creator, group_id) = (creator.as_ref(), group_id.as_deref());
        Self { id: *id, path, created_at: *created_at, creator, context, group_id, trace: *trace, payload_type }
    }
}

impl Emitter {
    /// The record of an event of this emitter, for who has looked at it without having it emitted, or beside its listeners.
    #[must_use]
    pub fn record(&self, name: EventName, event: &dyn AnyEvent, facet: &Facet, stamp: &EventStamp) -> EventRecord {
        let context = stamp.context(|| self.context_with(Some(facet))).clone();
        EventRecord::of(self, self.join(name.as_str()).into(), context, (stamp.id(), stamp.time()), event)
    }

    /// The context of its events, and what an emit itself adds to it.
    pub(crate) fn context_with(&self, facet: Option<&Facet>) -> Context {
        match facet {
            Some(facet) => facet.over(self.context()),
            None => self.context(),
        }
    }
}

/// A payload that panics when it is serialised becomes a string that says so: the event is not lost for that.
fn payload(event: &dyn AnyEvent) -> Box<RawValue> {
    let said = |panic| format!("<{} cannot be serialised: it panicked: {panic}>", event.type_name()).to_raw_json();
    catch_or(|| event.to_raw_json(), said)
}

/// What a sink is given, in order: events, and gaps where events were lost.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub enum SinkRecord {
    /// An event.
    Event(Box<EventRecord>),
    /// So many events were lost here.
    Gap(Gap),
}

/// A place where events were lost because a sink was slower than they were.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct Gap {
    /// How many were lost, in one stretch.
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
    /// Reads a record from its JSON text.
    ///
    /// # Errors
    ///
    /// If the text is neither an event nor a gap.
    pub fn from_json(text: &str) -> Result<Self, serde_json::Error> {
        if text.trim_start().starts_with("{\"gap\"") {
            return serde_json::from_str::<GapLine>(text).map(|line| Self::Gap(line.gap));
        }
        serde_json::from_str(text).map(|event| Self::Event(Box::new(event)))
    }

    /// Appends its JSON text: what `serde_json` makes of it, faster.
    ///
    /// # Errors
    ///
    /// If `serde_json` has one.
    pub fn write_json(&self, out: &mut Vec<u8>) -> Result<(), serde_json::Error> {
        if let Self::Event(event) = self {
            let start = out.len();
            if Canonical::unsorted().write(&Head::from(&**event), out).is_ok() && out.pop() == Some(b'}') {
                out.extend_from_slice(b",\"payload\":");
                out.extend_from_slice(event.payload.get().as_bytes());
                out.push(b'}');
                return Ok(());
            }
            out.truncate(start);
        }
        serde_json::to_writer(out, self)
    }

    /// The event, if it is one.
    #[must_use]
    pub fn as_event(&self) -> Option<&EventRecord> {
        match self {
            Self::Event(event) => Some(event),
            Self::Gap(_) => None,
        }
    }
}

/// An event stands as itself, a gap as `{"gap": {"lost": n}}`.
impl Serialize for SinkRecord {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        match self {
            Self::Event(event) => event.serialize(serializer),
            Self::Gap(gap) => GapLine { gap: *gap }.serialize(serializer),
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use serde_json::Value;

    use super::*;

    fn values() -> impl Strategy<Value = Value> {
        let leaf = prop_oneof![
            Just(Value::Null),
            any::<bool>().prop_map(Value::from),
            any::<i64>().prop_map(Value::from),
            any::<f64>().prop_map(Value::from),
            any::<String>().prop_map(Value::from),
        ];
        leaf.prop_recursive(3, 12, 3, |inner| {
            let object = prop::collection::btree_map(any::<String>(), inner.clone(), 0..3);
            let array = prop::collection::vec(inner, 0..3);
            prop_oneof![object.prop_map(|map| map.into_iter().collect()), array.prop_map(Value::Array)]
        })
    }

    fn ids() -> impl Strategy<Value = Uuid> {
        any::<u128>().prop_map(Uuid::from_u128)
    }

    prop_compose! {
        fn creators()(kind: String, name: String, id: u64) -> CreatorRecord {
            CreatorRecord { kind: kind.into(), name: name.into(), id }
        }
    }

    prop_compose! {
        fn traces()(id in ids(), run_id in ids(), parent_run_id in prop::option::of(ids())) -> Trace {
            Trace { id, run_id, parent_run_id }
        }
    }

    prop_compose! {
        fn records()(
            id in ids(), path: String, micros in 0..4_000_000_000_000_000_i64, creator in prop::option::of(creators()),
            context in prop::collection::btree_map(any::<String>(), values(), 0..3), group_id: Option<String>,
            trace in prop::option::of(traces()), payload_type: String, payload in values(), is_pretty: bool,
        ) -> EventRecord {
            let text = if is_pretty { serde_json::to_string_pretty(&payload) } else { serde_json::to_string(&payload) };
            EventRecord {
                id,
                path: path.into(),
                created_at: DateTime::from_timestamp_micros(micros).expect("a date"),
                creator,
                context: Context::from(context.into_iter().collect::<Value>()),
                group_id: group_id.map(Into::into),
                trace,
                payload_type: payload_type.into(),
                payload: RawValue::from_string(text.expect("JSON")).expect("JSON"),
            }
        }
    }

    proptest! {
        // E13
        #[test]
        fn a_record_is_written_as_serde_json_writes_it(event in records(), lost: u64, before: Vec<u8>) {
            for record in [SinkRecord::Event(Box::new(event)), SinkRecord::Gap(Gap::of(lost))] {
                let mut out = before.clone();
                record.write_json(&mut out).expect("JSON");
                let expected = [&*before, &serde_json::to_vec(&record).expect("JSON")].concat();
                prop_assert_eq!(String::from_utf8_lossy(&out), String::from_utf8_lossy(&expected));
            }
        }
    }
}
