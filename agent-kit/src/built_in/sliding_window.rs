//! The end of a long conversation instead of all of it: [`SlidingWindow`].

use std::fmt;
use std::sync::Arc;

use emitree_runtime::{Error, Result, RunContext};

use super::{EstimatedTokens, TokenCounter};
use emitree_agent::{AgentMiddleware, Hooks, Message, Role};

/// Shows the model only the last messages of a conversation. The history keeps all messages.
///
/// The conversation is cut where no call is separated from its results ([`History::boundaries`]), so the window may be
/// shorter than the limit. The last user message and the messages after it are always in the window, even if they
/// exceed the limit. The system prompt is not one of the messages, and stays.
///
/// ```
/// use emitree_agent_kit::built_in::SlidingWindow;
/// use emitree_agent::{Agent, AgentRun, ChatModel, ScriptedModel, Session};
///
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> emitree_runtime::Result<()> {
/// let script = ScriptedModel::new("test").text("Hello.").text("Fine.").text("Goodbye.");
/// let agent =
///     Agent::builder("friend", ChatModel::new(script.clone())?).with(SlidingWindow::messages(3)).build()?;
/// let session = Session::new();
/// for text in ["Hi.", "How are you?", "Bye."] {
///     agent.ask(text).session(&session).await?;
/// }
/// let shown: Vec<_> = script.requests()[2].messages.iter().map(|message| message.text()).collect();
/// assert_eq!(shown, ["How are you?", "Fine.", "Bye."]);
/// assert_eq!(session.history().messages().len(), 6);
/// # Ok(())
/// # }
/// ```
///
/// # Order
///
/// The hook is called at `model.context`, so the model receives messages that later hooks of this place add, beside the
/// window. Hooks of `model.state`, such as that of [`Summarize`](super::Summarize), have changed the history before.
///
/// # What it remembers
///
/// Nothing, except that [`EstimatedTokens`] remembers the last report of the provider.
///
/// # Its own events
///
/// None.
///
/// # When it fails
///
/// A limit of 0 is an error of [`build`](emitree_agent::AgentBuilder::build), or of the run to which the middleware is added.
/// A panic of a [counter](Self::counter) ends the run, and the history stays valid.
///
/// [`History::boundaries`]: emitree_agent::History::boundaries
#[derive(Clone)]
pub struct SlidingWindow {
    limit: Limit,
    counter: Arc<dyn TokenCounter>,
}

#[derive(Clone, Copy, Debug)]
enum Limit {
    Messages(usize),
    Tokens(u64),
}

impl SlidingWindow {
    fn new(limit: Limit) -> Self {
        Self { limit, counter: Arc::new(EstimatedTokens) }
    }

    /// Creates a window of at most this many messages.
    #[must_use]
    pub fn messages(at_most: usize) -> Self {
        Self::new(Limit::Messages(at_most))
    }

    /// Creates a window of messages with at most this many tokens. Only the messages of the window, and the messages
    /// directly before it, are counted.
    #[must_use]
    pub fn tokens(at_most: u64) -> Self {
        Self::new(Limit::Tokens(at_most))
    }

    /// Sets the counter for tokens, by default [`EstimatedTokens`].
    #[must_use]
    pub fn counter(mut self, counter: impl TokenCounter) -> Self {
        self.counter = Arc::new(counter);
        self
    }

    /// Returns the position of the first message of the window.
    fn start(&self, messages: &[Arc<Message>], ctx: &RunContext) -> usize {
        let fits = match self.limit {
            Limit::Messages(at_most) => boundary_from(messages, messages.len().saturating_sub(at_most)),
            Limit::Tokens(at_most) => self.start_of_tokens(messages, at_most, ctx),
        };
        // A conversation without a user message keeps at least one message with its results.
        let last_user = messages.iter().rposition(|message| message.role == Role::User);
        fits.min(last_user.or_else(|| boundaries(messages).next_back()).unwrap_or(0))
    }

    /// Counts the messages between two boundaries at a time, from the end, until the limit is exceeded.
    fn start_of_tokens(&self, messages: &[Arc<Message>], at_most: u64, ctx: &RunContext) -> usize {
        let mut start = messages.len();
        let mut left = at_most;
        for at in boundaries(messages).rev() {
            match left.checked_sub(self.counter.count(&messages[at..start], ctx)) {
                Some(rest) => (start, left) = (at, rest),
                None => break,
            }
        }
        start
    }
}

/// Returns the positions before the end at which the messages can be cut, as [`History::boundaries`] does. Earlier hooks
/// may have made the messages invalid, so they cannot be a `History`.
///
/// [`History::boundaries`]: emitree_agent::History::boundaries
fn boundaries(messages: &[Arc<Message>]) -> impl DoubleEndedIterator<Item = usize> {
    (0..messages.len()).filter(|&at| messages[at].role != Role::Tool)
}

/// Returns the first boundary at this position or after it.
fn boundary_from(messages: &[Arc<Message>], at: usize) -> usize {
    let is_boundary = |message: &Arc<Message>| message.role != Role::Tool;
    messages[at..].iter().position(is_boundary).map_or(messages.len(), |more| at + more)
}

impl AgentMiddleware for SlidingWindow {
    fn id(&self) -> &str {
        "sliding_window"
    }

    fn init(&self) -> Result<()> {
        let unit = match self.limit {
            Limit::Messages(0) => "messages",
            Limit::Tokens(0) => "tokens",
            _ => return Ok(()),
        };
        Err(Error::new(format!("`SlidingWindow::{unit}(0)` is a window without messages: allow at least 1")))
    }

    fn install(&self, hooks: &mut Hooks) -> Result<()> {
        let window = self.clone();
        hooks.on_context(move |messages, ctx| {
            let start = window.start(messages, ctx);
            messages.drain(..start);
        });
        Ok(())
    }
}

/// Shows the limit: `40 messages`.
impl fmt::Debug for SlidingWindow {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.limit {
            Limit::Messages(at_most) => write!(f, "{at_most} messages"),
            Limit::Tokens(at_most) => write!(f, "{at_most} tokens"),
        }
    }
}
