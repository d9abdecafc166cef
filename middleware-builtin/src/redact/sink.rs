//! Redaction of what leaves through a sink, and of nothing else.

use std::sync::Arc;
use std::time::Duration;

use emitree_emitter::{BoxError, Context, EventRecord, Overflow, Record, Sink};
use serde_json::Value;
use serde_json::value::to_raw_value;

use super::core::{Redactor, Settings};
use super::event::Place;
use super::vault::Vault;

/// A sink that gets records without secrets. Made by [`Redact::sink`](super::Redact::sink).
///
/// The payload and the context of each record are looked at; ids, path, types and times are left. Records without a
/// secret go on as they are. Pseudonyms are the sink's own, and never restored. A payload that is no JSON is withheld.
#[derive(Debug)]
pub struct RedactSink<S> {
    inner: S,
    redactor: Redactor,
}

impl<S: Sink> RedactSink<S> {
    pub(super) fn new(settings: Settings, inner: S) -> Self {
        Self { inner, redactor: Redactor::new(settings, Arc::new(Vault::default())) }
    }

    /// The sink that it writes to.
    pub const fn inner(&self) -> &S {
        &self.inner
    }

    fn redacted(&self, event: &EventRecord) -> Result<Option<EventRecord>, BoxError> {
        let mut payload: Value = serde_json::from_str(event.payload.get())?;
        let mut context = serde_json::to_value(&event.context)?;
        let is_changed =
            [self.redactor.value(Place::Event, &mut payload), self.redactor.value(Place::Context, &mut context)];
        // Nobody asks how many it were.
        drop(self.redactor.found());
        if is_changed == [false; 2] {
            return Ok(None);
        }
        let mut event = event.clone();
        event.payload = to_raw_value(&payload)?;
        event.context = Context::from(context);
        Ok(Some(event))
    }
}

impl<S: Sink> Sink for RedactSink<S> {
    fn write(&mut self, record: &Record) -> Result<(), BoxError> {
        let redacted = record.as_event().map(|event| self.redacted(event)).transpose()?.flatten();
        match redacted {
            Some(event) => self.inner.write(&Record::Event(Box::new(event))),
            None => self.inner.write(record),
        }
    }

    fn flush(&mut self) -> Result<(), BoxError> {
        self.inner.flush()
    }

    fn close(&mut self) -> Result<(), BoxError> {
        self.inner.close()
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
