//! The emitter of a run that has ended (R14): it has no listeners, takes none, and what is emitted there reaches nobody.
//!
//! Listeners of the instance and above would hear the event without what the run had bound to it, such as its redaction. So
//! they do not hear it either: it is counted, and the first one is logged. The same holds for what would rise through such a run: what
//! is piped there, and events of runs of an instance below it in the tree.

use std::sync::atomic::{AtomicU32, Ordering, fence};

use crate::Emitter;
use crate::name::NameRef;
use crate::panic::log_quietly;

/// 0 until the run has ended; from then on 1, and 1 more for each event that was emitted since. In one small word, because
/// every run has it.
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

    /// Counts an event; returns whether it is the first.
    fn count(&self) -> bool {
        self.0.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |n| n.checked_add(1)) == Ok(1)
    }
}

impl Emitter {
    /// Ends the emitter of a run, for the runtime that made it with [`for_run`](Self::for_run): drops its listeners and pipes,
    /// persistent ones too, and takes no more.
    ///
    /// What is emitted on it from now on, or on an emitter below it in the tree, reaches nobody; [`late_emits`](Self::late_emits)
    /// counts it. If anybody listened here, neither does what would rise through it: what is piped here, and events of runs of an
    /// instance below it in the tree, which those below hear. On an emitter that is not a run's it does nothing.
    pub fn end_run(&self) {
        let Some(run) = &self.node().run else { return };
        run.end.begin();
        // Either this sees the registry of who registers now, or that sees that the run has ended.
        fence(Ordering::SeqCst);
        if let Some(registry) = self.registry() {
            registry.close();
        }
    }

    /// Returns `true` if this is the emitter of a run that has ended, or an emitter below it in the tree.
    #[must_use]
    pub fn has_run_ended(&self) -> bool {
        self.run_end().is_some_and(RunEnd::has_begun)
    }

    /// Returns how many events were emitted on this run, or would have risen through it, since it ended. Nobody received them here or
    /// above. Those that nobody would have received
    /// anyway may be missing.
    #[must_use]
    pub fn late_emits(&self) -> u32 {
        self.run_end().map_or(0, RunEnd::late_emits)
    }

    /// Whether an event that somebody would hear comes too late. It is counted then.
    #[inline]
    pub(crate) fn is_too_late_for(&self, name: NameRef<'_>) -> bool {
        let is_too_late = self.has_run_ended();
        if is_too_late {
            self.count_late(|| self.join(name.as_str()));
        }
        is_too_late
    }

    /// Counts an event that comes to a run that has ended.
    #[cold]
    pub(crate) fn count_late(&self, path: impl FnOnce() -> String) {
        if self.run_end().is_some_and(RunEnd::count) {
            let path = path();
            log_quietly(|| tracing::warn!("`{path}` came to a run that has ended: nobody receives it there or above"));
        }
    }

    fn run_end(&self) -> Option<&RunEnd> {
        self.run_link().map(|run| &run.end)
    }
}
