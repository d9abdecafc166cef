//! Lists that a run inherits from its parent, and passes on to each run that begins in it (M4).

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use parking_lot::Mutex;

use crate::chain::list::SmallList;
use crate::run::panic::discard_all;

/// The subscribers of a run, or the middlewares that it hands down: a snapshot of its parent's list, and its own
/// additions.
pub(crate) struct InheritedList<T> {
    list: Mutex<Option<SharedList<T>>>,
    /// Checked without the lock, because most lists are empty.
    is_some: AtomicBool,
}

pub(crate) type SharedList<T> = Arc<SmallList<T>>;

impl<T> InheritedList<T> {
    pub(crate) fn new(list: Option<SharedList<T>>) -> Self {
        Self { is_some: AtomicBool::new(list.is_some()), list: Mutex::new(list) }
    }

    #[inline]
    pub(crate) fn is_empty(&self) -> bool {
        !self.is_some.load(Ordering::Acquire)
    }

    /// Returns a snapshot of the list.
    #[inline]
    pub(crate) fn all(&self) -> Option<SharedList<T>> {
        if self.is_empty() { None } else { self.list.lock().clone() }
    }

    /// Drops the items with no lock held.
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
        // Another thread may still hold a snapshot, for example in `explain`. The items are then dropped with the last
        // snapshot.
        list.and_then(Arc::into_inner).into_iter().for_each(discard_all);
    }
}

impl<T: Clone> InheritedList<T> {
    /// Changes the list under the lock; `change` must not call user code. Runs that have begun keep their snapshots.
    pub(crate) fn change<R>(&self, change: impl FnOnce(&mut SmallList<T>) -> R) -> R {
        let mut list = self.list.lock();
        self.is_some.store(true, Ordering::Release);
        change(Arc::make_mut(list.get_or_insert_default()))
    }
}
