//! Lists that are written while middlewares are bound, read while the work runs, and emptied when the run ends.

use std::mem::{replace, take};
use std::ops::Deref;
use std::sync::Arc;

use parking_lot::Mutex;
use smallvec::SmallVec;

use crate::run::panic::discard_all;
use crate::{Error, Result};

/// A list that accepts items until it is frozen. It is frozen when the work begins, or at the latest when the run ends.
/// The work holds a shared reference to the frozen items.
pub(crate) struct FreezableList<T>(Mutex<ListState<T>>);

/// A list with inline room for two items, which is enough for most runs.
pub(crate) type SmallList<T> = SmallVec<[T; 2]>;

enum ListState<T> {
    Open(SmallList<T>),
    Frozen(Frozen<T>),
}

/// The items of a frozen list; `None` if the list was empty.
pub(crate) type Frozen<T> = Option<Arc<SmallList<T>>>;

impl<T> Default for FreezableList<T> {
    fn default() -> Self {
        Self(Mutex::new(ListState::Open(SmallList::new())))
    }
}

impl<T> Deref for ListState<T> {
    type Target = [T];

    fn deref(&self) -> &[T] {
        match self {
            Self::Open(list) => list,
            Self::Frozen(list) => list.as_deref().map_or(&[], |list| list),
        }
    }
}

impl<T> FreezableList<T> {
    pub(crate) fn extend(&self, items: impl Iterator<Item = T>) -> Result<()> {
        match &mut *self.0.lock() {
            ListState::Open(list) => list.extend(items),
            ListState::Frozen(_) => return Err(too_late()),
        }
        Ok(())
    }

    /// Freezes the list, and returns its items. The first call sorts them with `arrange`.
    pub(crate) fn freeze(&self, arrange: impl FnOnce(&mut [T])) -> Frozen<T> {
        let mut list = self.0.lock();
        let frozen = match &mut *list {
            ListState::Frozen(frozen) => return frozen.clone(),
            ListState::Open(taken) if taken.is_empty() => None,
            ListState::Open(taken) => {
                arrange(taken);
                Some(Arc::new(take(taken)))
            }
        };
        *list = ListState::Frozen(frozen.clone());
        frozen
    }

    /// Drops the items with no lock held. If the work still holds a reference to the items, they are dropped with the
    /// work.
    pub(crate) fn release(&self) {
        // Take the items out under the lock, and drop them after unlocking: the drops may call user code.
        let list = replace(&mut *self.0.lock(), ListState::Frozen(None));
        match list {
            ListState::Open(list) => discard_all(list),
            ListState::Frozen(list) => {
                if let Some(list) = list.and_then(Arc::into_inner) {
                    discard_all(list);
                }
            }
        }
    }

    /// Returns `true` if the list has an item for which `is_it` returns `true`.
    pub(crate) fn any(&self, is_it: impl Fn(&T) -> bool) -> bool {
        self.0.lock().iter().any(is_it)
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.0.lock().is_empty()
    }
}

impl<T: Clone> FreezableList<T> {
    pub(crate) fn snapshot(&self) -> SmallList<T> {
        self.0.lock().iter().cloned().collect()
    }
}

pub(crate) fn too_late() -> Error {
    Error::new("the run's work has begun: bind layers and middlewares earlier")
}
