//! The four verbs: a listener on its way to an emitter.

use std::panic::Location;
use std::sync::{Arc, Weak};

use futures_core::future::BoxFuture;

use crate::emitter::Node;
use crate::event::ExpectedType;
use crate::matching::function::Exact;
use crate::registry::claim::Claims;
use crate::registry::listener::{Call, Failure, Listener, Role};
use crate::registry::tracked::Tracked;
use crate::{BoxError, Event, EventMeta, Hears, IntoMatcher, ListenerResult, Matcher, MatcherError, OnError};

/// How a listener is registered: priority, how often, nested events, failure.
///
/// ```
/// use emitree_emitter::{AnyEvent, Emitter, Options};
///
/// let emitter = Emitter::new();
/// emitter.with(Options::new().priority(10).once()).on("ready", |_: &mut dyn AnyEvent, _| ())?;
/// # Ok::<(), emitree_emitter::ListenError>(())
/// ```
#[derive(Clone, Copy, Debug, Default)]
pub struct Options {
    priority: i32,
    times: Option<usize>,
    nested: Option<bool>,
    persistent: bool,
    on_error: Option<OnError>,
    awaitable_off: bool,
}

impl Options {
    /// Priority 0, any number of times, nested events as the matcher has it, not persistent.
    #[must_use]
    pub const fn new() -> Self {
        Self { priority: 0, times: None, nested: None, persistent: false, on_error: None, awaitable_off: false }
    }

    /// Higher runs first, at one emitter (E5). May be negative.
    #[must_use]
    pub const fn priority(mut self, priority: i32) -> Self {
        self.priority = priority;
        self
    }

    /// Runs at most once, however many emits there are at the same time (E8).
    #[must_use]
    pub const fn once(self) -> Self {
        self.times(1)
    }

    /// Runs at most `n` times (E8).
    #[must_use]
    pub const fn times(mut self, n: usize) -> Self {
        self.times = Some(n);
        self
    }

    /// Sets whether [nested events](Matcher#nested-events) are taken, whatever the matcher's default: the table there lists what each
    /// matcher takes. A matcher of own events, `"new_token"`, `"*"` or `"new_*"`, never takes nested ones; `"**.new_token"` does.
    ///
    /// Under a function with [names](crate::FnMatcher::named), `nested(true)` also filters all events by the listener's type.
    #[must_use]
    pub const fn nested(mut self, nested: bool) -> Self {
        self.nested = Some(nested);
        self
    }

    /// Stays when `reset` or `off_matching` removes the others; falls to its own `off`, to `close` (E9) and to the end of its run (R14).
    #[must_use]
    pub const fn persistent(mut self) -> Self {
        self.persistent = true;
        self
    }

    /// Whether its failure fails the emit, whatever the verb's default (E11). An emit fails with the first such failure; later ones
    /// are logged and counted.
    #[must_use]
    pub const fn on_error(mut self, on_error: OnError) -> Self {
        self.on_error = Some(on_error);
        self
    }

    /// Counts the calls of the listener, so that [`Subscription::off_and_wait`](crate::Subscription::off_and_wait) can wait for those under
    /// way. That costs each call two atomic additions and a look at a thread-local; other listeners pay nothing.
    #[must_use]
    pub const fn awaitable_off(mut self) -> Self {
        self.awaitable_off = true;
        self
    }

    /// A sync listener that may change the event.
    #[track_caller]
    pub fn on<T, R>(
        self,
        matcher: impl IntoMatcher,
        f: impl Fn(&mut T, &EventMeta<'_>) -> R + Send + Sync + 'static,
    ) -> Registration
    where
        T: Hears + ?Sized + 'static,
        R: ListenerResult,
    {
        Registration::new(self, matcher.into_matcher(), T::expected(), Call::change(f))
    }

    /// An async listener that may change the event: awaited before the next one starts.
    #[track_caller]
    pub fn on_async<T>(
        self,
        matcher: impl IntoMatcher,
        f: impl for<'a> Fn(&'a mut T, &'a EventMeta<'a>) -> BoxFuture<'a, Result<(), BoxError>> + Send + Sync + 'static,
    ) -> Registration
    where
        T: Hears + ?Sized + 'static,
    {
        let call = Call::ChangeAsync(Arc::new(move |event, meta| T::of_mut(event).map(|event| f(event, meta))));
        Registration::new(self, matcher.into_matcher(), T::expected(), call)
    }

    /// A sync listener that watches.
    #[track_caller]
    pub fn observe<T, R>(
        self,
        matcher: impl IntoMatcher,
        f: impl Fn(&T, &EventMeta<'_>) -> R + Send + Sync + 'static,
    ) -> Registration
    where
        T: Hears + ?Sized + 'static,
        R: ListenerResult,
    {
        let call = Call::Observe(Arc::new(move |event, meta| match T::of_ref(event) {
            Some(event) => f(event, meta).into_result().map_err(Into::into),
            None => Err(Box::new(Failure::Mismatch)),
        }));
        Registration::new(self, matcher.into_matcher(), T::expected(), call)
    }

    /// An async listener that watches, together with all others of its sort.
    #[track_caller]
    pub fn observe_async<T>(
        self,
        matcher: impl IntoMatcher,
        f: impl for<'a> Fn(&'a T, &'a EventMeta<'a>) -> BoxFuture<'a, Result<(), BoxError>> + Send + Sync + 'static,
    ) -> Registration
    where
        T: Hears + ?Sized + 'static,
    {
        let call = Call::ObserveAsync(Arc::new(move |event, meta| T::of_ref(event).map(|event| f(event, meta))));
        Registration::new(self, matcher.into_matcher(), T::expected(), call)
    }

    /// A sync listener for a payload type that carries its name.
    #[track_caller]
    pub fn on_event<E: Event, R: ListenerResult>(
        self,
        f: impl Fn(&mut E, &EventMeta<'_>) -> R + Send + Sync + 'static,
    ) -> Registration {
        self.on(Matcher::emitted(E::NAME), f)
    }
}

/// A listener that is not registered yet; [`Emitter::register`](crate::Emitter::register) does that.
///
/// Made by the verbs of [`Options`]. It remembers where it was made, and an error in its matcher comes out when it
/// is registered.
#[must_use = "a registration does nothing until an emitter registers it"]
pub struct Registration {
    options: Options,
    matcher: Result<Matcher, MatcherError>,
    pub(crate) expected: Option<ExpectedType>,
    call: Call,
    is_pipe: bool,
    at: &'static Location<'static>,
}

impl Registration {
    #[track_caller]
    pub(crate) fn new(
        options: Options,
        matcher: Result<Matcher, MatcherError>,
        expected: Option<ExpectedType>,
        call: Call,
    ) -> Self {
        Self { options, matcher, expected, call, is_pipe: false, at: Location::caller() }
    }

    /// It is how something is piped: it stays until that is unpiped, and a fork has none of it (E9, E16).
    #[doc(hidden)]
    pub const fn for_pipe(mut self) -> Self {
        self.is_pipe = true;
        self
    }

    /// Makes it a listener of an emitter.
    pub(crate) fn into_listener(self, home: Weak<Node>) -> Result<Listener, MatcherError> {
        let Self { options, matcher, expected, call, is_pipe, at } = self;
        let matcher = matcher?;
        let by_role = match call.role() {
            Role::Change => OnError::Propagate,
            Role::Observe => OnError::Isolate,
        };
        // To ask a function for nested events as well is to filter by type.
        let filters = matcher.is_function() && options.nested == Some(true);
        Ok(Listener {
            id: Listener::next_id(),
            takes_nested: options.nested.unwrap_or_else(|| matcher.nested_by_default()),
            exact: if filters { Exact::Nowhere } else { matcher.exact() },
            claims: match options.times {
                Some(times) => Claims::times(times),
                None if options.awaitable_off => Claims::counted(),
                None => Claims::unlimited(),
            },
            tracked: options.awaitable_off.then(|| Arc::new(Tracked::new())),
            on_error: options.on_error.unwrap_or(by_role),
            priority: options.priority,
            persistent: options.persistent || is_pipe,
            is_pipe,
            matcher,
            expected,
            call,
            at,
            home,
        })
    }
}

impl std::fmt::Debug for Registration {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Registration")
            .field("matcher", &self.matcher)
            .field("options", &self.options)
            .field("at", &format_args!("{}", self.at))
            .finish_non_exhaustive()
    }
}
