//! A talk of any length with an agent that has all middlewares for long conversations. The example `long_talk`, a test
//! and a bench have this talk.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use emitree::agent::built_in::{
    CallLimit, ClearToolResults, Guardrail, Judgement, LargeResults, SlidingWindow, Summarize, TodoList, ToolSelector,
};
use emitree::agent::{
    Agent, AgentOutput, AgentRun, ChatModel, ChatRequest, ChatResponse, DeltaStream, History, Message, Provider, Role,
    Session, Tool, ToolCall, tool_fn, whole,
};
use emitree::{Result, RunContext};
use schemars::JsonSchema;
use serde::Deserialize;
use serde_json::{Value, json};

/// A talk: an agent, and its session.
pub(crate) struct Talk {
    pub(crate) agent: Agent,
    pub(crate) session: Session,
    /// The number of the user's next message.
    next: usize,
    /// The number of summaries that the small model has written.
    summaries: Arc<AtomicUsize>,
}

impl Talk {
    pub(crate) fn new() -> Result<Self> {
        let summaries = Arc::new(AtomicUsize::new(0));
        let count = Arc::clone(&summaries);
        let small = model("small", move |_| {
            let number = count.fetch_add(1, Ordering::Relaxed) + 1;
            Message::assistant(format!("the user has asked about many numbers (summary {number})"))
        })?;
        let agent = Agent::builder("clerk", model("large", reply)?)
            .prompt("You look numbers up.")
            .tool(look_up()?)
            .tool(tool("report", "Writes a report", |number| format!("{number}: {}", "all is well. ".repeat(400)))?)
            .tool(tool("note", "Takes a note", |number| format!("noted {number}"))?.exclusive())
            .with(LargeResults::over_bytes(2_000))
            .with(Summarize::with(small).over_tokens(4_000).keep_messages(20))
            .with(SlidingWindow::messages(60))
            .with(ClearToolResults::keep(4).over_tokens(1_500).except(["write_todos"]))
            .with(CallLimit::tool("look_up").per_run(3))
            .with(CallLimit::model().per_run(12))
            .with(TodoList::new())
            .with(
                ToolSelector::by(|request, _| {
                    let names = request.tools.iter().map(|tool| tool.name.clone()).collect();
                    Box::pin(async move { Ok(names) })
                })
                .at_most(8),
            )
            .with(Guardrail::output("polite", |text, _| {
                let judgement = if text.contains("rude") { Judgement::block("rude") } else { Judgement::Allow };
                Box::pin(async move { Ok(judgement) })
            }))
            .build()?;
        Ok(Self { agent, session: Session::new(), next: 0, summaries })
    }

    /// Says the next message, and returns the answer. Now and then, the user says something while the agent works.
    pub(crate) async fn turn(&mut self) -> Result<AgentOutput> {
        let number = self.next;
        self.next += 1;
        if number.is_multiple_of(7) {
            self.session.steer(format!("by the way, {number} is my favourite"))?;
        }
        if number.is_multiple_of(11) {
            self.session.follow_up(format!("and what is after {number}?"))?;
        }
        self.agent.ask(format!("tell me about {number}")).session(&self.session).await
    }

    /// Returns the same talk with a session that was stored and read again.
    #[allow(dead_code, reason = "only the bench resumes talks")]
    pub(crate) fn resumed(&self) -> Result<Self> {
        let session = serde_json::from_str(&serde_json::to_string(&self.session)?)?;
        let (agent, summaries) = (self.agent.clone(), Arc::clone(&self.summaries));
        Ok(Self { agent, session, next: self.next, summaries })
    }

    #[allow(dead_code, reason = "the bench does not count them")]
    pub(crate) fn summaries(&self) -> usize {
        self.summaries.load(Ordering::Relaxed)
    }
}

/// Looks a number up, takes notes and plans now and then, and answers.
fn reply(request: &ChatRequest) -> Message {
    let last = request.messages.last().map(|message| message.role);
    let asked = request.last_user_text();
    let number: usize = asked.split(' ').filter_map(|word| word.trim_matches('?').parse().ok()).next().unwrap_or(0);
    if last == Some(Role::Tool) {
        return Message::assistant(format!("{number} is a number that I have looked up for you."));
    }
    let calls = [
        (1, "look_up", json!({ "number": number })),
        (2, "note", json!({ "number": number })),
        (5, "report", json!({ "number": number })),
        (9, "write_todos", json!({"todos": [{"text": format!("think about {number}"), "state": "pending"}]})),
    ];
    let calls = calls.into_iter().filter(|(every, ..)| number.is_multiple_of(*every));
    calls.enumerate().fold(Message::assistant(""), |message, (at, (_, name, arguments))| {
        message.with_call(ToolCall::new(at.to_string(), name, arguments))
    })
}

#[derive(Deserialize, JsonSchema)]
struct Number {
    number: u64,
}

fn look_up() -> Result<Tool> {
    tool("look_up", "Looks a number up", |number| format!("{number} {}", "is a number, ".repeat(30)))
}

fn tool(name: &str, description: &str, result: fn(u64) -> String) -> Result<Tool> {
    Ok(tool_fn(
        name,
        description,
        move |args: Number, _: RunContext| async move { Ok(Value::from(result(args.number))) },
    )?)
}

/// A model that answers with a function. It keeps no requests, as a `ScriptedModel` does.
struct Scripted<F> {
    name: &'static str,
    reply: F,
}

impl<F: Fn(&ChatRequest) -> Message + Send + Sync + 'static> Provider for Scripted<F> {
    fn name(&self) -> &str {
        "talk"
    }

    fn model(&self) -> &str {
        self.name
    }

    /// Fails if the middlewares have made a request whose messages are no valid conversation.
    async fn chat(&self, request: &ChatRequest, _: &RunContext) -> Result<DeltaStream> {
        History::try_from(request.messages.to_vec())?;
        Ok(whole(ChatResponse::new((self.reply)(request))))
    }
}

fn model(name: &'static str, reply: impl Fn(&ChatRequest) -> Message + Send + Sync + 'static) -> Result<ChatModel> {
    Ok(ChatModel::new(Scripted { name, reply })?)
}
