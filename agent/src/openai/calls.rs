//! Tool calls, assembled from pieces.

use serde::Deserialize;
use serde_json::{Map, Value};

use crate::Delta;

/// A tool call, or a piece of it.
#[derive(Deserialize)]
pub(super) struct Call {
    index: Option<u64>,
    id: Option<String>,
    function: Option<Function>,
    /// Data that the server needs back with the call.
    extra_content: Option<Value>,
}

#[derive(Default, Deserialize)]
struct Function {
    name: Option<String>,
    /// A string; some servers send an object instead.
    arguments: Option<Value>,
}

/// The tool calls of a reply so far. The position of a call in the list is the `index` of its [`Delta`]s.
///
/// In the protocol, each piece has an index, and the first piece of a call has the id and the name. Some servers send
/// the index 0 for each call, or no index. Some send no ids, or the same id for several calls. Some repeat the id or
/// the name in each piece, and some send a different id in each piece. The first id of a call is kept.
#[derive(Default)]
pub(super) struct Calls(Vec<OpenCall>);

#[derive(Default)]
struct OpenCall {
    /// The index that the server sent.
    index: Option<u64>,
    id: String,
    name: String,
    arguments: String,
    extra: Option<Value>,
}

/// A call with data that the server needs back.
pub(super) struct CallData<'a> {
    pub(super) position: usize,
    pub(super) name: &'a str,
    pub(super) arguments: &'a str,
    pub(super) extra: &'a Value,
}

impl Calls {
    /// Returns the calls that have data.
    pub(super) fn with_data(&self) -> impl Iterator<Item = CallData<'_>> {
        self.0.iter().enumerate().filter_map(|(position, OpenCall { name, arguments, extra, .. })| {
            Some(CallData { position, name, arguments, extra: extra.as_ref()? })
        })
    }

    /// Adds a call of a whole reply.
    pub(super) fn push_whole(&mut self, call: Call) -> Delta {
        self.append(self.0.len(), OpenCall::from(call))
    }

    /// Adds a piece of a streamed call. `is_first` is `true` for the first piece of a chunk.
    pub(super) fn push_piece(&mut self, piece: Call, is_first: bool) -> Delta {
        let piece = OpenCall::from(piece);
        let position = self.continued(&piece, is_first).unwrap_or(self.0.len());
        self.append(position, piece)
    }

    /// Returns the position of the call that a piece continues, or `None` if the piece begins a call.
    fn continued(&self, piece: &OpenCall, is_first: bool) -> Option<usize> {
        let last = self.0.len().checked_sub(1);
        let position = if piece.index.is_some() {
            self.0.iter().rposition(|call| call.index == piece.index)
        } else if !piece.id.is_empty() {
            let known = self.0.iter().rposition(|call| call.id == piece.id);
            known.or(last.filter(|_| piece.name.is_empty()))
        } else if is_first || piece.name.is_empty() {
            last
        } else {
            // A chunk has at most one piece of each call, so this piece begins another call.
            None
        };
        position.filter(|&position| !piece.begins_after(&self.0[position]))
    }

    fn append(&mut self, position: usize, piece: OpenCall) -> Delta {
        let OpenCall { index, id, name, arguments, extra } = piece;
        if position == self.0.len() {
            self.0.push(OpenCall { index, ..OpenCall::default() });
        }
        let call = &mut self.0[position];
        call.arguments.push_str(&arguments);
        call.extra = extra.or_else(|| call.extra.take());
        Delta::ToolCall { index: position, id: set(&mut call.id, id), name: set(&mut call.name, name), arguments }
    }
}

/// Sets the id or the name of a call, unless the call already has one or `new` is empty. Returns `new` if it was set.
fn set(known: &mut String, new: String) -> Option<String> {
    if new.is_empty() || !known.is_empty() {
        return None;
    }
    known.clone_from(&new);
    Some(new)
}

impl OpenCall {
    /// Returns `true` if this piece begins a new call instead of continuing the given call.
    fn begins_after(&self, call: &Self) -> bool {
        // A call begins with its name. Without a name, even a new id does not begin a call, because some servers make
        // an id for each piece.
        if self.name.is_empty() {
            return false;
        }
        let differ = |new: &str, known: &str| !new.is_empty() && !known.is_empty() && new != known;
        if differ(&self.id, &call.id) || differ(&self.name, &call.name) {
            return true;
        }
        // The arguments of a call are one object. If that object is complete, another object belongs to a new call,
        // even if both pieces have the same name.
        self.arguments.starts_with('{') && is_object(&call.arguments)
    }
}

impl From<Call> for OpenCall {
    fn from(Call { index, id, function, extra_content }: Call) -> Self {
        let Function { name, arguments } = function.unwrap_or_default();
        let arguments = match arguments {
            None | Some(Value::Null) => String::new(),
            Some(Value::String(text)) => text,
            Some(value) => value.to_string(),
        };
        let extra = extra_content.filter(|extra| !extra.is_null());
        Self { index, id: id.unwrap_or_default(), name: name.unwrap_or_default(), arguments, extra }
    }
}

fn is_object(text: &str) -> bool {
    text.trim_end().ends_with('}') && serde_json::from_str::<Map<String, Value>>(text).is_ok()
}
