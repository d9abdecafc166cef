//! Registering on an emitter, and removing (E9, E12, E13, E16).

use std::sync::Arc;
use std::sync::atomic::{Ordering, fence};

use futures_core::future::BoxFuture;

use crate::emitter::pipe::Pipe;
use crate::panic::log_quietly;
use crate::registry::{Closed, Registry};
use crate::{
    BoxError, Emitter, Event, EventMeta, Hears, IntoMatcher, ListenError, ListenerResult, Matcher, MatcherError,
    Options, PipeHandle, Registration, Subscription,
};

/// The four verbs, with the options of [`Emitter::with`] or without.
macro_rules! verbs {
    ($options:expr) => {
        /// Listens, and may change the event. Runs inline, in order; its error fails the emit.
        ///
        /// # Errors
        ///
        /// If the matcher is empty or does not compile, the emitter declares its events otherwise, or its run has ended.
        #[track_caller]
        pub fn on<T, R>(
            &self,
            matcher: impl IntoMatcher,
            f: impl Fn(&mut T, &EventMeta<'_>) -> R + Send + Sync + 'static,
        ) -> Result<Subscription, ListenError>
        where
            T: Hears + ?Sized + 'static,
            R: ListenerResult,
        {
            self.add($options(self).on(matcher, f))
        }

        /// Listens, may change the event, and is awaited before the next listener starts. Its error fails the emit.
        ///
        /// The closure returns a boxed future that may borrow the event:
        /// `|data: &mut FetchData, _| Box::pin(async move { … Ok(()) })`. One that captures clones what it captures
        /// before the `async move`; see also [`listener`](crate::listener) and [`async_fn`](crate::async_fn).
        ///
        /// # Errors
        ///
        /// If the matcher is empty or does not compile, the emitter declares its events otherwise, or its run has ended.
        #[track_caller]
        pub fn on_async<T>(
            &self,
            matcher: impl IntoMatcher,
            f: impl for<'a> Fn(&'a mut T, &'a EventMeta<'a>) -> BoxFuture<'a, Result<(), BoxError>>
            + Send
            + Sync
            + 'static,
        ) -> Result<Subscription, ListenError>
        where
            T: Hears + ?Sized + 'static,
        {
            self.add($options(self).on_async(matcher, f))
        }

        /// Watches: runs inline after all that may change the event. Its error is logged and counted.
        ///
        /// # Errors
        ///
        /// If the matcher is empty or does not compile, the emitter declares its events otherwise, or its run has ended.
        #[track_caller]
        pub fn observe<T, R>(
            &self,
            matcher: impl IntoMatcher,
            f: impl Fn(&T, &EventMeta<'_>) -> R + Send + Sync + 'static,
        ) -> Result<Subscription, ListenError>
        where
            T: Hears + ?Sized + 'static,
            R: ListenerResult,
        {
            self.add($options(self).observe(matcher, f))
        }

        /// Watches, after all that may change the event and together with all others of its sort; all are awaited
        /// before the emit returns. Its error is logged and counted.
        ///
        /// # Errors
        ///
        /// If the matcher is empty or does not compile, the emitter declares its events otherwise, or its run has ended.
        #[track_caller]
        pub fn observe_async<T>(
            &self,
            matcher: impl IntoMatcher,
            f: impl for<'a> Fn(&'a T, &'a EventMeta<'a>) -> BoxFuture<'a, Result<(), BoxError>> + Send + Sync + 'static,
        ) -> Result<Subscription, ListenError>
        where
            T: Hears + ?Sized + 'static,
        {
            self.add($options(self).observe_async(matcher, f))
        }

        /// Listens to the event that a payload type names, and may change it: emitted here, or on a run of this instance. For those
        /// of what is below, listen under `"**.name"`.
        ///
        /// # Errors
        ///
        /// If the emitter declares its events otherwise, or its run has ended.
        #[track_caller]
        pub fn on_event<E: Event, R: ListenerResult>(
            &self,
            f: impl Fn(&mut E, &EventMeta<'_>) -> R + Send + Sync + 'static,
        ) -> Result<Subscription, ListenError> {
            self.add($options(self).on_event(f))
        }
    };
}

impl Emitter {
    verbs!(|_: &Self| Options::new());

    fn add(&self, registration: Registration) -> Result<Subscription, ListenError> {
        self.register(registration)
    }

    /// The same verbs, with options: `emitter.with(Options::new().priority(10)).on(..)`.
    pub const fn with(&self, options: Options) -> With<'_> {
        With { emitter: self, options }
    }

    /// Registers a listener that was made with the verbs of [`Options`].
    ///
    /// # Errors
    ///
    /// If its matcher is empty or does not compile, the emitter declares its events otherwise, or its run has ended.
    pub fn register(&self, registration: Registration) -> Result<Subscription, ListenError> {
        let listener = Arc::new(registration.into_listener(self.downgrade())?);
        if let Some(declared) = self.declared() {
            declared.check_listener(self, &listener.matcher, listener.expected)?;
        }
        let subscription = Subscription::new(&listener);
        // One that may run no times at all is never there.
        if !listener.claims.is_spent() {
            self.add_to_registry(|registry| registry.add(listener))?;
        }
        Ok(subscription)
    }

    /// Removes the listeners that were registered here with an equal matcher, persistent ones aside; tells how
    /// many.
    ///
    /// # Errors
    ///
    /// If the matcher is empty or does not compile.
    pub fn off_matching(&self, matcher: impl IntoMatcher) -> Result<usize, MatcherError> {
        let matcher = matcher.into_matcher()?;
        Ok(self.registry().map_or(0, |registry| registry.remove_matching(&matcher)))
    }

    /// Removes the listeners registered here, persistent ones aside; tells how many. Pipes stay.
    #[expect(clippy::must_use_candidate, reason = "called for its effect")]
    pub fn reset(&self) -> usize {
        self.registry().map_or(0, |registry| registry.remove(|listener| !listener.persistent))
    }

    /// Removes all listeners and pipes registered here. The emitter can be used again; events still rise through it.
    pub fn close(&self) {
        if let Some(registry) = self.registry() {
            registry.clear();
        }
    }

    /// How many listeners are registered here.
    #[must_use]
    pub fn listener_count(&self) -> usize {
        self.registry().map_or(0, |registry| registry.listeners().len())
    }

    /// How many failures of listeners registered here were isolated: logged, without failing an emit (E11).
    #[must_use]
    pub fn isolated_failures(&self) -> u64 {
        self.registry().map_or(0, Registry::isolated)
    }

    /// Sends every event that reaches this emitter on to another one and to what is above that.
    ///
    /// The pipe keeps its target alive. Into a run that has ended it leads nowhere, unless nobody ever listened there. A cycle is cut for each event, and ends by
    /// [`unpipe`](PipeHandle::unpipe) or [`close`](Self::close). From a run that has ended nothing is piped; that is logged.
    #[expect(clippy::must_use_candidate, reason = "called for its effect")]
    pub fn pipe(&self, target: &Self) -> PipeHandle {
        self.add_pipe(Matcher::every(), target)
    }

    /// Sends the events that a matcher takes on to another emitter and to what is above that.
    ///
    /// # Errors
    ///
    /// If the matcher is empty or does not compile.
    pub fn pipe_matching(&self, matcher: impl IntoMatcher, target: &Self) -> Result<PipeHandle, MatcherError> {
        Ok(self.add_pipe(matcher.into_matcher()?, target))
    }

    fn add_pipe(&self, matcher: Matcher, target: &Self) -> PipeHandle {
        let pipe = Arc::new(Pipe::new(self, matcher, target));
        let handle = PipeHandle::new(self, &pipe);
        if let Err(error) = self.add_to_registry(|registry| registry.add_pipe(pipe)) {
            log_quietly(|| tracing::warn!(%error, "nothing is piped"));
        }
        handle
    }

    /// Adds to the listeners and pipes of this emitter.
    ///
    /// # Errors
    ///
    /// If its run has ended.
    fn add_to_registry(&self, add: impl FnOnce(&Registry) -> Result<(), Closed>) -> Result<(), ListenError> {
        let registry = self.node().registry.get_or_init(|| Box::new(Registry::new()));
        // Either this sees that the run has ended, or who ends it sees the registry.
        fence(Ordering::SeqCst);
        let too_late = |_| ListenError::RunEnded { namespace: self.namespace().to_owned() };
        if self.has_run_ended() { Err(Closed) } else { add(registry) }.map_err(too_late)?;
        self.invalidate();
        Ok(())
    }

    /// Makes a separate emitter under the same parent, with copies of the listeners in the same order.
    ///
    /// A copy of a listener that may run `n` more times may run `n` more times itself. Pipes, to sinks too, are not copied; context,
    /// creator, group id, trace and declared events are. A fork of the emitter of a run that has ended has no listeners, which may have
    /// been what redacted the run's events: so what is emitted on it reaches nobody, as on that emitter, which counts it.
    #[must_use]
    pub fn fork(&self) -> Self {
        // Taken first: where the run has ended by then, and they are gone, the twin is below it.
        let listeners: Vec<_> = self.registry().into_iter().flat_map(Registry::listeners).collect();
        let fork = self.copy_without_listeners();
        for listener in listeners.into_iter().filter(|listener| !listener.is_pipe) {
            let listener = Arc::new(listener.fork(fork.downgrade()));
            // Below a run that has ended nothing is heard.
            fork.add_to_registry(|registry| registry.add(listener)).ok();
        }
        fork
    }
}

/// An emitter's verbs with options. Made by [`Emitter::with`].
#[must_use = "options do nothing until a verb is called"]
#[derive(Debug)]
pub struct With<'a> {
    emitter: &'a Emitter,
    options: Options,
}

impl With<'_> {
    verbs!(|with: &Self| with.options);

    fn add(&self, registration: Registration) -> Result<Subscription, ListenError> {
        self.emitter.register(registration)
    }
}
