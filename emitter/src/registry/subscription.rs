//! Subscriptions: handles that remove a listener (E9).

use std::fmt;
use std::sync::{Arc, Weak};

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
    /// continues.
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

    /// Returns `true` if the listener may still be called.
    #[must_use]
    pub fn is_active(&self) -> bool {
        self.0.upgrade().is_some_and(|listener| !listener.claims.is_spent())
    }

    /// Returns a guard that removes the listener when the guard is dropped.
    pub fn drop_guard(self) -> DropGuard {
        DropGuard(self)
    }
}

impl Listener {
    /// Removes the listener from the emitter that it is registered on.
    pub(crate) fn remove_from_home(&self) {
        let Some(home) = self.home.upgrade() else { return };
        if let Some(registry) = Emitter::from(home).registry() {
            registry.remove(self);
        }
    }
}

impl fmt::Debug for Subscription {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Subscription").field("active", &self.is_active()).finish()
    }
}

/// A guard, returned by [`Subscription::drop_guard`], that removes the listener when the guard is dropped.
#[must_use = "the listener is removed when the guard is dropped"]
#[derive(Debug)]
pub struct DropGuard(Subscription);

impl Drop for DropGuard {
    fn drop(&mut self) {
        self.0.off();
    }
}
