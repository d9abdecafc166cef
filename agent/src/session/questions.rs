//! The questions about the open calls of a session, and their answers (A23).

use std::fmt;
use std::sync::Arc;
use std::time::SystemTime;

use emitree_middleware::approval::{self, Choice, Decision, Request};
use emitree_middleware::store::{Revision, StoreError};
use emitree_runtime::{Answer, Interrupt, RunKey};
use serde::Deserialize;
use serde_json::Value;
use thiserror::Error;

use crate::ToolCall;
use crate::message::arguments::{MAX_NESTING, is_too_deep};
use crate::session::Session;
use crate::session::fold::Conversation;
use crate::session::fold::turn::{Call, Question};
use crate::session::keys::read_key;
use crate::session::log::{LogState, View};
use crate::session::record::{Asked, Record};

impl Question {
    /// Returns `true` if the question is about the call with this key, and not about a run below.
    pub(crate) fn is_about(&self, call: &RunKey) -> bool {
        self.asked.question.clone().about(call).id == self.id()
    }

    /// Returns the same question about the call with other arguments.
    pub(crate) fn anew(&self, call: &ToolCall, key: &RunKey) -> Asked {
        let question = match (Request::of_interrupt(&self.asked.question), call.arguments.json()) {
            (Ok(request), Some(arguments)) => request.with_input(arguments.clone()).to_interrupt(),
            _ => self.asked.question.clone(),
        };
        Asked { question: question.about(key), ..self.asked.clone() }
    }

    /// Returns the new arguments if the answer is an edit of an approval that was not executed yet.
    pub(crate) fn edit(&self) -> Option<Value> {
        let is_approval = self.is_needed() && self.asked.question.kind == approval::INTERRUPT;
        match self.answer.as_ref().filter(|_| is_approval)?.read() {
            Ok(Decision::Edit(arguments)) => Some(arguments),
            _ => None,
        }
    }
}

/// Returns the id that a question about the call with this key should have, if it has another one.
pub(super) fn expected_id(question: &Interrupt, session: &RunKey, call: &RunKey) -> Option<String> {
    let of_call = question.id.strip_prefix(call.as_str()).and_then(|rest| rest.strip_prefix('/'));
    let is_of_session = question.id.strip_prefix(session.as_str()).is_some_and(|rest| rest.starts_with('/'));
    // Runs below the call have keys below its key, or none.
    let is_below = of_call.map_or(!is_of_session, |rest| rest.contains('/'));
    let expected = question.clone().about(call).id;
    (!is_below && expected != question.id).then_some(expected)
}

/// The reason why an answer was not taken. Nothing has changed.
#[derive(Clone, Debug, Error)]
#[non_exhaustive]
pub enum AnswerError {
    /// The session has no question with this id.
    #[error("there is no question with the id `{id}`; {}", Open(open))]
    Unknown {
        /// The id.
        id: String,
        /// The ids of the questions that are open.
        open: Vec<String>,
    },
    /// The question has an answer.
    #[error("the question `{id}` was answered with {}{}", Shown(first), OpenInstead(asked.as_deref()))]
    Answered {
        /// The id.
        id: String,
        /// The first answer.
        first: Box<Answer>,
        /// The question about the call that is open now, if it is another one.
        asked: Option<Box<Interrupt>>,
    },
    /// The answer is nested too deeply for a stored session.
    #[error("the answer to the question `{id}` is nested too deeply: at most {MAX_NESTING} levels are allowed")]
    TooDeep {
        /// The id.
        id: String,
    },
    /// The answer is none of the choices of the question.
    #[error("the question `{id}` does not allow the answer {answer}; allowed are {}", allowed.join(", "))]
    NotAllowed {
        /// The id.
        id: String,
        /// The answer.
        answer: Value,
        /// The choices, as JSON.
        allowed: Vec<String>,
    },
    /// The answer cannot be stored.
    #[error("the answer to the question `{id}` is not stored: {error}")]
    NotStored {
        /// The id.
        id: String,
        /// The reason, such as [`StoreError::Held`].
        error: StoreError,
    },
}

/// Displays the ids of open questions.
struct Open<'a>(&'a [String]);

impl fmt::Display for Open<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
            [] => f.write_str("no question is open"),
            ids => write!(f, "open are `{}`", ids.join("`, `")),
        }
    }
}

/// Displays an answer with its author and its time.
struct Shown<'a>(&'a Answer);

impl fmt::Display for Shown<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Answer { value, by, .. } = self.0;
        write!(f, "{value}")?;
        by.iter().try_for_each(|by| write!(f, " by {by}"))?;
        // The JSON of an answer has the time as text.
        let json = serde_json::to_value(self.0).unwrap_or_default();
        json["at"].as_str().map_or(Ok(()), |at| write!(f, " at {at}"))
    }
}

/// Displays the question that is open instead.
struct OpenInstead<'a>(Option<&'a Interrupt>);

impl fmt::Display for OpenInstead<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.map_or(Ok(()), |Interrupt { id, data, .. }| write!(f, "; the open question is `{id}` about {data}"))
    }
}

impl Session {
    /// Returns the questions that wait for an answer, in the order of the calls, those of sub-agents included. They
    /// stand in the session from the moment at which their call was interrupted, even while other calls of the turn go
    /// on.
    #[must_use]
    pub fn questions(&self) -> Vec<Interrupt> {
        let state = self.log.lock();
        let questions = state.session(&self.view).all_questions(&state.fold);
        questions.into_iter().cloned().collect()
    }

    /// Answers a question of [`questions`](Self::questions): with a
    /// [`Decision`](emitree_middleware::approval::Decision), or with the JSON that the code reads that has asked
    /// ([`RunContext::ask`](emitree_runtime::RunContext::ask)). [`Agent::resume`](crate::Agent::resume) takes the answer
    /// to the call.
    ///
    /// The first answer is final. If it turns out not to fit the type that the asking code expects, the question is open
    /// again, with the refused answer and the reason in its data.
    ///
    /// The answer serves the one call, with exactly its arguments, each time the call is made, until it has a result. A
    /// call is executed only if each question about it is asked again before its function would be called, except by a
    /// gate that has got its answer and let the call pass. If the arguments change, the question is about the new ones.
    /// Another question of the same asker takes the place of the one before. An edit passes all gates before it is
    /// executed.
    ///
    /// A session with a [store](Self::open) writes the answer there before this function returns. Without a store, it does
    /// not wait.
    ///
    /// # Errors
    ///
    /// Returns an error, and changes nothing, if no question has this id, if the question has an answer, if the answer is
    /// nested deeper than 64 levels, or if it is none of the allowed choices. An approval has its own choices. Other
    /// questions have the list `choices` in their data: an answer is one of them, or a list of them if the data has
    /// `several: true`. If another process has answered a stored session meanwhile, its answer is the first.
    ///
    /// Returns [`AnswerError::NotStored`] if the store fails, or if another process works on the session.
    pub async fn answer(&self, id: &str, answer: impl Into<Answer> + Send) -> Result<(), AnswerError> {
        let mut answer = answer.into();
        answer.at.get_or_insert_with(SystemTime::now);
        let not_stored = |error| AnswerError::NotStored { id: id.to_owned(), error };
        let mut is_fresh = false;
        loop {
            match self.take_answer(id, &answer) {
                Some(taken) => taken?,
                None if is_fresh => return Err(AnswerError::Unknown { id: id.to_owned(), open: self.open_ids() }),
                None => {
                    // Another process may have asked.
                    is_fresh = true;
                    self.refresh().await.map_err(not_stored)?;
                    continue;
                }
            }
            match self.commit_answer().await {
                Ok(()) => return Ok(()),
                // The session was read again, so the answer has to be given again.
                Err(StoreError::Conflict { current, .. }) if current != Revision::NONE => {}
                Err(error) => {
                    self.take_answer_back(id);
                    return Err(not_stored(error));
                }
            }
        }
    }

    async fn commit_answer(&self) -> Result<(), StoreError> {
        match self.log.entry() {
            Some(entry) => entry.store_answer().await,
            None => Ok(()),
        }
    }

    /// Removes an answer that was not stored.
    fn take_answer_back(&self, id: &str) {
        let state = &mut *self.log.lock();
        if let Some(view) = self.view_of(state, id) {
            // Another process has the session, or it was read again, if the answer is not there.
            _ = state.push(&view, Record::NotAnswered { id: id.to_owned() });
        }
    }

    fn open_ids(&self) -> Vec<String> {
        self.questions().into_iter().map(|question| question.id).collect()
    }

    /// Returns this session, or the session below a call, if it has the question.
    fn view_of(&self, state: &mut LogState, id: &str) -> Option<Arc<View>> {
        let owner = state.session(&self.view).owner_of(id, &state.fold)?;
        if owner == state.session(&self.view).id {
            return Some(Arc::clone(&self.view));
        }
        let key = read_key(owner).ok()?;
        state.view_below(&key)
    }

    /// Returns `None` if neither this session nor a session below has the question.
    fn take_answer(&self, id: &str, answer: &Answer) -> Option<Result<(), AnswerError>> {
        let state = &mut *self.log.lock();
        let view = self.view_of(state, id)?;
        let session = state.session(&view);
        let call = session.open_calls().find(|call| call.questions.iter().any(|question| question.id() == id))?;
        if let Err(error) = check_answer(call, id, answer) {
            return Some(Err(error));
        }
        let record = Record::Answered { id: id.to_owned(), answer: answer.clone() };
        state.push(&view, record).ok().map(Ok)
    }
}

/// Checks that a question can be answered.
fn check_answer(call: &Call, id: &str, answer: &Answer) -> Result<(), AnswerError> {
    let id = id.to_owned();
    let Some(question) = call.questions.iter().find(|question| question.id() == id) else { return Ok(()) };
    if let Some(first) = &question.answer {
        let (first, asked) = (Box::new(first.clone()), call.waiting().next());
        let asked = asked.map(|asked| Box::new(asked.asked.question.clone()));
        return Err(AnswerError::Answered { id, first, asked });
    }
    if is_too_deep(&answer.value) {
        return Err(AnswerError::TooDeep { id });
    }
    match refused_by(&question.asked.question, &answer.value) {
        Some(allowed) => Err(AnswerError::NotAllowed { id, answer: answer.value.clone(), allowed }),
        None => Ok(()),
    }
}

impl Conversation {
    /// Returns the open calls of this session and of those below, which `all` has, with their sessions: each call before
    /// those of the sessions below it.
    fn all_open_calls<'a>(&'a self, all: &'a Self) -> Vec<(&'a Self, &'a Call)> {
        let calls = |session: &'a Self| session.open_calls().map(move |call| (session, call));
        let mut waiting: Vec<_> = calls(self).collect();
        waiting.reverse();
        let mut found = Vec::new();
        while let Some((session, call)) = waiting.pop() {
            found.push((session, call));
            let below: Vec<_> = call.sessions.iter().filter_map(|id| all.below.get(id)).flat_map(calls).collect();
            waiting.extend(below.into_iter().rev());
        }
        found
    }

    /// Returns the questions that wait, in the order of the calls, those of sessions below included, which `all` has.
    pub(super) fn all_questions<'a>(&'a self, all: &'a Self) -> Vec<&'a Interrupt> {
        let calls = self.all_open_calls(all).into_iter();
        calls.flat_map(|(_, call)| call.waiting()).map(|waiting| &waiting.asked.question).collect()
    }

    /// Returns the id of the session that has a question: this one, or one below.
    fn owner_of<'a>(&'a self, question: &str, all: &'a Self) -> Option<&'a str> {
        let mut calls = self.all_open_calls(all).into_iter();
        let owner = calls.find(|(_, call)| call.questions.iter().any(|known| known.id() == question));
        owner.map(|(session, _)| &*session.id)
    }
}

/// Returns the choices of a question if the answer is none of them.
fn refused_by(question: &Interrupt, answer: &Value) -> Option<Vec<String>> {
    if question.kind == approval::INTERRUPT {
        let (request, decision) = (Request::of_interrupt(question).ok()?, Decision::deserialize(answer).ok()?);
        let shown = |choice: &Choice| serde_json::to_string(choice).unwrap_or_default();
        let is_allowed = request.allowed.contains(&decision.choice());
        return (!is_allowed).then(|| request.allowed.iter().map(shown).collect());
    }
    let choices = question.data.get("choices")?.as_array()?;
    let is_allowed = match answer {
        Value::Array(chosen) if question.data["several"] == true => chosen.iter().all(|one| choices.contains(one)),
        _ => choices.contains(answer),
    };
    (!is_allowed).then(|| choices.iter().map(Value::to_string).collect())
}
