//! The `tracing` span of a run (R12).

use std::cell::OnceCell;
use std::fmt;

use emitree_emitter::{Creator, Emitter, new_id};
use tracing::Span;
use tracing::dispatcher::get_default;
use tracing::field::{Empty, display};
use tracing::subscriber::NoSubscriber;
use uuid::Uuid;

use crate::RunContext;

/// Makes the span of a run. Without a `tracing` subscriber, the span is disabled. Sets `cell` to the run's id if the
/// subscriber formats the field `run_id`. The run's `creator` is the instance's, unless it has its own.
pub(crate) fn span(
    instance: &Emitter,
    creator: Option<&Creator>,
    parent: Option<&RunContext>,
    cell: &OnceCell<Uuid>,
) -> Span {
    if !is_traced() {
        return Span::none();
    }
    let path = instance.namespace();
    let creator = creator.or_else(|| instance.creator());
    let (kind, name) = creator.map_or(("Run", path), |creator| (creator.kind(), creator.name()));
    // Exporters for OpenTelemetry show this field as the name of the span.
    let title = display(Title { kind, name });
    let run_id = display(Lazy(|| Some(*cell.get_or_init(new_id))));
    let parent_run_id = display(Lazy(|| parent.map(RunContext::run_id)));
    let span =
        || tracing::info_span!("run", outcome = Empty, otel.name = title, kind, name, path, run_id, parent_run_id);
    match parent {
        // If no span is current, for example in a task, enter the parent's span. Do not pass the id of that span as
        // `parent`, because the id may come from another subscriber.
        Some(parent) if !is_in_span() => parent.span().in_scope(span),
        _ => span(),
    }
}

/// The kind and the name of a run, such as `Tool count`.
pub(crate) struct Title<'a> {
    pub(crate) kind: &'a str,
    pub(crate) name: &'a str,
}

impl fmt::Display for Title<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.kind)?;
        // A run in the root's namespace may have no name.
        if self.name.is_empty() { Ok(()) } else { write!(f, " {}", self.name) }
    }
}

struct Lazy<F>(F);

impl<F: Fn() -> Option<Uuid>> fmt::Display for Lazy<F> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        (self.0)().map_or(Ok(()), |id| id.fmt(f))
    }
}

/// Returns `true` if this thread has a `tracing` subscriber. Without this check, as soon as another thread has a
/// subscriber, `tracing` would make spans that no subscriber receives.
#[inline]
pub(crate) fn is_traced() -> bool {
    get_default(|subscriber| !subscriber.is::<NoSubscriber>())
}

/// Returns `true` if there is a current span, without cloning it as [`Span::current`](tracing::Span::current) does.
pub(crate) fn is_in_span() -> bool {
    get_default(|subscriber| subscriber.current_span().id().is_some())
}
