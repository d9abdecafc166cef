//! The loop that calls the listeners of an event. It walks along the [`Route`] and hands over to
//! [`awaited`](super::awaited) at the first listener that has to be awaited.
//!
//! 1. The cursor moves past a listener before it is called, so that it shows which listener failed, panicked or has to
//!    be awaited.
//! 2. One `caught_or` covers all listeners that are called in one go. A panic ends the loop, which is then entered again
//!    at the next listener.
//! 3. The delivery mode determines only what the loop does with a listener that has to be awaited.

use std::collections::VecDeque;
use std::sync::Arc;

use super::emit::Emit;
use super::route::{Cursor, Route};
use crate::emitter::scope::within;
use crate::error::EmitErrorKind;
use crate::panic::{caught_or, discard};
use crate::registry::listener::{Call, CallResult, Failure, Listener, panicked};
use crate::{AnyEvent, EmitError, Emitter, EventMeta};

/// One emit that has listeners: the event's meta, the route, and the progress along it.
pub(super) struct Dispatch<'a> {
    pub(super) emit: &'a Emit<'a>,
    pub(super) meta: EventMeta<'a>,
    pub(super) route: Route,
    pub(super) progress: DispatchProgress,
}

/// The progress of an event along its route.
pub(super) struct DispatchProgress {
    cursor: Cursor,
    /// `true` if the listener before the cursor has not been called yet, because it has to be awaited.
    is_awaiting: bool,
    /// The cursors just past the listeners to await later, if sync listeners run first.
    #[expect(
        clippy::box_collection,
        reason = "the box keeps the state of an emit small, and few emits need the queue"
    )]
    deferred: Option<Box<VecDeque<Cursor>>>,
    /// The error of the emit so far.
    pub(super) failed: Option<EmitError>,
}

/// The payload, as it is passed to the next listeners. It is shared once an observer has to be awaited.
pub(super) enum PayloadRef<'e> {
    Changing(&'e mut dyn AnyEvent),
    Observed(&'e dyn AnyEvent),
}

impl PayloadRef<'_> {
    #[inline(always)]
    fn shared(&self) -> &dyn AnyEvent {
        match self {
            Self::Changing(event) => &**event,
            Self::Observed(event) => *event,
        }
    }
}

/// The outcome of a listener's turn.
enum CallOutcome {
    /// The listener was called or has no calls left (E8, E9), its matcher function does not accept the event, or the
    /// event was consumed (E20).
    Done,
    /// The listener has to be awaited.
    MustAwait,
}

impl<'a> Dispatch<'a> {
    #[inline(always)]
    pub(super) fn new(emit: &'a Emit<'a>) -> Self {
        Self { emit, meta: EventMeta::new(emit), route: Route::new(), progress: DispatchProgress::START }
    }

    /// Finds the listeners and calls them until one has to be awaited. Returns the result of the emit if no listener
    /// has to be awaited.
    ///
    /// Never inlined: the future of an emit is inlined where it is awaited, and there the loop would run out of
    /// registers.
    #[inline(never)]
    pub(super) fn start(&mut self, from: &Emitter, event: &mut dyn AnyEvent) -> Option<Result<(), EmitError>> {
        let Self { emit, meta, route, progress } = self;
        if !route.find(from, meta) {
            return Some(Ok(()));
        }
        if emit.delivery.is_some_and(|delivery| !delivery.is_in_order()) {
            progress.deferred = Some(Box::default());
        }
        // Listeners run inside the scope of the run that emits (R9). Usually the emit itself is already inside the
        // scope, or there is no run.
        let scope = if emit.source.is_in_run() { emit.source.scope_to_enter() } else { None };
        let awaited = match scope {
            None => progress.advance::<true>(route, PayloadRef::Changing(event), meta),
            Some(scope) => {
                within(Some(scope), || progress.advance_out_of_line(route, PayloadRef::Changing(&mut *event), meta))
            }
        };
        progress.is_awaiting = awaited.is_some();
        if !progress.is_awaiting && progress.deferred.as_ref().is_none_or(|deferred| deferred.is_empty()) {
            return Some(progress.result());
        }
        // The emit may be suspended from here on: fix the time and context of the event (E14).
        meta.fix();
        None
    }

    /// Finds the listeners and calls them from code that cannot await. Returns an error if a listener would have to be
    /// awaited. No listener is called in that case (E17), unless a sink fills up during the call.
    pub(super) fn start_now(&mut self, from: &Emitter, event: &mut dyn AnyEvent) -> Result<(), EmitError> {
        let Self { emit, meta, route, progress } = self;
        route.find(from, meta);
        // A sink that has room now may be full when its turn comes. The emit then fails there, after the listeners
        // before the sink have run.
        let call = || {
            within(emit.source.scope_to_enter(), || {
                progress.advance_out_of_line(route, PayloadRef::Changing(&mut *event), meta)
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

    /// Calls listeners until one has to be awaited, and returns that listener. Returns `None` after the last listener.
    /// If `deferred` is set, the places of listeners that have to be awaited are stored there, and the loop continues.
    ///
    /// `START` makes two copies of the loop, one for [`Dispatch::start`] and one for
    /// [`advance_out_of_line`](Self::advance_out_of_line). The compiler inlines a loop into its `caught_or` only if the
    /// loop has one caller (bench W10).
    #[inline(always)]
    fn advance<'r, const START: bool>(
        &mut self,
        route: &'r Route,
        mut event: PayloadRef<'_>,
        meta: &EventMeta<'_>,
    ) -> Option<&'r Arc<Listener>> {
        loop {
            match call_listeners::<START>(route, &mut self.cursor, &mut event, meta) {
                Ok(None) => return None,
                Ok(Some(listener)) => match &mut self.deferred {
                    None => return Some(listener),
                    // Sync listeners run first: store the place and continue.
                    Some(deferred) => deferred.push_back(self.cursor),
                },
                // The listener just before the cursor has failed (invariant 1).
                Err(failure) => self.handle_failure(route.before(&self.cursor)?, failure, event.shared(), meta),
            }
        }
    }

    /// Calls [`advance`](Self::advance) off the hot path.
    #[inline(never)]
    fn advance_out_of_line<'r>(
        &mut self,
        route: &'r Route,
        event: PayloadRef<'_>,
        meta: &EventMeta<'_>,
    ) -> Option<&'r Arc<Listener>> {
        self.advance::<false>(route, event, meta)
    }

    /// Returns the next listener to be awaited, after calling the sync listeners before it.
    pub(super) fn next_awaited<'r>(
        &mut self,
        route: &'r Route,
        event: PayloadRef<'_>,
        meta: &EventMeta<'_>,
    ) -> Option<&'r Arc<Listener>> {
        if std::mem::take(&mut self.is_awaiting) {
            return route.before(&self.cursor);
        }
        // Deferred listeners come last, in their order.
        let next = self.advance_out_of_line(route, event, meta);
        next.or_else(|| route.before(&self.deferred.as_mut()?.pop_front()?))
    }

    /// Skips the remaining listeners that may change the event, after a listener has failed (E11).
    pub(super) fn skip_changing(&mut self) {
        self.cursor.skip_changing();
        if let Some(deferred) = &mut self.deferred {
            deferred.retain(Cursor::is_observing);
        }
    }

    #[cold]
    fn drop_failure(&mut self) {
        discard("a listener's error", self.failed.take());
    }

    #[inline]
    pub(super) fn result(&mut self) -> Result<(), EmitError> {
        self.failed.take().map_or(Ok(()), Err)
    }
}

/// An emit that is dropped may hold a listener's error, and dropping the error may panic.
impl Drop for DispatchProgress {
    #[inline]
    fn drop(&mut self) {
        if self.failed.is_some() {
            self.drop_failure();
        }
    }
}

/// Calls listeners from the cursor on until one fails or has to be awaited. Returns the listener that has to be
/// awaited, the failure as an error, or `None` after the last listener.
#[inline(always)]
fn call_listeners<'r, const START: bool>(
    route: &'r Route,
    cursor: &mut Cursor,
    event: &mut PayloadRef<'_>,
    meta: &EventMeta<'_>,
) -> Result<Option<&'r Arc<Listener>>, Box<Failure>> {
    let call = || {
        while let Some(listeners) = route.listeners(cursor) {
            loop {
                // A batch checks the event's type once for all its listeners.
                if let (Some(batch), PayloadRef::Changing(event)) = (listeners.batch(cursor.place), &mut *event)
                    && !meta.is_consumed()
                {
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
    caught_or(call, |panic| Err(panicked(panic)))
}

/// Calls a listener, unless it has to be awaited.
#[inline(always)]
fn call_listener(
    listener: &Listener,
    event: &mut PayloadRef<'_>,
    meta: &EventMeta<'_>,
) -> Result<CallOutcome, Box<Failure>> {
    // A matcher function is called for each event, just before the listener. All other matchers were checked when the
    // route was found.
    if meta.is_consumed() && !listener.receives_consumed() || !listener.matcher.accepts(meta) {
        return Ok(CallOutcome::Done);
    }
    match (&listener.call, event) {
        (Call::Change(change), PayloadRef::Changing(event)) => claim_and_call(listener, || change.call(*event, meta))?,
        (Call::Observe(observe), event) => claim_and_call(listener, || observe(event.shared(), meta))?,
        // An awaited call is claimed when its future is made. A listener without calls left is not awaited.
        _ if listener.claims.is_spent() => {}
        // A sink that has room takes the event without waiting.
        (Call::TryObserve { now, .. }, event) if now(event.shared(), meta) => {}
        _ => return Ok(CallOutcome::MustAwait),
    }
    Ok(CallOutcome::Done)
}

/// Calls a listener if it has a call left. The claim comes just before the call (E8, E9).
#[inline(always)]
fn claim_and_call(listener: &Listener, call: impl FnOnce() -> CallResult) -> CallResult {
    if listener.claims.claim_unlimited() { call() } else { claim_and_call_limited(listener, call) }
}

/// Calls a listener whose calls are limited, if it has a call left. Never inlined, so that it stays out of the loop of
/// every emit.
#[inline(never)]
fn claim_and_call_limited(listener: &Listener, call: impl FnOnce() -> CallResult) -> CallResult {
    if !listener.claims.claim() {
        return Ok(());
    }
    let answer = call();
    // If the listener has used up its limited calls, remove it, so that no later emit looks at it (E8).
    listener.remove_if_spent();
    answer
}
