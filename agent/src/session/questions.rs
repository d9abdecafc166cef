//! The questions about the open calls of a session, and their answers (A23).

use std::fmt;
use std::time::SystemTime;

use emitree_middleware::approval::{self, Choice, Decision, Request};
use emitree_middleware::store::{Revision, StoreError};
use emitree_runtime::{Answer, Answers, Interrupt, RunKey};
use serde::{Deserialize, Serialize};
use serde_json::Value;
use thiserror::Error;

use crate::ToolCall;
use crate::message::arguments::{MAX_NESTING, is_too_deep};
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
    #[serde(default, skip_serializing_if = "QuestionState::is_needed")]
    pub(crate) state: QuestionState,
    /// `true` once a run has reported the answer.
    #[serde(default, skip_serializing_if = "is_false")]
    pub(crate) is_reported: bool,
    /// `true` once a run of this process has loaded the answer.
    #[serde(skip)]
    pub(crate) is_loaded: bool,
}

/// The state of a question.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum QuestionState {
    /// It has to be asked again before the function of the tool is called.
    #[default]
    Needed,
    /// It was asked again, and so its answer was used.
    Used,
    /// Another question is asked instead, because the arguments or the question have changed.
    Replaced,
}

impl QuestionState {
    #[expect(clippy::trivially_copy_pass_by_ref, reason = "serde calls it with a reference")]
    fn is_needed(&self) -> bool {
        *self == Self::Needed
    }
}

impl Question {
    /// Makes a question that has to be asked again.
    pub(crate) fn new(question: Interrupt, by: String) -> Self {
        let (state, answer) = (QuestionState::Needed, None);
        Self { question, by, in_function: false, answer, of_edit: false, state, is_reported: false, is_loaded: false }
    }

    pub(crate) fn id(&self) -> &str {
        &self.question.id
    }

    pub(crate) fn is_needed(&self) -> bool {
        self.state.is_needed()
    }

    /// Returns `true` if the question is about the call with this key, and not about a run below.
    pub(crate) fn is_about(&self, call: &RunKey) -> bool {
        self.question.clone().about(call).id == self.id()
    }

    /// Returns `true` if the answer was used, or if the run with these answers has asked for it.
    pub(crate) fn is_taken(&self, answers: &Answers) -> bool {
        self.state == QuestionState::Used || (self.is_loaded && answers.was_asked(self.id()))
    }

    /// Returns the same question about the call with other arguments.
    pub(crate) fn anew(&self, call: &ToolCall, key: &RunKey) -> Self {
        let question = match (Request::of_interrupt(&self.question), call.arguments.json()) {
            (Ok(request), Some(arguments)) => request.with_input(arguments.clone()).to_interrupt(),
            _ => self.question.clone(),
        };
        Self { in_function: self.in_function, ..Self::new(question.about(key), self.by.clone()) }
    }

    /// Returns the id that the question should have if the call with this key, or the question, was changed.
    pub(super) fn changed_id(&self, session: &RunKey, call: &RunKey) -> Option<String> {
        if self.is_needed() { expected_id(&self.question, session, call) } else { None }
    }

    /// Returns the new arguments if the answer is an edit of an approval that was not executed yet.
    pub(crate) fn edit(&self) -> Option<Value> {
        let answer = self.answer.as_ref().filter(|_| self.is_needed() && self.question.kind == approval::INTERRUPT)?;
        match answer.read() {
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

impl OpenCall {
    /// Keeps a question that has interrupted the call, in the place of what its asker had asked before.
    pub(crate) fn ask(&mut self, mut question: Question, answers: &Answers) {
        self.use_answers(answers);
        let is_earlier = |earlier: &&mut Question| earlier.by == question.by && earlier.id() != question.id();
        for earlier in self.questions.iter_mut().filter(is_earlier).filter(|earlier| earlier.is_needed()) {
            earlier.state = QuestionState::Replaced;
        }
        self.forget_replaced();
        let Some(earlier) = self.questions.iter_mut().find(|earlier| earlier.id() == question.id()) else {
            return self.questions.push(question);
        };
        if !earlier.is_loaded && question.answer.is_none() {
            // The answer came after the run had loaded the answers, so it was not refused.
            question.answer = earlier.answer.take();
        }
        *earlier = question;
    }

    /// Notes which answers the run with these answers has used.
    pub(crate) fn use_answers(&mut self, answers: &Answers) {
        let is_used = |question: &&mut Question| question.is_needed() && question.answer.is_some();
        for question in self.questions.iter_mut().filter(is_used).filter(|question| question.is_taken(answers)) {
            question.state = QuestionState::Used;
        }
    }

    /// Changes the call. Questions that are still needed are asked about the new arguments instead.
    pub(crate) fn replace(&mut self, changed: Option<ToolCall>, call: &ToolCall, keys: impl FnOnce() -> [RunKey; 2]) {
        if self.call == changed {
            return;
        }
        if self.questions.iter().any(Question::is_needed) {
            let [before, after] = keys();
            let mut anew = Vec::new();
            for question in self.questions.iter_mut().filter(|question| question.is_needed()) {
                question.state = QuestionState::Replaced;
                // The function, and runs below the call, ask by themselves.
                if !question.in_function && question.is_about(&before) {
                    anew.push(question.anew(call, &after));
                }
            }
            self.forget_replaced();
            self.questions.extend(anew);
        }
        self.call = changed;
    }

    /// Forgets questions that nobody can answer any more. An answer stays, for the error of a second one.
    fn forget_replaced(&mut self) {
        self.questions.retain(|question| question.state != QuestionState::Replaced || question.answer.is_some());
    }

    /// Returns the question that waits for an answer.
    fn waiting(&self) -> impl Iterator<Item = &Question> {
        self.questions.iter().filter(|question| question.answer.is_none())
    }
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
    #[error("the question `{id}` was answered with {}{}", Shown(first), Asked(asked.as_deref()))]
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
        match self.key.entry() {
            Some(entry) => entry.store_answer().await,
            None => Ok(()),
        }
    }

    /// Removes an answer that was not stored.
    fn take_answer_back(&self, id: &str) {
        let taken = self.change_open_calls(|call| {
            call.questions.iter_mut().find(|question| question.id() == id).map(|question| question.answer = None)
        });
        if taken.is_none() {
            let below = self.open_calls().into_iter().flat_map(|call| call.sessions.into_values());
            below.for_each(|session| session.take_answer_back(id));
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
        if is_too_deep(&answer.value) {
            return Err(AnswerError::TooDeep { id });
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
