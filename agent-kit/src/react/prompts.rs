//! The texts that a model reads from `ReAct`.

use std::fmt;
use std::fmt::Write as _;
use std::sync::Arc;

use super::TOOL_INPUT;
use crate::built_in::shown;
use crate::parse::{ParserError, ParserErrorKind};
use emitree_agent::{Message, Part, ToolResult, ToolSpec};

/// The functions that write what a model reads from [`ReAct`](super::ReAct).
///
/// The prefixes of the lines are fixed, because the replies are parsed by them: `Thought:`, `Function Name:`,
/// `Function Input:`, `Function Output:` and `Final Answer:`.
///
/// ```
/// use emitree_agent_kit::react::{ReAct, ReActPrompts};
///
/// let prompts = ReActPrompts::default().user(|text| format!("Question: {text}"));
/// let react = ReAct::new().prompts(prompts);
/// # drop(react);
/// ```
#[derive(Clone)]
pub struct ReActPrompts {
    pub(super) system: Arc<System>,
    pub(super) user: Arc<dyn Fn(&str) -> String + Send + Sync>,
    pub(super) assistant: Arc<dyn Fn(&Message) -> String + Send + Sync>,
    pub(super) output: Arc<dyn Fn(&ToolResult) -> String + Send + Sync>,
    pub(super) fault: Arc<dyn Fn(&ParserError) -> String + Send + Sync>,
}

type System = dyn Fn(&[ToolSpec], &str) -> String + Send + Sync;

impl ReActPrompts {
    /// Sets the function that writes the system prompt from the tools and the system prompt of the agent, which may be
    /// empty. It is called again only if one of them changes.
    #[must_use]
    pub fn system(mut self, write: impl Fn(&[ToolSpec], &str) -> String + Send + Sync + 'static) -> Self {
        self.system = Arc::new(write);
        self
    }

    /// Sets the function that writes a user's message from its text, which may be empty.
    #[must_use]
    pub fn user(mut self, write: impl Fn(&str) -> String + Send + Sync + 'static) -> Self {
        self.user = Arc::new(write);
        self
    }

    /// Sets the function that writes a message of the model: its thought is the reasoning, its calls are tool calls.
    #[must_use]
    pub fn assistant(mut self, write: impl Fn(&Message) -> String + Send + Sync + 'static) -> Self {
        self.assistant = Arc::new(write);
        self
    }

    /// Sets the function that writes the result of a tool, also of one that failed, does not exist or returned nothing.
    #[must_use]
    pub fn output(mut self, write: impl Fn(&ToolResult) -> String + Send + Sync + 'static) -> Self {
        self.output = Arc::new(write);
        self
    }

    /// Sets the function that tells the model how its reply did not follow the lines.
    #[must_use]
    pub fn fault(mut self, write: impl Fn(&ParserError) -> String + Send + Sync + 'static) -> Self {
        self.fault = Arc::new(write);
        self
    }
}

impl Default for ReActPrompts {
    fn default() -> Self {
        Self {
            system: Arc::new(system),
            user: Arc::new(user),
            assistant: Arc::new(assistant),
            output: Arc::new(output),
            fault: Arc::new(fault),
        }
    }
}

impl fmt::Debug for ReActPrompts {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ReActPrompts").finish_non_exhaustive()
    }
}

fn system(tools: &[ToolSpec], instructions: &str) -> String {
    let mut text = "# Functions\n\n".to_owned();
    for ToolSpec { name, description, parameters, .. } in tools {
        let _ = write!(text, "Function Name: {name}\nDescription: {description}\nInput Schema: {parameters}\n\n");
    }
    text += match tools {
        [] => WITHOUT_TOOLS,
        _ => WITH_TOOLS,
    };
    if !instructions.trim().is_empty() {
        text += "\n\n# Instructions\n\n";
        text += instructions;
    }
    text
}

const WITHOUT_TOOLS: &str = "There are no functions.

# How to reply

Write only these lines, each with its prefix:

Thought: one line about how to answer.
Final Answer: the answer. The user sees nothing else.

Example:

Message: How do you say \"thank you\" in French?
Thought: I can translate this.
Final Answer: Merci.";

const WITH_TOOLS: &str = "# How to reply

Write only these lines, each with its prefix:

Thought: one line about what to do next.
Function Name: the name of one of the functions above.
Function Input: the arguments, a JSON object that fits the input schema. It may be empty: {}
Final Answer: the answer, or a question to the user. The user sees nothing else.

Begin with `Thought:`. Then either call one function with `Function Name:` and `Function Input:`, and stop, or write
`Final Answer:`. The result of the function comes in the next message, as `Function Output:`: never write it yourself.
Call functions for facts that you do not have. If a function fails, try other arguments or another function.

Example:

Message: How do you say \"thank you\" in French?
Thought: I can translate this without a function.
Final Answer: Merci.";

fn user(text: &str) -> String {
    let text = if text.trim().is_empty() { "(empty)" } else { text };
    format!("Message: {text}")
}

/// Writes the thought, and the calls or the answer.
fn assistant(message: &Message) -> String {
    let has_calls = message.tool_calls().next().is_some();
    let mut thought = String::new();
    let mut answer = String::new();
    for part in &message.parts {
        match part {
            Part::Reasoning { content, extra: None, .. } => thought.push_str(content),
            // A text beside calls is no answer.
            Part::Text { content } if has_calls => thought.push_str(content),
            Part::Text { content } => answer.push_str(content),
            _ => {}
        }
    }
    let mut lines = Vec::new();
    if !thought.is_empty() {
        lines.push(format!("Thought: {thought}"));
    }
    for call in message.tool_calls() {
        lines.push(format!("Function Name: {}\nFunction Input: {}", call.name, call.arguments));
    }
    if !has_calls {
        lines.push(format!("Final Answer: {answer}"));
    }
    lines.join("\n")
}

fn output(result: &ToolResult) -> String {
    let response = result.response.as_str().map_or_else(|| result.response.to_string(), str::to_owned);
    let text = [response].into_iter().chain(result.parts.iter().map(shown)).collect::<Vec<_>>().join("\n");
    let text = if text.trim().is_empty() { "(nothing)" } else { &text };
    let failed = if result.is_error { "the function has failed: " } else { "" };
    format!("Function Output: {failed}{text}")
}

fn fault(error: &ParserError) -> String {
    // After a call, the parser would also expect an observation, which the model must not write.
    let is_after_call = error.kind() == ParserErrorKind::InvalidTransition
        && error.incomplete().is_some_and(|(key, _)| key == TOOL_INPUT);
    let fault = match is_after_call {
        true => "it goes on after `Function Input:`, where it has to stop".to_owned(),
        false => error.to_string(),
    };
    format!(
        "Your reply does not follow the lines: {fault}. Reply again, with `Thought:` and then either `Function Name:` \
         and `Function Input:`, or `Final Answer:`."
    )
}
