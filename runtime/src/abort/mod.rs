//! Stopping what is under way, with a reason (R7).
//!
//! 1. The first reason wins, from whatever thread ([`RunState`]).
//! 2. A stop falls: whoever is stopped stops all that is below it, and nothing above it; all of them before anybody is
//!    woken ([`Stops`]).
//! 3. A run looks at its own state only. One that begins looks at its parent's after it has taken its place below it,
//!    and a stop looks at what is below after it has been written: so neither misses the other.

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

/// Why something stops.
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

    /// What it is for the runs below: that one above took too long is no time-out of theirs.
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

/// Something that can be stopped, with what is below it.
pub(crate) struct AbortNode {
    pub(crate) state: RunState<Stop>,
    /// Of the task that polls the run's work.
    pub(crate) waker: AtomicWaker,
    /// The runs that were started in it: they are stopped with it, and end before it (R13).
    pub(crate) below: Children,
    /// Whoever else waits for the stop.
    waiters: OnceLock<Box<Waiters>>,
}

#[derive(Default)]
struct Waiters {
    /// Whoever stops it from now on sees the waiters, or has been seen to stop it.
    is_seen: AtomicBool,
    told: Event,
    token: CancellationToken,
    /// The runs that were given its signal: they are stopped with it, and have ends of their own.
    linked: Children,
}

/// One order of all stops of the process.
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

    /// Stops it and all that is below, and then wakes them; tells whether this was what stopped it.
    pub(crate) fn stop(&self, stop: Stop) -> bool {
        // Mostly a run is stopped once and then dropped: no lock for that.
        if !self.state.is_open() {
            return false;
        }
        let fallen = stop.fallen();
        let first = || self.state.stop(stop).then(|| self.followers());
        let Some(reached) = STOPS.stop(&fallen, first) else { return false };
        self.tell();
        reached.iter().for_each(|run| run.node().tell());
        // With the last handle of a run go its values, which is user code.
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

    /// Passes on a stop of what it stands below, if that has been stopped already.
    pub(crate) fn follow(&self, above: &Self) {
        if let Some(stop) = above.state.stopped() {
            self.stop(stop.fallen());
        }
    }

    /// Has a run stop with it, which has an end of its own.
    pub(crate) fn link(&self, run: &RunContext) -> ChildKey {
        let place = self.waiters().linked.add(run.downgrade());
        run.node().follow(self);
        place
    }

    pub(crate) fn unlink(&self, place: ChildKey) {
        if let Some(waiters) = self.waiters.get() {
            waiters.linked.remove(place);
        }
    }

    /// Wakes whoever waits for the stop, if it was stopped.
    fn tell(&self) {
        if self.state.stopped().is_none() {
            return;
        }
        isolated(|| self.waker.wake());
        // Who comes later looks before it waits.
        fence(Ordering::SeqCst);
        if let Some(waiters) = self.waiters.get() {
            isolated(|| {
                waiters.told.notify(usize::MAX);
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
            let told = self.waiters().told.listen();
            match self.state.stopped() {
                Some(stop) => return stop.reason(),
                None => told.await,
            }
        }
    }
}
