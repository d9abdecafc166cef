//! Catches the panics of user code. No other module of this crate catches panics.
//!
//! 1. A caught panic is reduced to its message. Its payload is dropped here and nowhere else.
//! 2. The payload is a user's value: its `Drop` may panic, and so may the `Drop` of *that* panic's payload. After a few
//!    rounds the last payload is leaked, and the leak is logged.
//! 3. A `tracing` subscriber may panic, too. That panic is not logged, because logging it could panic again.

use std::any::Any;
use std::mem::needs_drop;
use std::panic::{AssertUnwindSafe, catch_unwind};

/// The number of payloads that are dropped before the next payload is leaked. Each payload after the first comes from
/// the panic in the drop of the payload before it.
const MAX_DROPS: usize = 4;

/// Returns the message of a caught panic and disposes of its payload.
///
/// The payload may be any value (`panic_any`), so dropping it runs user code, which may panic as well. Such a panic
/// does not leave this function; it is logged as a warning. If one payload after another panics in its `Drop`, the
/// fifth is leaked.
///
/// ```
/// use std::panic::{catch_unwind, panic_any};
///
/// use emitree_emitter::panic_text;
///
/// struct Bomb;
///
/// impl Drop for Bomb {
///     fn drop(&mut self) {
///         panic!("dropped");
///     }
/// }
///
/// let texts = [|| panic!("no {}", "bread"), || panic_any(Bomb)].map(|f| panic_text(catch_unwind(f).unwrap_err()));
/// assert_eq!(texts, ["no bread", "a non-string panic payload"]);
/// ```
#[must_use]
#[cold]
pub fn panic_text(payload: Box<dyn Any + Send>) -> String {
    let text = panic_message(&*payload);
    // If the drop panics as well, drop the payload of that panic, too (invariant 2).
    if let Err(next) = drop_once(payload) {
        let leaked = drop_rounds(next);
        log_quietly(|| tracing::warn!(panic = text, leaked, "the payload of a panic panicked when it was dropped"));
    }
    text
}

/// Returns the message that `panic!` stored in the payload of a panic.
fn panic_message(payload: &(dyn Any + Send)) -> String {
    payload
        .downcast_ref::<&str>()
        .map(|text| (*text).to_owned())
        .or_else(|| payload.downcast_ref::<String>().cloned())
        .unwrap_or_else(|| "a non-string panic payload".to_owned())
}

/// Drops a payload, then the payload of the panic from that drop, and so on. Returns `true` if the last payload was
/// leaked.
fn drop_rounds(mut payload: Box<dyn Any + Send>) -> bool {
    for _ in 1..MAX_DROPS {
        match drop_once(payload) {
            Ok(()) => return false,
            Err(next) => payload = next,
        }
    }
    // Leak the value: each drop may yield another payload that panics when it is dropped.
    std::mem::forget(payload);
    true
}

fn drop_once(payload: Box<dyn Any + Send>) -> Result<(), Box<dyn Any + Send>> {
    catch_unwind(AssertUnwindSafe(|| drop(payload)))
}

/// Calls user code. If the call panics, returns the result of `or`, which receives the panic's message.
///
/// Always inlined, because the loop that calls listeners runs inside it.
#[inline(always)]
pub(crate) fn caught_or<R>(call: impl FnOnce() -> R, or: impl FnOnce(String) -> R) -> R {
    catch_unwind(AssertUnwindSafe(call)).unwrap_or_else(|payload| or(panic_text(payload)))
}

/// Calls user code. If the call panics, returns the panic's message as an error.
#[inline]
pub(crate) fn caught<R>(call: impl FnOnce() -> R) -> Result<R, String> {
    caught_or(|| Ok(call()), Err)
}

/// Drops a user's value. A panic is caught and logged.
#[inline]
pub(crate) fn discard<T>(what: &'static str, value: T) {
    if needs_drop::<T>() {
        caught(|| drop(value)).unwrap_or_else(|panic| report_drop(what, &panic));
    }
}

/// Logs that a drop panicked.
#[cold]
pub(crate) fn report_drop(what: &'static str, panic: &str) {
    logged(|| tracing::warn!(panic, "{what} panicked when it was dropped"));
}

/// Writes a log line. This may run user code: the `Display` of an error, and the subscriber. If that code panics, the
/// log line is lost, and the caller continues.
pub(crate) fn logged(log: impl FnOnce()) {
    caught(log).unwrap_or_default();
}

/// Writes a log line. If the subscriber panics, its panic is not logged (invariant 3).
pub(crate) fn log_quietly(log: impl FnOnce()) {
    if let Err(payload) = catch_unwind(AssertUnwindSafe(log)).or_else(drop_once) {
        drop_rounds(payload);
    }
}
