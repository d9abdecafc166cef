//! The steps of an agent's loop.

use std::future::ready;
use std::panic::{AssertUnwindSafe, resume_unwind};
use std::sync::Arc;

use emitree_runtime::{Error, ErrorKind, Result, Run, RunContext, Runnable};
use futures_core::future::BoxFuture;
use futures_util::FutureExt;

use crate::agent::AgentParts;
use crate::agent::batch::run_batch;
use crate::agent::builder::ask_for_tools;
use crate::agent::events::{AgentStart, AgentSuccess, Iteration, MessageAdded, MessageError};
use crate::agent::middleware::{Installed, Joined};
use crate::agent::spec::{AgentSpec, ExpectedTools};
use crate::agent::toolset::Toolset;
use crate::agent::turn::{Attempt, CurrentTurn, LoopState, UntilNext};
use crate::kinds::handoff::{Answered, Source};
use crate::message::history::check;
use crate::model::chunks::{ChunkStages, Stages};
use crate::model::incoming::{IncomingReply, pass_whole};
use crate::model::passage::{PassReplies, Passage, is_run_of};
use crate::model::text_stage::TextStage;
use crate::model::{emit, log};
use crate::place::action::{TurnAction, TurnDecision, TurnEnd};
use crate::place::built::Chains;
use crate::place::measured::Measured;
use crate::place::request::ModelRequest;
use crate::place::testing::join;
use crate::{Agent, AgentInput, AgentOutput, ChatModel, ChatOptions, ChatRequest, ChatResponse, Delta};
use crate::{History, Message, ToolOutput, ToolSpec};

/// The maximum number of rounds that hooks of `run.end` can start in one attempt.
const MAX_ROUNDS: u32 = 100;

/// One attempt of an agent's run.
pub(crate) struct Loop<'a> {
    pub(crate) agent: &'a AgentParts,
    pub(crate) ctx: &'a RunContext,
    /// The agent's middlewares, then the middlewares that are bound to this run.
    installed: Vec<Arc<Installed>>,
    pub(crate) tools: Toolset,
    /// The tools that the current request offers, if a hook of `model.request` has changed them.
    pub(crate) offered: Option<Arc<Vec<ToolSpec>>>,
    /// The tools that middlewares name, and that may still come.
    expected: Option<Arc<ExpectedTools>>,
    options: ChatOptions,
    state: Attempt,
    warnings: Vec<String>,
    input: &'a AgentInput,
    /// The number of messages of this attempt whose events have been emitted, or skipped because there were no
    /// listeners.
    announced: usize,
    /// The number of the last turn before the last message that steering has added, from which `max_steps` counts.
    steered_after: u32,
}

/// The step after a turn: another model call, or the end of the loop.
enum After {
    AskAgain,
    End,
}

impl<'a> Loop<'a> {
    pub(crate) fn begin(agent: &'a AgentParts, input: &'a AgentInput, ctx: &'a RunContext) -> Result<Self> {
        check_depth(agent, ctx)?;
        // These middlewares come after the agent's middlewares, in the order of binding: first the inherited middlewares,
        // then the run's own.
        let joined = ctx.own_extension::<Joined>().map(|joined| joined.all()).unwrap_or_default();
        // The names of the tools are checked, as in `build`, before a message enters the session.
        let tools = Toolset::new(agent, &joined, ctx)?;
        let mut installed = agent.installed.clone();
        installed.extend(joined.iter().cloned());
        // `Prepare` has set the state, unless `execute` was called in a run of another runnable.
        let state = LoopState::of(ctx).ok_or_else(|| {
            Error::new(format!(
                "`execute` of an agent needs the context of the agent's own run, not of `{}`: call `run`",
                ctx.name()
            ))
        })?;
        state.compacting.begin(&installed);
        let state = Attempt::next(state);
        if agent.hands_off {
            let streams = input.options.stream.or(agent.options.stream).or(agent.model.own_options().stream);
            let source = Source { installed: installed.clone(), streams: streams == Some(true) };
            _ = state.handoffs.source.set(source);
        }
        let expected = state.is_first().then(|| check_joined(agent, &joined, &installed, &tools, ctx)).transpose()?;
        Ok(Self {
            options: input.options.or(&agent.options),
            agent,
            ctx,
            installed,
            tools,
            offered: None,
            expected: expected.flatten(),
            state,
            warnings: Vec::new(),
            input,
            announced: 0,
            steered_after: 0,
        })
    }

    pub(crate) fn chains(&self) -> impl Iterator<Item = &Chains> {
        self.installed.iter().map(|installed| &installed.hooks.chains)
    }

    pub(crate) fn turn(&self) -> &CurrentTurn {
        &self.state.turn
    }

    pub(crate) fn installed(&self) -> &[Arc<Installed>] {
        &self.installed
    }

    /// Returns the tools that middlewares name, and that may still come in this run.
    pub(crate) fn expected(&self) -> Option<Arc<ExpectedTools>> {
        self.expected.clone()
    }

    pub(crate) fn run(self) -> UntilNext<'a, AgentOutput> {
        let until_next = self.state.until_next();
        until_next(self.begin_and_take_turns())
    }

    fn begin_and_take_turns(self) -> BoxFuture<'a, Result<AgentOutput>> {
        let tools = self.state.end_tools(self.ctx, self.agent.spawn_tools);
        if tools.is_empty() {
            // The future of most attempts has no state for tools: it is on the stack once for each nested agent.
            return match self.begin_session() {
                Ok(()) => self.take_turns(),
                Err(error) => Box::pin(ready(Err(error))),
            };
        }
        Box::pin(async move {
            for tool in tools {
                tool.ended().await;
            }
            self.begin_session()?;
            self.take_turns().await
        })
    }

    /// Undoes the previous attempt, if there was one, and adds the messages of the input to the session.
    fn begin_session(&self) -> Result<()> {
        self.state.begin()?;
        self.state.session.extend(self.input.messages.iter().cloned())?;
        // A run may continue a session without new messages, but providers refuse a conversation without messages.
        // Messages of the inbox enter with the first turn.
        if self.state.session.has_waiting() { Ok(()) } else { self.check_not_empty() }
    }

    fn check_not_empty(&self) -> Result<()> {
        if self.state.session.history().messages().is_empty() {
            return Err(Error::new(format!("the input of the agent `{}` has no messages", self.ctx.name())));
        }
        Ok(())
    }

    /// Adds messages that the run has taken from the inbox, as the hooks of `steer.inject` leave them. Returns `true` if
    /// there are any.
    fn steer(&mut self, taken: Vec<Arc<Message>>) -> BoxFuture<'_, Result<bool>> {
        if taken.is_empty() {
            return Box::pin(ready(Ok(false)));
        }
        Box::pin(async move {
            let count = taken.len();
            let mut messages: Vec<_> = taken.into_iter().map(Arc::unwrap_or_clone).collect();
            if let Err(error) = self.pass_steering(&mut messages).await {
                if !error.is_halted() {
                    return Err(error);
                }
                self.warnings.push(format!("dropped messages to the run: {count} ({})", error.explain()));
                messages.clear();
            }
            let messages: Vec<_> = messages.into_iter().map(Arc::new).collect();
            check(&messages)?;
            let has_entered = !messages.is_empty();
            self.state.session.enter(messages, self.state.number());
            if has_entered {
                self.steered_after = self.turn().get().number;
                self.announce().await?;
            }
            Ok(has_entered)
        })
    }

    async fn pass_steering(&self, messages: &mut Vec<Message>) -> Result<()> {
        for chains in self.chains() {
            chains.inject.apply(messages, self.ctx).await?;
        }
        Ok(())
    }

    /// Adds the messages of the inbox that start another round where the loop would end. Returns `true` if there are any.
    async fn steer_at_end(&mut self) -> Result<bool> {
        if !self.state.session.has_waiting() {
            return Ok(false);
        }
        let taken = self.state.session.take_at_end(self.state.number());
        let has_entered = self.steer(taken).await?;
        if has_entered {
            self.state.answer.forget();
        }
        Ok(has_entered)
    }

    fn take_turns(mut self) -> BoxFuture<'a, Result<AgentOutput>> {
        Box::pin(async move {
            if self.ctx.has_listeners() {
                emit(self.ctx, &mut AgentStart { messages: self.input.messages.clone() }).await?;
            }
            self.announce().await?;
            let mut rounds = 0;
            loop {
                let (answer, after) = self.take_turn().await?;
                if matches!(after, After::AskAgain) || self.steer_at_end().await? {
                    continue;
                }
                // Even if `turn.stop` ended the loop, hooks of `run.end` may start another round.
                let mut more = Vec::new();
                for chains in self.chains() {
                    chains.end.apply(&mut more, self.ctx).await?;
                }
                if more.is_empty() {
                    // Messages may have arrived while the hooks were called.
                    if self.steer_at_end().await? {
                        continue;
                    }
                    return self.succeed(answer).await;
                }
                rounds += 1;
                if rounds > MAX_ROUNDS {
                    return Err(Error::new(format!(
                        "hooks of `run.end` have started {MAX_ROUNDS} rounds, which is the limit"
                    )));
                }
                self.state.answer.forget();
                self.state.session.extend(more)?;
                self.announce().await?;
            }
        })
    }

    /// Emits the events of each message that this attempt has added to the history since the last call of `announce`.
    async fn announce(&mut self) -> Result<()> {
        if !self.ctx.has_listeners() {
            // Listeners that are added later do not receive earlier messages.
            self.announced = self.state.session.count_added();
            return Ok(());
        }
        self.announce_all().await
    }

    fn announce_all(&mut self) -> BoxFuture<'_, Result<()>> {
        Box::pin(async move {
            let messages = self.state.session.added_after(self.announced);
            self.announced += messages.len();
            for message in messages {
                emit(self.ctx, &mut MessageAdded { message: Arc::clone(&message) }).await?;
                for result in message.tool_results().filter(|result| result.is_error) {
                    let error = result.response.as_str().map_or_else(|| result.response.to_string(), str::to_owned);
                    emit(self.ctx, &mut MessageError { message: Arc::clone(&message), error }).await?;
                }
            }
            Ok(())
        })
    }

    async fn succeed(self, answer: Arc<Message>) -> Result<AgentOutput> {
        emit(self.ctx, &mut AgentSuccess { answer: Arc::clone(&answer) }).await?;
        let turn = self.turn().get();
        Ok(AgentOutput {
            finish_reason: answer.finish_reason.clone(),
            answer: Arc::unwrap_or_clone(answer),
            messages: self.state.session.added(),
            model_answer: None,
            usage: turn.usage,
            cost: turn.cost,
            turns: turn.number,
            last_agent: self.state.handoffs.last_agent(),
            warnings: self.warnings,
            context: serde_json::Map::new(),
        })
    }

    /// Calls the model once, and executes the tool calls of its response unless a hook decides otherwise. Returns the
    /// response as the history keeps it, and the next step.
    fn take_turn(&mut self) -> BoxFuture<'_, Result<(Arc<Message>, After)>> {
        Box::pin(async move {
            if self.state.session.has_waiting() {
                let taken = self.state.session.take_steering(self.state.number());
                self.steer(taken).await?;
                self.check_not_empty()?;
            }
            if self.turn().get().number - self.steered_after == self.agent.max_steps {
                return Err(Error::new(format!(
                    "the agent `{}` has no answer after {} model calls, which is its limit (`max_steps`)",
                    self.ctx.name(),
                    self.agent.max_steps
                )));
            }
            self.turn().change(|turn| turn.number += 1);
            if self.agent.hands_off {
                self.state.handoffs.begin_turn();
            }
            let request = match self.plain_request() {
                Some(request) => request,
                None => self.request().await?,
            };
            let response = self.ask_with_hooks(request).await?;
            self.turn().change(|turn| turn.add_response(&response));
            self.warnings.extend(response.warnings.iter().cloned());
            let acted = self.act(response).await;
            if let Ok((_, answer, After::End)) = &acted {
                self.state.answer.keep(answer, self.ctx);
            }
            // The events are emitted even for a failed turn, because its messages may have entered the history.
            let announced = self.announce().await;
            let (end, answer, after) = match acted {
                Ok(acted) => announced.map(|()| acted)?,
                Err(error) => {
                    log(announced, "message");
                    return Err(error);
                }
            };
            let after = self.stop(end, after).await?;
            if matches!(after, After::End) {
                self.state.answer.keep(&answer, self.ctx);
            }
            Ok((answer, after))
        })
    }

    /// Returns the request if nobody listens and no hook takes part in its preparation. Most turns need no more, so they
    /// need no future for it.
    fn plain_request(&mut self) -> Option<ChatRequest> {
        let is_plain = !self.ctx.has_listeners()
            && self.ctx.attempt() == 0
            && self.installed.iter().all(|installed| !installed.hooks.prepares_requests());
        is_plain.then(|| {
            self.announced = self.state.session.count_added();
            ChatRequest {
                messages: self.state.session.history().0,
                system: self.agent.prompt.clone().filter(|prompt| !prompt.trim().is_empty()),
                tools: Arc::clone(self.tools.specs()),
                options: self.options.clone(),
            }
        })
    }

    /// Prepares the request, and calls the hooks of `model.state`, `model.context`, `model.prompt` and `model.wire`.
    fn request(&mut self) -> BoxFuture<'_, Result<ChatRequest>> {
        Box::pin(async move {
            self.change_history().await?;
            self.announce().await?;
            if ask_for_tools(&self.installed) {
                self.ask_for_tools().await?;
            }
            let history = self.state.session.history();
            if self.ctx.has_listeners() {
                let mut iteration = Iteration { turn: self.turn().get(), messages: history.messages().len() };
                emit(self.ctx, &mut iteration).await?;
            }
            // Without hooks at `model.context`, the request shares the messages of the history.
            let mut request = ChatRequest {
                messages: self.context(&history).await?,
                system: self.system_prompt().await?,
                tools: Arc::clone(self.tools.specs()),
                options: self.options.clone(),
            };
            // Only the hook of the last middleware is called, so a middleware of the run replaces the agent's hook.
            if let Some(chains) = self.chains().filter(|chains| !chains.wire.is_empty()).last() {
                let system = request.system.take().map(|text| Arc::new(Message::system(text)));
                let mut messages = system.into_iter().chain(request.messages.iter().cloned()).collect();
                chains.wire.apply(&mut messages, self.ctx).await?;
                request.messages = Arc::new(messages);
            }
            Ok(request)
        })
    }

    /// Calls the `model.state` hooks, which may change the history. If another run of the session rewrites the
    /// history meanwhile, the hooks are called again with the rewritten history, so that no change is lost.
    async fn change_history(&self) -> Result<()> {
        if self.chains().all(|chains| chains.state.is_empty()) {
            return Ok(());
        }
        loop {
            let read = self.state.session.history();
            let mut history = read.clone();
            for chains in self.chains() {
                chains.state.apply(&mut history, self.ctx).await?;
            }
            if self.state.session.update(&read, history) {
                return Ok(());
            }
        }
    }

    /// Returns the messages for one model call. The list is shared with the history, and copied only if there are hooks
    /// at `model.context`.
    async fn context(&self, history: &History) -> Result<Arc<Vec<Arc<Message>>>> {
        if self.chains().all(|chains| chains.context.is_empty()) {
            return Ok(Arc::clone(&history.0));
        }
        let mut messages = history.messages().to_vec();
        for chains in self.chains() {
            chains.context.apply(&mut messages, self.ctx).await?;
        }
        Ok(Arc::new(messages))
    }

    /// Joins the agent's prompt, the parts that middlewares add and the reason for a retry, with blank lines between
    /// them. Passes the joined text through the `model.prompt` hooks. Returns `None` if the result is blank.
    async fn system_prompt(&self) -> Result<Option<String>> {
        let mut texts: Vec<String> = self.agent.prompt.iter().cloned().collect();
        for chains in self.chains() {
            chains.contributions.apply(&mut texts, self.ctx).await?;
        }
        // Add only the reason for this attempt, because the reasons for earlier attempts no longer apply.
        if self.ctx.attempt() > 0
            && let Some(retry) = self.ctx.feedback().pop()
        {
            texts.push(format!("The previous attempt was discarded: {}", retry.reason));
        }
        let mut prompt = join(texts);
        for chains in self.chains() {
            chains.prompt.apply(&mut prompt, self.ctx).await?;
        }
        Ok((!prompt.trim().is_empty()).then_some(prompt))
    }

    /// Asks the middlewares for the tools of this turn.
    fn ask_for_tools(&mut self) -> BoxFuture<'_, Result<()>> {
        Box::pin(async move {
            self.tools.ask(&self.installed, self.ctx).await?;
            if let Some(expected) = &self.expected {
                expected.see(self.tools.tools());
            }
            Ok(())
        })
    }

    /// Passes a request through the hooks of `model.request`, if there are any, and asks the model.
    fn ask_with_hooks(&mut self, request: ChatRequest) -> BoxFuture<'_, Result<ChatResponse>> {
        if self.chains().all(|chains| chains.request.is_empty() && chains.writes.is_empty()) {
            return self.ask_model(&self.agent.model, request);
        }
        Box::pin(async move {
            let mut call = ModelRequest::new(request, self.agent.model.clone());
            for chains in self.chains() {
                chains.request.apply(&mut call, self.ctx).await?;
            }
            // A call of a tool that is not offered is not executed, even if the model makes one.
            let is_same = Arc::ptr_eq(&call.request.tools, self.tools.specs());
            self.offered = (!is_same).then(|| Arc::clone(&call.request.tools));
            for chains in self.chains() {
                chains.writes.apply(&mut call, self.ctx).await?;
            }
            let ModelRequest { request, model } = call;
            self.ask_model(&model, request).await
        })
    }

    /// Runs the model, with the hooks of `model.call` and `model.chunk` bound to its run.
    fn ask_model<'b>(&'b self, model: &'b ChatModel, request: ChatRequest) -> BoxFuture<'b, Result<ChatResponse>> {
        Box::pin(async move {
            let estimated = Measured::begin(&self.state, &request);
            let mut run = model.run(request);
            // The hooks are bound to the model's run instead of the agent's, so that other models below the agent do not
            // inherit them.
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
            Ok(response)
        })
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
        let (mut reads, mut stages) = (ChunkStages::default(), ChunkStages::default());
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
    fn answer_of<'b>(&'b self, output: &'b ToolOutput, answered: Option<Answered>) -> BoxFuture<'b, Result<Message>> {
        Box::pin(async move {
            let is_foreign = answered.is_some();
            if answered.and_then(|answered| answered.passed).is_some_and(|text| text == output.text()) {
                return Ok(Message::assistant(output.text()));
            }
            let deltas = Delta::of_response(ChatResponse::new(Message::assistant(output.text())));
            // The tokens of another agent were emitted by its model.
            let streams = self.options.stream.or(self.agent.model.own_options().stream) == Some(true) && !is_foreign;
            let mut stages = self.begin_stages();
            TextStage::of(self.ctx).into_iter().for_each(|stage| stages.push(stage));
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

    /// Passes a response through `turn.action`, and executes its tool calls unless a hook decides otherwise. When this
    /// function returns `Ok`, the turn is in the history. Also returns the message that is the answer if the loop ends.
    fn act(&self, response: ChatResponse) -> BoxFuture<'_, Result<(TurnEnd, Arc<Message>, After)>> {
        Box::pin(async move {
            let mut action = TurnAction::new(response);
            if self.chains().any(|chains| !chains.action.is_empty()) {
                action = self.decide(action).await?;
            }
            let TurnAction { response, inject, decision } = action;
            // The message is copied only if a listener may receive it.
            let copy = self.ctx.has_listeners().then(|| Arc::new(response.message.clone()));
            // When the turn is dropped, the response enters the history with a result for each call.
            let opened = self.state.session.open(response.message).map_err(Error::from);
            if let (Err(error), Some(message)) = (&opened, copy) {
                Box::pin(self.report(message, error)).await;
            }
            let mut turn = opened?;
            let response = Arc::clone(turn.response());
            let asks_again = !inject.is_empty();
            turn.inject(inject)?;
            let mut answer = Arc::clone(&response);
            let mut end = TurnEnd { response: Arc::clone(&response), results: Vec::new() };
            let after = match decision.unwrap_or(TurnDecision::Natural) {
                TurnDecision::Stop => {
                    turn.answer_others("not executed: the run ends here");
                    After::End
                }
                TurnDecision::LoopToModel => {
                    turn.answer_others("not executed: the model is asked again");
                    After::AskAgain
                }
                TurnDecision::Natural => {
                    let (mut terminates, mut answered) = (false, None);
                    if response.tool_calls().next().is_some() {
                        // On an error the turn is dropped, and enters the history with the results so far.
                        end.results = run_batch(self, &turn).await?;
                        answered = self.state.handoffs.settle(&end.results);
                        terminates = answered.is_some() || end.results.iter().all(|result| result.output.terminate);
                    }
                    if let Some(result) = end.results.iter().find(|result| terminates && result.output.is_answer) {
                        answer = Arc::new(self.answer_of(&result.output, answered).await?);
                        turn.end_with(&answer);
                    }
                    let is_answer = response.tool_calls().next().is_none();
                    if terminates || (is_answer && !asks_again) { After::End } else { After::AskAgain }
                }
            };
            // The turn enters the history before `turn.stop`, so that hooks find the turn in the history.
            drop(turn);
            Ok((end, answer, after))
        })
    }

    /// Passes a response through the `turn.action` hooks. If a hook fails or panics, the history keeps the response as
    /// the hooks before left it, and its calls are answered with "not executed" (A1).
    fn decide(&self, mut action: TurnAction) -> BoxFuture<'_, Result<TurnAction>> {
        Box::pin(async move {
            // A hook may change the response before it fails, so the response is copied whenever a hook has changed it.
            let mut before = action.response.message.clone();
            let hooks = Box::pin(async {
                for hook in self.chains().flat_map(|chains| &chains.action) {
                    hook.apply(&mut action, self.ctx).await?;
                    if action.response.message != before {
                        before.clone_from(&action.response.message);
                    }
                }
                Ok(())
            });
            let passed = AssertUnwindSafe(hooks).catch_unwind().await;
            let kept = match &passed {
                Ok(Ok(())) => return Ok(action),
                Ok(Err(error)) => withheld_by(error).unwrap_or(before),
                Err(_) => before,
            };
            if let Ok(Err(error)) = &passed
                && self.ctx.has_listeners()
            {
                self.report(Arc::new(kept.clone()), error).await;
            }
            // A response that an earlier hook has made unusable cannot enter the history.
            self.state.session.open(kept).map(drop).ok();
            passed.unwrap_or_else(|payload| resume_unwind(payload)).map(|()| action)
        })
    }

    /// Emits `message_error` for a response. The error of a listener is logged, because another error ends the run.
    async fn report(&self, message: Arc<Message>, error: &Error) {
        log(emit(self.ctx, &mut MessageError { message, error: error.to_string() }).await, "message_error");
    }

    /// Calls the `turn.stop` hooks in order, until one of them ends the loop.
    async fn stop(&self, mut end: TurnEnd, after: After) -> Result<After> {
        for chains in self.chains() {
            if chains.stop.pass(&mut end, self.ctx).await?.is_break() {
                return Ok(After::End);
            }
        }
        Ok(after)
    }
}

/// Checks the middlewares that joined a run, and returns the tools that may still come in this run.
fn check_joined(
    agent: &AgentParts,
    joined: &[Arc<Installed>],
    installed: &[Arc<Installed>],
    tools: &Toolset,
    ctx: &RunContext,
) -> Result<Option<Arc<ExpectedTools>>> {
    if joined.is_empty() && agent.expected.is_empty() {
        return Ok(None);
    }
    let spec = AgentSpec::new(ctx.name(), Arc::clone(tools.specs()), ask_for_tools(installed));
    joined.iter().try_for_each(|installed| installed.check(&spec))?;
    let expected = spec.into_expected();
    expected.take_over(&agent.expected);
    expected.see(tools.tools());
    Ok((!expected.is_empty()).then(|| Arc::new(expected)))
}

/// Returns the message that the history keeps in place of a response that a hook denied or on which it halted the run.
fn withheld_by(error: &Error) -> Option<Message> {
    match error.kind() {
        ErrorKind::Denied { by } | ErrorKind::Halted { by } => Some(Message::assistant(format!("(withheld by {by})"))),
        _ => None,
    }
}

/// Returns an error if the agent's run is nested in too many runs of agents.
fn check_depth(agent: &AgentParts, ctx: &RunContext) -> Result<()> {
    // Runs of other kinds in between, such as runs of tools, do not count.
    let above = std::iter::successors(ctx.parent(), |run| run.parent());
    let agents = above.filter(|run| is_run_of::<Agent>(run)).count();
    if agents > agent.max_depth {
        let error = Error::new(format!(
            "the agent `{}` runs inside {agents} other agents, but at most {} are allowed (`max_depth`)",
            ctx.name(),
            agent.max_depth
        ));
        // The error is fatal, because otherwise it would become the result of the tool that runs this agent, and the
        // model would call the tool again.
        return Err(error.fatal(true));
    }
    Ok(())
}
