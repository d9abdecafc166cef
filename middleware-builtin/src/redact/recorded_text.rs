//! Text whose chunks arrive in several records. The chunks of each run form a separate text.

use std::collections::VecDeque;

use emitree_emitter::{BoxError, Event, EventRecord, new_id};
use emitree_runtime::{AttemptDiscarded, Stage};
use emitree_secrets::Chunks;
use serde_json::Value;
use serde_json::value::to_raw_value;
use uuid::Uuid;

use super::redactor::Redactor;

/// The maximum number of texts that may be under way at once. If there are more, the oldest text is ended.
const MOST: usize = 1024;

/// The registered text fields, and the texts that are under way.
#[derive(Debug, Default)]
pub(super) struct RecordedTexts {
    declared: Vec<TextField>,
    under_way: VecDeque<RecordedText>,
}

/// A registered text field: the name of the events, and the JSON pointer to the text. An event may have several text
/// fields.
#[derive(Clone, Debug, PartialEq, Eq)]
struct TextField {
    name: String,
    pointer: String,
}

/// The text of one field in one run.
#[derive(Debug)]
struct RecordedText {
    run_id: Option<Uuid>,
    of: TextField,
    chunks: Chunks,
    last: EventRecord,
}

impl RecordedTexts {
    pub(super) fn declare(&mut self, name: String, pointer: String) {
        let declared = TextField { name, pointer };
        if !self.declared.contains(&declared) {
            self.declared.push(declared);
        }
    }

    /// Takes the registered texts out of a payload, and returns the text that is released for each of them.
    pub(super) fn take(&mut self, event: &EventRecord, payload: &mut Value, redactor: &Redactor) -> Vec<TakenText> {
        let declared: Vec<TextField> = self.declared.iter().filter(|of| of.name == event.name()).cloned().collect();
        declared.into_iter().filter_map(|of| self.take_one(event, of, payload, redactor)).collect()
    }

    fn take_one(
        &mut self,
        event: &EventRecord,
        of: TextField,
        payload: &mut Value,
        redactor: &Redactor,
    ) -> Option<TakenText> {
        let Value::String(text) = payload.pointer_mut(&of.pointer).filter(|text| text.is_string())?.take() else {
            return None;
        };
        let chunks = &mut self.of_run(event, &of, redactor).chunks;
        let mut clear = String::new();
        chunks.push(&text, |piece| redactor.put(&mut clear, piece, |_| ()));
        Some(TakenText { pointer: of.pointer, clear })
    }

    fn of_run(&mut self, event: &EventRecord, of: &TextField, redactor: &Redactor) -> &mut RecordedText {
        let run_id = run_id(event);
        let found = self.under_way.iter().position(|text| text.run_id == run_id && text.of == *of);
        let at = found.unwrap_or_else(|| {
            let chunks = redactor.options.scanner.chunks();
            self.under_way.push_back(RecordedText { run_id, of: of.clone(), chunks, last: event.clone() });
            self.under_way.len() - 1
        });
        &mut self.under_way[at]
    }

    /// Remembers the event as the last event of each text in `taken`.
    pub(super) fn remember(&mut self, event: &EventRecord, taken: &[TakenText]) {
        let run_id = run_id(event);
        let is_taken =
            |of: &TextField| of.name == event.name() && taken.iter().any(|taken| taken.pointer == of.pointer);
        for text in self.under_way.iter_mut().filter(|text| text.run_id == run_id && is_taken(&text.of)) {
            text.last = event.clone();
        }
    }

    /// Returns the records to write before an event: the held-back part of each text that the event ends. If too many
    /// texts are under way, the oldest texts end as well.
    pub(super) fn before(&mut self, event: &EventRecord, redactor: &Redactor) -> Result<Vec<EventRecord>, BoxError> {
        let run_id = run_id(event);
        if event.name() == AttemptDiscarded::NAME.as_str() {
            // Drop the texts of a discarded attempt, including the text that is held back (M7).
            self.under_way.retain(|text| text.run_id != run_id);
        }
        // After `success` or `error`, a run emits no text, except in the listeners of these events.
        let is_end = matches!(Stage::of_record(event), Some(Stage::Success | Stage::Error));
        let mut over = Vec::new();
        while let Some(at) = self.under_way.iter().position(|text| is_end && text.run_id == run_id) {
            over.extend(self.under_way.remove(at));
        }
        while self.under_way.len() > MOST {
            over.extend(self.under_way.pop_front());
        }
        self.rest_of(over, redactor)
    }

    /// Ends all texts, and returns records with the text that was held back.
    pub(super) fn rest(&mut self, redactor: &Redactor) -> Result<Vec<EventRecord>, BoxError> {
        let all = std::mem::take(&mut self.under_way);
        self.rest_of(all, redactor)
    }

    fn rest_of(
        &self,
        texts: impl IntoIterator<Item = RecordedText>,
        redactor: &Redactor,
    ) -> Result<Vec<EventRecord>, BoxError> {
        let rest = |text: RecordedText| text.rest(&self.declared, redactor).transpose();
        texts.into_iter().filter_map(rest).collect()
    }
}

impl RecordedText {
    /// Returns a copy of the last event with the text that is held back, or `None` if no text is held back. Other text
    /// fields are empty, because the last event already contained their text.
    fn rest(mut self, declared: &[TextField], redactor: &Redactor) -> Result<Option<EventRecord>, BoxError> {
        let mut rest = String::new();
        self.chunks.finish(|piece| redactor.put(&mut rest, piece, |_| ()));
        if rest.is_empty() {
            return Ok(None);
        }
        let mut payload: Value = serde_json::from_str(self.last.payload.get())?;
        for other in declared.iter().filter(|other| other.name == self.of.name) {
            if let Some(Value::String(text)) = payload.pointer_mut(&other.pointer) {
                text.clear();
            }
        }
        TakenText { pointer: self.of.pointer, clear: rest }.put_back(&mut payload);
        self.last.payload = to_raw_value(&payload)?;
        self.last.id = new_id();
        Ok(Some(self.last))
    }
}

/// The released part of a text, and the JSON pointer to its field.
#[derive(Debug)]
pub(super) struct TakenText {
    pointer: String,
    clear: String,
}

impl TakenText {
    pub(super) fn put_back(&self, payload: &mut Value) {
        if let Some(text) = payload.pointer_mut(&self.pointer) {
            *text = self.clear.as_str().into();
        }
    }
}

fn run_id(event: &EventRecord) -> Option<Uuid> {
    event.trace.map(|trace| trace.run_id)
}
