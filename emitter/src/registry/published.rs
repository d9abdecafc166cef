//! State behind a lock, and what is derived from it in front of the lock.
//!
//! 1. What is published was derived from the state as it is: every change withdraws it, under the lock.
//! 2. It is derived and published under the same lock, so that no older derivation can follow a change.
//! 3. Who has returned from `change` is seen by every `load` that starts later (E10).
//! 4. What was withdrawn is dropped after unlocking: it may own user code.
//! 5. Under the lock it is known whether something is published: an empty slot is left alone, for to change it is dear.

use std::sync::{Arc, OnceLock};

use crate::sync::{Guard, Mutex, Slot};

/// A state `S`, and a `T` derived from it that is read without the lock.
pub(crate) struct Published<S, T> {
    state: Mutex<Guarded<S>>,
    /// Made with the first value: to store one later, or to drop a slot that had none, is dear.
    derived: OnceLock<Slot<T>>,
}

struct Guarded<S> {
    own: S,
    is_published: bool,
}

impl<S, T> Published<S, T> {
    pub(crate) fn new(state: S) -> Self {
        Self { state: Mutex::new(Guarded { own: state, is_published: false }), derived: OnceLock::new() }
    }

    /// Changes the state and withdraws what was derived from it.
    pub(crate) fn change<R>(&self, change: impl FnOnce(&mut S) -> R) -> R {
        let mut state = self.state.lock();
        let result = change(&mut state.own);
        let withdrawn = match self.derived.get() {
            Some(slot) if std::mem::take(&mut state.is_published) => slot.swap(None),
            _ => None,
        };
        drop(state);
        drop(withdrawn);
        result
    }

    /// Looks at the state.
    pub(crate) fn inspect<R>(&self, look: impl FnOnce(&S) -> R) -> R {
        look(&self.state.lock().own)
    }

    /// What is published; derives it first if need be.
    #[inline]
    pub(crate) fn load(&self, derive: impl FnOnce(&mut S) -> T) -> Guard<T> {
        let current = self.derived.get().map_or_else(|| Guard::from_inner(None), Slot::load);
        if current.is_some() { current } else { self.derive(derive) }
    }

    #[cold]
    fn derive(&self, derive: impl FnOnce(&mut S) -> T) -> Guard<T> {
        let mut state = self.state.lock();
        if let Some(slot) = self.derived.get().filter(|_| state.is_published) {
            return slot.load();
        }
        let derived = Arc::new(derive(&mut state.own));
        let mut first = Some(Arc::clone(&derived));
        let slot = self.derived.get_or_init(|| Slot::new(first.take()));
        if first.is_some() {
            slot.store(first);
        }
        state.is_published = true;
        drop(state);
        Guard::from_inner(Some(derived))
    }
}
