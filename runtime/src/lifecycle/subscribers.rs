//! Subscribers of runs: they receive the events of a run without anything being emitted for them.
//!
//! 1. A subscriber sees the same of a run as a listener that hears everything and changes nothing: `start`, then one of
//!    `success` and `error`, then `finish`, once each (R4); and each after all who listen to it.
//! 2. It is no listener: a run with subscribers alone has no listeners, has no emitter and emits nothing (E15).
//! 3. It can change nothing, and a panic of its is logged (M5). It is called with no lock held.

use std::sync::Arc;

use emitree_emitter::rt::EventStamp;
use emitree_emitter::{AnyEvent, Emitter};

use crate::context::inherited::InheritedList;
use crate::run::panic::{discard, isolated};
use crate::{Attempted, Data, Result, RunContext, RunEvent, Stage};

/// Receives the events of runs, and changes nothing; bound with [`RunContext::subscribe`].
///
/// A function of `&RunEvent` is one.
///
/// A listener costs a run its emitter, and each of its events a way up and a time. A subscriber costs nearly nothing, but it
/// is for a run, not for an emitter: it hears nothing that the work emits, and nothing by a pipe.
pub trait RunSubscriber: Send + Sync + 'static {
    /// Receives one of the run's four events, when its listeners have heard it.
    fn event(&self, event: &RunEvent<'_>);

    /// Looks at what the work and the layers around it came to in one attempt, before output middlewares and listeners get
    /// it. Work that is dropped comes to nothing. By default it does not look.
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

/// The subscribers of a run, which are those of the runs above as well.
#[derive(Default)]
pub(crate) struct Subscribers {
    /// The nearest first: those of the run itself, in order of registration, and then those of the runs above.
    all: InheritedList<Arc<dyn RunSubscriber>>,
    /// How many the run found.
    above: usize,
}

/// Who sees what a run tells, at a moment.
#[derive(Clone, Copy)]
pub(crate) enum Recipients<'a> {
    Nobody,
    Subscribers,
    /// With those who observe, if there are any.
    Listeners(&'a Emitter),
}

impl<'a> Recipients<'a> {
    pub(crate) const fn is_some(self) -> bool {
        !matches!(self, Self::Nobody)
    }

    /// The run's emitter, if anybody hears what is emitted there.
    pub(crate) const fn listeners(self) -> Option<&'a Emitter> {
        match self {
            Self::Listeners(emitter) => Some(emitter),
            Self::Nobody | Self::Subscribers => None,
        }
    }
}

impl Subscribers {
    pub(crate) fn new(above: Option<&RunContext>) -> Self {
        let all = above.and_then(|above| above.subscribers().all.all());
        Self { above: all.as_ref().map_or(0, |all| all.len()), all: InheritedList::new(all) }
    }

    #[inline]
    pub(crate) fn is_empty(&self) -> bool {
        self.all.is_empty()
    }

    fn each(&self, f: impl Fn(&dyn RunSubscriber)) {
        let all = self.all.all();
        all.iter().flat_map(|all| all.iter()).for_each(|subscriber| isolated(|| f(&**subscriber)));
        discard(all);
    }

    fn add(&self, subscriber: Arc<dyn RunSubscriber>) {
        self.all.change(|all| all.insert(all.len().saturating_sub(self.above), subscriber));
    }

    pub(crate) fn release(&self) {
        self.all.release();
    }
}

impl RunContext {
    /// Has an subscriber look at what the run tells from now on, and those that are started in it from now on, however deep.
    /// What is bound while listeners hear an event sees that event too, for it comes after them.
    ///
    /// It is called after all who listen, those of [`observe`](emitree_emitter::Emitter::observe) too, and before the run
    /// goes on; the nearest first: those bound to the run itself, in order, then those bound to the runs above.
    ///
    /// ```
    /// use emitree_runtime::{RunContext, RunEvent, Runnable, runnable_fn};
    ///
    /// /// Shows what a run and those below it tell.
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
        self.subscribers().add(Arc::new(subscriber));
        self.bound();
    }

    /// Who there is to be told.
    pub(crate) fn recipients(&self) -> Recipients<'_> {
        let here = self.here();
        match (here.is_heard(), here.subscribers().is_empty()) {
            (true, _) => Recipients::Listeners(self.emitter()),
            (false, false) => Recipients::Subscribers,
            (false, true) => Recipients::Nobody,
        }
    }

    /// Shows an event to its subscribers.
    #[inline]
    pub(crate) fn show(&self, stage: Stage, payload: &dyn AnyEvent, stamp: &EventStamp) {
        let subscribers = self.subscribers();
        if !subscribers.is_empty() {
            let event = RunEvent::new(self, stage, payload, stamp);
            subscribers.each(|subscriber| subscriber.event(&event));
        }
    }

    /// Shows them what an attempt came to.
    #[inline]
    pub(crate) fn show_attempt<O: Data>(&self, result: &Result<O>) {
        let subscribers = self.subscribers();
        if !subscribers.is_empty() {
            let attempt = Attempted::new(self, result);
            subscribers.each(|subscriber| subscriber.attempted(&attempt));
        }
    }
}
