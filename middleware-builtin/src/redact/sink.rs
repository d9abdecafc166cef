//! Redaction of what leaves through a sink, and of nothing else.

use std::sync::Arc;
use std::time::Duration;

use emitree_emitter::{BoxError, Context, EventRecord, Overflow, Progress, Sink, SinkRecord};
use serde_json::Value;
use serde_json::value::to_raw_value;

use super::recorded_text::RecordedTexts;
use super::redactor::{RedactOptions, Redactor};
use super::vault::Vault;
use crate::shared::inspected_place::Place;

/// A sink that gets records without secrets. Made by [`Redact::sink`](super::Redact::sink).
///
/// The payload, the context and the group id of each record are looked at; other ids, path, types and times are left. Records without a
/// secret go on as they are. Pseudonyms are the sink's own, and never restored. A payload that is no JSON is withheld.
/// A secret that is split over records is found where the text was [declared](Self::text_at).
#[derive(Debug)]
pub struct RedactSink<S> {
    inner: S,
    redactor: Redactor,
    texts: RecordedTexts,
}

impl<S: Sink> RedactSink<S> {
    pub(super) fn new(options: RedactOptions, inner: S) -> Self {
        Self { inner, redactor: Redactor::new(options, Arc::new(Vault::default())), texts: RecordedTexts::default() }
    }

    /// Takes the text at a JSON pointer (RFC 6901) in events of that name for text that comes bit by bit: each run's by
    /// itself. An event may hold several: each is declared, and is a text of its own.
    ///
    /// Records go on with what is clear, as events do with [`Redact::text_of`](super::Redact::text_of). What is held when
    /// the run is over, or the sink is closed, comes as one more record for each text before that: a copy of the last one
    /// with an id of its own, in which the event's other texts are empty. Where records were lost, what is held comes out
    /// too. At most 1,024 texts may be under way at a time; of more, the oldest is taken to be over.
    #[must_use]
    pub fn text_at(mut self, name: impl Into<String>, pointer: impl Into<String>) -> Self {
        self.texts.declare(name.into(), pointer.into());
        self
    }

    /// The sink that it writes to.
    pub const fn inner(&self) -> &S {
        &self.inner
    }

    fn redacted(&mut self, event: &EventRecord) -> Result<Option<EventRecord>, BoxError> {
        let mut payload: Value = serde_json::from_str(event.payload.get())?;
        let mut context = serde_json::to_value(&event.context)?;
        let taken = self.texts.take(event, &mut payload, &self.redactor);
        let group_id = event.group_id.as_deref().and_then(|id| self.redactor.event_text(event.name(), id));
        let is_changed = [
            self.redactor.value(Place::Event, &mut payload),
            self.redactor.value(Place::Context, &mut context),
            group_id.is_some(),
        ];
        // Nobody asks how many it were.
        drop(self.redactor.found());
        if is_changed == [false; 3] && taken.is_empty() {
            return Ok(None);
        }
        taken.iter().for_each(|taken| taken.put_back(&mut payload));
        let mut event = event.clone();
        event.payload = to_raw_value(&payload)?;
        event.context = Context::from(context);
        event.group_id = group_id.map(Into::into).or(event.group_id);
        self.texts.remember(&event, &taken);
        Ok(Some(event))
    }

    fn write_rest(&mut self, rest: Vec<EventRecord>) -> Result<(), BoxError> {
        rest.into_iter().try_for_each(|event| self.inner.write(&SinkRecord::Event(Box::new(event))))
    }

    fn write_event(&mut self, record: &SinkRecord, event: &EventRecord) -> Result<(), BoxError> {
        let rest = self.texts.before(event, &self.redactor)?;
        self.write_rest(rest)?;
        match self.redacted(event)? {
            Some(event) => self.inner.write(&SinkRecord::Event(Box::new(event))),
            None => self.inner.write(record),
        }
    }
}

impl<S: Sink> Sink for RedactSink<S> {
    fn write(&mut self, record: &SinkRecord) -> Result<(), BoxError> {
        if let Some(event) = record.as_event() {
            return self.write_event(record, event);
        }
        let rest = self.texts.rest(&self.redactor)?;
        self.write_rest(rest)?;
        self.inner.write(record)
    }

    fn flush(&mut self) -> Result<(), BoxError> {
        self.inner.flush()
    }

    fn close(&mut self) -> Result<(), BoxError> {
        let rest = self.texts.rest(&self.redactor).and_then(|rest| self.write_rest(rest));
        self.inner.close().and(rest)
    }

    fn progress(&self) -> Option<Progress> {
        self.inner.progress()
    }

    fn flush_interval(&self) -> Option<Duration> {
        self.inner.flush_interval()
    }

    fn capacity(&self) -> usize {
        self.inner.capacity()
    }

    fn overflow(&self) -> Overflow {
        self.inner.overflow()
    }
}
