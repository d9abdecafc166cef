//! Facts: what an event of a run means for a page. This is the only code that reads events.

use std::sync::Arc;

use emitree_agent::kinds::HandedOff;
use emitree_agent::reply::{ToolCallDelta, ToolCallStarted};
use emitree_agent::{
    Agent, AgentInput, AgentOutput, AgentStart, CallId, ChatModel, Message, MessageAdded, MessageReplaced, NewToken,
    Role, RunResumed, Tool, ToolCall, ToolCallIdentified, ToolResponse, ToolResult,
};
use emitree_emitter::{AnyEvent, EventMeta, EventName, FnMatcher, matcher_fn};
use emitree_runtime::{AttemptDiscarded, Failure, Finish, RunContext, Stage, Status};
use serde_json::Value;
use uuid::Uuid;

use crate::step::AgentEnd;

/// A fact about an agent.
#[derive(Clone, Debug)]
pub(crate) struct Fact {
    /// The run of the agent.
    pub(crate) agent: Uuid,
    pub(crate) news: News,
}

/// The news of a fact.
#[derive(Clone, Debug)]
pub(crate) enum News {
    /// The agent has begun. `above` has the runs above, innermost first.
    Started {
        name: Arc<str>,
        call: Option<Arc<str>>,
        above: Vec<Uuid>,
    },
    Ended(AgentEnd),
    /// The run goes on with the calls that have these ids.
    Resumed(Vec<String>),
    Token {
        text: String,
        is_reasoning: bool,
    },
    CallStarted {
        id: Arc<str>,
        name: Arc<str>,
    },
    CallDelta {
        id: Arc<str>,
        text: String,
    },
    Called(ToolCall),
    /// A call has a result.
    Returned {
        call: ToolCall,
        result: ToolResult,
    },
    /// A message of the model has entered the history.
    Said(Arc<Message>),
    /// Another message has taken the place of the last one.
    Replaced(Arc<Message>),
    HandsOff {
        to: String,
    },
    /// The reply that arrives, or has just arrived, does not hold.
    ReplyDropped,
    /// An attempt of this run was discarded.
    RunDropped(Uuid),
    Shown {
        id: Uuid,
        path: Arc<str>,
        value: Value,
    },
}

/// The names of the events that have facts.
const NAMES: [EventName; 13] = [
    EventName::new("start"),
    EventName::new("resumed"),
    EventName::new("new_token"),
    EventName::new("tool_call_started"),
    EventName::new("tool_call_delta"),
    EventName::new("tool_call_identified"),
    EventName::new("tool_response"),
    EventName::new("message"),
    EventName::new("message_replaced"),
    EventName::new("handoff"),
    EventName::new("attempt_discarded"),
    EventName::new("run.error"),
    EventName::new("run.finish"),
];

/// Returns a matcher of all events that have facts.
pub(crate) fn matcher() -> FnMatcher {
    matcher_fn(|_| true).named(NAMES)
}

impl Fact {
    /// Reads an event. Must be called in a listener of the event, because the current run is then the event's run.
    pub(crate) fn of(event: &dyn AnyEvent, meta: &EventMeta<'_>) -> Option<Self> {
        let run = RunContext::current()?;
        let news = match Stage::of(meta) {
            Some(stage) => of_stage(stage, event, &run)?,
            None => of_event(event, &run)?,
        };
        Some(Self { agent: agent_of(&run)?.run_id(), news })
    }

    /// Makes the fact of an event that the program shows.
    pub(crate) fn shown(event: &dyn AnyEvent, meta: &EventMeta<'_>) -> Option<Self> {
        let run = RunContext::current()?;
        let news = News::Shown { id: meta.id(), path: meta.path().into(), value: event.to_json() };
        Some(Self { agent: run.run_id(), news })
    }
}

/// Returns the agent whose reply a run is part of. A model that a tool asks is part of no reply.
fn agent_of(run: &RunContext) -> Option<&RunContext> {
    let mut above = Some(run);
    while let Some(run) = above {
        if run.is_run_of_type::<Agent>() {
            return Some(run);
        }
        above = run.parent();
    }
    None
}

fn of_stage(stage: Stage, event: &dyn AnyEvent, run: &RunContext) -> Option<News> {
    match stage {
        Stage::Error if run.is_run_of_type::<ChatModel>() && is_of_reply(run) => {
            let error = event.downcast_ref::<Failure>()?.error();
            (error.is_denied() || error.is_halted()).then_some(News::ReplyDropped)
        }
        Stage::Finish if run.is_run_of_type::<Agent>() => {
            let finish = event.downcast_ref::<Finish<AgentInput, AgentOutput>>()?;
            Some(News::Ended(match finish.outcome().status() {
                Status::Success => AgentEnd::Answered,
                Status::Interrupted => AgentEnd::Asks,
                Status::Denied | Status::Halted => AgentEnd::Withheld,
                _ => AgentEnd::Failed,
            }))
        }
        _ => None,
    }
}

fn of_event(event: &dyn AnyEvent, run: &RunContext) -> Option<News> {
    if let Some(NewToken { text, is_reasoning, .. }) = event.downcast_ref() {
        return is_of_reply(run).then(|| News::Token { text: text.clone(), is_reasoning: *is_reasoning });
    }
    if let Some(ToolCallDelta { id, arguments, .. }) = event.downcast_ref() {
        let id = id.clone().filter(|_| is_of_reply(run))?;
        return Some(News::CallDelta { id, text: arguments.clone() });
    }
    if let Some(ToolCallStarted { id, name, .. }) = event.downcast_ref() {
        let id = id.clone().filter(|_| is_of_reply(run))?;
        return Some(News::CallStarted { id, name: Arc::clone(name) });
    }
    if let Some(ToolCallIdentified { call, .. }) = event.downcast_ref() {
        return Some(News::Called(call.clone()));
    }
    if let Some(ToolResponse { call, result, .. }) = event.downcast_ref() {
        return Some(News::Returned { call: call.clone(), result: result.clone() });
    }
    if let Some(MessageAdded { message, .. }) = event.downcast_ref() {
        return (message.role == Role::Assistant).then(|| News::Said(Arc::clone(message)));
    }
    if let Some(MessageReplaced { after, .. }) = event.downcast_ref() {
        return (after.role == Role::Assistant).then(|| News::Replaced(Arc::clone(after)));
    }
    if event.is::<AttemptDiscarded>() {
        let is_reply = run.is_run_of_type::<ChatModel>() && is_of_reply(run);
        return Some(if is_reply { News::ReplyDropped } else { News::RunDropped(run.run_id()) });
    }
    if let Some(RunResumed { executed, demoted, .. }) = event.downcast_ref() {
        return Some(News::Resumed(executed.iter().chain(demoted).cloned().collect()));
    }
    if let Some(HandedOff { to, .. }) = event.downcast_ref() {
        return Some(News::HandsOff { to: to.clone() });
    }
    event.is::<AgentStart>().then(|| started(run))
}

/// Returns `true` if a run is an agent or the model that the agent asks, and not a model that a tool asks.
fn is_of_reply(run: &RunContext) -> bool {
    let mut above = Some(run);
    while let Some(run) = above {
        if run.is_run_of_type::<Agent>() {
            return true;
        }
        if run.is_run_of_type::<Tool>() {
            return false;
        }
        above = run.parent();
    }
    false
}

fn started(run: &RunContext) -> News {
    let (mut above, mut call) = (Vec::new(), None);
    let mut next = run.parent();
    while let Some(parent) = next {
        above.push(parent.run_id());
        if call.is_none() {
            call = parent.own_extension::<CallId>().map(|id| Arc::from(&*id.0));
        }
        next = parent.parent();
    }
    News::Started { name: run.name().into(), call, above }
}
