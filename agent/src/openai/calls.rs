//! Tool calls, assembled from pieces.

use std::collections::{HashMap, HashSet};

use serde::Deserialize;
use serde_json::{Map, Value};

use crate::Delta;
use crate::openai::scalar;

/// A tool call, or a piece of it.
#[derive(Deserialize)]
pub(super) struct Call {
    index: Option<u64>,
    #[serde(default, deserialize_with = "scalar::text")]
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

/// The tool calls of a reply so far, in the order of their first pieces. The key of a call is the `index` of its
/// [`Delta`]s, and determines its place in the message: it is the server's index, or the next free number if the index
/// is missing or belongs to an earlier call.
///
/// In the protocol, each piece has an index, and the first piece of a call has the id and the name. Some servers send
/// the index 0 for each call, or no index. Some send no ids, or the same id for several calls. Some repeat the id or
/// the name in each piece, and some send a different id in each piece. The first id of a call is kept.
#[derive(Default)]
pub(super) struct Calls {
    calls: Vec<OpenCall>,
    /// The last call with each index and with each id, by position. A search through all calls for each piece would
    /// cost quadratic time.
    by_index: HashMap<u64, usize>,
    by_id: HashMap<String, usize>,
    keys: HashSet<usize>,
    /// The number after the largest key.
    next_key: usize,
}

/// The largest index of a server that becomes a key. A larger index is replaced by the next free number.
const MAX_KEY: u64 = 1 << 30;

#[derive(Default)]
struct OpenCall {
    /// The index that the server sent.
    index: Option<u64>,
    key: usize,
    id: String,
    name: String,
    arguments: String,
    extra: Option<Value>,
}

/// A call with data that the server needs back.
pub(super) struct CallData<'a> {
    pub(super) key: usize,
    pub(super) name: &'a str,
    pub(super) arguments: &'a str,
    pub(super) extra: &'a Value,
}

impl Calls {
    /// Returns the calls that have data.
    pub(super) fn with_data(&self) -> impl Iterator<Item = CallData<'_>> {
        self.calls.iter().filter_map(|OpenCall { key, name, arguments, extra, .. }| {
            Some(CallData { key: *key, name, arguments, extra: extra.as_ref()? })
        })
    }

    /// Adds a call of a whole reply.
    pub(super) fn push_whole(&mut self, call: Call) -> Delta {
        self.append(self.calls.len(), OpenCall::from(call))
    }

    /// Adds a piece of a streamed call. `is_first` is `true` for the first piece of a chunk.
    pub(super) fn push_piece(&mut self, piece: Call, is_first: bool) -> Delta {
        let piece = OpenCall::from(piece);
        let position = self.continued(&piece, is_first).unwrap_or(self.calls.len());
        self.append(position, piece)
    }

    /// Returns the position of the call that a piece continues, or `None` if the piece begins a call.
    fn continued(&self, piece: &OpenCall, is_first: bool) -> Option<usize> {
        let last = self.calls.len().checked_sub(1);
        let position = if let Some(index) = piece.index {
            self.by_index.get(&index).copied()
        } else if !piece.id.is_empty() {
            let known = self.by_id.get(&piece.id).copied();
            known.or(last.filter(|_| piece.name.is_empty()))
        } else if is_first || piece.name.is_empty() {
            last
        } else {
            // A chunk has at most one piece of each call, so this piece begins another call.
            None
        };
        position.filter(|&position| !piece.begins_after(&self.calls[position]))
    }

    fn append(&mut self, position: usize, piece: OpenCall) -> Delta {
        let OpenCall { index, key: _, id, name, arguments, extra } = piece;
        if position == self.calls.len() {
            let key = self.new_key(index);
            self.by_index.extend(index.map(|index| (index, position)));
            self.calls.push(OpenCall { index, key, ..OpenCall::default() });
        }
        let call = &mut self.calls[position];
        if call.id.is_empty() && !id.is_empty() {
            // If several calls have this id, the piece continues the last of them.
            let last = self.by_id.entry(id.clone()).or_insert(position);
            *last = position.max(*last);
        }
        call.arguments.push_str(&arguments);
        call.extra = extra.or_else(|| call.extra.take());
        Delta::ToolCall { index: call.key, id: set(&mut call.id, id), name: set(&mut call.name, name), arguments }
    }

    /// Returns the key of a new call, which no other call has.
    fn new_key(&mut self, index: Option<u64>) -> usize {
        let index = index.filter(|index| *index <= MAX_KEY).and_then(|index| usize::try_from(index).ok());
        let key = index.filter(|key| !self.keys.contains(key)).unwrap_or(self.next_key);
        self.next_key = self.next_key.max(key + 1);
        self.keys.insert(key);
        key
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
        Self { index, key: 0, id: id.unwrap_or_default(), name: name.unwrap_or_default(), arguments, extra }
    }
}

fn is_object(text: &str) -> bool {
    text.trim_end().ends_with('}') && serde_json::from_str::<Map<String, Value>>(text).is_ok()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn keys(pieces: impl IntoIterator<Item = Call>) -> Vec<usize> {
        let mut calls = Calls::default();
        let deltas = pieces.into_iter().map(|piece| calls.push_piece(piece, true));
        let key = |delta| if let Delta::ToolCall { index, .. } = delta { index } else { usize::MAX };
        deltas.map(key).collect()
    }

    #[test]
    fn the_key_of_a_call_is_its_index_unless_the_index_is_missing_taken_or_huge() {
        let call = |index: Value, id: &str| json!({"index": index, "id": id, "function": {"name": "t"}});
        let table = [
            (vec![call(json!(1), "b"), call(json!(0), "a"), call(json!(1), "b")], vec![1, 0, 1]),
            (vec![call(json!(0), "a"), call(json!(0), "b"), call(json!(0), "c")], vec![0, 1, 2]),
            (vec![call(json!(null), "a"), call(json!(null), "b"), call(json!(null), "a")], vec![0, 1, 0]),
            (vec![call(json!(7), "a"), call(json!(u64::MAX), "b"), call(json!(null), "c")], vec![7, 8, 9]),
            (vec![call(json!(MAX_KEY), "a"), call(json!(MAX_KEY), "b")], vec![1 << 30, (1 << 30) + 1]),
        ];
        for (pieces, expected) in table {
            let calls = pieces.iter().map(|piece| Call::deserialize(piece).expect("a piece of a call"));
            assert_eq!(keys(calls), expected, "{pieces:?}");
        }
    }

    #[test]
    fn many_calls_cost_linear_time() {
        // With quadratic time, this test is terminated because it takes too long.
        const CALLS: u64 = 200_000;
        let call = |index, id| Call {
            index,
            id,
            function: Some(Function { name: Some("t".to_owned()), arguments: None }),
            extra_content: None,
        };
        let by_index = keys((0..CALLS).map(|i| call(Some(i), None)));
        let by_id = keys((0..CALLS).map(|i| call(None, Some(i.to_string()))));
        assert_eq!((by_index.len() as u64, by_index == by_id), (CALLS, true));
    }
}
