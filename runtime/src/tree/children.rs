//! The runs that were started in a run, or that have the signal of something.
//!
//! 1. The first thread that comes has a slot at hand, for one run. Where there are more, or were, each thread has a shard of
//!    its own: runs that begin and end on several threads below one run do not meet, not even by writing beside what
//!    others read, and how many live there does not matter.
//! 2. Nothing is held: a place keeps a weak handle, until the run has ended.
//! 3. A run takes its place while it is made, and its handle leads to nothing until it is. Who may miss none waits for
//!    those: each tells when it is made, or when it gives its place up because it could not be.

use std::task::{Context as TaskContext, Poll, Waker, ready};

use slab::Slab;

use crate::RunContext;
use crate::context::WeakRun;
use crate::sync::{AtomicUsize, AtomicWaker, Mutex, OnceLock, Ordering, SHARDS, fence, thread};

#[derive(Default)]
pub(crate) struct Children {
    /// The thread that uses the slot: the first that came. 0 before.
    owner: AtomicUsize,
    first: Mutex<Option<WeakRun>>,
    /// Made with the first run that is not in the slot; then no other run takes it.
    more: OnceLock<Box<[Shard; SHARDS]>>,
    /// Who waits for a run to be made. Woken under no lock: it may go on at once.
    waiting: AtomicWaker,
}

/// On a cache line of its own.
#[derive(Default)]
#[repr(align(64))]
struct Shard(Mutex<Slab<WeakRun>>);

/// Where a run stands below another.
#[derive(Clone, Copy, Debug)]
pub(crate) enum ChildKey {
    First,
    More { shard: usize, key: usize },
}

impl Children {
    pub(crate) fn add(&self, run: WeakRun) -> ChildKey {
        let thread = thread();
        if self.owner(thread) == thread && self.more.get().is_none() {
            let mut first = self.first.lock();
            if first.is_none() {
                *first = Some(run);
                return ChildKey::First;
            }
        }
        let shard = thread % SHARDS;
        let more = self.more.get_or_init(Box::default);
        // Who does not see `more` has been seen to close: who adds looks for that next.
        fence(Ordering::SeqCst);
        ChildKey::More { shard, key: more[shard].0.lock().insert(run) }
    }

    /// All orders are the strictest, so that `is_empty` and who adds see each other (see `state`).
    fn owner(&self, thread: usize) -> usize {
        match self.owner.load(Ordering::SeqCst) {
            0 => self
                .owner
                .compare_exchange(0, thread, Ordering::SeqCst, Ordering::SeqCst)
                .map_or_else(|it| it, |_| thread),
            owner => owner,
        }
    }

    pub(crate) fn remove(&self, place: ChildKey) {
        let removed = match (place, self.more.get()) {
            (ChildKey::First, _) => self.first.lock().take(),
            (ChildKey::More { shard, key }, Some(more)) => more[shard].0.lock().try_remove(key),
            (ChildKey::More { .. }, None) => None,
        };
        drop(removed);
    }

    pub(crate) fn is_empty(&self) -> bool {
        let is_empty = |shard: &Shard| shard.0.lock().is_empty();
        if self.owner.load(Ordering::SeqCst) == 0 {
            return true;
        }
        fence(Ordering::SeqCst);
        self.first.lock().is_none() && self.more.get().is_none_or(|more| more.iter().all(is_empty))
    }

    /// A run has been made, or was not, below one whose work is over.
    pub(crate) fn tell(&self) {
        self.waiting.wake();
    }

    /// The runs that are there now, but for those that are still made.
    pub(crate) fn runs(&self) -> Vec<RunContext> {
        self.places().into_iter().flatten().collect()
    }

    /// The runs that are there, once all of them are made. One waits at a time.
    pub(crate) fn poll_all(&self, cx: &TaskContext<'_>) -> Poll<Vec<RunContext>> {
        let runs = match self.made() {
            Some(runs) => runs,
            None => ready!(self.wait(cx.waker())),
        };
        // It may hold the run that this belongs to.
        drop(self.waiting.take());
        Poll::Ready(runs)
    }

    fn wait(&self, waker: &Waker) -> Poll<Vec<RunContext>> {
        self.waiting.register(waker);
        // Either this sees that the run is made, or who made it sees that the one above is settled.
        fence(Ordering::SeqCst);
        self.made().map_or(Poll::Pending, Poll::Ready)
    }

    /// None while one is still made.
    fn made(&self) -> Option<Vec<RunContext>> {
        self.places().into_iter().collect()
    }

    fn places(&self) -> Vec<Option<RunContext>> {
        let first = self.first.lock().as_ref().map(WeakRun::upgrade);
        let each = |shard: &Shard| shard.0.lock().iter().map(|(_, run)| run.upgrade()).collect::<Vec<_>>();
        let more = self.more.get().into_iter().flat_map(|more| more.iter().flat_map(each));
        first.into_iter().chain(more).collect()
    }
}
