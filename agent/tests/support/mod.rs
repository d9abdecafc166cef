//! Tools, models and agents that tests share.

use std::sync::{Arc, Mutex};

use emitree_agent::{
    Agent, AgentBuilder, AgentOutput, ChatModel, ChatResponse, History, Message, ScriptedModel, Session, Tool, tool_fn,
};
use emitree_runtime::{Error, Guard, Result, RunContext};
use schemars::JsonSchema;
use serde::Deserialize;

#[derive(Deserialize, JsonSchema)]
pub(crate) struct Text {
    pub(crate) text: String,
}

/// The arguments of a tool that takes none.
#[derive(Deserialize, JsonSchema)]
pub(crate) struct Nothing {}

/// A tool that returns its argument in upper case.
pub(crate) fn shout() -> Tool {
    tool_fn("shout", "Shouts", |args: Text, _: RunContext| async move { Ok(args.text.to_uppercase()) }).expect("a tool")
}

/// A tool that fails.
pub(crate) fn fail(name: &str, error: impl Fn() -> Error + Send + Sync + 'static) -> Tool {
    let error = Arc::new(error);
    tool_fn(name, "Fails", move |_: Text, _: RunContext| {
        let error = Arc::clone(&error);
        async move { Err::<String, _>(error()) }
    })
    .expect("a tool")
}

pub(crate) fn agent(script: &ScriptedModel) -> AgentBuilder {
    Agent::builder("tester", ChatModel::new(script.clone()).expect("a model")).tool(shout())
}

/// A log of lines that hooks and listeners write.
#[derive(Clone, Debug, Default)]
pub(crate) struct Log(Arc<Mutex<Vec<String>>>);

impl Log {
    pub(crate) fn add(&self, line: impl Into<String>) {
        self.0.lock().expect("no panic").push(line.into());
    }

    pub(crate) fn lines(&self) -> Vec<String> {
        self.0.lock().expect("no panic").clone()
    }
}

/// A guard that logs each reply, and denies replies with `forbidden`.
#[derive(Debug)]
pub(crate) struct NotForbidden(pub(crate) Log);

impl Guard<ChatModel> for NotForbidden {
    async fn check_output(&self, reply: &ChatResponse, _: &RunContext) -> Result<()> {
        self.0.add(format!("guard {}", reply.text()));
        if reply.text().contains("forbidden") { Err(Error::new("a forbidden word")) } else { Ok(()) }
    }

    fn name(&self) -> &str {
        "not_forbidden"
    }
}

/// Returns the tool results in the messages, with `!` in front of errors.
pub(crate) fn results(messages: &[Arc<Message>]) -> Vec<String> {
    let results = messages.iter().flat_map(|message| message.tool_results());
    let text = |value: &serde_json::Value| value.as_str().map_or_else(|| value.to_string(), str::to_owned);
    results.map(|result| format!("{}{}", if result.is_error { "!" } else { "" }, text(&result.response))).collect()
}

/// Returns the history of a session. Panics if the history is not valid, because deserializing it checks it.
pub(crate) fn assert_valid(session: &Session) -> History {
    let history = session.history();
    let json = serde_json::to_value(&history).expect("JSON");
    assert_eq!(serde_json::from_value::<History>(json).expect("a valid history"), history);
    history
}

/// Returns the texts of the messages in a session. Panics if the history is not valid.
pub(crate) fn texts(session: &Session) -> Vec<String> {
    assert_valid(session).messages().iter().map(|message| message.text()).collect()
}

/// Output middleware that requests a retry if the answer is `bad`.
pub(crate) fn refuse_bad(output: &mut AgentOutput, _: &RunContext) -> Result<()> {
    if output.text() == "bad" { Err(Error::retry("be polite")) } else { Ok(()) }
}
