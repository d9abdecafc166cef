//! Prevents layers from swallowing control flow by accident (M9).
//!
//! 1. Each call of `next` that ends with control flow, except a timeout, adds a note for the layer that made the call.
//!    A call of a layer is identified by its [`Frame`]: a layer that is called twice at the same time has two frames,
//!    with separate notes.
//! 2. When a layer returns or is dropped, its notes become notes of the layer outside. If the layer had notes, the
//!    layer outside receives the most severe error instead of an output. So no layer outside, such as a cache, receives
//!    an output where there was a denial.
//! 3. While a layer has a note, its further calls of `next` run nothing. While the layer runs, only `absorb` removes its
//!    notes, one at a time.

use std::cell::Cell;
use std::num::NonZeroU64;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use parking_lot::Mutex;

use crate::run::panic::discard;
use crate::{Error, Result};

/// The identity of one call of a layer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Frame(NonZeroU64);

impl Frame {
    /// The frame of the caller of the outermost layer.
    pub(crate) const OUTSIDE: Self = Self(NonZeroU64::MIN);

    pub(crate) fn new() -> Self {
        Self(NonZeroU64::MIN.saturating_add(unique_number()))
    }
}

/// Returns a number that is unique in the process. Each thread takes numbers in blocks, so that calls of layers rarely
/// write to shared memory.
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

/// The notes of all layers around one piece of work.
#[derive(Debug, Default)]
pub(crate) struct SwallowedControlFlow {
    /// Set when the first note is added. Most calls never have a note, and take no lock.
    is_noted: AtomicBool,
    notes: Mutex<Vec<Note>>,
}

/// Control flow that a layer has received. The error carries the number of its note. Copies of the error with another
/// message carry the same number.
#[derive(Debug)]
struct Note {
    frame: Frame,
    error: Error,
}

impl SwallowedControlFlow {
    /// Returns the error for a layer that calls `next` again while it has notes (invariant 3).
    #[inline]
    pub(crate) fn pending(&self, frame: Frame) -> Option<Error> {
        if self.is_noted.load(Ordering::Acquire) { self.notes_of(frame) } else { None }
    }

    #[cold]
    fn notes_of(&self, frame: Frame) -> Option<Error> {
        most_severe(self.notes.lock().iter().filter(|note| note.frame == frame))
    }

    /// Returns the result that the layer outside receives after the layer inside has returned `result` (invariant 2).
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

    /// If the inner layer returned control flow, adds a note of it to the outer layer, unless the outer layer already has
    /// that note. Removes the inner layer's note of the same control flow, and moves its other notes to the outer layer.
    /// Returns the error that the outer layer receives.
    fn note(&self, inside: Frame, outside: Frame, error: Error) -> Error {
        let mut notes = self.notes.lock();
        let mut passed: Vec<_> = notes.extract_if(.., |note| note.frame == inside).collect();
        // The layer may return the error that it received, a copy with another message, or a new error. Find the note
        // of the received error: by number, else by kind, else by severity.
        let stands_for = [Error::is_same_note, Error::is_same_kind, Error::is_as_severe]
            .iter()
            .find_map(|is_like| passed.iter().position(|note| is_like(&error, &note.error)));
        let replaced = stands_for.map(|at| passed.remove(at));
        // An adapted layer's `next` calls its adapter's `next`, which has then already added this note.
        let is_new = !notes.iter().any(|note| note.frame == outside && error.is_same_note(&note.error));
        let error = match &replaced {
            Some(note) => error.noted(note.error.note()),
            None if is_new => error.noted(unique_number()),
            None => error,
        };
        // A more severe note that the layer has not absorbed overrules the error that the layer returned.
        let decides = most_severe(passed.iter()).filter(|other| other.is_more_severe(&error));
        let decides = decides.unwrap_or_else(|| error.clone());
        if is_new {
            notes.push(Note { frame: outside, error });
        }
        notes.extend(passed.into_iter().map(|note| Note { frame: outside, ..note }));
        self.is_noted.store(true, Ordering::Release);
        drop(notes);
        // The replaced error may hold user values: drop it with no lock held.
        discard(replaced);
        decides
    }

    /// Moves the inner layer's notes to the layer outside, after the inner layer has returned or was dropped. Returns
    /// the most severe error among them (invariant 2).
    #[inline]
    pub(crate) fn pass_on(&self, inside: Frame, outside: Frame) -> Option<Error> {
        if self.is_noted.load(Ordering::Acquire) { self.pass_notes_on(inside, outside) } else { None }
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

    /// Removes the note of an error that the layer received. For an error without a note, removes a note of the same
    /// kind.
    pub(crate) fn absorb(&self, frame: Frame, error: &Error) {
        let is_like = if error.is_noted() { Error::is_same_note } else { Error::is_same_kind };
        let mut notes = self.notes.lock();
        let at = notes.iter().position(|note| note.frame == frame && is_like(error, &note.error));
        let absorbed = at.map(|at| notes.remove(at));
        drop(notes);
        discard(absorbed);
    }
}

/// Returns the most severe error; of several equally severe errors, the first.
fn most_severe<'n>(notes: impl Iterator<Item = &'n Note>) -> Option<Error> {
    notes.map(|note| &note.error).min_by_key(|error| error.kind().severity()).cloned()
}
