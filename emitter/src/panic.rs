//! Panics of user code: the only place of this crate where they are caught.
//!
//! 1. A panic that was caught leaves its message; its payload is dropped here, and nowhere else.
//! 2. The payload is a value of the user's: its `Drop` may panic as well, and so may the `Drop` of *that* panic's payload.
//!    After a few rounds the last payload is leaked, and that is logged.
//! 3. Whoever receives a log may panic, too: it is logged nothing about that, for it would not end.

use std::any::Any;
use std::mem::needs_drop;
use std::panic::{AssertUnwindSafe, catch_unwind};

use crate::panic_message;

/// Payloads that panic one after the other as they are dropped, before the next is leaked.
const MAX_DROPS: usize = 4;

/// Returns the message of a caught panic, and disposes of its payload.
///
/// Dropping a payload runs code of whoever panicked, and may panic itself: `panic_any` takes any value. Such a panic does
/// not leave this function; it is logged as a warning. A payload whose `Drop` panics with another such payload, and so on,
/// is leaked after a few rounds.
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
/// assert_eq!(texts, ["no bread", "a value that is not text"]);
/// ```
#[must_use]
#[cold]
pub fn panic_text(payload: Box<dyn Any + Send>) -> String {
    let text = panic_message(&*payload);
    if let Err(next) = drop_once(payload) {
        let leaked = drop_rounds(next);
        log_quietly(|| tracing::warn!(panic = text, leaked, "the payload of a panic panicked when it was dropped"));
    }
    text
}

/// Drops payloads, each of which the drop of the one before panicked with; returns whether the last one was leaked.
fn drop_rounds(mut payload: Box<dyn Any + Send>) -> bool {
    for _ in 1..MAX_DROPS {
        match drop_once(payload) {
            Ok(()) => return false,
            Err(next) => payload = next,
        }
    }
    std::mem::forget(payload);
    true
}

fn drop_once(payload: Box<dyn Any + Send>) -> Result<(), Box<dyn Any + Send>> {
    catch_unwind(AssertUnwindSafe(|| drop(payload)))
}

/// Calls user code; a panic there becomes what `or` makes of its message.
///
/// Always inlined, as it is part of the loop of every emit.
#[inline(always)]
pub(crate) fn catch_or<R>(call: impl FnOnce() -> R, or: impl FnOnce(String) -> R) -> R {
    catch_unwind(AssertUnwindSafe(call)).unwrap_or_else(|payload| or(panic_text(payload)))
}

/// Calls user code; a panic there is an error with its message.
#[inline]
pub(crate) fn catch<R>(call: impl FnOnce() -> R) -> Result<R, String> {
    catch_or(|| Ok(call()), Err)
}

/// Drops a value of the user's. A panic there is logged, and changes nothing.
#[inline]
pub(crate) fn drop_catching<T>(what: &'static str, value: T) {
    if needs_drop::<T>() {
        catch(|| drop(value)).unwrap_or_else(|panic| report_drop(what, &panic));
    }
}

/// Logs that dropping something panicked.
#[cold]
pub(crate) fn report_drop(what: &'static str, panic: &str) {
    log_catching(|| tracing::warn!(panic, "{what} panicked when it was dropped"));
}

/// Logs. Errors that are displayed and subscribers are user code: a panic there changes nothing, because what goes on is
/// worth more than a line of a log.
pub(crate) fn log_catching(log: impl FnOnce()) {
    catch(log).unwrap_or_default();
}

/// Logs, where a subscriber's panic is not to be logged in turn (invariant 3).
pub(crate) fn log_quietly(log: impl FnOnce()) {
    if let Err(payload) = catch_unwind(AssertUnwindSafe(log)).or_else(drop_once) {
        drop_rounds(payload);
    }
}
