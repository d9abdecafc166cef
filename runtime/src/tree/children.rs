//! The children of a run: runs that were started in it. [`Children`] also lists the runs that follow an abort signal,
//! and the runs without a parent that a shutdown aborts.
//!
//! 1. The first thread that registers a child owns a slot for one child. All other children are registered in `SHARDS`
//!    shards, which are allocated when the first such child is registered. The thread selects the shard, so threads
//!    that begin and end runs below the same run rarely contend.
//! 2. A child is registered with a weak handle, until it has ended.
//! 3. A child registers while it is being made, before its weak handle can be upgraded. `poll_all` waits for such
//!    children. Each of them wakes the waiting task once it is made, or when it deregisters because it could not be
//!    made.

use std::task::{Context as TaskContext, Poll, Waker, ready};

use slab::Slab;

use crate::RunContext;
use crate::context::WeakRun;
use crate::sync::{AtomicUsize, AtomicWaker, Mutex, OnceLock, Ordering, SHARDS, fence, thread};

#[derive(Default)]
pub(crate) struct Children {
    /// The number of the thread that owns the slot, or 0 if no child has been registered yet.
    owner: AtomicUsize,
    first: Mutex<Option<WeakRun>>,
    /// Allocated when the first child is registered outside the slot. From then on, no child is put into the slot.
    more: OnceLock<Box<[Shard; SHARDS]>>,
    /// The task that waits for a child to be made. No lock is held while the task is woken, because the waker may poll
    /// the task immediately.
    waiting: AtomicWaker,
}

/// A shard on a cache line of its own.
#[derive(Default)]
#[repr(align(64))]
struct Shard(Mutex<Slab<WeakRun>>);

/// The key under which a child is registered.
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
        // Either the parent, once closed, sees `more`, or the child is refused, because its next check sees that the
        // parent has closed.
        fence(Ordering::SeqCst);
        ChildKey::More { shard, key: more[shard].0.lock().insert(run) }
    }

    /// Returns the owner of the slot, after setting it to this thread if there was none. The accesses are sequentially
    /// consistent: either a parent that closes and calls `is_empty` sees the child, or the child sees that the parent
    /// has closed.
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

    /// Wakes the task that waits for a child to be made.
    pub(crate) fn wake(&self) {
        self.waiting.wake();
    }

    /// Returns the current children, except children that are still being made.
    pub(crate) fn runs(&self) -> Vec<RunContext> {
        self.places().into_iter().flatten().collect()
    }

    /// Returns the current children. A child that is still being made is missing, and sees all that the caller has
    /// written before, once it has arrived ([`Parent::arrive`](crate::tree::parent::Parent::arrive)).
    pub(crate) fn arrived(&self) -> Vec<RunContext> {
        // A child registers, and has a fence when it arrives: either this call finds it, or it sees what was written.
        fence(Ordering::SeqCst);
        self.runs()
    }

    /// Returns the children, once all of them are made. Only one task may wait at a time.
    pub(crate) fn poll_all(&self, cx: &TaskContext<'_>) -> Poll<Vec<RunContext>> {
        let runs = match self.made() {
            Some(runs) => runs,
            None => ready!(self.wait(cx.waker())),
        };
        // Drop the waker, because it may keep alive the run that this list belongs to.
        drop(self.waiting.take());
        Poll::Ready(runs)
    }

    fn wait(&self, waker: &Waker) -> Poll<Vec<RunContext>> {
        self.waiting.register(waker);
        // Either this call sees that the child is made, or the child sees that its parent is settled, and wakes the
        // waiting task.
        fence(Ordering::SeqCst);
        self.made().map_or(Poll::Pending, Poll::Ready)
    }

    /// Returns the children, or `None` while a child is still being made.
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
