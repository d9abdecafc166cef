//! Waiting for the calls of a removed listener that are under way (E9).
//!
//! A thread knows which counted calls it is inside of: those of sync listeners while they run, those of async ones while they are
//! polled. Whoever waits inside of such calls does not wait for these.

use std::cell::RefCell;
use std::future::poll_fn;
use std::task::Poll;

use event_listener::Event;

use crate::registry::calls::Calls;

thread_local! {
    /// The addresses of those whose calls this thread is inside of, the innermost last.
    static INSIDE: RefCell<Vec<usize>> = const { RefCell::new(Vec::new()) };
}

/// The calls of a listener that was registered with `Options::awaitable_off`.
#[derive(Debug)]
pub(crate) struct Tracked {
    calls: Calls,
    /// A call has finished after the end.
    finished: Event,
}

impl Tracked {
    pub(crate) fn new() -> Self {
        Self { calls: Calls::new(), finished: Event::new() }
    }

    /// Counts a call, unless there may be none any more.
    pub(crate) fn begin(&self) -> Option<UnderWay<'_>> {
        let may_be_made = self.calls.begin();
        // Dropped, and so finished, also where the call may not be made.
        let under_way = UnderWay(self);
        may_be_made.then_some(under_way)
    }

    /// Lets no further call be made.
    pub(crate) fn end(&self) {
        self.calls.end();
    }

    /// Waits until no call is under way but those inside of which this is awaited.
    pub(crate) async fn idle(&self) {
        loop {
            // Listens before it looks: what finishes in between is noticed.
            let finished = self.finished.listen();
            if poll_fn(|_| Poll::Ready(self.calls.under_way() <= self.enclosing())).await {
                return;
            }
            finished.await;
        }
    }

    /// How many of its calls this thread is inside of.
    fn enclosing(&self) -> usize {
        INSIDE.with_borrow(|inside| inside.iter().filter(|address| **address == self.address()).count())
    }

    fn address(&self) -> usize {
        std::ptr::from_ref(self).addr()
    }
}

/// A call that is counted until this is dropped.
pub(crate) struct UnderWay<'a>(&'a Tracked);

impl UnderWay<'_> {
    /// Runs or polls the call.
    pub(crate) fn within<R>(&self, call: impl FnOnce() -> R) -> R {
        struct Leave;
        impl Drop for Leave {
            fn drop(&mut self) {
                INSIDE.with_borrow_mut(Vec::pop);
            }
        }
        INSIDE.with_borrow_mut(|inside| inside.push(self.0.address()));
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
