//! The answers to the questions of jobs and of sessions.

use std::time::{Duration, SystemTime};

use emitree::Result;
use emitree::agent::{AnswerError, Session};
use emitree::context::Answer;
use emitree::middleware::Durable;
use emitree::middleware::approval::Decision as Approval;
use emitree::middleware::durable::AlreadyAnswered;
use emitree::middleware::store::StoreError;
use serde_json::{Value, json};
use tokio::time::sleep;

use crate::effects::{Deed, Effects};
use crate::jobs::charged;
use crate::processes::Gone;

/// The authors of the answers to a question.
pub(crate) const AUTHORS: [&str; 2] = ["Ada", "Bob"];
/// How long an answer waits that could not be stored.
const AGAIN: Duration = Duration::from_millis(50);
/// The output that a person gives a step that may have had effects.
pub(crate) const UNKNOWN: &str = "unknown";

/// The parent's decisions about the plain step of a job whose process was gone.
#[derive(Clone, Debug, Default)]
pub(crate) struct Decision {
    /// How often it is executed again.
    pub(crate) again: usize,
    /// The output that it was given.
    pub(crate) output: Option<String>,
}

/// Decides as a careful person would: a step is executed again only if each process that has called it is gone, and its
/// effect has not happened.
pub(crate) fn decide(
    job: &str,
    decision: &mut Decision,
    effects: &Effects,
    gone: &Gone,
    wants_again: bool,
) -> std::io::Result<Value> {
    let lines = effects.read()?;
    let lines = || lines.iter().filter(|line| line.job == job);
    let has_happened = lines().any(|line| line.deed == Deed::Charge);
    let calls: Vec<_> = lines().filter(|line| line.deed == Deed::Call).collect();
    // Otherwise a process has begun it, and may still call it.
    let is_known = calls.len() == decision.again + 1 && calls.iter().all(|call| gone.has(call.process));
    if is_known && !has_happened && wants_again {
        decision.again += 1;
        return Ok(json!("again"));
    }
    let output = if has_happened { charged(job) } else { UNKNOWN.to_owned() };
    decision.output = Some(output.clone());
    Ok(json!({"output": output}))
}

/// The reply to the author of an answer.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Told {
    Accepted,
    /// Another author was first.
    First(Option<String>),
    /// There is no such question any more.
    Gone,
}

/// Gives an answer, and repeats it until it is known whether it is stored.
pub(crate) async fn answer(job: &Durable, question: &str, value: Value, author: &str) -> Result<Told> {
    let mut is_unknown = false;
    loop {
        let error = match job.answer(question, Answer::from(value.clone()).by(author)).await {
            Ok(()) => return Ok(Told::Accepted),
            Err(error) => error,
        };
        if let Some(already) = error.find::<AlreadyAnswered>() {
            let first = already.first.by.clone();
            // The change of a call that has failed may have been made.
            let is_own = is_unknown && first.as_deref() == Some(author);
            return Ok(if is_own { Told::Accepted } else { Told::First(first) });
        }
        match error.find::<StoreError>() {
            Some(StoreError::Failed { .. }) => is_unknown = true,
            Some(StoreError::Held { .. } | StoreError::Conflict { .. } | StoreError::Lost { .. }) => {}
            _ => return Err(error),
        }
        sleep(AGAIN).await;
    }
}

/// Gives an answer to the question of a call, and repeats it until it is known whether it is stored.
pub(crate) async fn answer_call(session: &Session, question: &str, decision: Approval, author: &str) -> Result<Told> {
    let mut answer = Answer::from(decision).by(author);
    // The session recognizes an answer that is repeated.
    answer.at = Some(SystemTime::now());
    loop {
        match session.answer(question, answer.clone()).await {
            Ok(()) => return Ok(Told::Accepted),
            Err(AnswerError::Answered { first, .. }) => return Ok(Told::First(first.by.clone())),
            Err(AnswerError::Unknown { .. }) => return Ok(Told::Gone),
            Err(AnswerError::NotStored {
                error: StoreError::Held { .. } | StoreError::Conflict { .. } | StoreError::Lost { .. },
                ..
            }) => sleep(AGAIN).await,
            Err(error) => return Err(error.into()),
        }
    }
}

/// Returns the author whose answer was accepted. It is an error if there is not exactly one, or if the other author was
/// told something else.
pub(crate) fn accepted(told: &[Told]) -> std::result::Result<&'static str, String> {
    let accepted: Vec<_> = AUTHORS.iter().zip(told).filter(|(_, told)| **told == Told::Accepted).collect();
    let [(first, _)] = *accepted else { return Err(format!("the authors {AUTHORS:?} were told {told:?}")) };
    if told.iter().any(|told| matches!(told, Told::First(by) if by.as_deref() != Some(*first))) {
        return Err(format!("{first} was first, and the authors {AUTHORS:?} were told {told:?}"));
    }
    Ok(first)
}
