//! Replies that arrive in pieces.

use std::mem::take;

use emitree_runtime::{Result, RunContext};
use futures_core::future::BoxFuture;

use crate::model::chunks::Stages;
use crate::model::emit;
use crate::model::events::{NewToken, ResponseHeaders};
use crate::model::response::ResponseBuilder;
use crate::model::tool_calls::events::StreamedCalls;
use crate::{ChatResponse, Delta, Part};

/// A reply that is being received.
pub(crate) struct IncomingReply<'a> {
    ctx: &'a RunContext,
    stages: Stages,
    /// An empty list, whose memory the next pieces use.
    spare: Vec<Delta>,
    pub(crate) streams: bool,
    builder: ResponseBuilder,
    calls: StreamedCalls,
    /// `true` if a listener has changed a piece after it left the stages.
    is_changed: bool,
}

impl<'a> IncomingReply<'a> {
    pub(crate) fn new(stages: Stages, streams: bool, ctx: &'a RunContext) -> Self {
        Self {
            ctx,
            stages,
            spare: Vec::new(),
            streams,
            builder: ResponseBuilder::new(),
            calls: StreamedCalls::default(),
            is_changed: false,
        }
    }

    /// Adds a piece of a stream. Returns `true` if a listener stopped the stream.
    pub(crate) async fn push(&mut self, delta: Delta) -> Result<bool> {
        if !self.is_unobserved() {
            return self.receive_one(delta).await;
        }
        self.builder.push(delta);
        Ok(false)
    }

    /// Builds the response. The flag is `true` if it is as the stages left it.
    pub(crate) fn finish(self, is_stopped: bool) -> (ChatResponse, bool) {
        let response = if is_stopped { self.builder.stopped() } else { self.builder.finish() };
        (response, !self.is_changed)
    }

    /// Returns `true` if there are no stages and no listeners. The next piece can then be added to the response
    /// directly. This is checked for each piece, because a listener may be added at any time.
    fn is_unobserved(&self) -> bool {
        self.stages.is_empty() && !self.ctx.has_listeners()
    }

    /// Passes pieces through the stages, emits them and adds them to the response. Returns `true` if a listener stopped
    /// the stream; the pieces after the stop are dropped.
    pub(crate) async fn receive(&mut self, deltas: Vec<Delta>, ended: bool) -> Result<bool> {
        let mut is_stopped = false;
        let mut passed = self.stages.pass(deltas, ended, self.ctx).await?;
        for delta in passed.drain(..) {
            let (delta, stops) = self.announce(delta).await?;
            self.builder.push(delta);
            is_stopped = stops;
            if stops {
                break;
            }
        }
        self.spare = passed;
        if ended {
            self.calls.finish(self.ctx).await?;
        }
        Ok(is_stopped)
    }

    /// Receives one piece of a stream. Without stages, no list is allocated for the piece.
    async fn receive_one(&mut self, delta: Delta) -> Result<bool> {
        if !self.stages.is_empty() {
            let mut deltas = take(&mut self.spare);
            deltas.push(delta);
            return self.receive(deltas, false).await;
        }
        let (delta, stops) = self.announce(delta).await?;
        self.builder.push(delta);
        Ok(stops)
    }

    /// If a piece has an event and the run has listeners, emits the event. Returns the piece, which listeners may have
    /// changed, and `true` if a listener stopped the stream.
    async fn announce(&mut self, delta: Delta) -> Result<(Delta, bool)> {
        if !self.ctx.has_listeners() {
            return Ok((delta, false));
        }
        match delta {
            Delta::Text(text) if self.streams => {
                let (text, stops) = self.announce_token(text, false).await?;
                Ok((Delta::Text(text), stops))
            }
            Delta::Reasoning(text) if self.streams => {
                let (text, stops) = self.announce_token(text, true).await?;
                Ok((Delta::Reasoning(text), stops))
            }
            Delta::ToolCall { index, ref id, ref name, ref arguments } if self.streams => {
                let known = || self.builder.call(index);
                self.calls.announce(index, [id, name].map(Option::as_deref), arguments, known, self.ctx).await?;
                Ok((delta, false))
            }
            Delta::Headers(headers) => {
                let before = self.has_stages().then(|| headers.clone());
                let mut event = ResponseHeaders::new(headers);
                emit(self.ctx, &mut event).await?;
                self.is_changed |= before.is_some_and(|before| before != event.headers);
                Ok((Delta::Headers(event.headers), false))
            }
            other => Ok((other, false)),
        }
    }

    async fn announce_token(&mut self, text: String, is_reasoning: bool) -> Result<(String, bool)> {
        let before = self.has_stages().then(|| text.clone());
        let mut token = NewToken::new(text, is_reasoning);
        emit(self.ctx, &mut token).await?;
        self.is_changed |= before.is_some_and(|before| before != token.text);
        let stops = token.stops();
        Ok((token.text, stops))
    }

    fn has_stages(&self) -> bool {
        !self.stages.is_empty()
    }
}

/// Passes a whole reply through stages. The future is boxed, because agents may be nested deeply and few runs need it.
pub(crate) fn pass_whole(
    reply: ChatResponse,
    mut stages: Stages,
    ctx: &RunContext,
) -> BoxFuture<'_, Result<ChatResponse>> {
    Box::pin(async move {
        let deltas = Delta::of_response(reply.clone());
        let passed = stages.pass(deltas.clone(), true, ctx).await?;
        if passed == deltas {
            return Ok(reply);
        }
        let mut builder = ResponseBuilder::new();
        passed.into_iter().for_each(|delta| builder.push(delta));
        let mut passed = builder.finish();
        // The cost, and references to content, are in no piece. The counts are not for stages to remove.
        passed.cost = reply.cost;
        passed.is_empty = reply.is_empty;
        passed.usage = passed.usage.or(reply.usage);
        passed.message.parts.extend(reply.message.parts.into_iter().filter(|part| matches!(part, Part::Uri { .. })));
        Ok(passed)
    })
}
