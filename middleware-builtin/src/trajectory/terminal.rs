//! A line on a terminal: the outcome in color, and the value cut or wrapped to the width.

use std::borrow::Cow;
use std::io::{self, IsTerminal};

use anstyle::{AnsiColor, Style};
use emitree_runtime::Stage;
use terminal_size::{Width, terminal_size_of};
use unicode_width::{UnicodeWidthChar, UnicodeWidthStr};

/// The columns of a terminal that does not report them.
const COLUMNS: usize = 80;
/// The columns that a value has at least, behind a long head.
const LEAST: usize = 16;

/// Returns the columns of standard output, if it is a terminal. They may change at any time.
pub(super) fn columns_of_stdout() -> Option<usize> {
    let stdout = io::stdout();
    stdout.is_terminal().then(|| terminal_size_of(stdout).map_or(COLUMNS, |(Width(columns), _)| columns.into()))
}

/// Returns the columns of standard error, if it is a terminal.
pub(super) fn columns_of_stderr() -> Option<usize> {
    let stderr = io::stderr();
    stderr.is_terminal().then(|| terminal_size_of(stderr).map_or(COLUMNS, |(Width(columns), _)| columns.into()))
}

/// Returns a value, with the colon before it, that fits behind its head: its beginning, and its size.
pub(super) fn cut<'a>(head: &str, value: &'a str, columns: usize) -> Cow<'a, str> {
    if head.width() + value.width() <= columns {
        return Cow::Borrowed(value);
    }
    let size = format!(" … {}", size_of(value.strip_prefix(": ").unwrap_or(value)));
    let room = columns.saturating_sub(head.width() + size.width()).max(LEAST);
    let mut used = 0;
    let beginning = value.chars().take_while(|character| {
        used += character.width().unwrap_or(0);
        used <= room
    });
    Cow::Owned(beginning.collect::<String>() + &size)
}

/// Breaks the rows of a text at the columns, if possible behind a space, and begins each further row with a prefix.
pub(super) fn wrap(text: &str, columns: usize, further: &str) -> String {
    // On a narrow terminal, the rows of a deep level are not indented.
    let further = if further.width() + LEAST > columns { further.trim_start() } else { further };
    let room = columns.saturating_sub(further.width()).max(1);
    let mut wrapped = String::with_capacity(text.len() + 16);
    for (nth, row) in text.split('\n').enumerate() {
        let mut rest = row;
        if nth == 0 {
            let (first, others) = rest.split_at(end_of_row(rest, columns));
            wrapped.push_str(first);
            rest = others;
        } else if rest.is_empty() {
            wrapped.push('\n');
            wrapped.push_str(further);
        }
        while !rest.is_empty() {
            let (next, others) = rest.split_at(end_of_row(rest, room));
            wrapped.push('\n');
            wrapped.push_str(further);
            wrapped.push_str(next);
            rest = others;
        }
    }
    wrapped
}

/// Returns the number of bytes of a text that one row of these columns shows: at least one character.
fn end_of_row(text: &str, columns: usize) -> usize {
    let mut used = 0;
    let mut space = 0;
    for (at, character) in text.char_indices() {
        used += character.width().unwrap_or(0);
        if used > columns && at > 0 {
            // A long word is broken, so that a row is at least half full.
            return if space > at / 2 { space } else { at };
        }
        if character == ' ' {
            space = at + 1;
        }
    }
    text.len()
}

/// Colors the last `[event]` of the head with which rows begin by its outcome.
pub(super) fn colored(rows: &str, head: &str, stage: Stage) -> String {
    let color = match stage {
        Stage::Success => AnsiColor::Green,
        Stage::Error => AnsiColor::Red,
        Stage::Start | Stage::Finish => return rows.to_owned(),
    };
    let event = stage.as_str();
    let style = Style::new().fg_color(Some(color.into()));
    // A head that is wider than the terminal is wrapped, and has no color.
    let parts = rows.strip_prefix(head).and_then(|value| Some((head.rsplit_once(&format!("[{event}]"))?, value)));
    match parts {
        Some(((before, after), value)) => format!("{before}{style}[{event}]{style:#}{after}{value}"),
        None => rows.to_owned(),
    }
}

fn size_of(value: &str) -> String {
    match value.len() {
        bytes @ ..1000 => format!("{bytes} B"),
        bytes @ 1000..1_000_000 => format!("{}.{} KB", bytes / 1000, bytes % 1000 / 100),
        bytes => format!("{}.{} MB", bytes / 1_000_000, bytes % 1_000_000 / 100_000),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_value_that_is_too_wide_is_cut_to_the_columns_and_shows_its_size() {
        let long = "x".repeat(8_100);
        let wide = "語".repeat(30);
        for (head, value, columns, expected) in [
            ("head: ", "short", 40, "short".to_owned()),
            ("head: ", &"y".repeat(34), 40, "y".repeat(34)),
            ("head: ", &"y".repeat(35), 40, format!("{} … 35 B", "y".repeat(27))),
            ("head: ", &long, 40, format!("{} … 8.1 KB", "x".repeat(25))),
            ("head: ", &wide, 40, format!("{} … 90 B", "語".repeat(13))),
            (&"h".repeat(60), &long, 40, format!("{} … 8.1 KB", "x".repeat(16))),
        ] {
            let cut = cut(head, value, columns);
            assert_eq!(cut, expected, "{head}{value}");
            assert!(head.len() > columns || head.width() + cut.width() <= columns, "{head}{cut}");
        }
    }

    #[test]
    fn a_text_is_wrapped_at_the_columns_and_each_further_row_has_the_prefix() {
        for (text, expected) in [
            ("x".repeat(20), "x".repeat(20)),
            ("x".repeat(21), format!("{}\n  | x", "x".repeat(20))),
            ("x".repeat(37), format!("{}\n  | {}\n  | x", "x".repeat(20), "x".repeat(16))),
            ("one two three four five".to_owned(), "one two three four \n  | five".to_owned()),
            ("a\nb\n\n".to_owned() + &"語".repeat(9), format!("a\n  | b\n  | \n  | {}\n  | 語", "語".repeat(8))),
        ] {
            assert_eq!(wrap(&text, 20, "  | "), expected);
        }
        let deep = " ".repeat(9) + "| ";
        assert_eq!(wrap(&"x".repeat(19), 10, &deep), format!("{}\n| {}\n| x", "x".repeat(10), "x".repeat(8)));
    }

    #[test]
    fn only_outcomes_have_a_color() {
        let green = "\u{1b}[32m";
        let red = "\u{1b}[31m";
        let end = "\u{1b}[0m";
        for (stage, expected) in [
            (Stage::Start, "<-- Tool[[start]][start]".to_owned()),
            (Stage::Success, format!("<-- Tool[[success]]{green}[success]{end} #2 (1.2s)")),
            (Stage::Error, format!("<-- Tool[[error]]{red}[error]{end}")),
        ] {
            let plain = expected.replace(green, "").replace(red, "").replace(end, "");
            let event = stage.as_str();
            assert_eq!(colored(&format!("{plain}: [{event}]"), &plain, stage), format!("{expected}: [{event}]"));
        }
    }

    #[test]
    fn a_size_has_a_unit() {
        for (bytes, expected) in
            [(0, "0 B"), (999, "999 B"), (1000, "1.0 KB"), (8_192, "8.1 KB"), (2_560_000, "2.5 MB")]
        {
            assert_eq!(size_of(&"x".repeat(bytes)), expected);
        }
    }
}
