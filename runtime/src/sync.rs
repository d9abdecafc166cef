//! Synchronization primitives for the modules that have a loom model. The models replace this module with a module that
//! defines other primitives under the same names.

use std::cell::Cell;

pub(crate) use std::sync::OnceLock;
pub(crate) use std::sync::atomic::{AtomicBool, AtomicU16, AtomicUsize, Ordering, fence};

pub(crate) use futures_util::task::AtomicWaker;
pub(crate) use parking_lot::Mutex;

/// The number of shards among which threads distribute the children of a run.
pub(crate) const SHARDS: usize = 8;

/// Returns the number of this thread. Numbers start from 1.
pub(crate) fn thread() -> usize {
    static NEXT: AtomicUsize = AtomicUsize::new(1);
    thread_local! {
        static OWN: Cell<usize> = const { Cell::new(0) };
    }
    OWN.with(|own| {
        if own.get() == 0 {
            own.set(NEXT.fetch_add(1, Ordering::Relaxed));
        }
        own.get()
    })
}
