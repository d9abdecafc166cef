//! Texts of a server, as they may be shown.

use std::borrow::Cow;

use emitree_secrets::Scanner;
use serde_json::Value;

/// The most bytes of a line or an answer that an error or an event quotes.
pub(crate) const QUOTED: usize = 512;

/// Returns the first bytes of a text, with `…` if it is longer.
pub(crate) fn shortened(text: &str, most: usize) -> Cow<'_, str> {
    if text.len() <= most { text.into() } else { format!("{}…", &text[..text.floor_char_boundary(most)]).into() }
}

/// Returns a text of the server for an error or an event: short, escaped, and without keys.
pub(crate) fn quoted(text: &str) -> String {
    let text = shortened(text, QUOTED);
    let text = Scanner::keys().replace(&text, |kind, _| format!("[{kind}]")).into_owned();
    let mut quoted = String::with_capacity(text.len());
    for c in text.chars() {
        match is_hidden(c) {
            true => quoted.extend(c.escape_unicode()),
            false => quoted.push(c),
        }
    }
    quoted
}

/// Returns a text without invisible and control characters, and the number of characters that were removed.
pub(crate) fn cleaned(text: &str) -> (Cow<'_, str>, usize) {
    let is_removed = |c: char| is_hidden(c) && !matches!(c, '\n' | '\t');
    let removed = text.chars().filter(|c| is_removed(*c)).count();
    if removed == 0 { (text.into(), 0) } else { (text.replace(is_removed, "").into(), removed) }
}

/// Removes hidden characters from the texts of a schema that only explain, and returns their number. Others, such as a
/// constant, are values that the server compares.
pub(crate) fn clean_texts(schema: &mut Value) -> usize {
    match schema {
        Value::Array(items) => items.iter_mut().map(clean_texts).sum(),
        Value::Object(fields) => {
            let explains = |name: &str| matches!(name, "description" | "title" | "$comment" | "enumNames");
            let clean = |(name, field): (&String, &mut Value)| match field {
                Value::String(text) if explains(name) => clean(text),
                Value::Array(texts) if explains(name) => texts.iter_mut().map(clean_text).sum(),
                field => clean_texts(field),
            };
            fields.iter_mut().map(clean).sum()
        }
        _ => 0,
    }
}

fn clean_text(value: &mut Value) -> usize {
    if let Value::String(text) = value { clean(text) } else { 0 }
}

/// Removes hidden characters, and returns their number.
pub(crate) fn clean(text: &mut String) -> usize {
    let (clean, removed) = cleaned(text);
    if removed > 0 {
        *text = clean.into_owned();
    }
    removed
}

/// Returns `true` for control characters, and for characters that a person does not see and a model reads: zero-width
/// characters, direction marks, soft hyphens, variation selectors, fillers and tags.
fn is_hidden(c: char) -> bool {
    c.is_control()
        || matches!(c, '\u{ad}' | '\u{34f}' | '\u{61c}' | '\u{115f}' | '\u{1160}' | '\u{17b4}' | '\u{17b5}'
            | '\u{180b}'..='\u{180f}' | '\u{200b}'..='\u{200f}' | '\u{2028}'..='\u{202e}' | '\u{2060}'..='\u{206f}'
            | '\u{3164}' | '\u{fe00}'..='\u{fe0f}' | '\u{feff}' | '\u{ffa0}' | '\u{fff0}'..='\u{fffb}'
            | '\u{1bca0}'..='\u{1bca3}' | '\u{1d173}'..='\u{1d17a}' | '\u{e0000}'..='\u{e0fff}')
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hidden_characters_are_removed_and_counted() {
        for (text, expected, removed) in [
            ("Sends money", "Sends money", 0),
            ("two\n\tlines", "two\n\tlines", 0),
            ("a\u{200b}b\u{202e}c", "abc", 2),
            ("a\u{e0041}\u{e0042}", "a", 2),
            ("bell\u{7}", "bell", 1),
        ] {
            assert_eq!(cleaned(text), (expected.into(), removed), "{text:?}");
        }
    }

    #[test]
    fn a_quoted_text_is_short_escaped_and_without_keys() {
        assert_eq!(quoted("a\u{1b}[31m\u{202e}b"), "a\\u{1b}[31m\\u{202e}b");
        assert_eq!(quoted(&"é".repeat(400)), format!("{}…", "é".repeat(256)));
        let key = format!("ghp_{}", "aB3dE5fG7hJ9kL1mN3pQ5rS7tU9vW1xY3zA5");
        assert!(!quoted(&format!("token {key}")).contains(&key));
    }
}
