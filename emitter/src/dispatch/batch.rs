//! Listeners side by side that are alike: they may change the event, need not be awaited, take the same type, and may be
//! called without limit.
//!
//! One by itself asks each event whether it is of its type. Those that are alike ask once for all, and then call
//! closures whose type is known. They are put together where a match is remembered, once it is found again, because to
//! bring closures back to their type is dear.
//!
//! 1. The place is behind a listener before that is called: whose panic or failure it was shows there (E11).
//! 2. Each is looked at just before it is called (E9).

use std::any::Any;
use std::marker::PhantomData;
use std::sync::Arc;

use crate::listener::{Answer, Call, Fault, Listener};
use crate::{AnyEvent, EventMeta, Hears};

/// The closure of a listener that may change an event, whose type is forgotten.
pub(crate) trait Change: Send + Sync {
    fn call(&self, event: &mut dyn AnyEvent, meta: &EventMeta<'_>) -> Answer;

    /// This listener's and all others', if they take the same type.
    fn alike(&self, listeners: &[Arc<Listener>]) -> Option<Box<dyn Alike>>;

    /// A [`Typed`], for who knows of which type.
    fn typed(self: Arc<Self>) -> Box<dyn Any>;
}

/// The same, of a type that is known.
type Typed<T> = Arc<dyn ChangeOf<T>>;

trait ChangeOf<T: ?Sized>: Send + Sync {
    fn call_of(&self, event: &mut T, meta: &EventMeta<'_>) -> Answer;
}

/// A closure and the type it takes.
struct Closure<T: ?Sized, F>(F, PhantomData<fn(&mut T)>);

impl Call {
    /// Of a sync closure that may change the event.
    pub(crate) fn change<T, F>(f: F) -> Self
    where
        T: Hears + ?Sized + 'static,
        F: Fn(&mut T, &EventMeta<'_>) -> Answer + Send + Sync + 'static,
    {
        Self::Change(Arc::new(Closure(f, PhantomData)))
    }
}

impl<T, F> Change for Closure<T, F>
where
    T: Hears + ?Sized + 'static,
    F: Fn(&mut T, &EventMeta<'_>) -> Answer + Send + Sync + 'static,
{
    fn call(&self, event: &mut dyn AnyEvent, meta: &EventMeta<'_>) -> Answer {
        match T::of_mut(event) {
            Some(event) => self.0(event, meta),
            None => Err(Box::new(Fault::Mismatch)),
        }
    }

    fn alike(&self, listeners: &[Arc<Listener>]) -> Option<Box<dyn Alike>> {
        let typed = |listener: &Arc<Listener>| {
            let typed = Arc::clone(listener.plain()?).typed().downcast::<Typed<T>>().ok()?;
            Some((*typed, Arc::clone(listener)))
        };
        Some(Box::new(OfType(listeners.iter().map(typed).collect::<Option<Box<[_]>>>()?)))
    }

    fn typed(self: Arc<Self>) -> Box<dyn Any> {
        Box::new(self as Typed<T>)
    }
}

impl<T, F> ChangeOf<T> for Closure<T, F>
where
    T: ?Sized,
    F: Fn(&mut T, &EventMeta<'_>) -> Answer + Send + Sync,
{
    fn call_of(&self, event: &mut T, meta: &EventMeta<'_>) -> Answer {
        self.0(event, meta)
    }
}

/// Listeners that are alike, in order.
pub(crate) trait Alike: Send + Sync {
    /// Calls them until one fails, and moves the place of the first.
    fn call(&self, place: &mut usize, event: &mut dyn AnyEvent, meta: &EventMeta<'_>) -> Answer;
}

/// Those that take a `T`: of each its closure, and then the listener itself. So the closure is dropped with the listener, which
/// contains a panic of what it captured.
struct OfType<T: ?Sized>(Box<[(Typed<T>, Arc<Listener>)]>);

impl<T: Hears + ?Sized + 'static> Alike for OfType<T> {
    fn call(&self, place: &mut usize, event: &mut dyn AnyEvent, meta: &EventMeta<'_>) -> Answer {
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
    fn refuse(&self, place: &mut usize) -> Answer {
        *place += 1;
        let refuses = self.0.first().is_some_and(|(_, listener)| listener.claims.claim_unlimited());
        if refuses { Err(Box::new(Fault::Mismatch)) } else { Ok(()) }
    }
}

impl Listener {
    /// Its closure, if it may be like others.
    fn plain(&self) -> Option<&Arc<dyn Change>> {
        match &self.call {
            Call::Change(change) if self.claims.claim_unlimited() && !self.matcher.is_function() => Some(change),
            _ => None,
        }
    }

    fn is_like(&self, other: &Self) -> bool {
        let types = [self, other].map(|listener| listener.heard.map(|heard| heard.id));
        types[0] == types[1] && self.plain().is_some() && other.plain().is_some()
    }
}

/// Where those begin that are alike, by place; empty if there are none.
pub(crate) type Beginnings = Box<[Option<Box<dyn Alike>>]>;

pub(crate) fn beginnings(listeners: &[Arc<Listener>]) -> Beginnings {
    let mut beginnings = Vec::new();
    for like in listeners.chunk_by(|one, next| one.is_like(next)) {
        let alike = like.first().filter(|_| like.len() > 1).and_then(|first| first.plain()?.alike(like));
        beginnings.push(alike);
        beginnings.resize_with(beginnings.len() + like.len() - 1, || None);
    }
    if beginnings.iter().all(Option::is_none) { Box::default() } else { beginnings.into() }
}
