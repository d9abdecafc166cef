//! Catches panics of user code. No other file of this crate catches panics.
//!
//! A caught panic is replaced by its message. The drop of its payload may call user code and panic too: that panic is
//! caught as well.
#![allow(dead_code, reason = "each middleware uses its own part of this")]

use std::future::{Future, poll_fn};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::pin::pin;
use std::task::Poll;

use emitree_emitter::panic_text;

/// Calls user code; returns the message of a panic as the error.
pub(crate) fn caught<R>(call: impl FnOnce() -> R) -> Result<R, String> {
    catch_unwind(AssertUnwindSafe(call)).map_err(panic_text)
}

/// Awaits user code, which is called at the first poll; returns the message of a panic as the error.
pub(crate) async fn caught_async<F: Future>(call: impl FnOnce() -> F) -> Result<F::Output, String> {
    let mut future = pin!(caught(call)?);
    poll_fn(|cx| match caught(|| future.as_mut().poll(cx)) {
        Ok(polled) => polled.map(Ok),
        Err(panic) => Poll::Ready(Err(panic)),
    })
    .await
}

#[cfg(test)]
mod tests {
    use std::panic::panic_any;
    use std::task::{Context, Waker};

    use super::*;

    struct Bomb;

    impl Drop for Bomb {
        fn drop(&mut self) {
            panic!("dropped");
        }
    }

    #[test]
    fn a_caught_panic_is_its_message_and_a_panic_in_the_payload_s_drop_is_contained() {
        assert_eq!(caught(|| 1), Ok(1));
        assert_eq!(caught(|| panic!("no {}", "bread")).err().as_deref(), Some("no bread"));
        assert_eq!(caught(|| panic_any(Bomb)).err().as_deref(), Some("a non-string panic payload"));
        let mut bomb = pin!(caught_async(async || -> () { panic_any(Bomb) }));
        let polled = bomb.as_mut().poll(&mut Context::from_waker(Waker::noop()));
        assert_eq!(
            polled.map(|ended: Result<(), String>| ended.err()),
            Poll::Ready(Some("a non-string panic payload".to_owned()))
        );
    }
}
