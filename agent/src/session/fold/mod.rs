//! A session as the fold of its records: pure, without locks and IO.
//!
//! [`Conversation::apply`] is the only code that changes a session. A record that does not fit is refused, and changes
//! nothing. So what is stored is the records, and a session as it would be if its runs ended now is the fold with one
//! more record for each run.

mod check;
pub(crate) mod runs;
pub(crate) mod search;
mod spans;
#[cfg(test)]
mod tests;
pub(crate) mod turn;

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::Arc;

use emitree_runtime::{Answer, Interrupt};
use serde::de::Error as _;
use serde::{Deserialize, Deserializer, Serialize};
use serde_json::{Map, Value};
use uuid::Uuid;

use crate::Message;
use crate::message::history::check;
use crate::session::fold::runs::{AskedOnce, Run, valid_response};
use crate::session::fold::spans::Span;
use crate::session::fold::turn::TurnRow;
use crate::session::record::{Input, Line, Record, TurnAt};

/// The format of the records.
pub(crate) const FORMAT: u32 = 1;

/// The number of turns, and of inputs that were taken, that a session remembers.
const REMEMBERED: usize = 1_000;

/// The maximum number of messages that wait.
pub(crate) const CAPACITY: usize = 1_000;

/// The reason why a record does not fit.
pub(crate) type Fault = String;

/// A session.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Conversation {
    #[serde(deserialize_with = "format")]
    pub(crate) format: u32,
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub(crate) id: String,
    /// The session that this session was made of.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) from: Option<Fork>,
    /// The last session that was made of this one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) forked: Option<Fork>,
    /// The number of turns so far, those of discarded attempts included.
    #[serde(default)]
    pub(crate) turns: u64,
    /// The last turns.
    #[serde(default, skip_serializing_if = "VecDeque::is_empty")]
    pub(crate) table: VecDeque<TurnRow>,
    /// The last turn that had ended when an answer was withheld: earlier points of the session are forgotten.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) withheld: Option<u64>,
    /// The number of runs so far.
    #[serde(default)]
    pub(crate) begun: u32,
    #[serde(default)]
    pub(crate) messages: Arc<Vec<Arc<Message>>>,
    /// Counts the changes of messages that are in the history.
    #[serde(skip)]
    pub(crate) edits: Edits,
    /// What the messages belong to, in order: each span is valid by itself. A session that was written by hand has
    /// none: then its messages are one span.
    #[serde(default)]
    pub(crate) spans: Vec<Span>,
    /// The runs that are not over, the one that was the last to stop, and the one whose answer was the last.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub(crate) runs: Vec<Run>,
    /// The run whose place the next one may take.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) stopped: Option<u32>,
    /// The last runs that several processes could ask for, and that are forgotten, or have returned their answer.
    #[serde(default, skip_serializing_if = "VecDeque::is_empty")]
    pub(crate) once: VecDeque<AskedOnce>,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub(crate) inbox: Vec<Waiting>,
    /// The number of messages that the inbox has received.
    #[serde(default)]
    pub(crate) sent: u64,
    /// The id of the pause that no run has taken.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) paused: Option<Uuid>,
    /// The question of workers that do not get on, until a run begins.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) stuck: Option<Box<Stuck>>,
    /// The guards of the runs that have submitted messages: workers go on only with an agent that has them.
    #[serde(default, skip_serializing_if = "BTreeSet::is_empty")]
    pub(crate) guards: BTreeSet<String>,
    /// The ids of the last inputs that were taken for good.
    #[serde(default, skip_serializing_if = "VecDeque::is_empty")]
    pub(crate) taken: VecDeque<Uuid>,
    /// The state of each middleware, by the middleware's id.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub(crate) state: BTreeMap<Arc<str>, Arc<Value>>,
    #[serde(default, skip_serializing_if = "Map::is_empty")]
    pub(crate) meta: Map<String, Value>,
    /// The sessions of the agents below open calls, at any depth, by their ids. Only the session of an entry has them.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub(crate) below: BTreeMap<String, Self>,
}

/// A number that belongs to this process, and not to the session.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Edits(pub(crate) u64);

impl PartialEq for Edits {
    fn eq(&self, _: &Self) -> bool {
        true
    }
}

/// Reads the format, which comes first: another format may have other fields.
fn format<'de, D: Deserializer<'de>>(deserializer: D) -> Result<u32, D::Error> {
    let format = u32::deserialize(deserializer)?;
    if format == FORMAT {
        return Ok(format);
    }
    Err(D::Error::custom(format_args!(
        "the session is stored in the format {format}, but only the format {FORMAT} can be read"
    )))
}

/// The other session of a fork, and the last turn that both have.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Fork {
    pub(crate) session: String,
    pub(crate) turn: u64,
}

/// The question of workers that do not get on with a session, and its answer.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Stuck {
    pub(crate) question: Interrupt,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) answer: Option<Answer>,
}

/// A message that waits.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Waiting {
    pub(crate) number: u64,
    pub(crate) id: Uuid,
    pub(crate) sent: Input,
}

impl Conversation {
    pub(crate) fn new(id: &str) -> Self {
        Self { format: FORMAT, id: id.to_owned(), ..Self::default() }
    }

    /// Makes a session that begins with messages, which are valid.
    pub(crate) fn of_messages(id: &str, messages: Vec<Arc<Message>>) -> Self {
        let mut session = Self::new(id);
        if !messages.is_empty() {
            session.push(messages, None, None);
        }
        session
    }

    /// Folds lines of JSON. The first one is a [`Record::Session`].
    ///
    /// # Errors
    ///
    /// Returns the number of the first record that cannot be read, or that does not fit, and its fault.
    pub(crate) fn read<'a>(lines: impl IntoIterator<Item = &'a str>) -> Result<Self, Fault> {
        let mut conversation = Self::default();
        for (number, line) in lines.into_iter().enumerate() {
            let at = |fault: Fault| format!("record {number}: {fault}");
            let read = Line::read(line).map_err(at)?;
            if number == 0 && !matches!(read.record, Record::Session(_)) {
                return Err(at("it is not `session`".to_owned()));
            }
            conversation.apply(read).map_err(at)?;
        }
        Ok(conversation)
    }

    /// Changes the session, or one of the sessions below its open calls.
    ///
    /// # Errors
    ///
    /// Returns an error, and changes nothing, if the record does not fit.
    pub(crate) fn apply(&mut self, line: impl Into<Line>) -> Result<(), Fault> {
        let Line { session, record } = line.into();
        self.fold(session.as_deref(), record).map(drop)
    }

    /// Changes the session as [`apply`](Self::apply) does. Returns the sessions below calls that are no longer open.
    pub(crate) fn fold(&mut self, session: Option<&str>, record: Record) -> Result<Vec<Self>, Fault> {
        let closes = match (session, record) {
            (None, Record::Session(whole)) => {
                *self = whole.checked()?;
                false
            }
            (session, Record::Below { turn, call, id, first }) => {
                self.begin_below(session, turn, call, id, first)?;
                false
            }
            (None, record) if self.below.is_empty() => {
                self.change(record)?;
                false
            }
            (None, record) => self.closes(record)?,
            (Some(id), record) => {
                let below = self.below.get_mut(id).ok_or_else(|| format!("there is no session `{id}`"))?;
                below.closes(record)?
            }
        };
        Ok(if closes { self.forget_below() } else { Vec::new() })
    }

    /// Applies a record about this session. Returns `true` if it has closed a call that has sessions below: most do not.
    fn closes(&mut self, record: Record) -> Result<bool, Fault> {
        let sessions = self.sessions_of_calls().count();
        self.change(record)?;
        Ok(sessions > self.sessions_of_calls().count())
    }

    /// Applies a record about this session.
    fn change(&mut self, record: Record) -> Result<(), Fault> {
        match record {
            Record::Session(_) | Record::Below { .. } => Err("it is about another session".to_owned()),
            Record::Began { run, id, once, options, resumes } => self.begin(run, id, once, options, resumes),
            Record::Again { run } => self.again(run),
            Record::Kept { run } => self.keep(run),
            Record::Left { run, answered } => self.leave(run, answered),
            Record::Over { run, returned } => self.end(run, returned),
            Record::NotReturned { run } => self.take_back(run),
            Record::Said { run, messages, turn } => self.say(run, messages, turn),
            Record::Rewritten { run, at, removed, add } => self.rewrite(run, at, removed, add),
            Record::Replaced { run, message, withheld } => self.replace_answer(run, message, withheld),
            Record::Asks { run, turn, at } => self.ask(run, turn, at),
            Record::Replied { run, turn, usage, cost } => self.count_reply(run, turn, usage, cost),
            Record::Turn { run, turn, response, unanswered } => self.respond(run, turn, response, unanswered),
            Record::Resolved { turn } => self.turn(turn).map(|open| open.is_resolved = true),
            Record::Injected { turn, messages, answers } => self.inject(turn, messages, answers),
            Record::Call { turn, call, fact } => self.note(turn, call, *fact),
            Record::Placed { turn } => self.end_turn(turn),
            Record::Ends { run, turn } => self.hold(run, turn),
            Record::Answered { id, answer } => self.answer(&id, answer),
            Record::Sent { number, id, sent } => self.send(number, id, sent),
            Record::Taken { run, numbers, messages } => self.take(run, &numbers, messages),
            Record::Guards { names } => {
                self.guards.extend(names);
                Ok(())
            }
            Record::Stuck { question } => {
                self.stuck = Some(Box::new(Stuck { question: *question, answer: None }));
                Ok(())
            }
            Record::Paused { id } => self.pause(id),
            Record::Stopped { run } => self.take_pause(run),
            Record::State { id, value } => {
                match value {
                    Some(value) => _ = self.state.insert(id, value),
                    None => _ = self.state.remove(&id),
                }
                Ok(())
            }
            Record::Meta { key, value } => {
                self.meta.insert(key, value);
                Ok(())
            }
            Record::Forked { to } => {
                self.forked = Some(Fork { session: to, turn: self.turns });
                Ok(())
            }
        }
    }

    fn say(&mut self, run: Option<u32>, messages: Vec<Arc<Message>>, turn: Option<TurnAt>) -> Result<(), Fault> {
        valid(&messages)?;
        match (run, turn) {
            (None, None) => {}
            (Some(run), None) => self.live(run)?.answer = None,
            (Some(run), Some(turn)) => {
                valid_response(messages.last().ok_or("there is no answer")?)?;
                self.answer_for(run, turn, messages.len())?;
            }
            (None, Some(_)) => return Err("a layer answers in a run".to_owned()),
        }
        self.push(messages, run, turn.map(|turn| turn.number));
        self.spans.last_mut().into_iter().for_each(|span| span.ends = turn.is_some());
        Ok(())
    }

    fn send(&mut self, number: u64, id: Uuid, sent: Input) -> Result<(), Fault> {
        if number != self.sent {
            return Err(format!("the message {number} is not the next one, {}", self.sent));
        }
        if self.inbox.len() >= CAPACITY {
            return Err(format!("{CAPACITY} messages wait, which is the limit"));
        }
        if self.knows(id) {
            return Err(format!("the input `{id}` is known"));
        }
        if let Some(message) = sent.message() {
            valid(std::slice::from_ref(message))?;
        }
        self.sent += 1;
        self.inbox.push(Waiting { number, id, sent });
        Ok(())
    }

    /// Takes messages out of the inbox. Until the run is over, another attempt puts them back.
    fn take(&mut self, run: u32, numbers: &[u64], messages: Option<Vec<Arc<Message>>>) -> Result<(), Fault> {
        self.live(run)?;
        messages.as_deref().map_or(Ok(()), valid)?;
        if let Some(number) = numbers.iter().find(|number| !self.inbox.iter().any(|one| one.number == **number)) {
            return Err(format!("the message {number} is not in the inbox"));
        }
        let taken: Vec<_> = self.inbox.extract_if(.., |waiting| numbers.contains(&waiting.number)).collect();
        let as_sent = || taken.iter().filter_map(|waiting| waiting.sent.message().cloned()).collect();
        let messages = messages.unwrap_or_else(as_sent);
        let live = self.live(run)?;
        live.answer = None;
        live.undo.get_or_insert_default().taken.extend(taken);
        if !messages.is_empty() {
            self.push(messages, Some(run), None);
        }
        Ok(())
    }

    fn pause(&mut self, id: Uuid) -> Result<(), Fault> {
        if self.paused.is_some() || self.knows(id) {
            return Err("the session is paused, or the pause was taken".to_owned());
        }
        self.paused = Some(id);
        Ok(())
    }

    fn take_pause(&mut self, run: u32) -> Result<(), Fault> {
        self.live(run)?;
        let pause = self.paused.take().ok_or("there is no pause")?;
        self.live(run)?.undo.get_or_insert_default().pause = Some(pause);
        Ok(())
    }

    /// Returns `true` if an input has arrived.
    pub(crate) fn knows(&self, id: Uuid) -> bool {
        let undo = || self.runs.iter().filter_map(|run| run.undo.as_ref());
        let is_taken = undo().any(|undo| undo.pause == Some(id) || undo.taken.iter().any(|taken| taken.id == id));
        is_taken
            || self.paused == Some(id)
            || self.taken.contains(&id)
            || self.inbox.iter().any(|waiting| waiting.id == id)
    }

    /// Inputs were taken for good.
    fn remember_taken(&mut self, ids: impl IntoIterator<Item = Uuid>) {
        self.taken.extend(ids);
        let forgotten = self.taken.len().saturating_sub(REMEMBERED);
        self.taken.drain(..forgotten);
    }

    /// Makes a session of an agent below an open call.
    fn begin_below(
        &mut self,
        above: Option<&str>,
        turn: u64,
        call: usize,
        id: String,
        first: Option<usize>,
    ) -> Result<(), Fault> {
        if id == self.id || self.below.contains_key(&id) {
            return Err(format!("there is a session `{id}`"));
        }
        let above = match above {
            None => &mut *self,
            Some(above) => self.below.get_mut(above).ok_or_else(|| format!("there is no session `{above}`"))?,
        };
        let messages = match first {
            Some(first) => above.messages.get(..first).filter(|_| above.is_boundary(first)),
            None => Some(&[][..]),
        };
        let messages = messages.ok_or("the session above has no such messages")?.to_vec();
        above.open_call(turn, call)?.sessions.insert(id.clone());
        let session = Self::of_messages(&id, messages);
        self.below.insert(id, session);
        Ok(())
    }

    /// Forgets the sessions below calls that are no longer open, and returns them.
    fn forget_below(&mut self) -> Vec<Self> {
        if self.below.is_empty() {
            return Vec::new();
        }
        let kept = self.ids_below();
        self.below.extract_if(.., |id, _| !kept.contains(id)).map(|(_, session)| session).collect()
    }

    /// Returns the ids of the sessions below open calls, at any depth.
    fn ids_below(&self) -> BTreeSet<String> {
        let mut kept = BTreeSet::new();
        let mut ids: Vec<_> = self.sessions_of_calls().cloned().collect();
        while let Some(id) = ids.pop() {
            let below = self.below.get(&id).filter(|_| !kept.contains(&id));
            ids.extend(below.into_iter().flat_map(Self::sessions_of_calls).cloned());
            kept.insert(id);
        }
        kept
    }

    fn sessions_of_calls(&self) -> impl Iterator<Item = &String> {
        let calls = self.runs.iter().filter_map(|run| run.open.as_ref()).flat_map(|open| &open.calls);
        calls.flat_map(|call| &call.sessions)
    }

    /// Returns a session below an open call as a session by itself, with those below its own calls.
    pub(crate) fn below(&self, id: &str) -> Option<Self> {
        let mut session = self.below.get(id)?.clone();
        session.below.clone_from(&self.below);
        session.forget_below();
        Some(session)
    }

    /// Returns the session at this point as another session, with keys of its own. What waits, runs and open calls stay
    /// behind.
    pub(crate) fn fork(&self, id: &str) -> Self {
        let mut fork = self.as_if_ended();
        for run in std::mem::take(&mut fork.runs) {
            run.open.iter().for_each(|open| fork.close(open));
        }
        let from = Some(Fork { session: self.id.clone(), turn: self.turns });
        let empty = Self { from, turns: fork.turns, begun: fork.begun, ..Self::new(id) };
        let Self { messages, spans, state, meta, table, withheld, .. } = fork;
        Self { messages, spans, state, meta, table, withheld, ..empty }
    }
}

/// Checks that messages are valid by themselves.
fn valid(messages: &[Arc<Message>]) -> Result<(), Fault> {
    check(messages).map_err(|fault| fault.to_string())
}
