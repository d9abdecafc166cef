//! The end of a run.

use std::sync::Arc;

use emitree_agent::{AgentOutput, FinishReason};
use emitree_middleware::store::StoreError;
use emitree_runtime::{Error, ErrorKind, Interrupt, Result};
use serde::Deserialize;
use serde_json::Value;

use crate::fold::{Fold, Held, Steps};
use crate::step::{AgentEnd, Asked, CLOSED, Content, DROPPED, End, GONE, Owner, STOPPED, Step};

/// The kind of the interrupt that combines the questions of an agent's calls.
const BATCH: &str = "agent.batch";

impl Fold {
    pub(super) fn finish(&mut self, result: &Result<AgentOutput>, steps: &mut Steps) {
        let end = match result {
            Ok(output) => {
                self.answer(output, steps);
                End::Answered { reason: reason_of(output) }
            }
            Err(error) => self.failed(error),
        };
        let is_withheld = matches!(result, Err(error) if error.is_denied() || error.is_halted());
        let is_open = |held: &Held| held.message.is_none();
        self.take_back(|held| is_open(held) && (is_withheld && held.is_text() || held.is_cut()), steps);
        self.close_texts(|_| true, steps);
        self.end_agents(if matches!(end, End::Asks(_)) { AgentEnd::Asks } else { AgentEnd::Failed }, steps);
        steps.push(Step::Ended(end));
    }

    /// Shows the answer that the caller receives, which may differ from the answer in the history.
    fn answer(&mut self, output: &AgentOutput, steps: &mut Steps) {
        let (answer, owner) = (&output.answer, None);
        let has_open = self.parts.iter().any(|held| held.part.owner.is_none() && held.message.is_none());
        if has_open || !self.said.contains_key(&owner) {
            self.say(&owner, answer, steps);
        } else if self.last_said(&owner).unwrap_or_default() != answer.text() {
            self.replace(&owner, answer, steps);
        }
    }

    fn failed(&self, error: &Error) -> End {
        let failed = |code, message: String| End::Failed { code, message };
        match error.kind() {
            ErrorKind::Interrupted => {
                let asked = error.interrupt().map(|interrupt| self.asked(interrupt)).unwrap_or_default();
                if asked.is_empty() { End::Aborted { reason: error.to_string() } } else { End::Asks(asked) }
            }
            ErrorKind::Aborted | ErrorKind::Dropped => {
                End::Aborted { reason: shown_reason(&error.to_string()).to_owned() }
            }
            ErrorKind::Denied { .. } => failed("denied", error.to_string()),
            ErrorKind::Halted { .. } => failed("halted", error.to_string()),
            ErrorKind::TimedOut => failed("timed_out", "the run took too long".to_owned()),
            _ if is_held(error) => failed("conflict", "another run of the thread is under way".to_owned()),
            _ => {
                tracing::error!(error = error.explain(), "a run of a page has failed");
                failed("failed", "internal error".to_owned())
            }
        }
    }

    /// Returns the questions of a run, in the order of the calls.
    fn asked(&self, interrupt: &Interrupt) -> Vec<Asked> {
        let mut asked = Vec::new();
        if interrupt.kind == BATCH {
            self.add_asked(&interrupt.data, None, &mut asked);
        }
        asked
    }

    fn add_asked(&self, batch: &Value, outer: Option<&Arc<str>>, asked: &mut Vec<Asked>) {
        for pending in batch["pending"].as_array().into_iter().flatten() {
            let question = Interrupt::deserialize(&pending["interrupt"]);
            let (Some(given), Ok(question)) = (pending["call"]["id"].as_str(), question) else { continue };
            let (id, owner) = self.shown_call(given, outer.is_some());
            let outer = outer.cloned().unwrap_or_else(|| Arc::clone(&id));
            match &*question.kind {
                BATCH => self.add_asked(&question.data, Some(&outer), asked),
                "agent.paused" => {}
                _ => asked.push(Asked { question, call: id, outer, owner }),
            }
        }
    }

    /// Returns the id of a call on the page, and the agent that has made it.
    fn shown_call(&self, given: &str, is_below: bool) -> (Arc<str>, Owner) {
        let mut calls = self.parts.iter().rev().filter(|held| held.part.owner.is_some() == is_below);
        let found = calls.find(|held| held.part.call().is_some_and(|call| *call.given == *given));
        match found {
            Some(held) => (Arc::clone(&held.part.id), held.part.owner.clone()),
            None if is_below => (given.into(), None),
            None => (self.calls.last(&None, given), None),
        }
    }
}

impl Held {
    /// Returns `true` for a call whose arguments are not complete.
    const fn is_cut(&self) -> bool {
        self.is_open && matches!(self.part.content, Content::Call(_))
    }
}

/// Returns `true` if another process works on the session.
pub(crate) fn is_held(error: &Error) -> bool {
    matches!(error.find::<StoreError>(), Some(StoreError::Held { .. }))
}

/// Returns the reason of an abort as pages are told it. Another reason may name what is behind the server, such as the
/// process that has taken a session.
fn shown_reason(reason: &str) -> &str {
    if [STOPPED, GONE, CLOSED, DROPPED].contains(&reason) {
        return reason;
    }
    tracing::info!(reason, "a run of a page was aborted");
    "aborted"
}

fn reason_of(output: &AgentOutput) -> &'static str {
    match output.finish_reason {
        Some(FinishReason::Length) => "length",
        Some(FinishReason::ContentFilter) => "content-filter",
        Some(FinishReason::Stopped) => "interrupted",
        Some(FinishReason::Other(_)) => "other",
        _ => "stop",
    }
}
