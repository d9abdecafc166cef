//! The end of a run's emitter (R14). Afterwards, the emitter has no listeners, accepts none, and delivers no events.
//!
//! Listeners on the instance and above must not receive a late event either, because the run's own listeners, which may
//! redact events, are gone. The first late event is logged. The same applies to an event that would rise through the run
//! from a pipe, or from a run whose instance is below this run in the tree.

use std::sync::atomic::{AtomicU8, Ordering, fence};

use crate::Emitter;
use crate::name::NameRef;
use crate::panic::log_quietly;

const LASTS: u8 = 0;
const ENDED: u8 = 1;
/// The run has ended, and a late event has been logged.
const LOGGED: u8 = 2;

/// Whether a run lasts, has ended, or has ended and logged a late event.
pub(crate) struct RunEnd(AtomicU8);

impl Default for RunEnd {
    fn default() -> Self {
        Self(AtomicU8::new(LASTS))
    }
}

impl RunEnd {
    fn begin(&self) {
        // A second call must not make the run log again.
        self.0.compare_exchange(LASTS, ENDED, Ordering::Relaxed, Ordering::Relaxed).ok();
    }

    fn has_begun(&self) -> bool {
        self.0.load(Ordering::Relaxed) != LASTS
    }

    /// Returns `true` for the first late event, which is logged.
    fn is_first_late(&self) -> bool {
        self.0.compare_exchange(ENDED, LOGGED, Ordering::Relaxed, Ordering::Relaxed).is_ok()
    }
}

impl Emitter {
    /// Ends the emitter of a run: drops its listeners, including persistent listeners, and its pipes, and refuses new
    /// listeners and pipes. A runtime calls this method on the emitters that it made with [`for_run`](Self::for_run).
    ///
    /// From then on, events that are emitted on this emitter, or below it in the same run, are not delivered. The first
    /// of them is logged. If a listener or pipe was ever added here, two other kinds of events no longer rise through
    /// this emitter either: events piped to it, and events of runs whose instance is below it in the tree.
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

    /// If the run has ended, logs the event if it is the first, and returns `true`.
    #[inline]
    pub(crate) fn is_too_late_for(&self, name: NameRef<'_>) -> bool {
        let is_too_late = self.has_run_ended();
        if is_too_late {
            self.log_late(|| self.join(name.as_str()));
        }
        is_too_late
    }

    /// Logs an event that came after the end of the run, if it is the first.
    #[cold]
    pub(crate) fn log_late(&self, path: impl FnOnce() -> String) {
        if self.run_end().is_some_and(RunEnd::is_first_late) {
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
