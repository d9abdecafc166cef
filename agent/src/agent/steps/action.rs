//! A response and its calls: `turn.action`, the tools, and `turn.stop`.

use std::panic::{AssertUnwindSafe, resume_unwind};
use std::sync::Arc;

use emitree_runtime::{Error, ErrorKind, Result};
use futures_core::future::BoxFuture;
use futures_util::FutureExt;

use crate::agent::calls::run_batch;
use crate::agent::events::MessageError;
use crate::agent::steps::{After, Loop};
use crate::model::{emit, log};
use crate::place::action::{TurnAction, TurnDecision, TurnEnd};
use crate::session::fold::turn::UNANSWERED;
use crate::session::turn::TurnHandle;
use crate::{ChatResponse, FinishReason, Message};

/// The result of each call of a reply that was cut off.
const CUT_OFF: &str =
    "not executed: the reply was cut off by the token limit (finish reason `length`), so the call may be incomplete";

/// A response that has passed `turn.action`.
pub(super) enum Acted<'a> {
    /// The turn is in the history.
    Ended(TurnOutcome),
    /// The calls of the turn have to be executed.
    Calls(TurnHandle<'a>),
}

/// A turn that is in the history.
pub(super) struct TurnOutcome {
    pub(super) end: TurnEnd,
    /// The message that is the answer if the loop ends.
    pub(super) answer: Arc<Message>,
    pub(super) after: After,
}

impl Loop<'_> {
    /// Passes a response through `turn.action`, and begins its turn. Unless the turn has calls to execute, it is in the
    /// history when this function returns.
    pub(super) fn act(&self, response: ChatResponse) -> BoxFuture<'_, Result<Acted<'_>>> {
        Box::pin(async move {
            let mut action = TurnAction::new(response);
            if self.chains().any(|chains| !chains.action.is_empty()) {
                action = self.decide(action).await?;
            }
            let TurnAction { response, inject, decision } = action;
            // The message is copied only if a listener may receive it.
            let copy = self.ctx.has_listeners().then(|| Arc::new(response.message.clone()));
            let has_calls = response.message.tool_calls().next().is_some();
            let (after, unanswered) = match decision.unwrap_or(TurnDecision::Natural) {
                // The calls of a reply that was cut off may lack arguments, even if what has arrived is valid (A5).
                TurnDecision::Natural if has_calls && response.message.finish_reason == Some(FinishReason::Length) => {
                    (After::AskAgain, Some(CUT_OFF))
                }
                TurnDecision::Natural if has_calls || !inject.is_empty() => (After::AskAgain, None),
                TurnDecision::Natural => (After::End, None),
                TurnDecision::Stop => (After::End, Some("not executed: the run ends here")),
                TurnDecision::LoopToModel => (After::AskAgain, Some("not executed: the model is asked again")),
            };
            // When the turn is dropped, the response enters the history with a result for each call.
            let opened = self.state.session.open(response.message, unanswered).map_err(Error::from);
            if let (Err(error), Some(message)) = (&opened, copy) {
                Box::pin(self.report(message, error)).await;
            }
            let turn = opened?;
            turn.inject(inject)?;
            if has_calls && unanswered.is_none() {
                if let Some(commit) = self.commit() {
                    commit.await?;
                }
                return Ok(Acted::Calls(turn));
            }
            let response = Arc::clone(turn.response());
            // The turn enters the history before `turn.stop`, so that hooks find the turn in the history.
            drop(turn);
            let end = TurnEnd { response: Arc::clone(&response), results: Vec::new() };
            Ok(Acted::Ended(TurnOutcome { end, answer: response, after }))
        })
    }

    /// Executes the calls of a turn, or those that an earlier run has left open. When this function returns, the turn is
    /// in the history, even if it fails.
    pub(super) fn make_calls<'b>(&'b self, turn: TurnHandle<'b>) -> BoxFuture<'b, Result<TurnOutcome>> {
        Box::pin(async move {
            let mut answer = Arc::clone(turn.response());
            // On an error the turn is dropped, and enters the history with the results so far.
            let results = run_batch(self, &turn).await?;
            let answered = self.state.handoffs.settle(&results);
            let terminates =
                answered.is_some() || !results.is_empty() && results.iter().all(|result| result.output.terminate);
            if let Some(result) = results.iter().find(|result| terminates && result.output.is_answer) {
                answer = Arc::new(self.answer_of(&result.output, answered).await?);
                turn.end_with(&answer);
            }
            let end = TurnEnd { response: Arc::clone(turn.response()), results };
            Ok(TurnOutcome { end, answer, after: if terminates { After::End } else { After::AskAgain } })
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
            // A response that an earlier hook has made unusable cannot enter the history. The calls are closed: a resume
            // must not make calls that a hook has not let pass.
            self.state.session.open(kept, Some(UNANSWERED)).ok();
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
