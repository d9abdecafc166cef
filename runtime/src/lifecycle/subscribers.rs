//! Subscribers, which receive the lifecycle events of runs without an emit.
//!
//! 1. A subscriber receives a run's `start`, then `success` or `error`, then `finish`, each at most once, after all
//!    listeners.
//! 2. A subscriber is not a listener: a run with subscribers but no listeners does not make an emitter, and does not
//!    emit its lifecycle events (E15).
//! 3. A subscriber cannot change an event, and its panics are logged (M5). It is called with no lock held.

use std::sync::Arc;

use emitree_emitter::rt::EventStamp;
use emitree_emitter::{AnyEvent, Emitter};

use crate::context::inherited::InheritedList;
use crate::run::panic::{discard, isolated};
use crate::{Attempted, Data, Result, RunContext, RunEvent, Stage};

/// A subscriber of runs: it receives their lifecycle events and cannot change them. Register it with
/// [`RunContext::subscribe`].
///
/// Every closure that takes a `&RunEvent` is a subscriber.
///
/// A subscriber is cheaper than a listener: a run with listeners needs an emitter, and each of its events travels up
/// the tree. But a subscriber receives neither the events that the work emits nor events from pipes.
pub trait RunSubscriber: Send + Sync + 'static {
    /// Receives one of the run's four events, after all listeners.
    fn event(&self, event: &RunEvent<'_>);

    /// Receives the result of an attempt, before [`map_output`](crate::map_output) and listeners of `success` change it.
    ///
    /// This method is not called if a [`map_input`](crate::map_input) failed, or if the attempt was dropped. The default
    /// implementation does nothing.
    fn attempted(&self, attempt: &Attempted<'_>) {
        _ = attempt;
    }
}

impl<F: Fn(&RunEvent<'_>) + Send + Sync + 'static> RunSubscriber for F {
    fn event(&self, event: &RunEvent<'_>) {
        self(event);
    }
}

impl<T: RunSubscriber + ?Sized> RunSubscriber for Arc<T> {
    fn event(&self, event: &RunEvent<'_>) {
        (**self).event(event);
    }

    fn attempted(&self, attempt: &Attempted<'_>) {
        (**self).attempted(attempt);
    }
}

/// The subscribers of a run, including the subscribers of the runs above.
pub(crate) struct Subscribers {
    /// The run's own subscribers in order of registration, then the inherited subscribers, nearest run first.
    pub(crate) all: InheritedList<Arc<dyn RunSubscriber>>,
    /// The number of inherited subscribers, at the end of the list.
    above: usize,
}

/// The recipients of a lifecycle event.
#[derive(Clone, Copy)]
pub(crate) enum Recipients<'a> {
    Subscribers,
    /// Listeners on this emitter or above, and subscribers if there are any.
    Listeners(&'a Emitter),
}

impl Subscribers {
    pub(crate) fn new(above: Option<&RunContext>) -> Self {
        let all = above.and_then(|above| above.shared().subscribers.all.all());
        Self { above: all.as_ref().map_or(0, |all| all.len()), all: InheritedList::new(all) }
    }

    fn each(&self, f: impl Fn(&dyn RunSubscriber)) {
        // Take a snapshot, so that no lock is held while subscribers run (invariant 3): they may register further
        // subscribers.
        let all = self.all.all();
        all.iter().flat_map(|all| all.iter()).for_each(|subscriber| isolated(|| f(&**subscriber)));
        // If the run has ended meanwhile, this snapshot may hold the last references to the subscribers, whose drop may
        // panic.
        discard(all);
    }

    fn add(&self, subscriber: Arc<dyn RunSubscriber>) {
        // Insert the subscriber after the run's own subscribers and before the inherited subscribers, so that
        // subscribers of the nearest run are called first.
        self.all.change(|all| all.insert(all.len().saturating_sub(self.above), subscriber));
    }
}

impl RunContext {
    /// Registers a subscriber for the events of this run, of the children that begin from now on, and of all runs below
    /// those children.
    ///
    /// For each event:
    ///
    /// 1. listeners and observers receive it;
    /// 2. the subscribers that were registered on the run itself receive it, in order of registration;
    /// 3. the subscribers that were registered on the runs above receive it, nearest run first;
    /// 4. the run continues.
    ///
    /// A subscriber that a listener registers during an event receives that event too.
    ///
    /// When the run has ended, its subscribers are dropped.
    ///
    /// ```
    /// use emitree_runtime::{RunContext, RunEvent, Runnable, runnable_fn};
    ///
    /// /// Prints the events of a run and of the runs below it.
    /// fn show(ctx: &RunContext) -> emitree_runtime::Result<()> {
    ///     ctx.subscribe(|event: &RunEvent<'_>| println!("{} {}", event.path(), event.payload().to_json()));
    ///     Ok(())
    /// }
    ///
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> emitree_runtime::Result<()> {
    /// let double = runnable_fn("double", |n: u32, _: RunContext| async move { Ok(n * 2) });
    /// assert_eq!(double.run(2).middleware(show).await?, 4);
    /// // double.run.start {"input":2,"output":null} …
    /// # Ok(())
    /// # }
    /// ```
    pub fn subscribe(&self, subscriber: impl RunSubscriber) {
        self.shared().subscribers.add(Arc::new(subscriber));
        self.bound();
    }

    /// Returns the current recipients of the run's events, or `None` if there are no listeners and no subscribers.
    pub(crate) fn recipients(&self) -> Option<Recipients<'_>> {
        // Check for listeners first: they decide whether the run needs an emitter at all (invariant 2).
        let run = self.shared();
        if run.has_listeners() {
            return Some(Recipients::Listeners(self.emitter()));
        }
        if run.subscribers.all.is_empty() { None } else { Some(Recipients::Subscribers) }
    }

    /// Calls the run's subscribers with an event.
    #[inline]
    pub(crate) fn show(&self, stage: Stage, payload: &dyn AnyEvent, stamp: &EventStamp) {
        let subscribers = &self.shared().subscribers;
        if !subscribers.all.is_empty() {
            let event = RunEvent::new(self, stage, payload, stamp);
            subscribers.each(|subscriber| subscriber.event(&event));
        }
    }

    /// Calls the run's subscribers with the result of an attempt.
    #[inline]
    pub(crate) fn show_attempt<O: Data>(&self, result: &Result<O>) {
        let subscribers = &self.shared().subscribers;
        if !subscribers.all.is_empty() {
            let attempt = Attempted::new(self, result);
            subscribers.each(|subscriber| subscriber.attempted(&attempt));
        }
    }
}
