//! Redaction of the records that a sink receives.

use std::time::Duration;

use emitree_emitter::{BoxError, Context, DetailFn, EventRecord, Overflow, Progress, Sink, SinkRecord};
use serde_json::Value;
use serde_json::value::to_raw_value;

use super::recorded_text::RecordedTexts;
use super::redactor::{RedactOptions, Redactor};
use crate::shared::json::Path;
use crate::shared::run_part::RunPart;

/// A sink that redacts records and passes them on. Returned by [`Redact::sink`](super::Redact::sink).
///
/// The sink redacts the payload, the context and the group id of each record; other ids, paths, types and times are not
/// changed. A record with neither secrets nor registered text passes unchanged. The sink uses the
/// [pseudonyms](super::Redact::pseudonyms) of its `Redact`, and by default a mapping of its own. Secrets that occur only
/// in records are not restored. A record whose payload is not valid JSON is not written, and counts as a failed write. A secret
/// that is split over several records is found if its text is [registered](Self::text_at).
#[derive(Debug)]
pub struct RedactSink<S> {
    inner: S,
    redactor: Redactor,
    texts: RecordedTexts,
}

impl<S: Sink> RedactSink<S> {
    pub(super) fn new(options: RedactOptions, inner: S) -> Self {
        Self { inner, redactor: Redactor::of_sink(options), texts: RecordedTexts::default() }
    }

    /// Registers text that arrives in chunks: the text at a JSON pointer (RFC 6901) in events with this name. The
    /// chunks of each run form a separate text. If an event contains several texts, register each of them.
    ///
    /// Each record is written with the text that is released from its own chunk and from earlier chunks. The rest is
    /// held back, as with [`Redact::text_of`](super::Redact::text_of). If an attempt is discarded, the text that is
    /// held back is dropped. Text that is still held back is written before the run's `success` or `error`, after a
    /// loss of records, and when the sink is closed. It is written in an additional record: a copy of the text's last
    /// record, with a new id and with all other registered texts empty. At most 1,024 texts may be under way at once;
    /// beyond that, the oldest text is ended.
    #[must_use]
    pub fn text_at(mut self, name: impl Into<String>, pointer: impl Into<String>) -> Self {
        self.texts.declare(name.into(), pointer.into());
        self
    }

    /// Returns the inner sink, to which the records are written.
    pub const fn inner(&self) -> &S {
        &self.inner
    }

    fn redacted(&mut self, event: &EventRecord) -> Result<Option<EventRecord>, BoxError> {
        let mut payload: Value = serde_json::from_str(event.payload.get())?;
        let mut context = serde_json::to_value(&event.context)?;
        let taken = self.texts.take(event, &mut payload, &self.redactor);
        let group_id = event.group_id.as_deref().and_then(|id| self.redactor.event_text(event.name(), id));
        let kind = event.creator.as_ref().map_or("", |creator| &*creator.kind);
        let is_changed = [
            self.redactor.value_at(RunPart::Event, &Path::root_of(kind, false), &mut payload),
            self.redactor.value_at(RunPart::Context, &Path::Root, &mut context),
            group_id.is_some(),
        ];
        // A sink reports no findings: drop them, so that they do not accumulate.
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
        // Records were lost, perhaps with more text of the same runs: now write the text that is held back.
        let rest = self.texts.rest(&self.redactor)?;
        self.write_rest(rest)?;
        self.inner.write(record)
    }

    fn flush(&mut self) -> Result<(), BoxError> {
        self.inner.flush()
    }

    fn close(&mut self) -> Result<(), BoxError> {
        let rest = self.texts.rest(&self.redactor).and_then(|rest| self.write_rest(rest));
        // Close the inner sink even if the text that is held back could not be written.
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

    fn detail(&self) -> DetailFn {
        self.inner.detail()
    }
}
