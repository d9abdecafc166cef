//! JSON text in one form: keys sorted, no space, `null` members left out if wanted.
//!
//! A payload is printed live and from a recording. Both have it as text, and from text to text it is brought into one
//! form, without a value in between that would read and write each number anew.

use std::ops::Range;

use memchr::memchr2;

/// Deeper than this, text is copied as it is.
const DEEPEST: usize = 128;

/// Brings JSON text into its canonical form; keeps its buffers from one text to the next.
#[derive(Debug, Default)]
pub(super) struct Canon {
    /// The members of the objects that are open, innermost last.
    members: Vec<Member>,
    /// The members of one object before they are put in order.
    unsorted: Vec<u8>,
}

/// A member of an object: where its key is in the text, and where all of it is in what was written.
#[derive(Debug)]
struct Member {
    key: Range<usize>,
    written: Range<usize>,
}

impl Canon {
    /// Appends a text in its canonical form. Keys are sorted by their bytes as they are written.
    pub(super) fn push(&mut self, out: &mut Vec<u8>, text: &[u8], leave_out_nulls: bool) {
        self.members.clear();
        Pass { canon: self, text, at: 0, out, depth: 0, leave_out_nulls }.value();
    }

    /// Keeps no more than so many bytes for the next text.
    pub(super) fn shrink_to(&mut self, bytes: usize) {
        self.unsorted.shrink_to(bytes);
        self.members.shrink_to(bytes / size_of::<Member>());
    }
}

/// One text on its way. Places that are out of bounds, which no JSON leads to, are empty.
struct Pass<'t, 'o> {
    canon: &'o mut Canon,
    text: &'t [u8],
    at: usize,
    out: &'o mut Vec<u8>,
    depth: usize,
    leave_out_nulls: bool,
}

impl Pass<'_, '_> {
    fn value(&mut self) {
        match self.peek() {
            Some(b'{') if self.depth < DEEPEST => self.object(),
            Some(b'[') if self.depth < DEEPEST => self.array(),
            _ => {
                let start = self.at;
                self.at += value_len(self.text, start);
                self.copy(start);
            }
        }
    }

    /// Copies what was passed since a place.
    fn copy(&mut self, start: usize) {
        self.out.extend_from_slice(self.text.get(start..self.at).unwrap_or_default());
    }

    fn object(&mut self) {
        self.open(b'{');
        let (body, outer) = (self.out.len(), self.canon.members.len());
        let mut is_sorted = true;
        while self.peek_member() == Some(b'"') {
            is_sorted &= self.member(body, outer);
        }
        if !is_sorted {
            self.sort(body, outer);
        }
        self.canon.members.truncate(outer);
        self.close(b'}');
    }

    /// Writes a member, unless it is left out; tells whether it is in order.
    fn member(&mut self, body: usize, outer: usize) -> bool {
        let start = self.at;
        self.at += value_len(self.text, start);
        let key = start + 1..self.at - 1;
        let is_tight = self.peek() == Some(b':') && self.at == key.end + 1;
        self.at += 1;
        let value = self.at;
        let first = self.peek();
        if first == Some(b'n') && self.leave_out_nulls {
            self.at += value_len(self.text, self.at);
            return true;
        }
        self.comma(body);
        let written = self.out.len();
        if is_tight && self.at == value && !matches!(first, Some(b'{' | b'[')) {
            self.at += value_len(self.text, value);
            self.copy(start);
        } else {
            self.out.extend_from_slice(self.text.get(start..=key.end).unwrap_or_default());
            self.out.push(b':');
            self.value();
        }
        let last = self.canon.members[outer..].last();
        let is_later = last.is_none_or(|last| self.text.get(last.key.clone()) <= self.text.get(key.clone()));
        self.canon.members.push(Member { key, written: written..self.out.len() });
        is_later
    }

    /// Brings the members that were written from `body` on into order.
    fn sort(&mut self, body: usize, outer: usize) {
        let Canon { members, unsorted } = &mut *self.canon;
        members[outer..].sort_by_key(|member| self.text.get(member.key.clone()));
        unsorted.clear();
        unsorted.extend_from_slice(&self.out[body..]);
        self.out.truncate(body);
        for (i, member) in members[outer..].iter().enumerate() {
            if i > 0 {
                self.out.push(b',');
            }
            self.out.extend_from_slice(&unsorted[member.written.start - body..member.written.end - body]);
        }
    }

    fn array(&mut self) {
        self.open(b'[');
        let body = self.out.len();
        while !matches!(self.peek_member(), None | Some(b']')) {
            self.comma(body);
            self.value();
        }
        self.close(b']');
    }

    fn open(&mut self, bracket: u8) {
        self.depth += 1;
        self.at += 1;
        self.out.push(bracket);
    }

    fn close(&mut self, bracket: u8) {
        self.depth -= 1;
        self.at += 1;
        self.out.push(bracket);
    }

    fn comma(&mut self, body: usize) {
        if self.out.len() > body {
            self.out.push(b',');
        }
    }

    /// The next byte that is not space.
    #[inline]
    fn peek(&mut self) -> Option<u8> {
        self.skip(|byte| byte.is_ascii_whitespace())
    }

    /// The same, past commas.
    #[inline]
    fn peek_member(&mut self) -> Option<u8> {
        self.skip(|byte| byte.is_ascii_whitespace() || byte == b',')
    }

    #[inline]
    fn skip(&mut self, skipped: impl Fn(u8) -> bool) -> Option<u8> {
        loop {
            let byte = *self.text.get(self.at)?;
            if !skipped(byte) {
                return Some(byte);
            }
            self.at += 1;
        }
    }
}

/// The length of the value that begins at a place. What is no value counts as one byte, so that every step goes on.
fn value_len(text: &[u8], at: usize) -> usize {
    let bytes = text.get(at..).unwrap_or_default();
    match bytes {
        [b'"', ..] => string_len(bytes),
        [b'{' | b'[', ..] => nest_len(bytes),
        _ => {
            let ends = |byte: &u8| matches!(byte, b',' | b':' | b']' | b'}') || byte.is_ascii_whitespace();
            bytes.iter().position(ends).unwrap_or(bytes.len()).max(1)
        }
    }
}

/// The length of the string that a text begins with, quotes included: at least 2.
pub(super) fn string_len(bytes: &[u8]) -> usize {
    let mut at = 1;
    while let Some(found) = bytes.get(at..).and_then(|rest| memchr2(b'"', b'\\', rest)) {
        at += found;
        if bytes[at] == b'"' {
            return at + 1;
        }
        at += 2;
    }
    bytes.len().max(2)
}

fn nest_len(bytes: &[u8]) -> usize {
    let (mut at, mut open) = (0, 0_usize);
    while let Some(byte) = bytes.get(at) {
        match byte {
            b'"' => at += string_len(&bytes[at..]) - 1,
            b'{' | b'[' => open += 1,
            b'}' | b']' => open -= 1,
            _ => {}
        }
        at += 1;
        if open == 0 {
            return at;
        }
    }
    bytes.len()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use serde_json::{Value, json};

    use super::*;

    fn canonical(text: &str, leave_out_nulls: bool) -> String {
        let mut out = Vec::new();
        Canon::default().push(&mut out, text.as_bytes(), leave_out_nulls);
        String::from_utf8_lossy(&out).into_owned()
    }

    #[test]
    fn keys_are_sorted_at_every_depth_and_space_goes() {
        let table = [
            ("{}", "{}"),
            ("[ ]", "[]"),
            ("12.50", "12.50"),
            ("null", "null"),
            (r#" "a \" } b" "#, r#""a \" } b""#),
            (r#"{"b":1,"a":2}"#, r#"{"a":2,"b":1}"#),
            (r#"{ "b" : [ 1 , { "d" : {} , "c" : "," } ] , "a" : "}" }"#, r#"{"a":"}","b":[1,{"c":",","d":{}}]}"#),
            (r#"{ "b": 1 ,"a" :2,"c":"x" }"#, r#"{"a":2,"b":1,"c":"x"}"#),
            (r#"{"ab":1,"a b":2,"a":3}"#, r#"{"a":3,"a b":2,"ab":1}"#),
            (r#"{"é":1,"z":2,"a":{"y":"\\","x":1e400}}"#, r#"{"a":{"x":1e400,"y":"\\"},"z":2,"é":1}"#),
        ];
        for (text, expected) in table {
            assert_eq!(canonical(text, true), expected, "{text}");
        }
    }

    #[test]
    fn nulls_are_left_out_of_objects_only_and_only_if_wanted() {
        let text = r#"{"b":null,"a":[null,{"c":null}],"d":"null"}"#;
        assert_eq!(canonical(text, true), r#"{"a":[null,{}],"d":"null"}"#);
        assert_eq!(canonical(text, false), r#"{"a":[null,{"c":null}],"b":null,"d":"null"}"#);
    }

    #[test]
    fn what_is_very_deep_is_copied_as_it_is() {
        let depth = 1_000_000;
        let text = "[".repeat(depth) + &"]".repeat(depth);
        assert_eq!(canonical(&text, true), text);
    }

    fn values() -> impl Strategy<Value = Value> {
        let leaf = prop_oneof![
            Just(Value::Null),
            any::<bool>().prop_map(Value::from),
            any::<i64>().prop_map(Value::from),
            ".{0,6}".prop_map(Value::from),
        ];
        leaf.prop_recursive(4, 32, 5, |inner| {
            prop_oneof![
                prop::collection::vec(inner.clone(), 0..5).prop_map(Value::from),
                prop::collection::vec((".{0,4}", inner), 0..5).prop_map(|members| members.into_iter().collect()),
            ]
        })
    }

    fn without_nulls(value: &Value) -> Value {
        match value {
            Value::Object(map) => {
                let kept = map.iter().filter(|(_, value)| !value.is_null());
                kept.map(|(key, value)| (key.clone(), without_nulls(value))).collect()
            }
            Value::Array(items) => items.iter().map(without_nulls).collect(),
            other => other.clone(),
        }
    }

    proptest! {
        #[test]
        fn it_means_the_same_whatever_the_layout(value in values()) {
            for text in [value.to_string(), serde_json::to_string_pretty(&value).unwrap()] {
                let kept: Value = serde_json::from_str(&canonical(&text, false)).unwrap();
                prop_assert_eq!(&kept, &value);
                let thinned: Value = serde_json::from_str(&canonical(&text, true)).unwrap();
                prop_assert_eq!(thinned, without_nulls(&value));
                prop_assert_eq!(canonical(&canonical(&text, true), true), canonical(&text, true));
            }
        }

        #[test]
        fn what_is_no_json_does_no_harm(text in "[\\[\\]{}\",:\\\\a1é ]{0,24}") {
            canonical(&text, true);
        }
    }

    #[test]
    fn the_order_in_which_keys_were_written_does_not_show() {
        let (a, b) = (r#"{"x":{"q":1,"p":2},"a":json}"#, r#"{"a":json,"x":{"p":2,"q":1}}"#);
        assert_eq!(canonical(a, true), canonical(b, true));
        assert_eq!(canonical(&json!({"b": 1, "a": 2}).to_string(), true), r#"{"a":2,"b":1}"#);
    }
}
