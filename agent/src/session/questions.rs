//! The questions about the open calls of a session, and their answers (A23).

use std::fmt;
use std::time::SystemTime;

use emitree_middleware::approval::{self, Choice, Decision, Request};
use emitree_runtime::{Answer, Answers, Interrupt, RunKey};
use serde::{Deserialize, Serialize};
use serde_json::Value;
use thiserror::Error;

use crate::message::is_false;
use crate::session::Session;
use crate::session::stopped::OpenCall;

/// A question that has interrupted a call.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct Question {
    pub(crate) question: Interrupt,
    /// The name of the hook or the middleware that has asked.
    pub(crate) by: String,
    /// `true` if the function of the tool had been called, so that it may have asked itself.
    #[serde(default, skip_serializing_if = "is_false")]
    pub(crate) in_function: bool,
    /// The first answer that was given.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) answer: Option<Answer>,
    /// `true` if the answer is an edit that was given to another question about the call.
    #[serde(default, skip_serializing_if = "is_false")]
    pub(crate) of_edit: bool,
    /// `true` once the question was asked again, and so its answer was used.
    #[serde(default, skip_serializing_if = "is_false")]
    pub(crate) is_used: bool,
}

impl Question {
    pub(crate) fn id(&self) -> &str {
        &self.question.id
    }

    /// Returns the id that the question should have if the call with this key, or the question, was changed.
    pub(super) fn changed_id(&self, session: &RunKey, call: &RunKey) -> Option<String> {
        let of_call = self.id().strip_prefix(call.as_str()).and_then(|rest| rest.strip_prefix('/'));
        let is_of_session = self.id().strip_prefix(session.as_str()).is_some_and(|rest| rest.starts_with('/'));
        // Runs below the call have keys below its key, or none.
        let is_below = of_call.map_or(!is_of_session, |rest| rest.contains('/'));
        let expected = self.question.clone().about(call).id;
        (!self.is_used && !is_below && expected != self.id()).then_some(expected)
    }

    /// Returns the new arguments if the answer is an edit of an approval that was not executed yet.
    pub(crate) fn edit(&self) -> Option<Value> {
        let answer = self.answer.as_ref().filter(|_| !self.is_used && self.question.kind == approval::INTERRUPT)?;
        match answer.read() {
            Ok(Decision::Edit(arguments)) => Some(arguments),
            _ => None,
        }
    }
}

impl OpenCall {
    /// Keeps a question that has interrupted the call. Questions that were asked again on the way are used.
    pub(crate) fn ask(&mut self, question: Question, answers: &Answers) {
        for earlier in &mut self.questions {
            earlier.is_used |= earlier.answer.is_some() && answers.was_asked(earlier.id());
        }
        match self.questions.iter_mut().find(|earlier| earlier.id() == question.id()) {
            Some(earlier) => *earlier = question,
            None => self.questions.push(question),
        }
    }

    /// Returns the question that waits for an answer.
    fn waiting(&self) -> impl Iterator<Item = &Question> {
        self.questions.iter().filter(|question| question.answer.is_none())
    }
}

/// The reason why an answer was not taken. Nothing has changed.
#[derive(Clone, Debug, PartialEq, Error)]
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
    #[error("the question `{id}` was answered with {}{}", Shown(first), Asked(asked.as_deref()))]
    Answered {
        /// The id.
        id: String,
        /// The first answer.
        first: Box<Answer>,
        /// The question about the call that is open now, if it is another one.
        asked: Option<Box<Interrupt>>,
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
struct Asked<'a>(Option<&'a Interrupt>);

impl fmt::Display for Asked<'_> {
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
        let mut questions = Vec::new();
        for call in self.open_calls() {
            questions.extend(call.waiting().map(|waiting| waiting.question.clone()));
            call.sessions.values().for_each(|session| questions.extend(session.questions()));
        }
        questions
    }

    /// Answers a question of [`questions`](Self::questions): with a
    /// [`Decision`](emitree_middleware::approval::Decision), or with the JSON that the code reads that has asked
    /// ([`RunContext::ask`](emitree_runtime::RunContext::ask)). [`Agent::resume`](crate::Agent::resume) takes the answer
    /// to the call.
    ///
    /// The first answer is final. If it turns out not to fit the type that the asking code expects, the question is open
    /// again, with the refused answer and the reason in its data.
    ///
    /// This function is async because a session with a store writes the answer there. Here, it does not wait.
    ///
    /// # Errors
    ///
    /// Returns an error, and changes nothing, if no question has this id, if the question has an answer, or if the answer
    /// is none of the choices that the question allows: those of an approval, or the list `choices` in its data, of which
    /// an answer is one or, if the data has `several: true`, a list.
    #[expect(clippy::unused_async, reason = "a session with a store will write here")]
    pub async fn answer(&self, id: &str, answer: impl Into<Answer> + Send) -> Result<(), AnswerError> {
        let mut answer = answer.into();
        answer.at.get_or_insert_with(SystemTime::now);
        match self.take_answer(id, &answer) {
            Some(taken) => taken,
            None => Err(AnswerError::Unknown { id: id.to_owned(), open: self.open_ids() }),
        }
    }

    fn open_ids(&self) -> Vec<String> {
        self.questions().into_iter().map(|question| question.id).collect()
    }

    /// Returns `None` if neither this session nor a session below has the question.
    fn take_answer(&self, id: &str, answer: &Answer) -> Option<Result<(), AnswerError>> {
        let taken = self.change_open_calls(|call| {
            let at = call.questions.iter().position(|question| question.id() == id)?;
            Some(call.take_answer(at, answer))
        });
        if taken.is_some() {
            return taken;
        }
        let below = self.open_calls().into_iter().flat_map(|call| call.sessions.into_values());
        below.into_iter().find_map(|session| session.take_answer(id, answer))
    }
}

impl OpenCall {
    fn take_answer(&mut self, at: usize, answer: &Answer) -> Result<(), AnswerError> {
        let id = self.questions[at].id().to_owned();
        if let Some(first) = &self.questions[at].answer {
            let (first, asked) = (Box::new(first.clone()), self.waiting().next());
            return Err(AnswerError::Answered {
                id,
                first,
                asked: asked.map(|asked| Box::new(asked.question.clone())),
            });
        }
        if let Some(allowed) = refused_by(&self.questions[at].question, &answer.value) {
            return Err(AnswerError::NotAllowed { id, answer: answer.value.clone(), allowed });
        }
        self.questions[at].answer = Some(answer.clone());
        Ok(())
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
