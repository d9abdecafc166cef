//! The methods of [`Emitter`] that register and remove listeners and pipes (E9, E12).
//!
//! `on`, `on_async`, `observe` and `observe_async` make a [`Registration`]; `register` checks it and adds it to the
//! registry. From then on, [`dispatch`](crate::dispatch) finds the listener.

use std::sync::Arc;
use std::sync::atomic::{Ordering, fence};

use futures_core::future::BoxFuture;

use crate::emitter::pipe::Pipe;
use crate::panic::log_quietly;
use crate::registry::{Registry, RegistryClosed};
use crate::{
    BoxError, Emitter, Event, EventMeta, IntoMatcher, ListenError, ListenerResult, MatcherError, Options, Payload,
    PipeHandle, Registration, Subscription,
};

/// The methods `on`, `on_async`, `observe`, `observe_async` and `on_event`, of an emitter and of [`With`].
macro_rules! verbs {
    ($options:expr) => {
        /// Registers a listener that may change the event.
        ///
        /// Listeners run one after the other, before all observers. By default, an error or panic of the listener fails
        /// the emit, and no other listener may change the event after that.
        ///
        /// # Errors
        ///
        /// Returns an error if the matcher is not valid, if the emitter declares this event with another
        /// type, or if the run that the emitter belongs to has ended.
        ///
        /// # Examples
        ///
        /// ```
        /// use emitree_emitter::Emitter;
        ///
        /// let emitter = Emitter::new();
        /// emitter.on("greet", |name: &mut String, _| name.insert_str(0, "hello, "))?;
        ///
        /// let mut name = "world".to_owned();
        /// emitter.emit_now("greet", &mut name)?;
        /// assert_eq!(name, "hello, world");
        /// # Ok::<(), Box<dyn std::error::Error + Send + Sync>>(())
        /// ```
        #[track_caller]
        pub fn on<T, R>(
            &self,
            matcher: impl IntoMatcher,
            f: impl Fn(&mut T, &EventMeta<'_>) -> R + Send + Sync + 'static,
        ) -> Result<Subscription, ListenError>
        where
            T: Payload + ?Sized + 'static,
            R: ListenerResult,
        {
            self.add($options(self).on(matcher, f))
        }

        /// Registers an async listener that may change the event. It is awaited before the next listener starts.
        ///
        /// Other libraries call this a *blocking* listener, because the emit waits for it. It does not block the thread.
        ///
        /// The closure returns a boxed future that may borrow the event: `|data: &mut FetchData, _| Box::pin(async move
        /// { … Ok(()) })`. Clone captured values before the `async move`. An `async fn` is called in the closure: `|data: &mut
        /// FetchData, meta| Box::pin(fetch(data, meta))`.
        ///
        /// By default, an error or panic of the listener fails the emit, and no other listener may change the event
        /// after that.
        ///
        /// # Errors
        ///
        /// Returns an error if the matcher is not valid, if the emitter declares this event with another
        /// type, or if the run that the emitter belongs to has ended.
        ///
        /// # Examples
        ///
        /// ```
        /// use emitree_emitter::{BoxError, Emitter};
        ///
        /// # futures_util::future::FutureExt::now_or_never(async {
        /// let emitter = Emitter::new();
        /// emitter.on_async("count", |n: &mut u32, _| Box::pin(async move { Ok(*n += 1) }))?;
        ///
        /// let mut n = 1_u32;
        /// emitter.emit("count", &mut n).await?;
        /// assert_eq!(n, 2);
        /// # Ok::<(), BoxError>(())
        /// # }).unwrap()?;
        /// # Ok::<(), BoxError>(())
        /// ```
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
            T: Payload + ?Sized + 'static,
        {
            self.add($options(self).on_async(matcher, f))
        }

        /// Registers an observer. It runs after all listeners that may change the event.
        ///
        /// By default, an error or panic of the observer is logged and counted, and does not fail the emit.
        ///
        /// # Errors
        ///
        /// Returns an error if the matcher is not valid, if the emitter declares this event with another
        /// type, or if the run that the emitter belongs to has ended.
        ///
        /// # Examples
        ///
        /// ```
        /// use std::sync::{Arc, Mutex};
        ///
        /// use emitree_emitter::{AnyEvent, Emitter};
        ///
        /// let (root, seen) = (Emitter::new(), Arc::new(Mutex::new(Vec::new())));
        /// let log = Arc::clone(&seen);
        /// root.observe("*.*", move |_: &dyn AnyEvent, meta| log.lock().unwrap().push(meta.path().to_owned()))?;
        ///
        /// root.child("model")?.emit_now("new_token", &mut "to")?;
        /// assert_eq!(*seen.lock().unwrap(), ["model.new_token"]);
        /// # Ok::<(), Box<dyn std::error::Error + Send + Sync>>(())
        /// ```
        #[track_caller]
        pub fn observe<T, R>(
            &self,
            matcher: impl IntoMatcher,
            f: impl Fn(&T, &EventMeta<'_>) -> R + Send + Sync + 'static,
        ) -> Result<Subscription, ListenError>
        where
            T: Payload + ?Sized + 'static,
            R: ListenerResult,
        {
            self.add($options(self).observe(matcher, f))
        }

        /// Registers an async observer. It starts after all listeners that may change the event, and is awaited
        /// together with the other async observers before the emit returns.
        ///
        /// By default, an error or panic of the observer is logged and counted, and does not fail the emit.
        ///
        /// # Errors
        ///
        /// Returns an error if the matcher is not valid, if the emitter declares this event with another
        /// type, or if the run that the emitter belongs to has ended.
        #[track_caller]
        pub fn observe_async<T>(
            &self,
            matcher: impl IntoMatcher,
            f: impl for<'a> Fn(&'a T, &'a EventMeta<'a>) -> BoxFuture<'a, Result<(), BoxError>> + Send + Sync + 'static,
        ) -> Result<Subscription, ListenError>
        where
            T: Payload + ?Sized + 'static,
        {
            self.add($options(self).observe_async(matcher, f))
        }

        /// Registers a listener under the name that its payload type carries. The listener may change the event.
        ///
        /// The listener receives events that are emitted under that name on this emitter or on one of its runs. A `()`
        /// child of a run's emitter emits for that run. For events of other emitters below, use `on` with the matcher
        /// `"**.name"`.
        ///
        /// # Errors
        ///
        /// Returns an error if the emitter declares this event with another type, or if the run that the emitter belongs to has ended.
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

    /// Returns a [`With`], whose methods register listeners with these options.
    ///
    /// ```
    /// use emitree_emitter::{Emitter, Options};
    ///
    /// let emitter = Emitter::new();
    /// emitter.on("count", |n: &mut u32, _| *n *= 10)?;
    /// emitter.with(Options::new().priority(1).once()).on("count", |n: &mut u32, _| *n += 1)?;
    ///
    /// let mut n = 0_u32;
    /// emitter.emit_now("count", &mut n)?;
    /// assert_eq!(n, 10);
    /// emitter.emit_now("count", &mut n)?;
    /// assert_eq!(n, 100);
    /// # Ok::<(), Box<dyn std::error::Error + Send + Sync>>(())
    /// ```
    pub const fn with(&self, options: Options) -> With<'_> {
        With { emitter: self, options }
    }

    /// Registers a listener that was created by a method of [`Options`].
    ///
    /// # Errors
    ///
    /// Returns an error if the matcher is not valid, if the emitter declares this event with another type, or
    /// if the run that the emitter belongs to has ended.
    ///
    /// # Examples
    ///
    /// ```
    /// use emitree_emitter::{Emitter, Options};
    ///
    /// let emitter = Emitter::new();
    /// let shout = Options::new().once().on("greet", |name: &mut String, _| name.make_ascii_uppercase());
    /// emitter.register(shout)?;
    ///
    /// let mut name = "world".to_owned();
    /// emitter.emit_now("greet", &mut name)?;
    /// assert_eq!(name, "WORLD");
    /// # Ok::<(), Box<dyn std::error::Error + Send + Sync>>(())
    /// ```
    pub fn register(&self, registration: Registration) -> Result<Subscription, ListenError> {
        let listener = Arc::new(registration.into_listener(self.downgrade())?);
        if let Some(declared) = self.declared() {
            declared.check_listener(self, &listener.matcher, listener.expected)?;
        }
        let subscription = Subscription::new(&listener);
        // Do not add a listener that is limited to zero calls, because only its last call would remove it.
        if !listener.claims.is_spent() {
            self.add_to_registry(|registry| registry.add(listener))?;
        }
        Ok(subscription)
    }

    /// Removes the non-persistent listeners that were registered here with an equal matcher. Returns the number of
    /// removed listeners.
    ///
    /// # Errors
    ///
    /// Returns an error if the matcher is not valid.
    pub fn off_matching(&self, matcher: impl IntoMatcher) -> Result<usize, MatcherError> {
        let matcher = matcher.into_matcher()?;
        Ok(self.registry().map_or(0, |registry| registry.remove_matching(&matcher)))
    }

    /// Removes the listeners that were registered here, except persistent listeners. Returns the number of removed
    /// listeners. Pipes, sinks and streams stay.
    #[expect(clippy::must_use_candidate, reason = "callers may ignore the result")]
    pub fn reset(&self) -> usize {
        self.registry().map_or(0, |registry| registry.remove_all(|listener| !listener.persistent))
    }

    /// Removes all listeners and pipes that were registered here, persistent or not. Sinks are closed, and streams end.
    ///
    /// The emitter can still be used, and events still rise through it.
    pub fn close(&self) {
        if let Some(registry) = self.registry() {
            registry.clear();
        }
    }

    /// Returns the number of listeners registered here, sinks and streams included.
    #[must_use]
    pub fn listener_count(&self) -> usize {
        self.registry().map_or(0, Registry::listener_count)
    }

    /// Returns how many failures of listeners registered here were logged without failing an emit.
    #[must_use]
    pub fn isolated_failures(&self) -> u64 {
        self.registry().map_or(0, Registry::isolated)
    }

    /// Forwards every event that reaches this emitter to another emitter, and from there to all emitters above.
    ///
    /// The pipe keeps its target alive until [`unpipe`](PipeHandle::unpipe), [`close`](Self::close), the end of this
    /// emitter's run or the drop of this emitter removes the pipe. In a cycle of pipes, each emitter receives an event
    /// once. A pipe to a run that has ended forwards no events if that run ever had listeners. If this emitter belongs
    /// to a run that has ended, no pipe is created and a warning is logged.
    ///
    /// ```
    /// use emitree_emitter::Emitter;
    ///
    /// let (source, target) = (Emitter::new(), Emitter::new());
    /// target.on("**.count", |n: &mut u32, _| *n += 1)?;
    /// let pipe = source.pipe(&target);
    ///
    /// let mut n = 0_u32;
    /// source.child("a")?.emit_now("count", &mut n)?;
    /// assert_eq!(n, 1);
    ///
    /// pipe.unpipe();
    /// source.child("a")?.emit_now("count", &mut n)?;
    /// assert_eq!(n, 1);
    /// # Ok::<(), Box<dyn std::error::Error + Send + Sync>>(())
    /// ```
    #[expect(clippy::must_use_candidate, reason = "callers may ignore the result")]
    pub fn pipe(&self, target: &Self) -> PipeHandle {
        let pipe = Arc::new(Pipe::new(self, target));
        let handle = PipeHandle::new(self, &pipe);
        if let Err(error) = self.add_to_registry(|registry| registry.add_pipe(pipe)) {
            log_quietly(|| tracing::warn!(%error, "the pipe was not created"));
        }
        handle
    }

    /// Adds a listener or pipe to the registry of this emitter.
    ///
    /// # Errors
    ///
    /// Returns an error if the emitter belongs to a run that has ended.
    fn add_to_registry(&self, add: impl FnOnce(&Registry) -> Result<(), RegistryClosed>) -> Result<(), ListenError> {
        let registry = self.node().registry.get_or_init(|| Box::new(Registry::new()));
        // Pairs with the fence in `end_run`: either this call sees the end of the run, or `end_run` sees the registry
        // and closes it.
        fence(Ordering::SeqCst);
        let too_late = |_| ListenError::RunEnded { namespace: self.namespace().to_owned() };
        if self.has_run_ended() { Err(RegistryClosed) } else { add(registry) }.map_err(too_late)?;
        // Invalidate the caches only after emits can find the listener or pipe (invariant 1 of `no_listener_cache`).
        self.invalidate();
        Ok(())
    }
}

/// Registers listeners with [`Options`] on an emitter. [`Emitter::with`] returns this value.
#[must_use = "options do nothing until a listener is registered with them"]
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
