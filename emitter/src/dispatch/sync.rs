//! The loop over listeners that every emit goes through.
//!
//! 1. The cursor is behind a listener before that is called: whose failure, panic or turn it was shows there.
//! 2. One `catch_or` serves all that are called without a pause: a panic ends the loop, and it begins again behind who panicked.
//! 3. Which order a delivery asks for changes one thing: what the loop does with a listener that has to be awaited.

use std::collections::VecDeque;
use std::sync::Arc;

use super::emit::Emit;
use super::route::{Cursor, Route};
use crate::emitter::scope::within;
use crate::error::EmitErrorKind;
use crate::panic::{catch_or, drop_catching};
use crate::registry::listener::{Call, CallResult, Failure, Listener, panicked};
use crate::{AnyEvent, EmitError, Emitter, EventMeta};

/// One emit that somebody may receive.
pub(super) struct Dispatch<'a> {
    pub(super) emit: &'a Emit<'a>,
    pub(super) meta: EventMeta<'a>,
    pub(super) route: Route,
    pub(super) progress: DispatchProgress,
}

/// How far an event has come.
pub(super) struct DispatchProgress {
    cursor: Cursor,
    /// The listener before the cursor has not been called: it has to be awaited.
    is_awaiting: bool,
    /// Where sync listeners come first, behind which cursors those are that are awaited afterwards.
    #[expect(clippy::box_collection, reason = "a word of each emit, and nearly none has it")]
    deferred: Option<Box<VecDeque<Cursor>>>,
    /// What the emit fails with.
    pub(super) failed: Option<EmitError>,
}

/// The event, as it may be passed on: nobody changes it any more once an observer has it.
pub(super) enum Payload<'e> {
    Changing(&'e mut dyn AnyEvent),
    Observed(&'e dyn AnyEvent),
}

impl Payload<'_> {
    #[inline(always)]
    fn shared(&self) -> &dyn AnyEvent {
        match self {
            Self::Changing(event) => &**event,
            Self::Observed(event) => *event,
        }
    }
}

/// What has come of a listener whose turn it is.
enum CallOutcome {
    /// It was called; or it has no calls left (E8, E9), or its matcher says no.
    Done,
    /// It has to be awaited.
    MustAwait,
}

impl<'a> Dispatch<'a> {
    #[inline(always)]
    pub(super) fn new(emit: &'a Emit<'a>) -> Self {
        Self { emit, meta: EventMeta::new(emit), route: Route::new(), progress: DispatchProgress::START }
    }

    /// Finds who receives the event, and calls listeners until one has to be awaited. Returns the result if none has.
    ///
    /// Never inlined: in the future of an emit, which is inlined where that is awaited, it would have no registers.
    #[inline(never)]
    pub(super) fn start(&mut self, from: &Emitter, event: &mut dyn AnyEvent) -> Option<Result<(), EmitError>> {
        let Self { emit, meta, route, progress } = self;
        if !route.find(from, meta) {
            return Some(Ok(()));
        }
        if emit.delivery.is_some_and(|delivery| !delivery.is_in_order()) {
            progress.deferred = Some(Box::default());
        }
        // Listeners are called inside of the run that emits (R9). Mostly that is where the emit is, or there is none.
        let scope = if emit.source.is_in_run() { emit.source.scope_to_enter() } else { None };
        let awaited = match scope {
            None => progress.advance::<true>(route, Payload::Changing(event), meta),
            Some(scope) => {
                within(Some(scope), || progress.advance_out_of_line(route, Payload::Changing(&mut *event), meta))
            }
        };
        progress.is_awaiting = awaited.is_some();
        if !progress.is_awaiting && progress.deferred.as_ref().is_none_or(|deferred| deferred.is_empty()) {
            return Some(progress.result());
        }
        // From here on time passes: what listeners may ask about the event must not move with it (E14).
        meta.fix();
        None
    }

    /// Does the same where nothing can be awaited: then nobody is called if somebody would have to be (E17).
    pub(super) fn start_now(&mut self, from: &Emitter, event: &mut dyn AnyEvent) -> Result<(), EmitError> {
        let Self { emit, meta, route, progress } = self;
        route.find(from, meta);
        // A sink that had room a moment ago may be full when its turn comes.
        let call = || {
            within(emit.source.scope_to_enter(), || {
                progress.advance_out_of_line(route, Payload::Changing(&mut *event), meta)
            })
        };
        match route.first_async(meta).or_else(call) {
            Some(listener) => Err(EmitErrorKind::WouldAwait { path: meta.path().to_owned(), at: listener.at }.into()),
            None => progress.result(),
        }
    }
}

impl DispatchProgress {
    pub(super) const START: Self = Self { cursor: Cursor::START, is_awaiting: false, deferred: None, failed: None };

    /// Calls listeners until one has to be awaited, which is returned; none once everybody has had their turn.
    ///
    /// `START` makes two copies of the loop: one in [`Dispatch::start`] and one in [`advance_out_of_line`](Self::advance_out_of_line). The compiler joins each with
    /// what catches its panics, which it does not do with a loop that is called from two places (W10).
    #[inline(always)]
    fn advance<'r, const START: bool>(
        &mut self,
        route: &'r Route,
        mut event: Payload<'_>,
        meta: &EventMeta<'_>,
    ) -> Option<&'r Arc<Listener>> {
        loop {
            match call_listeners::<START>(route, &mut self.cursor, &mut event, meta) {
                Ok(None) => return None,
                Ok(Some(listener)) => match &mut self.deferred {
                    None => return Some(listener),
                    Some(deferred) => deferred.push_back(self.cursor),
                },
                Err(failure) => self.handle_failure(route.before(&self.cursor)?, failure, event.shared(), meta),
            }
        }
    }

    /// Advances off the common path.
    #[inline(never)]
    fn advance_out_of_line<'r>(
        &mut self,
        route: &'r Route,
        event: Payload<'_>,
        meta: &EventMeta<'_>,
    ) -> Option<&'r Arc<Listener>> {
        self.advance::<false>(route, event, meta)
    }

    /// The next listener to be awaited, after the sync ones before it have been called.
    pub(super) fn next_awaited<'r>(
        &mut self,
        route: &'r Route,
        event: Payload<'_>,
        meta: &EventMeta<'_>,
    ) -> Option<&'r Arc<Listener>> {
        if std::mem::take(&mut self.is_awaiting) {
            return route.before(&self.cursor);
        }
        let next = self.advance_out_of_line(route, event, meta);
        next.or_else(|| route.before(&self.deferred.as_mut()?.pop_front()?))
    }

    /// Nobody else may change the event: goes on with those that observe it (E11).
    pub(super) fn skip_changing(&mut self) {
        self.cursor.skip_changing();
        if let Some(deferred) = &mut self.deferred {
            deferred.retain(Cursor::is_observing);
        }
    }

    #[cold]
    fn drop_failure(&mut self) {
        drop_catching("a listener's error", self.failed.take());
    }

    #[inline]
    pub(super) fn result(&mut self) -> Result<(), EmitError> {
        self.failed.take().map_or(Ok(()), Err)
    }
}

/// The failure of an emit that was dropped is the user's, and may panic as it is dropped.
impl Drop for DispatchProgress {
    #[inline]
    fn drop(&mut self) {
        if self.failed.is_some() {
            self.drop_failure();
        }
    }
}

/// Calls one listener after the other, from the cursor on, until one fails or has to be awaited, which is returned.
#[inline(always)]
fn call_listeners<'r, const START: bool>(
    route: &'r Route,
    cursor: &mut Cursor,
    event: &mut Payload<'_>,
    meta: &EventMeta<'_>,
) -> Result<Option<&'r Arc<Listener>>, Box<Failure>> {
    let call = || {
        while let Some(listeners) = route.listeners(cursor) {
            loop {
                // Listeners of one type ask once for all whether the event is of that type.
                if let (Some(batch), Payload::Changing(event)) = (listeners.batch(cursor.place), &mut *event) {
                    batch.call(&mut cursor.place, *event, meta)?;
                    continue;
                }
                let Some(listener) = listeners.next(&mut cursor.place) else { break };
                if let CallOutcome::MustAwait = call_listener(listener, event, meta)? {
                    return Ok(Some(listener));
                }
            }
            cursor.pass_emitter();
        }
        Ok(None)
    };
    catch_or(call, |panic| Err(panicked(panic)))
}

/// Calls a listener whose turn it is, unless it has to be awaited.
#[inline(always)]
fn call_listener(
    listener: &Listener,
    event: &mut Payload<'_>,
    meta: &EventMeta<'_>,
) -> Result<CallOutcome, Box<Failure>> {
    // The other matchers were asked when the route was found; what a function says may be different for each event.
    if !listener.matcher.accepts(meta) {
        return Ok(CallOutcome::Done);
    }
    match (&listener.call, event) {
        (Call::Change(change), Payload::Changing(event)) => claim_and_call(listener, || change.call(*event, meta))?,
        (Call::Observe(observe), event) => claim_and_call(listener, || observe(event.shared(), meta))?,
        // A call that is awaited is claimed where it is awaited; but where no call is left, nothing is awaited.
        _ if listener.claims.is_spent() => {}
        (Call::TryObserve { now, .. }, event) if now(event.shared(), meta) => {}
        _ => return Ok(CallOutcome::MustAwait),
    }
    Ok(CallOutcome::Done)
}

/// Calls a listener if it has a call left, just before which it is looked at (E8, E9).
#[inline(always)]
fn claim_and_call(listener: &Listener, call: impl FnOnce() -> CallResult) -> CallResult {
    if listener.claims.claim_unlimited() { call() } else { claim_and_call_counted(listener, call) }
}

/// The same, where calls are limited or counted. Out of the loop of every emit.
#[inline(never)]
fn claim_and_call_counted(listener: &Listener, call: impl FnOnce() -> CallResult) -> CallResult {
    if !listener.claims.claim() {
        return Ok(());
    }
    let answer = match &listener.tracked {
        None => call(),
        Some(tracked) => match tracked.begin() {
            Some(under_way) => under_way.within(call),
            None => return Ok(()),
        },
    };
    listener.remove_if_spent();
    answer
}
