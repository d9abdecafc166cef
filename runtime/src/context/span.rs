//! The span of a run, where anybody sees spans (R12).

use std::cell::OnceCell;
use std::fmt;

use emitree_emitter::{Emitter, new_id};
use tracing::dispatcher::get_default;
use tracing::subscriber::NoSubscriber;
use tracing::{Level, Span, level_enabled};
use uuid::Uuid;

use crate::RunContext;

/// One span per run, and the run's id if the span tells it: ids are made, and formatted, for those who look at them.
#[inline(always)]
pub(crate) fn span(instance: &Emitter, parent: Option<&RunContext>, told: &OnceCell<Uuid>) -> Span {
    if level_enabled!(Level::INFO) && is_traced() { seen(instance, parent, told) } else { Span::none() }
}

/// Where there is somebody who may see it.
fn seen(instance: &Emitter, parent: Option<&RunContext>, told: &OnceCell<Uuid>) -> Span {
    let run_id = tracing::field::display(Lazy(|| Some(*told.get_or_init(new_id))));
    let parent_run_id = tracing::field::display(Lazy(|| parent.map(RunContext::run_id)));
    let path = instance.namespace();
    let span = || tracing::info_span!("run", outcome = tracing::field::Empty, path, run_id, parent_run_id);
    match parent {
        // Started in a task that does not know the parent's span. By its id it could not be named here: another
        // subscriber may have given it.
        Some(parent) if !is_in_span() => parent.span().in_scope(span),
        _ => span(),
    }
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
