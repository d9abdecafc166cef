//! Strings in JSON values, and their paths.
//!
//! Of a `data:` URI in a part of a message, only the head is a string to search: its bytes are an image or a file, which
//! look like secrets. A part is recognized by its place alone, because a model or a tool can write an object that looks
//! like one: an item of a list `parts`, in the messages of an agent or a model or in the output of a tool, and not inside
//! of a member in which they put JSON of their own.
#![allow(dead_code, reason = "each middleware uses its own part of this")]

use std::fmt;

use emitree_emitter::json::check_depth;
use emitree_emitter::media::data_head;
use emitree_runtime::{Error, Result};
use serde_json::{Map, Value};

/// The path of a value. It is displayed as a JSON pointer (RFC 6901), and allocates nothing until it is displayed.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Path<'p> {
    Root,
    /// The root of a value with messages. Displayed as the root.
    Messages,
    /// The root of a tool's output, or of an event of a tool's run. Displayed as the root.
    OfTool,
    Key(&'p Self, &'p str),
    Index(&'p Self, usize),
}

/// The members in which models, tools and programs put any JSON.
const ANY_JSON: [&str; 8] = ["arguments", "content", "context", "data", "details", "metadata", "response", "value"];

impl Path<'_> {
    /// Returns the root of an input, an output, or an event of a run.
    pub(crate) fn root_of(kind: &str, is_input: bool) -> Self {
        match kind {
            "Agent" | "ChatModel" => Self::Messages,
            // The input is what a model wrote.
            "Tool" if !is_input => Self::OfTool,
            _ => Self::Root,
        }
    }

    /// Returns `true` for the place of a part of a message or of a result.
    fn is_part(&self) -> bool {
        let Self::Index(Self::Key(above, "parts"), _) = self else { return false };
        let mut at = *above;
        let mut is_in_input = false;
        loop {
            at = match at {
                Self::Root => return false,
                Self::Messages => return true,
                Self::OfTool => return !is_in_input,
                Self::Key(_, key) if ANY_JSON.contains(key) => return false,
                Self::Key(above, key) => {
                    is_in_input |= *key == "input";
                    above
                }
                Self::Index(above, _) => above,
            };
        }
    }

    /// Returns the head of the `data:` URI if an object at this place is a part. It is all that is searched of the URI.
    fn head_of_part<'v>(&self, object: &'v Map<String, Value>) -> Option<&'v str> {
        let head = object.get("uri")?.as_str().and_then(data_head)?;
        (object.get("type")? == "uri" && self.is_part()).then_some(head)
    }
}

impl fmt::Display for Path<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Root | Self::Messages | Self::OfTool => Ok(()),
            Self::Key(above, key) => write!(f, "{above}/{}", key.replace('~', "~0").replace('/', "~1")),
            Self::Index(above, index) => write!(f, "{above}/{index}"),
        }
    }
}

/// Denies a value that is nested so deep that recursion into it could overflow the stack (M5).
pub(crate) fn deny_deep(by: &str, what: &str, value: &Value) -> Result<()> {
    check_depth(value).map_err(|error| Error::denied(by, format!("the {what} cannot be searched: {error}")))
}

/// Calls a function with each string and its path, in order. Keys are left out.
pub(crate) fn strings<'v>(value: &'v Value, at: &Path<'_>, see: &mut impl FnMut(&Path<'_>, &'v str)) {
    match value {
        Value::String(text) => see(at, text),
        Value::Array(items) => items.iter().enumerate().for_each(|(i, item)| strings(item, &Path::Index(at, i), see)),
        Value::Object(members) => {
            let head = at.head_of_part(members);
            for (key, member) in members {
                match head {
                    Some(head) if key == "uri" => see(&Path::Key(at, key), head),
                    _ => strings(member, &Path::Key(at, key), see),
                }
            }
        }
        Value::Null | Value::Bool(_) | Value::Number(_) => {}
    }
}

/// Returns all strings with their JSON pointers. Keys are left out.
pub(crate) fn texts<'v>(value: &'v Value, root: &Path<'_>) -> Vec<(String, &'v str)> {
    let mut texts = Vec::new();
    strings(value, root, &mut |at, text| texts.push((at.to_string(), text)));
    texts
}

/// Calls a function that may change each string, in order. Keys are left out.
pub(crate) fn strings_mut(value: &mut Value, at: &Path<'_>, change: &mut impl FnMut(&Path<'_>, &mut String)) {
    match value {
        Value::String(text) => change(at, text),
        Value::Array(items) => {
            items.iter_mut().enumerate().for_each(|(i, item)| strings_mut(item, &Path::Index(at, i), change));
        }
        Value::Object(members) => {
            let head = at.head_of_part(members).map(str::to_owned);
            for (key, member) in members {
                let at = Path::Key(at, key);
                match (member, &head) {
                    (Value::String(uri), Some(head)) if key == "uri" => {
                        let mut changed = head.clone();
                        change(&at, &mut changed);
                        uri.replace_range(..head.len(), &changed);
                    }
                    (member, _) => strings_mut(member, &at, change),
                }
            }
        }
        Value::Null | Value::Bool(_) | Value::Number(_) => {}
    }
}

/// Calls a function that may change each key, in order. If two keys become equal, the value of the later key stays.
pub(crate) fn keys_mut(value: &mut Value, change: &mut impl FnMut(&mut String)) {
    match value {
        Value::Array(items) => items.iter_mut().for_each(|item| keys_mut(item, change)),
        Value::Object(members) => {
            // Keys of a map cannot be changed in place.
            let changed = std::mem::take(members).into_iter().map(|(mut key, mut member)| {
                change(&mut key);
                keys_mut(&mut member, change);
                (key, member)
            });
            *members = changed.collect();
        }
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => {}
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn strings_are_visited_with_their_pointers_and_keys_are_not() {
        let value = json!({"a/b": ["x", 1, {"~": "y"}], "c": null, "d": "z"});
        let mut seen = Vec::new();
        strings(&value, &Path::Root, &mut |at, text| seen.push((at.to_string(), text.to_owned())));
        let expected = [("/a~1b/0", "x"), ("/a~1b/2/~0", "y"), ("/d", "z")];
        assert_eq!(seen, expected.map(|(at, text)| (at.to_owned(), text.to_owned())));
    }
    /// Returns the strings that are seen of a value, and those that can be changed, which are the same.
    fn seen(value: &Value, root: &Path<'_>) -> Vec<String> {
        let seen: Vec<_> = texts(value, root).into_iter().map(|(_, text)| text.to_owned()).collect();
        let mut changed = Vec::new();
        strings_mut(&mut value.clone(), root, &mut |_, text| changed.push(text.clone()));
        assert_eq!(seen, changed);
        seen
    }

    #[test]
    fn the_bytes_of_a_data_uri_are_not_seen_in_a_part_and_are_seen_anywhere_else() {
        let part = json!({"type": "uri", "uri": "data:text/plain,secret"});
        let messages = |part: &Value| {
            let result = json!({"type": "tool_call_response", "id": "a", "parts": [part], "response": "ok"});
            json!([{"parts": [part]}, {"parts": [result]}])
        };
        let sees = |value: &Value, root: Path<'_>| seen(value, &root).iter().any(|text| text.contains("secret"));
        let (agent, input, output) = ("Agent", true, false);
        let argument = json!({"messages": [{"parts": [{"type": "tool_call", "arguments": {"parts": [part]}}]}]});
        let echoed = json!({"messages": messages(&json!({"type": "text", "content": {"parts": [part]}}))});
        let response =
            json!({"messages": [{"parts": [{"type": "tool_call_response", "response": {"parts": [part]}}]}]});
        let table = [
            // The messages of agents and models, and results.
            (json!({"messages": messages(&part)}), agent, input, false),
            (json!({"message": {"parts": [part]}}), "ChatModel", output, false),
            (json!({"content": "ok", "parts": [part]}), "Tool", output, false),
            (json!({"output": {"content": "ok", "parts": [part]}}), "Tool", output, false),
            // JSON of models and tools that looks like it.
            (json!({"parts": [part]}), "Tool", input, true),
            (json!({"input": {"parts": [part]}}), "Tool", output, true),
            (json!({"content": {"parts": [part]}}), "Tool", output, true),
            (argument, agent, input, true),
            (echoed, agent, input, true),
            (response, agent, input, true),
            (json!({"parts": [part]}), "Post", input, true),
            (json!({"parts": part}), agent, input, true),
            (json!({"parts": [{"type": "text", "uri": "data:text/plain,secret"}]}), agent, input, true),
            (json!({"parts": [{"type": "uri", "content": "data:text/plain,secret"}]}), agent, input, true),
            (json!({"parts": [{"type": "uri", "uri": "data:secret"}]}), agent, input, true),
            (json!({"parts": [{"type": "uri", "uri": "https://secret/a,b"}]}), agent, input, true),
        ];
        for (value, kind, is_input, expected) in table {
            assert_eq!(sees(&value, Path::root_of(kind, is_input)), expected, "{kind}: {value}");
            assert!(sees(&value, Path::Root), "{value}");
        }
    }

    #[test]
    fn the_head_of_a_data_uri_can_be_changed_and_its_bytes_stay() {
        let mut value = json!({"parts": [{"type": "uri", "uri": "data:a,a"}]});
        strings_mut(&mut value, &Path::Messages, &mut |at, text| *text = format!("{at}{}", text.replace('a', "b")));
        assert_eq!(value["parts"][0]["uri"], "/parts/0/uridbtb:b,a");
    }
}
