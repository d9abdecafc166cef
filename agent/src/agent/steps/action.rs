//! A response and its calls: `turn.action`, the tools, and `turn.stop`.

use std::panic::{AssertUnwindSafe, resume_unwind};
use std::sync::Arc;

use emitree_runtime::{Error, ErrorKind, Result};
use futures_core::future::BoxFuture;
use futures_util::FutureExt;

use crate::agent::batch::run_batch;
use crate::agent::events::MessageError;
use crate::agent::steps::{After, Loop};
use crate::model::{emit, log};
use crate::place::action::{TurnAction, TurnDecision, TurnEnd};
use crate::{ChatResponse, Message};

impl Loop<'_> {
    /// Passes a response through `turn.action`, and executes its tool calls unless a hook decides otherwise. When this
    /// function returns `Ok`, the turn is in the history. Also returns the message that is the answer if the loop ends.
    pub(super) fn act(&self, response: ChatResponse) -> BoxFuture<'_, Result<(TurnEnd, Arc<Message>, After)>> {
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
    pub(super) async fn stop(&self, mut end: TurnEnd, after: After) -> Result<After> {
        for chains in self.chains() {
            if chains.stop.pass(&mut end, self.ctx).await?.is_break() {
                return Ok(After::End);
            }
        }
        Ok(after)
    }
}

/// Returns the message that the history keeps in place of a response that a hook denied or on which it halted the run.
fn withheld_by(error: &Error) -> Option<Message> {
    match error.kind() {
        ErrorKind::Denied { by } | ErrorKind::Halted { by } => Some(Message::assistant(format!("(withheld by {by})"))),
        _ => None,
    }
}
