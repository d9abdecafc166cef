//! Reads a JSON value while its text arrives in pieces.

use std::mem::{replace, swap, take};

use serde_json::{Map, Value};

use super::json_text::{Status, Text};
use crate::typed::in_text::{Found, JsonSearch};

/// The number of open containers at which a text is no longer read, as in `serde_json`.
const MAX_DEPTH: usize = 128;

/// A JSON value whose text arrives in pieces, such as the answer or the arguments of a call that a model is writing.
///
/// [`next_part`](Self::next_part) takes a piece of the text, and returns what is new: text by which a string has grown,
/// and each complete member. [`so_far`](Self::so_far) returns the value as far as it is known.
///
/// ```
/// use emitree_agent::reply::PartialJson;
/// use serde_json::json;
///
/// let mut json = PartialJson::new();
/// let mut news = Vec::new();
/// for mut piece in [r#"{"born": 18"#, r#"15, "name": "A"#, "da"] {
///     while let Some(part) = json.next_part(&mut piece) {
///         news.push(match part.delta() {
///             Some(delta) => format!("{} + {delta}", part.path()),
///             None => format!("{} = {}", part.path(), part.value().unwrap()),
///         });
///     }
/// }
/// assert_eq!(news, ["/born = 1815", "/name + A", "/name + da"]);
/// assert_eq!(json.so_far(), Some(json!({"born": 1815, "name": "Ada"})));
/// ```
///
/// With a path, only the value at the path is read, and nothing else is kept:
///
/// ```
/// use emitree_agent::reply::PartialJson;
/// use serde_json::json;
///
/// let mut json = PartialJson::at(["items", "1"]);
/// let mut text = r#"{"count": 2, "items": ["a long text", "another"#;
/// while json.next_part(&mut text).is_some() {}
/// assert_eq!(json.so_far(), Some(json!("another")));
/// ```
///
/// # What is certain
///
/// A string grows as soon as its text is certain: only an incomplete escape waits. A number, `true`, `false` or `null` is
/// complete when the next character has arrived, so such a value without anything around it never is. The parts are
/// the same however the text is cut, except for the pieces of strings.
///
/// # Mistakes
///
/// A mistake in the text, or a container more than 128 levels deep, ends the value: there are no more parts, and
/// `so_far` keeps the members before it. Not every mistake is noticed, for example not in skipped values, and what
/// follows the value is not read. So parse the whole text when it is complete.
///
/// # Cost
///
/// Each byte is looked at once. The memory is that of the value so far; with a path, skipped values take none.
#[derive(Clone, Debug, Default)]
pub struct PartialJson {
    /// The keys and indices that lead to the value.
    path: Vec<String>,
    /// The containers that are open, outermost first.
    open: Vec<Open>,
    state: State,
    /// The decoded text of the key or the string that is open, or the text of a number or a literal, if it is kept.
    text: String,
    /// The whole value, when it is complete.
    complete: Option<Value>,
    /// The search for an object in a text that has more than JSON.
    search: Option<JsonSearch>,
}

/// An object or an array that is open.
#[derive(Clone, Debug)]
struct Open {
    relation: Relation,
    /// The complete members, if they are kept.
    value: Value,
    /// The position of the current member.
    index: usize,
    /// The key of the current member of an object, if it is kept.
    key: String,
}

/// How a value relates to the value at the path.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Relation {
    /// It may contain the value at the path.
    Above,
    /// It is the value at the path, or a part of it.
    Inside,
    /// It is skipped.
    Beside,
}

#[derive(Clone, Debug, Default)]
enum State {
    /// A value follows, or the end of an empty array.
    #[default]
    Value,
    /// A key follows, or the end of an empty object.
    Key,
    Colon,
    /// A value has ended.
    After,
    /// In a number or a literal.
    Scalar {
        is_kept: bool,
    },
    KeyText(Text),
    Text(Text),
    /// The value is complete, or the text has a mistake.
    Over,
}

/// Something new in a [`PartialJson`]: a string has grown, or a member is complete.
#[derive(Clone, Copy, Debug)]
pub struct JsonPart<'a> {
    json: &'a PartialJson,
    /// The length of the string before it has grown. `None` if the member is complete.
    known: Option<usize>,
}

impl<'a> JsonPart<'a> {
    /// Returns the JSON pointer of the member, such as `/items/0/name`, from the value that is read. It is empty for
    /// this value itself.
    #[must_use]
    pub fn path(&self) -> String {
        let mut path = String::new();
        for open in self.json.open.iter().skip(self.json.path.len()) {
            path.push('/');
            match &open.value {
                Value::Array(_) => path.push_str(&open.index.to_string()),
                _ => path.push_str(&open.key.replace('~', "~0").replace('/', "~1")),
            }
        }
        path
    }

    /// Returns `true` if this is the value that is read, and no member of it.
    #[must_use]
    pub const fn is_whole(&self) -> bool {
        self.json.open.len() == self.json.path.len()
    }

    /// Returns the text by which the string has grown, or `None` if the member is complete.
    #[must_use]
    pub fn delta(&self) -> Option<&'a str> {
        self.known.map(|known| &self.json.text[known..])
    }

    /// Returns the member if it is complete. A string is complete in a part of its own, after its last text.
    #[must_use]
    pub fn value(&self) -> Option<&'a Value> {
        if self.known.is_some() {
            return None;
        }
        match self.json.open.last() {
            Some(Open { relation: Relation::Inside, value: Value::Array(items), .. }) => items.last(),
            Some(Open { relation: Relation::Inside, value, key, .. }) => value.get(key),
            _ => self.json.complete.as_ref(),
        }
    }
}

impl PartialJson {
    /// Makes a reader of a whole JSON text.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Makes a reader of the first object in a text that a model writes. What stands before the object, such as a thought in
    /// `<think>` tags, a sentence or a Markdown fence, is skipped, as in [`json_in`](crate::typed::json_in). A brace that
    /// no key follows is skipped too.
    ///
    /// ```
    /// use emitree_agent::reply::PartialJson;
    /// use serde_json::json;
    ///
    /// let mut json = PartialJson::in_text();
    /// let mut text = "<think>{\"n\": 1}?</think>\n```json\n{\"n\": 2, \"why\": \"Be";
    /// while json.next_part(&mut text).is_some() {}
    /// assert_eq!(json.so_far(), Some(json!({"n": 2, "why": "Be"})));
    /// ```
    #[must_use]
    pub fn in_text() -> Self {
        Self { search: Some(JsonSearch::default()), ..Self::default() }
    }

    /// Makes a reader of the value that these keys and indices lead to.
    #[must_use]
    pub fn at(path: impl IntoIterator<Item = impl Into<String>>) -> Self {
        Self { path: path.into_iter().map(Into::into).collect(), ..Self::default() }
    }

    /// Takes text from the front of `text`, up to the next part. Returns `None` when nothing is left, or when the rest
    /// does not count.
    pub fn next_part(&mut self, text: &mut &str) -> Option<JsonPart<'_>> {
        if self.search.is_some()
            && self.open.is_empty()
            && matches!(self.state, State::Value)
            && !self.find_object(text)
        {
            return None;
        }
        loop {
            let known = self.text.len();
            let before = *text;
            // Until an arm below sets another state, the text has a mistake.
            let is_complete = match replace(&mut self.state, State::Over) {
                // Its last text was a part too, so there may be nothing left to take.
                State::Text(string) if string.status == Status::Ended => {
                    let value = if string.is_kept { Some(Value::String(take(&mut self.text))) } else { None };
                    self.end_value(value)
                }
                state if text.is_empty() => {
                    self.state = state;
                    return None;
                }
                State::Over => return None,
                State::Text(mut string) => {
                    string.take(text, &mut self.text);
                    if string.status != Status::Broken {
                        self.state = State::Text(string);
                    }
                    // Otherwise an escape is incomplete, or the string has ended: the next round looks.
                    if self.text.len() > known {
                        return Some(JsonPart { json: self, known: Some(known) });
                    }
                    false
                }
                State::KeyText(key) => {
                    self.read_key(key, text);
                    false
                }
                State::Scalar { is_kept } => self.read_scalar(is_kept, text),
                state => self.read_byte(state, text),
            };
            if is_complete {
                return Some(JsonPart { json: self, known: None });
            }
            if self.is_no_object() {
                // The brace belonged to a sentence. The text that shows it may begin an object itself.
                *text = before;
                if !self.find_object(text) {
                    return None;
                }
            }
        }
    }

    /// Takes text up to the next object, and forgets what was read before. Returns `false` if none has begun.
    fn find_object(&mut self, text: &mut &str) -> bool {
        let Some(search) = &mut self.search else { return false };
        self.open.clear();
        self.text.clear();
        self.state = State::Value;
        while let Some(found) = search.find(text) {
            if found == Found::Container {
                if text.starts_with('{') {
                    return true;
                }
                *text = &text[1..];
            }
        }
        false
    }

    /// Returns `true` if the text has a mistake before the first part of an object that was searched for.
    fn is_no_object(&self) -> bool {
        let [only] = self.open.as_slice() else { return false };
        let is_empty = only.index == 0 && only.value.as_object().is_some_and(Map::is_empty) && self.text.is_empty();
        self.search.is_some() && matches!(self.state, State::Over) && is_empty
    }

    fn read_key(&mut self, mut key: Text, text: &mut &str) {
        key.take(text, &mut self.text);
        match key.status {
            Status::Open => self.state = State::KeyText(key),
            Status::Broken => {}
            Status::Ended => {
                if let Some(open) = self.open.last_mut() {
                    swap(&mut open.key, &mut self.text);
                }
                self.text.clear();
                self.state = State::Colon;
            }
        }
    }

    /// Reads a number or a literal. Returns `true` if it is a complete member.
    fn read_scalar(&mut self, is_kept: bool, text: &mut &str) -> bool {
        // Only a delimiter shows that the scalar is complete. It stays in the text: it belongs to the container.
        let end = text.bytes().position(is_delimiter);
        let (scalar, rest) = text.split_at(end.unwrap_or(text.len()));
        *text = rest;
        if is_kept {
            self.text.push_str(scalar);
        }
        if end.is_none() {
            self.state = State::Scalar { is_kept };
            return false;
        }
        if !is_kept {
            return self.end_value(None);
        }
        let value = serde_json::from_str(&self.text);
        self.text.clear();
        match value {
            Ok(value) => self.end_value(Some(value)),
            Err(_) => false,
        }
    }

    /// Reads a byte outside of strings and scalars. Returns `true` if it completes a member.
    fn read_byte(&mut self, state: State, text: &mut &str) -> bool {
        let byte = text.as_bytes()[0];
        let is_scalar = matches!((&state, byte), (State::Value, b'-' | b'0'..=b'9' | b't' | b'f' | b'n'));
        if is_scalar {
            // The first byte is read as part of it.
            self.state = State::Scalar { is_kept: self.relation() == Relation::Inside };
            return false;
        }
        // A byte that is no ASCII is a mistake here.
        let Some(rest) = text.get(1..) else { return false };
        *text = rest;
        let container = self.open.last();
        let is_array = container.is_some_and(|open| open.value.is_array());
        let is_object = container.is_some_and(|open| open.value.is_object());
        // A container may end before a member only if it has none: after a comma, a member follows.
        let is_empty = container.is_some_and(|open| open.index == 0);
        self.state = match (state, byte) {
            (state, byte) if is_space(byte) => state,
            (State::Value, b'"') => State::Text(Text::new(self.relation() == Relation::Inside)),
            (State::Value, b'{') => self.open(Value::Object(Map::new())),
            (State::Value, b'[') => self.open(Value::Array(Vec::new())),
            (State::Value, b']') if is_array && is_empty => return self.close(),
            (State::Key, b'}') if is_empty => return self.close(),
            (State::After, b']') if is_array => return self.close(),
            (State::After, b'}') if is_object => return self.close(),
            (State::Key, b'"') => {
                State::KeyText(Text::new(container.is_some_and(|open| open.relation != Relation::Beside)))
            }
            (State::Colon, b':') => State::Value,
            (State::After, b',') => match self.open.last_mut() {
                Some(open) => {
                    open.index += 1;
                    if is_array { State::Value } else { State::Key }
                }
                None => State::Over,
            },
            _ => State::Over,
        };
        false
    }

    fn open(&mut self, value: Value) -> State {
        if self.open.len() == MAX_DEPTH {
            return State::Over;
        }
        let state = if value.is_array() { State::Value } else { State::Key };
        self.open.push(Open { relation: self.relation(), value, index: 0, key: String::new() });
        state
    }

    /// Ends the innermost container. Returns `true` if it is a complete member.
    fn close(&mut self) -> bool {
        match self.open.pop() {
            Some(Open { relation: Relation::Inside, value, .. }) => self.end_value(Some(value)),
            _ => self.end_value(None),
        }
    }

    /// Ends a value, which is `None` if it is not kept. Returns `true` if it is a complete member.
    fn end_value(&mut self, value: Option<Value>) -> bool {
        self.state = if self.open.is_empty() { State::Over } else { State::After };
        let Some(value) = value else { return false };
        match self.open.last_mut() {
            Some(open) if open.relation == Relation::Inside => open.add(value),
            // It is the value at the path, so nothing else is read.
            _ => {
                self.complete = Some(value);
                self.state = State::Over;
            }
        }
        true
    }

    /// Returns how the value that follows relates to the value at the path.
    fn relation(&self) -> Relation {
        let depth = self.open.len();
        if let Some(open) = self.open.last() {
            // Everything in a container at the path, or beside it, relates to the path as the container does.
            if open.relation != Relation::Above {
                return open.relation;
            }
            // Each container above the value takes one step of the path.
            let step = &self.path[depth - 1];
            let is_on_path = if open.value.is_array() { step.parse() == Ok(open.index) } else { *step == open.key };
            if !is_on_path {
                return Relation::Beside;
            }
        }
        if depth == self.path.len() { Relation::Inside } else { Relation::Above }
    }

    /// Builds the value so far: the complete members, and the string that is open as far as its text is certain. Returns
    /// `None` if nothing of the value has arrived. The cost is linear in the size of the value.
    #[must_use]
    pub fn so_far(&self) -> Option<Value> {
        let mut inner = match &self.state {
            State::Text(text) if text.is_kept => Some(Value::String(self.text.clone())),
            _ => self.complete.clone(),
        };
        for open in self.open.iter().rev() {
            if open.relation != Relation::Inside {
                break;
            }
            let mut open = open.clone();
            if let Some(member) = inner {
                open.add(member);
            }
            inner = Some(open.value);
        }
        inner
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

const fn is_space(byte: u8) -> bool {
    matches!(byte, b' ' | b'\n' | b'\r' | b'\t')
}

const fn is_delimiter(byte: u8) -> bool {
    is_space(byte) || matches!(byte, b',' | b']' | b'}')
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use serde_json::json;

    use super::*;

    #[derive(Debug, PartialEq)]
    enum New {
        Text(String),
        Value(Value),
    }

    fn text(path: &str, text: &str) -> (String, New) {
        (path.to_owned(), New::Text(text.to_owned()))
    }

    fn value(path: &str, value: Value) -> (String, New) {
        (path.to_owned(), New::Value(value))
    }

    /// Feeds the pieces, and returns the parts, and the value so far after each piece.
    fn read_by<'a>(
        json: &mut PartialJson,
        pieces: impl IntoIterator<Item = &'a str>,
    ) -> (Vec<(String, New)>, Vec<Option<Value>>) {
        let mut parts = Vec::new();
        let mut so_far = Vec::new();
        for mut piece in pieces {
            while let Some(part) = json.next_part(&mut piece) {
                assert_eq!(part.is_whole(), part.path().is_empty());
                parts.push(match part.delta() {
                    Some(delta) => text(&part.path(), delta),
                    None => value(&part.path(), part.value().expect("a value").clone()),
                });
            }
            so_far.push(json.so_far());
        }
        (parts, so_far)
    }

    fn read<'a>(pieces: impl IntoIterator<Item = &'a str>) -> (Vec<(String, New)>, Vec<Value>) {
        let (parts, so_far) = read_by(&mut PartialJson::new(), pieces);
        (parts, so_far.into_iter().map(Option::unwrap_or_default).collect())
    }

    fn at(pointer: &str) -> PartialJson {
        PartialJson::at(pointer.split('/').skip(1))
    }

    /// Feeds the pieces, and returns the text of a string at a path after each piece, and the value when it is complete.
    fn scan<'a>(pointer: &str, pieces: impl IntoIterator<Item = &'a str>) -> (Vec<String>, Option<Value>) {
        let mut json = at(pointer);
        let mut text = String::new();
        let mut texts = Vec::new();
        let mut found = None;
        for mut piece in pieces {
            while let Some(part) = json.next_part(&mut piece) {
                if part.is_whole() {
                    assert_eq!(found, None, "a part follows the value");
                    text.push_str(part.delta().unwrap_or_default());
                    found = part.value().cloned();
                }
            }
            texts.push(text.clone());
        }
        (texts, found)
    }

    /// Cuts a text at every character.
    fn chars(text: &str) -> impl Iterator<Item = &str> {
        text.char_indices().map(|(at, char)| &text[at..at + char.len_utf8()])
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
    fn the_value_at_a_path_is_found() {
        let text = r#" {"a": {"city": 1}, "b\u0041": [0, {"x": "y"}, [[]], {}], "city": "K\u00f6ln", "n": -1.5e3, "t": true} "#;
        let table = [
            ("/city", Some(json!("Köln"))),
            ("/a/city", Some(json!(1))),
            ("/a", Some(json!({"city": 1}))),
            ("/bA/1/x", Some(json!("y"))),
            ("/bA/1", Some(json!({"x": "y"}))),
            ("/bA/2/0", Some(json!([]))),
            ("/bA/0", Some(json!(0))),
            ("/bA/4", None),
            ("/bA/3/x", None),
            ("/n", Some(json!(-1.5e3))),
            ("/t", Some(json!(true))),
            ("/x", None),
            ("/city/x", None),
            ("", Some(serde_json::from_str(text).expect("JSON"))),
        ];
        for (pointer, expected) in table {
            assert_eq!(scan(pointer, [text]).1, expected, "{pointer}");
            assert_eq!(scan(pointer, chars(text)).1, expected, "{pointer}");
        }
        assert_eq!(scan("/city", [text]).0, ["Köln"]);
    }

    #[test]
    fn only_an_incomplete_escape_or_half_a_character_waits() {
        let pieces = ["{\"a\":\"x", "\\", "n", "y\\ud83", "d", "\\ude0", "0z", "\"", "}"];
        let (texts, found) = scan("/a", pieces);
        assert_eq!(texts, ["x", "x", "x\n", "x\ny", "x\ny", "x\ny", "x\ny😀z", "x\ny😀z", "x\ny😀z"]);
        assert_eq!(found, Some(json!("x\ny😀z")));
    }

    #[test]
    fn a_mistake_ends_the_value_at_a_path_and_keeps_the_text_so_far() {
        let wrong = ["\\x", "\\ud800x", "\\udc00", "\\ud800\\u0041", "\\ud800\\n", "\\u00g0"];
        for wrong in wrong {
            let text = format!("{{\"a\":\"so far{wrong}, and more\"}}");
            assert!(serde_json::from_str::<Value>(&text).is_err(), "{text}");
            let (texts, found) = scan("/a", chars(&text));
            assert_eq!((texts.last().map(String::as_str), found), (Some("so far"), None), "{text}");
        }
        for text in [
            "[}",
            "{]",
            "{\"a\" 1}",
            "{1}",
            "}",
            "]",
            "ö",
            "{\"b\":1]\"a\":2",
            "{,\"a\":1}",
            "{\"a\":[1,]}",
            "{\"a\":{\"b\":1,}}",
        ] {
            assert_eq!(scan("/a", chars(text)).1, None, "{text}");
        }
    }

    #[test]
    fn a_deep_and_a_long_text_cost_linear_time() {
        // With quadratic time, this test is terminated because it takes too long.
        let deep = "[".repeat(1_000_000);
        assert_eq!(read([deep.as_str()]).0, []);
        let long = format!("{{\"a\": \"{}\"}}", "x".repeat(2_000_000));
        let mut json = PartialJson::new();
        let mut count = 0;
        for mut piece in chars(&long) {
            while json.next_part(&mut piece).is_some() {
                count += 1;
            }
        }
        assert_eq!(count, 2_000_002);
        let long = format!("{{\"a\":\"{}\"}}", "é\\n".repeat(300_000));
        let (texts, found) = scan("/a", [long.as_str()]);
        assert_eq!(texts[0].len(), 900_000);
        assert_eq!(found, Some(Value::String(texts[0].clone())));
    }

    #[test]
    fn an_object_in_a_text_is_read_however_the_text_is_cut() {
        let object = r#"{"a": "<think>{", "b": [{}]}"#;
        let whole = json!({"a": "<think>{", "b": [{}]});
        let table = [
            (object.to_owned(), whole.clone()),
            (format!("<think>{{\"a\": 2}}</think> ```json\n{object}\n``` {{\"a\": 3}}"), whole.clone()),
            (format!("<think>So {{</think>Of {{x}} and [{{1}}] <b>: {{{object}}}"), whole.clone()),
            (format!("{{\"no key\" {object}"), whole),
            ("<think>{\"a\": 2}".to_owned(), Value::Null),
            // A mistake after the first part ends the value.
            (format!("{{\"a\": \"x\\q\", {object}"), json!({})),
            (format!("{{\"a\": 1, x {object}"), json!({"a": 1})),
        ];
        for (text, expected) in table {
            let (parts, so_far) = read_by(&mut PartialJson::in_text(), [text.as_str()]);
            assert_eq!(so_far.last().cloned().flatten().unwrap_or_default(), expected, "{text}");
            let (by_char, _) = read_by(&mut PartialJson::in_text(), chars(&text));
            let values = |parts: Vec<(String, New)>| parts.into_iter().filter(|(_, new)| matches!(new, New::Value(_)));
            assert_eq!(values(by_char).collect::<Vec<_>>(), values(parts).collect::<Vec<_>>(), "{text}");
        }
    }

    #[test]
    fn what_a_path_skips_is_not_kept() {
        let long = "1".repeat(10_000);
        let skipped =
            format!(r#"{{"c": "{long}", "b": [{{"{long}": "{long}"}}, {long}], "a": {{"c": [1, {{}}, "{long}"]}}, "#);
        let mut json = at("/a/b");
        for mut piece in chars(&skipped) {
            assert!(json.next_part(&mut piece).is_none());
            let kept: usize = json.open.iter().map(|open| open.key.capacity() + open.value.to_string().len()).sum();
            assert!(json.text.capacity() + kept < 100);
        }
        let mut value = r#""a": {"b": 1}}"#;
        assert_eq!(json.next_part(&mut value).and_then(|part| part.value().cloned()), Some(json!(1)));
    }

    fn json() -> impl Strategy<Value = Value> {
        let leaf = prop_oneof![
            Just(Value::Null),
            any::<bool>().prop_map(Value::from),
            any::<i64>().prop_map(Value::from),
            any::<f64>().prop_map(Value::from),
            ".*".prop_map(Value::from),
            "[\\\\\"/\u{1}-\u{20}\u{ff}\u{1f600}a]*".prop_map(Value::from),
        ];
        leaf.prop_recursive(3, 24, 4, |inner| {
            let key = prop_oneof![Just("a".to_owned()), Just("b".to_owned()), "[a\"\\\\ö]{0,2}"];
            prop_oneof![
                proptest::collection::vec(inner.clone(), 0..4).prop_map(Value::from),
                proptest::collection::vec((key, inner), 0..4)
                    .prop_map(|members| Value::Object(members.into_iter().collect())),
            ]
        })
    }

    /// Writes a value with each character of a string as an escape, if `escapes` says so.
    fn write(value: &Value, escapes: &mut impl Iterator<Item = bool>, to: &mut String) {
        let string = |text: &str, escapes: &mut dyn Iterator<Item = bool>, to: &mut String| {
            to.push('"');
            for char in text.chars() {
                if escapes.next().unwrap_or(false) {
                    for unit in char.encode_utf16(&mut [0; 2]) {
                        to.push_str(&format!("\\u{unit:04x}"));
                    }
                } else {
                    let json = serde_json::to_string(&char).expect("JSON");
                    to.push_str(&json[1..json.len() - 1]);
                }
            }
            to.push('"');
        };
        match value {
            Value::String(text) => string(text, escapes, to),
            Value::Array(items) => {
                to.push('[');
                for (at, item) in items.iter().enumerate() {
                    to.push_str(if at > 0 { ", " } else { "" });
                    write(item, escapes, to);
                }
                to.push(']');
            }
            Value::Object(members) => {
                to.push_str("{ ");
                for (at, (key, member)) in members.iter().enumerate() {
                    to.push_str(if at > 0 { "," } else { "" });
                    string(key, escapes, to);
                    to.push_str(": ");
                    write(member, escapes, to);
                }
                to.push('}');
            }
            other => to.push_str(&other.to_string()),
        }
    }

    proptest! {
        #[test]
        fn the_parts_are_the_members_of_the_value_however_its_text_is_cut(it in json(), pretty: bool, size in 1..9_usize) {
            let text = if pretty { serde_json::to_string_pretty(&it) } else { serde_json::to_string(&it) };
            let text = text.expect("JSON") + " ";
            // Parsed as the reader parses, because some floats change when they are written and read.
            let whole: Value = serde_json::from_str(&text).expect("JSON");
            let chars: Vec<_> = text.chars().collect();
            let pieces: Vec<String> = chars.chunks(size).map(|chunk| chunk.iter().collect()).collect();
            let (parts, so_far) = read(pieces.iter().map(String::as_str));
            prop_assert_eq!(so_far.last(), Some(&whole));
            let mut grown = std::collections::BTreeMap::<_, String>::new();
            for (path, new) in parts {
                match new {
                    New::Text(text) => grown.entry(path).or_default().push_str(&text),
                    New::Value(value) => {
                        prop_assert_eq!(whole.pointer(&path), Some(&value));
                        if let Value::String(text) = value {
                            prop_assert_eq!(grown.remove(&path).unwrap_or_default(), text);
                        }
                    }
                }
            }
            prop_assert!(grown.is_empty());
        }

        // Compared with a parser of whole texts.
        #[test]
        fn the_text_is_certain_after_each_piece_and_the_value_is_that_of_a_parser(
            value in json(),
            escapes in proptest::collection::vec(any::<bool>(), 0..64),
            keys in proptest::collection::vec(prop_oneof![Just("a"), Just("b"), Just("0"), Just("1")], 0..3),
            sizes in proptest::collection::vec(1..5_usize, 1..8),
        ) {
            let mut text = String::new();
            write(&value, &mut escapes.into_iter(), &mut text);
            prop_assert_eq!(&serde_json::from_str::<Value>(&text).expect("JSON"), &value);
            let pointer: String = keys.iter().flat_map(|key| ["/", *key]).collect();
            let expected = value.pointer(&pointer);

            let mut pieces = Vec::new();
            let mut rest = text.as_str();
            let mut sizes = sizes.into_iter().cycle();
            while !rest.is_empty() {
                let end = rest.char_indices().nth(sizes.next().unwrap_or(1)).map_or(rest.len(), |(at, _)| at);
                let (piece, after) = rest.split_at(end);
                pieces.push(piece);
                rest = after;
            }
            let (texts, found) = scan(&pointer, pieces.iter().copied());
            match expected {
                Some(Value::String(whole)) => {
                    prop_assert_eq!(found.as_ref(), expected);
                    prop_assert_eq!(texts.last(), Some(whole));
                    // At most one character waits: one escape, or two of them for one character.
                    let mut read = String::new();
                    for (piece, text) in pieces.iter().zip(&texts) {
                        read.push_str(piece);
                        prop_assert!(whole.starts_with(text.as_str()));
                        prop_assert_eq!(text, &certain(&read, &pointer), "{}", read);
                    }
                }
                // The end of a number or a literal is not visible if nothing follows. Arguments are objects.
                Some(Value::Null | Value::Bool(_) | Value::Number(_)) if pointer.is_empty() => {}
                other => prop_assert_eq!(found.as_ref(), other),
            }
        }
    }

    /// Returns what is certain of the string at a path, by completing a prefix of a JSON text in every way that keeps
    /// the end of the string open.
    fn certain(prefix: &str, pointer: &str) -> String {
        let cut = (0..=prefix.len()).rev().filter(|at| prefix.is_char_boundary(*at));
        for at in cut {
            let mut text = prefix[..at].to_owned();
            if let Some(value) = close(&mut text)
                && let Some(Value::String(text)) = value.pointer(pointer)
            {
                return text.clone();
            }
        }
        String::new()
    }

    /// Closes the string and the containers that are open at the end of a JSON text, and parses it.
    fn close(text: &mut String) -> Option<Value> {
        let mut open = Vec::new();
        let mut in_string = false;
        let mut is_escaped = false;
        for char in text.chars() {
            match char {
                _ if is_escaped => is_escaped = false,
                '\\' if in_string => is_escaped = true,
                '"' => in_string = !in_string,
                '{' if !in_string => open.push('}'),
                '[' if !in_string => open.push(']'),
                '}' | ']' if !in_string => _ = open.pop(),
                _ => {}
            }
        }
        if is_escaped {
            return None;
        }
        text.push_str(if in_string { "\"" } else { "" });
        text.extend(open.into_iter().rev());
        serde_json::from_str(text).ok()
    }
}
