//! Emitters whose listeners cannot have received an event, because nobody else had a handle to the emitter: probably,
//! the events were emitted on another emitter with the same name.

use parking_lot::Mutex;
use rustc_hash::FxHashSet;

use crate::emitter::Node;
use crate::panic::log_quietly;

/// The maximum number of names that are remembered. After that, nothing is warned of any more, so that a program that
/// makes new names for ever neither fills its log nor its memory.
const MAX_WARNINGS: usize = 1_000;

impl Node {
    /// Warns if the emitter is dropped with listeners, although no event ever reached it, and nothing was ever made below
    /// it. The emitter of a run or of an instance is not warned of, because a run may emit nothing, and an instance may
    /// have no runs.
    pub(super) fn warn_if_unreached(&self) {
        let Some(registry) = self.registry.get() else { return };
        if self.run.is_some() || self.creator.is_some() || self.has_below() || registry.is_reached() {
            return;
        }
        let listeners = registry.listener_count();
        if listeners == 0 || !is_first(self.namespace_hash) {
            return;
        }
        let above = self.parent.as_ref();
        let namespace = match &self.namespace {
            Some(namespace) => Some(namespace.joined(above)),
            None => above.and_then(|above| above.shared_namespace()),
        };
        let name = match namespace {
            Some(namespace) => format!("the emitter `{namespace}`"),
            None => "an emitter without a name".to_owned(),
        };
        log_quietly(|| {
            tracing::warn!(
                "{name} was dropped with {listeners} listeners, and no event has reached it: each call of `child` or \
                 `new` makes another emitter, also for the same name; keep one, and write `emitter.clone()` where another \
                 handle is needed"
            );
        });
    }
}

/// Returns `true` for the first emitter with a name.
fn is_first(namespace_hash: u64) -> bool {
    static WARNED: Mutex<Option<FxHashSet<u64>>> = Mutex::new(None);
    let mut warned = WARNED.lock();
    let warned = warned.get_or_insert_default();
    warned.len() < MAX_WARNINGS && warned.insert(namespace_hash)
}
