//! Subscriptions: handles that remove a listener (E9).

use std::fmt;
use std::future::Future;
use std::sync::{Arc, Weak};

use thiserror::Error;

use crate::Emitter;
use crate::registry::listener::Listener;

/// A handle to a registered listener. [`off`](Self::off) removes the listener; dropping the handle does not.
///
/// A subscription keeps neither the listener nor its emitter alive.
#[derive(Clone)]
pub struct Subscription(Weak<Listener>);

impl Subscription {
    pub(crate) fn new(listener: &Arc<Listener>) -> Self {
        Self(Arc::downgrade(listener))
    }

    /// Removes the listener. Returns `true` if this call removed it.
    ///
    /// After `off` has returned, no emit begins to call the listener, not even an emit that had already selected it. A
    /// call that has already begun on another thread still completes, and an async listener that is being awaited
    /// continues. Use [`off_and_wait`](Self::off_and_wait) to wait for such calls.
    ///
    /// ```
    /// use emitree_emitter::Emitter;
    ///
    /// let emitter = Emitter::new();
    /// let subscription = emitter.on("tick", |n: &mut u32, _| *n += 1)?;
    /// assert!(subscription.off());
    ///
    /// let mut n = 0_u32;
    /// emitter.emit_now("tick", &mut n)?;
    /// assert_eq!(n, 0);
    /// # Ok::<(), Box<dyn std::error::Error + Send + Sync>>(())
    /// ```
    #[expect(clippy::must_use_candidate, reason = "callers may ignore the result")]
    pub fn off(&self) -> bool {
        self.0.upgrade().is_some_and(|listener| {
            let ended = listener.claims.end();
            listener.remove_from_home();
            ended
        })
    }

    /// Removes the listener immediately, and returns a future that waits for the calls of the listener that are still
    /// under way. Such calls run on other threads, or in emits that await the listener. The future resolves to `true`
    /// if this `off_and_wait` removed the listener.
    ///
    /// The listener must be registered with [`Options::awaitable_off`](crate::Options::awaitable_off), so that its
    /// calls are counted.
    ///
    /// Values captured by the listener may live longer than its last call: they are dropped with the last emit under
    /// way that had selected the listener.
    ///
    /// If the future is awaited inside a call of the listener itself, even through nested emits, it does not wait for
    /// that call. If two concurrent calls of the listener both await such a future, they wait for each other forever.
    ///
    /// # Errors
    ///
    /// Returns an error if the calls of the listener are not counted. The listener is removed nevertheless.
    ///
    /// # Cancel safety
    ///
    /// The listener is removed before the future is first polled. Dropping the future only ends the wait.
    ///
    /// # Examples
    ///
    /// ```
    /// use emitree_emitter::{Emitter, Options};
    ///
    /// # futures_util::future::FutureExt::now_or_never(async {
    /// let emitter = Emitter::new();
    /// let counted = emitter.with(Options::new().awaitable_off());
    /// let subscription = counted.on("tick", |n: &mut u32, _| *n += 1)?;
    /// assert!(subscription.off_and_wait().await?);
    /// // No call of the listener is running any more.
    /// # Ok::<(), emitree_emitter::BoxError>(())
    /// # }).unwrap()?;
    /// # Ok::<(), emitree_emitter::BoxError>(())
    /// ```
    pub fn off_and_wait(&self) -> impl Future<Output = Result<bool, UncountedCalls>> + Send + Sync + use<> {
        // A listener that is already dropped has no call under way: an emit keeps alive the listener that it calls.
        let calls = self.0.upgrade().map(|listener| listener.tracked.clone().ok_or(UncountedCalls(())));
        let removed = self.off();
        if let Some(Ok(tracked)) = &calls {
            tracked.end();
        }
        async move {
            if let Some(tracked) = calls.transpose()? {
                tracked.idle().await;
            }
            Ok(removed)
        }
    }

    /// Returns `true` if the listener may still be called.
    #[must_use]
    pub fn is_active(&self) -> bool {
        self.0.upgrade().is_some_and(|listener| !listener.claims.is_spent())
    }

    /// Returns a guard that removes the listener when the guard is dropped.
    pub fn drop_guard(self) -> DropGuard {
        DropGuard(Some(self))
    }
}

impl Listener {
    /// Removes the listener from the emitter that it is registered on.
    pub(crate) fn remove_from_home(&self) {
        let Some(home) = self.home.upgrade() else { return };
        if let Some(registry) = Emitter::from(home).registry() {
            registry.remove(|other| std::ptr::eq(other, self));
        }
    }
}

impl fmt::Debug for Subscription {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Subscription").field("active", &self.is_active()).finish()
    }
}

/// The error returned by [`Subscription::off_and_wait`] if the listener's calls are not counted. The listener is
/// removed even so.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
#[error("the listener was removed, but its calls are not counted; register it with `Options::awaitable_off`")]
pub struct UncountedCalls(());

/// A guard, returned by [`Subscription::drop_guard`], that removes the listener when the guard is dropped.
#[must_use = "the listener is removed when the guard is dropped"]
#[derive(Debug)]
pub struct DropGuard(Option<Subscription>);

impl DropGuard {
    /// Drops the guard without removing the listener.
    pub fn disarm(mut self) {
        self.0 = None;
    }
}

impl Drop for DropGuard {
    fn drop(&mut self) {
        if let Some(subscription) = &self.0 {
            subscription.off();
        }
    }
}
