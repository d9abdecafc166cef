//! One call of a server's tool.

mod place;
pub(crate) mod question;
mod result;

use std::sync::Arc;

use emitree_agent::ToolOutput;
use emitree_runtime::{Error, Result, RunContext};
use rmcp::model::{
    CallToolRequest, CallToolRequestParams, ClientRequest, ElicitResult, InputResponses, RequestMetaObject,
    ServerResult,
};
use serde_json::{Value, json};
use tokio::time::sleep;

use crate::call::place::Place;
use crate::call::question::Request;
use crate::call::result::output;
use crate::connection::Connection;
use crate::connection::calls::Asked;
use crate::error::Fault;
use crate::server::Shared;
use crate::tools::list::Entry;

const METHOD: &str = "tools/call";

/// The ways to answer a question that cannot be stored.
const WAYS: &str = "set `.elicit(..)` at the server, or name the tool in `idempotent([..])`, so that the question is \
                    stored, and the call is made again with the answer";

/// Calls a tool of a server, and answers its questions.
pub(crate) async fn call(
    shared: Arc<Shared>,
    entry: Arc<Entry>,
    is_idempotent: bool,
    arguments: Value,
    ctx: RunContext,
) -> Result<ToolOutput> {
    let mut call = Call { shared: &shared, entry: &entry, is_idempotent, arguments, ctx: &ctx, live: Place::default() };
    call.run().await.map_err(|end| match end {
        End::Asked(error) => error,
        End::Fault(fault) => {
            // Another attempt of a call that may have had effects is not for us to allow.
            let is_retryable = is_idempotent && fault.is_temporary();
            Error::from(shared.error(fault)).detail("tool", &*entry.name).retryable(is_retryable)
        }
    })
}

struct Call<'a> {
    shared: &'a Shared,
    entry: &'a Entry,
    is_idempotent: bool,
    arguments: Value,
    ctx: &'a RunContext,
    /// The last question in the middle of the call, in the old era.
    live: Place,
}

/// The end of a call without a result.
enum End {
    Fault(Fault),
    /// The call waits for an answer, or the value that it has kept cannot be read.
    Asked(Error),
}

impl From<Fault> for End {
    fn from(fault: Fault) -> Self {
        Self::Fault(fault)
    }
}

impl Call<'_> {
    async fn run(&mut self) -> Result<ToolOutput, End> {
        let place = self.ctx.kept::<Place>().map_err(End::Asked)?.unwrap_or_default();
        // A call that goes on asks its question again, before anything is sent.
        let answers = match place.requests.is_empty() {
            true => None,
            false => Some(self.stored(&place).map_err(End::Asked)?),
        };
        let slot = self.shared.link.slot(self.ctx)?;
        let connection = slot.connection(&self.shared.setup).await?;
        let called = self.run_on(&connection, place, answers).await;
        if let Err(End::Fault(fault)) = &called
            && connection.has_ended()
        {
            slot.note(fault).await;
        }
        called
    }

    /// Sends the call, again after each round of questions.
    async fn run_on(
        &mut self,
        connection: &Connection,
        mut place: Place,
        mut answers: Option<InputResponses>,
    ) -> Result<ToolOutput, End> {
        loop {
            let required = match self.send(connection, self.params(&place, answers)).await {
                Ok(ServerResult::CallToolResult(result)) => return Ok(output(result)),
                Ok(ServerResult::InputRequiredResult(required)) => required,
                Ok(other) => {
                    let output = result::without_content(&other);
                    return output.ok_or_else(|| Fault::answer(METHOD, &other, &connection.signals).into());
                }
                Err(End::Fault(Fault::Refused { code, message, .. })) if place.state.is_some() => {
                    if !self.is_idempotent || place.is_again {
                        return Err(Fault::State { code, message, is_again: place.is_again }.into());
                    }
                    place = Place::again();
                    answers = None;
                    continue;
                }
                Err(end) => return Err(end),
            };
            place.go_on(required, &self.shared.setup)?;
            answers = match place.requests.is_empty() {
                true => {
                    sleep(place.delay()).await;
                    None
                }
                false => Some(self.answer(&place).await?),
            };
        }
    }

    fn stored(&self, place: &Place) -> Result<InputResponses> {
        place.ask_keeping(&self.shared.setup, &self.entry.name, self.ctx)
    }

    /// Answers the questions of a round: with the function of the server, or else with the stored answer.
    async fn answer(&self, place: &Place) -> Result<InputResponses, End> {
        let setup = &self.shared.setup;
        let Some(elicit) = &setup.elicit else {
            return match self.stored(place) {
                Err(error) if !error.is_interrupted() => {
                    let reason = format!("the question cannot be stored ({error}): set `.elicit(..)` at the server");
                    let decline = |(key, request): (&String, &Request)| {
                        (key.clone(), json!(request.decline(setup, reason.clone())))
                    };
                    Ok(place.requests.iter().map(decline).collect())
                }
                asked => asked.map_err(End::Asked),
            };
        };
        let mut answers = InputResponses::new();
        for (key, request) in &place.requests {
            let answer = request.elicit(elicit, setup, Some(&self.entry.name)).await;
            answers.insert(key.clone(), json!(answer.map_err(|error| Fault::Question(error.to_string()))?));
        }
        Ok(answers)
    }

    /// Answers a question in the middle of the call with the stored answer, or with `decline`. An error ends the call.
    fn answer_live(&mut self, request: &Request) -> Result<ElicitResult, End> {
        let setup = &self.shared.setup;
        if !self.is_idempotent {
            return Ok(request.decline(setup, format!("nothing answers: {WAYS}")));
        }
        self.live.go_on_to(request.clone(), setup)?;
        match self.live.ask_anew(setup, &self.entry.name, self.ctx) {
            Err(error) if !error.is_interrupted() => {
                Ok(request.decline(setup, format!("the question cannot be stored ({error}): {WAYS}")))
            }
            asked => asked.map_err(End::Asked),
        }
    }

    fn params(&self, place: &Place, answers: Option<InputResponses>) -> CallToolRequestParams {
        let arguments = self.arguments.as_object().cloned().unwrap_or_default();
        let mut params = CallToolRequestParams::new(self.entry.name.clone()).with_arguments(arguments);
        params.request_state.clone_from(&place.state);
        params.input_responses = answers;
        params
    }

    /// Sends the request, emits its progress, and answers its questions. Dropping the future cancels the request.
    async fn send(&mut self, connection: &Connection, params: CallToolRequestParams) -> Result<ServerResult, End> {
        let mut meta = RequestMetaObject::new();
        if self.shared.setup.sends_trace_parent {
            let parent = self.ctx.trace_parent();
            meta.insert("traceparent".to_owned(), parent.to_string().into());
            if let Some(state) = parent.state() {
                meta.insert("tracestate".to_owned(), state.into());
            }
        }
        if self.is_idempotent && self.shared.setup.elicit.is_none() {
            connection.settled().await;
        }
        let mut under_way = connection.signals.calls.begin();
        let state = params.request_state.clone();
        let request = ClientRequest::CallToolRequest(CallToolRequest::new(params));
        let mut pending = connection.send(METHOD, request, meta).await?.hiding(state);
        let Some(token) = pending.handle().map(|handle| handle.progress_token.clone()) else {
            return Ok(pending.answer().await?);
        };
        let mut route = connection.signals.route(token);
        let answer = loop {
            tokio::select! {
                biased;
                progress = route.next() => self.emit(progress).await,
                Asked { request, reply } = under_way.asked() => match self.answer_live(&request) {
                    // A server that has gone reads no answer.
                    Ok(answer) => drop(reply.send(answer)),
                    Err(end) => {
                        // The server learns that the call is cancelled before it gets the error of its question: one
                        // that takes any answer for a yes would go on.
                        pending.cancel().await;
                        drop(reply);
                        return Err(end);
                    }
                },
                answer = pending.answer() => break answer,
            }
        };
        while let Some(progress) = route.arrived() {
            self.emit(progress).await;
        }
        Ok(answer?)
    }

    async fn emit(&self, mut progress: crate::events::ToolProgress) {
        if let Err(error) = self.ctx.emitter().emit_event(&mut progress).await {
            tracing::warn!("a listener for the progress of `{}` has failed: {error}", self.entry.name);
        }
    }
}
