//! A placeholder for the old results of tools: [`ClearToolResults`].

use std::collections::{BTreeSet, HashMap};
use std::fmt;
use std::sync::Arc;

use emitree_runtime::{Error, Result, RunContext};

use super::{EstimatedTokens, TokenCounter};
use emitree_agent::hook::AgentSpec;
use emitree_agent::{AgentMiddleware, Hooks, Message, Part, Role, ToolResult};

/// The text that the model receives in place of a result.
const CLEARED: &str = "[cleared]";

/// Shows the model `[cleared]` in place of old tool results when a conversation is long. The history keeps the results.
///
/// The newest results stay, as many as [`keep`](Self::keep) allows. Calls always stay, so the model sees what it has
/// done and may call a tool again. Results that are errors, and the results of tools in [`except`](Self::except), stay
/// too. They do not count as results that are kept.
///
/// ```
/// use emitree_agent_kit::built_in::ClearToolResults;
/// use emitree_agent::{Agent, ChatModel, ScriptedModel, tool_fn};
/// use emitree_runtime::RunContext;
/// use schemars::JsonSchema;
/// use serde::Deserialize;
/// use serde_json::json;
///
/// #[derive(Deserialize, JsonSchema)]
/// struct Page { number: u32 }
///
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> emitree_runtime::Result<()> {
/// let read = tool_fn("read", "Reads a page", |page: Page, _: RunContext| async move {
///     Ok(format!("page {} {}", page.number, "and so on ".repeat(100)))
/// });
/// let script = ScriptedModel::new("test")
///     .call("read", json!({"number": 1}))
///     .call("read", json!({"number": 2}))
///     .text("Nothing new.");
/// let agent = Agent::builder("reader", ChatModel::new(script.clone())?)
///     .tool(read)
///     .with(ClearToolResults::keep(1).over_tokens(300))
///     .build()?;
///
/// let answer = agent.ask("What is new?").await?;
/// let request = &script.requests()[2];
/// let shown: Vec<_> = request.messages.iter().flat_map(|message| message.tool_results()).collect();
/// assert_eq!(shown[0].response, "[cleared]");
/// assert!(shown[1].response.as_str().unwrap().starts_with("page 2"));
/// let kept = answer.messages[2].tool_results().next().unwrap();
/// assert!(kept.response.as_str().unwrap().starts_with("page 1"));
/// # Ok(())
/// # }
/// ```
///
/// # Order
///
/// The hook is called at `model.context`. It counts the messages that earlier hooks of this place have left: added after
/// a [`SlidingWindow`](super::SlidingWindow), it counts only the window.
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
/// More kept results than the limit has tokens, and a tool in [`except`](Self::except) that the agent does not have, are
/// errors of [`build`](emitree_agent::AgentBuilder::build), or of the run to which the middleware is added. If the agent's tools
/// may change, an unknown tool is a warning at the end of the first run
/// ([`AgentSpec::expect_tool`](emitree_agent::hook::AgentSpec::expect_tool)). A panic of a [counter](Self::counter) ends the
/// run, and the history stays valid.
#[derive(Clone)]
pub struct ClearToolResults {
    keep: usize,
    over_tokens: u64,
    except: BTreeSet<String>,
    counter: Arc<dyn TokenCounter>,
}

impl ClearToolResults {
    /// Creates the middleware. This many of the newest results stay.
    #[must_use]
    pub fn keep(results: usize) -> Self {
        Self { keep: results, over_tokens: 30_000, except: BTreeSet::new(), counter: Arc::new(EstimatedTokens) }
    }

    /// Sets the number of tokens that the messages must exceed before results are cleared, by default 30,000.
    #[must_use]
    pub const fn over_tokens(mut self, tokens: u64) -> Self {
        self.over_tokens = tokens;
        self
    }

    /// Adds tools whose results stay. The agent must have these tools.
    #[must_use]
    pub fn except<T: Into<String>>(mut self, tools: impl IntoIterator<Item = T>) -> Self {
        self.except.extend(tools.into_iter().map(Into::into));
        self
    }

    /// Sets the counter for tokens, by default [`EstimatedTokens`].
    #[must_use]
    pub fn counter(mut self, counter: impl TokenCounter) -> Self {
        self.counter = Arc::new(counter);
        self
    }

    fn clear(&self, messages: &mut [Arc<Message>], ctx: &RunContext) {
        if self.counter.count(messages, ctx) <= self.over_tokens {
            return;
        }
        let results = self.clearable(messages);
        let older = &results[..results.len().saturating_sub(self.keep)];
        for of_message in older.chunk_by(|a, b| a.0 == b.0) {
            let message = &mut messages[of_message[0].0];
            *message = Arc::new(without_results(message, of_message));
        }
    }

    /// Returns the positions of the results that may be cleared: of the message, and of the part in the message.
    fn clearable(&self, messages: &[Arc<Message>]) -> Vec<(usize, usize)> {
        let mut clearable = Vec::new();
        // The names of the tools that the last model message called, by the ids of the calls.
        let mut called = HashMap::new();
        for (at, message) in messages.iter().enumerate() {
            if message.role != Role::Tool && !self.except.is_empty() {
                called = message.tool_calls().map(|call| (call.id.as_str(), call.name.as_str())).collect();
            }
            for (part, content) in message.parts.iter().enumerate() {
                let Part::ToolCallResponse(result) = content else { continue };
                let is_excepted = called.get(result.id.as_str()).is_some_and(|name| self.except.contains(*name));
                if !result.is_error && !is_excepted {
                    clearable.push((at, part));
                }
            }
        }
        clearable
    }
}

/// Returns a copy of a message with placeholders for results. `cleared` has the positions of their parts, in order. The
/// results are not copied, because they may be large.
fn without_results(message: &Message, cleared: &[(usize, usize)]) -> Message {
    let mut cleared = cleared.iter().map(|(_, part)| *part).peekable();
    let parts = message.parts.iter().enumerate().map(|(at, part)| match part {
        Part::ToolCallResponse(result) if cleared.next_if_eq(&at).is_some() => {
            Part::ToolCallResponse(ToolResult::new(&result.id, CLEARED))
        }
        other => other.clone(),
    });
    Message::new(message.role, parts)
}

impl AgentMiddleware for ClearToolResults {
    fn id(&self) -> &str {
        "clear_tool_results"
    }

    fn init(&self) -> Result<()> {
        let Self { keep, over_tokens, .. } = self;
        if *keep as u64 > *over_tokens {
            return Err(Error::new(format!(
                "`ClearToolResults::keep({keep}).over_tokens({over_tokens})` keeps more results than the limit has \
                 tokens: a result has at least one token"
            )));
        }
        Ok(())
    }

    fn check(&self, agent: &AgentSpec) -> Result<()> {
        self.except.iter().try_for_each(|tool| agent.expect_tool(self.id(), tool))
    }

    fn install(&self, hooks: &mut Hooks) -> Result<()> {
        let this = self.clone();
        hooks.on_context(move |messages, ctx| this.clear(messages, ctx));
        Ok(())
    }
}

/// Shows the options: `keeps 3 results over 30000 tokens, and the results of {"todo"}`.
impl fmt::Debug for ClearToolResults {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "keeps {} results over {} tokens", self.keep, self.over_tokens)?;
        if self.except.is_empty() { Ok(()) } else { write!(f, ", and the results of {:?}", self.except) }
    }
}
