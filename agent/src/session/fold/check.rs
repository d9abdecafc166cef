//! What `apply` does not see record by record: whole sessions that were read, and the ids of questions.

use std::collections::BTreeSet;

use emitree_runtime::Interrupt;

use crate::ToolCall;
use crate::message::history::check_parts;
use crate::session::fold::runs::{Run, valid_response};
use crate::session::fold::spans::Span;
use crate::session::fold::turn::OpenTurn;
use crate::session::fold::{CAPACITY, Conversation, Fault, valid};
use crate::session::keys::{key_of_call, read_key};
use crate::session::questions::expected_id;

impl Conversation {
    /// Checks a whole session that was read.
    pub(crate) fn checked(mut self) -> Result<Self, Fault> {
        // The sessions are a tree.
        let mut unused: BTreeSet<_> = self.below.keys().collect();
        let of_calls = self.below.values().flat_map(Self::sessions_of_calls).chain(self.sessions_of_calls());
        let unknown = of_calls.filter(|id| !unused.remove(*id)).last();
        let reached = self.ids_below();
        if let Some(id) = unknown.or_else(|| self.below.keys().find(|id| !reached.contains(*id))) {
            return Err(format!("at `below`: `{id}` is not the session of one open call"));
        }
        for (id, session) in &mut self.below {
            let at = |fault: Fault| format!("at `below[{id}]`: {fault}");
            if session.id != *id || !session.below.is_empty() {
                return Err(at("it has another id, or sessions below".to_owned()));
            }
            session.check_one().map_err(at)?;
        }
        self.check_one()?;
        Ok(self)
    }

    fn check_one(&mut self) -> Result<(), Fault> {
        if !self.id.is_empty() {
            read_key(&self.id)?;
        }
        if self.spans.is_empty() && !self.messages.is_empty() {
            self.spans.push(Span { len: self.messages.len(), ..Span::default() });
        }
        self.check_spans()?;
        self.check_runs()?;
        self.check_inbox()
    }

    fn check_spans(&self) -> Result<(), Fault> {
        let mut rest = &self.messages[..];
        for (number, span) in self.spans.iter().enumerate() {
            let at = |fault: Fault| format!("at `spans[{number}]`: {fault}");
            let (messages, behind) = rest.split_at_checked(span.len).ok_or_else(|| at("it is too long".to_owned()))?;
            valid(messages).map_err(at)?;
            check_replaced(span).map_err(at)?;
            rest = behind;
        }
        if rest.is_empty() { Ok(()) } else { Err(format!("at `spans`: {} messages are in no span", rest.len())) }
    }

    fn check_runs(&self) -> Result<(), Fault> {
        let mut numbers = BTreeSet::new();
        let mut turns = BTreeSet::new();
        for (place, run) in self.runs.iter().enumerate() {
            let at = |fault: Fault| format!("at `runs[{place}]`: {fault}");
            if run.number >= self.begun || !numbers.insert(run.number) {
                return Err(at(format!("the number {} is another run's, or there were fewer runs", run.number)));
            }
            if let Some(turn) = run
                .asks
                .iter()
                .chain(run.open.iter().map(|open| &open.number))
                .find(|turn| **turn == 0 || **turn > self.turns || !turns.insert(**turn))
            {
                return Err(at(format!("the turn {turn} is another run's, or there were fewer turns")));
            }
            self.check_run(run).map_err(at)?;
        }
        if let Some(stopped) = self.stopped.filter(|stopped| !numbers.contains(stopped)) {
            return Err(format!("at `stopped`: there is no run {stopped}"));
        }
        Ok(())
    }

    fn check_run(&self, run: &Run) -> Result<(), Fault> {
        if run.undo.is_none() && !run.is_left {
            return Err("it is over, but has not left".to_owned());
        }
        if run.asks.is_some() && run.open.is_some() {
            return Err("it asks for a turn, and has one that is open".to_owned());
        }
        if let Some(message) = run.answer.iter().find_map(|held| held.message.as_ref()) {
            valid(std::slice::from_ref(message)).and_then(|()| valid_response(message))?;
        }
        let Some(open) = &run.open else { return Ok(()) };
        if run.is_left && !open.is_placed {
            return Err("its turn is not in the history, although it has left".to_owned());
        }
        self.check_turn(open).map_err(|fault| format!("at `open`: {fault}"))
    }

    fn check_turn(&self, open: &OpenTurn) -> Result<(), Fault> {
        valid_response(&open.response)?;
        valid(&open.injected)?;
        let asked = open.response.tool_calls().count();
        if asked != open.calls.len() {
            return Err(format!("there are {} calls, but its response has {asked}", open.calls.len()));
        }
        if open.is_placed
            && let Some((span, at)) = self.turn_at(open.number)
        {
            let messages = &self.messages[at..at + self.spans[span].len];
            let has_result = |(place, call): (usize, &ToolCall)| {
                let mut results = messages.get(1 + place).into_iter().flat_map(|message| message.tool_results());
                results.next().is_some_and(|result| result.id == call.id) && results.next().is_none()
            };
            let is_there = messages.first().is_some_and(|first| first.tool_calls().eq(open.response.tool_calls()));
            if !is_there || !open.response.tool_calls().enumerate().all(has_result) {
                return Err(format!("the history has other messages for the turn {}", open.number));
            }
        }
        for (position, (call, asked)) in open.calls.iter().zip(open.response.tool_calls()).enumerate() {
            let at = |fault: Fault| format!("at `calls[{position}]`: {fault}");
            if let Some(settled) = &call.result {
                check_parts(0, &settled.message).map_err(|fault| at(fault.to_string()))?;
                let mut results = settled.message.tool_results();
                if results.next().is_none_or(|result| result.id != asked.id) || results.next().is_some() {
                    return Err(at(format!("its result is not one for `{}`", asked.id)));
                }
            }
            for question in call.questions.iter().filter(|question| question.is_needed()) {
                self.check_id(open, position, &question.asked.question).map_err(at)?;
            }
        }
        Ok(())
    }

    fn check_inbox(&self) -> Result<(), Fault> {
        if self.inbox.len() > CAPACITY {
            return Err(format!("at `inbox`: more than {CAPACITY} messages wait"));
        }
        let taken = self.runs.iter().filter_map(|run| run.undo.as_ref()).flat_map(|undo| &undo.taken);
        let (mut numbers, mut ids) = (BTreeSet::new(), BTreeSet::new());
        for waiting in self.inbox.iter().chain(taken) {
            if waiting.number >= self.sent || !numbers.insert(waiting.number) || !ids.insert(waiting.id) {
                return Err(format!("at `inbox`: the message {} has the number or id of another", waiting.number));
            }
            if let Some(message) = waiting.sent.message() {
                valid(std::slice::from_ref(message)).map_err(|fault| format!("at `inbox`: {fault}"))?;
            }
        }
        Ok(())
    }

    /// Checks the id of a question that is asked about a call.
    pub(super) fn check_question(&self, turn: u64, position: usize, question: &Interrupt) -> Result<(), Fault> {
        let open = self.runs.iter().filter_map(|run| run.open.as_ref()).find(|open| open.number == turn);
        self.check_id(open.ok_or_else(|| format!("the turn {turn} is not open"))?, position, question)
    }

    /// The id of a question is the key of its call, with a hash of the question (A23). Runs below have keys below the key
    /// of the call, or none.
    fn check_id(&self, open: &OpenTurn, position: usize, question: &Interrupt) -> Result<(), Fault> {
        let (Some(asked), Some(call)) = (open.response.tool_calls().nth(position), open.calls.get(position)) else {
            return Err(format!("there is no call {position}"));
        };
        let session = read_key(&self.id)?;
        let key = key_of_call(&session, open.number, position, call.changed.as_ref().unwrap_or(asked));
        match expected_id(question, &session, &key) {
            Some(expected) => Err(format!(
                "the call or the question was changed after it was asked: the id `{}` would be `{expected}`",
                question.id
            )),
            None => Ok(()),
        }
    }
}

/// An undo puts back what was replaced, so it is valid too.
fn check_replaced(span: &Span) -> Result<(), Fault> {
    span.replaced.iter().try_for_each(|(inner, messages)| {
        if inner.len != messages.len() {
            return Err(format!("a replaced span has {} messages instead of {}", messages.len(), inner.len));
        }
        valid(messages)?;
        check_replaced(inner)
    })
}
