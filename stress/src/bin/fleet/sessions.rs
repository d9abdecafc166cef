//! The sessions: their messages, and the agent that goes on with them.

use std::collections::BTreeSet;
use std::path::Path;

use emitree::agent::{Agent, ChatModel, ChatRequest, Reply, Role, ScriptedModel, ToolCall, tool_fn};
use emitree::middleware::approval::Approval;
use emitree::{Result, RunContext};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::json;

use crate::effects::Effects;
use crate::jobs::charge;

pub(crate) const QUEUE: &str = "fleet-sessions";
/// The answer of the agent when there is nothing to do any more.
pub(crate) const DONE: &str = "Done.";
/// The number of jobs for each session.
pub(crate) const JOBS: usize = 4;
/// The number of messages to a session.
const MESSAGES: usize = 6;
/// The end of the text of a message whose call needs an approval.
const ASKS: char = '?';

/// How a message is sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Way {
    Submit,
    FollowUp,
    Steer,
}

/// A message to a session.
#[derive(Clone, Debug)]
pub(crate) struct Letter {
    pub(crate) text: String,
    pub(crate) way: Way,
}

/// A session, and the messages of its two senders.
#[derive(Clone, Debug)]
pub(crate) struct Talk {
    pub(crate) id: String,
    /// The messages that the agent gets in this order, where it would end. The first one submits the session.
    pub(crate) requests: Vec<Letter>,
    /// The messages that the agent gets in this order, between its turns.
    pub(crate) hints: Vec<Letter>,
}

impl Talk {
    /// Creates a session in which the call of one message needs an approval.
    pub(crate) fn new(id: String, random: &mut fastrand::Rng) -> Self {
        let asks = random.usize(..MESSAGES);
        let letter = |n: usize, way| {
            let end = if n == asks { String::from(ASKS) } else { String::new() };
            Letter { text: format!("{id}/{n}{end}"), way }
        };
        let ways = [Way::Submit, Way::Submit, Way::FollowUp, Way::Submit];
        let requests: Vec<_> = ways.into_iter().enumerate().map(|(n, way)| letter(n, way)).collect();
        let hints = (requests.len()..MESSAGES).map(|n| letter(n, Way::Steer)).collect();
        Self { id, requests, hints }
    }

    pub(crate) fn letters(&self) -> impl Iterator<Item = &Letter> {
        self.requests.iter().chain(&self.hints)
    }
}

/// Creates the sessions beside a number of jobs.
pub(crate) fn talks(jobs: usize, random: &mut fastrand::Rng) -> Vec<Talk> {
    (0..jobs.div_ceil(JOBS)).map(|n| Talk::new(format!("session-{n:04}"), random)).collect()
}

/// Returns `true` if the call for a message needs an approval.
pub(crate) fn asks(text: &str) -> bool {
    text.ends_with(ASKS)
}

/// The arguments of the tool.
#[derive(Deserialize, Serialize, JsonSchema)]
struct Charge {
    /// The text of a message.
    message: String,
}

/// Returns the message that a call is about.
pub(crate) fn message_of(call: &ToolCall) -> Option<&str> {
    call.arguments.json()?["message"].as_str()
}

/// Calls the tool for each message that has no call yet. If there is none, it answers.
fn reply(request: &ChatRequest) -> Reply {
    let calls = request.messages.iter().flat_map(|message| message.tool_calls());
    let called: BTreeSet<_> = calls.filter_map(message_of).collect();
    let users = request.messages.iter().filter(|message| message.role == Role::User);
    let open = users.map(|message| message.text()).filter(|text| !called.contains(&**text));
    let calls: Vec<_> = open.map(|message| ("charge", json!({"message": message}))).collect();
    if calls.is_empty() { Reply::text(DONE) } else { Reply::calls(calls) }
}

/// Creates the agent, whose tool is not idempotent.
pub(crate) fn agent(folder: &Path) -> Result<Agent> {
    let effects = Effects::new(folder);
    let charges = tool_fn("charge", "Charges for a message", move |arguments: Charge, _: RunContext| {
        let effects = effects.clone();
        async move { charge(&effects, &arguments.message).await }
    })?;
    let approval = Approval::by_interrupt().when(|request| request.input["message"].as_str().is_some_and(asks));
    Agent::builder("clerk", ChatModel::new(ScriptedModel::by("clerk", reply))?)
        .tool(charges.middleware(approval))
        .build()
}
