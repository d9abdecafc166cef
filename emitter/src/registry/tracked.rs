//! Waits for the calls of a removed listener that are under way (E9).
//!
//! Each thread records the counted calls that it is executing: the call of a sync listener while it runs, and the call
//! of an async listener while it is polled. A wait inside such a call does not wait for that call, because the wait
//! would never end.

use std::cell::RefCell;
use std::future::poll_fn;
use std::task::Poll;

use event_listener::Event;

use crate::registry::calls::Calls;

thread_local! {
    /// The addresses of the [`TrackedCalls`] whose calls this thread is executing, the innermost last.
    static INSIDE: RefCell<Vec<usize>> = const { RefCell::new(Vec::new()) };
}

/// The calls of a listener that was registered with `Options::awaitable_off`.
#[derive(Debug)]
pub(crate) struct TrackedCalls {
    calls: Calls,
    /// Notified when a call finishes after `end` was called.
    finished: Event,
}

impl TrackedCalls {
    pub(crate) fn new() -> Self {
        Self { calls: Calls::new(), finished: Event::new() }
    }

    /// Counts a call. Returns `None` if no more calls may begin.
    pub(crate) fn begin(&self) -> Option<UnderWay<'_>> {
        let may_be_made = self.calls.begin();
        // The guard is made even if the call must not begin: its drop is the `finish` that follows each `begin`
        // (invariant 3 of `calls`).
        let under_way = UnderWay(self);
        may_be_made.then_some(under_way)
    }

    /// Prevents further calls from beginning.
    pub(crate) fn end(&self) {
        self.calls.end();
    }

    /// Waits until no call is under way, except calls that enclose this wait.
    pub(crate) async fn idle(&self) {
        loop {
            // Listen before the check, so that a call that finishes in between is noticed.
            let finished = self.finished.listen();
            if poll_fn(|_| Poll::Ready(self.calls.under_way() <= self.enclosing())).await {
                return;
            }
            finished.await;
        }
    }

    /// Returns how many calls of this listener the current thread is executing.
    fn enclosing(&self) -> usize {
        INSIDE.with_borrow(|inside| inside.iter().filter(|address| **address == self.address()).count())
    }

    fn address(&self) -> usize {
        std::ptr::from_ref(self).addr()
    }
}

/// A guard for a counted call. Dropping the guard marks the call as finished.
pub(crate) struct UnderWay<'a>(&'a TrackedCalls);

impl UnderWay<'_> {
    /// Runs or polls the call, and marks it as being executed by this thread.
    pub(crate) fn within<R>(&self, call: impl FnOnce() -> R) -> R {
        struct Leave;
        impl Drop for Leave {
            fn drop(&mut self) {
                INSIDE.with_borrow_mut(Vec::pop);
            }
        }
        INSIDE.with_borrow_mut(|inside| inside.push(self.0.address()));
        // A guard removes the address, because the call may panic.
        let _leave = Leave;
        call()
    }
}

impl Drop for UnderWay<'_> {
    fn drop(&mut self) {
        if self.0.calls.finish() {
            self.0.finished.notify(usize::MAX);
        }
    }
}
