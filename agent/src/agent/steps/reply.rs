//! The reply of a turn: `model.call`, and the stages and guards that each reply passes.

use emitree_runtime::{Error, Result, Run, Runnable};
use futures_core::future::BoxFuture;

use crate::agent::steps::Loop;
use crate::handoff::Answered;
use crate::model::chunks::{ChunkStages, Stages};
use crate::model::incoming::{IncomingReply, pass_whole};
use crate::model::passage::{PassReplies, Passage};
use crate::model::text_stage::TextStage;
use crate::model::tokens::Measured;
use crate::session::keys::key_of_turn;
use crate::{ChatModel, ChatRequest, ChatResponse, Delta, Message, ToolOutput};

impl Loop<'_> {
    /// Runs the model, with the hooks of `model.call` and `model.chunk` bound to its run. If its reply is empty, runs it
    /// once more, with the same key, and fails if that reply is empty too.
    pub(super) fn ask_model<'b>(
        &'b self,
        model: &'b ChatModel,
        request: ChatRequest,
    ) -> BoxFuture<'b, Result<ChatResponse>> {
        Box::pin(async move {
            let estimated = Measured::begin(&self.state, &request);
            let mut again = (!self.agent.allow_empty).then(|| request.clone());
            let mut request = request;
            loop {
                let (session, turn) = (self.state.session.session().clone(), self.state.session.asked_turn());
                let mut run = model.run(request).key_with(move || key_of_turn(session.key(), turn));
                // The hooks are bound to the model's run instead of the agent's, so that other models below the agent do
                // not inherit them.
                for installed in &self.installed {
                    if !installed.hooks.model_call.is_empty() {
                        run = run.middleware(installed.hooks.model_call.clone());
                    }
                }
                let response = match self.passage() {
                    None => run.await,
                    Some(passage) => self.ask_through(run, passage).await,
                }?;
                Measured::end(estimated, response.usage, self.ctx);
                // Each call is charged, so each one counts, also if the run fails.
                self.state.session.count_reply(response.usage, response.cost);
                if !response.is_empty || self.agent.allow_empty {
                    return Ok(response);
                }
                match again.take() {
                    Some(same) => request = same,
                    None => return Err(Self::twice_empty(model, &response)),
                }
            }
        })
    }

    fn twice_empty(model: &ChatModel, response: &ChatResponse) -> Error {
        let model = response.model.as_deref().unwrap_or(model.name());
        let reason = match &response.message.finish_reason {
            Some(reason) => format!("finish reason `{}`", String::from(reason.clone())),
            None => "no finish reason".to_owned(),
        };
        Error::new(format!(
            "the model `{model}` has answered twice without text and without a call ({reason}); if that is an answer, \
             use `allow_empty(true)`"
        ))
    }

    /// Runs the model, and passes its reply through stages and guards.
    fn ask_through<'b>(&'b self, run: Run<'b, ChatModel>, passage: Passage) -> BoxFuture<'b, Result<ChatResponse>> {
        Box::pin(async move {
            let response = run.own_extension(passage.clone()).middleware(PassReplies).await?;
            // Listeners of the run's `success`, and layers that only observe, may still have changed the reply.
            if passage.has_passed(&response) { Ok(response) } else { self.pass_reply(response).await }
        })
    }

    /// Returns the passage of a reply, or `None` if the hooks have neither stages nor guards for replies.
    fn passage(&self) -> Option<Passage> {
        let mut reads = ChunkStages::default();
        let mut stages = ChunkStages::default();
        for chains in self.chains() {
            reads.extend(&chains.reads);
            stages.extend(&chains.chunks);
        }
        let is_guarded = self.installed.iter().any(|installed| installed.hooks.guards_replies);
        let is_needed = is_guarded || !stages.is_empty() || !reads.is_empty();
        is_needed.then(|| Passage::of_agent(reads, stages, is_guarded))
    }

    /// Passes a reply that is not from the model's run through the stages as a whole, and through the guards of
    /// `model.call`.
    async fn pass_reply(&self, reply: ChatResponse) -> Result<ChatResponse> {
        let reply = pass_whole(reply, self.begin_stages(), self.ctx).await?;
        self.check_reply(&reply).await?;
        Ok(reply)
    }

    fn begin_stages(&self) -> Stages {
        let mut stages = Stages::default();
        self.chains().for_each(|chains| stages.append(chains.chunks.begin()));
        stages
    }

    async fn check_reply(&self, reply: &ChatResponse) -> Result<()> {
        for installed in self.installed.iter().rev() {
            installed.hooks.model_call.check_output(reply, self.ctx).await?;
        }
        Ok(())
    }

    /// Makes the answer of the run from the output of a tool, which passes the stages and guards as a model's reply does.
    pub(super) fn answer_of<'b>(
        &'b self,
        output: &'b ToolOutput,
        answered: Option<Answered>,
    ) -> BoxFuture<'b, Result<Message>> {
        Box::pin(async move {
            let is_foreign = answered.is_some();
            let mut answer = Message::assistant(output.text());
            if let Some(answered) = answered {
                answer.finish_reason = answered.finish_reason;
                if answered.passed.is_some_and(|text| text == output.text()) {
                    return Ok(answer);
                }
            }
            let deltas = Delta::of_response(ChatResponse::new(answer));
            // The tokens of another agent were emitted by its model.
            let streams = self.options.stream.or(self.agent.model.own_options().stream) == Some(true) && !is_foreign;
            let mut stages = self.begin_stages();
            if let Some(stage) = TextStage::of(self.ctx) {
                stages.push(stage);
            }
            let mut reply = IncomingReply::new(stages, streams, self.ctx);
            let is_stopped = reply.receive(deltas, true).await?;
            let (reply, is_as_staged) = reply.finish(is_stopped);
            if !is_as_staged {
                // A listener has changed a token.
                return Ok(self.pass_reply(reply).await?.message);
            }
            self.check_reply(&reply).await?;
            Ok(reply.message)
        })
    }
}
