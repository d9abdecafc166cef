//! The parts of a structured answer while the model writes it: [`Partial`].

use std::collections::BTreeMap;
use std::mem::take;
use std::sync::Arc;

use emitree_emitter::{BoxError, Event, EventName};
use emitree_middleware::own_events::{OwnEvents, UserTexts};
use emitree_runtime::{AttemptDiscarded, Middleware, Result, RunContext};
use futures_core::future::BoxFuture;
use parking_lot::Mutex;
use serde::{Deserialize, Serialize};
use serde_json::Value;
use uuid::Uuid;

use super::structured::TOOL;
use emitree_agent::reply::{PartialJson, ToolCallDelta};
use emitree_agent::{ChatModel, NewToken};

/// The event `partial` of [`Structured`](super::Structured): a part of the answer that the model is writing. It has
/// passed the stages of the reply, but it was not checked against the type.
///
/// A string has an event with [`delta`](Self::delta) for each of its pieces. Each complete member, also such a string,
/// has an event with [`value`](Self::value), after the events of its own members. The last one is the whole answer, with
/// an empty path. What stands before the object, such as a sentence or a thought, has no events: see
/// [`PartialJson::in_text`].
///
/// ```
/// use std::sync::{Arc, Mutex};
/// use emitree_agent_kit::built_in::{Partial, Structured};
/// use emitree_agent::{Agent, AgentRun, ChatModel, Reply, ScriptedModel};
/// use schemars::JsonSchema;
/// use serde::Deserialize;
/// use serde_json::json;
///
/// #[derive(Deserialize, JsonSchema)]
/// struct Person {
///     name: String,
///     born: u32,
/// }
///
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), Box<dyn std::error::Error + Send + Sync>> {
/// let seen = Arc::new(Mutex::new(Vec::new()));
/// let to = Arc::clone(&seen);
/// let structured = Structured::of::<Person>();
/// structured.emitter().on("partial", move |partial: &mut Partial, _| to.lock().unwrap().push(partial.so_far()))?;
///
/// let reply = Reply::text(r#"{"name": "Ada", "born": 1815}"#).in_pieces(12);
/// let agent = Agent::builder("historian", ChatModel::new(ScriptedModel::new("test").reply(reply))?);
/// agent.with(structured).build()?.ask("Who?").on_token(|_| ()).await?;
/// assert_eq!(seen.lock().unwrap()[0], json!({"name": "Ad"}));
/// assert_eq!(seen.lock().unwrap().last(), Some(&json!({"name": "Ada", "born": 1815})));
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Debug, Serialize)]
#[non_exhaustive]
pub struct Partial {
    /// The id of the model's run. Another id means another answer, from its beginning.
    pub run_id: Uuid,
    /// The JSON pointer of the member, such as `/items/0/name`.
    pub path: String,
    /// The text by which the string has grown, if it is not complete.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub delta: Option<String>,
    /// The value of the member, if it is complete.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub value: Option<Value>,
    #[serde(skip)]
    answer: Arc<PartialJson>,
}

impl Partial {
    /// Builds the answer so far: the complete members, and the string that the model is writing. The cost is linear in
    /// the length of the answer, so call it only where you need the whole.
    #[must_use]
    pub fn so_far(&self) -> Value {
        self.answer.so_far().unwrap_or_default()
    }
}

/// The event `discarded` of [`Structured`](super::Structured): the parts of a run so far do not count, because the model
/// is asked again.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct PartialDiscarded {
    /// The id of the model's run.
    pub run_id: Uuid,
}

impl Event for Partial {
    const NAME: EventName = EventName::new("partial");
}

impl Event for PartialDiscarded {
    const NAME: EventName = EventName::new("discarded");
}

impl UserTexts for Partial {
    /// Changes nothing: the pieces of the reply were redacted before.
    fn user_texts(&mut self, _: &mut dyn FnMut(&mut String)) {}
}

impl UserTexts for PartialDiscarded {
    fn user_texts(&mut self, _: &mut dyn FnMut(&mut String)) {}
}

/// Emits the parts of the replies of an agent's model. It is bound to the runs below the agent's run.
#[derive(Debug)]
pub(super) struct WatchReplies {
    /// The id of the agent's run.
    agent: Uuid,
    own_events: OwnEvents,
}

impl WatchReplies {
    pub(super) fn of(agent: &RunContext, own_events: &OwnEvents) -> Self {
        Self { agent: agent.run_id(), own_events: own_events.clone() }
    }
}

impl Middleware for WatchReplies {
    fn bind(&self, ctx: &RunContext) -> Result<()> {
        // Only model calls of this very agent count: agents below have answers of their own. If nobody listens when a
        // model's run begins, its reply is not parsed.
        let is_heard = |run: &RunContext| run.run_id() == self.agent && self.own_events.has_listeners(run);
        if !ctx.is_run_of_type::<ChatModel>() || !ctx.parent().is_some_and(is_heard) {
            return Ok(());
        }
        let replies = Arc::new(Replies { own_events: self.own_events.clone(), answers: Mutex::default() });
        let of_tokens = Arc::clone(&replies);
        let of_calls = Arc::clone(&replies);
        ctx.emitter().observe_async("new_token", move |token: &NewToken, _| advance(&of_tokens, None, token.text()))?;
        ctx.emitter().observe_async("tool_call_delta", move |delta: &ToolCallDelta, _| {
            let text = if *delta.name == *TOOL { &*delta.arguments } else { "" };
            advance(&of_calls, Some(delta.index), text)
        })?;
        ctx.emitter().observe_async("attempt_discarded", move |_: &AttemptDiscarded, _| {
            let replies = Arc::clone(&replies);
            Box::pin(async move {
                replies.discard().await;
                Ok(())
            })
        })?;
        Ok(())
    }

    fn name(&self) -> &'static str {
        "structured"
    }
}

/// The reply of one run of a model.
struct Replies {
    own_events: OwnEvents,
    /// The answers so far: the text of the reply, and the arguments of the call with each number.
    answers: Mutex<BTreeMap<Option<usize>, Arc<PartialJson>>>,
}

fn advance<'a>(replies: &Arc<Replies>, call: Option<usize>, text: &'a str) -> BoxFuture<'a, Result<(), BoxError>> {
    let replies = Arc::clone(replies);
    Box::pin(async move {
        if !text.is_empty() {
            replies.advance(call, text).await;
        }
        Ok(())
    })
}

impl Replies {
    /// Reads a piece of the answer, and emits its parts.
    async fn advance(&self, call: Option<usize>, mut text: &str) {
        let Some(ctx) = RunContext::current() else { return };
        let Some(mut answer) = self.take(call) else { return };
        // Only an event that a listener has kept makes a copy of the answer necessary.
        while let Some(part) = Arc::make_mut(&mut answer).next_part(&mut text) {
            let mut partial = Partial {
                run_id: ctx.run_id(),
                path: part.path(),
                delta: part.delta().map(str::to_owned),
                value: part.value().cloned(),
                answer: Arc::clone(&answer),
            };
            self.own_events.emit_event(&ctx, &mut partial).await;
        }
        self.answers.lock().insert(call, answer);
    }

    /// Takes an answer out of the map while listeners are called. Returns `None` for a further call of the tool: only the
    /// first one can be the answer.
    fn take(&self, call: Option<usize>) -> Option<Arc<PartialJson>> {
        let mut answers = self.answers.lock();
        let is_further = call.is_some() && answers.keys().any(|other| other.is_some() && *other != call);
        if is_further {
            return None;
        }
        let begin = || Arc::new(if call.is_some() { PartialJson::new() } else { PartialJson::in_text() });
        Some(answers.remove(&call).unwrap_or_else(begin))
    }

    /// Discards the parts so far, if there are any.
    async fn discard(&self) {
        let answers = take(&mut *self.answers.lock());
        let has_parts = answers.values().any(|answer| answer.so_far().is_some());
        if let (true, Some(ctx)) = (has_parts, RunContext::current()) {
            self.own_events.emit_event(&ctx, &mut PartialDiscarded { run_id: ctx.run_id() }).await;
        }
    }
}
