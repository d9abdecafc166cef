//! Stops runs, with a reason (R7).
//!
//! 1. The first reason wins, on any thread ([`RunState`]).
//! 2. A stop reaches all runs below a run, and none above it, before any task is woken ([`Stops`]).
//! 3. A run checks the state of its parent only once, when it begins. It registers with the parent before this check,
//!    and a stop is written before the children are looked up. So either the new run sees the stop, or the stop finds
//!    the run.

pub(crate) mod fall;
pub(crate) mod handle;
pub(crate) mod watch;

use std::sync::atomic::{AtomicBool, Ordering, fence};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use event_listener::Event;
use futures_util::task::AtomicWaker;
use tokio_util::sync::CancellationToken;

use crate::abort::fall::{Stoppable, Stops};
use crate::run::panic::{discard, isolated};
use crate::run::state::RunState;
use crate::sync::Mutex;
use crate::tree::children::{ChildKey, Children};
use crate::{Error, ErrorKind, RunContext};

/// The reason for a stop.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Stop {
    Aborted(Arc<str>),
    TimedOut(Duration),
    Dropped,
}

impl Stop {
    pub(crate) fn aborted(reason: impl Into<Arc<str>>) -> Self {
        Self::Aborted(reason.into())
    }

    /// Returns the reason that is written to the runs below. If a run timed out, the runs below it are aborted.
    fn fallen(&self) -> Self {
        match self {
            Self::TimedOut(_) => Self::Aborted(format!("the run above {}", self.reason()).into()),
            Self::Aborted(_) | Self::Dropped => self.clone(),
        }
    }

    pub(crate) fn reason(&self) -> Arc<str> {
        match self {
            Self::Aborted(reason) => Arc::clone(reason),
            Self::TimedOut(after) => format!("timed out after {after:?}").into(),
            Self::Dropped => "the run's future was dropped".into(),
        }
    }

    pub(crate) fn error(&self) -> Error {
        let kind = match self {
            Self::Aborted(_) => ErrorKind::Aborted,
            Self::TimedOut(_) => ErrorKind::TimedOut,
            Self::Dropped => ErrorKind::Dropped,
        };
        Error::of_kind(kind, &*self.reason())
    }
}

/// The part of a run or an abort handle that a stop changes: the state, the runs to stop with it, and the tasks to
/// wake.
pub(crate) struct AbortNode {
    pub(crate) state: RunState<Stop>,
    /// The waker of the task that polls the run's work.
    pub(crate) waker: AtomicWaker,
    /// The children, which are stopped with the run and end before it (R13).
    pub(crate) below: Children,
    /// Everything else that waits for a stop. Allocated when the first waiter registers.
    waiters: OnceLock<Box<Waiters>>,
}

#[derive(Default)]
struct Waiters {
    /// Set after the first fence of `AbortNode::waiters`. With the fence in `wake`, either the stop sees the waiters,
    /// or the waiters see the stop. Later calls need no fence.
    is_seen: AtomicBool,
    stopped: Event,
    token: CancellationToken,
    /// The runs that follow the signal of this node: they are stopped with the node, but end independently of it.
    linked: Children,
}

/// The lock under which all stops of the process are written.
static STOPS: Stops = Stops::new(Mutex::new(()));

impl Stoppable for RunContext {
    type Stop = Stop;

    fn state(&self) -> &RunState<Stop> {
        &self.node().state
    }

    fn followers(&self) -> Vec<Self> {
        self.node().followers()
    }
}

impl AbortNode {
    pub(crate) fn new(state: RunState<Stop>) -> Self {
        Self { state, waker: AtomicWaker::new(), below: Children::default(), waiters: OnceLock::new() }
    }

    /// Stops the run and all runs below, and then wakes their tasks. Returns `true` if this call stopped the run.
    pub(crate) fn stop(&self, stop: Stop) -> bool {
        // Skip the lock if the run was already stopped or settled: a run is often aborted first and then dropped.
        if !self.state.is_open() {
            return false;
        }
        let fallen = stop.fallen();
        let first = || self.state.stop(stop).then(|| self.followers());
        let Some(reached) = STOPS.stop(&fallen, first) else { return false };
        self.wake();
        reached.iter().for_each(|run| run.node().wake());
        // The last handle of a run drops the run's values. Their drops are user code and may panic.
        reached.into_iter().for_each(discard);
        true
    }

    fn followers(&self) -> Vec<RunContext> {
        let mut followers = self.below.runs();
        if let Some(waiters) = self.waiters.get() {
            followers.extend(waiters.linked.runs());
        }
        followers
    }

    /// Stops the run if `above`, which is its parent or a signal that it follows, has already been stopped.
    pub(crate) fn follow(&self, above: &Self) {
        if let Some(stop) = above.state.stopped() {
            self.stop(stop.fallen());
        }
    }

    /// Makes a run follow this node: a stop of the node stops the run.
    pub(crate) fn link(&self, run: &RunContext) -> ChildKey {
        // Register before the check, so that either the stop finds the run or the run finds the stop (invariant 3).
        let place = self.waiters().linked.add(run.downgrade());
        run.node().follow(self);
        place
    }

    pub(crate) fn unlink(&self, place: ChildKey) {
        if let Some(waiters) = self.waiters.get() {
            waiters.linked.remove(place);
        }
    }

    /// Wakes the run's task and all waiters, if the run was stopped.
    fn wake(&self) {
        if self.state.stopped().is_none() {
            return;
        }
        isolated(|| self.waker.wake());
        // A waiter registers, and then checks the state: either this call sees the waiter, or the waiter sees the stop.
        fence(Ordering::SeqCst);
        if let Some(waiters) = self.waiters.get() {
            isolated(|| {
                waiters.stopped.notify(usize::MAX);
                waiters.token.cancel();
            });
        }
    }

    fn waiters(&self) -> &Waiters {
        let waiters = self.waiters.get_or_init(Box::default);
        if !waiters.is_seen.load(Ordering::Acquire) {
            fence(Ordering::SeqCst);
            waiters.is_seen.store(true, Ordering::Release);
        }
        waiters
    }

    pub(crate) fn token(&self) -> &CancellationToken {
        let token = &self.waiters().token;
        if self.state.stopped().is_some() {
            token.cancel();
        }
        token
    }

    pub(crate) async fn until_stopped(&self) -> Arc<str> {
        loop {
            // Listen before the check, so that a stop in between is not missed.
            let stopped = self.waiters().stopped.listen();
            match self.state.stopped() {
                Some(stop) => return stop.reason(),
                None => stopped.await,
            }
        }
    }
}
