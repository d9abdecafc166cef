//! The middlewares of `emitree_agent_kit::built_in`, in the requests that a model receives.

mod ask_user;
mod bound;
mod call_limit;
mod clear_tool_results;
mod compactions;
mod guardrail;
#[path = "../../../tests/support/journal.rs"]
mod journal;
mod large_results;
mod more_than_json;
mod partial;
mod parts;
mod properties;
mod sliding_window;
mod structured;
mod summarize;
#[path = "../../../agent/tests/support/mod.rs"]
#[allow(dead_code, reason = "each binary uses a part")]
mod support;
mod title;
mod todo_list;
mod token_counter;
mod tool_selector;

use std::sync::Arc;

use emitree_agent::{
    Agent, AgentBuilder, AgentInput, AgentMiddleware, AgentRun, ChatModel, ChatRequest, History, Message, Part, Role,
    ScriptedModel, Session, ToolCall, ToolResult, joins, tool_fn,
};
use emitree_runtime::{Result, RunContext, for_tree};
use serde_json::json;

use crate::support::Text;

/// Returns the messages in short: the first letter of the role, `!` for a result that is an error, and the text, the
/// names of the calls or the results.
pub(crate) fn short(messages: &[Arc<Message>]) -> Vec<String> {
    let part = |part: &Part| match part {
        Part::Text { content } => content.clone(),
        Part::ToolCall(call) => format!("{}?", call.name),
        Part::ToolCallResponse(result) => {
            format!("{}{}", if result.is_error { "!" } else { "" }, result.response.as_str().unwrap_or_default())
        }
        other => format!("{other:?}"),
    };
    let parts = |message: &Message| message.parts.iter().map(part).collect::<Vec<_>>().join(" ");
    messages.iter().map(|message| format!("{} {}", &message.role.as_str()[..1], parts(message))).collect()
}

/// A turn with one call of a tool, and its result.
pub(crate) fn call(tool: &str, result: &str) -> [Message; 2] {
    let asks = Message::assistant("").with_call(ToolCall::new("c", tool, json!({})));
    [asks, Message::tool([ToolResult::new("c", result)])]
}

/// A user's question, and the answer.
pub(crate) fn talk(n: usize) -> [Message; 2] {
    [Message::user(format!("u{n}")), Message::assistant(format!("a{n}"))]
}

pub(crate) fn session_of(messages: impl IntoIterator<Item = Message>) -> Result<Session> {
    Ok(History::try_from(messages.into_iter().collect::<Vec<_>>())?.into())
}

/// Returns an agent with tools that are called `x`, `todo` and `a`. They are never called.
pub(crate) fn agent_with_tools(script: &ScriptedModel) -> AgentBuilder {
    let tool = |name| tool_fn(name, "Is not called", |_: Text, _: RunContext| async { Ok("") });
    let builder = Agent::builder("friend", ChatModel::new(script.clone()).expect("a model"));
    ["x", "todo", "a"].into_iter().fold(builder, |builder, name| builder.tool(tool(name)))
}

/// Continues a conversation without a new message. Returns the request that the model receives.
pub(crate) async fn request_of(session: &Session, middleware: impl AgentMiddleware) -> Result<ChatRequest> {
    let script = ScriptedModel::new("test").text("answer");
    let agent = agent_with_tools(&script).with(middleware).build()?;
    agent.ask(AgentInput::default()).session(session).await?;
    Ok(script.requests().remove(0))
}

/// The request of [`request_of`] in short.
pub(crate) async fn shown(
    messages: impl IntoIterator<Item = Message>,
    middleware: impl AgentMiddleware,
) -> Result<Vec<String>> {
    Ok(short(&request_of(&session_of(messages)?, middleware).await?.messages))
}

/// Returns the requests in short if the middleware is bound to the agent, to its run, and for the tree of an agent
/// above.
pub(crate) async fn shown_in_each_way<M: AgentMiddleware + Clone>(
    messages: &[Message],
    middleware: M,
) -> Result<[Vec<String>; 3]> {
    let script = ScriptedModel::by("test", |_| emitree_agent::Reply::text("answer"));
    let agent = Agent::builder("friend", ChatModel::new(script.clone())?).build()?;
    let of_agent = shown(messages.to_vec(), middleware.clone()).await?;
    agent.ask(messages.to_vec()).with(middleware.clone()).await?;
    let below = (agent.clone(), messages.to_vec());
    let ask = tool_fn("ask", "Asks", move |_: Text, _: RunContext| {
        let (agent, messages) = below.clone();
        async move { Ok(agent.ask(messages).await?.text()) }
    });
    let above = ScriptedModel::new("above").call("ask", json!({"text": ""})).text("done");
    let above = Agent::builder("above", ChatModel::new(above)?).tool(ask).build()?;
    above.ask("go").middleware(for_tree(joins(middleware))).await?;
    let requests = script.requests();
    Ok([of_agent, short(&requests[0].messages), short(&requests[1].messages)])
}

/// Returns the error of `build`, and of a run that the middleware is added to.
pub(crate) async fn refused<M: AgentMiddleware + Clone>(middleware: M) -> String {
    let model = || ChatModel::new(ScriptedModel::new("test").text("answer")).expect("a model");
    let error = Agent::builder("friend", model()).with(middleware.clone()).build().expect_err("refused").to_string();
    let agent = Agent::builder("friend", model()).build().expect("an agent");
    let of_run = agent.ask("go").with(middleware).await.expect_err("refused");
    assert_eq!(of_run.to_string(), error);
    error
}

/// Returns the position of the last user message.
pub(crate) fn last_user(messages: &[Arc<Message>]) -> Option<&Arc<Message>> {
    messages.iter().rfind(|message| message.role == Role::User)
}
