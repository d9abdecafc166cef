//! The questions about the calls of a turn: how they are kept, and how their answers come back (A23).

use std::sync::Arc;

use emitree_emitter::Event;
use emitree_middleware::approval::Decision;
use emitree_runtime::{Answer, Answers, Error, Interrupt, RunKey};
use futures_core::future::BoxFuture;

use crate::ToolCall;
use crate::agent::calls::check_call;
use crate::agent::events::{AnswerUnused, QuestionAnswered};
use crate::agent::steps::{Loop, PAUSED};
use crate::model::{emit, log};
use crate::session::keys::Required;
use crate::session::open_turn::OpenTurn;
use crate::session::questions::{Question, QuestionState};
use crate::session::stopped::OpenCall;
use crate::typed::shortened;

/// The kind of the interrupt that combines the interrupts of a turn's calls.
pub(super) const BATCH: &str = "agent.batch";

/// Returns `true` unless interrupts of this kind are questions of others, or a pause.
pub(super) fn is_question(kind: &str) -> bool {
    kind != BATCH && kind != PAUSED
}

/// A question that has interrupted a call, with the name of its asker.
pub(super) struct Asked {
    pub(super) question: Interrupt,
    pub(super) by: String,
}

impl Asked {
    pub(super) fn of(error: &Error) -> Option<Self> {
        let question = error.interrupt().filter(|_| error.is_interrupted())?.clone();
        let by = error.details().get("by").or_else(|| question.data.get("by"));
        let by = by.and_then(|by| by.as_str()).unwrap_or(&question.kind).to_owned();
        Some(Self { question, by })
    }

    /// Gives the question of code that does not use `ask` the id that it has each time. Returns an error text for the
    /// model if the question had an answer, which this code does not read.
    pub(super) fn identify(mut self, key: impl FnOnce() -> RunKey, answers: &Answers) -> Result<Self, String> {
        // The questions inside of a sub-agent's interrupt have their ids.
        if !is_question(&self.question.kind) || answers.was_asked(&self.question.id) {
            return Ok(self);
        }
        self.question = self.question.about(&key());
        match answers.look_up(&self.question.id) {
            None => Ok(self),
            Some(_) => Err(format!(
                "not executed: `{}` has asked the question `{}` again, although it was answered: it has to read the answer \
                 with `ask`",
                self.by, self.question.kind
            )),
        }
    }

    /// Keeps the question in the session.
    pub(super) fn keep(&self, turn: &OpenTurn<'_>, position: usize, answers: &Answers) {
        if is_question(&self.question.kind) {
            self.keep_with(None, turn, position, answers);
        }
    }

    /// Keeps the question with the answer that a live approval has got.
    pub(super) fn keep_answered(&self, turn: &OpenTurn<'_>, position: usize, answers: &Answers) {
        self.keep_with(answers.get(&self.question.id), turn, position, answers);
    }

    fn keep_with(&self, answer: Option<Answer>, turn: &OpenTurn<'_>, position: usize, answers: &Answers) {
        let in_function = turn.work_started(position).is_called();
        let (question, by) = (self.question.clone(), self.by.clone());
        let question = Question { in_function, answer, ..Question::new(question, by) };
        turn.calls().change(position, |open| open.ask(question, answers));
    }
}

/// Loads the answers that a call has, so that the code that has asked finds them.
pub(super) fn load(open: &mut OpenCall, answers: &Answers) {
    for Question { question, answer, is_loaded, .. } in &mut open.questions {
        if let Some(answer) = answer {
            answers.answer(question.id.clone(), answer.clone());
            *is_loaded = true;
        }
    }
}

/// Returns the questions that have to be asked again before the function of a call is called: without them, a call for
/// which a person was asked would be executed without the asking code.
pub(super) fn required(open: &OpenCall, answers: &Answers) -> Option<Arc<Required>> {
    let required = open.questions.iter().filter(|question| question.is_needed() && !question.in_function);
    let of = |question: &Question| (question.id().to_owned(), question.question.kind.clone(), question.by.clone());
    let questions: Vec<_> = required.map(of).collect();
    (!questions.is_empty()).then(|| Arc::new(Required { answers: answers.clone(), questions }))
}

/// The outcome of an edit.
pub(super) enum Edited {
    /// The call with the new arguments, which has to pass all gates.
    Call(ToolCall),
    /// The arguments are not valid: the question is open again.
    Refused(Asked),
}

/// Executes the edit with which a person has answered the question about a call, if there is one.
pub(super) async fn edit(agent: &Loop<'_>, turn: &OpenTurn<'_>, position: usize, call: &ToolCall) -> Option<Edited> {
    let answers = agent.answers();
    let find = |open: &OpenCall| {
        // A run below the call executes the edit of its input itself.
        let key = turn.calls().key(position, open.call.as_ref());
        let edit = |(at, question): (usize, &Question)| {
            let edit = question.edit().filter(|_| question.is_about(&key))?;
            Some((at, question.clone(), edit))
        };
        open.questions.iter().enumerate().find_map(edit)
    };
    let (at, asked, arguments) = turn.calls().read(position, find)??;
    let answer = asked.answer.clone()?;
    let edited = ToolCall { arguments: arguments.into(), ..call.clone() };
    let checked = check_call(agent, &edited);
    let answered = QuestionAnswered::of(asked.question.id.clone(), &call.id, &answer);
    report(agent, QuestionAnswered { edited: checked.is_ok(), ..answered }).await;
    if let Err(fault) = checked {
        let question = answers.refuse(asked.question, &answer, &shortened(&fault));
        turn.calls().change(position, |open| {
            let asked = &mut open.questions[at];
            (asked.question, asked.answer) = (question.clone(), None);
        });
        return Some(Edited::Refused(Asked { question, by: asked.by }));
    }
    let changed = turn.calls().changed(position, &edited);
    let key = turn.calls().key(position, changed.as_ref());
    // The edit is the answer for the new arguments, so that nobody is asked twice.
    let mut approval = answer;
    approval.value = Answer::from(Decision::Approve).value;
    let approved = Question { answer: Some(approval), of_edit: true, ..asked.anew(&edited, &key) };
    turn.calls().change(position, |open| {
        (open.questions[at].state, open.questions[at].is_reported) = (QuestionState::Used, true);
        turn.calls().replace(position, open, changed, &edited);
        open.questions.push(approved);
        open.is_edited = true;
        open.passed.clear();
        load(open, answers);
    });
    Some(Edited::Call(edited))
}

/// Reports the answers that a call has taken. If the call has settled, reports those that nobody has asked for again.
pub(super) fn report_answers<'a>(
    agent: &'a Loop<'_>,
    turn: &'a OpenTurn<'_>,
    position: usize,
    has_settled: bool,
) -> BoxFuture<'a, ()> {
    Box::pin(async move {
        let answers = agent.answers();
        let is_new = |question: &&mut Question| {
            let is_known = question.answer.is_some() && !question.of_edit && !question.is_reported;
            is_known && (has_settled || question.is_taken(answers))
        };
        let taken: Vec<_> = turn.calls().change(position, |open| {
            let new = open.questions.iter_mut().filter(is_new);
            new.map(|question| {
                question.is_reported = true;
                question.clone()
            })
            .collect()
        });
        for question in taken {
            let is_taken = question.is_taken(answers);
            let Question { question: Interrupt { id, .. }, by, answer, .. } = question;
            if let Some(answer) = answer.filter(|_| is_taken) {
                let call = turn.response().tool_calls().nth(position).map_or("", |call| &call.id);
                report(agent, QuestionAnswered::of(id, call, &answer)).await;
            } else {
                tracing::warn!(question = id, by, "an answer was not used: nobody has asked its question again");
                report(agent, AnswerUnused { id, by }).await;
            }
        }
    })
}

/// Emits an event that only reports. The error of a listener is logged.
pub(crate) async fn report<E: Event>(agent: &Loop<'_>, mut event: E) {
    if agent.ctx.has_listeners() {
        log(emit(agent.ctx, &mut event).await, E::NAME.as_str());
    }
}
