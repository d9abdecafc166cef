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

/// An own event that becomes an event of its span: the end of its path, and its attributes with their places in the
/// payload.
type NoteRow = (&'static str, &'static [(&'static str, &'static str)]);

const REASON: &str = "emitree.reason";
const BY: &str = "emitree.by";
const MESSAGE: &str = "exception.message";

/// Retries, fallbacks, discarded attempts, and denials that were only reported.
const NOTES: &[NoteRow] = &[
    ("attempt_discarded", &[("/reason", REASON)]),
    ("retry", &[("/retry", "emitree.retry"), ("/error/message", MESSAGE), ("/cause", MESSAGE)]),
    ("retries_exceeded", &[("/retries", "emitree.retry"), ("/error/message", MESSAGE)]),
    ("retry.exhausted", &[("/retries", "emitree.retry"), ("/cause", MESSAGE)]),
    ("fell_back", &[("/from", "emitree.from"), ("/to", "emitree.to"), ("/error/message", MESSAGE)]),
    ("fallback.answered", &[("/by", BY)]),
    ("fallback.exhausted", &[]),
    ("would_deny", &[("/guard", BY), ("/reason", REASON)]),
    ("resumed", &[("/continues", "emitree.continues")]),
];

/// Returns the event of the span for an own event of the run, if it has one. An event that was asked for by name has no
/// attributes: its payload may be content.
pub(super) fn of_event(event: &EventRecord, time: u64, asked_for: &[String]) -> Option<Note> {
    if let Some((name, places)) = NOTES.iter().find(|(name, _)| is_end_of(name, &event.path)) {
        let payload = event.to_json();
        let found = places.iter().filter_map(|(place, name)| Some((*name, payload.pointer(place)?.clone())));
        return Some(Note { name: (*name).to_owned(), time, attributes: found.collect() });
    }
    let name = asked_for.iter().find(|name| is_end_of(name, &event.path))?;
    Some(Note { name: name.clone(), time, attributes: Vec::new() })
}

/// Returns `true` if a path ends with these segments.
fn is_end_of(end: &str, path: &str) -> bool {
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
