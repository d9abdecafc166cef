//! What a registration gives back (E9).

use std::fmt;
use std::sync::{Arc, Weak};

use crate::Emitter;
use crate::listener::Listener;

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
    /// Once it has returned, no dispatch that comes to the listener calls it, not even one under way.
    #[expect(clippy::must_use_candidate, reason = "called for its effect")]
    pub fn off(&self) -> bool {
        self.0.upgrade().is_some_and(|listener| {
            let ended = listener.claims.end();
            listener.leave();
            ended
        })
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
    pub(crate) fn leave(&self) {
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
