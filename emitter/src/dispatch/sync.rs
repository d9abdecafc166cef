//! Calling listeners that need not be awaited, one after the other: the loop of every emit.

use std::sync::Arc;

use crate::cache::Line;
use crate::dispatch::batch::Alike;
use crate::dispatch::route::{Cursor, Route};
use crate::listener::{Answer, Call, Fault, Listener, Role, panicked};
use crate::panic::catch_or;
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
    stretch(route, Role::Change, cursor, Changing { event, meta })
}

/// Those that may change it, at one stop.
#[inline(always)]
pub(crate) fn change_at<'r>(
    takers: &Takers<'r>,
    place: &mut usize,
    event: &mut dyn AnyEvent,
    meta: &EventMeta<'_>,
) -> Halt<'r> {
    let called = caught(|| call_at(takers, place, &mut Changing { event, meta }));
    halt(called, || takers.before(*place))
}

/// Those that observe it, from the cursor on.
#[inline(always)]
pub(crate) fn observe_stretch<'r>(
    route: &'r Route,
    cursor: &mut Cursor,
    event: &dyn AnyEvent,
    meta: &EventMeta<'_>,
) -> Halt<'r> {
    stretch(route, Role::Observe, cursor, Observing { event, meta })
}

/// How listeners of a role are called.
trait Caller {
    fn call(&mut self, listener: &Listener) -> Called;

    /// Calls those that are alike, and moves the place of the first; if listeners of that role ever are.
    #[inline(always)]
    fn call_alike(&mut self, _: &dyn Alike, _place: &mut usize) -> Option<Answer> {
        None
    }
}

struct Changing<'e> {
    event: &'e mut dyn AnyEvent,
    meta: &'e EventMeta<'e>,
}

impl Caller for Changing<'_> {
    #[inline(always)]
    fn call(&mut self, listener: &Listener) -> Called {
        match &listener.call {
            _ if !listener.matcher.says(self.meta) => Called::Skipped,
            Call::Change(change) => Called::now(listener, || change.call(self.event, self.meta)),
            _ => Called::later(listener),
        }
    }

    #[inline(always)]
    fn call_alike(&mut self, alike: &dyn Alike, place: &mut usize) -> Option<Answer> {
        Some(alike.call(place, self.event, self.meta))
    }
}

struct Observing<'e> {
    event: &'e dyn AnyEvent,
    meta: &'e EventMeta<'e>,
}

impl Caller for Observing<'_> {
    #[inline(always)]
    fn call(&mut self, listener: &Listener) -> Called {
        let (event, meta) = (self.event, self.meta);
        match &listener.call {
            _ if !listener.matcher.says(meta) => Called::Skipped,
            Call::Observe(call) => Called::now(listener, || call(event, meta)),
            Call::TryObserve { now, .. } if !listener.claims.is_spent() && now(event, meta) => Called::Now(Ok(())),
            _ => Called::later(listener),
        }
    }
}

/// What has come of calling a listener.
pub(crate) enum Called {
    Now(Answer),
    /// It has no calls left (E8, E9), or its matcher says no.
    Skipped,
    /// It has to be awaited.
    Later,
}

impl Called {
    #[inline(always)]
    pub(crate) fn now(listener: &Listener, call: impl FnOnce() -> Answer) -> Self {
        if listener.claims.claim_unlimited() { Self::Now(call()) } else { Self::now_counted(listener, call) }
    }

    /// The same, where calls are limited or counted. Out of the loop of every emit.
    #[inline(never)]
    fn now_counted(listener: &Listener, call: impl FnOnce() -> Answer) -> Self {
        if !listener.claims.claim() {
            return Self::Skipped;
        }
        let answer = match &listener.tracked {
            None => call(),
            Some(tracked) => match tracked.begin() {
                Some(under_way) => under_way.within(call),
                None => return Self::Skipped,
            },
        };
        listener.leave_if_spent();
        Self::Now(answer)
    }

    /// What is awaited is claimed where it is awaited; but where no call is left, nothing is awaited.
    #[inline]
    pub(crate) fn later(listener: &Listener) -> Self {
        if listener.claims.is_spent() { Self::Skipped } else { Self::Later }
    }
}

/// Calls one listener after the other until one fails or has to be awaited.
///
/// One `catch_or` serves them all; whose panic it was shows in the cursor, which is behind a listener before that is
/// called. Always inlined, as all that leads here: this is the loop of every emit.
#[inline(always)]
fn stretch<'r>(route: &'r Route, role: Role, cursor: &mut Cursor, mut caller: impl Caller) -> Halt<'r> {
    let called = caught(|| {
        while let Some(takers) = route.takers(role, cursor.stop) {
            if !call_at(&takers, &mut cursor.taker, &mut caller)? {
                return Ok(false);
            }
            cursor.pass();
        }
        Ok(true)
    });
    halt(called, || route.takers(role, cursor.stop)?.before(cursor.taker))
}

/// Calls what is given; a panic is a fault.
#[inline(always)]
fn caught(call: impl FnOnce() -> Result<bool, Box<Fault>>) -> Result<bool, Box<Fault>> {
    catch_or(call, |panic| Err(panicked(panic)))
}

/// What it means to have come through, or not, and whose fault it was.
#[inline(always)]
fn halt<'r>(called: Result<bool, Box<Fault>>, culprit: impl FnOnce() -> Option<&'r Arc<Listener>>) -> Halt<'r> {
    match called {
        Ok(true) => Halt::End,
        Ok(false) => Halt::Await,
        Err(fault) => culprit().map_or(Halt::End, |listener| {
            listener.leave_if_spent();
            Halt::Fault(listener, fault)
        }),
    }
}

/// Calls those at one stop, from a place on. Tells whether it came through; if not, the listener at the place has to be
/// awaited.
#[inline(always)]
fn call_at(takers: &Takers<'_>, place: &mut usize, caller: &mut impl Caller) -> Result<bool, Box<Fault>> {
    match *takers {
        Takers::Few(listeners, positions) => call_few(listeners, positions, place, caller),
        Takers::Listed(line) => call_line(line, place, caller),
    }
}

#[inline(always)]
fn call_few(
    listeners: &[Arc<Listener>],
    positions: usize,
    place: &mut usize,
    caller: &mut impl Caller,
) -> Result<bool, Box<Fault>> {
    let mut left = positions >> *place << *place;
    while let Some(listener) = listeners.get(left.trailing_zeros() as usize) {
        *place = left.trailing_zeros() as usize;
        if !call_next(listener, place, caller)? {
            return Ok(false);
        }
        left &= left - 1;
    }
    Ok(true)
}

#[inline(always)]
fn call_line(line: &Line, place: &mut usize, caller: &mut impl Caller) -> Result<bool, Box<Fault>> {
    while let Some(listener) = line.listeners.get(*place) {
        match line.alike(*place).and_then(|alike| caller.call_alike(alike, place)) {
            Some(answer) => answer?,
            None if call_next(listener, place, caller)? => {}
            None => return Ok(false),
        }
    }
    Ok(true)
}

/// Calls the listener at a place, which is behind it then; if that has to be awaited, leaves it there.
#[inline(always)]
fn call_next(listener: &Listener, place: &mut usize, caller: &mut impl Caller) -> Result<bool, Box<Fault>> {
    *place += 1;
    match caller.call(listener) {
        Called::Now(answer) => answer?,
        Called::Skipped => {}
        Called::Later => {
            *place -= 1;
            return Ok(false);
        }
    }
    Ok(true)
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
