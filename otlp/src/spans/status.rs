//! The outcomes that are errors of a span.

use emitree_sinks::runs::Run;

/// The outcomes that are errors. A denial, a halt, an abort, a question and a dropped run are control flow: their spans
/// have no status.
const ERRORS: [&str; 3] = ["failed", "panicked", "timed_out"];

/// Returns `true` if the run ended with an error.
pub(super) fn is_error(run: &Run) -> bool {
    run.outcome.as_deref().is_some_and(|outcome| ERRORS.contains(&outcome))
}

/// Returns the HTTP status of the error, or else its kind, or else the outcome.
pub(super) fn error_type(run: &Run) -> String {
    let details = run.error_details.as_ref();
    let status = details.and_then(|details| details.status).map(|status| status.to_string());
    let kind = details.map(|details| &*details.kind).filter(|kind| !kind.is_empty()).map(ToOwned::to_owned);
    let outcome = || run.outcome.as_deref().unwrap_or("_OTHER").to_owned();
    status.or(kind).unwrap_or_else(outcome)
}
