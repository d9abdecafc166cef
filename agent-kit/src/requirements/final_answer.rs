//! The tool for the final answer, and the events of its text.

use std::sync::Arc;

use emitree_emitter::{BoxError, Event};
use emitree_middleware::own_events::OwnEvents;
use emitree_runtime::{Error, Result, RunContext};
use schemars::JsonSchema;
use serde::Deserialize;
use serde::de::DeserializeOwned;
use serde_json::{Value, json};

use super::in_run::{InRun, StreamedAnswer};
use crate::built_in::structured::{Fitting, TOOL};
use emitree_agent::reply::{StreamToolCall, ToolCallUpdate};
use emitree_agent::typed::{json_in, schema_of};
use emitree_agent::{NewToken, Tool, ToolOutput, ToolSpec, tool_fn};

const DESCRIPTION: &str = "Gives your final answer. Call it alone, when you need no other tool any more.";

/// The argument for an answer of a type without fields.
const RESPONSE: &str = "response";

#[derive(Deserialize, JsonSchema)]
struct Response<T> {
    #[expect(dead_code, reason = "`Fitting` keeps the JSON, and only checks that it fits")]
    response: T,
}

/// A final answer of a type.
#[derive(Clone)]
pub(super) struct Answer {
    /// The tool, or the reason why the type cannot be an answer.
    pub(super) tool: Result<Tool>,
    /// `true` if the answer is the argument `response` of the tool.
    is_response: bool,
}

impl Answer {
    pub(super) const NAME: &str = TOOL;

    pub(super) fn of<T: DeserializeOwned + JsonSchema + 'static>() -> Self {
        let is_response = schema_of::<T>()["type"] != "object";
        let tool = if is_response {
            tool_fn(TOOL, DESCRIPTION, |mut answer: Fitting<Response<T>>, _: RunContext| async move {
                Ok(ToolOutput::new(answer.value[RESPONSE].take()).answer())
            })
        } else {
            tool_fn(TOOL, DESCRIPTION, |answer: Fitting<T>, _: RunContext| async move {
                Ok(ToolOutput::new(answer.value).answer())
            })
        };
        Self { tool: tool.map_err(Error::from), is_response }
    }

    /// Adds the tool, if a hook has left it out.
    pub(super) fn offer(&self, tools: &mut Arc<Vec<ToolSpec>>) {
        let is_offered = tools.iter().any(|spec| spec.name == Self::NAME);
        if let Ok(tool) = &self.tool
            && !is_offered
        {
            Arc::make_mut(tools).push(tool.spec().clone());
        }
    }

    /// Checks a text that a model has written instead of a call: JSON of the type or, for a string, any text.
    pub(super) fn check_text(&self, text: &str) -> Result<(), String> {
        let Ok(tool) = &self.tool else { return Ok(()) };
        let check = |value: Value| tool.check(&if self.is_response { json!({ RESPONSE: value }) } else { value });
        if self.is_response && check(text.into()).is_ok() {
            return Ok(());
        }
        json_in(text, |value| check(value.clone()))
    }

    /// Returns a middleware for the agent's run that emits [`FinalAnswer`](super::FinalAnswer) on this run.
    pub(super) fn streams(&self, events: &OwnEvents) -> Result<StreamToolCall> {
        let stream = StreamToolCall::tool(self.tool.as_ref().map_err(Error::clone)?);
        let stream = if self.is_response { stream.key(RESPONSE) } else { stream };
        let events = events.clone();
        stream.emitter().observe_async("update", move |update: &ToolCallUpdate, _| {
            let events = events.clone();
            let update = Piece::of(update);
            Box::pin(async move {
                // The current run is the model's.
                if let Some(agent) = RunContext::current().as_ref().and_then(RunContext::parent) {
                    update.emit(&events, agent).await?;
                }
                Ok::<_, BoxError>(())
            })
        })?;
        Ok(stream)
    }
}

/// A piece of the final answer.
struct Piece {
    delta: String,
    structured: Option<Value>,
    /// `true` if the answer begins with this piece.
    is_first: bool,
}

impl Piece {
    fn of(update: &ToolCallUpdate) -> Self {
        let is_first = update.output().len() == update.delta.len();
        Self { delta: update.delta.clone(), structured: update.output_structured.clone(), is_first }
    }

    async fn emit(self, events: &OwnEvents, agent: &RunContext) -> Result<()> {
        let run: Arc<InRun> = agent.own_extension_or_default();
        let Some(mut answer) = run.take_answer(self.is_first) else { return Ok(()) };
        if self.is_first {
            answer.filter = agent.text_filter(NewToken::NAME.as_str());
        }
        let mut delta = self.delta;
        let is_last = self.structured.is_some();
        if let Some(filter) = &mut answer.filter {
            delta = filter.push(&delta)?;
            if is_last {
                delta += &filter.finish()?;
            }
        }
        if !delta.is_empty() || is_last {
            answer.emit(delta, self.structured, events, agent).await;
        }
        run.put_answer(answer);
        Ok(())
    }
}

impl StreamedAnswer {
    async fn emit(&mut self, delta: String, structured: Option<Value>, events: &OwnEvents, agent: &RunContext) {
        self.text.push_str(&delta);
        self.event.output.push_str(&delta);
        (self.event.delta, self.event.structured) = (delta, structured);
        let is_text = |output: &String| (output.as_ptr().addr(), output.len());
        let before = is_text(&self.event.output);
        events.emit_event(agent, &mut self.event).await;
        // A listener may have replaced the event.
        if is_text(&self.event.output) != before {
            self.event.output.clone_from(&self.text);
        }
    }
}
