//! Turns: the response of a model, and its calls until each has a result.

use std::collections::BTreeSet;
use std::mem::{replace, take};
use std::sync::Arc;

use emitree_runtime::{Answer, KeptValue};
use rust_decimal::Decimal;
use serde::{Deserialize, Serialize};

use crate::message::history::check_parts;
use crate::message::is_false;
use crate::session::fold::runs::{Run, valid_response};
use crate::session::fold::{Conversation, Fault, REMEMBERED, valid};
use crate::session::record::{Asked, Fact, SettledAs, SettledCall};
use crate::{Message, ToolCall, ToolResult, Usage};

/// The result of a call whose tool was running when the run ended.
pub(crate) const STOPPED: &str = "the run was stopped while the tool was running: it may have had effects";

/// The result of a call that had not begun when the run ended.
pub(crate) const UNANSWERED: &str = "not executed: the run was stopped";

/// The result of a call that had not begun when the user interjected.
pub(crate) const NOT_EXECUTED: &str = "not executed: the user interjected";

/// The result of a call that was interrupted after the tool's function had been called.
const INTERRUPTED_AT_WORK: &str = "interrupted while the tool was running: it may have had effects";

/// The result of a call that was interrupted before.
const INTERRUPTED: &str = "not executed: interrupted";

/// The result of a call whose tool was called, and whose own result had not passed the hooks of `tool.result` when the
/// run ended.
const UNCHECKED: &str = "the tool was called, but the run ended before its result was checked: it may have had effects";

/// A turn whose calls have not all settled, or that is not in the history yet.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct OpenTurn {
    pub(crate) number: u64,
    pub(crate) response: Arc<Message>,
    pub(crate) calls: Vec<Call>,
    /// Messages behind the results, until the turn is in the history.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub(crate) injected: Vec<Arc<Message>>,
    /// `true` if the last of these is the answer.
    #[serde(default, skip_serializing_if = "is_false")]
    pub(crate) ends: bool,
    /// The text of the results if the calls are not made.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) unanswered: Option<String>,
    /// `true` once the hooks of `tool.resolve` have seen all calls.
    #[serde(default, skip_serializing_if = "is_false")]
    pub(crate) is_resolved: bool,
    /// `true` if an earlier run has left it open.
    #[serde(default, skip_serializing_if = "is_false")]
    pub(crate) is_resumed: bool,
    /// `true` once its messages are in the history.
    #[serde(default, skip_serializing_if = "is_false")]
    pub(crate) is_placed: bool,
    /// `true` once the run has ended it: until a resume, nothing happens to its calls.
    #[serde(default, skip_serializing_if = "is_false")]
    pub(crate) is_ended: bool,
}

/// What is known about a call.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub(crate) struct Call {
    /// The call as hooks or a person left it, if they have changed it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) changed: Option<ToolCall>,
    /// `true` if a person has changed it.
    #[serde(skip_serializing_if = "is_false")]
    pub(crate) is_edited: bool,
    #[serde(skip_serializing_if = "is_false")]
    pub(crate) not_offered: bool,
    /// The gates that have let it pass.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub(crate) passed: Vec<String>,
    /// `true` if it may have had effects.
    #[serde(skip_serializing_if = "is_false")]
    pub(crate) has_begun: bool,
    /// `true` if the function was called.
    #[serde(skip_serializing_if = "is_false")]
    pub(crate) is_called: bool,
    /// The values of `has_begun` and `is_called` before the call began in this run.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) before: Option<(bool, bool)>,
    /// The value that it has kept with its question, until the call begins again.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) kept: Option<KeptValue>,
    /// The value that it had kept before it began in this run.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) taken: Option<KeptValue>,
    /// `true` if it does not begin any more in this run.
    #[serde(skip_serializing_if = "is_false")]
    pub(crate) is_closed: bool,
    /// `true` if it was interrupted.
    #[serde(skip_serializing_if = "is_false")]
    pub(crate) waits: bool,
    /// `true` if it has a result that no hook has checked.
    #[serde(skip_serializing_if = "is_false")]
    pub(crate) is_unchecked: bool,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub(crate) questions: Vec<Question>,
    /// The ids of the sessions of the agents below it.
    #[serde(skip_serializing_if = "BTreeSet::is_empty")]
    pub(crate) sessions: BTreeSet<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) result: Option<Box<Settled>>,
}

/// The result of a call.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Settled {
    pub(crate) message: Arc<Message>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) how: Option<Box<SettledCall>>,
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

/// A question about a call.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Question {
    pub(crate) asked: Asked,
    /// The first answer that was given.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) answer: Option<Answer>,
    pub(crate) state: QuestionState,
    /// `true` if the answer is the edit of another question.
    #[serde(default, skip_serializing_if = "is_false")]
    pub(crate) of_edit: bool,
    /// The number of answers that did not fit.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub(crate) refused: u32,
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde passes a reference")]
const fn is_zero(number: &u32) -> bool {
    *number == 0
}

/// A turn in the table of the last turns.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct TurnRow {
    pub(crate) number: u64,
    pub(crate) run: u32,
    /// The time at which the model was asked, in milliseconds since 1970.
    pub(crate) at: u64,
    #[serde(default)]
    pub(crate) usage: Usage,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) cost: Option<Decimal>,
    #[serde(default)]
    pub(crate) calls: u32,
    /// The number of messages with which the turn entered the history; 0 before.
    #[serde(default)]
    pub(crate) messages: usize,
    #[serde(default, skip_serializing_if = "is_false")]
    pub(crate) is_discarded: bool,
}

impl Question {
    fn new(asked: Asked, answer: Option<Answer>) -> Self {
        let of_edit = answer.is_some();
        Self { asked, answer, state: QuestionState::Needed, of_edit, refused: 0 }
    }

    /// Returns the key of its answer among what is sent to the session: an answer that did not fit is followed by another.
    pub(crate) fn key(&self) -> String {
        match self.refused {
            0 => self.id().to_owned(),
            refused => format!("{} after {refused}", self.id()),
        }
    }

    pub(crate) fn id(&self) -> &str {
        &self.asked.question.id
    }

    pub(crate) fn is_needed(&self) -> bool {
        self.state == QuestionState::Needed
    }
}

impl Conversation {
    pub(super) fn ask(&mut self, run: u32, turn: u64, at: u64) -> Result<(), Fault> {
        let next = self.turns + 1;
        let live = self.between_turns(run)?;
        if live.asks == Some(turn) {
            // The same model call again: one turn.
            return Ok(());
        }
        if turn != next {
            return Err(format!("the turn {turn} is not the next one, {next}"));
        }
        (live.asks, live.answer, live.open) = (Some(turn), None, None);
        live.counts.number = live.counts.number.saturating_add(1);
        self.number_turn(TurnRow { number: turn, run, at, ..TurnRow::default() });
        Ok(())
    }

    /// Returns a run under way that has no turn in hand. A turn that an earlier run has left open, and whose messages a
    /// hook of another run has replaced meanwhile, is over: the caller forgets it.
    pub(super) fn between_turns(&mut self, number: u32) -> Result<&mut Run, Fault> {
        let is_over = |open: &OpenTurn| open.is_placed && self.turn_at(open.number).is_none();
        let is_over = self.find_run(number).and_then(|run| run.open.as_ref()).is_some_and(is_over);
        let run = self.live(number)?;
        match run.open.as_ref().filter(|_| !is_over) {
            Some(open) => Err(format!("the turn {} is open", open.number)),
            None => Ok(run),
        }
    }

    /// Another turn begins.
    pub(super) fn number_turn(&mut self, info: TurnRow) {
        self.turns = info.number;
        if self.table.len() == REMEMBERED {
            self.table.pop_front();
        }
        self.table.push_back(info);
    }

    pub(super) fn count_reply(
        &mut self,
        run: u32,
        turn: u64,
        usage: Option<Usage>,
        cost: Option<Decimal>,
    ) -> Result<(), Fault> {
        self.asking(run, turn)?.counts.add_response(usage, cost);
        if let Some(info) = self.info(turn) {
            info.usage += usage.unwrap_or_default();
            info.cost = cost.map_or(info.cost, |cost| Some(info.cost.unwrap_or_default().saturating_add(cost)));
        }
        Ok(())
    }

    /// Returns the run that waits for the response of a turn.
    fn asking(&mut self, run: u32, turn: u64) -> Result<&mut Run, Fault> {
        let live = self.live(run)?;
        if live.asks == Some(turn) { Ok(live) } else { Err(format!("nobody has asked for the turn {turn}")) }
    }

    pub(super) fn respond(
        &mut self,
        run: u32,
        turn: u64,
        response: Arc<Message>,
        unanswered: Option<String>,
    ) -> Result<(), Fault> {
        valid_response(&response)?;
        let live = self.asking(run, turn)?;
        let calls = vec![Call::default(); response.tool_calls().count()];
        let made = if unanswered.is_some() { 0 } else { u32::try_from(calls.len()).unwrap_or(u32::MAX) };
        live.counts.tool_calls = live.counts.tool_calls.saturating_add(made);
        live.asks = None;
        live.open = Some(OpenTurn {
            number: turn,
            response,
            calls,
            injected: Vec::new(),
            ends: false,
            unanswered,
            is_resolved: false,
            is_resumed: false,
            is_placed: false,
            is_ended: false,
        });
        if let Some(info) = self.info(turn) {
            info.calls = made;
        }
        Ok(())
    }

    fn info(&mut self, turn: u64) -> Option<&mut TurnRow> {
        self.table.iter_mut().rfind(|info| info.number == turn)
    }

    pub(super) fn inject(&mut self, turn: u64, messages: Vec<Arc<Message>>, answers: bool) -> Result<(), Fault> {
        valid(&messages)?;
        if answers {
            valid_response(messages.last().ok_or("there is no answer")?)?;
        }
        let run = self.run_of(turn)?;
        match &mut run.open {
            Some(open) if !open.is_placed => {
                open.injected.extend(messages);
                open.ends |= answers;
            }
            _ => {
                let run = run.number;
                self.push_behind(turn, messages, run, answers);
            }
        }
        Ok(())
    }

    pub(super) fn end_turn(&mut self, turn: u64) -> Result<(), Fault> {
        let run = self.run_of(turn)?.number;
        self.place(run);
        Ok(())
    }

    /// Ends the open turn of a run: puts it into the history, with a result for each call.
    pub(super) fn place(&mut self, number: u32) {
        let Ok(run) = self.run(number) else { return };
        let Some(open) = &mut run.open else { return };
        let (turn, was_placed) = (open.number, replace(&mut open.is_placed, true));
        open.is_ended = true;
        // Nobody asks about a call that has settled.
        open.calls.iter_mut().filter(|call| call.result.is_some()).for_each(|call| call.questions.clear());
        let mut messages = Vec::new();
        if !was_placed {
            messages.push(Arc::clone(&open.response));
            messages.extend((0..open.calls.len()).map(|call| open.result(call)));
            messages.append(&mut open.injected);
        }
        let ends = open.ends;
        run.open.take_if(|open| open.is_over());
        if !was_placed {
            let len = messages.len();
            self.push(messages, Some(number), Some(turn));
            self.spans.last_mut().into_iter().for_each(|span| span.ends = ends);
            self.info(turn).into_iter().for_each(|info| info.messages = len);
        }
    }

    /// Closes a turn that was left open: its results say which question had no answer.
    pub(super) fn close(&mut self, open: &OpenTurn) {
        let Some(messages) = self.messages_of(open.number) else { return };
        for (position, call) in open.calls.iter().enumerate() {
            let error = call.closes().map(|text| open.error(position, &text));
            let place = error.as_ref().and_then(|error| place_of(messages, position, &error.tool_results().next()?.id));
            if let (Some(error), Some(place)) = (error, place) {
                *place = error;
            }
        }
    }

    /// Changes what is known about a call.
    pub(super) fn note(&mut self, turn: u64, position: usize, fact: Fact) -> Result<(), Fault> {
        if let Fact::Asked(asked) | Fact::Needed { asked, .. } = &fact {
            self.check_question(turn, position, &asked.question)?;
        }
        let open = self.turn(turn)?;
        let asked = open.response.tool_calls().nth(position).ok_or_else(|| format!("there is no call {position}"))?;
        let call = &mut open.calls[position];
        if call.result.is_some() && !matches!(fact, Fact::Settled(_)) {
            return Err(format!("the call {position} of the turn {turn} has settled"));
        }
        call.note(asked, fact)?;
        if !open.is_placed {
            return Ok(());
        }
        let (result, id) = (open.result(position), asked.id.clone());
        if let Some(place) = self.messages_of(turn).and_then(|messages| place_of(messages, position, &id))
            && *place != result
        {
            *place = result;
        }
        Ok(())
    }

    pub(super) fn answer(&mut self, id: &str, answer: Answer) -> Result<(), Fault> {
        if let Some(stuck) = self.stuck.as_mut().filter(|stuck| stuck.question.id == id && stuck.answer.is_none()) {
            stuck.answer = Some(answer);
            return Ok(());
        }
        let question = self.question(id)?;
        if question.answer.is_some() {
            return Err(format!("the question `{id}` was answered"));
        }
        question.answer = Some(answer);
        Ok(())
    }

    /// Returns a question about an open call.
    fn question(&mut self, id: &str) -> Result<&mut Question, Fault> {
        let there: BTreeSet<_> = self.open_turns().map(|open| open.number).collect();
        let turns = self.runs.iter_mut().filter_map(|run| run.open.as_mut());
        let calls = turns.filter(|open| there.contains(&open.number)).flat_map(|open| &mut open.calls);
        let mut questions = calls.filter(|call| call.result.is_none()).flat_map(|call| &mut call.questions);
        questions.find(|question| question.id() == id).ok_or_else(|| format!("there is no question `{id}`"))
    }

    /// Returns the calls that are open, in order.
    pub(crate) fn open_calls(&self) -> impl Iterator<Item = &Call> {
        self.open_turns().flat_map(|open| &open.calls).filter(|call| call.result.is_none())
    }

    /// Returns the questions that wait for an answer, in the order of the calls, without those of sessions below.
    #[cfg(test)]
    pub(crate) fn questions(&self) -> impl Iterator<Item = &Question> {
        self.open_calls().flat_map(Call::waiting)
    }

    /// Returns the open turns that a run can go on with: nobody has rewritten their messages.
    pub(crate) fn open_turns(&self) -> impl Iterator<Item = &OpenTurn> {
        let open = self.runs.iter().filter_map(|run| run.open.as_ref());
        open.filter(|open| !open.is_placed || self.turn_at(open.number).is_some())
    }

    /// Returns the run whose attempt has a turn in hand.
    fn run_of(&mut self, turn: u64) -> Result<&mut Run, Fault> {
        let is_of = |run: &&mut Run| run.open.as_ref().is_some_and(|open| open.number == turn && !open.is_ended);
        let run = self.runs.iter_mut().find(is_of).filter(|run| run.is_live());
        run.ok_or_else(|| format!("no run has the turn {turn} in hand"))
    }

    pub(super) fn turn(&mut self, turn: u64) -> Result<&mut OpenTurn, Fault> {
        self.run_of(turn)?.open.as_mut().ok_or_else(|| format!("the turn {turn} is not open"))
    }

    pub(super) fn open_call(&mut self, turn: u64, position: usize) -> Result<&mut Call, Fault> {
        let call = self.turn(turn)?.calls.get_mut(position).filter(|call| call.result.is_none());
        call.ok_or_else(|| format!("the call {position} of the turn {turn} is not open"))
    }
}

impl OpenTurn {
    /// Goes on with a turn that an earlier run has left open.
    pub(super) fn resumed(mut self) -> Self {
        for call in &mut self.calls {
            (call.before, call.taken, call.is_closed) = (None, None, false);
        }
        Self { is_resumed: true, is_ended: false, ..self }
    }

    /// Returns `true` if no call is open.
    pub(crate) fn is_over(&self) -> bool {
        self.unanswered.is_some() || self.calls.iter().all(|call| call.result.is_some())
    }

    /// Returns the result of a call, as it is in the history if the turn ends now.
    fn result(&self, position: usize) -> Arc<Message> {
        match &self.calls[position].result {
            Some(settled) => Arc::clone(&settled.message),
            None => self.error(position, self.calls[position].text().unwrap_or_else(|| self.unanswered())),
        }
    }

    fn unanswered(&self) -> &str {
        self.unanswered.as_deref().unwrap_or(UNANSWERED)
    }

    fn error(&self, position: usize, text: &str) -> Arc<Message> {
        let id = self.response.tool_calls().nth(position).map_or("", |call| &call.id);
        Arc::new(Message::tool([ToolResult::error(id, text)]))
    }
}

/// Returns the place of the result of a call among the messages of its turn.
fn place_of<'a>(messages: &'a mut [Arc<Message>], position: usize, id: &str) -> Option<&'a mut Arc<Message>> {
    let is_of_call = |message: &&mut Arc<Message>| message.tool_results().next().is_some_and(|one| one.id == id);
    messages.get_mut(1 + position).filter(is_of_call)
}

impl Call {
    /// Returns `true` if the call has begun in this run.
    pub(crate) const fn begins(&self) -> bool {
        self.before.is_some()
    }

    /// Returns the questions that wait for an answer.
    pub(crate) fn waiting(&self) -> impl Iterator<Item = &Question> {
        self.questions.iter().filter(|question| question.answer.is_none())
    }

    /// The call was interrupted. Layers that were entered have let it wait, so only its function counts.
    fn wait(&mut self) {
        (self.waits, self.is_closed, self.is_unchecked) = (true, true, false);
        if let (Some((has_begun, _)), false) = (self.before.take(), self.is_called) {
            self.has_begun = has_begun;
        }
    }

    /// Returns the question that has to be asked again before the function is called (A23).
    pub(crate) fn unread(&self) -> Option<&Question> {
        self.questions.iter().find(|question| question.is_needed() && !question.asked.in_function)
    }

    /// Returns the text of the result of a call that is open, unless nothing has happened.
    fn text(&self) -> Option<&'static str> {
        match self {
            Self { waits: true, is_called: true, .. } => Some(INTERRUPTED_AT_WORK),
            Self { waits: true, .. } => Some(INTERRUPTED),
            Self { is_unchecked: true, has_begun: true, .. } => Some(UNCHECKED),
            Self { has_begun: true, .. } => Some(STOPPED),
            _ => None,
        }
    }

    /// Returns the text of the result of a call that is closed because another run begins.
    fn closes(&self) -> Option<String> {
        let asked = self.questions.last().filter(|_| self.result.is_none() && !self.has_begun)?;
        let kind = &asked.asked.question.kind;
        Some(match asked.answer {
            None => format!("not executed: the question `{kind}` was not answered"),
            Some(_) => format!("not executed: the answer to `{kind}` came, but the run was not resumed"),
        })
    }

    fn note(&mut self, asked: &ToolCall, fact: Fact) -> Result<(), Fault> {
        match fact {
            Fact::NotOffered => self.not_offered = true,
            Fact::Changed { call, edited } => self.change(asked, call, edited),
            Fact::Passed(gate) => self.passed.push(gate),
            Fact::Asked(asked) => {
                self.wait();
                self.ask(Question::new(asked, None));
            }
            Fact::Kept(value) => self.kept = Some(value),
            Fact::Waits => self.wait(),
            Fact::Needed { asked, approval } => self.ask(Question::new(asked, approval)),
            Fact::Unfit(question) => {
                let open = self.answered(&question.id)?;
                (open.asked.question, open.answer, open.state) = (question, None, QuestionState::Needed);
                open.refused += 1;
            }
            Fact::Used(id) => {
                self.answered(&id)?.state = QuestionState::Used;
                self.is_closed &= !take(&mut self.waits);
            }
            Fact::Begun { called } => {
                if self.is_closed {
                    return Err("the call is closed".to_owned());
                }
                if let Some(unread) = self.unread().filter(|_| called) {
                    return Err(format!("the question `{}` was not asked again", unread.id()));
                }
                self.before.get_or_insert((self.has_begun, self.is_called));
                (self.has_begun, self.waits, self.is_unchecked) = (true, false, false);
                self.is_called |= called;
                if called {
                    self.taken = self.kept.take();
                }
            }
            Fact::NotBegun => {
                (self.has_begun, self.is_called) = self.before.take().ok_or("the call has not begun")?;
                self.kept = self.taken.take().or_else(|| self.kept.take());
            }
            Fact::Unchecked => (self.is_unchecked, self.is_closed, self.waits) = (true, true, false),
            Fact::Stopped => self.is_closed = true,
            Fact::Settled(settled) => {
                let SettledAs { content, parts, is_error, how } = *settled;
                let result = ToolResult { id: asked.id.clone(), response: content, parts, is_error };
                let message = Arc::new(Message::tool([result]));
                check_parts(0, &message).map_err(|fault| fault.to_string())?;
                // What a resume needs to make the call goes.
                let (changed, result) = (self.changed.take(), Some(Box::new(Settled { message, how })));
                let questions = take(&mut self.questions);
                *self = Self { changed, questions, result, ..Self::default() };
            }
        }
        Ok(())
    }

    fn change(&mut self, asked: &ToolCall, call: ToolCall, edited: bool) {
        let is_changed = asked.name != call.name || asked.arguments != call.arguments;
        let changed = is_changed.then_some(call);
        if self.changed != changed {
            // They were asked about other arguments.
            self.replace(|_| true);
            self.changed = changed;
        }
        if edited {
            self.is_edited = true;
            self.passed.clear();
        }
    }

    /// Keeps a question, in the place of what its asker has asked before. The answer to the same question stays.
    fn ask(&mut self, mut question: Question) {
        let (by, id) = (question.asked.by.clone(), question.id().to_owned());
        self.replace(|earlier| earlier.asked.by == by && earlier.id() != id);
        let Some(earlier) = self.questions.iter_mut().find(|earlier| earlier.id() == id) else {
            return self.questions.push(question);
        };
        question.answer = question.answer.or_else(|| earlier.answer.take());
        question.refused = earlier.refused;
        *earlier = question;
    }

    /// Replaces questions that are still needed. One with an answer stays, for the error of a second answer.
    fn replace(&mut self, is_replaced: impl Fn(&Question) -> bool) {
        for question in self.questions.iter_mut().filter(|question| question.is_needed()) {
            if is_replaced(question) {
                question.state = QuestionState::Replaced;
            }
        }
        self.questions.retain(|question| question.state != QuestionState::Replaced || question.answer.is_some());
    }

    /// Returns a question whose answer can be read.
    fn answered(&mut self, id: &str) -> Result<&mut Question, Fault> {
        let question = self.questions.iter_mut().find(|question| question.id() == id);
        let question = question.filter(|one| one.answer.is_some() && one.state != QuestionState::Replaced);
        question.ok_or_else(|| format!("there is no answer to a question `{id}`"))
    }
}
