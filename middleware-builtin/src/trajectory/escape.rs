//! Escapes: a line controls no terminal, and is not taken for two lines.

use std::borrow::Cow;

use super::tree::Level;

/// Stands before each further row of a line. The first row of a line begins in another way: with an arrow or a kind.
const FURTHER_ROW: &str = "  | ";

/// Returns the prefix of the further rows of a line.
pub(super) fn further_row(level: Level) -> String {
    " ".repeat(4 * level.relative.saturating_sub(1)) + FURTHER_ROW
}

/// Escapes a text of one row, line feeds too.
pub(super) fn escape_row(text: &str) -> Cow<'_, str> {
    escape(text, |_| false)
}

/// Escapes a text of several rows.
pub(super) fn escape_rows(text: &str) -> Cow<'_, str> {
    escape(text, |character| character == '\n')
}

fn escape(text: &str, stays: impl Fn(char) -> bool) -> Cow<'_, str> {
    // Most texts are printable ASCII, which is checked at once.
    if text.bytes().all(|byte| matches!(byte, b' '..=b'~')) {
        return Cow::Borrowed(text);
    }
    let is_escaped = |character: char| acts(character) && !stays(character);
    if !text.contains(is_escaped) {
        return Cow::Borrowed(text);
    }
    let mut escaped = String::with_capacity(text.len() + 16);
    for character in text.chars() {
        if is_escaped(character) {
            escaped.extend(character.escape_debug());
        } else {
            escaped.push(character);
        }
    }
    Cow::Owned(escaped)
}

/// Returns `true` for a character that acts on a terminal instead of being shown: C0, DEL and C1, the line and paragraph
/// separators, and the characters with the property `Bidi_Control` (UAX #9), which change the order of others.
fn acts(character: char) -> bool {
    let is_separator = matches!(character, '\u{2028}' | '\u{2029}');
    let is_bidi = matches!(
        character,
        '\u{61c}' | '\u{200e}' | '\u{200f}' | '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}'
    );
    character.is_control() || is_separator || is_bidi
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn characters_that_act_on_a_terminal_are_escaped_and_all_others_stay() {
        for (text, row, rows) in [
            ("plain, é, 語, 👩‍👩‍👧 and \\ stay", "plain, é, 語, 👩‍👩‍👧 and \\ stay", "plain, é, 語, 👩‍👩‍👧 and \\ stay"),
            ("a\nb", "a\\nb", "a\nb"),
            ("\u{1b}[2J", "\\u{1b}[2J", "\\u{1b}[2J"),
            ("a\r\u{8}\t\0\u{7f}", "a\\r\\u{8}\\t\\0\\u{7f}", "a\\r\\u{8}\\t\\0\\u{7f}"),
            ("\u{9b}2J\u{85}", "\\u{9b}2J\\u{85}", "\\u{9b}2J\\u{85}"),
            (
                "\u{202e}\u{2066}\u{200f}\u{61c}",
                "\\u{202e}\\u{2066}\\u{200f}\\u{61c}",
                "\\u{202e}\\u{2066}\\u{200f}\\u{61c}",
            ),
            ("\u{2028}\u{2029}", "\\u{2028}\\u{2029}", "\\u{2028}\\u{2029}"),
        ] {
            assert_eq!(escape_row(text), row);
            assert_eq!(escape_rows(text), rows);
        }
    }
}
