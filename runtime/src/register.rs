//! Lists that are written while a run is bound, and read while it works.

use std::sync::OnceLock;

use parking_lot::Mutex;
use smallvec::SmallVec;

use crate::{Error, Result};

/// A list that takes no more once the work has begun: from then on it is read without a lock.
pub(crate) struct Register<T> {
    open: Mutex<List<T>>,
    sealed: OnceLock<Few<T>>,
}

/// Most runs have one or two of a sort.
pub(crate) type Few<T> = SmallVec<[T; 2]>;

/// What is to come, as long as more is taken.
enum List<T> {
    Taking(Few<T>),
    /// With nothing in it.
    Empty,
    Sealed,
}

impl<T> Default for Register<T> {
    fn default() -> Self {
        Self { open: Mutex::new(List::Taking(Few::new())), sealed: OnceLock::new() }
    }
}

impl<T> Register<T> {
    pub(crate) fn extend(&self, items: impl Iterator<Item = T>) -> Result<()> {
        match &mut *self.open.lock() {
            List::Taking(list) => list.extend(items),
            List::Empty | List::Sealed => return Err(too_late()),
        }
        Ok(())
    }

    /// What is in it, put in order once.
    pub(crate) fn seal(&self, arrange: impl FnOnce(&mut [T])) -> &[T] {
        let mut open = self.open.lock();
        match std::mem::replace(&mut *open, List::Sealed) {
            List::Taking(list) if list.is_empty() => *open = List::Empty,
            List::Empty => *open = List::Empty,
            List::Taking(mut list) => {
                arrange(&mut list);
                self.sealed.set(list).ok();
            }
            List::Sealed => (),
        }
        self.sealed.get().map_or(&[], |sealed| &**sealed)
    }

    /// Whether the list has such an item so far. A list that is sealed, as those of most runs above are, is read without the lock.
    pub(crate) fn any(&self, is_it: impl Fn(&T) -> bool) -> bool {
        let sealed = || self.sealed.get().map(|sealed| sealed.iter().any(&is_it));
        sealed().unwrap_or_else(|| match &*self.open.lock() {
            List::Taking(list) => list.iter().any(&is_it),
            List::Empty => false,
            // Sealed between the two looks.
            List::Sealed => sealed().unwrap_or(false),
        })
    }

    pub(crate) fn is_empty(&self) -> bool {
        match &*self.open.lock() {
            List::Taking(list) => list.is_empty(),
            List::Empty => true,
            List::Sealed => false,
        }
    }
}

impl<T: Clone> Register<T> {
    pub(crate) fn so_far(&self) -> Few<T> {
        match &*self.open.lock() {
            List::Taking(list) => list.clone(),
            List::Empty => Few::new(),
            List::Sealed => self.sealed.get().cloned().unwrap_or_default(),
        }
    }
}

pub(crate) fn too_late() -> Error {
    Error::new("the run's work has begun: bind layers and middlewares before")
}
