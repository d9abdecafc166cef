//! Whether anybody sees spans (R12).

use tracing::dispatcher::get_default;
use tracing::subscriber::NoSubscriber;

/// Tells whether there is a subscriber here. Where there is none, but one elsewhere in the process, `tracing` makes
/// spans that nobody sees.
#[inline]
pub(crate) fn is_traced() -> bool {
    get_default(|subscriber| !subscriber.is::<NoSubscriber>())
}
