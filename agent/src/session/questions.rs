//! The questions about the open calls of a session, and their answers (A23).

use std::fmt;
use std::sync::Arc;
use std::time::SystemTime;

use emitree_middleware::approval::{self, Choice, Decision, Request};
use emitree_middleware::store::StoreError;
use emitree_runtime::{Answer, Interrupt, RunKey};
use serde::Deserialize;
use serde_json::Value;
use thiserror::Error;

use crate::ToolCall;
use crate::message::arguments::{MAX_NESTING, is_too_deep};
use crate::session::Session;
use crate::session::entry::SessionEntry;
use crate::session::fold::Conversation;
use crate::session::fold::turn::{Call, Question};
use crate::session::keys::read_key;
use crate::session::log::{LogState, View};
use crate::session::posts::answer_in;
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
        /// The reason, such as [`StoreError::Failed`].
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
    /// A session with a [store](Self::open) writes the answer there before this function returns, also if another process
    /// holds the session: that process takes it into the session at most a second later. If the agent is in a job that was
    /// submitted, and the job keeps its session, this [wakes](emitree_middleware::Durable::wake) the job, and so does the next
    /// [`open`](Self::open) if the process is killed before. Without a store, it does not wait.
    ///
    /// # Errors
    ///
    /// Returns an error, and changes nothing, if no question has this id, if the question has an answer, if the answer is
    /// nested deeper than 64 levels, or if it is none of the allowed choices. An approval has its own choices. Other
    /// questions have the list `choices` in their data: an answer is one of them, or a list of them if the data has
    /// `several: true`. If another process has answered a stored session meanwhile, its answer is the first.
    ///
    /// Returns [`AnswerError::NotStored`] if the store fails, also for an answer of more than 512 KiB.
    pub async fn answer(&self, id: &str, answer: impl Into<Answer> + Send) -> Result<(), AnswerError> {
        let mut answer = answer.into();
        // The time tells this answer from an equal one of another caller.
        answer.at.get_or_insert_with(SystemTime::now);
        let Some(entry) = self.log.entry() else {
            let taken = self.take_answer_in(&mut self.log.lock(), id, &answer);
            return taken.unwrap_or_else(|| Err(self.unknown(id)));
        };
        let answered = self.answer_stored(entry, id, &answer).await;
        // Also if an earlier call was cut off before this.
        if matches!(answered, Ok(()) | Err(AnswerError::Answered { .. })) {
            entry.wake_job().await;
        }
        answered
    }

    async fn answer_stored(&self, entry: &SessionEntry, id: &str, answer: &Answer) -> Result<(), AnswerError> {
        let not_stored = |error| AnswerError::NotStored { id: id.to_owned(), error };
        entry.catch_up().await.map_err(not_stored)?;
        let mut before = None;
        loop {
            let key = match self.check_open(id, answer) {
                // It was sent before, and its reply was lost.
                Err(AnswerError::Answered { first, .. }) if *first == *answer => return Ok(()),
                key => key?,
            };
            if before.as_ref() == Some(&key) {
                let problem = "another answer was sent first, and was dropped";
                return Err(not_stored(StoreError::failed(problem, "the question was not open when it arrived")));
            }
            let Some(first) = entry.post_answer(&key, id, answer).await.map_err(not_stored)? else { return Ok(()) };
            if let Some(first) = answer_in(&first) {
                return Err(AnswerError::Answered { id: id.to_owned(), first: Box::new(first), asked: None });
            }
            // The session has it. If it did not fit, the question is open again, under another key.
            entry.catch_up().await.map_err(not_stored)?;
            before = Some(key);
        }
    }

    /// Sets the deadline with which a question was first asked, by the clock of the store. If it is over, the question gets
    /// its answer, which is returned, unless a store keeps the session: somebody may answer it now, so the next run does.
    pub(crate) fn meet_deadline(&self, question: &mut Interrupt) -> Option<Answer> {
        let entry = self.log.entry();
        let now = entry.map_or_else(SystemTime::now, |entry| entry.journal.now());
        if let (Some(entry), Some(deadline)) = (entry, &mut question.deadline) {
            deadline.at = deadline.at.map(|at| entry.journal.store_time(at));
        }
        let state = &mut *self.log.lock();
        let session = state.session(&self.view);
        let known = session.open_calls().flat_map(|call| &call.questions).find(|known| known.id() == question.id)?;
        if let Some(first) = &known.asked.question.deadline {
            question.deadline = Some(first.clone());
        }
        // An answer that did not fit is there still.
        if entry.is_some() && known.answer.is_none() {
            return None;
        }
        let answer = question.deadline.clone().filter(|answer| answer.at.is_some_and(|at| at <= now))?;
        let record = Record::Answered { id: question.id.clone(), answer: answer.clone() };
        state.push(&self.view, record).ok().map(|()| answer)
    }

    /// Answers the questions whose deadlines are over, as any process answers them: another one may have been first (F5).
    pub(super) async fn meet_deadlines(&self, entry: &SessionEntry) {
        let now = entry.journal.now();
        for (id, answer) in self.read(|session| session.overdue(now)) {
            let Ok(key) = self.check_open(&id, &answer) else { continue };
            match entry.post_answer(&key, &id, &answer).await {
                Ok(Some(first)) if answer_in(&first).is_none() => {}
                Err(StoreError::Full { .. } | StoreError::Invalid { .. }) => {}
                Ok(_) => continue,
                Err(error) => {
                    tracing::warn!(question = id, %error, "the deadline of a question has to wait");
                    continue;
                }
            }
            // Nobody can send an answer: the first one was taken and dropped, or the store takes none.
            _ = self.take_answer_in(&mut self.log.lock(), &id, &answer);
        }
    }

    /// Returns the key of the answer to a question among what is sent to the session.
    fn check_open(&self, id: &str, answer: &Answer) -> Result<String, AnswerError> {
        let found = self.find_open(&mut self.log.lock(), id, answer);
        match found {
            Some(found) => found.map(|(_, key)| key),
            None => Err(self.unknown(id)),
        }
    }

    fn unknown(&self, id: &str) -> AnswerError {
        let open = self.questions().into_iter().map(|question| question.id).collect();
        AnswerError::Unknown { id: id.to_owned(), open }
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
    pub(super) fn take_answer_in(
        &self,
        state: &mut LogState,
        id: &str,
        answer: &Answer,
    ) -> Option<Result<(), AnswerError>> {
        match self.find_open(state, id, answer)? {
            Ok((view, _)) => {
                let record = Record::Answered { id: id.to_owned(), answer: answer.clone() };
                state.push(&view, record).ok().map(Ok)
            }
            Err(error) => Some(Err(error)),
        }
    }

    /// Returns the session that has a question, and the key of its answer among what is sent to it, or the reason why the
    /// answer is not taken. Returns `None` if neither this session nor a session below has the question.
    fn find_open(
        &self,
        state: &mut LogState,
        id: &str,
        answer: &Answer,
    ) -> Option<Result<(Arc<View>, String), AnswerError>> {
        let view = self.view_of(state, id)?;
        let session = state.session(&view);
        if let Some(stuck) = session.stuck.as_ref().filter(|stuck| stuck.question.id == id) {
            let checked = check_value(&stuck.question, stuck.answer.as_ref(), None, &answer.value);
            return Some(checked.map(|()| (view, id.to_owned())));
        }
        let call = session.open_calls().find(|call| call.questions.iter().any(|question| question.id() == id))?;
        let question = call.questions.iter().find(|question| question.id() == id)?;
        let open_instead = || call.waiting().next().map(|asked| asked.asked.question.clone());
        let instead = question.answer.as_ref().and_then(|_| open_instead());
        let checked = check_value(&question.asked.question, question.answer.as_ref(), instead, &answer.value);
        Some(checked.map(|()| (view, question.key())))
    }
}

/// Checks that a question has no answer, and allows this one.
fn check_value(
    question: &Interrupt,
    first: Option<&Answer>,
    instead: Option<Interrupt>,
    value: &Value,
) -> Result<(), AnswerError> {
    let id = question.id.clone();
    if let Some(first) = first {
        return Err(AnswerError::Answered { id, first: Box::new(first.clone()), asked: instead.map(Box::new) });
    }
    // The session has the answer of the deadline already.
    if question.deadline.as_ref().is_some_and(|deadline| deadline.value == *value) {
        return Ok(());
    }
    if is_too_deep(value) {
        return Err(AnswerError::TooDeep { id });
    }
    match refused_by(question, value) {
        Some(allowed) => Err(AnswerError::NotAllowed { id, answer: value.clone(), allowed }),
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
        let of_calls = calls.flat_map(|(_, call)| call.waiting()).map(|waiting| &waiting.asked.question);
        let stuck = self.stuck.as_ref().filter(|stuck| stuck.answer.is_none()).map(|stuck| &stuck.question);
        of_calls.chain(stuck).collect()
    }

    /// Returns the answers of the open questions whose deadlines are over, by the ids of the questions.
    fn overdue(&self, now: SystemTime) -> Vec<(String, Answer)> {
        let is_over = |answer: &&Answer| answer.at.is_some_and(|at| at <= now);
        let of =
            |question: &&Interrupt| Some((question.id.clone(), question.deadline.as_ref().filter(is_over)?.clone()));
        self.all_questions(self).iter().filter_map(of).collect()
    }

    /// Returns `true` if open calls, also of sessions below, have answers, and no question is open.
    pub(super) fn are_questions_answered(&self) -> bool {
        let has_answers = |call: &Call| call.questions.iter().any(|question| question.answer.is_some());
        self.all_questions(self).is_empty() && self.all_open_calls(self).iter().any(|(_, call)| has_answers(call))
    }

    /// Returns the id of the session that has a question: this one, or one below.
    fn owner_of<'a>(&'a self, question: &str, all: &'a Self) -> Option<&'a str> {
        if self.stuck.as_ref().is_some_and(|stuck| stuck.question.id == question) {
            return Some(&*self.id);
        }
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
