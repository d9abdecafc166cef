//! Spans as messages of OTLP.

mod attributes;
mod limits;
mod messages;
mod names;
mod value;

use opentelemetry_proto::tonic::common::v1::{InstrumentationScope, KeyValue};
use opentelemetry_proto::tonic::resource::v1::Resource;
use opentelemetry_proto::tonic::trace::v1::span::{Event, Link, SpanKind as Kind};
use opentelemetry_proto::tonic::trace::v1::status::StatusCode;
use opentelemetry_proto::tonic::trace::v1::{ResourceSpans, ScopeSpans, Span as Message, Status};
use uuid::Uuid;

pub(crate) use self::attributes::Attributes;
pub use self::limits::Limits;
use self::limits::List;
pub(crate) use self::names::Names;
pub use self::names::SpanKind;
use self::value::{key_value, plain, size};
use crate::spans::{self, Note, Span, span_id};

/// The flags of a span whose trace is sampled, and whose parent is known to be local or remote.
const SAMPLED: u32 = 0x01;
const IS_REMOTE_KNOWN: u32 = 0x100;
const IS_REMOTE: u32 = 0x200;

/// Makes the messages of spans.
#[derive(Clone, Debug)]
pub(crate) struct Encoder {
    pub(crate) attributes: Attributes,
    pub(crate) names: Names,
}

impl Encoder {
    pub(crate) fn span(&self, span: &Span) -> Message {
        let Span { trace, run, start, end, .. } = span;
        let (name, kind) = self.names.of(&run.kind, &run.name);
        let List { attributes, left_out, bytes, .. } = self.attributes.of(span);
        let limits = self.attributes.limits;
        let mut room = limits.span_bytes.saturating_sub(bytes);
        let is_remote = run.parent.is_some_and(is_foreign);
        let given = span.joined.as_ref().map_or(SAMPLED, |joined| joined.flags.into());
        Message {
            trace_id: trace.as_bytes().to_vec(),
            span_id: span_id(run.id).to_vec(),
            trace_state: span.joined.as_ref().map(|joined| joined.state.clone()).unwrap_or_default(),
            parent_span_id: run.parent.map(|parent| span_id(parent).to_vec()).unwrap_or_default(),
            flags: given | IS_REMOTE_KNOWN | if is_remote { IS_REMOTE } else { 0 },
            name,
            kind: Kind::from(kind).into(),
            start_time_unix_nano: *start,
            end_time_unix_nano: *end,
            attributes,
            dropped_attributes_count: left_out,
            events: span.notes.iter().map(|note| event(note, limits, &mut room)).collect(),
            dropped_events_count: span.lost_notes,
            links: span.links.iter().map(link).collect(),
            dropped_links_count: 0,
            status: Some(status(span, limits)),
        }
    }
}

/// Makes an event of a span. Its attributes share the bytes of the span, and are left out where there is no room.
fn event(note: &Note, limits: Limits, room: &mut usize) -> Event {
    let mut attributes = Vec::new();
    for (name, value) in &note.attributes {
        let (value, _) = limits.shortened(plain(value));
        if let Some(left) = room.checked_sub(size(&value)) {
            *room = left;
            attributes.push(key_value(name, value));
        }
    }
    let left_out = u32::try_from(note.attributes.len() - attributes.len()).unwrap_or(u32::MAX);
    Event { time_unix_nano: note.time, name: note.name.clone(), attributes, dropped_attributes_count: left_out }
}

fn link(link: &spans::Link) -> Link {
    let trace_id = link.trace.as_bytes().to_vec();
    let span_id = link.span.to_vec();
    Link { trace_id, span_id, trace_state: link.state.clone(), flags: link.flags.into(), ..Link::default() }
}

fn status(span: &Span, limits: Limits) -> Status {
    if !span.is_error {
        return Status::default();
    }
    let message = span.run.error.as_deref().unwrap_or_default();
    Status { code: StatusCode::Error.into(), message: limits::cut(message, limits.value_bytes).to_owned() }
}

/// Returns `true` if the id is the span id of another service, which has no first half.
fn is_foreign(parent: Uuid) -> bool {
    parent.as_bytes()[..8] == [0; 8]
}

/// Makes the message that has the spans of one request.
pub(crate) fn resource_spans(resource: Vec<KeyValue>, spans: Vec<Message>) -> ResourceSpans {
    let scope = InstrumentationScope {
        name: "emitree".to_owned(),
        version: env!("CARGO_PKG_VERSION").to_owned(),
        ..InstrumentationScope::default()
    };
    let scope_spans = vec![ScopeSpans { scope: Some(scope), spans, schema_url: String::new() }];
    let resource = Resource { attributes: resource, ..Resource::default() };
    ResourceSpans { resource: Some(resource), scope_spans, schema_url: String::new() }
}

/// Makes an attribute of a resource.
pub(crate) fn text(name: &str, value: &str) -> KeyValue {
    key_value(name, plain(&value.into()))
}
