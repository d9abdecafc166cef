//! Transfers of a conversation to another agent.
//!
//! 1. The model calls a tool, `transfer_to_<agent>`. A gate answers all other calls of the turn.
//! 2. The tool runs the target, with the conversation in a session of its own. [`AppendReplies`] appends the stages and
//!    guards of the source to the model calls of the target.
//! 3. The loop of the source ends with the answer of the target. An answer that the target has changed after its model
//!    gave it passes the stages and guards of the source once more.

use std::collections::HashSet;
use std::fmt;
use std::sync::{Arc, OnceLock};

use emitree_emitter::{Event, EventName};
use emitree_runtime::{Error, Middleware, Result, RunContext, Runnable};
use parking_lot::Mutex;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::agent::middleware::{Installed, Joined};
use crate::agent::turn::{LoopState, Resumes};
use crate::model::emit;
use crate::place::action::CallResult;
use crate::place::batch::GatedCall;
use crate::session::turn::CallInTurn;
use crate::{
    Agent, AgentInput, AgentMiddleware, AgentOutput, CallId, FinishReason, History, Hooks, Message, Messages, Role,
    Session, Tool, ToolError, ToolOutput, tool_fn,
};

/// Another agent to which a model may transfer the conversation, with
/// [`AgentBuilder::handoff`](crate::AgentBuilder::handoff).
///
/// The model calls a tool `transfer_to_<name> {reason}`. The other agent, the target, then runs below the tool's run. It
/// receives the conversation, but neither the prompt of its source nor the open call, in a session of its own, and
/// streams if the source does. The last user message and the messages after it are its input, which its input functions
/// and guards receive. Its answer is the answer of the source's run
/// ([`AgentOutput::last_agent`](crate::AgentOutput::last_agent) names it), and the session of the source holds question,
/// call, result and answer. So either agent can go on with that session.
///
/// ```
/// use emitree_agent::kinds::Handoff;
/// use emitree_agent::{Agent, AgentRun, ChatModel, ScriptedModel, Session};
/// use serde_json::json;
///
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> emitree_runtime::Result<()> {
/// let clerk = ScriptedModel::new("clerk").text("You have paid twice.").text("Until Friday.");
/// let billing = Agent::builder("billing", ChatModel::new(clerk)?).build()?;
/// let script = ScriptedModel::new("helper").call("transfer_to_billing", json!({"reason": "an invoice"}));
/// let support = Agent::builder("support", ChatModel::new(script)?)
///     .handoff(Handoff::to(&billing, "Questions about invoices"))
///     .build()?;
///
/// let session = Session::new();
/// let answer = support.ask("My invoice is wrong.").session(&session).await?;
/// assert_eq!((answer.text().as_str(), answer.last_agent()), ("You have paid twice.", "billing"));
/// let answer = billing.ask("When do I get it back?").session(&session).await?;
/// assert_eq!(answer.text(), "Until Friday.");
/// # Ok(())
/// # }
/// ```
///
/// The first transfer of a turn wins. The other calls of that turn are answered "not executed: the conversation was
/// transferred". If the target fails, or if there have been too many
/// [transfers in a row](crate::AgentBuilder::max_handoffs), the model of the source reads an error, and goes on.
///
/// The replies of the target's model pass the chunk stages and the guards at `model.call` of the target, and then of the
/// source, once each; what a run above has bound to both is passed once. Guards, budgets and aborts of runs above reach
/// the target as they reach any run below.
#[derive(Clone)]
pub struct Handoff {
    name: String,
    description: String,
    find: Arc<dyn Fn() -> Option<Agent> + Send + Sync>,
    filter: Option<Arc<MessageFilter>>,
}

type MessageFilter = dyn Fn(&mut Messages) + Send + Sync;

impl Handoff {
    /// Makes a transfer to an agent. The description tells the model when to transfer.
    pub fn to(agent: &Agent, description: impl Into<String>) -> Self {
        let found = agent.clone();
        Self::later(agent.name(), description, move || Some(found.clone()))
    }

    /// Makes a transfer to an agent that is built later, for agents that name each other. `find` is called at each
    /// transfer. If it returns `None`, the model reads an error.
    ///
    /// An agent in a cell that its own handoffs share is never dropped. Keep such a cell in a static, or empty it.
    pub fn later(
        name: impl Into<String>,
        description: impl Into<String>,
        find: impl Fn() -> Option<Agent> + Send + Sync + 'static,
    ) -> Self {
        Self { name: name.into(), description: description.into(), find: Arc::new(find), filter: None }
    }

    /// Changes the messages that the target receives. They must be a valid conversation
    /// ([`History::try_from`](crate::History)): otherwise the model of the source reads the error.
    #[must_use]
    pub fn filter(mut self, filter: impl Fn(&mut Messages) + Send + Sync + 'static) -> Self {
        self.filter = Some(Arc::new(filter));
        self
    }

    fn tool_name(&self) -> String {
        format!("transfer_to_{}", self.name)
    }

    fn tool(&self, most: u32) -> Result<Tool, ToolError> {
        let handoff = self.clone();
        let tool = tool_fn(self.tool_name(), self.description.clone(), move |transfer: Transfer, ctx: RunContext| {
            let handoff = handoff.clone();
            async move { handoff.transfer(transfer.reason, most, &ctx).await }
        });
        // The target goes on with its conversation.
        tool.map(Tool::idempotent)
    }

    /// Runs the target, and returns its answer as the answer of the source.
    async fn transfer(&self, reason: String, most: u32, ctx: &RunContext) -> Result<ToolOutput> {
        let outside = || Error::new(format!("`{}` was called outside of its agent", self.tool_name()));
        let source = ctx.extension::<LoopState>().ok_or_else(outside)?;
        let from = source.agent_run(ctx).ok_or_else(outside)?;
        let target =
            (self.find)().ok_or_else(|| Error::new(format!("the agent `{}` has not been built yet", self.name)))?;
        if source.handoffs.in_a_row >= most {
            return Err(Error::new(format!(
                "the conversation was transferred {most} times in a row, which is the limit (`max_handoffs`): answer it \
                 yourself"
            )));
        }
        // A resumed run has the turn of this call in its history already, and the target must not see it.
        let mut messages = source.session.history_before_turn().messages().to_vec();
        if let Some(filter) = &self.filter {
            filter(&mut messages);
        }
        // An invalid conversation of the filter is an error here, before listeners hear of a transfer.
        let (before, question) = split_question(&History::try_from(messages)?)?;
        let mut event = HandedOff { from: from.name().to_owned(), to: target.name().to_owned(), reason };
        emit(&from, &mut event).await?;

        let mut input = AgentInput::new(question);
        let of_source = source.handoffs.source.get();
        input.options.stream = of_source.filter(|source| source.streams).map(|_| true);
        let append = AppendReplies::new(of_source.map_or(&[], |source| &source.installed), &target);
        let (session, resumes) = session_of(&target, before, self.filter.is_some(), ctx)?;
        let transferred = Transferred { in_a_row: source.handoffs.in_a_row + 1, session, resumes };
        let output = target.ask(input).own_extension(transferred).middleware(append).await?;
        let text = output.text();
        // Set only after the target has succeeded: after a transfer that failed, the source answers itself.
        *source.handoffs.answered.lock() = Some(Answered::of(&output, &text, ctx));
        Ok(ToolOutput::new(text).answer())
    }
}

/// Returns the session of the target of a transfer, which the source's session keeps until the call has settled.
fn session_of(target: &Agent, before: History, is_filtered: bool, ctx: &RunContext) -> Result<(Session, Resumes)> {
    let (Some(call), Some(key)) = (ctx.own_extension::<CallInTurn>(), ctx.key()) else {
        return Ok((Session::from(before), Resumes::No));
    };
    let key = key.child(target.name())?;
    let (first, messages) =
        if is_filtered { (None, before.messages().to_vec()) } else { (Some(before.messages().len()), Vec::new()) };
    let (session, is_known) = call.turn.session_below(call.position, &key, first, messages);
    Ok((session, if is_known { Resumes::Inside } else { Resumes::No }))
}

/// Splits a conversation before its last user message, which is the input of the target, so that its input functions
/// and guards receive it.
fn split_question(conversation: &History) -> Result<(History, Vec<Message>)> {
    let messages = conversation.messages();
    let asked = messages.iter().rposition(|message| message.role == Role::User).unwrap_or(messages.len());
    let (before, question) = messages.split_at(asked);
    Ok((History::try_from(before.to_vec())?, question.iter().map(|message| Message::clone(message)).collect()))
}

impl fmt::Debug for Handoff {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Handoff").field("to", &self.name).finish_non_exhaustive()
    }
}

#[derive(Deserialize, JsonSchema)]
struct Transfer {
    /// The reason for the transfer, in a sentence.
    reason: String,
}

/// The event `handoff` on the run of the agent that transfers the conversation, before the target begins.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct HandedOff {
    /// The name of the agent that transfers the conversation.
    pub from: String,
    /// The name of the agent that receives it.
    pub to: String,
    /// The reason that the model gave.
    pub reason: String,
}

impl Event for HandedOff {
    const NAME: EventName = EventName::new("handoff");
}

/// The handoffs of an agent.
#[derive(Debug)]
pub(crate) struct Handoffs {
    pub(crate) all: Vec<Handoff>,
    /// The maximum number of transfers in a row.
    pub(crate) most: u32,
}

impl AgentMiddleware for Handoffs {
    fn id(&self) -> &'static str {
        "handoffs"
    }

    fn install(&self, hooks: &mut Hooks) -> Result<()> {
        for handoff in &self.all {
            hooks.tool(handoff.tool(self.most));
        }
        let names: HashSet<_> = self.all.iter().map(Handoff::tool_name).collect();
        hooks.on_gate(move |batch, _| {
            let is_transfer = |gated: &GatedCall| names.contains(&gated.call.name);
            // Among the open calls: a transfer that a gate has decided on does not win (A18).
            let first = batch.open().find(|gated| is_transfer(gated)).map(|gated| gated.call.id.clone());
            let Some(first) = first else { return };
            for gated in batch.open().filter(|gated| gated.call.id != first) {
                gated.answer(ToolOutput::error("not executed: another call of this turn transfers the conversation"));
            }
        });
        Ok(())
    }

    fn is_guard(&self) -> bool {
        true
    }
}

/// The transfers of an agent's run.
#[derive(Debug, Default)]
pub(crate) struct HandoffState {
    /// The number of transfers that have led to this run.
    pub(crate) in_a_row: u32,
    /// Set if the agent has handoffs.
    pub(crate) source: OnceLock<Source>,
    /// The answer of the last target.
    answered: Mutex<Option<Answered>>,
}

impl HandoffState {
    pub(crate) fn of(ctx: &RunContext) -> Self {
        let in_a_row = ctx.own_extension::<Transferred>().map_or(0, |transferred| transferred.in_a_row);
        Self { in_a_row, ..Self::default() }
    }

    /// Forgets the answer of an earlier turn.
    pub(crate) fn begin_turn(&self) {
        *self.answered.lock() = None;
    }

    /// Returns the answer of the target of a turn with these results, if it is the answer of the run. A layer may have
    /// kept it from being a result, and the first answer of a turn counts.
    pub(crate) fn settle(&self, results: &[CallResult]) -> Option<Answered> {
        let mut answered = self.answered.lock();
        let first = results.iter().find(|result| result.output.is_answer).map(|result| &result.call.id);
        *answered = answered.take().filter(|answered| answered.call.as_ref() == first);
        answered.clone()
    }

    /// Returns the name of the agent that gave the answer of the last turn, or an empty name without a transfer.
    pub(crate) fn last_agent(&self) -> Arc<str> {
        self.answered.lock().as_ref().map(|answered| Arc::clone(&answered.by)).unwrap_or_default()
    }
}

/// The transfer that has led to a run: an extension of the target's run.
pub(crate) struct Transferred {
    /// The number of transfers in a row.
    in_a_row: u32,
    /// The conversation. It ends with the run, so it is no session of the caller, which other runs may continue.
    pub(crate) session: Session,
    pub(crate) resumes: Resumes,
}

/// The agent that transfers the conversation.
#[derive(Debug)]
pub(crate) struct Source {
    pub(crate) installed: Vec<Arc<Installed>>,
    pub(crate) streams: bool,
}

/// The answer of a target.
#[derive(Clone, Debug)]
pub(crate) struct Answered {
    /// The id of the call that transferred the conversation.
    call: Option<String>,
    /// The name of the agent that gave the answer.
    by: Arc<str>,
    /// The text, if it has passed the stages and the guards of the source.
    pub(crate) passed: Option<String>,
    /// The reason why the model of the target stopped.
    pub(crate) finish_reason: Option<FinishReason>,
}

impl Answered {
    fn of(output: &AgentOutput, text: &str, ctx: &RunContext) -> Self {
        let call = ctx.own_extension::<CallId>().map(|id| id.0.clone());
        // Layers that answer instead of the loop count no turns.
        let has_passed = output.turns > 0 && output.model_answer().text() == text;
        let finish_reason = output.finish_reason.clone();
        Self { call, by: output.last_agent().into(), passed: has_passed.then(|| text.to_owned()), finish_reason }
    }
}

/// Appends the stages and the guards of a source to the model calls of its target.
#[derive(Debug)]
struct AppendReplies(Vec<Arc<Installed>>);

impl AppendReplies {
    fn new(source: &[Arc<Installed>], target: &Agent) -> Self {
        let own = target.installed();
        let is_own = |it: &Arc<Installed>| own.iter().any(|own| own.is_same_middleware(it));
        Self(source.iter().filter(|it| !is_own(it)).cloned().collect())
    }
}

impl Middleware for AppendReplies {
    fn bind(&self, ctx: &RunContext) -> Result<()> {
        let joined = ctx.own_extension_or_default::<Joined>();
        // A middleware that a run above has bound to the source joins the target too.
        let inherited = joined.all();
        let is_inherited = |it: &Arc<Installed>| inherited.iter().any(|other| other.is_same_middleware(it));
        for installed in self.0.iter().filter(|it| !is_inherited(it)) {
            if let Some(replies) = installed.only_replies() {
                joined.add(Arc::new(replies));
            }
        }
        Ok(())
    }

    fn name(&self) -> &'static str {
        "handoff"
    }
}
