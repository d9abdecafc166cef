//! Loom's primitives under the names of the crate's `sync`, for the models of the modules that use them.
#![allow(dead_code, reason = "each model uses its part of this")]

use std::cell::Cell;
use std::fmt;
use std::task::Waker;

pub(crate) use loom::sync::atomic::{Ordering, fence};

pub(crate) const SHARDS: usize = 2;

loom::thread_local! {
    static OWN: Cell<usize> = Cell::new(1);
}

/// Returns the number of this thread: 1, or the number that was set with `be_thread`.
pub(crate) fn thread() -> usize {
    OWN.with(Cell::get)
}

pub(crate) fn be_thread(number: usize) {
    OWN.with(|own| own.set(number));
}

/// A wrapper around loom's atomic for which loom explores more interleavings.
///
/// 1. Each access first modifies a word beside the value. If two threads load and then modify a word, loom 0.7.2
///    forgets the load of the first thread when the second thread loads as well, and explores no interleaving of the
///    two. It does not forget modifications.
/// 2. The load itself is not replaced by a modification. A modification would never read an old value, although the
///    load's ordering may allow it. Loom would also let the modification write an old value back over a newer store.
/// 3. An access with `SeqCst` has fences around it, because loom treats `SeqCst` as `AcqRel` except in fences.
macro_rules! atomic {
    ($name:ident, $of:ty) => {
        #[derive(Default)]
        pub(crate) struct $name {
            turn: loom::sync::atomic::AtomicUsize,
            value: loom::sync::atomic::$name,
        }

        impl $name {
            pub(crate) fn new(value: $of) -> Self {
                Self { value: loom::sync::atomic::$name::new(value), ..Self::default() }
            }

            fn access<T>(&self, order: Ordering, access: impl FnOnce(&loom::sync::atomic::$name) -> T) -> T {
                self.turn.fetch_add(1, Ordering::Relaxed);
                let fenced = || {
                    if order == Ordering::SeqCst {
                        fence(Ordering::SeqCst);
                    }
                };
                fenced();
                let accessed = access(&self.value);
                fenced();
                accessed
            }

            pub(crate) fn load(&self, order: Ordering) -> $of {
                self.access(order, |value| value.load(order))
            }

            pub(crate) fn store(&self, new: $of, order: Ordering) {
                self.access(order, |value| value.store(new, order));
            }

            pub(crate) fn fetch_or(&self, bits: $of, order: Ordering) -> $of {
                self.access(order, |value| value.fetch_or(bits, order))
            }

            pub(crate) fn compare_exchange(
                &self,
                current: $of,
                new: $of,
                success: Ordering,
                failure: Ordering,
            ) -> Result<$of, $of> {
                self.access(success, |value| value.compare_exchange(current, new, success, failure))
            }

            pub(crate) fn fetch_update(
                &self,
                set: Ordering,
                fetch: Ordering,
                mut f: impl FnMut($of) -> Option<$of>,
            ) -> Result<$of, $of> {
                let mut was = self.load(fetch);
                loop {
                    let next = f(was).ok_or(was)?;
                    match self.compare_exchange(was, next, set, fetch) {
                        Ok(was) => return Ok(was),
                        Err(is) => was = is,
                    }
                }
            }
        }

        impl fmt::Debug for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                self.value.fmt(f)
            }
        }
    };
}

atomic!(AtomicBool, bool);
atomic!(AtomicU16, u16);
atomic!(AtomicUsize, usize);

impl AtomicUsize {
    pub(crate) fn fetch_add(&self, number: usize, order: Ordering) -> usize {
        self.access(order, |value| value.fetch_add(number, order))
    }
}

/// A mutex without poisoning, like `parking_lot`'s.
#[derive(Default)]
pub(crate) struct Mutex<T>(loom::sync::Mutex<T>);

impl<T> Mutex<T> {
    pub(crate) fn new(value: T) -> Self {
        Self(loom::sync::Mutex::new(value))
    }

    pub(crate) fn lock(&self) -> loom::sync::MutexGuard<'_, T> {
        self.0.lock().expect("nobody panics")
    }

    pub(crate) fn get_mut(&mut self) -> &mut T {
        self.0.get_mut().expect("nobody panics")
    }
}

/// A cell like the standard library's: `set` waits for a concurrent `set`, and the value is read without a lock. The
/// value is in a standard cell, so that it can be borrowed.
pub(crate) struct OnceLock<T> {
    setting: Mutex<()>,
    is_set: AtomicBool,
    value: std::sync::OnceLock<T>,
}

impl<T> Default for OnceLock<T> {
    fn default() -> Self {
        Self { setting: Mutex::default(), is_set: AtomicBool::default(), value: std::sync::OnceLock::new() }
    }
}

impl<T> OnceLock<T> {
    pub(crate) fn new() -> Self {
        Self::default()
    }

    pub(crate) fn set(&self, value: T) -> Result<(), T> {
        let _setting = self.setting.lock();
        self.value.set(value)?;
        self.is_set.store(true, Ordering::Release);
        Ok(())
    }

    pub(crate) fn get(&self) -> Option<&T> {
        if self.is_set.load(Ordering::Acquire) { self.value.get() } else { None }
    }

    pub(crate) fn get_or_init(&self, make: impl FnOnce() -> T) -> &T {
        if self.get().is_none() {
            self.set(make()).ok();
        }
        self.value.get().expect("it is set")
    }
}

impl<T> fmt::Debug for OnceLock<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("OnceLock")
    }
}

/// A waker cell like `AtomicWaker` of `futures`, with a lock instead of an atomic.
#[derive(Default)]
pub(crate) struct AtomicWaker(Mutex<Option<Waker>>);

impl AtomicWaker {
    pub(crate) fn register(&self, waker: &Waker) {
        *self.0.lock() = Some(waker.clone());
    }

    pub(crate) fn take(&self) -> Option<Waker> {
        self.0.lock().take()
    }

    pub(crate) fn wake(&self) {
        self.take().into_iter().for_each(Waker::wake);
    }
}
