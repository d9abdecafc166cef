//! A listener: what it hears, how it is called, and how its failures are judged.

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
use crate::emitter::scope::drop_at;
use crate::event::ExpectedType;
use crate::matching::function::Exact;
use crate::matching::matcher::MatcherKind;
use crate::name::is_same;
use crate::panic::drop_catching;
use crate::registry::claim::Claims;
use crate::registry::tracked::Tracked;
use crate::rt::Facet;
use crate::{AnyEvent, BoxError, EventMeta, Hears, Matcher};

/// What becomes of a listener's error or panic (E11).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum OnError {
    /// It fails the emit; nobody else may change the event. An event that only reports, as a run's `error` and `finish`,
    /// isolates failures all the same.
    Propagate,
    /// It is logged and counted, and everything goes on.
    Isolate,
}

/// Whether a listener may change the event.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Role {
    Change,
    Observe,
}

/// Why a call did not succeed.
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

/// Boxed, so that what nearly every call answers fits a register.
pub(crate) type CallResult = Result<(), Box<Failure>>;
impl From<BoxError> for Box<Failure> {
    fn from(error: BoxError) -> Self {
        Self::new(Failure::Error(error))
    }
}

pub(crate) type ListenerFuture<'a> = Option<BoxFuture<'a, Result<(), BoxError>>>;

type ChangeAsyncFn = dyn for<'a> Fn(&'a mut dyn AnyEvent, &'a EventMeta<'a>) -> ListenerFuture<'a> + Send + Sync;
type ObserveFn = dyn Fn(&dyn AnyEvent, &EventMeta<'_>) -> CallResult + Send + Sync;
type ObserveAsyncFn = dyn for<'a> Fn(&'a dyn AnyEvent, &'a EventMeta<'a>) -> ListenerFuture<'a> + Send + Sync;
type HasRoomFn = dyn Fn() -> bool + Send + Sync;
type TryObserveFn = dyn Fn(&dyn AnyEvent, &EventMeta<'_>) -> bool + Send + Sync;

/// How a listener is called. An async one answers nothing where the event is not of its type.
#[derive(Clone)]
pub(crate) enum Call {
    Change(Arc<dyn ErasedChange>),
    ChangeAsync(Arc<ChangeAsyncFn>),
    Observe(Arc<ObserveFn>),
    ObserveAsync(Arc<ObserveAsyncFn>),
    /// Observes at once if it can; only otherwise it has to be awaited (a sink that blocks when it is full, E13).
    TryObserve {
        has_room: Arc<HasRoomFn>,
        now: Arc<TryObserveFn>,
        later: Arc<ObserveAsyncFn>,
    },
    /// What is left of a listener while it is dropped.
    Dropped,
}

impl Call {
    pub(crate) const fn role(&self) -> Role {
        match self {
            Self::Change(_) | Self::ChangeAsync(_) => Role::Change,
            Self::Observe(_) | Self::ObserveAsync(_) | Self::TryObserve { .. } | Self::Dropped => Role::Observe,
        }
    }

    /// Whether it would have to be awaited, as things are.
    pub(crate) fn would_wait(&self) -> bool {
        match self {
            Self::Change(_) | Self::Observe(_) | Self::Dropped => false,
            Self::ChangeAsync(_) | Self::ObserveAsync(_) => true,
            Self::TryObserve { has_room, .. } => !has_room(),
        }
    }
}

/// A sync closure that may change an event, whose type is forgotten.
pub(crate) trait ErasedChange: Send + Sync {
    fn call(&self, event: &mut dyn AnyEvent, meta: &EventMeta<'_>) -> CallResult;

    /// A batch of this listener and the others, if all take the same type.
    fn batch(&self, listeners: &[Arc<Listener>]) -> Option<Box<dyn Batch>>;

    /// A [`SharedChange`], for who knows of which type.
    fn typed(self: Arc<Self>) -> Box<dyn Any>;
}

/// The same, of a type that is known.
pub(crate) type SharedChange<T> = Arc<dyn TypedChange<T>>;

pub(crate) trait TypedChange<T: ?Sized>: Send + Sync {
    fn call_of(&self, event: &mut T, meta: &EventMeta<'_>) -> CallResult;
}

/// A closure and the type it takes.
struct Closure<T: ?Sized, F>(F, PhantomData<fn(&mut T)>);

impl Call {
    /// Of a sync closure that may change the event.
    pub(crate) fn change<T, F, R>(f: F) -> Self
    where
        T: Hears + ?Sized + 'static,
        F: Fn(&mut T, &EventMeta<'_>) -> R + Send + Sync + 'static,
        R: ListenerResult,
    {
        Self::Change(Arc::new(Closure(f, PhantomData)))
    }
}

impl<T, F, R> ErasedChange for Closure<T, F>
where
    T: Hears + ?Sized + 'static,
    F: Fn(&mut T, &EventMeta<'_>) -> R + Send + Sync + 'static,
    R: ListenerResult,
{
    fn call(&self, event: &mut dyn AnyEvent, meta: &EventMeta<'_>) -> CallResult {
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

/// One registration.
pub(crate) struct Listener {
    /// Tells it from every other of the process.
    pub(crate) id: u64,
    pub(crate) matcher: Matcher,
    /// The payload type it takes; none for any.
    pub(crate) expected: Option<ExpectedType>,
    /// Where an event of another type is refused, and not filtered out.
    pub(crate) exact: Exact,
    pub(crate) call: Call,
    pub(crate) claims: Claims,
    /// Its calls, if they are counted: then no call is claimed as one without limit.
    pub(crate) tracked: Option<Arc<Tracked>>,
    pub(crate) takes_nested: bool,
    pub(crate) priority: i32,
    pub(crate) persistent: bool,
    pub(crate) is_pipe: bool,
    pub(crate) on_error: OnError,
    /// Where it was registered.
    pub(crate) at: &'static Location<'static>,
    /// The emitter that it is registered on.
    pub(crate) home: Weak<Node>,
}

impl Listener {
    pub(crate) fn next_id() -> u64 {
        static NEXT: AtomicU64 = AtomicU64::new(0);
        NEXT.fetch_add(1, Ordering::Relaxed)
    }

    /// Whether it takes an event, as far as that is fixed by the event's path, source and type.
    ///
    /// An event of another type that an exact matcher takes is taken, to be refused by the call (E7).
    #[inline(always)]
    pub(crate) fn takes(&self, view: &EventView<'_>) -> bool {
        (self.takes_nested || !view.nested) && self.matcher.takes(view) && self.may_take_type(view)
            || view.has_other_name && self.takes_by_other_name(view.meta.emit)
    }

    /// Whether it takes an event that is emitted here under the event's other name: if it takes exactly that type, or to refuse the
    /// event, if it takes the same generic type with other parameters (E7).
    fn takes_by_other_name(&self, emit: &Emit<'_>) -> bool {
        let (Some(expected), MatcherKind::Name { text, .. }) = (self.expected, &self.matcher.0) else { return false };
        let other_name = emit.facet.and_then(Facet::other_name);
        let is_named = other_name.is_some_and(|name| is_same(text, name.as_str()));
        is_named && (expected.id == emit.carried.id || generic(expected.name) == generic(emit.carried.name()))
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

    /// One that has had its last call goes (E8).
    #[inline]
    pub(crate) fn remove_if_spent(&self) {
        if self.claims.is_spent() {
            self.remove_from_home();
        }
    }

    /// A copy for another emitter, with as many calls left as this one has (E16).
    pub(crate) fn fork(&self, home: Weak<Node>) -> Self {
        Self {
            id: Self::next_id(),
            matcher: self.matcher.clone(),
            expected: self.expected,
            call: self.call.clone(),
            claims: self.claims.fork(),
            tracked: self.tracked.as_ref().map(|_| Arc::new(Tracked::new())),
            home,
            ..*self
        }
    }
}

/// What it captured is the user's, and may panic as it is dropped: at the end of an emit, for example, that was under way
/// when the listener was removed. That of a run is dropped inside of it, whoever does it.
impl Drop for Listener {
    fn drop(&mut self) {
        let Self { home, call, matcher, .. } = self;
        drop_at(home, || {
            drop_catching("what a listener captured", replace(call, Call::Dropped));
            drop_catching("what a matcher captured", replace(matcher, Matcher::own()));
        });
    }
}

/// The name of a type without its parameters.
fn generic(type_name: &str) -> &str {
    type_name.split_once('<').map_or(type_name, |(generic, _)| generic)
}

/// An event as one emitter sees it.
pub(crate) struct EventView<'a> {
    pub(crate) meta: &'a EventMeta<'a>,
    /// Emitted on that emitter, on a run of it, or for one of these (E4).
    pub(crate) here: bool,
    /// Of another run than that emitter's, or of one below a run of that emitter, and not emitted here (E4).
    pub(crate) nested: bool,
    /// Emitted here, and with another name, which listeners of its type may know it by.
    pub(crate) has_other_name: bool,
}

impl EventView<'_> {
    /// Emitted here, and not as if by a sub-namespace (E4).
    #[inline]
    pub(crate) fn own(&self) -> bool {
        self.here && !self.meta.emit.name.is_dotted()
    }
}

/// What a sync listener may return: nothing, or `Result<(), BoxError>`.
///
/// Not a future: what is to be awaited is registered with `on_async` or `observe_async`.
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
    note = "end the closure's body with a semicolon, or with `Ok(())`; `?` makes a `BoxError` of any error: `Ok(f()?)`",
    note = "async work goes into `on_async` or `observe_async`",
    note = "a closure that never returns says what it would: `|event: &mut T, _| -> ()` before its body"
)]
pub trait ListenerResult {
    /// The outcome as a result.
    ///
    /// # Errors
    ///
    /// If the listener failed.
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
