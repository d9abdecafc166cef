//! The end of a run's emitter (R14). Afterwards, the emitter has no listeners, accepts none, and delivers no events.
//!
//! Listeners on the instance and above must not receive a late event either, because the run's own listeners, which may
//! redact events, are gone. The event is counted instead, and the first late event is logged. The same applies to an
//! event that would rise through the run from a pipe, or from a run whose instance is below this run in the tree.

use std::sync::atomic::{AtomicU32, Ordering, fence};

use crate::Emitter;
use crate::name::NameRef;
use crate::panic::log_quietly;

/// The value is 0 while the run lasts, and afterwards 1 plus the number of late events. It has only 32 bits, because
/// every run has this counter.
#[derive(Default)]
pub(crate) struct RunEnd(AtomicU32);

impl RunEnd {
    fn begin(&self) {
        self.0.compare_exchange(0, 1, Ordering::Relaxed, Ordering::Relaxed).ok();
    }

    fn has_begun(&self) -> bool {
        self.0.load(Ordering::Relaxed) != 0
    }

    fn late_emits(&self) -> u32 {
        self.0.load(Ordering::Relaxed).saturating_sub(1)
    }

    /// Counts a late event. Returns `true` for the first late event.
    fn count(&self) -> bool {
        self.0.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |n| n.checked_add(1)) == Ok(1)
    }
}

impl Emitter {
    /// Ends the emitter of a run: drops its listeners, including persistent listeners, and its pipes, and refuses new
    /// listeners and pipes. A runtime calls this method on the emitters that it made with [`for_run`](Self::for_run).
    ///
    /// From then on, events that are emitted on this emitter, or below it in the same run, are not delivered.
    /// [`late_emits`](Self::late_emits) counts them. If a listener or pipe was ever added here, two other kinds of
    /// events no longer rise through this emitter either: events piped to it, and events of runs whose instance is
    /// below it in the tree.
    ///
    /// Does nothing on an emitter that was not made with `for_run`.
    #[doc(hidden)]
    pub fn end_run(&self) {
        let Some(run) = &self.node().run else { return };
        run.end.begin();
        // Pairs with the fence in `add_to_registry`: either this call sees the registry of a listener that is being
        // registered, or that registration sees the end of the run.
        fence(Ordering::SeqCst);
        if let Some(registry) = self.registry() {
            registry.close();
        }
    }

    /// Returns `true` if this emitter is in a run that has ended. Its run is the nearest run, from here up the tree.
    #[must_use]
    pub fn has_run_ended(&self) -> bool {
        self.run_end().is_some_and(RunEnd::has_begun)
    }

    /// Returns the number of events that came after the end of this run: events emitted in the run, and events that
    /// would have risen through it. They were delivered neither here nor above.
    ///
    /// Events without listeners are not necessarily counted.
    #[must_use]
    pub fn late_emits(&self) -> u32 {
        self.run_end().map_or(0, RunEnd::late_emits)
    }

    /// If the run has ended, counts the event and returns `true`.
    #[inline]
    pub(crate) fn is_too_late_for(&self, name: NameRef<'_>) -> bool {
        let is_too_late = self.has_run_ended();
        if is_too_late {
            self.count_late(|| self.join(name.as_str()));
        }
        is_too_late
    }

    /// Counts an event that came after the end of the run, and logs the first such event.
    #[cold]
    pub(crate) fn count_late(&self, path: impl FnOnce() -> String) {
        if self.run_end().is_some_and(RunEnd::count) {
            let path = path();
            log_quietly(|| {
                tracing::warn!("`{path}` reached a run that has ended: it is not delivered to the run or above it");
            });
        }
    }

    fn run_end(&self) -> Option<&RunEnd> {
        self.run_link().map(|run| &run.end)
    }
}
