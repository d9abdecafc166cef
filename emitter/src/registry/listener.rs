//! A listener: the events that it takes, its call, and the result of the call. An emit finds listeners through the
//! registry's snapshot and calls them through [`Call`].

use std::any::Any;
use std::marker::PhantomData;
use std::mem::replace;
use std::panic::Location;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Weak};

use futures_core::future::BoxFuture;

use crate::dispatch::batch::{self, Batch};
use crate::dispatch::emit::Emit;
use crate::emitter::Node;
use crate::emitter::scope::drop_in_run_of;
use crate::event::ExpectedType;
use crate::matching::function::Exact;
use crate::matching::matcher::MatcherKind;
use crate::name::is_same;
use crate::panic::discard;
use crate::registry::claim::Claims;
use crate::rt::Facet;
use crate::{AnyEvent, BoxError, EventMeta, Matcher, Payload};

/// The effect of a listener's error or panic.
///
/// By default, if a listener that may change the event fails or panics, no further such listener is called, and the
/// emit fails with an error that names the listener. Observers still receive the event; their failures are isolated.
///
/// Panic payloads, errors, futures and captured values of listeners may panic when they are dropped: no such panic
/// leaves an emit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum OnError {
    /// The failure makes the emit fail. If the listener may change the event, no other listener changes it afterwards.
    /// For events that only report, such as a run's `error` and `finish`, failures are isolated even with this value.
    Propagate,
    /// The failure is logged and counted, and the emit continues.
    Isolate,
}

/// The role of a listener: it changes or observes the event.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Role {
    Change,
    Observe,
}

/// The reason for the failure of a call.
#[derive(Debug)]
pub(crate) enum Failure {
    Error(BoxError),
    Mismatch,
    Panic(String),
}

#[cold]
pub(crate) fn panicked(message: String) -> Box<Failure> {
    Box::new(Failure::Panic(message))
}

/// The result of a call. The failure is boxed, so that the usual result fits into a register.
pub(crate) type CallResult = Result<(), Box<Failure>>;
impl From<BoxError> for Box<Failure> {
    fn from(error: BoxError) -> Self {
        Self::new(Failure::Error(error))
    }
}

/// The future of an async listener, or `None` if the event is not of the listener's type.
pub(crate) type ListenerFuture<'a> = Option<BoxFuture<'a, Result<(), BoxError>>>;

type ChangeAsyncFn = dyn for<'a> Fn(&'a mut dyn AnyEvent, &'a EventMeta<'a>) -> ListenerFuture<'a> + Send + Sync;
type ObserveFn = dyn Fn(&dyn AnyEvent, &EventMeta<'_>) -> CallResult + Send + Sync;
type ObserveAsyncFn = dyn for<'a> Fn(&'a dyn AnyEvent, &'a EventMeta<'a>) -> ListenerFuture<'a> + Send + Sync;
type HasRoomFn = dyn Fn() -> bool + Send + Sync;
type TryObserveFn = dyn Fn(&dyn AnyEvent, &EventMeta<'_>) -> bool + Send + Sync;

/// The way a listener is called.
pub(crate) enum Call {
    Change(Arc<dyn ErasedChange>),
    ChangeAsync(Arc<ChangeAsyncFn>),
    Observe(Arc<ObserveFn>),
    ObserveAsync(Arc<ObserveAsyncFn>),
    /// A sink that blocks when it is full (E13). It observes without waiting if it has room, and has to be awaited
    /// otherwise.
    TryObserve {
        has_room: Arc<HasRoomFn>,
        now: Arc<TryObserveFn>,
        later: Arc<ObserveAsyncFn>,
    },
    /// Replaces the call of a listener that is being dropped.
    Dropped,
}

impl Call {
    pub(crate) const fn role(&self) -> Role {
        match self {
            Self::Change(_) | Self::ChangeAsync(_) => Role::Change,
            Self::Observe(_) | Self::ObserveAsync(_) | Self::TryObserve { .. } | Self::Dropped => Role::Observe,
        }
    }

    /// Returns `true` if the listener would have to be awaited now.
    pub(crate) fn would_wait(&self) -> bool {
        match self {
            Self::Change(_) | Self::Observe(_) | Self::Dropped => false,
            Self::ChangeAsync(_) | Self::ObserveAsync(_) => true,
            Self::TryObserve { has_room, .. } => !has_room(),
        }
    }
}

/// A sync closure that may change an event, with its payload type erased.
pub(crate) trait ErasedChange: Send + Sync {
    fn call(&self, event: &mut dyn AnyEvent, meta: &EventMeta<'_>) -> CallResult;

    /// Makes a batch of `listeners`. Returns `None` if any of them does not take this closure's type or cannot be part
    /// of a batch.
    fn batch(&self, listeners: &[Arc<Listener>]) -> Option<Box<dyn Batch>>;

    /// Returns this closure as a boxed [`SharedChange`]. A caller that knows the payload type can downcast it.
    fn typed(self: Arc<Self>) -> Box<dyn Any>;
}

/// A sync closure that may change an event of a known type.
pub(crate) type SharedChange<T> = Arc<dyn TypedChange<T>>;

pub(crate) trait TypedChange<T: ?Sized>: Send + Sync {
    fn call_of(&self, event: &mut T, meta: &EventMeta<'_>) -> CallResult;
}

/// A closure and the type of its payload.
struct Closure<T: ?Sized, F>(F, PhantomData<fn(&mut T)>);

impl Call {
    /// Creates the [`Call`] for a sync closure that may change the event.
    pub(crate) fn change<T, F, R>(f: F) -> Self
    where
        T: Payload + ?Sized + 'static,
        F: Fn(&mut T, &EventMeta<'_>) -> R + Send + Sync + 'static,
        R: ListenerResult,
    {
        Self::Change(Arc::new(Closure(f, PhantomData)))
    }
}

impl<T, F, R> ErasedChange for Closure<T, F>
where
    T: Payload + ?Sized + 'static,
    F: Fn(&mut T, &EventMeta<'_>) -> R + Send + Sync + 'static,
    R: ListenerResult,
{
    fn call(&self, event: &mut dyn AnyEvent, meta: &EventMeta<'_>) -> CallResult {
        // An exact matcher also takes events of another type, so that they are refused here (E7).
        let event = T::of_mut(event).ok_or_else(|| Box::new(Failure::Mismatch))?;
        Ok(self.0(event, meta).into_result()?)
    }

    fn batch(&self, listeners: &[Arc<Listener>]) -> Option<Box<dyn Batch>> {
        batch::of_type::<T>(listeners)
    }

    fn typed(self: Arc<Self>) -> Box<dyn Any> {
        Box::new(self as SharedChange<T>)
    }
}

impl<T, F, R> TypedChange<T> for Closure<T, F>
where
    T: ?Sized,
    F: Fn(&mut T, &EventMeta<'_>) -> R + Send + Sync,
    R: ListenerResult,
{
    fn call_of(&self, event: &mut T, meta: &EventMeta<'_>) -> CallResult {
        Ok(self.0(event, meta).into_result()?)
    }
}

/// Returns an id for a listener or a pipe. A later id is greater.
pub(crate) fn next_id() -> u64 {
    static NEXT: AtomicU64 = AtomicU64::new(0);
    NEXT.fetch_add(1, Ordering::Relaxed)
}

/// A registered listener.
pub(crate) struct Listener {
    /// Unique in the process. A listener that was registered later has a greater id.
    pub(crate) id: u64,
    pub(crate) matcher: Matcher,
    /// The payload type that the listener takes, or `None` for any type.
    pub(crate) expected: Option<ExpectedType>,
    /// The events that make the listener fail if they are not of its type (E7). The listener skips all other events
    /// that are not of its type.
    pub(crate) exact: Exact,
    pub(crate) call: Call,
    pub(crate) claims: Claims,
    pub(crate) takes_nested: bool,
    pub(crate) priority: i32,
    pub(crate) persistent: bool,
    /// `true` if a middleware has bound the listener to a run.
    pub(crate) is_bound: bool,
    pub(crate) on_error: OnError,
    /// The source location of the registration.
    pub(crate) at: &'static Location<'static>,
    /// The emitter that the listener is registered on.
    pub(crate) home: Weak<Node>,
}

impl Listener {
    /// Returns `true` if the listener takes an event, judged by path, source and type alone. A matcher function is
    /// called later.
    ///
    /// An exact matcher also takes an event of another type. The call then refuses it with an error (E7).
    #[inline(always)]
    pub(crate) fn takes(&self, view: &EventView<'_>) -> bool {
        #[cfg(test)]
        crate::registry::listeners::tests::count_step();
        // The cheapest checks come first.
        (self.takes_nested || !view.nested) && self.matcher.takes(view) && self.may_take_type(view)
            || view.has_other_name && self.takes_by_other_name(view.meta.emit)
    }

    /// Returns `true` if the listener also receives an event that another one has consumed (E20).
    #[cold]
    pub(crate) fn receives_consumed(&self) -> bool {
        self.is_bound || self.call.role() == Role::Observe
    }

    /// Returns `true` if the listener takes an event by the event's second name. The caller has checked that the event
    /// was emitted here. A listener that expects exactly the event's type takes the event. A listener that expects another
    /// type of the same module, such as the payload of another stage, takes the event, too, and its call refuses it (E7).
    fn takes_by_other_name(&self, emit: &Emit<'_>) -> bool {
        let (Some(expected), MatcherKind::Name { text, .. }) = (self.expected, &self.matcher.0) else { return false };
        let other_name = emit.facet.and_then(Facet::other_name);
        let is_named = other_name.is_some_and(|name| is_same(text, name.as_str()));
        is_named
            && (expected.id == emit.carried.id
                || module(expected.name).is_some_and(|of| Some(of) == module(emit.carried.name())))
    }

    #[inline(always)]
    pub(crate) fn may_take_type(&self, view: &EventView<'_>) -> bool {
        match &self.expected {
            None => true,
            Some(expected) if expected.id == view.meta.emit.carried.id => true,
            Some(_) => match self.exact {
                Exact::Nowhere => false,
                Exact::Own => view.here,
                Exact::NotNested => !view.nested,
            },
        }
    }

    /// Removes the listener after its last call (E8).
    #[inline]
    pub(crate) fn remove_if_spent(&self) {
        if self.claims.is_spent() {
            self.remove_from_home();
        }
    }
}

/// Captured values are user values and may panic when they are dropped, for example at the end of an emit during which
/// the listener was removed. A listener of a run is dropped inside that run, on any thread (R14).
impl Drop for Listener {
    fn drop(&mut self) {
        let Self { home, call, matcher, .. } = self;
        drop_in_run_of(home, || {
            // Drop the call and the matcher separately, so that the matcher is dropped even if the drop of the call
            // panics.
            discard("a value captured by a listener", replace(call, Call::Dropped));
            discard("a value captured by a matcher", replace(matcher, Matcher::own()));
        });
    }
}

/// Returns the path of the module that defines a type, or `None` for types without a module, such as `u32`.
fn module(type_name: &str) -> Option<&str> {
    let without_parameters = type_name.split_once('<').map_or(type_name, |(generic, _)| generic);
    without_parameters.rsplit_once("::").map(|(module, _)| module)
}

/// An event as one emitter sees it.
pub(crate) struct EventView<'a> {
    pub(crate) meta: &'a EventMeta<'a>,
    /// `true` if the event was emitted on this emitter, on one of its runs, or on a child that emits for it (E4).
    pub(crate) here: bool,
    /// `true` if the event is nested for this emitter (E4). A nested event is not `here`. For an emitter in a run, a
    /// nested event happened outside that run. For an emitter outside runs, it happened below one of the emitter's
    /// runs, in a run of another emitter.
    pub(crate) nested: bool,
    /// `true` if the event is `here` and has a second name. See [`Listener::takes_by_other_name`].
    pub(crate) has_other_name: bool,
}

impl EventView<'_> {
    /// Returns `true` if the event is emitted here under a name without a dot (E4).
    #[inline]
    pub(crate) fn own(&self) -> bool {
        self.here && !self.meta.emit.name.is_dotted()
    }
}

/// The result of a sync listener: `()` or `Result<(), BoxError>`.
///
/// Futures are not results: register async work with `on_async` or `observe_async`.
///
/// ```compile_fail,E0277
/// # let app = emitree_emitter::Emitter::new();
/// app.on("count", |_: &mut u32, _| async { Ok(()) }); // a listener returns `()` or `Result<(), BoxError>`
/// ```
///
/// ```compile_fail,E0277
/// # let app = emitree_emitter::Emitter::new();
/// app.observe("count", |_: &u32, _| Box::pin(async { Ok(()) }));
/// ```
#[diagnostic::on_unimplemented(
    message = "a listener returns `()` or `Result<(), BoxError>`, not `{Self}`",
    note = "end the closure's body with a semicolon, or with `Ok(())`; `?` converts any error to a `BoxError`: `Ok(f()?)`",
    note = "register async work with `on_async` or `observe_async`",
    note = "a closure that never returns needs a return type: `|event: &mut T, _| -> ()` before its body"
)]
pub trait ListenerResult {
    /// Converts the value into a `Result`.
    ///
    /// # Errors
    ///
    /// Returns the listener's error.
    fn into_result(self) -> Result<(), BoxError>;
}

impl ListenerResult for () {
    fn into_result(self) -> Result<(), BoxError> {
        Ok(())
    }
}

impl ListenerResult for Result<(), BoxError> {
    fn into_result(self) -> Self {
        self
    }
}
