//! The replacement of older messages of a history: the values at `context.compact`.

use std::sync::{Arc, OnceLock};

use emitree_runtime::{Error, Result, RunContext};

use crate::agent::middleware::Installed;
use crate::agent::turn::LoopState;
use crate::place::action::Messages;
use crate::{History, Message};

/// A replacement of the older messages of a history, which the hooks of
/// [`ContextCompact`](crate::Place::ContextCompact) have let pass.
///
/// A middleware that compacts the history begins it in a hook of [`on_state`](crate::Hooks::on_state), as
/// `Summarize` of `emitree-agent-kit` does:
///
/// ```
/// use std::sync::Arc;
///
/// use emitree_agent::hook::Compaction;
/// use emitree_agent::{Agent, ChatModel, Message, ScriptedModel, hooks_fn};
///
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> emitree_runtime::Result<()> {
/// let forgets = hooks_fn("forgets", |hooks| {
///     hooks.on_state_async(|history, ctx| {
///         Box::pin(async move {
///             let boundary = history.boundaries().rfind(|at| at + 2 <= history.messages().len());
///             let Some(compaction) = Compaction::begin(history, boundary.unwrap_or(0), ctx).await? else {
///                 return Ok(());
///             };
///             let note = format!("({} older messages)", compaction.messages().len());
///             compaction.replace_with([Arc::new(Message::user(note))]).await
///         })
///     });
/// });
/// let script = ScriptedModel::new("test").text("Yes.");
/// let agent = Agent::builder("friend", ChatModel::new(script.clone())?).with(forgets).build()?;
/// agent.ask(["One.", "Two.", "Three."].map(Message::user).to_vec()).await?;
/// let shown: Vec<_> = script.requests()[0].messages.iter().map(|message| message.text()).collect();
/// assert_eq!(shown, ["(1 older messages)", "Two.", "Three."]);
/// # Ok(())
/// # }
/// ```
///
/// 1. [`begin`](Self::begin) calls the hooks of [`on_compact`](crate::Hooks::on_compact), which may change the messages
///    or skip the compaction.
/// 2. The middleware makes the new messages from [`messages`](Self::messages).
/// 3. [`replace_with`](Self::replace_with) changes the history, and calls the hooks of
///    [`on_compacted`](crate::Hooks::on_compacted).
///
/// Dropping it leaves the history unchanged.
#[derive(Debug)]
#[must_use = "the history changes only in `replace_with`"]
pub struct Compaction<'a> {
    history: &'a mut History,
    end: usize,
    messages: Messages,
    state: Arc<LoopState>,
    ctx: &'a RunContext,
}

/// A compaction that has changed the history: the value of [`on_compacted`](crate::Hooks::on_compacted).
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Compacted {
    /// The messages that were replaced, as they were in the history.
    pub before: Messages,
    /// The messages in their place.
    pub after: Messages,
}

impl Compacted {
    /// Makes the value for a test of hooks ([`HookTest::compacted`](crate::HookTest::compacted)).
    #[must_use]
    pub const fn new(before: Messages, after: Messages) -> Self {
        Self { before, after }
    }
}

impl<'a> Compaction<'a> {
    /// Calls the hooks of [`on_compact`](crate::Hooks::on_compact) with the first `end` messages. Returns `None` if a
    /// hook halts, or if `end` is 0.
    ///
    /// # Errors
    ///
    /// Returns the error of a hook that fails, an error if `end` is none of the [`boundaries`](History::boundaries), and
    /// an error outside of agents.
    pub async fn begin(history: &'a mut History, end: usize, ctx: &'a RunContext) -> Result<Option<Self>> {
        let state = ctx.extension::<LoopState>().ok_or_else(|| {
            Error::new(format!(
                "a compaction needs the hooks of an agent, but the run `{}` is neither an agent's run nor nested in one",
                ctx.name()
            ))
        })?;
        if !history.is_boundary(end) {
            return Err(Error::new(format!(
                "a history of {} messages cannot be cut at {end}: `boundaries` returns the positions where it can",
                history.messages().len()
            )));
        }
        if end == 0 {
            return Ok(None);
        }
        let mut messages = history.messages()[..end].to_vec();
        for installed in state.compacting.all() {
            let passed = installed.hooks.chains.compact.apply(&mut messages, ctx).await;
            if is_skipped(&passed) {
                return Ok(None);
            }
            passed?;
        }
        Ok(Some(Self { history, end, messages, state, ctx }))
    }

    /// Returns the messages that are about to be replaced, as the hooks left them.
    #[must_use]
    pub fn messages(&self) -> &[Arc<Message>] {
        &self.messages
    }

    /// Puts other messages in the place of the messages, and calls the hooks of
    /// [`on_compacted`](crate::Hooks::on_compacted).
    ///
    /// # Errors
    ///
    /// Returns an error if the messages are not valid before the rest of the history, and the error of a hook that
    /// fails. If a hook of [`on_state`](crate::Hooks::on_state) returns it, the session keeps the history as it was.
    pub async fn replace_with(self, messages: impl IntoIterator<Item = Arc<Message>> + Send) -> Result<()> {
        let after: Messages = messages.into_iter().collect();
        let before = self.history.messages()[..self.end].to_vec();
        self.history.replace_first(self.end, after.iter().cloned())?;
        let mut compacted = Compacted { before, after };
        for installed in self.state.compacting.all() {
            installed.hooks.chains.compacted.apply(&mut compacted, self.ctx).await?;
        }
        Ok(())
    }
}

/// Returns `true` if a hook of `context.compact` has skipped the compaction.
pub(crate) fn is_skipped<T>(passed: &Result<T>) -> bool {
    passed.as_ref().is_err_and(Error::is_halted)
}

/// The middlewares of an agent's run that have hooks at `context.compact`.
#[derive(Debug, Default)]
pub(crate) struct Compacting(OnceLock<Vec<Arc<Installed>>>);

impl Compacting {
    /// Sets the middlewares of the run, in their order. Each attempt has the same middlewares.
    pub(crate) fn begin(&self, installed: &[Arc<Installed>]) {
        self.0.get_or_init(|| {
            let has_hooks = |it: &&Arc<Installed>| it.hooks.chains.is_used(crate::Place::ContextCompact);
            installed.iter().filter(has_hooks).cloned().collect()
        });
    }

    fn all(&self) -> &[Arc<Installed>] {
        self.0.get().map_or(&[], Vec::as_slice)
    }
}
