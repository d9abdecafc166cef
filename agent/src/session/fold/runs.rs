//! Runs: how they begin and end, what another attempt undoes, and what the next run takes up.

use std::collections::{BTreeMap, BTreeSet};
use std::mem::take;
use std::sync::Arc;

use serde::{Deserialize, Serialize};
use serde_json::Value;
use uuid::Uuid;

use crate::message::history::check_parts;
use crate::message::is_false;
use crate::session::fold::spans::{Span, forget_undo, split, undo_spans};
use crate::session::fold::turn::{OpenTurn, TurnRow};
use crate::session::fold::{Conversation, Fault, REMEMBERED, Waiting};
use crate::session::record::TurnAt;
use crate::{ChatOptions, Message, Role, Turn};

/// A run that is not over, or that has left something for the next one.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Run {
    /// Counts the runs of the session.
    pub(crate) number: u32,
    pub(crate) id: Uuid,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) once: Option<String>,
    pub(crate) attempt: u32,
    pub(crate) counts: Turn,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) options: Option<Box<ChatOptions>>,
    /// The number of the turn whose response the run waits for.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) asks: Option<u64>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) open: Option<OpenTurn>,
    /// The answer that the run holds, until the end of the run is stored.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) answer: Option<Held>,
    /// `true` if no attempt is under way.
    #[serde(default, skip_serializing_if = "is_false")]
    pub(crate) is_left: bool,
    /// What another attempt goes back to. `None` if the run is over.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) undo: Option<Undo>,
}

/// An answer that is not returned yet.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Held {
    /// The turn that ends with it.
    pub(crate) turn: u64,
    /// The message, once it is no longer in the history, because the run is over and has not returned it. An answer with
    /// calls stays there.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) message: Option<Arc<Message>>,
}

/// What another attempt of a run goes back to.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Undo {
    pub(crate) state: BTreeMap<Arc<str>, Arc<Value>>,
    pub(crate) counts: Turn,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub(crate) taken: Vec<Waiting>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) pause: Option<Uuid>,
    /// The answer that an earlier run has not returned, until an attempt of this run has an answer.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) held: Option<Held>,
}

/// A run that several processes could ask for.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct AskedOnce {
    id: String,
    /// The turn that ends with the answer. `None` if the run was left, or its answer withheld.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    turn: Option<u64>,
}

/// The state of a run that several processes ask for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Once {
    New,
    UnderWay,
    /// A resume goes on with it.
    Stopped,
    /// It has returned the answer of this turn.
    Ended(u64),
    /// It has no answer, and another run has begun.
    Left,
}

impl Run {
    /// Returns `true` if an attempt is under way.
    pub(crate) const fn is_live(&self) -> bool {
        !self.is_left && self.undo.is_some()
    }
}

impl Conversation {
    pub(super) fn begin(
        &mut self,
        number: u32,
        id: Uuid,
        once: Option<String>,
        options: Option<Box<ChatOptions>>,
        resumes: bool,
    ) -> Result<(), Fault> {
        if number != self.begun {
            return Err(format!("the run {number} is not the next one, {}", self.begun));
        }
        if let Some(id) = once.as_ref().filter(|id| self.once(id) != Once::New) {
            return Err(format!("a run `{id}` has begun"));
        }
        self.begun += 1;
        self.stuck = None;
        let undo = Undo { state: self.state.clone(), ..Undo::default() };
        let mut run = Run { number, id, once, options, attempt: 1, undo: Some(undo), ..Run::default() };
        let stopped = self.stopped.take().and_then(|stopped| self.run(stopped).ok());
        if let Some(stopped) = stopped {
            let (open, answer, asks) = (stopped.open.take(), stopped.answer.take(), stopped.asks.take());
            let (counts, options, once) = (stopped.counts, stopped.options.take(), stopped.once.take_if(|_| resumes));
            if resumes {
                // A turn whose messages a hook has replaced is over.
                run.open = open.filter(|open| self.turn_at(open.number).is_some()).map(OpenTurn::resumed);
                (run.counts, run.options, run.once) = (counts, run.options.or(options), run.once.or(once));
                let undo = run.undo.get_or_insert_default();
                (undo.counts, undo.held) = (counts, answer.clone());
                run.answer = answer.map(|held| self.put_back(number, held));
                self.ask_again(asks);
            } else if let Some(open) = open {
                self.close(&open);
            }
        }
        // The run has read the answers of others, so they stay.
        self.runs.iter_mut().filter(|run| run.undo.is_none()).for_each(|run| run.answer = None);
        self.runs.push(run);
        self.forget_over();
        Ok(())
    }

    /// Puts an answer that was not returned back into the history.
    fn put_back(&mut self, run: u32, Held { turn, message }: Held) -> Held {
        if let Some(message) = message {
            self.spans.push(Span { len: 1, run: Some(run), behind: Some(turn), ends: true, ..Span::default() });
            self.messages_mut().push(message);
        }
        Held { turn, message: None }
    }

    /// The model is asked again under the same number, unless another run has counted meanwhile.
    fn ask_again(&mut self, turn: Option<u64>) {
        if turn.is_some_and(|turn| turn == self.turns) {
            self.table.pop_back();
            self.turns -= 1;
        }
    }

    /// Undoes an attempt: the messages that it added, the parts that it replaced, what it took, and the state.
    pub(super) fn again(&mut self, number: u32) -> Result<(), Fault> {
        self.leave(number, false)?;
        let run = self.run(number)?;
        run.attempt += 1;
        (run.is_left, run.answer) = (false, None);
        self.stopped.take_if(|stopped| *stopped == number);
        let keeps = self.keeps_turn(number);
        let state = self.state.clone();
        let run = self.run(number)?;
        let undo = run.undo.get_or_insert_default();
        if keeps {
            undo.state = state;
            run.open = run.open.take().map(OpenTurn::resumed);
            return Ok(());
        }
        (run.counts, run.asks, run.open) = (undo.counts, None, None);
        let (state, taken, pause) = (undo.state.clone(), take(&mut undo.taken), undo.pause.take());
        let held = undo.held.clone();
        self.state = state;
        self.paused = self.paused.or(pause);
        self.inbox.extend(taken);
        self.inbox.sort_by_key(|waiting| waiting.number);
        let parts = split(take(&mut self.spans), self.take_messages());
        let mut messages = Vec::new();
        undo_spans(parts, number, &mut self.spans, &mut messages);
        self.messages = Arc::new(messages);
        if let Some(held) = held {
            let held = self.put_back(number, held);
            self.run(number)?.answer = Some(held);
        }
        self.table.iter_mut().filter(|turn| turn.run == number).for_each(|turn| turn.is_discarded = true);
        Ok(())
    }

    /// Returns `true` if another attempt of a run goes on with the calls that an earlier run had left open (A7).
    pub(crate) fn keeps_turn(&self, number: u32) -> bool {
        let open = self.find_run(number).and_then(|run| run.open.as_ref()).filter(|open| open.is_resumed);
        open.is_some_and(|open| self.turn_at(open.number).is_some())
    }

    pub(super) fn keep(&mut self, number: u32) -> Result<(), Fault> {
        let state = self.state.clone();
        let run = self.run(number)?;
        let counts = run.counts;
        let undo = run.undo.as_mut().ok_or("the run is over")?;
        (undo.state, undo.counts) = (state, counts);
        Ok(())
    }

    pub(super) fn leave(&mut self, number: u32, answered: bool) -> Result<(), Fault> {
        let run = self.run(number)?;
        if run.undo.is_none() {
            return Err(format!("the run {number} is over"));
        }
        if run.is_left {
            return Ok(());
        }
        run.is_left = true;
        if let Some(undo) = run.undo.as_mut().filter(|_| answered) {
            undo.held = None;
        }
        self.place(number);
        if !answered {
            self.stop(number);
        } else if self.runs.iter().all(|run| run.is_left) {
            // A run with an answer takes the pause with it.
            let pause = self.paused.take();
            let undo = self.run(number)?.undo.get_or_insert_default();
            undo.pause = undo.pause.or(pause);
        }
        Ok(())
    }

    /// A session has one open turn: an older one is closed. A run between two turns leaves that of another run open.
    fn stop(&mut self, number: u32) {
        match self.stopped.filter(|older| *older != number) {
            Some(older) if self.has_open(older) && !self.has_open(number) => {}
            Some(older) => {
                let open = self.run(older).ok().and_then(|run| run.open.take());
                open.iter().for_each(|open| self.close(open));
                self.stopped = Some(number);
            }
            None => self.stopped = Some(number),
        }
    }

    fn has_open(&self, number: u32) -> bool {
        self.runs.iter().any(|run| run.number == number && run.open.is_some())
    }

    pub(super) fn end(&mut self, number: u32, returned: bool) -> Result<(), Fault> {
        self.leave(number, returned)?;
        let run = self.run(number)?;
        let Undo { taken, mut pause, .. } = run.undo.take().unwrap_or_default();
        if !returned && run.answer.is_some() {
            // It has taken the pause with its answer, which it has not returned.
            self.paused = self.paused.or(pause.take());
        }
        self.remember_taken(taken.into_iter().map(|waiting| waiting.id).chain(pause));
        forget_undo(&mut self.spans, number);
        let run = self.run(number)?;
        let turn = run.answer.as_ref().filter(|_| returned).map(|held| held.turn);
        if let (Some(turn), Some(id)) = (turn, run.once.clone()) {
            self.remember_once(AskedOnce { id, turn: Some(turn) });
        }
        // Another answer is the last one.
        let is_older = |run: &&mut Run| run.undo.is_none() && run.number != number && self.stopped != Some(run.number);
        self.runs.iter_mut().filter(is_older).for_each(|run| run.answer = None);
        if !returned && self.run(number)?.answer.is_some() {
            self.hold_back(number)?;
        }
        self.forget_over();
        Ok(())
    }

    /// The end of a run was not stored, so the next run may return its answer.
    pub(super) fn take_back(&mut self, number: u32) -> Result<(), Fault> {
        let run = self.run(number)?;
        if run.undo.is_some() || run.answer.is_none() {
            return Err(format!("the run {number} has returned no answer"));
        }
        let once = run.once.clone();
        self.once.retain(|known| Some(&known.id) != once.as_ref());
        self.hold_back(number)?;
        self.forget_over();
        Ok(())
    }

    /// Takes an answer that was not returned out of the history (A26). If another run has left an open turn, that one is
    /// resumed, and the answer stays.
    fn hold_back(&mut self, number: u32) -> Result<(), Fault> {
        if self.stopped.is_some_and(|stopped| stopped != number && self.has_open(stopped)) {
            self.run(number)?.answer = None;
            return Ok(());
        }
        if let Some(Held { turn, message: None }) = self.run(number)?.answer.clone()
            && let Some((span, at)) = self.answer_at(turn)
            && self.messages[at].tool_calls().next().is_none()
        {
            let message = self.messages_mut().remove(at);
            self.spans[span].len -= 1;
            self.forget_empty_spans();
            self.run(number)?.answer = Some(Held { turn, message: Some(message) });
        }
        self.stop(number);
        Ok(())
    }

    /// Forgets runs that are over, except the last one that has stopped, and the one with the last answer.
    fn forget_over(&mut self) {
        let stopped = self.stopped;
        let is_gone = |run: &mut Run| run.undo.is_none() && run.answer.is_none() && stopped != Some(run.number);
        let gone: Vec<_> = self.runs.extract_if(.., is_gone).filter_map(|run| run.once).collect();
        for id in gone {
            if self.once.iter().all(|known| known.id != id) {
                self.remember_once(AskedOnce { id, turn: None });
            }
        }
    }

    fn remember_once(&mut self, asked: AskedOnce) {
        if self.once.len() == REMEMBERED {
            self.once.pop_front();
        }
        self.once.push_back(asked);
    }

    /// Returns the state of a run that several processes ask for.
    pub(crate) fn once(&self, id: &str) -> Once {
        let known = self.once.iter().rfind(|known| known.id == id);
        if let Some(known) = known {
            return known.turn.map_or(Once::Left, Once::Ended);
        }
        match self.runs.iter().find(|run| run.once.as_deref() == Some(id)) {
            None => Once::New,
            Some(run) if self.stopped == Some(run.number) && run.undo.is_none() => Once::Stopped,
            Some(_) => Once::UnderWay,
        }
    }

    /// The run would end with the answer of a turn.
    pub(super) fn hold(&mut self, number: u32, turn: u64) -> Result<(), Fault> {
        if self.answer_at(turn).is_none() {
            return Err(format!("the history has no answer of the turn {turn}"));
        }
        let run = self.between_turns(number)?;
        (run.answer, run.asks, run.open) = (Some(Held { turn, message: None }), None, None);
        Ok(())
    }

    /// A layer answers instead of the model, in a turn of its own. What the run has left open is closed.
    pub(super) fn answer_for(&mut self, number: u32, turn: TurnAt, messages: usize) -> Result<(), Fault> {
        let TurnAt { number: turn, at } = turn;
        let next = self.turns + 1;
        let run = self.run(number)?;
        if turn != next || run.undo.is_none() {
            return Err(format!("the run {number} is over, or the turn {turn} is not the next one, {next}"));
        }
        (run.answer, run.asks) = (Some(Held { turn, message: None }), None);
        let open = run.open.take();
        open.iter().for_each(|open| self.close(open));
        self.stopped.take_if(|stopped| *stopped == number);
        self.number_turn(TurnRow { number: turn, run: number, at, messages, ..TurnRow::default() });
        Ok(())
    }

    /// Replaces the answer that a run holds.
    pub(super) fn replace_answer(&mut self, number: u32, message: Arc<Message>, withheld: bool) -> Result<(), Fault> {
        valid_response(&message)?;
        let held = self.run(number)?.answer.clone().ok_or_else(|| format!("the run {number} holds no answer"))?;
        let at = if held.message.is_none() { self.answer_at(held.turn).map(|(_, at)| at) } else { None };
        let before = at.map(|at| &self.messages[at]).or(held.message.as_ref());
        // The arguments of a withheld answer are left out.
        let is_same =
            |before: &Message| before.tool_calls().map(|call| &call.id).eq(message.tool_calls().map(|call| &call.id));
        if before.is_some_and(|before| !is_same(before)) {
            return Err("the answer has other calls".to_owned());
        }
        match at {
            Some(at) => self.messages_mut()[at] = message,
            None if held.message.is_some() => {
                self.run(number)?.answer = Some(Held { message: Some(message), ..held });
            }
            None => {}
        }
        if withheld {
            self.withheld = Some(self.turns);
            let id = self.run(number)?.once.take();
            id.into_iter().for_each(|id| self.remember_once(AskedOnce { id, turn: None }));
        }
        Ok(())
    }

    /// Returns what is known about a run that is not forgotten.
    pub(crate) fn find_run(&self, number: u32) -> Option<&Run> {
        self.runs.iter().find(|run| run.number == number)
    }

    pub(super) fn run(&mut self, number: u32) -> Result<&mut Run, Fault> {
        self.runs.iter_mut().find(|run| run.number == number).ok_or_else(|| format!("there is no run {number}"))
    }

    /// Returns a run whose attempt is under way.
    pub(super) fn live(&mut self, number: u32) -> Result<&mut Run, Fault> {
        let run = self.run(number)?;
        if run.is_live() { Ok(run) } else { Err(format!("the run {number} has left")) }
    }

    /// Returns the numbers of the runs that are not over, for a process that finds them dead.
    pub(crate) fn dead(&self) -> Vec<u32> {
        self.runs.iter().filter(|run| run.undo.is_some()).map(|run| run.number).collect()
    }

    /// Returns the session as it would be if all runs ended now.
    pub(crate) fn as_if_ended(&self) -> Self {
        let mut ended = self.clone();
        let below: Vec<_> = ended.below.keys().cloned().collect();
        for id in below {
            if let Some(session) = ended.below.get_mut(&id) {
                session.end_all();
            }
        }
        ended.end_all();
        ended.forget_below();
        // All other answers were returned.
        let stopped = ended.stopped;
        ended.runs.retain(|run| stopped == Some(run.number));
        ended
    }

    fn end_all(&mut self) {
        for run in self.dead() {
            let ended = self.end(run, false);
            debug_assert_eq!(ended, Ok(()), "the run is not over");
        }
    }
}

/// Checks a message of a model, whose calls have no results yet.
pub(crate) fn valid_response(message: &Arc<Message>) -> Result<(), Fault> {
    if message.role != Role::Assistant {
        return Err(format!("a message of a model has the role `{}`", message.role.as_str()));
    }
    check_parts(0, message).map_err(|fault| fault.to_string())?;
    let mut ids = BTreeSet::new();
    match message.tool_calls().find(|call| call.id.is_empty() || !ids.insert(&call.id)) {
        Some(call) => Err(format!("the call id `{}` is empty or occurs twice", call.id)),
        None => Ok(()),
    }
}
