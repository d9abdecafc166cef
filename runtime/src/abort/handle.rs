//! What aborts runs from elsewhere, and what tells that they were aborted (R7).

use std::fmt;
use std::sync::Arc;

use tokio_util::sync::CancellationToken;

use crate::RunContext;
use crate::abort::{AbortNode, Stop};
use crate::run::state::RunState;
use crate::tree::children::ChildKey;

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
    Own(Arc<AbortNode>),
    Run(RunContext),
}

impl Target {
    fn node(&self) -> &AbortNode {
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
        Self(Target::Own(Arc::new(AbortNode::new(RunState::open()))))
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
        f.debug_struct("AbortHandle").field("stopped", &self.0.node().state.stopped()).finish()
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
            Source::Here(target) => target.node().state.stopped().is_some(),
            Source::Token(token) => token.is_cancelled(),
        }
    }

    /// Why it was aborted, if it was.
    #[must_use]
    pub fn reason(&self) -> Option<Arc<str>> {
        match &self.0 {
            Source::Here(target) => target.node().state.stopped().map(Stop::reason),
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
    place: ChildKey,
}

impl Link {
    fn new(above: Target, run: &RunContext) -> Self {
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
    /// Aborts the run and all that is below it, for a reason; tells whether this was what did it.
    ///
    /// The first reason wins. The work stops at its next await: it is dropped, and what it returns instead is not looked
    /// at. Once the work is over, nothing aborts the run. An event that is being told, `start` too, is told to its end before.
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
        self.node().state.stopped().is_some()
    }
}
