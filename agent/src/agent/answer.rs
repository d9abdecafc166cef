//! The answer of a run, and its message in the history.
//!
//! 1. When the loop ends, its answer is the last message of its last turn in the history, which the run holds.
//! 2. When layers and output functions have returned, [`settle`] replaces the message by the answer that they left, or
//!    appends the answer if a layer has answered instead of the loop.
//! 3. If the run ends without returning its answer, [`Answer::keep`] has registered a function that takes the message out
//!    of the history, for a resume, or puts a text into its place if a guard withholds it.
//!
//! `Redact::restore_output` restores an output later, in `success`, so the history has no restored secrets.

use std::sync::{Arc, LazyLock};

use emitree_runtime::{
    Error, ErrorKind, Finish, Layer, MapValue, Middleware, Next, Phase, Result, RunContext, Stack, Stage,
    map_output_async,
};
use parking_lot::Mutex;
use serde_json::json;

use crate::agent::events::{MessageAdded, MessageReplaced};
use crate::agent::turn::{AsksOnce, LoopState, Resumes};
use crate::model::{emit, log};
use crate::{Agent, AgentInput, AgentOutput, Message, Part, Role};

/// The answer of an agent's run.
#[derive(Debug, Default)]
pub(crate) struct Answer(Mutex<AnswerState>);

#[derive(Debug, Default)]
struct AnswerState {
    /// The message of the history that is the answer, once the loop has ended.
    message: Option<Arc<Message>>,
    /// The messages of the input, if a layer has answered instead of the loop.
    question: Vec<Message>,
    /// `true` if the function for errors is registered.
    is_watched: bool,
    /// `true` if the history has the answer of an earlier run, which this run returns.
    is_known: bool,
}

impl Answer {
    /// The run returns the answer of an earlier run, so the session stays as it is.
    pub(crate) fn return_known(&self) {
        self.0.lock().is_known = true;
    }

    /// Forgets the answer: another round or another attempt begins.
    pub(crate) fn forget(&self) {
        self.0.lock().message = None;
    }

    /// See [`LoopState::keep_answer`].
    pub(crate) fn keep(&self, message: &Arc<Message>, ctx: &RunContext) {
        let is_watched = {
            let mut state = self.0.lock();
            state.message = Some(Arc::clone(message));
            std::mem::replace(&mut state.is_watched, true)
        };
        if !is_watched {
            ctx.map_error(|error| {
                if let Some(ctx) = RunContext::current() {
                    withhold(&error, &ctx);
                }
                error
            });
        }
    }

    fn take(&self) -> Option<Arc<Message>> {
        self.0.lock().message.take()
    }
}

/// Takes an answer that the run does not return out of the history, or puts a text in the place of one that a guard
/// withholds.
fn withhold(error: &Error, ctx: &RunContext) {
    let Some(state) = LoopState::of(ctx) else { return };
    let Some(before) = state.answer.take() else { return };
    let (ErrorKind::Denied { by } | ErrorKind::Halted { by }) = error.kind() else {
        state.session.end(false);
        // The output functions may have returned it.
        return state.session.take_back();
    };
    let after = in_place_of(&before, Message::assistant(format!("(withheld by {by})")), true);
    let is_replaced = state.session.replace_answer(&after, true);
    state.session.end(true);
    if !is_replaced || !ctx.has_listeners() {
        return;
    }
    // Nothing can be awaited here: the event is emitted when the run emits `finish`.
    let replaced = MessageReplaced { before: None, after };
    let emits = ctx.emitter().on_async(Stage::Finish, move |_: &mut Finish<AgentInput, AgentOutput>, _| {
        let mut replaced = replaced.clone();
        let ctx = RunContext::current();
        Box::pin(async move {
            if let Some(ctx) = ctx {
                log(emit(&ctx, &mut replaced).await, "message_replaced");
            }
            Ok(())
        })
    });
    if let Err(error) = emits {
        tracing::warn!(%error, "the event `message_replaced` is lost");
    }
}

/// Returns the message that replaces an answer. The tool calls of the answer stay, because each has a result. If the
/// answer is withheld, their arguments are removed.
fn in_place_of(before: &Message, mut after: Message, is_withheld: bool) -> Arc<Message> {
    after.role = Role::Assistant;
    after.parts.retain(|part| !matches!(part, Part::ToolCall(_) | Part::ToolCallResponse(_)));
    let calls = before.tool_calls().cloned().map(|mut call| {
        if is_withheld {
            call.arguments = json!({}).into();
            call.extra = None;
        }
        Part::ToolCall(call)
    });
    after.parts.extend(calls);
    Arc::new(after)
}

/// Makes the history end with the answer of an output.
async fn settle(output: &mut AgentOutput, ctx: &RunContext) -> Result<()> {
    let Some(state) = LoopState::of(ctx) else { return Ok(()) };
    if output.last_agent.is_empty() {
        output.last_agent = ctx.name().into();
    }
    if state.answer.0.lock().is_known {
        return Ok(());
    }
    settle_in(&state, output, ctx).await?;
    state.session.end(true);
    match state.commit_answer() {
        Some(commit) => commit.await,
        None => Ok(()),
    }
}

async fn settle_in(state: &LoopState, output: &mut AgentOutput, ctx: &RunContext) -> Result<()> {
    let answer = state.answer.0.lock().message.clone();
    let Some(before) = answer else {
        if let Some(claim) = state.claim() {
            claim.await?;
        }
        if let Some(known) = state.asked_once(ctx)? {
            output.end_with(Arc::new(known.answer));
            return Ok(());
        }
        return settle_foreign(output, state, ctx).await;
    };
    if *before == output.answer {
        output.end_with(before);
        return Ok(());
    }
    let after = in_place_of(&before, output.answer.clone(), false);
    output.end_with(Arc::clone(&after));
    if *before != *after && state.session.replace_answer(&after, false) {
        state.answer.keep(&after, ctx);
        emit(ctx, &mut MessageReplaced { before: Some(before), after }).await?;
    }
    Ok(())
}

/// Adds the question and the answer of a layer that answered instead of the loop.
async fn settle_foreign(output: &mut AgentOutput, state: &LoopState, ctx: &RunContext) -> Result<()> {
    let question = std::mem::take(&mut state.answer.0.lock().question);
    let known = state.session.count_added();
    // An attempt of the loop that has failed, or an earlier run that was asked for once, has added the question itself.
    let resumes = state.resumes() == Resumes::Session;
    let question = if known == 0 && !resumes { question } else { Vec::new() };
    let once = ctx.own_extension::<AsksOnce>().map(|once| once.0.clone());
    let answer = in_place_of(&Message::assistant(""), output.answer.clone(), false);
    let messages = question.into_iter().map(Arc::new).chain([Arc::clone(&answer)]).collect();
    state.session.answer_instead(ctx, messages, once, resumes)?;
    state.answer.keep(&answer, ctx);
    output.end_with(answer);
    // The layer does not know which messages this run has added.
    output.messages = state.session.added();
    for message in state.session.added_after(known) {
        emit(ctx, &mut MessageAdded { message }).await?;
    }
    Ok(())
}

/// Binds the layer and the output function that settle the answer of a run.
pub(crate) fn bind(ctx: &RunContext) -> Result<()> {
    LAYERS.bind(ctx)?;
    SETTLE.bind(ctx)
}

static LAYERS: LazyLock<Stack<Agent>> =
    LazyLock::new(|| Stack::builder().innermost_in(Phase::Observe, KeepQuestion).build());

static SETTLE: LazyLock<MapValue<AgentOutput>> = LazyLock::new(|| {
    map_output_async(|output: &mut AgentOutput, ctx: &RunContext| Box::pin(settle(output, ctx)))
        .named("agent.answer")
        .last()
});

/// A layer around all layers that may answer instead of the loop. It keeps the question for the session.
#[derive(Debug)]
struct KeepQuestion;

impl Layer<Agent> for KeepQuestion {
    async fn call(&self, input: &AgentInput, ctx: &RunContext, next: Next<'_, Agent>) -> Result<AgentOutput> {
        let output = next.run(input).await?;
        if let Some(state) = LoopState::of(ctx) {
            let mut answer = state.answer.0.lock();
            if answer.message.is_none() {
                answer.question.clone_from(&input.messages);
            }
        }
        Ok(output)
    }

    fn name(&self) -> &str {
        "agent.question"
    }
}
