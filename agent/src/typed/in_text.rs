//! JSON in a text that a model wrote: behind its thoughts, behind a sentence, or in a Markdown fence.

use std::mem::take;

use serde_json::{Deserializer, Value};

/// The tags around thoughts that a model writes into its text.
const OPENING: [&str; 2] = ["<think>", "<thinking>"];
const CLOSING: [&str; 2] = ["</think>", "</thinking>"];

/// Finds the JSON value of a model's text that fits, and returns what `fit` makes of it.
///
/// Models that are asked for JSON write more than JSON: a thought in `<think>` tags, a sentence in front, or a Markdown
/// fence around it. The value may stand anywhere behind the thoughts. `fit` checks a value, and describes for the model
/// why it does not fit, as [`from_value`](super::from_value) does.
///
/// ```
/// use emitree_agent::typed::{from_value, json_in};
///
/// let text = "<think>{\"n\": 1} or 2?</think>\nIn short [1]:\n```json\n{\"n\": 2}\n```";
/// let fit = from_value::<std::collections::BTreeMap<String, u32>>;
/// assert_eq!(json_in(text, fit)?["n"], 2);
/// assert_eq!(json_in("{\"n\": \"two\"}", fit).unwrap_err(), "at `n`: invalid type: string \"two\", expected u32");
/// assert!(json_in("Two.", fit).unwrap_err().starts_with("it is not JSON: "));
/// # Ok::<(), String>(())
/// ```
///
/// # Errors
///
/// Returns a text for the model if there is no JSON, if no value fits, or if values fit that differ: a draft must not be
/// taken for the answer. Something that begins as an object but is no JSON is an error too, so that an object inside it
/// is not taken for the whole, unless a value in a fence fits.
pub fn json_in<T>(text: &str, fit: impl Fn(&Value) -> Result<T, String>) -> Result<T, String> {
    // Most texts are JSON as a whole. Only such a text may be a string, a number or another scalar.
    let fault = match serde_json::from_str(unwrapped(text)) {
        Ok(value) => return fit(&value),
        Err(fault) => format!("it is not JSON: {fault}"),
    };
    let mut found: Option<(Value, T)> = None;
    let mut misfit = fault;
    let values = match values(text) {
        Ok(values) => values,
        Err(fault) => {
            misfit = fault;
            fenced(text)
        }
    };
    for value in values {
        match fit(&value) {
            Ok(_) if found.as_ref().is_some_and(|(known, _)| *known != value) => {
                return Err("it has several JSON values that fit, and they differ: write only the answer".to_owned());
            }
            Ok(fitting) => found = Some((value, fitting)),
            Err(fault) => misfit = fault,
        }
    }
    match found {
        Some((_, fitting)) => Ok(fitting),
        None => Err(misfit),
    }
}

/// Removes thoughts at the beginning of a text, and a fence around the rest.
fn unwrapped(text: &str) -> &str {
    let mut text = text.trim();
    for (opening, closing) in OPENING.iter().zip(CLOSING) {
        if text.starts_with(opening) {
            text = text.split_once(closing).map_or("", |(_, after)| after.trim_start());
        }
    }
    let inner = text.strip_prefix("```").and_then(|text| text.strip_suffix("```"));
    match inner {
        // The first line names the language.
        Some(inner) => inner.split_once('\n').map_or(inner, |(_, lines)| lines).trim(),
        None => text,
    }
}

/// Returns the JSON values in the Markdown fences of a text, behind its thoughts.
fn fenced(text: &str) -> Vec<Value> {
    let mut text = text;
    for (opening, closing) in OPENING.iter().zip(CLOSING) {
        if let Some((_, after)) = text.rsplit_once(closing) {
            text = after;
        }
        // A thought that has not ended.
        if let Some((before, _)) = text.split_once(opening) {
            text = before;
        }
    }
    let mut values = Vec::new();
    // Every second part is inside a fence. Its first line names the language.
    for inside in text.split("```").skip(1).step_by(2) {
        let lines = inside.split_once('\n').map_or(inside, |(_, lines)| lines);
        if let Ok(value @ (Value::Object(_) | Value::Array(_))) = serde_json::from_str(lines) {
            values.push(value);
        }
    }
    values
}

/// Returns the objects and arrays of a text, outermost only, behind its thoughts.
fn values(text: &str) -> Result<Vec<Value>, String> {
    let mut search = JsonSearch::default();
    let mut values = Vec::new();
    let mut broken = None;
    let mut rest = text;
    while let Some(found) = search.find(&mut rest) {
        if found == Found::EndOfThought {
            // A server may have removed the opening tag, so everything before was a thought.
            values.clear();
            broken = None;
            continue;
        }
        if broken.is_some() {
            rest = &rest[1..];
            continue;
        }
        let mut reader = Deserializer::from_str(rest).into_iter();
        match reader.next() {
            Some(Ok(value)) => {
                values.push(value);
                rest = &rest[reader.byte_offset()..];
            }
            Some(Err(fault)) if begins_as_json(rest) => broken = Some(format!("it is not JSON: {fault}")),
            _ => rest = &rest[1..],
        }
    }
    match broken {
        Some(fault) => Err(fault),
        None => Ok(values),
    }
}

/// Returns `true` if a text that begins with `{` or `[` is meant as JSON, and not as a part of a sentence.
fn begins_as_json(text: &str) -> bool {
    let (first, rest) = text.split_at(1);
    rest.trim_start().starts_with(if first == "{" { '"' } else { '{' })
}

/// A place in a text that [`JsonSearch`] has found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Found {
    /// The rest of the text begins with `{` or `[`.
    Container,
    /// The text before was a thought, although no tag has opened it.
    EndOfThought,
}

/// Searches a text for the beginnings of objects and arrays, outside of thoughts. The text may arrive in pieces.
#[derive(Clone, Debug, Default)]
pub(crate) struct JsonSearch {
    is_thought: bool,
    /// The beginning of a tag, at the end of the text so far.
    tag: String,
}

impl JsonSearch {
    /// Takes text from the front of `text`, up to the next place. Returns `None` when nothing is left.
    pub(crate) fn find(&mut self, text: &mut &str) -> Option<Found> {
        loop {
            if self.tag.is_empty() {
                *text = text.find(['<', '{', '[']).map_or("", |at| &text[at..]);
            }
            let char = text.chars().next()?;
            if self.continues_tag(char) {
                *text = &text[char.len_utf8()..];
                if CLOSING.contains(&self.tag.as_str()) {
                    self.tag.clear();
                    if !take(&mut self.is_thought) {
                        return Some(Found::EndOfThought);
                    }
                } else if OPENING.contains(&self.tag.as_str()) {
                    self.tag.clear();
                    self.is_thought = true;
                }
            } else if !self.tag.is_empty() {
                // The character may begin something itself, so the next round looks at it again.
                self.tag.clear();
            } else if char != '<' && !self.is_thought {
                return Some(Found::Container);
            } else {
                *text = &text[char.len_utf8()..];
            }
        }
    }

    /// Appends a character to the beginning of a tag, unless no tag begins so.
    fn continues_tag(&mut self, char: char) -> bool {
        self.tag.push(char);
        let is_tag = |tag: &&str| tag.starts_with(self.tag.as_str());
        let continues = CLOSING.iter().any(is_tag) || (!self.is_thought && OPENING.iter().any(is_tag));
        if !continues {
            self.tag.pop();
        }
        continues
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::Found::{Container, EndOfThought};
    use super::*;
    use crate::typed::from_value;

    fn any(text: &str) -> Result<Value, String> {
        json_in(text, |value| Ok(value.clone()))
    }

    #[test]
    fn a_value_is_found_in_a_fence_behind_thoughts_and_behind_a_sentence() {
        let a = json!({"a": "</think> ```"});
        let texts = [
            "$",
            "```json\n$\n```",
            "```\n$```",
            "```$```",
            "~~~json\n$\n~~~",
            "<think>{\"a\": 1}</think>$",
            "<thinking>\n{\n</thinking>\n\n$",
            "<think></think>\n\n```json\n$\n```\n",
            "Let me see: {\"a\": 1}, {\"b\": </think>\n$",
            "Sure! Here it is:\n\n$\n\nAnything else {or not}?",
            "I use {x} and <b>: $",
            "```json\n$",
            "Here:\n```json\n$\n```\nAnd again: $",
            "<think>$ <think> B</think> <think>C</think> $",
            "{{$}}",
        ];
        for text in texts {
            assert_eq!(any(&text.replace('$', &a.to_string())), Ok(a.clone()), "{text}");
        }
    }

    #[test]
    fn a_whole_text_may_be_a_scalar_or_a_list() {
        let table = [
            ("\"x\"", json!("x")),
            (" 12 ", json!(12)),
            ("```json\ntrue\n```", json!(true)),
            ("<think>12</think>13", json!(13)),
            ("So: [1, 2]", json!([1, 2])),
            ("```[1]```", json!([1])),
        ];
        for (text, expected) in table {
            assert_eq!(any(text), Ok(expected), "{text}");
        }
    }

    #[test]
    fn a_draft_a_part_or_a_thought_is_not_taken_for_the_answer() {
        let fit = |text: &str| json_in(text, from_value::<std::collections::BTreeMap<String, u32>>);
        let table = [
            ("Two.", "it is not JSON: expected value at line 1 column 1"),
            ("", "it is not JSON: EOF while parsing a value at line 1 column 0"),
            ("<think>{\"a\": 1}", "it is not JSON: EOF while parsing a value at line 1 column 0"),
            ("{\"a\": 1}\n</think>\n", "it is not JSON: trailing characters at line 2 column 1"),
            ("First {\"a\": 1}, then {\"a\": 2}", "it has several JSON values that fit, and they differ"),
            ("So: {\"b\": {\"a\": 1}, oops}", "it is not JSON: key must be a string at line 1 column 17"),
            ("So: [{\"a\": 1}, oops]", "it is not JSON: expected value at line 1 column 12"),
            ("So: {\"b\": {\"a\": 1}", "it is not JSON: EOF while parsing an object at line 1 column 14"),
            ("So: {\"a\": \"x\"}", "at `a`: invalid type: string \"x\", expected u32"),
            ("So [1]: {\"a\": \"x\"}", "at `a`: invalid type: string \"x\", expected u32"),
        ];
        for (text, expected) in table {
            let fault = fit(text).unwrap_err();
            assert!(fault.starts_with(expected), "{text}: {fault}");
        }
        assert_eq!(fit("See [1] and [x]: {\"a\": 1}. So {\"a\": 1}.").unwrap()["a"], 1, "equal values are one");
    }

    #[test]
    fn a_fenced_value_is_found_although_something_outside_is_broken_json() {
        let fit = |text: &str| json_in(text, from_value::<std::collections::BTreeMap<String, u32>>);
        let fence = "\n```json\n{\"a\": 2}\n```\n";
        for text in ["So: {\"b\": {\"a\": 1}, oops}$", "<think>{</think>[{\"a\": x}]$Done: {\"a\"", "$ and {\"a\": }"] {
            assert_eq!(fit(&text.replace('$', fence)).unwrap()["a"], 2, "{text}");
        }
        let fault = "it is not JSON: key must be a string at line 1 column 17";
        for text in ["So: {\"b\": {\"a\": 1}, oops}\n```\n{\"a\": 1\n```", "So: {\"b\": {\"a\": 1}, oops}<think>$"] {
            assert_eq!(fit(&text.replace('$', fence)).unwrap_err(), fault, "{text}");
        }
        let two = format!("{{\"a\": x}}{fence}{}", fence.replace('2', "3"));
        assert!(fit(&two).unwrap_err().starts_with("it has several JSON values that fit"));
    }

    #[test]
    fn the_search_finds_the_same_places_however_the_text_is_cut() {
        let text = "a<b{<think>{</thin</think>[<</think>{x</thinking>";
        let mut expected = Vec::new();
        for size in [text.len(), 1, 2, 3, 7] {
            let mut search = JsonSearch::default();
            let mut places = Vec::new();
            for piece in text.as_bytes().chunks(size) {
                let mut rest = std::str::from_utf8(piece).expect("ASCII");
                while let Some(found) = search.find(&mut rest) {
                    places.push(found);
                    if found == Container {
                        rest = &rest[1..];
                    }
                }
            }
            if expected.is_empty() {
                expected = places.clone();
            }
            assert_eq!(places, expected, "pieces of {size}");
        }
        assert_eq!(expected, [Container, Container, EndOfThought, Container, EndOfThought]);
    }

    #[test]
    fn a_text_full_of_beginnings_costs_linear_time() {
        // Each beginning is read at most 128 levels deep.
        for beginning in ["{", "[", "<think", "{\"", "{\"a\":", "[{", "<think>{</think>"] {
            assert!(any(&beginning.repeat(5_000)).is_err(), "{beginning}");
        }
    }
}
