//! Calling listeners that need not be awaited, one after the other: the loop of every emit.

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
    stretch(route, Role::Change, cursor, meta, |listener| match &listener.call {
        Call::Change(call) => Called::now(listener, || call(event, meta)),
        _ => Called::later(listener),
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
    stretch(route, Role::Observe, cursor, meta, |listener| match &listener.call {
        Call::Observe(call) => Called::now(listener, || call(event, meta)),
        Call::TryObserve { now, .. } if !listener.claims.is_spent() && now(event, meta) => Called::Now(Ok(())),
        _ => Called::later(listener),
    })
}

/// What has come of calling a listener.
pub(crate) enum Called {
    Now(Answer),
    /// It has no calls left (E8, E9).
    Spent,
    /// It has to be awaited.
    Later,
}

impl Called {
    #[inline]
    pub(crate) fn now(listener: &Listener, call: impl FnOnce() -> Answer) -> Self {
        if listener.claims.claim() { Self::Now(call()) } else { Self::Spent }
    }

    /// What is awaited is claimed where it is awaited; but where no call is left, nothing is awaited.
    #[inline]
    pub(crate) fn later(listener: &Listener) -> Self {
        if listener.claims.is_spent() { Self::Spent } else { Self::Later }
    }
}

/// Calls one listener after the other until one fails or has to be awaited.
#[inline(always)]
fn stretch<'r>(
    route: &'r Route,
    role: Role,
    cursor: &mut Cursor,
    meta: &EventMeta<'_>,
    mut call: impl FnMut(&Listener) -> Called,
) -> Halt<'r> {
    while let Some(takers) = route.takers(role, *cursor) {
        if !takers.is_empty() {
            match call_takers(&takers, &mut cursor.taker, meta, &mut call) {
                Halt::End => {}
                halt => return halt,
            }
        }
        cursor.pass();
    }
    Halt::End
}

/// The same at one stop, from a place on.
///
/// One `catch_unwind` serves them all; whose panic it was shows in the place. Always inlined, as all that leads
/// here: this is the loop of every emit.
#[inline(always)]
fn call_takers<'r>(
    takers: &Takers<'r>,
    place: &mut usize,
    meta: &EventMeta<'_>,
    call: &mut impl FnMut(&Listener) -> Called,
) -> Halt<'r> {
    let run = AssertUnwindSafe(|| {
        while let Some((after, listener)) = takers.next(*place) {
            let before = std::mem::replace(place, after);
            if !listener.matcher.says(meta) {
                continue;
            }
            match call(listener) {
                Called::Now(Ok(())) => listener.leave_if_spent(),
                Called::Now(Err(fault)) => return Halt::Fault(listener, fault),
                Called::Spent => {}
                Called::Later => {
                    *place = before;
                    return Halt::Await;
                }
            }
        }
        Halt::End
    });
    let halt = catch_unwind(run).unwrap_or_else(|panic| match takers.before(*place) {
        Some(listener) => Halt::Fault(listener, panicked(panic)),
        None => Halt::End,
    });
    if let Halt::Fault(listener, _) = &halt {
        listener.leave_if_spent();
    }
    halt
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
