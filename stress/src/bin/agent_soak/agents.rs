//! The agents of the soak. Their model and their only tool follow the plans.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};

use emitree::agent::{Agent, ChatModel, ChatRequest, Reply, Role, ScriptedModel, Tool, tool_fn};
use emitree::error::Interrupt;
use emitree::{Error, Result, RunContext};
use schemars::JsonSchema;
use serde::Deserialize;

use crate::plan::{Act, Plan};

/// How often the function of each call was called, by the key of the call.
#[derive(Clone, Debug, Default)]
pub(crate) struct Begun(Arc<Mutex<HashMap<String, u32>>>);

impl Begun {
    pub(crate) fn add(&self, key: &str) {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner).entry(key.to_owned()).or_default() += 1;
    }

    pub(crate) fn count(&self, key: &str) -> u32 {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).get(key).copied().unwrap_or(0)
    }

    pub(crate) fn clear(&self) {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).clear();
    }
}

#[derive(Deserialize, JsonSchema)]
struct Call {
    key: String,
    act: Act,
    asks: u64,
}

/// Returns an agent whose tools run in its task, and an agent whose tools run in tasks of their own.
pub(crate) fn agents(seed: u64, begun: &Begun) -> Result<[Agent; 2]> {
    let sub = Arc::new(Agent::builder("sub", model(seed)?).tool(tool(begun, None)?).build()?);
    let agent = |spawns| {
        let tool = tool(begun, Some(Arc::clone(&sub)))?;
        Agent::builder("soak", model(seed)?).tool(tool).spawn_tools(spawns).build()
    };
    Ok([agent(false)?, agent(true)?])
}

fn model(seed: u64) -> Result<ChatModel> {
    Ok(ChatModel::new(ScriptedModel::by("planned", move |request| reply(seed, request)))?)
}

/// Returns the reply to a request: the last user message has the number of the run, and each message of the assistant
/// after it is a turn.
fn reply(seed: u64, request: &ChatRequest) -> Reply {
    let asked = request.messages.iter().rposition(|message| message.role == Role::User).unwrap_or(0);
    let number = request.messages[asked].text();
    let since = &request.messages[asked..];
    let turn = since.iter().filter(|message| message.role == Role::Assistant).count();
    Plan::draw(seed, number.parse().unwrap_or(0)).reply(turn)
}

fn tool(begun: &Begun, sub: Option<Arc<Agent>>) -> Result<Tool> {
    let begun = begun.clone();
    let work = move |call: Call, _: RunContext| {
        begun.add(&call.key);
        act(call, sub.clone())
    };
    Ok(tool_fn("act", "Acts as planned", work)?)
}

async fn act(call: Call, sub: Option<Arc<Agent>>) -> Result<String> {
    match call.act {
        Act::Waits => {
            for _ in 0..call.asks % 7 {
                tokio::task::yield_now().await;
            }
        }
        Act::Fails => return Err(Error::new("planned")),
        Act::Panics => panic!("planned"),
        Act::IsFatal => return Err(Error::new("planned").fatal(true)),
        Act::Halts => return Err(Error::halted("soak", "planned")),
        Act::Interrupts => return Err(Error::interrupted(Interrupt::new("planned", "go on?"))),
        Act::AsksSubAgent => {
            let Some(sub) = sub else { return Err(Error::new("a sub-agent asks no other")) };
            return Ok(sub.ask(call.asks.to_string()).await?.text());
        }
        Act::Returns | Act::IsUnknown | Act::IsWrong => {}
    }
    Ok("done".to_owned())
}
