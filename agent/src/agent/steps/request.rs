//! The request of a turn: from `model.state` to `model.request`.

use std::sync::Arc;

use emitree_runtime::Result;
use futures_core::future::BoxFuture;

use crate::agent::builder::ask_for_tools;
use crate::agent::events::Iteration;
use crate::agent::steps::Loop;
use crate::model::emit;
use crate::place::request::ModelRequest;
use crate::place::testing::join;
use crate::{ChatOptions, ChatRequest, ChatResponse, History, Message};

impl Loop<'_> {
    /// Prepares the request of a turn, and asks the model. The request is not in the frame of the turn, which is on the
    /// stack once for each nested agent.
    pub(super) fn ask(&mut self) -> BoxFuture<'_, Result<ChatResponse>> {
        if let Some(request) = self.plain_request() {
            return self.ask_with_hooks(request);
        }
        Box::pin(async move {
            let request = self.request().await?;
            self.ask_with_hooks(request).await
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
                options: ChatOptions::clone(&self.options),
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
                let mut iteration = Iteration { turn: self.turn(), messages: history.messages().len() };
                emit(self.ctx, &mut iteration).await?;
            }
            // Without hooks at `model.context`, the request shares the messages of the history.
            let mut request = ChatRequest {
                messages: self.context(&history).await?,
                system: self.system_prompt().await?,
                tools: Arc::clone(self.tools.specs()),
                options: ChatOptions::clone(&self.options),
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
            let read = self.state.session.read();
            let mut history = read.0.clone();
            for chains in self.chains() {
                chains.state.apply(&mut history, self.ctx).await?;
            }
            if self.state.session.update(&read, &history) {
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
            self.tools.ask(self.agent, &self.installed, self.ctx).await?;
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
}
