//! A title of a conversation, from its first user message: [`Title`].

use std::fmt;
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use emitree_emitter::{Emitter, Event, EventName, Namespace};
use emitree_middleware::own_events::{OwnEvents, UserTexts};
use emitree_runtime::{Error, Next, Phase, Result, RunContext, Runnable, Task, layer_fn};
use futures_util::future::{Either, select};
use parking_lot::Mutex;
use serde::{Deserialize, Serialize};
use tokio::sync::oneshot;
use tokio::time::sleep;

use emitree_agent::{
    Agent, AgentInput, AgentMiddleware, ChatModel, ChatOptions, ChatRequest, History, Hooks, Message, Role, Session,
};

/// The key of the title in the values of the session.
const KEY: &str = "title";

/// The default prompt.
const PROMPT: &str = "Write a title for the conversation that the user's message begins: at most six words in the \
    language of the message, on one line, without quotation marks. Do not answer the message. Reply with the title only.";

/// The number of characters of the message that the model receives.
const MAX_MESSAGE: usize = 2_000;

/// The maximum number of characters of a title.
const MAX_TITLE: usize = 80;

/// How long a run waits for the title at its end.
const WAIT: Duration = Duration::from_secs(2);

/// Asks a model for a title of the conversation, and keeps it in the session: `session.meta()["title"]`.
///
/// The model is asked beside the first turn, in a task of the run, so the first turn does not wait for it. It receives
/// the first 2,000 characters of the first user message, and nothing else. The title is the first line of its reply that
/// is not empty, at most 80 characters of it. At its end, the run waits at most two seconds for the title. In a stored
/// session, the title is stored with the end of the run at the latest.
///
/// ```
/// use emitree_agent_kit::built_in::Title;
/// use emitree_agent::{Agent, AgentRun, ChatModel, ScriptedModel, Session};
///
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> emitree_runtime::Result<()> {
/// let small = ChatModel::new(ScriptedModel::new("small").text("Three days in Lima"))?;
/// let model = ChatModel::new(ScriptedModel::new("large").text("See the Larco Museum first."))?;
/// let agent = Agent::builder("planner", model).with(Title::with(small)).build()?;
///
/// let session = Session::new();
/// agent.ask("I have three days in Lima. What should I see?").session(&session).await?;
/// assert_eq!(session.meta()["title"], "Three days in Lima");
/// # Ok(())
/// # }
/// ```
///
/// The model is not asked if the session has a title already, also one that the program has
/// [set](Session::set_meta), if its history has an answer, if the first user message has no text, or in a run without a
/// [session](emitree_agent::AgentRun::session). A run asks once, in all its attempts.
///
/// # The model of the title
///
/// The title is a run of the model below the agent's run. Its tokens are charged to the budgets of the agent's run, but
/// are not part of [`AgentOutput::usage`](emitree_agent::AgentOutput::usage). The reply is not streamed, so
/// [`on_token`](emitree_agent::AgentRun::on_token) receives nothing of it. Hooks of `model.call` and `model.chunk` are
/// not called for this model. To guard its requests and replies, bind a guard to the model, or to the agent with
/// [`for_tree`](emitree_runtime::for_tree).
///
/// # Order
///
/// The model receives the message as hooks of `model.state` before this one have left it. A layer at `agent.run`, in
/// [`Phase::Observe`], waits for the title when the run has its answer, or ends with a question.
///
/// # What it remembers
///
/// In the session: the title, as a value of the program. In the run: that the model was asked.
///
/// # Its own events
///
/// `middleware.title.titled`, a [`Titled`], when the session has the title; `middleware.title.failed`, a
/// [`TitleFailed`], when it gets none.
///
/// # When it fails
///
/// If the model fails in any way, if its reply is empty or comes too late, or if the session has no room for the title,
/// the session has no title, a warning is logged, and the run goes on. If the run itself fails, or is aborted or dropped,
/// the task ends with it. The next run asks only if the history still has no answer.
#[derive(Clone)]
pub struct Title {
    model: ChatModel,
    prompt: Arc<str>,
    own_events: OwnEvents,
}

impl Title {
    /// Creates the middleware. The model writes the title; it may be smaller than the model of the agent.
    #[must_use]
    pub fn with(model: ChatModel) -> Self {
        let own_events = OwnEvents::new(Namespace::new("middleware.title"));
        Self { model, prompt: PROMPT.into(), own_events }
    }

    /// Sets the system prompt of the model. By default, it asks for at most six words in the language of the message.
    #[must_use]
    pub fn prompt(mut self, prompt: impl Into<Arc<str>>) -> Self {
        self.prompt = prompt.into();
        self
    }

    /// Returns the emitter of the middleware, for listeners that receive its events about all runs.
    #[must_use]
    pub const fn emitter(&self) -> &Emitter {
        self.own_events.emitter()
    }

    /// Spawns the task that asks for a title, if the session needs one.
    fn begin(&self, history: &History, ctx: &RunContext) -> Option<Asking> {
        // A session that no caller has set ends with the run.
        let session = ctx.own_extension::<Session>()?;
        let message = untitled(history)?;
        if session.meta().contains_key(KEY) {
            return None;
        }
        let (ends, has_ended) = oneshot::channel();
        let (this, run) = (self.clone(), ctx.clone());
        let task = ctx.spawn(async move {
            let late = async {
                _ = has_ended.await;
                sleep(WAIT).await;
            };
            let outcome = match select(pin!(this.ask(message)), pin!(late)).await {
                Either::Left((title, _)) => title.and_then(|title| this.set(&session, title)),
                Either::Right(((), _)) => {
                    Err(this.fails("has written no title when the run had waited for two seconds"))
                }
            };
            this.report(outcome, &run).await;
        });
        Some(Asking { ends, task })
    }

    async fn ask(&self, message: String) -> Result<String> {
        let mut request = ChatRequest::new([Message::user(message)]);
        request.system = Some(self.prompt.to_string());
        // Listeners for tokens of the agent would take them for the answer.
        request.options = ChatOptions::new().stream(false);
        let reply = self.model.run(request).await?.text();
        title_in(&reply).ok_or_else(|| self.fails("has written an empty title"))
    }

    /// Gives the session its title. Returns `None` if the program has set one meanwhile.
    fn set(&self, session: &Session, title: String) -> Result<Option<String>> {
        if session.meta().contains_key(KEY) {
            return Ok(None);
        }
        session.set_meta(KEY, &title)?;
        Ok(Some(title))
    }

    async fn report(&self, outcome: Result<Option<String>>, ctx: &RunContext) {
        match outcome {
            Ok(None) => {}
            Ok(Some(title)) => self.own_events.emit(ctx, || Titled { title }).await,
            Err(error) => {
                let error = error.explain();
                tracing::warn!("the session of the agent `{}` gets no title: {error}", ctx.name());
                self.own_events.emit(ctx, || TitleFailed { error }).await;
            }
        }
    }

    fn fails(&self, how: &str) -> Error {
        Error::new(format!("the model `{}` {how}", self.model.name()))
    }
}

/// The task of a run that asks for a title: an extension of the run, empty if the run does not ask, or waits already.
struct OfRun(Mutex<Option<Asking>>);

struct Asking {
    /// From now on, the task has two seconds.
    ends: oneshot::Sender<()>,
    task: Task<()>,
}

/// Waits for the title of a run, if it is being written.
async fn wait(ctx: &RunContext) {
    let asking = ctx.own_extension::<OfRun>().and_then(|of_run| of_run.0.lock().take());
    if let Some(Asking { ends, task }) = asking {
        _ = ends.send(());
        _ = task.await;
    }
}

/// Returns the beginning of the first user message, if it has a text, and no model has answered it.
fn untitled(history: &History) -> Option<String> {
    let messages = history.messages();
    let is_answer = |message: &Message| message.role == Role::Assistant && message.tool_calls().next().is_none();
    if messages.iter().any(|message| is_answer(message)) {
        return None;
    }
    let first = messages.iter().find(|message| message.role == Role::User)?;
    let text: String = first.text().trim().chars().take(MAX_MESSAGE).collect();
    (!text.is_empty()).then_some(text)
}

/// Returns the title in a reply: its first line that is not empty, without control characters and quotation marks around
/// it.
fn title_in(reply: &str) -> Option<String> {
    let words = |line: &str| {
        let words = line.split(|c: char| c.is_whitespace() || c.is_control()).filter(|word| !word.is_empty());
        words.collect::<Vec<_>>().join(" ")
    };
    let line = reply.lines().map(words).find(|line| !line.is_empty())?;
    let inner = line.strip_prefix('"').and_then(|line| line.strip_suffix('"'));
    let title = inner.filter(|inner| !inner.is_empty() && !inner.contains('"')).unwrap_or(&line).trim();
    if title.chars().count() <= MAX_TITLE {
        return Some(title.to_owned());
    }
    let short: String = title.chars().take(MAX_TITLE - 1).collect();
    Some(format!("{}…", short.trim_end()))
}

impl AgentMiddleware for Title {
    fn id(&self) -> &str {
        "title"
    }

    fn install(&self, hooks: &mut Hooks) -> Result<()> {
        let this = self.clone();
        hooks.on_state(move |history, ctx| {
            if ctx.own_extension::<OfRun>().is_none() {
                ctx.set_own_extension(OfRun(Mutex::new(this.begin(history, ctx))));
            }
        });
        hooks.agent_run(|stack| {
            let waits = layer_fn("wait", |input: &AgentInput, ctx: &RunContext, next: Next<'_, Agent>| {
                Box::pin(async move {
                    let output = next.run(input).await;
                    // A run that has failed waits for nothing.
                    if output.as_ref().err().is_none_or(Error::is_interrupted) {
                        wait(ctx).await;
                    }
                    output
                })
            });
            stack.layer_in(Phase::Observe, waits)
        });
        Ok(())
    }
}

/// Shows the model: `by gpt-5-mini`.
impl fmt::Debug for Title {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "by {}", self.model.name())
    }
}

/// The event `titled` of [`Title`]: the session has a title.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct Titled {
    /// The title.
    pub title: String,
}

/// The event `failed` of [`Title`]: the session gets no title.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct TitleFailed {
    /// The error, with its causes and the name of who denied.
    pub error: String,
}

impl Event for Titled {
    const NAME: EventName = EventName::new("titled");
}

impl UserTexts for Titled {
    fn user_texts(&mut self, change: &mut dyn FnMut(&mut String)) {
        self.title.user_texts(change);
    }
}

impl Event for TitleFailed {
    const NAME: EventName = EventName::new("failed");
}

impl UserTexts for TitleFailed {
    fn user_texts(&mut self, change: &mut dyn FnMut(&mut String)) {
        self.error.user_texts(change);
    }
}
