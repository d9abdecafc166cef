//! The span of a run, where anybody sees spans (R12).

use std::cell::OnceCell;
use std::fmt;

use emitree_emitter::{Emitter, new_id};
use tracing::dispatcher::get_default;
use tracing::subscriber::NoSubscriber;
use tracing::{Level, Span, level_enabled};
use uuid::Uuid;

use crate::RunContext;

/// One span per run, and the run's id if the span has told it: ids are made, and formatted, for those who look at them.
pub(crate) fn span(instance: &Emitter, parent: Option<&RunContext>) -> (Span, Option<Uuid>) {
    if !level_enabled!(Level::INFO) || !is_traced() {
        return (Span::none(), None);
    }
    let told = OnceCell::new();
    let run_id = tracing::field::display(Lazy(|| Some(*told.get_or_init(new_id))));
    let parent_run_id = tracing::field::display(Lazy(|| parent.map(RunContext::run_id)));
    let path = instance.namespace();
    let span = || tracing::info_span!("run", outcome = tracing::field::Empty, path, run_id, parent_run_id);
    let span = match parent {
        // Started in a task that does not know the parent's span. By its id it could not be named here: another
        // subscriber may have given it.
        Some(parent) if !is_in_span() => parent.span().in_scope(span),
        _ => span(),
    };
    (span, told.into_inner())
}

struct Lazy<F>(F);

impl<F: Fn() -> Option<Uuid>> fmt::Display for Lazy<F> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        (self.0)().map_or(Ok(()), |id| id.fmt(f))
    }
}

/// Tells whether there is a subscriber here. Where there is none, but one elsewhere in the process, `tracing` makes
/// spans that nobody sees.
#[inline]
pub(crate) fn is_traced() -> bool {
    get_default(|subscriber| !subscriber.is::<NoSubscriber>())
}

/// Tells whether there is a current span; without a handle of it, which [`Span::current`](tracing::Span::current) takes.
pub(crate) fn is_in_span() -> bool {
    get_default(|subscriber| subscriber.current_span().id().is_some())
}
