//! Batches: adjacent sync listeners that may change the event and take the same type. Their calls are not limited,
//! and their matchers are not functions.
//!
//! A listener that is called alone checks the payload's type. A batch checks the type once, and then calls closures
//! whose type is known. Downcasting closures is expensive, so batches are stored with the cached matches
//! ([`cache`](crate::matching::cache)), and are made only when a match is found for the second time.
//!
//! 1. The cursor moves past a listener before it is called, so that it shows which listener panicked or failed (E11).
//! 2. Each listener's claims are checked just before its call (E9).

use std::sync::Arc;

use crate::registry::listener::{Call, CallResult, ErasedChange, Failure, Listener, SharedChange};
use crate::{AnyEvent, EventMeta, Payload};

/// Listeners that are called together, in order.
pub(crate) trait Batch: Send + Sync {
    /// Calls the listeners until one fails or consumes the event, and moves `place` past each listener before its call.
    fn call(&self, place: &mut usize, event: &mut dyn AnyEvent, meta: &EventMeta<'_>) -> CallResult;
}

/// Listeners that take a `T`, each with its closure. Each tuple drops its closure before its listener, so that the
/// captured values are dropped in [`Listener`]'s drop, which catches panics.
struct OfType<T: ?Sized>(Box<[(SharedChange<T>, Arc<Listener>)]>);

/// Makes a batch of listeners that all take a `T`. Returns `None` if any of them takes another type or cannot be part
/// of a batch.
pub(crate) fn of_type<T: Payload + ?Sized + 'static>(listeners: &[Arc<Listener>]) -> Option<Box<dyn Batch>> {
    let typed = |listener: &Arc<Listener>| {
        let typed = Arc::clone(listener.unlimited_change()?).typed().downcast::<SharedChange<T>>().ok()?;
        Some((*typed, Arc::clone(listener)))
    };
    Some(Box::new(OfType(listeners.iter().map(typed).collect::<Option<Box<[_]>>>()?)))
}

impl<T: Payload + ?Sized + 'static> Batch for OfType<T> {
    fn call(&self, place: &mut usize, event: &mut dyn AnyEvent, meta: &EventMeta<'_>) -> CallResult {
        // Check the type once for the whole batch.
        let Some(event) = T::of_mut(event) else { return self.refuse(place) };
        for (change, listener) in &self.0 {
            // Move past the listener before calling it (invariant 1).
            *place += 1;
            if listener.claims.claim_unlimited() {
                change.call_of(event, meta)?;
                // The loop of the emit decides for each of the others whether it still receives the event (E20).
                if meta.is_consumed() {
                    break;
                }
            }
        }
        Ok(())
    }
}

impl<T: ?Sized> OfType<T> {
    /// Refuses an event of another type, as the first listener would if it were called alone (E7). If the loop
    /// continues, it calls the other listeners individually, because no batch starts at the second listener.
    #[cold]
    fn refuse(&self, place: &mut usize) -> CallResult {
        *place += 1;
        let refuses = self.0.first().is_some_and(|(_, listener)| listener.claims.claim_unlimited());
        if refuses { Err(Box::new(Failure::Mismatch)) } else { Ok(()) }
    }
}

impl Listener {
    /// Returns the closure if the listener may be part of a batch: its calls are not limited, and its matcher is not a
    /// function. A matcher function would have to be called for each event.
    fn unlimited_change(&self) -> Option<&Arc<dyn ErasedChange>> {
        match &self.call {
            Call::Change(change) if self.claims.claim_unlimited() && !self.matcher.is_function() => Some(change),
            _ => None,
        }
    }

    fn can_join(&self, other: &Self) -> bool {
        let types = [self, other].map(|listener| listener.expected.map(|expected| expected.id));
        types[0] == types[1] && self.unlimited_change().is_some() && other.unlimited_change().is_some()
    }
}

/// For each place of a list, the batch that starts there, if any. The slice is empty if the list has no batches.
pub(crate) type BatchStarts = Box<[Option<Box<dyn Batch>>]>;

pub(crate) fn batch_starts(listeners: &[Arc<Listener>]) -> BatchStarts {
    let mut starts = Vec::new();
    for joined in listeners.chunk_by(|one, next| one.can_join(next)) {
        // A single listener is called faster without a batch.
        let first = joined.first().filter(|_| joined.len() > 1);
        starts.push(first.and_then(|first| first.unlimited_change()?.batch(joined)));
        // No batch starts in the middle of another: the loop enters a batch at its first listener.
        starts.resize_with(starts.len() + joined.len() - 1, || None);
    }
    if starts.iter().all(Option::is_none) { Box::default() } else { starts.into() }
}
