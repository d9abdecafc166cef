//! The head of a record: all facts but the payload.

use std::time::{SystemTime, UNIX_EPOCH};

use emitree_emitter::{EventRecord, SinkRecord};
use serde::{Serialize, Serializer};
use uuid::Uuid;

use super::{Cursor, Fact};

/// The facts of one record that lists, trees and time axes need. The rest of the record is read when somebody looks at
/// it ([`Source::record`](super::Source::record)).
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct Head {
    /// The place of the record in its source.
    #[serde(flatten)]
    pub cursor: Cursor,
    /// The meaning of the record.
    #[serde(flatten)]
    pub fact: Fact,
    /// The time of the event, in JSON as microseconds since 1970. `None` for a gap or a malformed line.
    #[serde(serialize_with = "microseconds", skip_serializing_if = "Option::is_none")]
    pub time: Option<SystemTime>,
    /// The trace of the run: the id that an outermost run and all runs below it share.
    #[serde(skip)]
    pub trace: Option<Uuid>,
    /// The run in which the event happened.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub run: Option<Uuid>,
    /// The run in which this run was started. 8 zero bytes and the id of a span if a run without a parent continues the
    /// trace of another process.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub parent: Option<Uuid>,
    /// The path of the event; empty for a gap or a malformed line.
    #[serde(skip_serializing_if = "str::is_empty")]
    pub path: Box<str>,
    /// The kind of the event's creator, such as `Tool`. A run without a creator has the kind `Run`.
    #[serde(skip_serializing_if = "str::is_empty")]
    pub kind: Box<str>,
    /// The name of the event's creator, such as `read_file`, or else the namespace of the event.
    #[serde(skip_serializing_if = "str::is_empty")]
    pub name: Box<str>,
    /// The number of bytes of the payload, or of a malformed line.
    pub bytes: usize,
}

impl Head {
    /// Returns the head of a record.
    #[must_use]
    pub fn of(record: &SinkRecord, cursor: Cursor) -> Self {
        match record {
            SinkRecord::Event(event) => Self::of_event(event, cursor),
            SinkRecord::Gap(gap) => Self::gap(gap.lost, cursor),
            unknown => Self::without_event(Fact::Malformed { reason: format!("{unknown:?}").into() }, cursor, 0),
        }
    }

    fn of_event(event: &EventRecord, cursor: Cursor) -> Self {
        let fact = Fact::of(event);
        let is_lifecycle = matches!(fact, Fact::Start | Fact::Success | Fact::Error { .. } | Fact::Finish { .. });
        let (kind, name) = match &event.creator {
            Some(creator) => (&*creator.kind, &*creator.name),
            None => (if is_lifecycle { "Run" } else { "Event" }, namespace(&event.path, is_lifecycle)),
        };
        Self {
            cursor,
            time: Some(event.created_at.into()),
            trace: event.trace.map(|trace| trace.id),
            run: event.trace.map(|trace| trace.run_id),
            parent: event.trace.and_then(|trace| trace.parent_run_id),
            path: event.path.clone(),
            kind: kind.into(),
            name: name.into(),
            bytes: event.payload.get().len(),
            fact,
        }
    }

    /// Returns the head of a gap, for sources that no longer have all records.
    #[must_use]
    pub fn gap(lost: u64, cursor: Cursor) -> Self {
        Self::without_event(Fact::Gap { lost }, cursor, 0)
    }

    /// Returns the head of a line that is not a record.
    pub(super) fn malformed(reason: impl Into<Box<str>>, cursor: Cursor, bytes: usize) -> Self {
        Self::without_event(Fact::Malformed { reason: reason.into() }, cursor, bytes)
    }

    fn without_event(fact: Fact, cursor: Cursor, bytes: usize) -> Self {
        let (path, kind, name) = Default::default();
        Self { cursor, fact, time: None, trace: None, run: None, parent: None, path, kind, name, bytes }
    }
}

/// Returns the path of an event without its name, and without `run` before the name of a lifecycle event.
fn namespace(path: &str, is_lifecycle: bool) -> &str {
    let above = path.rsplit_once('.').map_or("", |(above, _)| above);
    if !is_lifecycle || above == "run" {
        return if is_lifecycle { "" } else { above };
    }
    above.strip_suffix(".run").unwrap_or(above)
}

#[expect(clippy::ref_option, reason = "serde calls it with a reference")]
fn microseconds<S: Serializer>(time: &Option<SystemTime>, serializer: S) -> Result<S::Ok, S::Error> {
    let since = time.and_then(|time| time.duration_since(UNIX_EPOCH).ok());
    since.map(|since| u64::try_from(since.as_micros()).unwrap_or(u64::MAX)).serialize(serializer)
}
