//! A listener before it is registered: its options and its closure. [`Emitter::register`](crate::Emitter::register)
//! turns it into a [`Listener`].

use std::panic::Location;
use std::sync::{Arc, Weak};

use futures_core::future::BoxFuture;

use crate::emitter::Node;
use crate::event::ExpectedType;
use crate::matching::function::Exact;
use crate::registry::bound;
use crate::registry::claim::Claims;
use crate::registry::listener::{Call, Failure, Listener, Role, next_id};
use crate::{BoxError, Event, EventMeta, IntoMatcher, ListenerResult, Matcher, MatcherError, OnError, Payload};

/// Options of a listener, such as its priority, the maximum number of its calls, and the effect of its failure.
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
}

impl Options {
    /// Creates the default options: priority 0, no limit on calls, the matcher's default for nested events, not
    /// persistent.
    #[must_use]
    pub const fn new() -> Self {
        Self { priority: 0, times: None, nested: None, persistent: false, on_error: None }
    }

    /// Sets the priority. On one emitter, listeners with a higher priority run first, but every observer runs after all
    /// listeners that may change the event. The default is 0, and a priority may be negative.
    #[must_use]
    pub const fn priority(mut self, priority: i32) -> Self {
        self.priority = priority;
        self
    }

    /// Limits the listener to one call, even if many emits run concurrently.
    #[must_use]
    pub const fn once(self) -> Self {
        self.times(1)
    }

    /// Limits the listener to `n` calls, even if many emits run concurrently.
    #[must_use]
    pub const fn times(mut self, n: usize) -> Self {
        self.times = Some(n);
        self
    }

    /// Sets whether the listener takes [nested events](Matcher#nested-events), instead of the matcher's default. The
    /// table of [`Matcher`] lists the events that each matcher takes. A matcher of own events, such as `"new_token"`,
    /// `"*"` or `"new_*"`, never takes nested events; `"**.new_token"` does.
    ///
    /// For a function with [names](crate::FnMatcher::named), `nested(true)` also makes the listener skip events of
    /// other types instead of failing.
    #[must_use]
    pub const fn nested(mut self, nested: bool) -> Self {
        self.nested = Some(nested);
        self
    }

    /// Keeps the listener when `reset` or `off_matching` removes other listeners. Its
    /// [`Subscription`](crate::Subscription), `close` and the end of the emitter's run still remove it.
    #[must_use]
    pub const fn persistent(mut self) -> Self {
        self.persistent = true;
        self
    }

    /// Sets whether a failure fails the emit. By default, the failure of a listener that may change the event fails the
    /// emit, and the failure of an observer does not.
    ///
    /// If several failures would fail an emit, the emit returns the first. The others are logged and counted.
    #[must_use]
    pub const fn on_error(mut self, on_error: OnError) -> Self {
        self.on_error = Some(on_error);
        self
    }

    /// Makes a sync listener that may change the event.
    #[track_caller]
    pub fn on<T, R>(
        self,
        matcher: impl IntoMatcher,
        f: impl Fn(&mut T, &EventMeta<'_>) -> R + Send + Sync + 'static,
    ) -> Registration
    where
        T: Payload + ?Sized + 'static,
        R: ListenerResult,
    {
        Registration::new(self, matcher.into_matcher(), T::expected(), Call::change(f))
    }

    /// Makes an async listener that may change the event. It is awaited before the next listener starts (elsewhere called
    /// a *blocking* listener).
    #[track_caller]
    pub fn on_async<T>(
        self,
        matcher: impl IntoMatcher,
        f: impl for<'a> Fn(&'a mut T, &'a EventMeta<'a>) -> BoxFuture<'a, Result<(), BoxError>> + Send + Sync + 'static,
    ) -> Registration
    where
        T: Payload + ?Sized + 'static,
    {
        let call = Call::ChangeAsync(Arc::new(move |event, meta| T::of_mut(event).map(|event| f(event, meta))));
        Registration::new(self, matcher.into_matcher(), T::expected(), call)
    }

    /// Makes a sync observer.
    #[track_caller]
    pub fn observe<T, R>(
        self,
        matcher: impl IntoMatcher,
        f: impl Fn(&T, &EventMeta<'_>) -> R + Send + Sync + 'static,
    ) -> Registration
    where
        T: Payload + ?Sized + 'static,
        R: ListenerResult,
    {
        let call = Call::Observe(Arc::new(move |event, meta| match T::of_ref(event) {
            Some(event) => f(event, meta).into_result().map_err(Into::into),
            None => Err(Box::new(Failure::Mismatch)),
        }));
        Registration::new(self, matcher.into_matcher(), T::expected(), call)
    }

    /// Makes an async observer. It is awaited together with the other async observers.
    #[track_caller]
    pub fn observe_async<T>(
        self,
        matcher: impl IntoMatcher,
        f: impl for<'a> Fn(&'a T, &'a EventMeta<'a>) -> BoxFuture<'a, Result<(), BoxError>> + Send + Sync + 'static,
    ) -> Registration
    where
        T: Payload + ?Sized + 'static,
    {
        let call = Call::ObserveAsync(Arc::new(move |event, meta| T::of_ref(event).map(|event| f(event, meta))));
        Registration::new(self, matcher.into_matcher(), T::expected(), call)
    }

    /// Makes a sync listener for the event name that its payload type carries. The listener may change the event.
    #[track_caller]
    pub fn on_event<E: Event, R: ListenerResult>(
        self,
        f: impl Fn(&mut E, &EventMeta<'_>) -> R + Send + Sync + 'static,
    ) -> Registration {
        self.on(Matcher::emitted(E::NAME), f)
    }
}

/// A listener that is not registered yet. Pass it to [`Emitter::register`](crate::Emitter::register).
///
/// The methods of [`Options`] create registrations. A registration records the source location where it was created,
/// for error messages. An error of the matcher is returned when the listener is registered.
#[must_use = "a registration does nothing until an emitter registers it"]
pub struct Registration {
    options: Options,
    matcher: Result<Matcher, MatcherError>,
    pub(crate) expected: Option<ExpectedType>,
    call: Call,
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
        Self { options, matcher, expected, call, at: Location::caller() }
    }

    /// Converts the registration into a listener that belongs to the emitter `home`.
    pub(crate) fn into_listener(self, home: Weak<Node>) -> Result<Listener, MatcherError> {
        let Self { options, matcher, expected, call, at } = self;
        let matcher = matcher?;
        // An observer cannot change the event, so its failure need not fail the emit.
        let by_role = match call.role() {
            Role::Change => OnError::Propagate,
            Role::Observe => OnError::Isolate,
        };
        // A matcher function that also receives nested events sees many types, so the listener filters by type (E7).
        let filters = matcher.is_function() && options.nested == Some(true);
        Ok(Listener {
            id: next_id(),
            takes_nested: options.nested.unwrap_or_else(|| matcher.nested_by_default()),
            exact: if filters { Exact::Nowhere } else { matcher.exact() },
            claims: options.times.map_or_else(Claims::unlimited, Claims::times),
            on_error: options.on_error.unwrap_or(by_role),
            priority: options.priority,
            persistent: options.persistent,
            is_bound: bound::is_binding(),
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
