//! Events of spans: the own events of a run that explain how it went.

use emitree_emitter::EventRecord;
use emitree_sinks::runs::Run;
use serde_json::Value;

/// The most events of one span.
pub(super) const MOST: usize = 128;

/// An event of a span.
#[derive(Clone, Debug)]
pub(crate) struct Note {
    pub(crate) name: String,
    /// Nanoseconds since 1970.
    pub(crate) time: u64,
    pub(crate) attributes: Vec<(&'static str, Value)>,
}

/// An own event that becomes an event of its span.
struct NoteRow {
    /// The end of the event's path.
    event: &'static str,
    /// The attributes, with their places in the head of the payload.
    head: &'static [(&'static str, &'static str)],
    /// The attributes that are content, with their places in the payload.
    content: &'static [(&'static str, &'static str)],
}

const REASON: &str = "emitree.reason";
const BY: &str = "emitree.by";
const MESSAGE: &str = "exception.message";

const CALL: &str = "gen_ai.tool.call.id";
const INPUT: &str = "emitree.input";
const OUTPUT: &str = "emitree.output";

/// Retries, fallbacks, discarded attempts, denials that were only reported, approvals, and answers to questions.
const NOTES: &[NoteRow] = &[
    NoteRow { event: "attempt_discarded", head: &[("/reason", REASON)], content: &[] },
    NoteRow {
        event: "retry",
        head: &[("/retry", "emitree.retry")],
        content: &[("/error/message", MESSAGE), ("/cause", MESSAGE)],
    },
    NoteRow { event: "retries_exceeded", head: &[], content: &[("/error/message", MESSAGE)] },
    NoteRow { event: "retry.exhausted", head: &[], content: &[("/cause", MESSAGE)] },
    NoteRow {
        event: "fell_back",
        head: &[("/from", "emitree.from"), ("/to", "emitree.to")],
        content: &[("/error/message", MESSAGE)],
    },
    NoteRow { event: "fallback.answered", head: &[], content: &[("/by", BY)] },
    NoteRow { event: "fallback.exhausted", head: &[], content: &[] },
    NoteRow { event: "would_deny", head: &[("/guard", BY)], content: &[("/reason", REASON)] },
    NoteRow { event: "approval.asked", head: &[], content: &[] },
    NoteRow { event: "approval.approved", head: &[("/by", BY)], content: &[] },
    NoteRow { event: "approval.edited", head: &[("/by", BY)], content: &[("/input", INPUT)] },
    NoteRow { event: "approval.responded", head: &[("/by", BY)], content: &[("/output", OUTPUT)] },
    NoteRow { event: "approval.rejected", head: &[("/by", BY)], content: &[("/reason", REASON)] },
    NoteRow { event: "answered", head: &[("/call", CALL), ("/by", BY), ("/edited", "emitree.edited")], content: &[] },
    NoteRow { event: "resumed", head: &[("/continues", "emitree.continues")], content: &[] },
];

/// Returns `true` if an event with this name has content that becomes an attribute.
pub(super) fn has_content(name: &str) -> bool {
    let last = |row: &NoteRow| row.event.rsplit('.').next() == Some(name);
    NOTES.iter().any(|row| last(row) && !row.content.is_empty())
}

/// Returns the event of the span for an own event of the run, if it has one. An event that was asked for by name has no
/// attributes: its payload may be content.
pub(super) fn of_event(event: &EventRecord, time: u64, asked_for: &[String], with_content: bool) -> Option<Note> {
    if let Some(row) = NOTES.iter().find(|row| is_end_of(row.event, &event.path)) {
        let payload = event.to_json();
        let content = if with_content { row.content } else { &[] };
        let places = row.head.iter().chain(content);
        let found = places.filter_map(|(place, name)| Some((*name, payload.pointer(place)?.clone())));
        let found = found.filter(|(_, value)| !value.is_null());
        return Some(Note { name: row.event.to_owned(), time, attributes: found.collect() });
    }
    let name = asked_for.iter().find(|name| is_end_of(name, &event.path))?;
    Some(Note { name: name.clone(), time, attributes: Vec::new() })
}

/// Returns `true` if a path ends with these segments.
pub(super) fn is_end_of(end: &str, path: &str) -> bool {
    path.strip_suffix(end).is_some_and(|before| before.is_empty() || before.ends_with('.'))
}

/// Returns the exception of a run that ended with an error, or the reason why a run was denied or halted.
pub(super) fn of_end(run: &Run, time: u64, is_error: bool) -> Option<Note> {
    let message: Value = run.error.as_deref().unwrap_or_default().into();
    let details = run.error_details.clone().unwrap_or_default();
    if is_error {
        let mut attributes = vec![("exception.type", super::status::error_type(run).into()), (MESSAGE, message)];
        if !details.causes.is_empty() {
            let causes: Vec<String> = details.causes.iter().map(|cause| format!("caused by: {cause}")).collect();
            attributes.push(("exception.stacktrace", causes.join("\n").into()));
        }
        return Some(Note { name: "exception".to_owned(), time, attributes });
    }
    let name = run.outcome.as_deref().filter(|outcome| matches!(*outcome, "denied" | "halted" | "aborted"))?;
    let by = details.by.map(|by| (BY, Value::from(&*by)));
    let attributes = by.into_iter().chain([(REASON, message)]).collect();
    Some(Note { name: name.to_owned(), time, attributes })
}
