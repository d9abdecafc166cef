//! The layer that asks for approval, and calls `next` if the input is approved.
//!
//! 1. `next` is called only with an approved or edited input, or with an input that needs no approval.
//! 2. If a question gets no answer, `next` is not called. A failure, a panic or a time-out becomes a denial
//!    (M5). Other control flow, such as an interrupt or an abort, is returned unchanged (M9).

use std::future::Future;
use std::time::Duration;

use emitree_runtime::{Error, ErrorKind, JsonRun, Layer, Next, Result, RunContext, Summary};
use serde_json::Value;
use tokio::time::{Instant, timeout_at};

use super::events::RequestEvents;
use super::{Approval, Approvals, Decision, Request};
use crate::shared::json::deny_deep;
use crate::shared::panic::caught;

#[derive(Debug)]
pub(super) struct ApprovalLayer(pub(super) Approval);

impl Layer<JsonRun> for ApprovalLayer {
    async fn call(&self, input: &Value, ctx: &RunContext, next: Next<'_, JsonRun>) -> Result<Value> {
        // Cloning and hashing recurse into the input. First deny an input that is nested so deeply that it would
        // overflow the stack.
        deny_deep(&self.0.by, "input", input)?;
        let request = Request::new(&self.0.by, ctx, input, self.0.choices());
        if !self.asks_about(&request)? {
            return next.run(input).await;
        }
        match self.decide(&request, ctx).await? {
            None => next.run(input).await,
            Some(edited) => next.run(&edited).await.map_err(|error| self.add_editor(error)),
        }
    }

    fn name(&self) -> &str {
        &self.0.by
    }

    fn debug_summary(&self) -> Summary {
        Summary::of(&self.0)
    }
}

impl ApprovalLayer {
    fn asks_about(&self, request: &Request) -> Result<bool> {
        let asks = || self.0.when.iter().all(|when| when(request));
        caught(asks).map_err(|panic| self.deny(format!("the predicate that decides whether to ask panicked: {panic}")))
    }

    /// Looks up the answer or asks for it, then emits `approved`, `edited` or `rejected`. Returns the edited input if
    /// the answer is an edit. Returns an error if the run is rejected or gets no valid answer. If the error is not
    /// a denial, none of these events is emitted.
    async fn decide(&self, request: &Request, ctx: &RunContext) -> Result<Option<Value>> {
        let ledger = self.0.ledger_of(ctx);
        let known = ledger.decision(&request.id());
        let events = RequestEvents { request, remembered: known.is_some() };
        let decided = match known {
            // The ledger may hold an edit from before edits were disallowed, or from another approval.
            Some(decision) => self.check_allowed(decision),
            None => self.ask(&events, &ledger, ctx).await,
        };
        let own_events = &self.0.own_events;
        match decided {
            Ok(Decision::Approve) => own_events.emit(ctx, || events.approved()).await,
            Ok(Decision::Edit(input)) => {
                own_events.emit(ctx, || events.edited(&input)).await;
                return Ok(Some(input));
            }
            Ok(Decision::Reject { reason }) => {
                own_events.emit(ctx, || events.rejected(&reason, false)).await;
                return Err(self.deny(reason));
            }
            Err(error) => {
                // Control flow such as an interrupt or an abort is not a rejection.
                if error.is_denied() {
                    own_events.emit(ctx, || events.rejected(&error, true)).await;
                }
                return Err(error);
            }
        }
        Ok(None)
    }

    async fn ask(&self, events: &RequestEvents<'_>, ledger: &Approvals, ctx: &RunContext) -> Result<Decision> {
        let ask = async {
            self.0.own_events.emit(ctx, || events.asked()).await;
            let answer = self.0.responder.ask(events.request).await;
            self.check_allowed(answer.map_err(|error| self.fail_closed(error))?)
        };
        // One deadline covers both cases: asking, and waiting for another run that asks.
        let deadline = self.0.timeout.map(|after| (after, Instant::now().checked_add(after)));
        let id = events.request.id();
        let answer = match deadline {
            Some((after, Some(deadline))) => {
                // If the responder is late, the inner timeout denies all runs that wait for this answer. The outer
                // timeout also limits the wait for another run.
                let ask = self.or_deny_after(after, deadline, ask);
                self.or_deny_after(after, deadline, ledger.ask_once(&id, ctx, ask)).await
            }
            _ => ledger.ask_once(&id, ctx, ask).await,
        };
        // Check the answer again: if it comes from another run or from `Approvals::answer`, it was not checked against
        // the choices that this approval allows.
        self.check_allowed(answer?)
    }

    async fn or_deny_after(
        &self,
        after: Duration,
        deadline: Instant,
        answer: impl Future<Output = Result<Decision>> + Send,
    ) -> Result<Decision> {
        let late = || Err(self.deny(format!("nobody answered within {after:?}")));
        match timeout_at(deadline, answer).await {
            // A responder that blocks its thread keeps the timer from firing, so deny every answer that comes after the
            // deadline (M5).
            Ok(Ok(_)) if Instant::now() > deadline => late(),
            Ok(decision) => decision,
            Err(_) => late(),
        }
    }

    fn check_allowed(&self, decision: Decision) -> Result<Decision> {
        if let Decision::Edit(input) = &decision {
            // The edited input is cloned into an event, and then recorded. Both steps recurse, so deny a value that is
            // nested too deeply.
            deny_deep(&self.0.by, "edited input", input)?;
        }
        if self.0.choices().contains(&decision.choice()) {
            return Ok(decision);
        }
        Err(self.deny("the answer was an edit, which is not allowed here: approve or reject"))
    }

    /// Turns a failure or a time-out of the responder into a denial. Other control flow is returned unchanged (M9).
    fn fail_closed(&self, error: Error) -> Error {
        if error.is_control_flow() && !error.is_timed_out() {
            return error;
        }
        self.deny(format!("the responder failed: {error}")).caused_by(error)
    }

    fn deny(&self, reason: impl Into<String>) -> Error {
        Error::denied(&*self.0.by, reason)
    }

    /// Adds the detail `edited_by` to an error of the kind `Invalid`.
    fn add_editor(&self, error: Error) -> Error {
        if *error.kind() == ErrorKind::Invalid { error.detail("edited_by", &*self.0.by) } else { error }
    }
}
