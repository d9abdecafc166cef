//! Lists that are written while a run is bound, and read while it works; when it has ended, they are empty.

use std::mem::{replace, take};
use std::ops::Deref;
use std::sync::Arc;

use parking_lot::Mutex;
use smallvec::SmallVec;

use crate::run::panic::discard_all;
use crate::{Error, Result};

/// A list that takes no more once the work has begun, which holds it from then on.
pub(crate) struct Register<T>(Mutex<List<T>>);

/// Most runs have one or two of a sort.
pub(crate) type Few<T> = SmallVec<[T; 2]>;

enum List<T> {
    Taking(Few<T>),
    Sealed(Sealed<T>),
}

/// What was in the list when the work began.
pub(crate) struct Sealed<T>(Option<Arc<Few<T>>>);

impl<T> Default for Register<T> {
    fn default() -> Self {
        Self(Mutex::new(List::Taking(Few::new())))
    }
}

impl<T> Default for Sealed<T> {
    fn default() -> Self {
        Self(None)
    }
}

impl<T> Clone for Sealed<T> {
    fn clone(&self) -> Self {
        Self(self.0.clone())
    }
}

impl<T> Deref for Sealed<T> {
    type Target = [T];

    fn deref(&self) -> &[T] {
        self.0.as_deref().map_or(&[], |list| list)
    }
}

impl<T> Deref for List<T> {
    type Target = [T];

    fn deref(&self) -> &[T] {
        match self {
            Self::Taking(list) => list,
            Self::Sealed(list) => list,
        }
    }
}

impl<T> Register<T> {
    pub(crate) fn extend(&self, items: impl Iterator<Item = T>) -> Result<()> {
        match &mut *self.0.lock() {
            List::Taking(list) => list.extend(items),
            List::Sealed(_) => return Err(too_late()),
        }
        Ok(())
    }

    /// What is in it, put in order once.
    pub(crate) fn seal(&self, arrange: impl FnOnce(&mut [T])) -> Sealed<T> {
        let mut list = self.0.lock();
        let sealed = match &mut *list {
            List::Sealed(sealed) => return sealed.clone(),
            List::Taking(taken) if taken.is_empty() => Sealed(None),
            List::Taking(taken) => {
                arrange(taken);
                Sealed(Some(Arc::new(take(taken))))
            }
        };
        *list = List::Sealed(sealed.clone());
        sealed
    }

    /// Drops what is in it, outside of the lock; what the work still has goes with that.
    pub(crate) fn release(&self) {
        let list = replace(&mut *self.0.lock(), List::Sealed(Sealed(None)));
        match list {
            List::Taking(list) => discard_all(list),
            List::Sealed(Sealed(list)) => list.and_then(Arc::into_inner).into_iter().for_each(discard_all),
        }
    }

    /// Whether the list has such an item so far.
    pub(crate) fn any(&self, is_it: impl Fn(&T) -> bool) -> bool {
        self.0.lock().iter().any(is_it)
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.0.lock().is_empty()
    }
}

impl<T: Clone> Register<T> {
    pub(crate) fn so_far(&self) -> Few<T> {
        self.0.lock().iter().cloned().collect()
    }
}

pub(crate) fn too_late() -> Error {
    Error::new("the run's work has begun: bind layers and middlewares before")
}
