//! The runs that live below a run, or that an abort handle is linked to.
//!
//! 1. The first has a slot at hand. For more, each thread has a shard of its own: runs that begin and end on several
//!    threads below one run hardly meet, and how many live there does not matter.
//! 2. Nothing is held: a place keeps a weak handle, until the run has ended.

use std::cell::Cell;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use parking_lot::Mutex;
use slab::Slab;

use crate::RunContext;
use crate::context::WeakRun;

const SHARDS: usize = 8;

#[derive(Default)]
pub(crate) struct Below {
    /// Whether anything was ever added.
    is_used: AtomicBool,
    first: Mutex<Option<WeakRun>>,
    /// Made with the second run.
    more: OnceLock<Box<[Shard; SHARDS]>>,
}

/// On a cache line of its own.
#[derive(Default)]
#[repr(align(64))]
struct Shard(Mutex<Slab<WeakRun>>);

/// Where a run stands below another.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Place {
    First,
    More { shard: usize, key: usize },
}

impl Below {
    pub(crate) fn add(&self, run: WeakRun) -> Place {
        let place = self.place(run);
        self.is_used.store(true, Ordering::SeqCst);
        place
    }

    fn place(&self, run: WeakRun) -> Place {
        match self.first.try_lock() {
            Some(mut first) if first.is_none() => {
                *first = Some(run);
                Place::First
            }
            _ => {
                let shard = own_shard();
                let key = self.more.get_or_init(Box::default)[shard].0.lock().insert(run);
                Place::More { shard, key }
            }
        }
    }

    pub(crate) fn remove(&self, place: Place) {
        let removed = match (place, self.more.get()) {
            (Place::First, _) => self.first.lock().take(),
            (Place::More { shard, key }, Some(more)) => more[shard].0.lock().try_remove(key),
            (Place::More { .. }, None) => None,
        };
        drop(removed);
    }

    pub(crate) fn is_empty(&self) -> bool {
        let is_empty = |shard: &Shard| shard.0.lock().is_empty();
        if !self.is_used.load(Ordering::SeqCst) {
            return true;
        }
        self.first.lock().is_none() && self.more.get().is_none_or(|more| more.iter().all(is_empty))
    }

    /// The runs that are there now.
    pub(crate) fn runs(&self) -> Vec<RunContext> {
        let first = self.first.lock().as_ref().and_then(WeakRun::upgrade);
        let each = |shard: &Shard| shard.0.lock().iter().filter_map(|(_, run)| run.upgrade()).collect::<Vec<_>>();
        let more = self.more.get().into_iter().flat_map(|more| more.iter().flat_map(each));
        first.into_iter().chain(more).collect()
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
