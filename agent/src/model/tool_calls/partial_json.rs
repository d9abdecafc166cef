//! Builds a JSON value while its text arrives in pieces.
//!
//! Each byte is looked at once. The text is not validated: a mistake ends the value, and the parser of the whole text
//! reports it.

use std::mem::{replace, take};

use serde_json::{Map, Value};

use super::json_path::{Role, Status, Text, is_delimiter, is_space};

/// The number of open containers at which a text is no longer read, as in `serde_json`.
const MAX_DEPTH: usize = 128;

/// A JSON value whose text is arriving.
#[derive(Clone, Debug, Default)]
pub struct JsonTree {
    /// The containers that are open, outermost first.
    open: Vec<Open>,
    state: State,
    /// The decoded text of the key or the string that is open, or the text of a number or a literal.
    text: String,
    /// The whole value, when it is complete.
    complete: Option<Value>,
}

/// An object or an array, with its complete members.
#[derive(Clone, Debug)]
struct Open {
    value: Value,
    /// The key of the current member of an object.
    key: String,
}

#[derive(Clone, Debug, Default)]
enum State {
    /// A value follows, or the end of an array.
    #[default]
    Value,
    /// A key follows, or the end of an object.
    Key,
    Colon,
    /// A value has ended.
    After,
    /// In a number or a literal.
    Scalar,
    KeyText(Text),
    Text(Text),
    /// The value is complete, or the text has a mistake.
    Over,
}

/// Something new about the value at a path.
#[derive(Clone, Debug, PartialEq)]
pub struct Part {
    /// A JSON pointer, such as `/items/0/name`.
    pub path: String,
    /// What is new.
    pub new: New,
}

/// What is new about a value.
#[derive(Clone, Debug, PartialEq)]
pub enum New {
    /// The string has grown by this text.
    Text(String),
    /// The value is complete.
    Value(Value),
}

impl JsonTree {
    /// Takes text from the front of `rest`, up to the next part. Returns `None` when nothing is left.
    pub fn next(&mut self, rest: &mut &str) -> Option<Part> {
        loop {
            match replace(&mut self.state, State::Over) {
                State::Text(text) if text.status == Status::Ended => {
                    let value = Value::String(take(&mut self.text));
                    return Some(self.end_value(value));
                }
                state if rest.is_empty() => {
                    self.state = state;
                    return None;
                }
                State::Text(text) => {
                    let before = self.text.len();
                    self.state = State::Text(self.read(text, rest));
                    if self.text.len() > before {
                        let new = New::Text(self.text[before..].to_owned());
                        return Some(Part { path: self.path(), new });
                    }
                }
                State::KeyText(text) => self.read_key(text, rest),
                State::Scalar => {
                    if let Some(value) = self.read_scalar(rest) {
                        return Some(self.end_value(value));
                    }
                }
                State::Over => return None,
                state => {
                    let container = self.read_byte(state, rest);
                    if container.is_some() {
                        return container;
                    }
                }
            }
            if matches!(&self.state, State::Text(Text { status: Status::Broken, .. })) {
                self.state = State::Over;
            }
        }
    }

    /// Reads a string up to its end, or all of `rest`.
    fn read(&mut self, mut text: Text, rest: &mut &str) -> Text {
        while text.status == Status::Open && !rest.is_empty() {
            let used = text.take(rest, &mut self.text);
            *rest = &rest[used..];
        }
        text
    }

    fn read_key(&mut self, text: Text, rest: &mut &str) {
        let text = self.read(text, rest);
        self.state = match text.status {
            Status::Open => State::KeyText(text),
            Status::Broken => State::Over,
            Status::Ended => {
                let key = take(&mut self.text);
                self.open.last_mut().into_iter().for_each(|open| open.key.clone_from(&key));
                State::Colon
            }
        };
    }

    /// Returns the number or literal if it has ended.
    fn read_scalar(&mut self, rest: &mut &str) -> Option<Value> {
        let end = rest.bytes().position(is_delimiter);
        let (text, after) = rest.split_at(end.unwrap_or(rest.len()));
        self.text.push_str(text);
        *rest = after;
        if end.is_none() {
            self.state = State::Scalar;
            return None;
        }
        // A mistake leaves the state at `Over`.
        serde_json::from_str(&take(&mut self.text)).ok()
    }

    /// Reads a byte outside of strings and scalars. Returns the container that it completes.
    fn read_byte(&mut self, state: State, rest: &mut &str) -> Option<Part> {
        let byte = *rest.as_bytes().first()?;
        let is_array = self.open.last().map(|open| open.value.is_array());
        // The first byte of a number or a literal is read as part of it.
        if !matches!((&state, byte), (State::Value, b'-' | b'0'..=b'9' | b't' | b'f' | b'n')) {
            // A byte that is no ASCII is a mistake here.
            *rest = rest.get(1..)?;
        }
        self.state = match (state, byte) {
            (state, byte) if is_space(byte) => state,
            (State::Value, b'"') => State::Text(Text::new(Role::Found)),
            (State::Value, b'{') => self.open(Value::Object(Map::new())),
            (State::Value, b'[') => self.open(Value::Array(Vec::new())),
            (State::Value | State::After, b']') if is_array == Some(true) => return self.close(),
            (State::Key | State::After, b'}') if is_array == Some(false) => return self.close(),
            (State::Value, b'-' | b'0'..=b'9' | b't' | b'f' | b'n') => State::Scalar,
            (State::Key, b'"') => State::KeyText(Text::new(Role::Found)),
            (State::Colon, b':') => State::Value,
            (State::After, b',') if is_array == Some(true) => State::Value,
            (State::After, b',') => State::Key,
            _ => State::Over,
        };
        None
    }

    fn open(&mut self, value: Value) -> State {
        let state = if value.is_array() { State::Value } else { State::Key };
        self.open.push(Open { value, key: String::new() });
        if self.open.len() > MAX_DEPTH { State::Over } else { state }
    }

    fn close(&mut self) -> Option<Part> {
        let Open { value, .. } = self.open.pop()?;
        Some(self.end_value(value))
    }

    /// Adds a complete value to its container.
    fn end_value(&mut self, value: Value) -> Part {
        let part = Part { path: self.path(), new: New::Value(value.clone()) };
        self.state = State::After;
        match self.open.last_mut() {
            Some(open) => open.add(value),
            None => {
                self.state = State::Over;
                self.complete = Some(value);
            }
        }
        part
    }

    /// Returns the path of the current value.
    fn path(&self) -> String {
        let step = |open: &Open| match &open.value {
            Value::Array(items) => format!("/{}", items.len()),
            _ => format!("/{}", open.key.replace('~', "~0").replace('/', "~1")),
        };
        self.open.iter().map(step).collect()
    }

    /// Returns the value so far: all complete members, and the string that is open as far as its text is certain.
    pub fn so_far(&self) -> Value {
        let mut inner = match &self.state {
            State::Text(_) => Some(Value::String(self.text.clone())),
            _ => self.complete.clone(),
        };
        for open in self.open.iter().rev() {
            let mut open = open.clone();
            inner.into_iter().for_each(|member| open.add(member));
            inner = Some(open.value);
        }
        inner.unwrap_or_default()
    }
}

impl Open {
    fn add(&mut self, member: Value) {
        match &mut self.value {
            Value::Array(items) => items.push(member),
            Value::Object(members) => _ = members.insert(self.key.clone(), member),
            _ => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use serde_json::json;

    use super::*;

    /// Feeds the pieces, and returns the parts in short, and the value so far after each piece.
    fn read<'a>(pieces: impl IntoIterator<Item = &'a str>) -> (Vec<Part>, Vec<Value>) {
        let (mut tree, mut parts, mut so_far) = (JsonTree::default(), Vec::new(), Vec::new());
        for mut piece in pieces {
            while let Some(part) = tree.next(&mut piece) {
                parts.push(part);
            }
            so_far.push(tree.so_far());
        }
        (parts, so_far)
    }

    /// Cuts a text at every character.
    fn chars(text: &str) -> impl Iterator<Item = &str> {
        text.char_indices().map(|(at, char)| &text[at..at + char.len_utf8()])
    }

    fn text(path: &str, text: &str) -> Part {
        Part { path: path.to_owned(), new: New::Text(text.to_owned()) }
    }

    fn value(path: &str, value: Value) -> Part {
        Part { path: path.to_owned(), new: New::Value(value) }
    }

    #[test]
    fn strings_grow_and_complete_members_come_with_their_paths() {
        let pieces =
            [r#" {"na"#, r#"me": "A"#, r#"d\u00"#, r#"61", "a/b~": [1, tr"#, "ue, {}], \"n\": -1.5e", "3}", " "];
        let (parts, so_far) = read(pieces);
        let whole = json!({"name": "Ada", "a/b~": [1, true, {}], "n": -1500.0});
        let expected = [
            text("/name", "A"),
            text("/name", "d"),
            text("/name", "a"),
            value("/name", json!("Ada")),
            value("/a~1b~0/0", json!(1)),
            value("/a~1b~0/1", json!(true)),
            value("/a~1b~0/2", json!({})),
            value("/a~1b~0", json!([1, true, {}])),
            value("/n", json!(-1500.0)),
            value("", whole.clone()),
        ];
        assert_eq!(parts, expected);
        let expected = [
            json!({}),
            json!({"name": "A"}),
            json!({"name": "Ad"}),
            json!({"name": "Ada", "a/b~": [1]}),
            json!({"name": "Ada", "a/b~": [1, true, {}]}),
            whole.clone(),
            whole,
        ];
        assert_eq!(so_far, expected);
    }

    #[test]
    fn a_mistake_ends_the_value_and_keeps_what_there_is() {
        for (wrong, kept) in [
            (r#"{"a": 1, "b": "x\q", "c": 2}"#, json!({"a": 1})),
            (r#"{"a": 1} {"a": 2}"#, json!({"a": 1})),
            (r#"{"a": 1, "b" 2}"#, json!({"a": 1})),
            (r#"{"a": 1, "b": troe, "c": 2}"#, json!({"a": 1})),
            (r#"{"a": 1]"#, json!({"a": 1})),
            (r#"{"a": 1, é"#, json!({"a": 1})),
            ("Here it is: {}", Value::Null),
            ("", Value::Null),
            ("]", Value::Null),
        ] {
            for (_, so_far) in [read([wrong]), read(chars(wrong))] {
                assert_eq!(so_far.last().cloned().unwrap_or_default(), kept, "{wrong}");
            }
        }
    }

    #[test]
    fn a_deep_and_a_long_text_cost_linear_time() {
        // With quadratic time, this test is terminated because it takes too long.
        let deep = "[".repeat(1_000_000);
        assert_eq!(read([deep.as_str()]).0, []);
        let long = format!("{{\"a\": \"{}\"}}", "x".repeat(2_000_000));
        let mut tree = JsonTree::default();
        let count = (0..long.len()).map(|at| {
            let mut piece = &long[at..=at];
            std::iter::from_fn(|| tree.next(&mut piece)).count()
        });
        assert_eq!(count.sum::<usize>(), 2_000_002);
    }

    fn json() -> impl Strategy<Value = Value> {
        let leaf = prop_oneof![
            Just(Value::Null),
            any::<bool>().prop_map(Value::from),
            any::<i64>().prop_map(Value::from),
            any::<f64>().prop_map(Value::from),
            ".*".prop_map(Value::from),
        ];
        leaf.prop_recursive(4, 32, 4, |inner| {
            prop_oneof![
                prop::collection::vec(inner.clone(), 0..4).prop_map(Value::from),
                prop::collection::btree_map(".*", inner, 0..4)
                    .prop_map(|members| Value::Object(members.into_iter().collect())),
            ]
        })
    }

    proptest! {
        #[test]
        fn the_parts_are_the_members_of_the_value_however_its_text_is_cut(it in json(), pretty: bool, size in 1..9_usize) {
            let text = if pretty { serde_json::to_string_pretty(&it) } else { serde_json::to_string(&it) };
            let text = text.expect("JSON") + " ";
            // Parsed as the tree parses, because some floats change when they are written and read.
            let whole: Value = serde_json::from_str(&text).expect("JSON");
            let chars: Vec<_> = text.chars().collect();
            let pieces: Vec<String> = chars.chunks(size).map(|chunk| chunk.iter().collect()).collect();
            let (parts, so_far) = read(pieces.iter().map(String::as_str));
            prop_assert_eq!(so_far.last(), Some(&whole));
            let mut grown = std::collections::BTreeMap::<_, String>::new();
            for part in parts {
                match part.new {
                    New::Text(text) => grown.entry(part.path).or_default().push_str(&text),
                    New::Value(value) => {
                        prop_assert_eq!(whole.pointer(&part.path), Some(&value));
                        if let Value::String(text) = value {
                            prop_assert_eq!(grown.remove(&part.path).unwrap_or_default(), text);
                        }
                    }
                }
            }
            prop_assert!(grown.is_empty());
        }
    }
}
