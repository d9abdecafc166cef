//! The questions about the calls of a turn: how they are kept, and how their answers come back (A23).

use emitree_emitter::Event;
use emitree_middleware::approval::Decision;
use emitree_runtime::{Answer, Answers, Error, Interrupt, RunKey};
use futures_core::future::BoxFuture;
use serde::Deserialize;

use crate::ToolCall;
use crate::agent::calls::check_call;
use crate::agent::events::{AnswerUnused, QuestionAnswered};
use crate::agent::steps::{Loop, PAUSED};
use crate::model::{emit, log};
use crate::session::fold::turn::{Call, Question, QuestionState};
use crate::session::record::{Asked as AskedAbout, Fact};
use crate::session::turn::TurnHandle;
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

    /// Keeps in the session that the call waits, and for which question.
    pub(super) fn keep(&self, turn: &TurnHandle<'_>, position: usize, answers: &Answers) {
        if !is_question(&self.question.kind) {
            return turn.calls().note(position, Fact::Waits);
        }
        turn.calls().use_answers(position, answers);
        if let Some(kept) = self.question.kept() {
            turn.calls().note(position, Fact::Kept(kept.clone()));
        }
        turn.calls().note_all(position, |call| {
            if self.is_refused_by(call) {
                return vec![Fact::Unfit(self.stored()), Fact::Waits];
            }
            vec![Fact::Asked(self.about(call))]
        });
    }

    /// Keeps the question with the answer that a live approval has got.
    pub(super) fn keep_answered(&self, turn: &TurnHandle<'_>, position: usize, answers: &Answers) {
        turn.calls().note_all(position, |call| vec![Fact::Needed { asked: self.about(call), approval: None }]);
        if let Some(answer) = answers.get(&self.question.id) {
            turn.calls().answer(&self.question.id, answer);
        }
    }

    /// Returns the question without the value that the call keeps.
    fn stored(&self) -> Interrupt {
        let mut question = self.question.clone();
        question.take_kept();
        question
    }

    fn about(&self, call: &Call) -> AskedAbout {
        let (question, by) = (self.stored(), self.by.clone());
        AskedAbout { question, by, in_function: call.is_called && call.begins() }
    }

    /// Returns `true` if the question says that its answer was refused.
    fn is_refused_by(&self, call: &Call) -> bool {
        let refused =
            self.question.data.get("refused").and_then(|refused| Answer::deserialize(refused.get("answer")?).ok());
        let known = call.questions.iter().find(|known| known.id() == self.question.id);
        refused.is_some() && known.is_some_and(|known| known.answer == refused)
    }
}

/// Loads the answers that a call has, so that the code that has asked finds them.
pub(super) fn load(call: &Call, answers: &Answers) {
    for Question { asked, answer, .. } in &call.questions {
        answer.iter().for_each(|answer| answers.answer(asked.question.id.clone(), answer.clone()));
    }
}

/// The outcome of an edit.
pub(super) enum Edited {
    /// The call with the new arguments, which has to pass all gates.
    Call(ToolCall),
    /// The arguments are not valid: the question is open again.
    Refused(Asked),
}

/// Executes the edit with which a person has answered the question about a call, if there is one.
pub(super) async fn edit(agent: &Loop<'_>, turn: &TurnHandle<'_>, position: usize, call: &ToolCall) -> Option<Edited> {
    let find = |known: &Call| {
        // A run below the call executes the edit of its input itself.
        let key = turn.calls().key(position, known.changed.as_ref());
        let edit = |question: &Question| {
            let edit = question.edit().filter(|_| question.is_about(&key))?;
            Some((question.clone(), edit))
        };
        known.questions.iter().find_map(edit)
    };
    let (question, arguments) = turn.calls().read(position, find)??;
    let (answer, id) = (question.answer.clone()?, question.id().to_owned());
    let edited = ToolCall { arguments: arguments.into(), ..call.clone() };
    let checked = check_call(agent, &edited);
    turn.calls().report(&id);
    let answered = QuestionAnswered::of(id.clone(), &call.id, &answer);
    report(agent, QuestionAnswered { edited: checked.is_ok(), ..answered }).await;
    if let Err(fault) = checked {
        let refused = agent.answers().refuse(question.asked.question, &answer, &shortened(&fault));
        turn.calls().note(position, Fact::Unfit(refused.clone()));
        return Some(Edited::Refused(Asked { question: refused, by: question.asked.by }));
    }
    // The edit is the answer for the new arguments, so that nobody is asked twice.
    let mut approval = answer;
    approval.value = Answer::from(Decision::Approve).value;
    turn.calls().note(position, Fact::Used(id));
    turn.calls().note_all(position, |known| {
        let mut facts = turn.calls().change_to(known, position, &edited, true);
        let asked = question.anew(&edited, &turn.calls().key(position, Some(&edited)));
        facts.push(Fact::Needed { asked, approval: Some(approval) });
        facts
    });
    turn.calls().read(position, |known| load(known, agent.answers()));
    Some(Edited::Call(edited))
}

/// Reports the answers that a call has taken. If the call has settled, reports those that nobody has asked for again.
pub(super) fn report_answers<'a>(
    agent: &'a Loop<'_>,
    turn: &'a TurnHandle<'_>,
    position: usize,
    has_settled: bool,
) -> BoxFuture<'a, ()> {
    Box::pin(async move {
        turn.calls().use_answers(position, agent.answers());
        let is_known = |question: &&Question| question.answer.is_some() && !question.of_edit;
        let known = |call: &Call| call.questions.iter().filter(is_known).cloned().collect::<Vec<_>>();
        for question in turn.calls().read(position, known).unwrap_or_default() {
            let is_taken = question.state == QuestionState::Used;
            if !(has_settled || is_taken) || !turn.calls().report(question.id()) {
                continue;
            }
            let Question { asked: AskedAbout { question: Interrupt { id, .. }, by, .. }, answer, .. } = question;
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
