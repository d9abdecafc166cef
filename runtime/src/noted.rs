//! Control flow is not swallowed by accident (M9).
//!
//! 1. What a layer's `next` gave it as control flow is noted, with how deep that layer stands; 0 is the caller.
//! 2. A layer that returns anything else is found out one step further out, where the note is deeper than the look:
//!    there the note is the result. So nothing outside of that layer, a cache say, takes what it returned for true.
//! 3. While a note stands, nothing more is run; absorbing is the only way to take it away.

use std::sync::atomic::{AtomicBool, Ordering};

use parking_lot::Mutex;

use crate::{Error, Result};

/// What one call through layers was ended by.
#[derive(Debug, Default)]
pub(crate) struct Noted {
    /// Looked at first: mostly there is no note, and no lock is taken.
    is_noted: AtomicBool,
    note: Mutex<Option<Note>>,
}

#[derive(Debug)]
struct Note {
    depth: usize,
    error: Error,
}

impl Noted {
    pub(crate) fn pending(&self) -> Option<Error> {
        self.deeper_than(None)
    }

    /// What whoever stands at that depth gets for a result.
    pub(crate) fn settle<T>(&self, depth: usize, result: Result<T>) -> Result<T> {
        match result {
            Err(error) if error.must_pass() => Err(self.note(depth, error)),
            result => self.deeper_than(Some(depth)).map_or(result, |error| Err(self.note(depth, error))),
        }
    }

    fn note(&self, depth: usize, error: Error) -> Error {
        *self.note.lock() = Some(Note { depth, error: error.clone() });
        self.is_noted.store(true, Ordering::Release);
        error
    }

    fn deeper_than(&self, depth: Option<usize>) -> Option<Error> {
        if !self.is_noted.load(Ordering::Acquire) {
            return None;
        }
        let note = self.note.lock();
        note.as_ref().filter(|note| Some(note.depth) > depth).map(|note| note.error.clone())
    }

    /// Takes the note away, if it is of that sort of end.
    pub(crate) fn absorb(&self, error: &Error) {
        drop(self.note.lock().take_if(|note| note.error.kind() == error.kind()));
    }
}
