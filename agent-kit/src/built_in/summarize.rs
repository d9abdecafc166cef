//! A summary in place of the older part of a long conversation: [`Summarize`].

use std::fmt;
use std::sync::{Arc, Weak};

use emitree_emitter::{Emitter, Event, EventName, Namespace};
use emitree_middleware::own_events::{OwnEvents, UserTexts};
use emitree_runtime::{Error, Result, RunContext, Runnable};
use futures_core::future::BoxFuture;
use serde::{Deserialize, Serialize};

use super::transcript::transcript;
use super::{EstimatedTokens, TokenCounter};
use emitree_agent::hook::Compaction;
use emitree_agent::{AgentMiddleware, ChatModel, ChatRequest, History, Hooks, Message, Part, Role, State};

/// The first line of each summary in the history.
const FIRST_LINE: &str = "Summary of the conversation so far:";

/// The text before the conversation in the default prompt.
const INSTRUCTIONS: &str = "Summarize this conversation for an assistant that will continue it without the messages \
    below. Keep the goals of the user, decisions, facts, names, numbers, open questions, and the results of tools that \
    are still needed. Answer with the summary only.";

/// The number of failures in a row after which the middleware waits.
const FAILURES: u32 = 3;

/// The number of turns that the middleware waits.
const PAUSE: u32 = 5;

type Prompt = dyn Fn(&[Arc<Message>]) -> String + Send + Sync;

/// Replaces the older messages of a long history with a summary that a model writes.
///
/// Before each model call, the tokens of the history are counted. If they exceed [`over_tokens`](Self::over_tokens),
/// the messages before the last [`keep_messages`](Self::keep_messages) become one user message. It begins with the line
/// `Summary of the conversation so far:`. The history is cut where no call is separated from its results, so a few more
/// messages may stay. The last user message always stays: if it is in the replaced part, it follows the summary. A later
/// summary replaces the earlier one.
///
/// ```
/// use emitree_agent_kit::built_in::Summarize;
/// use emitree_agent::{Agent, AgentRun, ChatModel, ScriptedModel, Session};
///
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> emitree_runtime::Result<()> {
/// let script = ScriptedModel::new("large").text("Hello, Ada.").text("Yes.");
/// let small = ScriptedModel::new("small").text("The user is Ada.");
/// let agent = Agent::builder("friend", ChatModel::new(script.clone())?)
///     .with(Summarize::with(ChatModel::new(small)?).over_tokens(20).keep_messages(1))
///     .build()?;
///
/// let session = Session::new();
/// agent.ask("I am Ada.").session(&session).await?;
/// agent.ask("Do you know me?").session(&session).await?;
/// let request = &script.requests()[1];
/// let shown: Vec<_> = request.messages.iter().map(|message| message.text()).collect();
/// assert_eq!(shown, ["Summary of the conversation so far:\n\nThe user is Ada.", "Do you know me?"]);
/// assert_eq!(session.history().messages().len(), 3);
/// # Ok(())
/// # }
/// ```
///
/// # The model of the summary
///
/// Each summary is a run of the model below the agent's run. Its tokens are charged to the budgets of the agent's run,
/// but are not part of [`AgentOutput::usage`](emitree_agent::AgentOutput::usage). The reply is not streamed, so
/// [`on_token`](emitree_agent::AgentRun::on_token) receives nothing of it. Hooks of `model.call` and `model.chunk` are not
/// called for this model. To guard its requests and replies, bind a guard to the model, or to the agent with
/// [`for_tree`](emitree_runtime::for_tree).
///
/// # Order
///
/// The hook is called at `model.state`, before all hooks of `model.context`. Messages that a
/// [`SlidingWindow`](super::SlidingWindow) does not show are counted and summarized too. Hooks of `context.compact` are
/// called before the model is asked, and after the history has the summary. If one of them halts, the model is not asked
/// in this turn.
///
/// # What it remembers
///
/// In the session: that there is a summary, the number of failures in a row, and the turns to wait. Until the session is
/// stored, it also remembers the last summary with the messages that it replaces: if the hook is called again with the
/// same messages, because another run of the session has changed the history, the model is not asked again.
///
/// If an attempt of the agent is discarded, its summary is taken back, and the history has the messages again.
///
/// # Its own events
///
/// `middleware.summarize.summarized`, a [`Summarized`], when the model has written a summary;
/// `middleware.summarize.failed`, a [`SummaryFailed`], when the model has failed.
///
/// # When it fails
///
/// If the model fails or its summary is empty, the history stays as it is, and the agent continues. After three failures
/// in a row, no summary is requested in the next five turns in which the history is too long. If the model's run is
/// halted or interrupted, fails with a fatal error, or is aborted with the agent, the agent's run ends.
///
/// A panic of the [prompt](Self::prompt) or the [counter](Self::counter) ends the run. A limit of 0 tokens, or more kept
/// messages than the limit has tokens, is an error of [`build`](emitree_agent::AgentBuilder::build), or of the run to which the
/// middleware is added.
#[derive(Clone)]
pub struct Summarize {
    model: ChatModel,
    over_tokens: u64,
    keep_messages: usize,
    prompt: Arc<Prompt>,
    counter: Arc<dyn TokenCounter>,
    own_events: OwnEvents,
}

impl Summarize {
    /// Creates the middleware. The model writes the summaries; it may be smaller than the model of the agent.
    #[must_use]
    pub fn with(model: ChatModel) -> Self {
        Self {
            model,
            over_tokens: 60_000,
            keep_messages: 20,
            prompt: Arc::new(|messages| format!("{INSTRUCTIONS}\n\n{}", transcript(messages))),
            counter: Arc::new(EstimatedTokens),
            own_events: OwnEvents::new(Namespace::new("middleware.summarize")),
        }
    }

    /// Sets the number of tokens that the history must exceed before it is summarized, by default 60,000.
    #[must_use]
    pub const fn over_tokens(mut self, tokens: u64) -> Self {
        self.over_tokens = tokens;
        self
    }

    /// Sets the number of messages at the end of the history that are not summarized, by default 20. If these messages
    /// alone exceed the limit, each turn makes another summary.
    #[must_use]
    pub const fn keep_messages(mut self, messages: usize) -> Self {
        self.keep_messages = messages;
        self
    }

    /// Sets the function that makes the request to the model, as the text of one user message, from the messages that
    /// are replaced. If they begin with an earlier summary, the new summary has to include it. [`transcript`] writes the
    /// messages as text.
    ///
    /// ```
    /// use emitree_agent_kit::built_in::{Summarize, transcript};
    /// # use emitree_agent::{ChatModel, ScriptedModel};
    ///
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let small = ChatModel::new(ScriptedModel::new("small"))?;
    /// let summarize = Summarize::with(small)
    ///     .prompt(|messages| format!("List all decisions in this conversation.\n\n{}", transcript(messages)));
    /// # Ok(())
    /// # }
    /// ```
    #[must_use]
    pub fn prompt(mut self, prompt: impl Fn(&[Arc<Message>]) -> String + Send + Sync + 'static) -> Self {
        self.prompt = Arc::new(prompt);
        self
    }

    /// Sets the counter for tokens, by default [`EstimatedTokens`].
    #[must_use]
    pub fn counter(mut self, counter: impl TokenCounter) -> Self {
        self.counter = Arc::new(counter);
        self
    }

    /// Returns the emitter of the middleware, for listeners that receive its events about all runs.
    #[must_use]
    pub const fn emitter(&self) -> &Emitter {
        self.own_events.emitter()
    }

    /// Replaces the older part of a history that is too long.
    async fn compact(&self, history: &mut History, memory: &State<Memory>, ctx: &RunContext) -> Result<()> {
        // The counter is user code, so it is called before the state is locked.
        let tokens = self.counter.count(history.messages(), ctx);
        if tokens <= self.over_tokens {
            return Ok(());
        }
        let Some(part) = memory.with(ctx, |memory| memory.part(history, self.keep_messages))? else { return Ok(()) };
        let in_place = |text: &str| [Arc::new(Message::user(text))].into_iter().chain(part.asked.clone());
        if let Some(text) = &part.known {
            // The hooks of `context.compact` have been called for this part.
            let rest = history.messages()[part.end..].iter().cloned();
            *history = History::try_from(in_place(text).chain(rest).collect::<Vec<_>>())?;
            return Ok(());
        }
        // Taken from the history, because hooks may change the messages of the compaction, and `known` compares with
        // the history.
        let replaced = history.messages()[..part.end].iter().map(Arc::downgrade).collect();
        let Some(compaction) = Compaction::begin(history, part.end, ctx).await? else { return Ok(()) };
        match self.ask(compaction.messages()).await {
            Ok(text) => {
                // Before `memory`: if a hook fails here, the history stays as it was, and has no summary.
                compaction.replace_with(in_place(&text)).await?;
                memory.with(ctx, |memory| memory.succeeded(replaced, &text))?;
                let event = || Summarized { messages: part.end, tokens, summary: text };
                self.own_events.emit(ctx, event).await;
                Ok(())
            }
            Err(error) if ends_the_run(&error, ctx) => Err(error),
            Err(error) => {
                let failures = memory.with(ctx, Memory::failed)?;
                let event = || SummaryFailed { error: error.to_string(), failures };
                self.own_events.emit(ctx, event).await;
                Ok(())
            }
        }
    }

    /// Asks the model for a summary. Returns the text of the message.
    fn ask<'a>(&'a self, messages: &[Arc<Message>]) -> BoxFuture<'a, Result<String>> {
        let mut request = ChatRequest::from(Message::user((self.prompt)(messages)));
        // Listeners for tokens of the agent would take them for the answer.
        request.options.stream = Some(false);
        Box::pin(async move {
            let response = self.model.run(request).await?;
            match response.text().trim() {
                "" => Err(Error::new(format!("the summary of the model `{}` is empty", self.model.name()))),
                summary => Ok(format!("{FIRST_LINE}\n\n{summary}")),
            }
        })
    }
}

fn ends_the_run(error: &Error, ctx: &RunContext) -> bool {
    error.is_halted() || error.is_fatal() || error.is_interrupted() || (error.is_aborted() && ctx.is_aborted())
}

/// The state in the session.
#[derive(Default, Serialize, Deserialize)]
#[serde(default)]
struct Memory {
    /// `true` if the model has written a summary.
    has_summary: bool,
    /// The number of failures since the last success or the last pause.
    failures: u32,
    /// The number of turns to wait.
    pause: u32,
    /// The last summary, and the messages that it replaces. A message is compared by address: as long as there is a weak
    /// pointer, no other message has its address.
    #[serde(skip)]
    last: Option<(Vec<Weak<Message>>, String)>,
}

/// The part of a history that a summary replaces.
struct OldPart {
    /// The number of messages.
    end: usize,
    /// The last user message of the history, if it is in this part. It stays.
    asked: Option<Arc<Message>>,
    /// The summary of this part, if there is one.
    known: Option<String>,
}

impl Memory {
    /// Returns the part to replace, or `None` if the part has nothing new or the middleware waits.
    fn part(&mut self, history: &History, keep: usize) -> Option<OldPart> {
        let messages = history.messages();
        let most = messages.len().saturating_sub(keep);
        let end = history.boundaries().rfind(|&at| at <= most)?;
        // The summary is the first message, so a user cannot pass another message off as a summary.
        let is_first_summary = self.has_summary && messages.first().is_some_and(|message| is_summary(message));
        let begin = usize::from(is_first_summary);
        let asked = messages[begin..].iter().rposition(|message| message.role == Role::User).map(|at| begin + at);
        let asked = asked.filter(|&at| at < end);
        // The part has nothing but the earlier summary and the last question, so another summary would save nothing.
        if (begin..end).all(|at| Some(at) == asked) {
            return None;
        }
        // After the checks above, so that only turns count that would have asked for a summary.
        if self.pause > 0 {
            self.pause -= 1;
            return None;
        }
        let known = self.last.as_ref().filter(|(replaced, _)| is_same(replaced, &messages[..end]));
        let known = known.map(|(_, text)| text.clone());
        Some(OldPart { end, asked: asked.map(|at| Arc::clone(&messages[at])), known })
    }

    fn succeeded(&mut self, replaced: Vec<Weak<Message>>, text: &str) {
        *self = Self { has_summary: true, last: Some((replaced, text.to_owned())), ..Self::default() };
    }

    /// Counts a failure. Returns the number of failures in a row.
    fn failed(&mut self) -> u32 {
        self.failures += 1;
        let failures = self.failures;
        if failures == FAILURES {
            (self.failures, self.pause) = (0, PAUSE);
        }
        failures
    }
}

fn is_summary(message: &Message) -> bool {
    let begins = |part: &Part| matches!(part, Part::Text { content } if content.starts_with(FIRST_LINE));
    message.role == Role::User && message.parts.first().is_some_and(begins)
}

fn is_same(replaced: &[Weak<Message>], messages: &[Arc<Message>]) -> bool {
    let is_same = |(old, message): (&Weak<Message>, &Arc<Message>)| std::ptr::eq(old.as_ptr(), Arc::as_ptr(message));
    replaced.len() == messages.len() && replaced.iter().zip(messages).all(is_same)
}

impl AgentMiddleware for Summarize {
    fn id(&self) -> &str {
        "summarize"
    }

    fn init(&self) -> Result<()> {
        let Self { over_tokens, keep_messages, .. } = self;
        if *over_tokens == 0 {
            return Err(Error::new(
                "`Summarize::over_tokens(0)` would summarize every history: allow at least 1 token",
            ));
        }
        if *keep_messages as u64 > *over_tokens {
            return Err(Error::new(format!(
                "`Summarize` with `over_tokens({over_tokens})` and `keep_messages({keep_messages})` keeps more messages \
                 than the limit has tokens: a message has at least one token"
            )));
        }
        Ok(())
    }

    fn install(&self, hooks: &mut Hooks) -> Result<()> {
        let this = Arc::new(self.clone());
        let memory = hooks.state::<Memory>();
        hooks.on_state_async(move |history, ctx| {
            let this = Arc::clone(&this);
            let memory = memory.clone();
            Box::pin(async move { this.compact(history, &memory, ctx).await })
        });
        Ok(())
    }
}

/// Shows the options: `over 60000 tokens, keeps 20 messages, by gpt-5-mini`.
impl fmt::Debug for Summarize {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { over_tokens, keep_messages, model, .. } = self;
        write!(f, "over {over_tokens} tokens, keeps {keep_messages} messages, by {}", model.name())
    }
}

/// The event `summarized` of [`Summarize`]: the model has written a summary.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct Summarized {
    /// The number of messages that the summary replaces, with the last user message, which stays.
    pub messages: usize,
    /// The tokens of the history before.
    pub tokens: u64,
    /// The text of the message with the summary.
    pub summary: String,
}

/// The event `failed` of [`Summarize`]: the model has failed, and the history stays as it is.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct SummaryFailed {
    /// The error.
    pub error: String,
    /// The number of failures in a row. After the third one, the middleware waits, and counts from 1 again.
    pub failures: u32,
}

impl Event for Summarized {
    const NAME: EventName = EventName::new("summarized");
}

impl UserTexts for Summarized {
    fn user_texts(&mut self, change: &mut dyn FnMut(&mut String)) {
        self.summary.user_texts(change);
    }
}

impl Event for SummaryFailed {
    const NAME: EventName = EventName::new("failed");
}

impl UserTexts for SummaryFailed {
    fn user_texts(&mut self, change: &mut dyn FnMut(&mut String)) {
        self.error.user_texts(change);
    }
}
