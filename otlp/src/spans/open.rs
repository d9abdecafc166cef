//! A span that is being built.

use std::time::SystemTime;

use emitree_emitter::EventRecord;
use serde_json::Value;
use uuid::Uuid;

use super::notes::{self, Note};
use super::recent::Recent;
use super::tokens::Tokens;
use super::{Fact, Facts, Link, span_id};

/// A span whose run has not ended.
#[derive(Debug)]
pub(super) struct OpenSpan {
    pub(super) trace: Uuid,
    pub(super) parent: Option<Uuid>,
    /// The time of the first event.
    pub(super) first: SystemTime,
    /// The time of the last event.
    pub(super) last: SystemTime,
    has_chunk: bool,
    pub(super) facts: Facts,
    /// The tokens of the runs below that have ended.
    pub(super) below: Tokens,
    pub(super) notes: Vec<Note>,
    pub(super) lost_notes: u32,
    pub(super) links: Vec<Link>,
}

impl OpenSpan {
    pub(super) fn new(trace: Uuid, parent: Option<Uuid>, first: SystemTime) -> Self {
        let facts = Facts::new();
        let notes = Vec::new();
        let links = Vec::new();
        let below = Tokens::default();
        Self { trace, parent, first, last: first, has_chunk: false, facts, below, notes, lost_notes: 0, links }
    }

    /// Notes the time of the first piece of a model's answer.
    pub(super) fn add_chunk(&mut self, event: &EventRecord, time: SystemTime, started: Option<SystemTime>) {
        let is_chunk = matches!(event.name(), "new_token" | "tool_call_started");
        if !is_chunk || self.has_chunk {
            return;
        }
        self.has_chunk = true;
        let waited = started.and_then(|started| time.duration_since(started).ok());
        self.facts.insert(Fact::IsStream, true.into());
        self.facts.extend(waited.map(|waited| (Fact::TimeToFirstChunk, waited.as_secs_f64().into())));
    }

    /// Adds a link to the run that this run continues. Its trace is known if this sink has seen it; otherwise it is
    /// taken for the outermost run of its trace.
    pub(super) fn add_link(&mut self, event: &EventRecord, ended: &Recent<Uuid>) {
        if event.name() != "resumed" {
            return;
        }
        let continues = event.to_json().get("continues").and_then(Value::as_str).and_then(|id| id.parse().ok());
        self.links.extend(continues.map(|run| {
            let trace = ended.get(run).copied().unwrap_or(run);
            Link { trace, span: span_id(run), flags: 1, state: String::new() }
        }));
    }

    pub(super) fn add_note(&mut self, note: Option<Note>) {
        let Some(note) = note else { return };
        if self.notes.len() < notes::MOST {
            self.notes.push(note);
        } else {
            self.lost_notes += 1;
        }
    }
}
