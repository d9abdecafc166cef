//! The runs of a chat that are under way, by thread. Each thread has at most one.

use std::collections::HashMap;
use std::sync::Arc;

use parking_lot::Mutex;

use crate::live::Live;
use crate::step::CLOSED;

/// The runs that are under way, and those whose steps are kept.
#[derive(Debug, Default)]
pub(crate) struct Runs(Mutex<HashMap<String, Slot>>);

#[derive(Debug, Default)]
struct Slot {
    /// `true` while a request is about to begin a run.
    is_taken: bool,
    /// The last run.
    run: Option<Arc<Live>>,
}

/// The right to begin a run of a thread. Dropping it gives the right back.
#[derive(Debug)]
pub(crate) struct Turn {
    runs: Arc<Runs>,
    thread: String,
    is_used: bool,
}

impl Runs {
    /// Takes the right to begin a run, if none is under way.
    pub(crate) fn take(self: &Arc<Self>, thread: &str) -> Option<Turn> {
        let mut runs = self.0.lock();
        let slot = runs.entry(thread.to_owned()).or_default();
        if slot.is_taken || slot.run.as_ref().is_some_and(|live| !live.has_ended()) {
            return None;
        }
        slot.is_taken = true;
        drop(runs);
        Some(Turn { runs: Arc::clone(self), thread: thread.to_owned(), is_used: false })
    }

    /// Returns the run of a thread whose steps can be read.
    pub(crate) fn get(&self, thread: &str) -> Option<Arc<Live>> {
        self.0.lock().get(thread).and_then(|slot| slot.run.clone())
    }

    /// Forgets a run, unless another one has its place.
    pub(crate) fn forget(&self, thread: &str, run: &Arc<Live>) {
        let mut runs = self.0.lock();
        let slot = runs.get_mut(thread).filter(|slot| slot.run.as_ref().is_some_and(|live| Arc::ptr_eq(live, run)));
        if let Some(slot) = slot {
            slot.run = None;
            remove_empty(&mut runs, thread);
        }
    }
}

fn remove_empty(runs: &mut HashMap<String, Slot>, thread: &str) {
    if runs.get(thread).is_some_and(|slot| !slot.is_taken && slot.run.is_none()) {
        runs.remove(thread);
    }
}

impl Turn {
    /// Uses the right for a run.
    pub(crate) fn begin(mut self, live: &Arc<Live>) {
        self.is_used = true;
        let before =
            self.runs.0.lock().insert(self.thread.clone(), Slot { is_taken: false, run: Some(Arc::clone(live)) });
        drop(before);
    }
}

impl Drop for Turn {
    fn drop(&mut self) {
        if !self.is_used {
            let mut runs = self.runs.0.lock();
            runs.get_mut(&self.thread).into_iter().for_each(|slot| slot.is_taken = false);
            remove_empty(&mut runs, &self.thread);
        }
    }
}

/// The tasks of the runs hold no reference to this value, so it is dropped with the chat and its routers.
impl Drop for Runs {
    fn drop(&mut self) {
        for live in self.0.get_mut().values().filter_map(|slot| slot.run.as_ref()) {
            live.abort.abort(CLOSED);
        }
    }
}
