//! Handles that abort runs, and signals that report an abort (R7).

use std::fmt;
use std::sync::Arc;

use tokio_util::sync::CancellationToken;

use crate::RunContext;
use crate::abort::{AbortNode, Stop};
use crate::run::state::RunState;
use crate::tree::children::ChildKey;

/// A handle that aborts runs: the runs that were started with its [`signal`](Self::signal), or the run whose
/// [`abort_handle`](RunContext::abort_handle) returned it.
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
/// Clones abort the same runs. Dropping a handle does nothing.
#[derive(Clone)]
pub struct AbortHandle(AbortTarget);

#[derive(Clone)]
enum AbortTarget {
    Own(Arc<AbortNode>),
    Run(RunContext),
}

impl AbortTarget {
    fn node(&self) -> &AbortNode {
        match self {
            Self::Own(node) => node,
            Self::Run(run) => run.node(),
        }
    }
}

impl AbortHandle {
    /// Creates a handle that aborts no run yet. Pass it to [`Run::abort_on`](crate::Run::abort_on).
    #[must_use]
    pub fn new() -> Self {
        Self(AbortTarget::Own(Arc::new(AbortNode::new(RunState::open()))))
    }

    /// Aborts the runs with this reason. Returns `true` for the first abort; later calls have no effect and return
    /// `false`. If the handle was returned by [`RunContext::abort_handle`], this method also returns `false` if that
    /// run was already stopped in another way, such as by a timeout, or if its work is over.
    pub fn abort(&self, reason: impl Into<Arc<str>>) -> bool {
        self.0.node().stop(Stop::aborted(reason))
    }

    /// Returns the signal of this handle, which reports the abort.
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
        f.debug_struct("AbortHandle").field("stopped", &self.0.node().state.stopped()).finish()
    }
}

/// A signal that reports an abort and its reason. [`AbortHandle::signal`] and [`RunContext::abort_signal`] return
/// signals, and a [`CancellationToken`] can be converted into one.
#[derive(Clone)]
pub struct AbortSignal(Source);

#[derive(Clone)]
enum Source {
    Here(AbortTarget),
    Token(CancellationToken),
}

impl AbortSignal {
    /// Returns `true` if the signal's handle was aborted, its token was canceled, or its run was aborted, timed out or
    /// dropped.
    #[must_use]
    pub fn is_aborted(&self) -> bool {
        match &self.0 {
            Source::Here(target) => target.node().state.stopped().is_some(),
            Source::Token(token) => token.is_cancelled(),
        }
    }

    /// Returns `true` if the future of the signal's run, or of a run above it, was dropped: nobody has given a reason.
    #[must_use]
    pub fn is_dropped(&self) -> bool {
        matches!(&self.0, Source::Here(target) if target.node().state.stopped() == Some(&Stop::Dropped))
    }

    /// Returns the reason for the abort, or `None` if there was no abort.
    #[must_use]
    pub fn reason(&self) -> Option<Arc<str>> {
        match &self.0 {
            Source::Here(target) => target.node().state.stopped().map(Stop::reason),
            Source::Token(token) => token.is_cancelled().then(|| CANCELLED.into()),
        }
    }

    /// Waits for the abort, and returns its reason. If there is no abort, the future never completes.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future loses nothing.
    pub async fn aborted(&self) -> Arc<str> {
        match &self.0 {
            Source::Here(target) => target.node().until_stopped().await,
            Source::Token(token) => {
                token.cancelled().await;
                CANCELLED.into()
            }
        }
    }

    /// Returns a `tokio-util` token that is canceled on abort. Canceling the returned token does not affect the signal.
    #[must_use]
    pub fn to_token(&self) -> CancellationToken {
        match &self.0 {
            Source::Here(target) => target.node().token().child_token(),
            Source::Token(token) => token.child_token(),
        }
    }

    /// Makes a run follow the signal. If the signal wraps a token, returns `Err(token)`, and the caller must poll the
    /// token.
    pub(crate) fn link(self, run: &RunContext) -> Result<Link, CancellationToken> {
        match self.0 {
            Source::Here(target) => Ok(Link::new(target, run)),
            Source::Token(token) => Err(token),
        }
    }
}

pub(crate) const CANCELLED: &str = "the cancellation token was canceled";

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

/// The registration of a run with a signal. Dropping it deregisters the run.
pub(crate) struct Link {
    above: AbortTarget,
    place: ChildKey,
}

impl Link {
    fn new(above: AbortTarget, run: &RunContext) -> Self {
        let place = above.node().link(run);
        Self { above, place }
    }
}

impl Drop for Link {
    fn drop(&mut self) {
        self.above.node().unlink(self.place);
    }
}

impl RunContext {
    /// Aborts the run and all runs below it with this reason. Returns `true` if this call aborted the run: the first
    /// reason wins.
    ///
    /// The work is dropped the next time its future returns `Pending`; if it completes first, its result is discarded.
    /// The reason reaches every run below before any task is woken, and never reaches a run above. If a lifecycle event
    /// is being emitted, that emit is finished first. Once the work is over, the run cannot be aborted any more.
    ///
    /// ```
    /// use std::future::pending;
    /// use emitree_runtime::{Result, RunContext, Runnable, runnable_fn};
    ///
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() {
    /// let wait = runnable_fn("wait", |(): (), ctx: RunContext| async move {
    ///     assert!(ctx.abort("no more budget"));
    ///     assert!(!ctx.abort("too late"));
    ///     pending::<Result<()>>().await
    /// });
    /// assert_eq!(wait.run(()).await.unwrap_err().explain(), "aborted: no more budget");
    /// # }
    /// ```
    pub fn abort(&self, reason: impl Into<Arc<str>>) -> bool {
        self.node().stop(Stop::aborted(reason))
    }

    /// Returns a handle that aborts the run, for use in other tasks and threads.
    #[must_use]
    pub fn abort_handle(&self) -> AbortHandle {
        AbortHandle(AbortTarget::Run(self.clone()))
    }

    /// Returns a signal that reports when this run or a run above it is aborted, times out or is dropped.
    #[must_use]
    pub fn abort_signal(&self) -> AbortSignal {
        self.abort_handle().signal()
    }

    /// Returns `true` if the run was aborted, timed out, or dropped.
    #[must_use]
    pub fn is_aborted(&self) -> bool {
        self.node().state.stopped().is_some()
    }
}
