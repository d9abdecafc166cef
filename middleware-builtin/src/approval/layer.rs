//! The layer that asks for approval, and calls `next` if the input is approved.
//!
//! 1. `next` is called only with an approved or edited input, or with an input that needs no approval.
//! 2. If a question gets no answer, `next` is not called. A failure, a panic or a time-out becomes a denial
//!    (M5). Other control flow, such as an interrupt or an abort, is returned unchanged (M9).
//! 3. An answer that does not fit denies the run, or is removed if the approval interrupts (M8).

use std::future::Future;
use std::iter::successors;
use std::time::Duration;

use emitree_runtime::{Answer, Answers, Error, ErrorKind, JsonRun, Layer, Next, Result, RunContext, Summary};
use serde_json::{Value, json};
use tokio::time::{Instant, timeout_at};

use super::events::RequestEvents;
use super::responder::{AskFn, Responder, ask};
use super::{Approval, Decision, Request};
use crate::shared::json::deny_deep;
use crate::shared::panic::caught;

#[derive(Debug)]
pub(super) struct ApprovalLayer(pub(super) Approval);

/// A question about one run.
struct Question<'a> {
    request: &'a Request,
    answers: Answers,
    ctx: &'a RunContext,
    next: Next<'a, JsonRun>,
}

/// A decision, and its author.
struct Decided {
    decision: Decision,
    by: Option<String>,
}

/// The reason why an answer is not used.
enum Fault {
    /// The answer does not fit, or is not allowed.
    Unfit(String),
    /// A guard denied the response, or control flow ended the check.
    Ended(Error),
}

impl From<Error> for Fault {
    fn from(error: Error) -> Self {
        match error.kind() {
            ErrorKind::Invalid => Self::Unfit(error.to_string()),
            _ => Self::Ended(error),
        }
    }
}

impl Layer<JsonRun> for ApprovalLayer {
    async fn call(&self, input: &Value, ctx: &RunContext, next: Next<'_, JsonRun>) -> Result<Value> {
        // Cloning and hashing recurse into the input. First deny an input that is nested so deeply that it would
        // overflow the stack.
        deny_deep(&self.0.by, "input", input)?;
        let request = Request::new(&self.0.by, ctx, input, self.0.choices());
        let answers = self.0.answers_of(ctx);
        // An answer is final: the predicates are not asked again.
        if answers.get(&request.id).is_none() && !self.asks_about(&request)? {
            return next.run(input).await;
        }
        match self.decide(&Question { request: &request, answers, ctx, next }).await? {
            Decision::Edit(edited) => next.run(&edited).await.map_err(|error| self.add_editor(error)),
            Decision::Respond(output) => Ok(output),
            Decision::Approve | Decision::Reject { .. } => next.run(input).await,
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

    /// Looks up the answer or asks for it, then emits `approved`, `edited`, `responded` or `rejected`. Returns an error
    /// if the run is rejected or gets no valid answer. If the error is not a denial, none of these events is emitted.
    async fn decide(&self, question: &Question<'_>) -> Result<Decision> {
        let Question { request, answers, ctx, next } = question;
        let known = answers.look_up(&request.id);
        let mut events = RequestEvents { request, remembered: known.is_some(), by: None };
        let own_events = &self.0.own_events;
        let decided = match (&self.0.responder, known) {
            (Responder::Interrupt, known) => self.by_interrupt(&events, known, question).await,
            // The answer may be an edit from before edits were disallowed, or from another approval.
            (Responder::Live(_), Some(answer)) => self.read(&answer, *next).await.map_err(|fault| self.error(fault)),
            (Responder::Live(f), None) => self.ask(&**f, &events, question).await,
        };
        let decided = match decided {
            Ok(Decided { decision, by }) => {
                events.by = by;
                Ok(decision)
            }
            Err(error) => Err(error),
        };
        match &decided {
            Ok(Decision::Approve) => own_events.emit(ctx, || events.approved()).await,
            Ok(Decision::Edit(input)) => own_events.emit(ctx, || events.edited(input)).await,
            Ok(Decision::Respond(output)) => own_events.emit(ctx, || events.responded(output)).await,
            Ok(Decision::Reject { reason }) => {
                own_events.emit(ctx, || events.rejected(reason, false)).await;
                return Err(self.deny(reason));
            }
            // Control flow such as an interrupt or an abort is not a rejection.
            Err(error) if error.is_denied() => own_events.emit(ctx, || events.rejected(error, true)).await,
            Err(_) => {}
        }
        match decided {
            Ok(Decision::Edit(_)) if is_settled_above(answers, ctx) => {
                Err(answers.interrupt(request.to_interrupt(), ctx, None))
            }
            decided => decided,
        }
    }

    /// Reads the known answer, or interrupts the run with the question.
    async fn by_interrupt(
        &self,
        events: &RequestEvents<'_>,
        known: Option<Answer>,
        question: &Question<'_>,
    ) -> Result<Decided> {
        let Question { request, answers, ctx, next } = question;
        let interrupt = |refused| answers.interrupt(request.to_interrupt(), ctx, refused);
        let error = match &known {
            None => interrupt(None),
            Some(answer) => match self.read(answer, *next).await {
                Ok(decided) => return Ok(decided),
                Err(Fault::Ended(error)) => return Err(error),
                Err(Fault::Unfit(reason)) => interrupt(Some((answer, &reason))),
            },
        };
        if error.is_interrupted() {
            self.0.own_events.emit(ctx, || events.asked()).await;
        }
        Err(error)
    }

    /// Calls the responder, or waits for another run that asks the same question.
    async fn ask(&self, f: &AskFn, events: &RequestEvents<'_>, question: &Question<'_>) -> Result<Decided> {
        let Question { request, answers, ctx, next } = question;
        // Boxed, because the futures below each have room for it.
        let ask = Box::pin(async {
            self.0.own_events.emit(ctx, || events.asked()).await;
            let decision = ask(f, request).await.map_err(|error| self.fail_closed(error))?;
            // Only an answer that fits is kept.
            self.checked(decision, *next).await.map(Answer::from).map_err(|fault| self.error(fault))
        });
        // One deadline covers both cases: asking, and waiting for another run that asks.
        let deadline = self.0.timeout.map(|after| (after, Instant::now().checked_add(after)));
        let answer = match deadline {
            Some((after, Some(deadline))) => {
                // If the responder is late, the inner timeout denies all runs that wait for this answer. The outer
                // timeout also limits the wait for another run.
                let ask = self.or_deny_after(after, deadline, ask);
                self.or_deny_after(after, deadline, answers.ask_once(&request.id, ctx, ask)).await
            }
            _ => answers.ask_once(&request.id, ctx, ask).await,
        };
        // Check the answer again: if it comes from another run or from `Answers::answer`, it was not checked against
        // the choices that this approval allows.
        self.read(&answer?, *next).await.map_err(|fault| self.error(fault))
    }

    async fn or_deny_after(
        &self,
        after: Duration,
        deadline: Instant,
        answer: impl Future<Output = Result<Answer>> + Send,
    ) -> Result<Answer> {
        let late = || Err(self.deny(format!("nobody answered within {after:?}")));
        match timeout_at(deadline, answer).await {
            // A responder that blocks its thread keeps the timer from firing, so deny every answer that comes after the
            // deadline (M5).
            Ok(Ok(_)) if Instant::now() > deadline => late(),
            Ok(answer) => answer,
            Err(_) => late(),
        }
    }

    /// Reads a decision that is allowed and fits the run.
    async fn read(&self, answer: &Answer, next: Next<'_, JsonRun>) -> Result<Decided, Fault> {
        let decision = self.checked(answer.read()?, next).await?;
        Ok(Decided { decision, by: answer.by.clone() })
    }

    async fn checked(&self, decision: Decision, next: Next<'_, JsonRun>) -> Result<Decision, Fault> {
        // Edited inputs and responses are cloned into events, and then recorded. Both steps recurse, so deny a value
        // that is nested too deeply.
        if let Decision::Edit(value) | Decision::Respond(value) = &decision {
            deny_deep(&self.0.by, "answer", value)?;
        }
        if !self.0.choices().contains(&decision.choice()) {
            let reason = "the answer was an edit, which is not allowed here: approve, reject or respond";
            return Err(Fault::Unfit(reason.to_owned()));
        }
        match decision {
            Decision::Respond(value) => Ok(Decision::Respond(output_of(value, next).await?)),
            decision => Ok(decision),
        }
    }

    /// Returns the error of a live approval: an answer that does not fit denies the run.
    fn error(&self, fault: Fault) -> Error {
        match fault {
            Fault::Unfit(reason) => self.deny(reason),
            Fault::Ended(error) => error,
        }
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

/// Returns the output for a response: the value itself, or an object with the member `content`, which is the output of
/// an agent's tool. The guards inside check it.
async fn output_of(value: Value, next: Next<'_, JsonRun>) -> Result<Value> {
    let Err(error) = next.check_output(&value).await else { return Ok(value) };
    if *error.kind() != ErrorKind::Invalid {
        return Err(error);
    }
    let content = json!({ "content": value });
    match next.check_output(&content).await {
        Ok(()) => Ok(content),
        // The first error names the type that the value does not fit.
        Err(other) if *other.kind() == ErrorKind::Invalid => Err(error),
        Err(other) => Err(other),
    }
}

/// Returns `true` if the code that has set the answers executes an edit: an agent does so for its calls. It is then an
/// answer to the run's question, and the run is made again with the edited input. For a run inside a call that has begun,
/// nobody does.
fn is_settled_above(answers: &Answers, run: &RunContext) -> bool {
    let above = || successors(run.parent(), |run| run.parent()).find(|run| run.key().is_some());
    answers.settles_edits() && run.key().is_some() && !run.has_begun() && above().is_none_or(|above| !above.has_begun())
}
