//! Lists that a run hands down: to each run that begins in it, as they are then.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use parking_lot::Mutex;

use crate::chain::list::SmallList;
use crate::run::panic::discard_all;

/// What a run has of a sort: what it found at the run above, and what was bound to itself.
pub(crate) struct InheritedList<T> {
    list: Mutex<Option<List<T>>>,
    /// Looked at without the lock: most runs have none.
    is_some: AtomicBool,
}

pub(crate) type List<T> = Arc<SmallList<T>>;

impl<T> InheritedList<T> {
    pub(crate) fn new(list: Option<List<T>>) -> Self {
        Self { is_some: AtomicBool::new(list.is_some()), list: Mutex::new(list) }
    }

    #[inline]
    pub(crate) fn is_empty(&self) -> bool {
        !self.is_some.load(Ordering::Acquire)
    }

    /// All of them at this moment.
    #[inline]
    pub(crate) fn all(&self) -> Option<List<T>> {
        if self.is_empty() { None } else { self.list.lock().clone() }
    }

    /// Drops them, outside of the lock.
    #[inline]
    pub(crate) fn release(&self) {
        if !self.is_empty() {
            self.drop_list();
        }
    }

    fn drop_list(&self) {
        let list = {
            let mut list = self.list.lock();
            self.is_some.store(false, Ordering::Release);
            list.take()
        };
        // Runs below have ended, but may be there: those that began later have the list as well.
        list.and_then(Arc::into_inner).into_iter().for_each(discard_all);
    }
}

impl<T: Clone> InheritedList<T> {
    /// Changes the list under the lock, where no code of the user is called. Runs that have begun keep theirs.
    pub(crate) fn change<R>(&self, change: impl FnOnce(&mut SmallList<T>) -> R) -> R {
        let mut list = self.list.lock();
        self.is_some.store(true, Ordering::Release);
        change(Arc::make_mut(list.get_or_insert_default()))
    }
}
