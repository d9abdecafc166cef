//! Finds the value at one path of a JSON text that arrives in pieces.
//!
//! Each byte is looked at once. A string at the path is decoded while it arrives; any other value is complete before it
//! is returned. The text is not validated: a mistake ends the search, and the parser of the whole text reports it.

use std::mem::replace;
use std::sync::Arc;

use serde_json::Value;

/// The keys and indices that lead to a value. Without any, the value is the whole text.
pub(super) type Path = Arc<[String]>;

/// A search for the value at one path.
pub(super) struct Scanner {
    path: Path,
    containers: Vec<Container>,
    state: State,
    /// The text of the value so far, if the value was found and is not a string.
    raw: Option<String>,
}

/// The value at the path is complete.
#[derive(Debug, PartialEq)]
pub(super) enum Found {
    /// It is a string, and all of its text was appended.
    Text,
    /// It is another value.
    Json(Value),
}

/// An object or an array that is open.
struct Container {
    is_array: bool,
    /// `true` if the path leads into the container.
    is_on_path: bool,
    /// The position of the current element of an array.
    index: usize,
    /// `true` if the path leads to the value of the current key of an object.
    is_next: bool,
}

enum State {
    /// A value follows, or the end of an array.
    Value,
    /// A key follows, or the end of an object.
    Key,
    Colon,
    /// A value has ended.
    After,
    /// In a number or a literal.
    Scalar,
    Text(Text),
    /// The value was found, or the text has a mistake.
    Over,
}

impl Scanner {
    pub(super) const fn new(path: Path) -> Self {
        Self { path, containers: Vec::new(), state: State::Value, raw: None }
    }

    /// Takes a piece of the text. Appends to `text` what is certain of a string at the path.
    pub(super) fn push(&mut self, piece: &str, text: &mut String) -> Option<Found> {
        let mut rest = piece;
        while let Some(first) = rest.bytes().next() {
            let used = match &mut self.state {
                State::Over => return None,
                State::Text(string) => string.take(rest, text),
                State::Scalar if is_delimiter(first) => 0,
                _ => 1,
            };
            // A byte that is no ASCII is a mistake outside of strings.
            let Some((used, after)) = rest.split_at_checked(used) else {
                self.state = State::Over;
                return None;
            };
            rest = after;
            let found = if used.len() == 1 && !matches!(self.state, State::Text(_)) {
                self.take_byte(first, used)
            } else {
                self.keep(used);
                self.end_part()
            };
            if found.is_some() {
                return found;
            }
        }
        None
    }

    /// Takes a byte outside of strings.
    fn take_byte(&mut self, byte: u8, text: &str) -> Option<Found> {
        if matches!(self.state, State::Value)
            && !is_space(byte)
            && byte != b']'
            && self.is_at_end_of_path()
            && byte != b'"'
        {
            self.raw = Some(String::new());
        }
        self.keep(text);
        if is_space(byte) {
            return None;
        }
        let is_array = self.containers.last().is_some_and(|container| container.is_array);
        self.state = match (replace(&mut self.state, State::Over), byte) {
            (State::Value, b'"') => {
                State::Text(Text::new(if self.is_at_end_of_path() { Role::Found } else { Role::Value }))
            }
            (State::Value, b'{' | b'[') => self.open(byte == b'['),
            (State::Value | State::After, b']') if is_array => return self.close(),
            (State::Key | State::After, b'}') if !is_array && !self.containers.is_empty() => return self.close(),
            (State::Value, b'-' | b'0'..=b'9' | b't' | b'f' | b'n') | (State::Scalar, _) => State::Scalar,
            (State::Key, b'"') => State::Text(Text::new(if self.is_in_path() { Role::Key } else { Role::OtherKey })),
            (State::Colon, b':') => State::Value,
            (State::After, b',') => match self.containers.last_mut() {
                Some(Container { is_array: true, index, .. }) => {
                    *index += 1;
                    State::Value
                }
                Some(_) => State::Key,
                None => State::Over,
            },
            _ => State::Over,
        };
        None
    }

    /// Ends a string or a scalar, unless it goes on.
    fn end_part(&mut self) -> Option<Found> {
        let role = match &mut self.state {
            State::Scalar => Role::Value,
            State::Text(Text { status: Status::Ended, role, key, .. }) => {
                let depth = self.containers.len();
                if let Some(container) = self.containers.last_mut() {
                    container.is_next = *role == Role::Key && self.path.get(depth - 1) == Some(key);
                }
                *role
            }
            State::Text(Text { status: Status::Broken, .. }) => {
                self.state = State::Over;
                return None;
            }
            _ => return None,
        };
        match role {
            Role::Key | Role::OtherKey => {
                self.state = State::Colon;
                None
            }
            Role::Found => {
                self.state = State::Over;
                Some(Found::Text)
            }
            Role::Value => self.end_value(),
        }
    }

    fn open(&mut self, is_array: bool) -> State {
        let is_on_path = self.raw.is_none() && self.containers.len() < self.path.len() && self.is_next();
        self.containers.push(Container { is_array, is_on_path, index: 0, is_next: false });
        if is_array { State::Value } else { State::Key }
    }

    fn close(&mut self) -> Option<Found> {
        self.containers.pop();
        self.end_value()
    }

    /// Returns the value if the value that ended is the one at the path.
    fn end_value(&mut self) -> Option<Found> {
        self.state = State::After;
        let raw = self.raw.take_if(|_| self.containers.len() == self.path.len())?;
        self.state = State::Over;
        serde_json::from_str(&raw).ok().map(Found::Json)
    }

    fn keep(&mut self, text: &str) {
        if let Some(raw) = &mut self.raw {
            raw.push_str(text);
        }
    }

    /// Returns `true` if the path leads into the current container.
    fn is_in_path(&self) -> bool {
        self.containers.last().is_none_or(|container| container.is_on_path) && self.raw.is_none()
    }

    /// Returns `true` if the next value is on the path.
    fn is_next(&self) -> bool {
        let Some(container) = self.containers.last() else { return true };
        let is_next = if container.is_array {
            let next = self.path.get(self.containers.len() - 1);
            next.and_then(|next| next.parse().ok()) == Some(container.index)
        } else {
            container.is_next
        };
        container.is_on_path && is_next
    }

    /// Returns `true` if the next value is the one at the path.
    fn is_at_end_of_path(&self) -> bool {
        self.raw.is_none() && self.containers.len() == self.path.len() && self.is_next()
    }
}

pub(super) const fn is_space(byte: u8) -> bool {
    matches!(byte, b' ' | b'\n' | b'\r' | b'\t')
}

pub(super) const fn is_delimiter(byte: u8) -> bool {
    is_space(byte) || matches!(byte, b',' | b']' | b'}')
}

/// A string that is open.
#[derive(Clone, Debug)]
pub(super) struct Text {
    role: Role,
    pub(super) status: Status,
    escape: Escape,
    /// The decoded key, if the role is [`Role::Key`].
    key: String,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Role {
    /// A key of a container that the path leads into.
    Key,
    OtherKey,
    /// The value at the path.
    Found,
    /// Any other value.
    Value,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Status {
    Open,
    Ended,
    Broken,
}

/// The part of an escape that has arrived.
#[derive(Clone, Copy, Debug)]
enum Escape {
    None,
    Backslash,
    /// Digits of `\uXXXX`, after the first half of a character if it has two.
    Digits {
        half: Option<u32>,
        value: u32,
        count: u8,
    },
    /// The second half of a character must follow: its backslash, and then its `u`.
    Half {
        half: u32,
        has_backslash: bool,
    },
}

impl Text {
    pub(super) const fn new(role: Role) -> Self {
        Self { role, status: Status::Open, escape: Escape::None, key: String::new() }
    }

    /// Takes text up to the end of the string, or a part of it. Returns the number of bytes.
    pub(super) fn take(&mut self, rest: &str, found: &mut String) -> usize {
        let Escape::None = self.escape else {
            let Some(char) = rest.chars().next() else { return 0 };
            match self.escaped(char) {
                Ok(decoded) => decoded.into_iter().for_each(|char| self.keep(char.encode_utf8(&mut [0; 4]), found)),
                Err(()) => self.status = Status::Broken,
            }
            return char.len_utf8();
        };
        let end = rest.find(['"', '\\']).unwrap_or(rest.len());
        self.keep(&rest[..end], found);
        match rest.as_bytes().get(end) {
            None => return end,
            Some(b'"') => self.status = Status::Ended,
            Some(_) => self.escape = Escape::Backslash,
        }
        end + 1
    }

    fn keep(&mut self, text: &str, found: &mut String) {
        match self.role {
            Role::Found => found.push_str(text),
            Role::Key => self.key.push_str(text),
            Role::OtherKey | Role::Value => {}
        }
    }

    /// Takes a character of an escape. Returns the character that the escape means, when it is complete.
    fn escaped(&mut self, char: char) -> Result<Option<char>, ()> {
        let digits = |half| Escape::Digits { half, value: 0, count: 0 };
        let (escape, decoded) = match (replace(&mut self.escape, Escape::None), char) {
            (Escape::Backslash, 'u') => (digits(None), None),
            (Escape::Backslash, char) => (Escape::None, Some(short(char).ok_or(())?)),
            (Escape::Half { half, has_backslash: false }, '\\') => (Escape::Half { half, has_backslash: true }, None),
            (Escape::Half { half, has_backslash: true }, 'u') => (digits(Some(half)), None),
            (Escape::Digits { half, value, count }, char) => {
                let value = value * 16 + char.to_digit(16).ok_or(())?;
                match (half, value) {
                    _ if count < 3 => (Escape::Digits { half, value, count: count + 1 }, None),
                    (None, 0xD800..=0xDBFF) => (Escape::Half { half: value, has_backslash: false }, None),
                    (None, value) => (Escape::None, Some(char::from_u32(value).ok_or(())?)),
                    (Some(half), 0xDC00..=0xDFFF) => {
                        let char = char::from_u32(0x1_0000 + ((half - 0xD800) << 10) + (value - 0xDC00));
                        (Escape::None, Some(char.ok_or(())?))
                    }
                    (Some(_), _) => return Err(()),
                }
            }
            (Escape::None | Escape::Half { .. }, _) => return Err(()),
        };
        self.escape = escape;
        Ok(decoded)
    }
}

/// Returns the character that a backslash and this character mean.
const fn short(char: char) -> Option<char> {
    Some(match char {
        '"' | '\\' | '/' => char,
        'b' => '\u{8}',
        'f' => '\u{c}',
        'n' => '\n',
        'r' => '\r',
        't' => '\t',
        _ => return None,
    })
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use serde_json::json;

    use super::*;

    fn path(pointer: &str) -> Path {
        pointer.split('/').skip(1).map(str::to_owned).collect()
    }

    /// Feeds the pieces, and returns the text after each piece and what was found.
    fn scan<'a>(pointer: &str, pieces: impl IntoIterator<Item = &'a str>) -> (Vec<String>, Option<Found>) {
        let mut scanner = Scanner::new(path(pointer));
        let (mut text, mut texts, mut found) = (String::new(), Vec::new(), None);
        for piece in pieces {
            let now = scanner.push(piece, &mut text);
            assert!(now.is_none() || found.is_none(), "found twice");
            found = found.or(now);
            texts.push(text.clone());
        }
        (texts, found)
    }

    /// Cuts a text at every character.
    fn chars(text: &str) -> impl Iterator<Item = &str> {
        text.char_indices().map(|(at, char)| &text[at..at + char.len_utf8()])
    }

    #[test]
    fn the_value_at_a_path_is_found() {
        let text = r#" {"a": {"city": 1}, "b\u0041": [0, {"x": "y"}, [[]], {}], "city": "K\u00f6ln", "n": -1.5e3, "t": true} "#;
        let table = [
            ("/city", Some(Found::Text)),
            ("/a/city", Some(Found::Json(json!(1)))),
            ("/a", Some(Found::Json(json!({"city": 1})))),
            ("/bA/1/x", Some(Found::Text)),
            ("/bA/1", Some(Found::Json(json!({"x": "y"})))),
            ("/bA/2/0", Some(Found::Json(json!([])))),
            ("/bA/0", Some(Found::Json(json!(0)))),
            ("/bA/4", None),
            ("/bA/3/x", None),
            ("/n", Some(Found::Json(json!(-1.5e3)))),
            ("/t", Some(Found::Json(json!(true)))),
            ("/x", None),
            ("/city/x", None),
            ("", Some(Found::Json(serde_json::from_str(text).expect("JSON")))),
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
        assert_eq!(found, Some(Found::Text));
    }

    #[test]
    fn a_mistake_ends_the_search_and_keeps_the_text_so_far() {
        let wrong = ["\\x", "\\ud800x", "\\udc00", "\\ud800\\u0041", "\\ud800\\n", "\\u00g0"];
        for wrong in wrong {
            let text = format!("{{\"a\":\"so far{wrong}, and more\"}}");
            assert!(serde_json::from_str::<Value>(&text).is_err(), "{text}");
            let (texts, found) = scan("/a", chars(&text));
            assert_eq!((texts.last().map(String::as_str), found), (Some("so far"), None), "{text}");
        }
        for text in ["[}", "{]", "{\"a\" 1}", "{1}", "}", "]", "ö", "{\"b\":1]\"a\":2", "{,\"a\":1}"] {
            assert_eq!(scan("/a", chars(text)).1, None, "{text}");
        }
    }

    #[test]
    fn a_deep_and_a_long_text_cost_linear_time() {
        // With quadratic time, this test is terminated because it takes too long.
        let deep = format!("{}{}", "[".repeat(300_000), "]".repeat(300_000));
        assert_eq!(scan("/0/0/a", chars(&deep)).1, None);
        let long = format!("{{\"a\":\"{}\"}}", "é\\n".repeat(300_000));
        let mut scanner = Scanner::new(path("/a"));
        let mut text = String::new();
        let found = chars(&long).find_map(|piece| scanner.push(piece, &mut text));
        assert_eq!((found, text.len()), (Some(Found::Text), 900_000));
    }

    fn value() -> impl Strategy<Value = Value> {
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
        // Compared with a parser of whole texts.
        #[test]
        fn the_text_is_certain_after_each_piece_and_the_value_is_that_of_a_parser(
            value in value(),
            escapes in proptest::collection::vec(any::<bool>(), 0..64),
            keys in proptest::collection::vec(prop_oneof![Just("a"), Just("b"), Just("0"), Just("1")], 0..3),
            sizes in proptest::collection::vec(1..5_usize, 1..8),
        ) {
            let mut text = String::new();
            write(&value, &mut escapes.into_iter(), &mut text);
            prop_assert_eq!(&serde_json::from_str::<Value>(&text).expect("JSON"), &value);
            let pointer: String = keys.iter().flat_map(|key| ["/", *key]).collect();
            let expected = value.pointer(&pointer);

            let (mut pieces, mut rest, mut sizes) = (Vec::new(), text.as_str(), sizes.into_iter().cycle());
            while !rest.is_empty() {
                let end = rest.char_indices().nth(sizes.next().unwrap_or(1)).map_or(rest.len(), |(at, _)| at);
                let (piece, after) = rest.split_at(end);
                pieces.push(piece);
                rest = after;
            }
            let (texts, found) = scan(&pointer, pieces.iter().copied());
            match expected {
                Some(Value::String(whole)) => {
                    prop_assert_eq!(found, Some(Found::Text));
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
                Some(other) => prop_assert_eq!(found, Some(Found::Json(other.clone()))),
                None => prop_assert_eq!(found, None),
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
        let (mut open, mut in_string, mut is_escaped) = (Vec::new(), false, false);
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
