//! JSON text in one form: keys sorted, no space, `null` members left out if wanted.
//!
//! A payload is printed live and from a recording. Both have it as text, and from text to text it is brought into one
//! form, without a value in between that would read and write each number anew.

use std::ops::Range;

use memchr::memchr2;

/// Deeper than this, text stays as it is.
const DEEPEST: usize = 128;

/// Brings JSON text into its canonical form; keeps its buffers from one text to the next.
#[derive(Debug, Default)]
pub(crate) struct Canon {
    /// The members of the objects that are open, innermost last.
    members: Vec<Member>,
    /// The members of one object in order, before they take their place.
    sorted: Vec<u8>,
}

/// A member of an object: where its key and all of it are, in what was written.
#[derive(Debug)]
struct Member {
    key: Range<usize>,
    end: usize,
}

impl Member {
    /// From the key's quote on.
    const fn all(&self) -> Range<usize> {
        self.key.start - 1..self.end
    }
}

impl Canon {
    /// Brings a text that stands in a buffer from a place on into its canonical form, where it stands. Keys are sorted
    /// by their bytes as they are written.
    pub(crate) fn bring(&mut self, buffer: &mut Vec<u8>, from: usize, leave_out_nulls: bool) {
        self.members.clear();
        let text = buffer.get_mut(from..).unwrap_or_default();
        let mut pass = Pass { canon: self, text, gap: 0, moved: 0, depth: 0, leave_out_nulls };
        let start = pass.skip_space(0);
        let read = pass.value(start).min(pass.text.len());
        pass.close_gap(read);
        let end = from + read - pass.gap;
        buffer.truncate(end);
    }
}

/// One text on its way. Each step begins at a place, and gives the place where the next begins.
///
/// 1. Nothing is added, so the text stays where it is until something is left out; what comes later moves back by
///    `gap`. A place less the gap is where its byte is or will be.
/// 2. What is between `moved` and the place has yet to move.
/// 3. No step leads out of the text but by a byte or two, where it is no JSON: what is there is empty.
struct Pass<'t> {
    canon: &'t mut Canon,
    text: &'t mut [u8],
    gap: usize,
    moved: usize,
    depth: usize,
    leave_out_nulls: bool,
}

impl Pass<'_> {
    #[inline]
    fn value(&mut self, at: usize) -> usize {
        match self.text.get(at) {
            Some(b'{') if self.depth < DEEPEST => self.object(at),
            Some(b'[') if self.depth < DEEPEST => self.array(at),
            _ => at + value_len(self.rest(at)),
        }
    }

    fn object(&mut self, at: usize) -> usize {
        self.depth += 1;
        let mut at = self.skip_space(at + 1);
        let (body, outer) = (at - self.gap, self.canon.members.len());
        let mut is_sorted = true;
        while self.text.get(at) == Some(&b'"') {
            let is_later;
            (at, is_later) = self.member(at, body, outer);
            is_sorted &= is_later;
        }
        if !is_sorted {
            self.close_gap(at);
            self.sort(body, outer);
        }
        self.canon.members.truncate(outer);
        self.depth -= 1;
        at + 1
    }

    /// Passes a member and the comma behind it; tells whether it is in order, or left out.
    fn member(&mut self, start: usize, body: usize, outer: usize) -> (usize, bool) {
        let len = string_len(self.rest(start));
        let place = start - self.gap;
        let at = self.skip_space(start + len);
        let at = self.skip_space(at + 1);
        if self.text.get(at) == Some(&b'n') && self.leave_out_nulls {
            return (self.leave_out(start, place, at, body), true);
        }
        // Keys are compared where they will be.
        self.close_gap(at);
        let key = place + 1..place + len - 1;
        let last = self.canon.members[outer..].last();
        let is_later = last.is_none_or(|last| !is_before(self.text, &key, &last.key));
        let at = self.value(at);
        self.canon.members.push(Member { key, end: at - self.gap });
        (self.pass_comma(at), is_later)
    }

    /// Brings the members from `body` on into order.
    fn sort(&mut self, body: usize, outer: usize) {
        let Canon { members, sorted } = &mut *self.canon;
        let (text, members) = (&mut *self.text, &mut members[outer..]);
        match members {
            [a, b] => std::mem::swap(a, b),
            _ => members.sort_by(|a, b| text.get(a.key.clone()).cmp(&text.get(b.key.clone()))),
        }
        sorted.clear();
        for member in members {
            if !sorted.is_empty() {
                sorted.push(b',');
            }
            sorted.extend_from_slice(text.get(member.all()).unwrap_or_default());
        }
        if let Some(place) = text.get_mut(body..body + sorted.len()) {
            place.copy_from_slice(sorted);
        }
    }

    fn array(&mut self, at: usize) -> usize {
        self.depth += 1;
        let mut at = self.skip_space(at + 1);
        while !matches!(self.text.get(at), None | Some(b']')) {
            at = self.value(at);
            at = self.pass_comma(at);
        }
        self.depth -= 1;
        at + 1
    }

    #[inline]
    fn pass_comma(&mut self, at: usize) -> usize {
        let at = self.skip_space(at);
        if self.text.get(at) == Some(&b',') { self.skip_space(at + 1) } else { at }
    }

    /// Leaves space out.
    #[inline]
    fn skip_space(&mut self, at: usize) -> usize {
        match self.text.get(at) {
            Some(0..=b' ') => self.leave_out_space(at),
            _ => at,
        }
    }

    #[cold]
    fn leave_out_space(&mut self, at: usize) -> usize {
        let end = at + space_len(self.rest(at));
        self.close_gap(at);
        self.gap += end - at;
        self.moved = end;
        end
    }

    /// Leaves a member out whose value is `null`, with the comma behind it or, if it is the last, the one before it.
    #[cold]
    fn leave_out(&mut self, start: usize, place: usize, null: usize, body: usize) -> usize {
        let mut end = null + value_len(self.rest(null));
        end += space_len(self.rest(end));
        let is_last = self.text.get(end) != Some(&b',');
        if !is_last {
            end += 1 + space_len(self.rest(end + 1));
        }
        if self.moved < start {
            self.close_gap(start);
        }
        self.gap = end - if is_last && place > body { place - 1 } else { place };
        self.moved = end;
        end
    }

    /// Moves what has yet to move before a place.
    #[inline]
    fn close_gap(&mut self, at: usize) {
        if self.gap > 0 {
            let end = at.min(self.text.len());
            self.text.copy_within(self.moved..end, self.moved - self.gap);
            self.moved = end;
        }
    }

    #[inline]
    fn rest(&self, at: usize) -> &[u8] {
        self.text.get(at..).unwrap_or_default()
    }
}

fn space_len(text: &[u8]) -> usize {
    text.iter().position(|byte| *byte > b' ').unwrap_or(text.len())
}

/// Whether a key is before another one. Mostly, the first byte tells.
#[inline]
fn is_before(text: &[u8], key: &Range<usize>, other: &Range<usize>) -> bool {
    let [key, other] = [key, other].map(|key| text.get(key.clone()).unwrap_or_default());
    match (key.first(), other.first()) {
        (Some(a), Some(b)) if a != b => a < b,
        _ => key < other,
    }
}

/// The length of the value that a text begins with. What is no value counts as one byte, so that every step goes on.
#[inline]
fn value_len(bytes: &[u8]) -> usize {
    match bytes {
        [b'"', ..] => string_len(bytes),
        [b'{' | b'[', ..] => nest_len(bytes),
        _ => {
            let ends = |byte: &u8| matches!(byte, 0..=b' ' | b',' | b':' | b']' | b'}');
            bytes.iter().position(ends).unwrap_or(bytes.len()).max(1)
        }
    }
}

/// The length of the string that a text begins with, quotes included: at least 2.
#[inline]
pub(crate) fn string_len(bytes: &[u8]) -> usize {
    let mut at = 1;
    loop {
        at += plain_len(bytes.get(at..).unwrap_or_default());
        match bytes.get(at) {
            Some(b'"') => return at + 1,
            Some(_) => at += 2,
            None => return bytes.len().max(2),
        }
    }
}

/// How far it is to the next quote or backslash. Most strings are short: only behind a few words a search pays that
/// has to be set up.
#[inline]
fn plain_len(bytes: &[u8]) -> usize {
    const WORD: usize = size_of::<u64>();
    const FEW: usize = 8;
    let mut at = 0;
    while let Some(word) = bytes.get(at..).and_then(|rest| rest.first_chunk::<WORD>())
        && at < FEW * WORD
    {
        let word = u64::from_le_bytes(*word);
        let found = bytes_equal(word, b'"') | bytes_equal(word, b'\\');
        if found != 0 {
            return at + (found.trailing_zeros() / 8) as usize;
        }
        at += WORD;
    }
    let rest = &bytes[at..];
    let found = if rest.len() < WORD {
        rest.iter().position(|byte| matches!(byte, b'"' | b'\\'))
    } else {
        memchr2(b'"', b'\\', rest)
    };
    at + found.unwrap_or(rest.len())
}

/// The high bits of the bytes of a word that are a certain one; right up to the first, which is the lowest.
#[inline]
const fn bytes_equal(word: u64, byte: u8) -> u64 {
    const LOW: u64 = u64::from_le_bytes([1; 8]);
    let differs = word ^ (LOW * byte as u64);
    differs.wrapping_sub(LOW) & !differs & (LOW << 7)
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
        let mut buffer = ["head ", text].concat().into_bytes();
        Canon::default().bring(&mut buffer, 5, leave_out_nulls);
        assert!(buffer.starts_with(b"head "));
        String::from_utf8_lossy(&buffer[5..]).into_owned()
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

    #[test]
    fn a_string_ends_at_its_quote_however_long_it_is() {
        for len in 0..200 {
            for inner in ["x".repeat(len), "é".repeat(len), r#"\\\""#.repeat(len), "y".repeat(len) + r#"\""#] {
                let text = format!(r#""{inner}","tail""#);
                assert_eq!(string_len(text.as_bytes()), inner.len() + 2, "{text}");
                assert_eq!(string_len(text.split_once(",\"tail").unwrap().0.as_bytes()), inner.len() + 2, "{text}");
            }
        }
    }

    #[test]
    fn what_is_left_out_takes_one_comma_along_wherever_it_stands() {
        let table = [
            (r#"{"a":null}"#, "{}"),
            (r#"{"a":null,"b":null}"#, "{}"),
            (r#"{"a":null,"b":1}"#, r#"{"b":1}"#),
            (r#"{"b":1,"a":null}"#, r#"{"b":1}"#),
            (r#"{"c":1,"b":null,"a":null}"#, r#"{"c":1}"#),
            (r#"{ "c" : 1 , "b" : null , "a" : { "z" : null , "y" : 2 } }"#, r#"{"a":{"y":2},"c":1}"#),
            (
                r#"[{"x":[1,{"b":null}],"a":null},{"d":4,"c":3,"b":null,"a":1}]"#,
                r#"[{"x":[1,{}]},{"a":1,"c":3,"d":4}]"#,
            ),
        ];
        for (text, expected) in table {
            assert_eq!(canonical(text, true), expected, "{text}");
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
