//! Control flow is not swallowed by accident (M9).
//!
//! 1. Each call of a `next` that ends as control flow is a note of the layer that called it. A layer is known by its [`Frame`]:
//!    one that is called twice at the same time is two of them, and neither sees the notes of the other.
//! 2. When a layer returns, or is dropped, its notes become notes of the layer outside of it, and the most severe of
//!    them is what that layer gets, whatever was returned: so nothing outside, a cache for example, takes an output for true
//!    that swallowed a denial.
//! 3. While a layer has a note, its further calls run nothing. Only absorbing takes a note away, one at a time.

use std::cell::Cell;
use std::num::NonZeroU64;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use parking_lot::Mutex;

use crate::run::panic::discard;
use crate::{Error, Result};

/// One call of a layer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Frame(NonZeroU64);

impl Frame {
    /// Outside of all layers.
    pub(crate) const OUTSIDE: Self = Self(NonZeroU64::MIN);

    pub(crate) fn new() -> Self {
        Self(NonZeroU64::MIN.saturating_add(unique_number()))
    }
}

/// A number that nobody else gets. Threads take numbers in blocks: a call of a layer writes to nothing shared.
fn unique_number() -> u64 {
    const BLOCK: u64 = 1 << 20;
    static BLOCKS: AtomicU64 = AtomicU64::new(BLOCK);
    thread_local! {
        static NEXT: Cell<u64> = const { Cell::new(0) };
    }
    NEXT.with(|next| {
        let number = match next.get() {
            used if used % BLOCK == 0 => BLOCKS.fetch_add(BLOCK, Ordering::Relaxed),
            number => number,
        };
        next.set(number + 1);
        number
    })
}

/// What the layers around one piece of work were ended by.
#[derive(Debug, Default)]
pub(crate) struct SwallowedControlFlow {
    /// Looked at first: mostly there is no note, and no lock is taken.
    is_noted: AtomicBool,
    notes: Mutex<Vec<Note>>,
}

/// The error carries the number of its note, and so do copies that say more.
#[derive(Debug)]
struct Note {
    frame: Frame,
    error: Error,
}

impl SwallowedControlFlow {
    /// What a layer gets that calls again while it has notes.
    #[inline]
    pub(crate) fn pending(&self, frame: Frame) -> Option<Error> {
        if self.is_noted() { self.notes_of(frame) } else { None }
    }

    #[inline]
    fn is_noted(&self) -> bool {
        self.is_noted.load(Ordering::Acquire)
    }

    #[cold]
    fn notes_of(&self, frame: Frame) -> Option<Error> {
        most_severe(self.notes.lock().iter().filter(|note| note.frame == frame))
    }

    /// What the layer outside gets when the one inside has returned.
    #[inline]
    pub(crate) fn settle<T>(&self, inside: Frame, outside: Frame, result: Result<T>) -> Result<T> {
        match result {
            Err(error) if error.must_pass() => Err(self.note(inside, outside, error)),
            result => match self.pass_on(inside, outside) {
                Some(error) => {
                    discard(result);
                    Err(error)
                }
                None => result,
            },
        }
    }

    /// Notes what a layer returned, in place of the note that it stands for if there is one.
    fn note(&self, inside: Frame, outside: Frame, error: Error) -> Error {
        let mut notes = self.notes.lock();
        let mut passed: Vec<_> = notes.extract_if(.., |note| note.frame == inside).collect();
        // A layer may have said more about what it got, or said it in other words.
        let stands_for = [Error::is_same_note, Error::is_same_kind, Error::is_as_severe]
            .iter()
            .find_map(|is_like| passed.iter().position(|note| is_like(&error, &note.error)));
        let replaced = stands_for.map(|at| passed.remove(at));
        // Work that calls the layer's own `next`, as an adapter does, has had it noted already.
        let is_new = !notes.iter().any(|note| note.frame == outside && error.is_same_note(&note.error));
        let error = match &replaced {
            Some(note) => error.noted(note.error.note()),
            None if is_new => error.noted(unique_number()),
            None => error,
        };
        let decides = most_severe(passed.iter()).filter(|other| other.is_more_severe(&error));
        let decides = decides.unwrap_or_else(|| error.clone());
        if is_new {
            notes.push(Note { frame: outside, error });
        }
        notes.extend(passed.into_iter().map(|note| Note { frame: outside, ..note }));
        self.is_noted.store(true, Ordering::Release);
        drop(notes);
        // What it holds is user code: dropped under no lock.
        discard(replaced);
        decides
    }

    /// Makes the notes of a layer that is over notes of the layer outside; gives the most severe of them.
    #[inline]
    pub(crate) fn pass_on(&self, inside: Frame, outside: Frame) -> Option<Error> {
        if self.is_noted() { self.pass_notes_on(inside, outside) } else { None }
    }

    #[cold]
    fn pass_notes_on(&self, inside: Frame, outside: Frame) -> Option<Error> {
        let mut notes = self.notes.lock();
        let passed = notes.iter_mut().filter(|note| note.frame == inside).map(|note| {
            note.frame = outside;
            &*note
        });
        most_severe(passed)
    }

    /// Takes away the note of an error that the layer got. One that it made itself stands for one of the same kind.
    pub(crate) fn absorb(&self, frame: Frame, error: &Error) {
        let is_like = if error.is_noted() { Error::is_same_note } else { Error::is_same_kind };
        let mut notes = self.notes.lock();
        let at = notes.iter().position(|note| note.frame == frame && is_like(error, &note.error));
        let absorbed = at.map(|at| notes.remove(at));
        drop(notes);
        discard(absorbed);
    }
}

/// The first of those that none is more severe than.
fn most_severe<'n>(notes: impl Iterator<Item = &'n Note>) -> Option<Error> {
    notes.map(|note| &note.error).min_by_key(|error| error.kind().severity()).cloned()
}
