//! Loom's primitives under the names of the crate's `sync`, for the models of the modules that use them.
#![allow(dead_code, reason = "each model uses its part of this")]

use std::fmt;

pub(crate) use loom::sync::atomic::Ordering;

/// Every access modifies, as far as loom can see: of two threads that only load and then modify, loom 0.7.2 forgets the load of the
/// first when the second loads as well, and explores no interleaving of the two.
pub(crate) struct AtomicU8(loom::sync::atomic::AtomicU8);

impl AtomicU8 {
    pub(crate) fn new(value: u8) -> Self {
        Self(loom::sync::atomic::AtomicU8::new(value))
    }

    pub(crate) fn load(&self, _: Ordering) -> u8 {
        self.0.fetch_or(0, Ordering::AcqRel)
    }

    pub(crate) fn store(&self, value: u8, order: Ordering) {
        self.0.store(value, order);
    }

    pub(crate) fn fetch_or(&self, bits: u8, order: Ordering) -> u8 {
        self.0.fetch_or(bits, order)
    }

    pub(crate) fn fetch_update(
        &self,
        set: Ordering,
        fetch: Ordering,
        mut f: impl FnMut(u8) -> Option<u8>,
    ) -> Result<u8, u8> {
        let mut was = self.load(fetch);
        loop {
            let next = f(was).ok_or(was)?;
            match self.0.compare_exchange(was, next, set, fetch) {
                Ok(was) => return Ok(was),
                Err(is) => was = is,
            }
        }
    }
}

impl fmt::Debug for AtomicU8 {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// As `parking_lot`'s, without poisoning.
pub(crate) struct Mutex<T>(loom::sync::Mutex<T>);

impl<T> Mutex<T> {
    pub(crate) fn new(value: T) -> Self {
        Self(loom::sync::Mutex::new(value))
    }

    pub(crate) fn lock(&self) -> loom::sync::MutexGuard<'_, T> {
        self.0.lock().expect("nobody panics")
    }
}

/// As in the standard library, `set` waits for a value that is just being set, and what is set is read without a lock; it lies where
/// it can be borrowed.
pub(crate) struct OnceLock<T> {
    setting: loom::sync::Mutex<()>,
    is_set: loom::sync::atomic::AtomicBool,
    value: std::sync::OnceLock<T>,
}

impl<T> OnceLock<T> {
    pub(crate) fn new() -> Self {
        let is_set = loom::sync::atomic::AtomicBool::new(false);
        Self { setting: loom::sync::Mutex::new(()), is_set, value: std::sync::OnceLock::new() }
    }

    pub(crate) fn set(&self, value: T) -> Result<(), T> {
        let _setting = self.setting.lock().expect("nobody panics");
        self.value.set(value)?;
        self.is_set.store(true, Ordering::Release);
        Ok(())
    }

    pub(crate) fn get(&self) -> Option<&T> {
        if self.is_set.load(Ordering::Acquire) { self.value.get() } else { None }
    }
}

impl<T> fmt::Debug for OnceLock<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("OnceLock")
    }
}
