//! The stage that reads the lines of a reply.

use std::iter::successors;
use std::mem::take;
use std::sync::Arc;

use emitree_emitter::Event;
use emitree_middleware::own_events::OwnEvents;
use emitree_runtime::{Error, Result, RunContext, TextFilter};
use futures_core::future::BoxFuture;
use parking_lot::Mutex;
use serde_json::Value;

use super::events::{ReActPartialUpdate, ReActUpdate};
use super::{FINAL_ANSWER, InRun, THOUGHT, TOOL_INPUT, TOOL_NAME, turn_of};
use crate::parse::{LinePrefixParser, ParserError, ParserUpdate, json_object};
use emitree_agent::reply::AsyncChunkStage;
use emitree_agent::{Agent, Chunks, Delta, FinishReason, NewToken};

/// Returns the run of the agent that a run belongs to.
pub(super) fn agent_of(ctx: &RunContext) -> &RunContext {
    successors(Some(ctx), |run| run.parent()).find(|run| run.is_run_of_type::<Agent>()).unwrap_or(ctx)
}

/// A reply that did not parse: an extension of the model's run.
#[derive(Default)]
pub(super) struct Unread(pub(super) Mutex<Option<(String, ParserError)>>);

/// Turns the lines of a reply into reasoning, a call and an answer.
pub(super) struct Reader {
    events: OwnEvents,
    parser: Option<LinePrefixParser>,
    /// The whole text, for the model if it does not parse.
    text: String,
    name: String,
    /// `true` if the reply calls a tool.
    has_call: bool,
    fault: Option<ParserError>,
    line: Option<Line>,
}

/// The line whose events are being emitted.
struct Line {
    /// The text so far, as the filters left it.
    value: String,
    filters: Vec<Box<dyn TextFilter>>,
}

impl Reader {
    pub(super) fn new(events: OwnEvents) -> Self {
        let (text, name) = Default::default();
        Self { events, parser: None, text, name, has_call: false, fault: None, line: None }
    }

    /// Reads more of the text. After a fault, the rest is only kept, so that the model can be shown its whole reply.
    async fn read(&mut self, text: &str, passed: &mut Vec<Delta>, ctx: &RunContext) -> Result<()> {
        self.text.push_str(text);
        // The parser is put back only without a fault: after one, nothing is read any more.
        let Some(mut parser) = self.parser.take() else { return Ok(()) };
        match parser.push(text) {
            Ok(updates) => self.pass_on(updates, passed, ctx).await?,
            Err(fault) => {
                self.pass_on(fault.updates(), passed, ctx).await?;
                self.fault = Some(fault);
                return Ok(());
            }
        }
        self.parser = Some(parser);
        Ok(())
    }

    async fn end(&mut self, passed: &mut Vec<Delta>, ctx: &RunContext) -> Result<()> {
        match self.parser.take().map(LinePrefixParser::end) {
            Some(Ok(parsed)) => self.pass_on(&parsed.updates, passed, ctx).await?,
            Some(Err(fault)) => {
                self.pass_on(fault.updates(), passed, ctx).await?;
                self.fault = Some(fault);
            }
            None => {}
        }
        let Some(fault) = self.fault.take() else { return Ok(()) };
        let error = Error::new(format!("the reply does not follow the lines of ReAct: {fault}"));
        *ctx.own_extension_or_default::<Unread>().0.lock() = Some((take(&mut self.text), fault));
        Err(error)
    }

    async fn pass_on(&mut self, updates: &[ParserUpdate], passed: &mut Vec<Delta>, ctx: &RunContext) -> Result<()> {
        for update in updates {
            let delta = update.delta.clone();
            let has_text = !update.delta.is_empty();
            passed.extend(match &*update.key {
                THOUGHT => has_text.then_some(Delta::Reasoning(delta)),
                FINAL_ANSWER => has_text.then_some(Delta::Text(delta)),
                TOOL_INPUT => has_text.then_some(Delta::tool_call(0, None, None, delta)),
                TOOL_NAME => {
                    // A call begins with its whole name, so the name waits for the end of its line.
                    self.name += &delta;
                    self.has_call |= update.is_complete;
                    update.is_complete.then(|| Delta::tool_call(0, None, Some(take(&mut self.name)), ""))
                }
                // An observation that the model has written itself.
                _ => continue,
            });
            self.emit(update, ctx).await?;
        }
        Ok(())
    }

    /// Emits the events of an update, on the agent's run.
    async fn emit(&mut self, update: &ParserUpdate, ctx: &RunContext) -> Result<()> {
        let agent = agent_of(ctx);
        if !self.events.has_listeners(agent) {
            return Ok(());
        }
        let key = &update.key;
        let turn = turn_of(agent);
        let mut line = self.line.take().unwrap_or_else(|| Line::new(ctx, agent));
        let delta = line.push(&update.delta, update.is_complete)?;
        if !delta.is_empty() {
            self.events.emit(agent, || ReActPartialUpdate { key: Arc::clone(key), delta, turn }).await;
        }
        if !update.is_complete {
            self.line = Some(line);
            return Ok(());
        }
        let value = line.value;
        let parsed = if **key == *TOOL_INPUT { json_object(&value).ok() } else { None };
        let parsed = parsed.unwrap_or_else(|| Value::String(value.clone()));
        self.events.emit(agent, || ReActUpdate { key: Arc::clone(key), value, parsed, turn }).await;
        Ok(())
    }
}

impl Line {
    /// Takes the filters of both runs: the pieces leave the model's run, and their events are emitted on the agent's
    /// run.
    fn new(ctx: &RunContext, agent: &RunContext) -> Self {
        let filters = [ctx, agent].into_iter().filter_map(|run| run.text_filter(NewToken::NAME.as_str()));
        Self { value: String::new(), filters: filters.collect() }
    }

    /// Returns the text that the filters let pass.
    fn push(&mut self, text: &str, is_last: bool) -> Result<String> {
        let mut text = text.to_owned();
        for filter in &mut self.filters {
            text = filter.push(&text)?;
            if is_last {
                text += &filter.finish()?;
            }
        }
        self.value += &text;
        Ok(text)
    }
}

impl AsyncChunkStage for Reader {
    fn pass<'a>(&'a mut self, chunks: &'a mut Chunks, ctx: &'a RunContext) -> BoxFuture<'a, Result<()>> {
        Box::pin(async move {
            let deltas = take(&mut chunks.deltas);
            let passed = &mut chunks.deltas;
            if self.text.is_empty() && self.parser.is_none() && self.fault.is_none() {
                self.parser = agent_of(ctx).own_extension::<InRun>().and_then(|run| run.parser());
            }
            for delta in deltas {
                match delta {
                    Delta::Text(text) => self.read(&text, passed, ctx).await?,
                    // The model has stopped at the stop text, but the reply has a call, as that of any model (A19).
                    Delta::Finish(FinishReason::Stop) if self.has_call => {
                        passed.push(Delta::Finish(FinishReason::ToolCall));
                    }
                    other => passed.push(other),
                }
            }
            if chunks.ended { self.end(passed, ctx).await } else { Ok(()) }
        })
    }
}
