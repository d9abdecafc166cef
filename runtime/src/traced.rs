//! Whether anybody sees spans, and whether one is in one (R12).

use tracing::dispatcher::get_default;
use tracing::subscriber::NoSubscriber;

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
