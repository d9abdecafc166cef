//! Judgements about inputs, replies and results of tools: [`Guardrail`].

use std::fmt;
use std::future::ready;
use std::iter::successors;
use std::mem::take;
use std::panic::AssertUnwindSafe;
use std::sync::Arc;

use emitree_emitter::media::data_head;
use emitree_emitter::panic_text;
use emitree_runtime::{
    Checked, Error, Next, Result, RunContext, Summary, WouldDeny, map_input_async, map_output_async,
};
use futures_core::future::BoxFuture;
use futures_util::FutureExt;
use parking_lot::Mutex;
use serde_json::{Value, json};

use emitree_agent::reply::AsyncChunkStage;
use emitree_agent::{
    Agent, AgentInput, AgentMiddleware, AgentOutput, CallResult, Chunks, Delta, Hooks, How, Message, Part, Role,
    ToolOutput, TurnAction,
};

/// Judges a text with a function: the user's message, each reply of the model, or each result of a tool.
///
/// ```
/// use emitree_agent_kit::built_in::{Guardrail, Judgement};
/// use emitree_agent::{Agent, ChatModel, ScriptedModel};
///
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> emitree_runtime::Result<()> {
/// let polite = Guardrail::output("polite", |text, _| {
///     let is_rude = text.contains("fool");
///     Box::pin(async move { Ok(if is_rude { Judgement::ask_again("Be polite.") } else { Judgement::Allow }) })
/// });
/// let script = ScriptedModel::new("test").text("You fool!").text("That is not right.");
/// let agent = Agent::builder("teacher", ChatModel::new(script.clone())?)
///     .with(polite)
///     .max_middleware_retries(1)
///     .build()?;
/// assert_eq!(agent.ask("Is it right?").await?.text(), "That is not right.");
/// let prompt = script.requests()[1].system.clone();
/// assert_eq!(prompt.as_deref(), Some("The previous attempt was discarded: Be polite."));
/// # Ok(())
/// # }
/// ```
///
/// | | sees | when |
/// |---|---|---|
/// | [`input`](Self::input) | the last user message of the input, and each user message that is sent to the run ([`Session::steer`](emitree_agent::Session::steer)) | after all functions that change the input; at `steer.inject` |
/// | [`output`](Self::output) | the text of each reply, also of a reply with calls, and of the answer, if output functions have changed it | before anybody receives a piece of it, unless [`hold`](Self::hold) says otherwise |
/// | [`tool_result`](Self::tool_result) | the text of each result, also of an error | before it enters the history |
///
/// A text that is empty is not judged. The function awaits what it needs, for example another model: its run is below
/// the run of the model or the agent, and its tokens are charged to budgets.
///
/// # What it remembers
///
/// The last text that passed, in the *run*.
///
/// # Its own events
///
/// None. An input or a reply that is blocked is a denial of the run, and a result that is blocked is an error for the
/// model. In place of a message to the run that is blocked, the model reads `(withheld by <name>)`. With
/// [`evaluate_only`](Self::evaluate_only), the run emits [`would_deny`](WouldDeny) instead.
///
/// # Order
///
/// A guardrail is a guard: hooks of the builder do not replace it. A stream is held until the verdict on the reply is
/// there, so `on_token` receives all pieces together ([`Hold`]). Several guardrails judge in the order in which they were
/// added, each the text that the one before left.
///
/// # When it fails
///
/// A function that fails blocks the text. If it panics, the run fails, or the result of a tool becomes an error instead.
/// [`hold`](Self::hold) for inputs or results of tools is an error of [`build`](emitree_agent::AgentBuilder::build), or of the
/// run to which the middleware is added.
#[derive(Clone)]
pub struct Guardrail {
    id: Arc<str>,
    name: Arc<str>,
    side: Side,
    check: Arc<Check>,
    hold: Option<Hold>,
    evaluates_only: bool,
}

type Check = dyn for<'a> Fn(&'a str, &'a RunContext) -> BoxFuture<'a, Result<Judgement>> + Send + Sync;

#[derive(Clone, Copy, Debug)]
enum Side {
    Input,
    Output,
    ToolResult,
}

/// The time at which the text of a streamed reply leaves a [`Guardrail::output`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum Hold {
    /// When the verdict on the whole reply is there: nobody receives a text that was not judged.
    #[default]
    Reply,
    /// At once. Listeners, such as the function of [`on_token`](emitree_agent::AgentRun::on_token), receive the whole text before
    /// the guardrail judges it, and a verdict cannot take it back. [`Block`](Judgement::Block) ends the run, and
    /// [`AskAgain`](Judgement::AskAgain) begins an attempt that streams its own reply. [`Modify`](Judgement::Modify)
    /// changes the reply in the history and for the caller, but layers of `model.call`, and hooks of `turn.action` that
    /// were added before the guardrail, also receive the text as it was.
    Nothing,
}

/// The verdict of a [`Guardrail`].
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Judgement {
    /// The text passes.
    Allow,
    /// Another text takes its place.
    Modify(String),
    /// The run is denied. A result of a tool becomes an error instead, and a message that is sent to the run
    /// `(withheld by <name>)`.
    Block {
        /// The reason.
        reason: String,
    },
    /// The whole attempt begins again, and its system prompt has the reason. Only outputs can be asked for again: other
    /// texts are blocked. If no attempt is left ([`max_middleware_retries`]), the run fails with this request.
    ///
    /// [`max_middleware_retries`]: emitree_agent::AgentBuilder::max_middleware_retries
    AskAgain {
        /// The reason.
        reason: String,
    },
}

impl Judgement {
    /// Makes a verdict that [blocks](Self::Block) the text.
    pub fn block(reason: impl Into<String>) -> Self {
        Self::Block { reason: reason.into() }
    }

    /// Makes a verdict that [asks again](Self::AskAgain).
    pub fn ask_again(reason: impl Into<String>) -> Self {
        Self::AskAgain { reason: reason.into() }
    }
}

/// The last text of a reply that each guardrail let pass: an extension of the runs of agents.
#[derive(Default)]
struct Passed(Mutex<Vec<(Arc<Check>, PassedText)>>);

#[derive(Clone)]
struct PassedText {
    text: String,
    /// The text that the guardrail judged, if it had left before the other text could take its place.
    instead_of: Option<String>,
}

// Guardrails are compared by their functions, because those of two agents may have one name.
impl Passed {
    fn set(&self, by: &Guardrail, text: PassedText) {
        let mut passed = self.0.lock();
        passed.retain(|(other, _)| !Arc::ptr_eq(other, &by.check));
        passed.push((Arc::clone(&by.check), text));
    }

    fn has(&self, by: &Guardrail, text: &str) -> bool {
        self.0.lock().iter().any(|(other, passed)| Arc::ptr_eq(other, &by.check) && passed.text == text)
    }

    /// Returns the text that has left and the text that has to take its place, once.
    fn take_late(&self, by: &Guardrail) -> Option<(String, String)> {
        let mut passed = self.0.lock();
        let (_, passed) = passed.iter_mut().find(|(other, _)| Arc::ptr_eq(other, &by.check))?;
        Some((passed.instead_of.take()?, passed.text.clone()))
    }
}

impl Guardrail {
    fn new(
        name: impl Into<Arc<str>>,
        side: Side,
        check: impl for<'a> Fn(&'a str, &'a RunContext) -> BoxFuture<'a, Result<Judgement>> + Send + Sync + 'static,
    ) -> Self {
        let name = name.into();
        let id = format!("guardrail.{name}").into();
        Self { id, name, side, check: Arc::new(check), hold: None, evaluates_only: false }
    }

    /// Creates a guardrail for the user's messages. Its id is `guardrail.<name>`.
    #[must_use]
    pub fn input(
        name: impl Into<Arc<str>>,
        check: impl for<'a> Fn(&'a str, &'a RunContext) -> BoxFuture<'a, Result<Judgement>> + Send + Sync + 'static,
    ) -> Self {
        Self::new(name, Side::Input, check)
    }

    /// Creates a guardrail for the replies of the model and the answer of the run.
    #[must_use]
    pub fn output(
        name: impl Into<Arc<str>>,
        check: impl for<'a> Fn(&'a str, &'a RunContext) -> BoxFuture<'a, Result<Judgement>> + Send + Sync + 'static,
    ) -> Self {
        Self::new(name, Side::Output, check)
    }

    /// Creates a guardrail for the results of tools.
    #[must_use]
    pub fn tool_result(
        name: impl Into<Arc<str>>,
        check: impl for<'a> Fn(&'a str, &'a RunContext) -> BoxFuture<'a, Result<Judgement>> + Send + Sync + 'static,
    ) -> Self {
        Self::new(name, Side::ToolResult, check)
    }

    /// Sets when the text of a streamed reply leaves a guardrail for outputs, by default [`Hold::Reply`].
    #[must_use]
    pub const fn hold(mut self, hold: Hold) -> Self {
        self.hold = Some(hold);
        self
    }

    /// Only reports: each verdict that is not [`Allow`](Judgement::Allow), and each check that fails or panics, is an
    /// event [`would_deny`](WouldDeny) of the run, and every text passes as it is. By default, a stream is then not held.
    #[must_use]
    pub const fn evaluate_only(mut self) -> Self {
        self.evaluates_only = true;
        self
    }

    fn holds(&self) -> bool {
        let default = if self.evaluates_only { Hold::Nothing } else { Hold::Reply };
        self.hold.unwrap_or(default) == Hold::Reply
    }

    /// Returns the text that takes the place of a text, if it passes; `None` if it passes as it is.
    async fn judge(&self, text: &str, ctx: &RunContext) -> Result<Option<String>> {
        if text.is_empty() {
            return Ok(None);
        }
        if !self.evaluates_only {
            return self.decide(text, ctx).await;
        }
        let reason = match AssertUnwindSafe(self.decide(text, ctx)).catch_unwind().await {
            Ok(Ok(None)) => return Ok(None),
            Ok(Ok(Some(_))) => "the text would be modified".to_owned(),
            Ok(Err(error)) => error.to_string(),
            Err(panic) => format!("the check panicked: {}", panic_text(panic)),
        };
        let at = if matches!(self.side, Side::Input) { Checked::Input } else { Checked::Output };
        WouldDeny::new(&*self.name, at, reason).record(ctx).await;
        Ok(None)
    }

    async fn decide(&self, text: &str, ctx: &RunContext) -> Result<Option<String>> {
        let reason = match (self.check)(text, ctx).await {
            Ok(Judgement::Allow) => return Ok(None),
            Ok(Judgement::Modify(other)) => return Ok(Some(other)),
            Ok(Judgement::AskAgain { reason }) if matches!(self.side, Side::Output) => {
                return Err(self.ask_again(reason));
            }
            Ok(Judgement::Block { reason } | Judgement::AskAgain { reason }) => reason,
            Err(error) if error.is_control_flow() => return Err(error),
            Err(error) => format!("the check failed: {error}"),
        };
        Err(Error::denied(&*self.name, reason))
    }

    fn ask_again(&self, reason: String) -> Error {
        Error::retry_with(reason, json!({ "guardrail": &*self.name }))
    }

    /// Returns the reason, if an error asks for the answer of the run again because of this guardrail.
    fn reason_of(&self, error: &Error) -> Option<String> {
        let request = error.retry_request()?;
        (request.metadata["guardrail"] == *self.name).then_some(request.reason)
    }

    async fn judge_input(&self, input: &mut AgentInput, ctx: &RunContext) -> Result<()> {
        let last = input.messages.iter_mut().rfind(|message| message.role == Role::User);
        let Some(message) = last else { return Ok(()) };
        if let Some(other) = self.judge(&message.text(), ctx).await? {
            set_text(message, other);
        }
        Ok(())
    }

    /// Judges the messages that are sent to the run. A denial would end the run, and the next run would get the message.
    async fn judge_sent(&self, messages: &mut [Message], ctx: &RunContext) -> Result<()> {
        for message in messages.iter_mut().filter(|message| message.role == Role::User) {
            match self.judge(&message.text(), ctx).await {
                Ok(None) => {}
                Ok(Some(other)) => set_text(message, other),
                Err(error) if error.is_denied() => *message = Message::user(format!("(withheld by {})", self.name)),
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }

    /// Changes a reply whose text had left before the verdict. If another hook has changed it as well, it is judged again.
    async fn change_late(&self, action: &mut TurnAction, ctx: &RunContext) -> Result<()> {
        let Some(passed) = ctx.own_extension::<Passed>() else { return Ok(()) };
        let Some((judged, other)) = passed.take_late(self) else { return Ok(()) };
        let text = action.response.text();
        let other = if text == judged { Some(other) } else { self.judge(&text, ctx).await? };
        let Some(other) = other else { return Ok(()) };
        set_text(&mut action.response.message, other.clone());
        passed.set(self, PassedText { text: other, instead_of: None });
        Ok(())
    }

    /// Judges the answer again if output functions have changed the text that passed.
    async fn judge_answer(&self, output: &mut AgentOutput, ctx: &RunContext) -> Result<()> {
        let text = output.text();
        if ctx.own_extension::<Passed>().is_some_and(|passed| passed.has(self, &text)) {
            return Ok(());
        }
        if let Some(other) = self.judge(&text, ctx).await? {
            set_text(&mut output.answer, other);
        }
        Ok(())
    }

    async fn judge_result(&self, result: &mut CallResult, ctx: &RunContext) -> Result<()> {
        match self.judge_output(&mut result.output, ctx).await {
            Err(error) if error.is_denied() => {
                result.how = How::Denied;
                result.output = ToolOutput::error(error.explain());
                Ok(())
            }
            judged => judged,
        }
    }

    /// Judges the content, and each text and address of the parts.
    async fn judge_output(&self, output: &mut ToolOutput, ctx: &RunContext) -> Result<()> {
        if let Some(other) = self.judge(&output.text(), ctx).await? {
            output.content = Value::String(other);
        }
        for part in &mut output.parts {
            let text = match part {
                Part::Text { content } => content,
                Part::Uri { uri, .. } if data_head(uri).is_none() => uri,
                _ => continue,
            };
            if let Some(other) = self.judge(text, ctx).await? {
                *text = other;
            }
        }
        Ok(())
    }

    fn install_output(&self, hooks: &mut Hooks) {
        let of_stage = self.clone();
        let of_run = self.clone();
        let of_answer = self.clone();
        let of_error = self.clone();
        hooks.chunks_async(move || Stage { guardrail: of_stage.clone(), deltas: Vec::new(), left: String::new() });
        if !self.holds() && !self.evaluates_only {
            let guardrail = self.clone();
            hooks.on_action_async(move |action, ctx| {
                let guardrail = guardrail.clone();
                Box::pin(async move { guardrail.change_late(action, ctx).await })
            });
        }
        // The request of a stage has left the run of the model, so it starts no attempt of the agent's run by itself.
        hooks.agent_run(move |stack| {
            stack.layer_fn("ask_again", move |input: &AgentInput, _, next: Next<'_, Agent>| {
                let guardrail = of_run.clone();
                Box::pin(async move {
                    next.run(input).await.map_err(|error| match guardrail.reason_of(&error) {
                        Some(reason) => guardrail.ask_again(reason),
                        None => error,
                    })
                })
            })
        });
        let judges = map_output_async(move |output: &mut AgentOutput, ctx: &RunContext| {
            let guardrail = of_answer.clone();
            Box::pin(async move { guardrail.judge_answer(output, ctx).await })
        });
        hooks.middleware(judges.named(Arc::clone(&self.name)).guard());
        hooks.middleware(move |ctx: &RunContext| {
            let guardrail = of_error.clone();
            ctx.map_error(move |error| match guardrail.reason_of(&error) {
                Some(reason) => Error::retry(format!(
                    "{reason} (`{}` asks again, but no attempt is left: allow more with `max_middleware_retries`)",
                    guardrail.name
                )),
                None => error,
            });
            Ok(())
        });
    }
}

/// Replaces the text of a message, in the place of its first text.
fn set_text(message: &mut Message, text: String) {
    let is_text = |part: &Part| matches!(part, Part::Text { .. });
    let at = message.parts.iter().position(is_text).unwrap_or(message.parts.len());
    message.parts.retain(|part| !is_text(part));
    message.parts.insert(at.min(message.parts.len()), Part::Text { content: text });
}

/// The stage that judges a reply, and holds it until then if the guardrail holds replies.
struct Stage {
    guardrail: Guardrail,
    /// The pieces that are held.
    deltas: Vec<Delta>,
    /// The text that has left.
    left: String,
}

impl AsyncChunkStage for Stage {
    fn pass<'a>(&'a mut self, chunks: &'a mut Chunks, ctx: &'a RunContext) -> BoxFuture<'a, Result<()>> {
        // The last pieces wait for the verdict even if nothing is held: if no text has left yet, it can be changed.
        if chunks.ended || self.guardrail.holds() {
            self.deltas.append(&mut chunks.deltas);
        } else {
            self.left.extend(chunks.deltas.iter().filter_map(text_of));
        }
        if !chunks.ended {
            return Box::pin(ready(Ok(())));
        }
        Box::pin(async move {
            chunks.deltas = self.judge(ctx).await?;
            Ok(())
        })
    }
}

impl Stage {
    /// Judges the reply. Returns the pieces that were held, or another text in their place.
    async fn judge(&mut self, ctx: &RunContext) -> Result<Vec<Delta>> {
        let mut deltas = take(&mut self.deltas);
        let has_left = !self.left.is_empty();
        let mut text = take(&mut self.left);
        text.extend(deltas.iter().filter_map(text_of));
        let passed = match self.guardrail.judge(&text, ctx).await? {
            None => PassedText { text, instead_of: None },
            // Text that has left cannot be taken back, so the pieces stay, and `change_late` changes the message.
            Some(other) if has_left => PassedText { text: other, instead_of: Some(text) },
            Some(other) => {
                let at = deltas.iter().position(|delta| text_of(delta).is_some()).unwrap_or(deltas.len());
                deltas.retain(|delta| text_of(delta).is_none());
                deltas.insert(at.min(deltas.len()), Delta::Text(other.clone()));
                PassedText { text: other, instead_of: None }
            }
        };
        // The stage runs in the run of the model, or in the agent's own run if a tool gave the answer. After a handoff, the
        // reply is also the answer of the agents above.
        for run in successors(Some(ctx), |run| run.parent()).filter(|run| run.is_run_of_type::<Agent>()) {
            run.own_extension_or_default::<Passed>().set(&self.guardrail, passed.clone());
        }
        Ok(deltas)
    }
}

fn text_of(delta: &Delta) -> Option<&str> {
    match delta {
        Delta::Text(text) => Some(text),
        _ => None,
    }
}

impl AgentMiddleware for Guardrail {
    fn id(&self) -> &str {
        &self.id
    }

    fn init(&self) -> Result<()> {
        match (self.hold, self.side) {
            (None, _) | (_, Side::Output) => Ok(()),
            (Some(hold), side) => Err(Error::new(format!(
                "the guardrail `{}` has `hold(Hold::{hold:?})`, but it judges {side:?}: only `Guardrail::output` judges \
                 what is streamed",
                self.name
            ))),
        }
    }

    fn install(&self, hooks: &mut Hooks) -> Result<()> {
        let guardrail = self.clone();
        match self.side {
            Side::Input => {
                let of_sent = self.clone();
                hooks.on_inject_async(move |messages, ctx| {
                    let guardrail = of_sent.clone();
                    Box::pin(async move { guardrail.judge_sent(messages, ctx).await })
                });
                let judges = map_input_async(move |input: &mut AgentInput, ctx: &RunContext| {
                    let guardrail = guardrail.clone();
                    Box::pin(async move { guardrail.judge_input(input, ctx).await })
                });
                hooks.middleware(judges.named(Arc::clone(&self.name)).guard());
            }
            Side::Output => self.install_output(hooks),
            Side::ToolResult => {
                hooks.on_result_async(move |result, ctx| {
                    let guardrail = guardrail.clone();
                    Box::pin(async move { guardrail.judge_result(result, ctx).await })
                });
            }
        }
        Ok(())
    }

    fn is_guard(&self) -> bool {
        true
    }

    fn debug_summary(&self) -> Summary {
        Summary::of(self)
    }
}

impl fmt::Debug for Guardrail {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let hold = if matches!(self.side, Side::Output) && !self.holds() { ", holds nothing" } else { "" };
        let only = if self.evaluates_only { ", evaluates only" } else { "" };
        write!(f, "{} {:?}{hold}{only}", self.name, self.side)
    }
}
