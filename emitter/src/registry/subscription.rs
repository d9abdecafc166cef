//! What a registration gives back (E9).

use std::fmt;
use std::future::Future;
use std::sync::{Arc, Weak};

use thiserror::Error;

use crate::Emitter;
use crate::registry::listener::Listener;

/// A listener that was registered. Dropping it changes nothing; [`off`](Self::off) removes the listener.
///
/// It keeps neither the listener nor its emitter alive.
#[derive(Clone)]
pub struct Subscription(Weak<Listener>);

impl Subscription {
    pub(crate) fn new(listener: &Arc<Listener>) -> Self {
        Self(Arc::downgrade(listener))
    }

    /// Removes the listener; tells whether this call did it.
    ///
    /// Once it has returned, no dispatch begins to call the listener, not even one under way. A dispatch on another thread that had
    /// already taken it may still call it, and an async listener that is being awaited goes on: see
    /// [`off_and_wait`](Self::off_and_wait).
    #[expect(clippy::must_use_candidate, reason = "called for its effect")]
    pub fn off(&self) -> bool {
        self.0.upgrade().is_some_and(|listener| {
            let ended = listener.claims.end();
            listener.remove_from_home();
            ended
        })
    }

    /// Removes the listener at once, and returns a future that waits until no call of it is under way: neither one on another thread nor
    /// one that is being awaited. The future returns whether this call removed the listener.
    ///
    /// Only calls of a listener that was registered with [`Options::awaitable_off`](crate::Options::awaitable_off) are counted.
    ///
    /// What the listener captured is dropped with the last emit under way that had found the listener, perhaps later.
    ///
    /// Awaited inside of a call of that very listener, also through emits in between, the future does not wait for that call. Two
    /// calls at the same time that both await it wait for each other for ever.
    ///
    /// # Errors
    ///
    /// If the calls of the listener are not counted. It is removed all the same.
    ///
    /// # Cancel safety
    ///
    /// The listener is removed before the future is polled, and stays so if the future is dropped.
    ///
    /// ```
    /// use emitree_emitter::{Emitter, Options};
    ///
    /// # futures_util::future::FutureExt::now_or_never(async {
    /// let emitter = Emitter::new();
    /// let counted = emitter.with(Options::new().awaitable_off());
    /// let subscription = counted.on("tick", |n: &mut u32, _| *n += 1)?;
    /// assert!(subscription.off_and_wait().await?);
    /// // From here on, nothing that the listener used is in use.
    /// # Ok::<(), emitree_emitter::BoxError>(())
    /// # }).unwrap()?;
    /// # Ok::<(), emitree_emitter::BoxError>(())
    /// ```
    pub fn off_and_wait(&self) -> impl Future<Output = Result<bool, UncountedCalls>> + Send + Sync + use<> {
        // One that is gone has no call under way: an emit that calls it holds it.
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

    /// Tells whether the listener may still be called.
    #[must_use]
    pub fn is_active(&self) -> bool {
        self.0.upgrade().is_some_and(|listener| !listener.claims.is_spent())
    }

    /// Makes a guard that removes the listener when it is dropped.
    pub fn drop_guard(self) -> DropGuard {
        DropGuard(Some(self))
    }
}

impl Listener {
    /// Removes it from the emitter that it is registered on.
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

/// A listener was removed whose calls under way cannot be waited for: they are not counted.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
#[error("the listener was removed, but its calls are not counted; register it with `Options::awaitable_off`")]
pub struct UncountedCalls(());

/// Removes a listener when it is dropped. Made by [`Subscription::drop_guard`].
#[must_use = "the listener is removed when the guard is dropped"]
#[derive(Debug)]
pub struct DropGuard(Option<Subscription>);

impl DropGuard {
    /// Keeps the listener.
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
