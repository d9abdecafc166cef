//! The events of the tool calls in a streamed reply.

use std::collections::BTreeMap;
use std::mem::take;
use std::sync::Arc;

use emitree_emitter::{Event, EventName};
use emitree_runtime::{Result, RunContext, TextFilter};
use serde::{Deserialize, Serialize};

use crate::model::emit;

/// The event `tool_call_started`: the name of a tool call has arrived, in a streamed reply. Changes by a listener have no
/// effect. If the run had no listeners at that time, the event is emitted before the next piece of the call.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct ToolCallStarted {
    /// The number of the call in the reply, which all its events have.
    pub index: usize,
    /// The id of the call, if it has arrived. The history gives a call without an id a new one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub id: Option<Arc<str>>,
    /// The name of the tool.
    pub name: Arc<str>,
}

/// The event `tool_call_delta`: a piece of the arguments of a tool call has arrived, in a streamed reply. Changes by a
/// listener have no effect.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct ToolCallDelta {
    /// The number of the call in the reply, which all its events have.
    pub index: usize,
    /// The id of the call, if it has arrived.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub id: Option<Arc<str>>,
    /// The name of the tool.
    pub name: Arc<str>,
    /// The piece of the arguments, which are JSON. It may end within a string or an escape.
    pub arguments: String,
}

impl Event for ToolCallStarted {
    const NAME: EventName = EventName::new("tool_call_started");
}

impl Event for ToolCallDelta {
    const NAME: EventName = EventName::new("tool_call_delta");
}

/// The calls of a reply that is being received, by number.
#[derive(Default)]
pub(crate) struct StreamedCalls(BTreeMap<usize, StreamedCall>);

#[derive(Default)]
struct StreamedCall {
    id: Option<Arc<str>>,
    name: Arc<str>,
    is_started: bool,
    /// The pieces that arrived before the name.
    waiting: String,
    /// Redacts the pieces of the arguments as one text, if a middleware asks for that.
    filter: Option<Box<dyn TextFilter>>,
}

impl StreamedCalls {
    /// Emits the events for a piece of a call. If earlier pieces of the call have no events, because the run had no
    /// listeners, `known` returns their id and name.
    pub(crate) async fn announce<'k>(
        &mut self,
        index: usize,
        [id, name]: [Option<&str>; 2],
        arguments: &str,
        known: impl FnOnce() -> [&'k str; 2],
        ctx: &RunContext,
    ) -> Result<()> {
        let call = self.0.entry(index).or_insert_with(|| StreamedCall::of(known()));
        // Some servers repeat the id and the name in every piece, and some send empty strings after the first piece.
        if let Some(id) = id.filter(|id| !id.is_empty() && call.id.as_deref() != Some(id)) {
            call.id = Some(id.into());
        }
        if let Some(name) = name.filter(|name| !name.is_empty() && *call.name != **name) {
            call.name = name.into();
        }
        if call.name.is_empty() {
            call.waiting.push_str(arguments);
            return Ok(());
        }
        let StreamedCall { id, name, .. } = call;
        if !call.is_started {
            call.is_started = true;
            call.filter = ctx.text_filter(ToolCallDelta::NAME.as_str());
            emit(ctx, &mut ToolCallStarted { index, id: id.clone(), name: Arc::clone(name) }).await?;
        }
        let mut piece = take(&mut call.waiting);
        piece.push_str(arguments);
        call.emit(index, piece, ctx).await
    }

    /// Emits what the filters held back.
    pub(crate) async fn finish(&mut self, ctx: &RunContext) -> Result<()> {
        for (index, mut call) in take(&mut self.0) {
            if let Some(mut filter) = call.filter.take() {
                let rest = filter.finish()?;
                call.emit(index, rest, ctx).await?;
            }
        }
        Ok(())
    }
}

impl StreamedCall {
    fn of([id, name]: [&str; 2]) -> Self {
        Self { id: (!id.is_empty()).then(|| id.into()), name: name.into(), ..Self::default() }
    }

    async fn emit(&mut self, index: usize, piece: String, ctx: &RunContext) -> Result<()> {
        let arguments = match &mut self.filter {
            Some(filter) => filter.push(&piece)?,
            None => piece,
        };
        if arguments.is_empty() {
            return Ok(());
        }
        emit(ctx, &mut ToolCallDelta { index, id: self.id.clone(), name: Arc::clone(&self.name), arguments }).await
    }
}
