//! A state behind a lock, and a value derived from it that is read without the lock. The registry publishes its
//! [`Snapshot`](crate::matching::snapshot::Snapshot) this way.
//!
//! 1. The published value was derived from the current state: each change withdraws it, under the lock.
//! 2. It is derived and published under the same lock, so that an older value cannot overwrite the result of a change.
//! 3. A change is visible to every `load` that starts after `change` has returned (E10).
//! 4. A withdrawn value is dropped after unlocking: it may own user code.
//! 5. The state records, under the lock, whether a value is published. An empty slot is left alone, because changing it
//!    is expensive.

use std::ptr;
use std::sync::{Arc, OnceLock};

use crate::sync::{Guard, Mutex, Slot};

/// A state `S` and a `T` derived from it.
pub(crate) struct Published<S, T> {
    state: Mutex<PublishedState<S>>,
    /// Initialized with the first value, because storing a value later and dropping a slot that never had a value are
    /// both expensive.
    derived: OnceLock<Slot<T>>,
}

struct PublishedState<S> {
    own: S,
    is_published: bool,
}

impl<S, T> Published<S, T> {
    pub(crate) fn new(state: S) -> Self {
        Self { state: Mutex::new(PublishedState { own: state, is_published: false }), derived: OnceLock::new() }
    }

    /// Changes the state and withdraws the value derived from it.
    pub(crate) fn change<R>(&self, change: impl FnOnce(&mut S) -> R) -> R {
        let mut state = self.state.lock();
        let result = change(&mut state.own);
        let withdrawn = match self.derived.get() {
            Some(slot) if std::mem::take(&mut state.is_published) => slot.swap(None),
            _ => None,
        };
        drop(state);
        // The withdrawn value is dropped after unlocking (invariant 4).
        drop(withdrawn);
        result
    }

    /// Reads the state under the lock.
    pub(crate) fn inspect<R>(&self, look: impl FnOnce(&S) -> R) -> R {
        look(&self.state.lock().own)
    }

    /// Reads the state under the lock, or returns `None` if the state has changed since `derived` was derived from it.
    /// `look` may change parts of the state on which the derived value does not depend.
    pub(crate) fn inspect_behind<R>(&self, derived: &T, look: impl FnOnce(&mut S) -> R) -> Option<R> {
        let mut state = self.state.lock();
        // Each change withdraws the published value, so `derived` is still published if and only if nothing has changed
        // (invariant 1). No other value has its address, because the caller borrows it.
        let is_current = match self.derived.get() {
            Some(slot) if state.is_published => slot.load().as_deref().is_some_and(|now| ptr::eq(now, derived)),
            _ => false,
        };
        is_current.then(|| look(&mut state.own))
    }

    /// Returns the published value, and derives it first if there is none.
    #[inline]
    pub(crate) fn load(&self, derive: impl FnOnce(&mut S) -> T) -> Guard<T> {
        let current = self.derived.get().map_or_else(|| Guard::from_inner(None), Slot::load);
        if current.is_some() { current } else { self.derive(derive) }
    }

    #[cold]
    fn derive(&self, derive: impl FnOnce(&mut S) -> T) -> Guard<T> {
        let mut state = self.state.lock();
        // Another thread may have published a value while this thread waited for the lock.
        if let Some(slot) = self.derived.get().filter(|_| state.is_published) {
            return slot.load();
        }
        let derived = Arc::new(derive(&mut state.own));
        let mut first = Some(Arc::clone(&derived));
        // The first value initializes the slot; later values are stored into it.
        let slot = self.derived.get_or_init(|| Slot::new(first.take()));
        if first.is_some() {
            slot.store(first);
        }
        // The lock is still held, so the state has not changed since the value was derived (invariant 2).
        state.is_published = true;
        drop(state);
        Guard::from_inner(Some(derived))
    }
}
