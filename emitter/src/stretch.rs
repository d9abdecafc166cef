//! Calling listeners that need not be awaited, one after the other: the loop of every emit.

use std::any::Any;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

use crate::listener::{Answer, Call, Fault, Listener, Role, panicked};
use crate::route::{Cursor, Route};
use crate::snapshot::Takers;
use crate::{AnyEvent, EventMeta};

/// What a stretch of them ends with.
pub(crate) enum Halt<'r> {
    End,
    /// The next listener has to be awaited.
    Await,
    Fault(&'r Arc<Listener>, Box<Fault>),
}

/// Those that may change the event, from the cursor on.
#[inline(always)]
pub(crate) fn change_stretch<'r>(
    route: &'r Route,
    cursor: &mut Cursor,
    event: &mut dyn AnyEvent,
    meta: &EventMeta<'_>,
) -> Halt<'r> {
    stretch(route, Role::Change, cursor, |takers, place| {
        call_takers(takers, place, meta, |listener| match &listener.call {
            Call::Change(call) if listener.claims.are_unlimited() => Called::Now(call(event, meta)),
            Call::Change(call) => Called::counted(listener, || call(event, meta)),
            _ => Called::later(listener),
        })
    })
}

/// Those that observe it, from the cursor on.
#[inline(always)]
pub(crate) fn observe_stretch<'r>(
    route: &'r Route,
    cursor: &mut Cursor,
    event: &dyn AnyEvent,
    meta: &EventMeta<'_>,
) -> Halt<'r> {
    stretch(route, Role::Observe, cursor, |takers, place| {
        call_takers(takers, place, meta, |listener| match &listener.call {
            Call::Observe(call) if listener.claims.are_unlimited() => Called::Now(call(event, meta)),
            Call::Observe(call) => Called::counted(listener, || call(event, meta)),
            Call::TryObserve { now, .. } if !listener.claims.is_spent() && now(event, meta) => Called::Now(Ok(())),
            _ => Called::later(listener),
        })
    })
}

/// What has come of calling a listener.
pub(crate) enum Called {
    /// It has answered; or it had no calls left, and was not called (E8, E9).
    Now(Answer),
    /// It has to be awaited.
    Later,
}

impl Called {
    #[inline]
    pub(crate) fn now(listener: &Listener, call: impl FnOnce() -> Answer) -> Self {
        if listener.claims.are_unlimited() { Self::Now(call()) } else { Self::counted(listener, call) }
    }

    /// Where calls are counted: after the last one the listener goes (E8).
    #[cold]
    #[inline(never)]
    fn counted(listener: &Listener, call: impl FnOnce() -> Answer) -> Self {
        if !listener.claims.claim() {
            return Self::Now(Ok(()));
        }
        let answer = call();
        listener.leave_if_spent();
        Self::Now(answer)
    }

    /// What is awaited is claimed where it is awaited; but where no call is left, nothing is awaited.
    #[inline]
    pub(crate) fn later(listener: &Listener) -> Self {
        if listener.claims.is_spent() { Self::Now(Ok(())) } else { Self::Later }
    }
}

/// Goes from stop to stop until a listener fails or has to be awaited.
#[inline(always)]
fn stretch<'r>(
    route: &'r Route,
    role: Role,
    cursor: &mut Cursor,
    mut call: impl FnMut(Takers<'r>, &mut usize) -> Halt<'r>,
) -> Halt<'r> {
    while let Some(takers) = route.takers(role, *cursor) {
        if !takers.is_empty() {
            match call(takers, &mut cursor.taker) {
                Halt::End => {}
                halt => return halt,
            }
        }
        cursor.pass();
    }
    Halt::End
}

/// Calls the listeners of one stop, from a place on, until one fails or has to be awaited.
///
/// One `catch_unwind` serves them all; whose panic it was shows in the place. Always inlined, as all that leads
/// here: this is the loop of every emit. What it needs it is given by value, so that a call cannot change it.
#[inline(always)]
fn call_takers<'r>(
    takers: Takers<'r>,
    place: &mut usize,
    meta: &EventMeta<'_>,
    mut call: impl FnMut(&Listener) -> Called,
) -> Halt<'r> {
    let at = &mut *place;
    let run = AssertUnwindSafe(move || {
        while let Some((first, listeners)) = takers.adjacent(*at) {
            for (here, listener) in (first..).zip(listeners) {
                *at = here + 1;
                if !listener.matcher.says(meta) {
                    continue;
                }
                match call(listener) {
                    Called::Now(Ok(())) => {}
                    Called::Now(Err(fault)) => return Halt::Fault(listener, fault),
                    Called::Later => {
                        *at = here;
                        return Halt::Await;
                    }
                }
            }
        }
        Halt::End
    });
    catch_unwind(run).unwrap_or_else(|panic| blame(takers.before(*place), panic))
}

/// Takes a panic for the failure of the listener that was being called.
#[cold]
fn blame<'r>(listener: Option<&'r Arc<Listener>>, panic: Box<dyn Any + Send>) -> Halt<'r> {
    let Some(listener) = listener else { return Halt::End };
    listener.leave_if_spent();
    Halt::Fault(listener, panicked(panic))
}

impl Listener {
    /// One that has had its last call goes (E8).
    #[inline]
    pub(crate) fn leave_if_spent(&self) {
        if self.claims.is_spent() {
            self.leave();
        }
    }
}
