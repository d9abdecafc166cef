//! Stopped runs: the part of a run without an answer that its session keeps, so that another run can go on.

use std::collections::BTreeMap;
use std::sync::Arc;

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};
use uuid::Uuid;

use crate::message::history::History;
use crate::message::is_false;
use crate::place::action::{CallResult, How};
use crate::session::Session;
use crate::session::questions::Question;
use crate::session::turn_calls::Placed;
use crate::{ChatOptions, Message, ToolCall, ToolOutput, ToolResult, Turn};

/// A run that has ended without an answer.
#[derive(Clone, Debug)]
pub(crate) struct Stopped {
    /// The id of the run.
    pub(crate) run: Uuid,
    pub(crate) turn: Turn,
    /// `true` if the run was about to call the model, or was waiting for its response.
    pub(crate) asks: bool,
    /// The number of the turn in the session whose model call had begun, without a response.
    pub(super) calling: Option<u64>,
    /// The options of the run's input.
    pub(crate) options: ChatOptions,
    /// The turn whose calls have not all settled. `None` if the run ended between two turns.
    pub(super) open: Option<StoppedTurn>,
    /// The answer of the run, if layers and output functions had not returned it.
    pub(super) answer: Option<Unreturned>,
}

/// An answer that its run has not returned yet.
#[derive(Clone, Debug)]
pub(crate) enum Unreturned {
    /// The message, which is not in the history.
    Message(Arc<Message>),
    /// The answer is the last response in the history, because it has tool calls.
    InHistory,
}

impl Unreturned {
    /// Takes an answer out of a history. An answer with calls stays there, because the calls have results. Returns `None`
    /// if the history does not have it.
    pub(super) fn take(answer: &Arc<Message>, history: &mut History) -> Option<Self> {
        let at = history.messages().iter().rposition(|message| Arc::ptr_eq(message, answer))?;
        if answer.tool_calls().next().is_some() {
            return Some(Self::InHistory);
        }
        Some(Self::Message(Arc::make_mut(&mut history.0).remove(at)))
    }
}

impl Stopped {
    /// Takes the place of an earlier run. Returns the earlier run if its open turn has to be closed. A run that stopped
    /// between two turns leaves the open turn of another run as it is.
    pub(super) fn take_place_of(self, place: &mut Option<Self>) -> Option<Self> {
        match place {
            Some(older) if self.open.is_none() && older.open.is_some() => None,
            _ => place.replace(self).filter(|older| older.open.is_some()),
        }
    }

    /// Calls a function with each open call, in order, until it returns a value.
    pub(super) fn change_open_calls<T>(&mut self, change: &mut impl FnMut(&mut OpenCall) -> Option<T>) -> Option<T> {
        self.open.as_mut()?.calls.iter_mut().find_map(|call| match call {
            StoppedCall::Open(open) => change(open),
            StoppedCall::Settled(_) => None,
        })
    }

    pub(super) fn close(self, history: &mut History) {
        if let Some(open) = self.open {
            open.close(history);
        }
    }

    /// Returns `true` unless the messages of its turn are no longer in the history.
    pub(super) fn is_placed(&self, history: &History) -> bool {
        self.open.as_ref().is_none_or(|open| open.position(history).is_some())
    }
}

/// A turn whose messages are in the history, and whose calls have not all settled.
#[derive(Clone, Debug)]
pub(super) struct StoppedTurn {
    /// The number of the turn in its session.
    pub(super) number: u64,
    pub(super) response: Arc<Message>,
    pub(super) placed: Placed,
    /// `true` once the hooks of `tool.resolve` have seen all calls.
    pub(super) is_resolved: bool,
    /// By position.
    pub(super) calls: Vec<StoppedCall>,
}

impl StoppedTurn {
    /// Returns the position of the response in a history, unless a message of the turn was rewritten.
    pub(super) fn position(&self, history: &History) -> Option<usize> {
        self.placed.position(&self.response, history)
    }

    /// Closes the turn: its calls keep their results, which say so if a question was not answered, or its answer not used.
    pub(super) fn close(self, history: &mut History) {
        let Some(at) = self.position(history) else { return };
        let results = &mut Arc::make_mut(&mut history.0)[at + 1..];
        for (call, result) in self.calls.iter().zip(results) {
            let StoppedCall::Open(open) = call else { continue };
            let id = result.tool_results().next().map(|before| before.id.clone());
            if let (Some(id), Some(text)) = (id, open.closes()) {
                *result = Arc::new(Message::tool([ToolResult::error(id, text)]));
            }
        }
    }
}

/// A call of a turn that was left open.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum StoppedCall {
    Settled(Box<SettledCall>),
    Open(Box<OpenCall>),
}

/// How a call has settled. The history has its content.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub(crate) struct SettledCall {
    #[serde(default)]
    how: How,
    /// The call, if hooks have changed it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    call: Option<ToolCall>,
    #[serde(default, skip_serializing_if = "Map::is_empty")]
    details: Map<String, Value>,
    #[serde(default, skip_serializing_if = "is_false")]
    terminate: bool,
    #[serde(default, skip_serializing_if = "is_false")]
    is_answer: bool,
}

impl SettledCall {
    /// Returns `None` if the call was executed as the model wrote it, and has only content.
    pub(crate) fn of(result: &CallResult, changed: Option<ToolCall>) -> Option<Box<Self>> {
        let ToolOutput { details, terminate, is_answer, .. } = &result.output;
        let (how, terminate, is_answer) = (result.how, *terminate, *is_answer);
        let is_plain = how == How::Executed && changed.is_none() && details.is_empty() && !terminate;
        (!is_plain).then(|| Box::new(Self { how, call: changed, details: details.clone(), terminate, is_answer }))
    }

    pub(crate) fn into_result(self, asked: &ToolCall, result: ToolResult) -> CallResult {
        let Self { how, call, details, terminate, is_answer } = self;
        let ToolResult { response: content, is_error, .. } = result;
        let output = ToolOutput { content, details, is_error, terminate, is_answer };
        CallResult { call: call.unwrap_or_else(|| asked.clone()), how, output }
    }
}

/// A call that has not settled, with all facts that a resume needs.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub(crate) struct OpenCall {
    /// The call as hooks left it, if they have changed it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) call: Option<ToolCall>,
    /// `true` if the request of the turn did not offer the tool.
    #[serde(default, skip_serializing_if = "is_false")]
    pub(crate) not_offered: bool,
    /// The gates that have let the call pass.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub(crate) passed: Vec<String>,
    /// `true` if the call may have had effects.
    #[serde(default, skip_serializing_if = "is_false")]
    pub(crate) has_begun: bool,
    /// The questions that have interrupted the call, in order.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub(crate) questions: Vec<Question>,
    /// `true` if a person has edited the arguments, so that the result says with which arguments it was executed.
    #[serde(default, skip_serializing_if = "is_false")]
    pub(crate) is_edited: bool,
    /// The sessions of the agents that the call has run, by their keys.
    #[serde(skip)]
    pub(crate) sessions: BTreeMap<String, Session>,
    /// The keys of these sessions, in the stored form: sessions in one another are a list there.
    #[serde(default, rename = "sessions", skip_serializing_if = "Vec::is_empty")]
    pub(super) below: Vec<String>,
}

impl OpenCall {
    /// Returns the text of the result if the call is closed because another run begins.
    fn closes(&self) -> Option<String> {
        let Question { question, answer, .. } = self.questions.last().filter(|_| !self.has_begun)?;
        Some(match answer {
            None => format!("not executed: the question `{}` was not answered", question.kind),
            Some(_) => format!("not executed: the answer to `{}` came, but the run was not resumed", question.kind),
        })
    }
}
