//! The runs that live below a run, or that an abort handle is linked to.
//!
//! 1. Each thread has a shard of its own: runs that begin and end on several threads below one run do not meet, and how
//!    many live there does not matter.
//! 2. Nothing is held: a place keeps a weak handle, until the run has ended.

use std::cell::Cell;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicUsize, Ordering};

use parking_lot::Mutex;
use slab::Slab;

use crate::RunContext;
use crate::context::WeakRun;

const SHARDS: usize = 8;

/// Made with the first run.
#[derive(Default)]
pub(crate) struct Below(OnceLock<Box<[Shard; SHARDS]>>);

/// On a cache line of its own.
#[derive(Default)]
#[repr(align(64))]
struct Shard(Mutex<Slab<WeakRun>>);

/// Where a run stands below another.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Place {
    shard: usize,
    key: usize,
}

impl Below {
    pub(crate) fn add(&self, run: WeakRun) -> Place {
        let shard = own_shard();
        Place { shard, key: self.0.get_or_init(Box::default)[shard].0.lock().insert(run) }
    }

    pub(crate) fn remove(&self, place: Place) {
        let Some(shards) = self.0.get() else { return };
        let removed = shards[place.shard].0.lock().try_remove(place.key);
        drop(removed);
    }

    /// The runs that are there now.
    pub(crate) fn runs(&self) -> Vec<RunContext> {
        let each = |shard: &Shard| shard.0.lock().iter().filter_map(|(_, run)| run.upgrade()).collect::<Vec<_>>();
        self.0.get().map_or_else(Vec::new, |shards| shards.iter().flat_map(each).collect())
    }
}

/// Threads take shards in turn.
fn own_shard() -> usize {
    static NEXT: AtomicUsize = AtomicUsize::new(0);
    thread_local! {
        static SHARD: Cell<Option<usize>> = const { Cell::new(None) };
    }
    SHARD.with(|shard| {
        shard.get().unwrap_or_else(|| {
            let own = NEXT.fetch_add(1, Ordering::Relaxed) % SHARDS;
            shard.set(Some(own));
            own
        })
    })
}
