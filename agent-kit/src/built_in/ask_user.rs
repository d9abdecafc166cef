//! A tool with which the model asks the user: [`ask_user`].

use emitree_runtime::{Interrupt, Result, RunContext};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use emitree_agent::{Tool, ToolError, ToolOutput, tool_fn};

/// The kind of the questions of [`ask_user`].
pub const ASK_USER: &str = "ask_user";

/// The arguments of the tool [`ask_user`], and the data of its questions.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[non_exhaustive]
pub struct UserQuestion {
    /// The question, as the user reads it.
    pub question: String,
    /// The answers among which the user chooses. Without choices, the user writes a text.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub choices: Vec<String>,
    /// Set this to true if the user may choose several answers.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub several: bool,
}

/// Makes a tool with which the model asks the user. The first call interrupts the run with a question of the kind
/// [`ASK_USER`], whose data is a [`UserQuestion`]. Answer it with [`Session::answer`](emitree_agent::Session::answer), and go on
/// with [`Agent::resume`](emitree_agent::Agent::resume): the model reads the answer as the result of its call.
///
/// The answer is a text; or one of the `choices`; or, with `several`, a list of them. `Session::answer` refuses an answer
/// that is none of the choices. If an answer has another type, the question is open again after the resume. A call with
/// an empty list of choices and `several` gets an error, which the model reads.
///
/// ```
/// use emitree_agent_kit::built_in::ask_user;
/// use emitree_agent::{Agent, AgentRun, ChatModel, ScriptedModel, Session};
/// use serde_json::json;
///
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> emitree_runtime::Result<()> {
/// let asks = json!({"question": "Which size?", "choices": ["small", "large"]});
/// let model = ScriptedModel::new("test").call("ask_user", asks).text("A small one it is.");
/// let agent = Agent::builder("barista", ChatModel::new(model)?).tool(ask_user()?).build()?;
///
/// let session = Session::new();
/// let error = agent.ask("A coffee, please.").session(&session).await.unwrap_err();
/// assert!(error.is_interrupted());
/// let question = &session.questions()[0];
/// assert_eq!(question.data["question"], "Which size?");
///
/// assert!(session.answer(&question.id, json!("medium")).await.is_err());
/// session.answer(&question.id, json!("small")).await.unwrap();
/// assert_eq!(agent.resume(&session).await?.text(), "A small one it is.");
/// # Ok(())
/// # }
/// ```
///
/// # Errors
///
/// Returns no error: the name and the schema of the tool are valid.
pub fn ask_user() -> Result<Tool, ToolError> {
    let tool = tool_fn(ASK_USER, "Asks the user a question", |question: UserQuestion, ctx: RunContext| async move {
        if question.several && question.choices.is_empty() {
            return Ok(ToolOutput::error(
                "`several` needs `choices`: name the answers among which the user may choose",
            ));
        }
        let asked = Interrupt::new(ASK_USER, json!(question));
        let answer: Value =
            if question.several { ctx.ask::<Vec<String>>(asked)?.into() } else { ctx.ask::<String>(asked)?.into() };
        Ok(ToolOutput::new(answer))
    });
    tool.map(Tool::idempotent)
}
