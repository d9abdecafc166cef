//! Stopping what is under way, with a reason (R7).
//!
//! 1. The first reason wins, from whatever thread ([`Fate`]).
//! 2. A stop falls: whoever is stopped stops all that is below it, and nothing above it.
//! 3. A run looks at its own fate only. One that begins looks at its parent's after it has taken its place below it,
//!    and a stop looks at what is below after it has been written: so neither misses the other.

use std::fmt;
use std::sync::atomic::{Ordering, fence};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use event_listener::Event;
use futures_util::task::AtomicWaker;
use tokio_util::sync::CancellationToken;

use crate::below::{Below, Place};
use crate::fate::Fate;
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
pub(crate) struct Node {
    fate: Fate<Stop>,
    /// Of the task that polls the run's work.
    waker: AtomicWaker,
    /// The runs that were started in it: they are stopped with it, and end before it (R13).
    below: Below,
    /// Whoever else waits for the stop.
    audience: OnceLock<Box<Audience>>,
}

#[derive(Default)]
struct Audience {
    told: Event,
    token: CancellationToken,
    /// The runs that were given its signal: they are stopped with it, and have ends of their own.
    linked: Below,
}

impl Default for Node {
    fn default() -> Self {
        let (below, audience) = (Below::default(), OnceLock::new());
        Self { fate: Fate::open(), waker: AtomicWaker::new(), below, audience }
    }
}

impl Node {
    #[inline]
    pub(crate) fn stopped(&self) -> Option<&Stop> {
        self.fate.stopped()
    }

    pub(crate) const fn fate(&self) -> &Fate<Stop> {
        &self.fate
    }

    pub(crate) fn is_closed(&self) -> bool {
        self.fate.is_closed()
    }

    pub(crate) fn end(&self) {
        self.fate.end();
    }

    pub(crate) fn has_ended(&self) -> bool {
        self.fate.has_ended()
    }

    pub(crate) const fn waker(&self) -> &AtomicWaker {
        &self.waker
    }

    pub(crate) const fn below(&self) -> &Below {
        &self.below
    }

    /// Stops it and all that is below; tells whether this was what stopped it.
    pub(crate) fn stop(&self, stop: Stop) -> bool {
        let fallen = stop.fallen();
        let stopped = self.stop_here(stop);
        if stopped {
            self.fall(&fallen);
        }
        stopped
    }

    /// Level by level and not by recursion: runs may be nested deep.
    fn fall(&self, stop: &Stop) {
        let mut runs: Vec<_> = self.followers().collect();
        while let Some(run) = runs.pop() {
            if run.node().stop_here(stop.clone()) {
                runs.extend(run.node().followers());
            }
        }
    }

    fn followers(&self) -> impl Iterator<Item = RunContext> {
        let linked = self.audience.get().map(|audience| audience.linked.runs());
        self.below.runs().into_iter().chain(linked.into_iter().flatten())
    }

    /// Passes on a stop of what it stands below, if that has been stopped already.
    pub(crate) fn follow(&self, above: &Self) {
        if let Some(stop) = above.stopped() {
            self.stop(stop.fallen());
        }
    }

    fn stop_here(&self, stop: Stop) -> bool {
        let stopped = self.fate.stop(stop);
        if stopped {
            self.tell();
        }
        stopped
    }

    fn tell(&self) {
        self.waker.wake();
        // Who comes later looks before it waits.
        fence(Ordering::SeqCst);
        if let Some(audience) = self.audience.get() {
            audience.told.notify(usize::MAX);
            audience.token.cancel();
        }
    }

    fn audience(&self) -> &Audience {
        let audience = self.audience.get_or_init(Box::default);
        fence(Ordering::SeqCst);
        audience
    }

    fn token(&self) -> &CancellationToken {
        let token = &self.audience().token;
        if self.stopped().is_some() {
            token.cancel();
        }
        token
    }

    async fn until_stopped(&self) -> Arc<str> {
        loop {
            let told = self.audience().told.listen();
            match self.stopped() {
                Some(stop) => return stop.reason(),
                None => told.await,
            }
        }
    }
}

/// Aborts runs: those that were started with its [`signal`](Self::signal), or the one that it was taken from.
///
/// ```
/// use emitree_runtime::{AbortHandle, RunContext, Runnable, runnable_fn};
///
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() {
/// let forever = runnable_fn("forever", |(): (), _: RunContext| std::future::pending::<emitree_runtime::Result<()>>());
/// let handle = AbortHandle::new();
/// let run = forever.run(()).abort_on(&handle);
///
/// handle.abort("the user has left");
/// let error = run.await.unwrap_err();
/// assert_eq!(error.explain(), "aborted: the user has left");
/// # }
/// ```
///
/// Clones are the same handle; dropping it does nothing.
#[derive(Clone)]
pub struct AbortHandle(Target);

#[derive(Clone)]
enum Target {
    Own(Arc<Node>),
    Run(RunContext),
}

impl Target {
    fn node(&self) -> &Node {
        match self {
            Self::Own(node) => node,
            Self::Run(run) => run.node(),
        }
    }
}

impl AbortHandle {
    /// A handle of nothing yet: give its signal to [`Run::abort_on`](crate::Run::abort_on).
    #[must_use]
    pub fn new() -> Self {
        Self(Target::Own(Arc::default()))
    }

    /// Aborts, for a reason; tells whether this was what did it. The first reason wins.
    pub fn abort(&self, reason: impl Into<Arc<str>>) -> bool {
        self.0.node().stop(Stop::aborted(reason))
    }

    /// What tells that it was aborted.
    #[must_use]
    pub fn signal(&self) -> AbortSignal {
        AbortSignal(Source::Here(self.0.clone()))
    }
}

impl Default for AbortHandle {
    fn default() -> Self {
        Self::new()
    }
}

impl fmt::Debug for AbortHandle {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("AbortHandle").field("stopped", &self.0.node().stopped()).finish()
    }
}

/// Tells that something was aborted, and why. Made by [`AbortHandle::signal`], [`RunContext::abort_signal`], or of a
/// [`CancellationToken`].
#[derive(Clone)]
pub struct AbortSignal(Source);

#[derive(Clone)]
enum Source {
    Here(Target),
    Token(CancellationToken),
}

impl AbortSignal {
    /// Whether it was aborted.
    #[must_use]
    pub fn is_aborted(&self) -> bool {
        match &self.0 {
            Source::Here(target) => target.node().stopped().is_some(),
            Source::Token(token) => token.is_cancelled(),
        }
    }

    /// Why it was aborted, if it was.
    #[must_use]
    pub fn reason(&self) -> Option<Arc<str>> {
        match &self.0 {
            Source::Here(target) => target.node().stopped().map(Stop::reason),
            Source::Token(token) => token.is_cancelled().then(|| CANCELLED.into()),
        }
    }

    /// Waits until it is aborted; gives the reason. If it is never aborted, it waits for ever.
    ///
    /// # Cancel safety
    ///
    /// Nothing is lost if the future is dropped.
    pub async fn aborted(&self) -> Arc<str> {
        match &self.0 {
            Source::Here(target) => target.node().until_stopped().await,
            Source::Token(token) => {
                token.cancelled().await;
                CANCELLED.into()
            }
        }
    }

    /// The same as a token of tokio-util, which is cancelled when this is aborted. Cancelling the token aborts nothing.
    #[must_use]
    pub fn to_token(&self) -> CancellationToken {
        match &self.0 {
            Source::Here(target) => target.node().token().child_token(),
            Source::Token(token) => token.child_token(),
        }
    }

    /// Puts a run below it; or gives the token that the run has to look at itself.
    pub(crate) fn link(self, run: &RunContext) -> Result<Link, CancellationToken> {
        match self.0 {
            Source::Here(target) => Ok(Link::new(target, run)),
            Source::Token(token) => Err(token),
        }
    }
}

pub(crate) const CANCELLED: &str = "the cancellation token was cancelled";

impl From<&AbortHandle> for AbortSignal {
    fn from(handle: &AbortHandle) -> Self {
        handle.signal()
    }
}

impl From<&Self> for AbortSignal {
    fn from(signal: &Self) -> Self {
        signal.clone()
    }
}

impl From<CancellationToken> for AbortSignal {
    fn from(token: CancellationToken) -> Self {
        Self(Source::Token(token))
    }
}

impl From<&CancellationToken> for AbortSignal {
    fn from(token: &CancellationToken) -> Self {
        token.clone().into()
    }
}

impl fmt::Debug for AbortSignal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("AbortSignal").field("reason", &self.reason()).finish()
    }
}

/// A run's place at a signal; dropping it gives the place up.
pub(crate) struct Link {
    above: Target,
    place: Place,
}

impl Link {
    fn new(above: Target, run: &RunContext) -> Self {
        let place = above.node().audience().linked.add(run.downgrade());
        run.node().follow(above.node());
        Self { above, place }
    }
}

impl Drop for Link {
    fn drop(&mut self) {
        if let Some(audience) = self.above.node().audience.get() {
            audience.linked.remove(self.place);
        }
    }
}

impl RunContext {
    /// Aborts the run and all that is below it, for a reason; tells whether this was what did it.
    ///
    /// The first reason wins. The work stops at its next await: it is dropped, and what it returns instead is not looked
    /// at. Once the work is over, nothing aborts the run.
    pub fn abort(&self, reason: impl Into<Arc<str>>) -> bool {
        self.node().stop(Stop::aborted(reason))
    }

    /// What aborts the run from elsewhere.
    #[must_use]
    pub fn abort_handle(&self) -> AbortHandle {
        AbortHandle(Target::Run(self.clone()))
    }

    /// What tells that the run was aborted: by whom it may, by a time-out, by what is above it, or by being dropped.
    #[must_use]
    pub fn abort_signal(&self) -> AbortSignal {
        self.abort_handle().signal()
    }

    /// Whether the run was aborted.
    #[must_use]
    pub fn is_aborted(&self) -> bool {
        self.node().stopped().is_some()
    }
}
