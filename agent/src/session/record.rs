//! The records of a session: one for each change.
//!
//! An entry is a list of lines. A line has one record, and the id of the session that it is about, unless that is the
//! session of the entry. As JSON:
//!
//! ```json
//! {"began":{"run":0,"id":"0192…"}}
//! {"said":{"run":0,"messages":[{"role":"user","parts":[…]}]}}
//! {"asks":{"run":0,"turn":1,"at":1764412359123}}
//! {"in":"order-17/1/0/ask-3f…","asks":{"run":0,"turn":1,"at":1764412359456}}
//! ```

use std::fmt;
use std::sync::Arc;

use emitree_runtime::{Answer, Interrupt, KeptValue};
use rust_decimal::Decimal;
use serde::de::value::MapAccessDeserializer;
use serde::de::{DeserializeSeed, Error as _, IntoDeserializer, MapAccess, Visitor};
use serde::{Deserialize, Deserializer, Serialize};
use serde_json::{Map, Value};
use uuid::Uuid;

use crate::message::is_false;
use crate::place::action::{CallResult, How};
use crate::session::fold::Conversation;
use crate::{ChatOptions, Message, Part, ToolCall, ToolOutput, ToolResult, Usage};

/// A record, and the session that it is about.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub(crate) struct Line {
    /// The id of a session below an open call. `None` for the session of the entry.
    #[serde(rename = "in", skip_serializing_if = "Option::is_none")]
    pub(crate) session: Option<String>,
    #[serde(flatten)]
    pub(crate) record: Record,
}

/// Reads the record without a copy of its parts, which a derived implementation would make.
impl<'de> Deserialize<'de> for Line {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct ReadsLine;
        impl<'de> Visitor<'de> for ReadsLine {
            type Value = Line;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a record, with `in` before it if it is about another session than that of the entry")
            }

            fn visit_map<A: MapAccess<'de>>(self, mut line: A) -> Result<Line, A::Error> {
                let mut key = line.next_key::<String>()?;
                let mut session = None;
                if key.as_deref() == Some("in") {
                    session = Some(line.next_value()?);
                    key = line.next_key()?;
                }
                let record = Record::deserialize(MapAccessDeserializer::new(FromKey { key, rest: &mut line }))?;
                match line.next_key::<String>()? {
                    None => Ok(Line { session, record }),
                    Some(other) => Err(A::Error::custom(format_args!("`{other}` behind the record"))),
                }
            }
        }
        deserializer.deserialize_map(ReadsLine)
    }
}

/// The rest of a map from a key on that was read.
struct FromKey<'a, A> {
    key: Option<String>,
    rest: &'a mut A,
}

impl<'de, A: MapAccess<'de>> MapAccess<'de> for FromKey<'_, A> {
    type Error = A::Error;

    fn next_key_seed<K: DeserializeSeed<'de>>(&mut self, seed: K) -> Result<Option<K::Value>, A::Error> {
        match self.key.take() {
            Some(key) => seed.deserialize(key.into_deserializer()).map(Some),
            None => Ok(None),
        }
    }

    fn next_value_seed<V: DeserializeSeed<'de>>(&mut self, seed: V) -> Result<V::Value, A::Error> {
        self.rest.next_value_seed(seed)
    }
}

impl Line {
    /// Reads a line of JSON.
    ///
    /// # Errors
    ///
    /// Returns the fault, with its path.
    pub(crate) fn read(line: &str) -> Result<Self, String> {
        let json = &mut serde_json::Deserializer::from_str(line);
        let read = serde_path_to_error::deserialize(&mut *json).map_err(|fault| fault.to_string())?;
        json.end().map_err(|fault| fault.to_string())?;
        Ok(read)
    }
}

impl From<Record> for Line {
    fn from(record: Record) -> Self {
        Self { session: None, record }
    }
}

/// A session has changed.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", deny_unknown_fields)]
pub(crate) enum Record {
    /// The session as a whole: the first record, and each one that takes the place of all records before it.
    Session(Box<Conversation>),
    /// A run begins. A run that resumes takes up what the last run has left; any other run closes it.
    Began {
        run: u32,
        id: Uuid,
        /// The id with which several processes ask for one run.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        once: Option<String>,
        /// The options of the run's input.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        options: Option<Box<ChatOptions>>,
        #[serde(default, skip_serializing_if = "is_false")]
        resumes: bool,
    },
    /// Another attempt of a run begins: the one before is undone, back to `Began` or to the last `Kept`.
    Again { run: u32 },
    /// The state of middleware and the counts are those to which another attempt goes back.
    Kept { run: u32 },
    /// An attempt is over. Its open turn is in the history from now on.
    Left {
        run: u32,
        #[serde(default, skip_serializing_if = "is_false")]
        answered: bool,
    },
    /// A run is over: nothing of it can be undone any more.
    Over {
        run: u32,
        #[serde(default, skip_serializing_if = "is_false")]
        returned: bool,
    },
    /// The end of a run was not stored, so its answer was not returned.
    NotReturned { run: u32 },
    /// Messages enter the history: the input of a run, or those of `Session::extend`.
    Said {
        #[serde(default, skip_serializing_if = "Option::is_none")]
        run: Option<u32>,
        messages: Vec<Arc<Message>>,
        /// The turn if a layer has answered instead of the model: then the last message is the answer.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        turn: Option<TurnAt>,
    },
    /// A hook has replaced a part of the history.
    Rewritten {
        run: u32,
        at: usize,
        removed: usize,
        #[serde(default, skip_serializing_if = "Vec::is_empty")]
        add: Vec<Arc<Message>>,
    },
    /// The answer that a run holds is replaced, because layers have changed it, or because it is withheld.
    Replaced {
        run: u32,
        message: Arc<Message>,
        #[serde(default, skip_serializing_if = "is_false")]
        withheld: bool,
    },
    /// The model is asked: the number of the turn is a part of the call's key.
    Asks {
        run: u32,
        turn: u64,
        /// The time in milliseconds since 1970.
        at: u64,
    },
    /// The model has replied. A reply that is empty may be followed by another one.
    Replied {
        run: u32,
        turn: u64,
        #[serde(default, skip_serializing_if = "Option::is_none")]
        usage: Option<Usage>,
        #[serde(default, skip_serializing_if = "Option::is_none")]
        cost: Option<Decimal>,
    },
    /// The turn of a response begins. `unanswered` is the text of the results if the calls are not made.
    Turn {
        run: u32,
        turn: u64,
        response: Arc<Message>,
        #[serde(default, skip_serializing_if = "Option::is_none")]
        unanswered: Option<String>,
    },
    /// The hooks of `tool.resolve` have seen all calls of a turn.
    Resolved { turn: u64 },
    /// Messages behind the results of an open turn. `answers` if the last one is the answer of the turn.
    Injected {
        turn: u64,
        messages: Vec<Arc<Message>>,
        #[serde(default, skip_serializing_if = "is_false")]
        answers: bool,
    },
    /// A fact about a call of an open turn.
    Call { turn: u64, call: usize, fact: Box<Fact> },
    /// The turn ends: its messages enter the history.
    Placed { turn: u64 },
    /// The run would end with the answer of a turn that is in the history.
    Ends { run: u32, turn: u64 },
    /// A question has its first answer.
    Answered { id: String, answer: Answer },
    /// A message was submitted by a run that hands down these guards.
    Guards { names: Vec<String> },
    /// Workers have taken the session again and again without getting on: a person is asked.
    Stuck { question: Box<Interrupt> },
    /// A message or a value arrives in the inbox. The id is random, so that it arrives once (A27).
    Sent { number: u64, id: Uuid, sent: Input },
    /// A run takes these messages out of the inbox, and adds what hooks have made of them.
    Taken {
        run: u32,
        numbers: Vec<u64>,
        /// Left out if no hook has changed the messages.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        messages: Option<Vec<Arc<Message>>>,
    },
    /// The session is paused. The id is random, so that one pause is taken once.
    Paused { id: Uuid },
    /// A run takes the pause.
    Stopped { run: u32 },
    /// The state of a middleware, by its id. `None` if it has none any more.
    State {
        id: Arc<str>,
        #[serde(default, skip_serializing_if = "Option::is_none")]
        value: Option<Arc<Value>>,
    },
    /// A value of the program.
    Meta { key: String, value: Value },
    /// An agent below an open call has a session. `first` if it begins with so many messages of this session.
    Below {
        turn: u64,
        call: usize,
        id: String,
        #[serde(default, skip_serializing_if = "Option::is_none")]
        first: Option<usize>,
    },
    /// Another session was made of this one.
    Forked { to: String },
}

/// The number of a turn, and the time in milliseconds since 1970.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct TurnAt {
    pub(crate) number: u64,
    pub(crate) at: u64,
}

/// A fact about a call.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", deny_unknown_fields)]
pub(crate) enum Fact {
    /// The request of the turn did not offer the tool.
    NotOffered,
    /// A hook, or a person who has edited it, has changed the call. Questions that are still needed go.
    Changed {
        call: ToolCall,
        /// `true` if a person has: the call passes all gates again, and its result says with which arguments it was made.
        #[serde(default, skip_serializing_if = "is_false")]
        edited: bool,
    },
    /// A gate has let the call pass.
    Passed(String),
    /// Somebody asks about the call, which waits from now on.
    Asked(Asked),
    /// The call keeps a value for its next start, with the question that is asked next.
    Kept(KeptValue),
    /// The call waits for a pause to end, or for the questions of a session below.
    Waits,
    /// A question has to be asked before the call is made. It has an answer if a person has edited the call.
    Needed { asked: Asked, approval: Option<Answer> },
    /// The answer to a question does not fit: the question is open again, and its data says why.
    Unfit(Interrupt),
    /// The code that has asked has read the answer.
    Used(String),
    /// The call begins, and may have had effects from now on.
    Begun {
        /// `true` if the function of the tool is called.
        #[serde(default, skip_serializing_if = "is_false")]
        called: bool,
    },
    /// `Begun` was not stored, so the call was not made.
    NotBegun,
    /// The call has a result that the hooks of `tool.result` have not let pass yet.
    Unchecked,
    /// The run of the agent was aborted during the call.
    Stopped,
    /// The call has a result. Until the end of its turn, another one may take its place.
    Settled(Box<SettledAs>),
}

/// A question about a call, and who asks.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Asked {
    pub(crate) question: Interrupt,
    pub(crate) by: String,
    /// `true` if the function of the tool had been called, so that it may have asked itself.
    #[serde(default, skip_serializing_if = "is_false")]
    pub(crate) in_function: bool,
}

/// How a call has settled.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct SettledAs {
    pub(crate) content: Value,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub(crate) parts: Vec<Part>,
    #[serde(default, skip_serializing_if = "is_false")]
    pub(crate) is_error: bool,
    /// `None` if it was executed as the model wrote it, and has only content and parts.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) how: Option<Box<SettledCall>>,
}

/// How a call has settled. Its result has the content and the parts.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct SettledCall {
    #[serde(default)]
    how: How,
    #[serde(default, skip_serializing_if = "Map::is_empty")]
    details: Map<String, Value>,
    #[serde(default, skip_serializing_if = "is_false")]
    terminate: bool,
    #[serde(default, skip_serializing_if = "is_false")]
    is_answer: bool,
}

impl SettledAs {
    /// Keeps how a call has settled, and the result that the history gets.
    pub(crate) fn of(result: &CallResult, answer: &ToolResult) -> Self {
        let ToolOutput { details, terminate, is_answer, .. } = &result.output;
        let (how, terminate, is_answer) = (result.how, *terminate, *is_answer);
        let is_plain = how == How::Executed && details.is_empty() && !terminate;
        let how = (!is_plain).then(|| Box::new(SettledCall { how, details: details.clone(), terminate, is_answer }));
        Self { content: answer.response.clone(), parts: answer.parts.clone(), is_error: answer.is_error, how }
    }

    /// A call that was not executed, with this text.
    pub(crate) fn skipped(text: &str) -> Self {
        let how = SettledCall { how: How::Skipped, ..SettledCall::default() };
        Self { content: text.into(), parts: Vec::new(), is_error: true, how: Some(Box::new(how)) }
    }
}

impl SettledCall {
    pub(crate) fn into_result(self, call: ToolCall, result: ToolResult) -> CallResult {
        let Self { how, details, terminate, is_answer } = self;
        let ToolResult { response: content, parts, is_error, .. } = result;
        CallResult { call, how, output: ToolOutput { content, parts, details, is_error, terminate, is_answer } }
    }
}

/// What was sent to a session.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", deny_unknown_fields)]
pub(crate) enum Input {
    Steer(Arc<Message>),
    Interject(Arc<Message>),
    FollowUp(Arc<Message>),
    Value { to: Arc<str>, value: Value },
}

impl Input {
    pub(crate) const fn message(&self) -> Option<&Arc<Message>> {
        match self {
            Self::Steer(message) | Self::Interject(message) | Self::FollowUp(message) => Some(message),
            Self::Value { .. } => None,
        }
    }
}

impl Record {
    /// Returns `true` if the session gets on: something has ended, or has got its answer.
    pub(crate) fn gets_on(&self) -> bool {
        match self {
            Self::Turn { .. } | Self::Placed { .. } | Self::Answered { .. } => true,
            Self::Call { fact, .. } => matches!(**fact, Fact::Settled(_)),
            _ => false,
        }
    }

    /// Returns `true` for inputs: they stay if another process has changed the session, and all else is read again.
    pub(crate) const fn is_input(&self) -> bool {
        matches!(self, Self::Sent { .. } | Self::Meta { .. } | Self::Paused { .. } | Self::Forked { .. })
    }
}
