//! Batches: neighbouring sync listeners that may change the event, take the same type, and may be called without limit.
//!
//! A listener by itself asks each event whether it is of its type. A batch asks once, and then calls closures whose type is
//! known. Batches are made where a match is remembered, once it is found again, because to bring closures back to their type is dear.
//!
//! 1. The place is behind a listener before that is called: whose panic or failure it was shows there (E11).
//! 2. Each is looked at just before it is called (E9).

use std::sync::Arc;

use crate::registry::listener::{Call, CallResult, ErasedChange, Failure, Listener, SharedChange};
use crate::{AnyEvent, EventMeta, Hears};

/// Listeners that are called together, in order.
pub(crate) trait Batch: Send + Sync {
    /// Calls them until one fails, and moves the place of the first.
    fn call(&self, place: &mut usize, event: &mut dyn AnyEvent, meta: &EventMeta<'_>) -> CallResult;
}

/// Those that take a `T`: of each its closure, and then the listener itself. So the closure is dropped with the listener, which
/// contains a panic of what it captured.
struct OfType<T: ?Sized>(Box<[(SharedChange<T>, Arc<Listener>)]>);

/// A batch of listeners that all take a `T`; none if one of them does not.
pub(crate) fn of_type<T: Hears + ?Sized + 'static>(listeners: &[Arc<Listener>]) -> Option<Box<dyn Batch>> {
    let typed = |listener: &Arc<Listener>| {
        let typed = Arc::clone(listener.unlimited_change()?).typed().downcast::<SharedChange<T>>().ok()?;
        Some((*typed, Arc::clone(listener)))
    };
    Some(Box::new(OfType(listeners.iter().map(typed).collect::<Option<Box<[_]>>>()?)))
}

impl<T: Hears + ?Sized + 'static> Batch for OfType<T> {
    fn call(&self, place: &mut usize, event: &mut dyn AnyEvent, meta: &EventMeta<'_>) -> CallResult {
        let Some(event) = T::of_mut(event) else { return self.refuse(place) };
        for (change, listener) in &self.0 {
            *place += 1;
            if listener.claims.claim_unlimited() {
                change.call_of(event, meta)?;
            }
        }
        Ok(())
    }
}

impl<T: ?Sized> OfType<T> {
    /// The first refuses an event of another type (E7); the others are left to be asked one by one.
    #[cold]
    fn refuse(&self, place: &mut usize) -> CallResult {
        *place += 1;
        let refuses = self.0.first().is_some_and(|(_, listener)| listener.claims.claim_unlimited());
        if refuses { Err(Box::new(Failure::Mismatch)) } else { Ok(()) }
    }
}

impl Listener {
    /// Its closure, if it may be part of a batch.
    fn unlimited_change(&self) -> Option<&Arc<dyn ErasedChange>> {
        match &self.call {
            Call::Change(change) if self.claims.claim_unlimited() && !self.matcher.is_function() => Some(change),
            _ => None,
        }
    }

    fn joins(&self, other: &Self) -> bool {
        let types = [self, other].map(|listener| listener.expected.map(|expected| expected.id));
        types[0] == types[1] && self.unlimited_change().is_some() && other.unlimited_change().is_some()
    }
}

/// The batch that starts at each place of a list; empty if there are none.
pub(crate) type BatchStarts = Box<[Option<Box<dyn Batch>>]>;

pub(crate) fn batch_starts(listeners: &[Arc<Listener>]) -> BatchStarts {
    let mut starts = Vec::new();
    for joined in listeners.chunk_by(|one, next| one.joins(next)) {
        let first = joined.first().filter(|_| joined.len() > 1);
        starts.push(first.and_then(|first| first.unlimited_change()?.batch(joined)));
        starts.resize_with(starts.len() + joined.len() - 1, || None);
    }
    if starts.iter().all(Option::is_none) { Box::default() } else { starts.into() }
}
