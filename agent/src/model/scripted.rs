//! A provider that answers from a script, for tests and examples.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use emitree_runtime::{Error, Result, RunContext};
use futures_util::{StreamExt, stream};
use parking_lot::Mutex;
use serde_json::Value;

use crate::{ChatRequest, ChatResponse, Delta, DeltaStream, FinishReason, Message, Provider, ToolCall, Usage};

/// A [`Provider`] that answers from a script, without a network. Each call takes the next answer.
///
/// Clones share the script. A call after the last answer fails, unless the model was created with
/// [`ScriptedModel::by`], which answers such calls with a function.
///
/// ```
/// use emitree_agent::{ChatModel, ScriptedModel};
/// use emitree_runtime::{Error, Runnable};
/// use serde_json::json;
///
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> emitree_runtime::Result<()> {
/// let script = ScriptedModel::new("test")
///     .call("count", json!({"path": "README.md"}))
///     .error(Error::new("overloaded").retryable(true))
///     .text("It has 18 words.");
/// let model = ChatModel::new(script.clone())?;
///
/// let response = model.run("How many words?".into()).await?;
/// assert_eq!(response.message.tool_calls().count(), 1);
/// assert!(model.run("Again?".into()).await.is_err());
/// assert_eq!(model.run("Again?".into()).await?.text(), "It has 18 words.");
/// assert_eq!(script.requests()[0].last_user_text(), "How many words?");
///
/// let error = model.run("And?".into()).await.unwrap_err();
/// assert_eq!(error.to_string(), "the script of `test` has 3 answers, but this is call 4");
/// # Ok(())
/// # }
/// ```
#[derive(Clone)]
pub struct ScriptedModel {
    model: String,
    script: Arc<Mutex<Script>>,
}

type Answer = Arc<dyn Fn(&ChatRequest) -> Reply + Send + Sync>;

#[derive(Default)]
struct Script {
    replies: Vec<Reply>,
    /// The function that answers the calls after the last reply.
    by: Option<Answer>,
    requests: Vec<ChatRequest>,
}

/// One answer of a [`ScriptedModel`].
#[derive(Clone, Debug, Default)]
pub struct Reply {
    deltas: Vec<Delta>,
    before: Duration,
    between: Duration,
    error: Option<Error>,
}

impl Reply {
    /// Makes a reply with text.
    pub fn text(text: impl Into<String>) -> Self {
        Self::response(finished(Message::assistant(text), FinishReason::Stop))
    }

    /// Makes a reply that calls tools. The ids of the calls are `0`, `1` and so on.
    pub fn calls<N: Into<String>>(calls: impl IntoIterator<Item = (N, Value)>) -> Self {
        let add = |message: Message, (i, (name, arguments)): (usize, (N, Value))| {
            message.with_call(ToolCall::new(i.to_string(), name, arguments))
        };
        let message = calls.into_iter().enumerate().fold(Message::assistant(""), add);
        Self::response(finished(message, FinishReason::ToolCall))
    }

    /// Makes a reply from a response.
    #[must_use]
    pub fn response(response: ChatResponse) -> Self {
        Self::deltas(Delta::of_response(response))
    }

    /// Makes a reply from pieces, in the order in which they arrive.
    pub fn deltas(deltas: impl IntoIterator<Item = Delta>) -> Self {
        Self { deltas: deltas.into_iter().collect(), ..Self::default() }
    }

    /// Makes a reply that fails before its first piece.
    #[must_use]
    pub fn error(error: Error) -> Self {
        Self { error: Some(error), ..Self::default() }
    }

    /// Makes the reply fail after its last piece.
    #[must_use]
    pub fn then_error(mut self, error: Error) -> Self {
        self.error = Some(error);
        self
    }

    /// Adds token counts to the reply.
    #[must_use]
    pub fn usage(mut self, usage: Usage) -> Self {
        self.deltas.push(Delta::Usage(usage));
        self
    }

    /// Cuts text, reasoning and arguments into pieces of at most this many characters; 0 counts as 1.
    #[must_use]
    pub fn in_pieces(mut self, chars: usize) -> Self {
        self.deltas = self.deltas.into_iter().flat_map(|delta| cut(delta, chars.max(1))).collect();
        self
    }

    /// Delays the first piece by `before`, and each later piece by `between`.
    #[must_use]
    pub const fn slow(mut self, before: Duration, between: Duration) -> Self {
        self.before = before;
        self.between = between;
        self
    }
}

fn finished(mut message: Message, reason: FinishReason) -> ChatResponse {
    message.finish_reason = Some(reason);
    ChatResponse::new(message)
}

fn cut(delta: Delta, chars: usize) -> Vec<Delta> {
    let pieces = |text: &str| -> Vec<String> {
        let chars_of: Vec<char> = text.chars().collect();
        chars_of.chunks(chars).map(|piece| piece.iter().collect()).collect()
    };
    match delta {
        Delta::Text(text) => pieces(&text).into_iter().map(Delta::Text).collect(),
        Delta::Reasoning(text) => pieces(&text).into_iter().map(Delta::Reasoning).collect(),
        Delta::ToolCall { index, id, name, arguments } => {
            // As in servers' streams, only the first piece has the id and the name.
            let begin = Delta::tool_call(index, id, name, "");
            let more = |arguments| Delta::tool_call(index, None, None, arguments);
            std::iter::once(begin).chain(pieces(&arguments).into_iter().map(more)).collect()
        }
        other => vec![other],
    }
}

impl ScriptedModel {
    /// Makes a model with this name and an empty script.
    pub fn new(model: impl Into<String>) -> Self {
        Self { model: model.into(), script: Arc::default() }
    }

    /// Makes a model that answers requests with a function. Answers that are appended to the script are used first.
    pub fn by(model: impl Into<String>, answer: impl Fn(&ChatRequest) -> Reply + Send + Sync + 'static) -> Self {
        let scripted = Self::new(model);
        scripted.script.lock().by = Some(Arc::new(answer));
        scripted
    }

    /// Appends a text answer.
    #[must_use]
    pub fn text(self, text: impl Into<String>) -> Self {
        self.reply(Reply::text(text))
    }

    /// Appends an answer that calls one tool.
    #[must_use]
    pub fn call(self, tool: impl Into<String>, arguments: Value) -> Self {
        self.reply(Reply::calls([(tool.into(), arguments)]))
    }

    /// Appends an answer that calls several tools.
    #[must_use]
    pub fn calls<N: Into<String>>(self, calls: impl IntoIterator<Item = (N, Value)>) -> Self {
        self.reply(Reply::calls(calls))
    }

    /// Appends a failure.
    #[must_use]
    pub fn error(self, error: Error) -> Self {
        self.reply(Reply::error(error))
    }

    /// Appends an answer.
    #[must_use]
    pub fn reply(self, reply: Reply) -> Self {
        self.script.lock().replies.push(reply);
        self
    }

    /// Returns the requests so far, in the order of the calls.
    #[must_use]
    pub fn requests(&self) -> Vec<ChatRequest> {
        self.script.lock().requests.clone()
    }

    /// Records a request, and returns its answer.
    fn next(&self, request: &ChatRequest) -> Result<Reply> {
        let mut script = self.script.lock();
        script.requests.push(request.clone());
        // Each call is recorded, even if it has no answer, so the number of requests is the number of this call.
        let call = script.requests.len();
        if let Some(reply) = script.replies.get(call - 1) {
            return Ok(reply.clone());
        }
        let Some(by) = script.by.clone() else {
            let answers = script.replies.len();
            return Err(Error::new(format!(
                "the script of `{}` has {answers} answers, but this is call {call}",
                self.model
            )));
        };
        // The function is user code, so it runs without the lock.
        drop(script);
        Ok(by(request))
    }
}

impl Provider for ScriptedModel {
    fn name(&self) -> &str {
        "scripted"
    }

    fn model(&self) -> &str {
        &self.model
    }

    async fn chat(&self, request: &ChatRequest, _: &RunContext) -> Result<DeltaStream> {
        let Reply { deltas, before, between, error } = self.next(request)?;
        wait(before).await;
        if deltas.is_empty()
            && let Some(error) = error
        {
            return Err(error);
        }
        let items = deltas.into_iter().map(Ok).chain(error.map(Err)).enumerate();
        let items = stream::iter(items).then(move |(i, item)| async move {
            if i > 0 {
                wait(between).await;
            }
            item
        });
        Ok(Box::pin(items))
    }
}

/// Sleeps for a duration. A duration of zero uses no timer, so it needs no tokio runtime.
async fn wait(time: Duration) {
    if !time.is_zero() {
        tokio::time::sleep(time).await;
    }
}

impl fmt::Debug for ScriptedModel {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let script = self.script.lock();
        f.debug_struct("ScriptedModel")
            .field("model", &self.model)
            .field("replies", &script.replies.len())
            .field("requests", &script.requests.len())
            .finish_non_exhaustive()
    }
}
