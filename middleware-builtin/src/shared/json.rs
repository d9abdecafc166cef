//! Strings in JSON values, and their paths.
#![allow(dead_code, reason = "each middleware uses its own part of this")]

use std::fmt;

use emitree_emitter::json::check_depth;
use emitree_runtime::{Error, Result};
use serde_json::Value;

/// The path of a value. It is displayed as a JSON pointer (RFC 6901), and allocates nothing until it is displayed.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Path<'p> {
    Root,
    Key(&'p Self, &'p str),
    Index(&'p Self, usize),
}

impl fmt::Display for Path<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Root => Ok(()),
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
        Value::Object(members) => members.iter().for_each(|(key, member)| strings(member, &Path::Key(at, key), see)),
        Value::Null | Value::Bool(_) | Value::Number(_) => {}
    }
}

/// Returns all strings with their JSON pointers. Keys are left out.
pub(crate) fn texts(value: &Value) -> Vec<(String, &str)> {
    let mut texts = Vec::new();
    strings(value, &Path::Root, &mut |at, text| texts.push((at.to_string(), text)));
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
            members.iter_mut().for_each(|(key, member)| strings_mut(member, &Path::Key(at, key), change));
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
}
