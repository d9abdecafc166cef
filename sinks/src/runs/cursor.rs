//! The place of a record in a source.

use std::fmt;
use std::str::FromStr;

use serde::Serialize;
use thiserror::Error;

/// The place of a record in a [`Source`](super::Source). As text it is
/// `recording-position-number`, in hexadecimal digits.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize)]
pub struct Cursor {
    /// Identifies the recording. A file that was emptied and written anew is another recording.
    #[serde(skip)]
    pub recording: u64,
    /// The position of the record: in a file, the offset of its line.
    #[serde(rename = "at")]
    pub position: u64,
    /// The number of the record, from 1: in a file, the number of its line.
    pub number: u64,
}

/// A text is no cursor.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[error("`{0}` is no cursor; a cursor has the form `recording-position-number`, in hexadecimal digits")]
pub struct CursorError(String);

impl fmt::Display for Cursor {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:x}-{:x}-{:x}", self.recording, self.position, self.number)
    }
}

impl FromStr for Cursor {
    type Err = CursorError;

    fn from_str(text: &str) -> Result<Self, CursorError> {
        parse(text).ok_or_else(|| CursorError(text.chars().take(80).collect()))
    }
}

fn parse(text: &str) -> Option<Cursor> {
    let mut numbers = text.split('-').map(|digits| u64::from_str_radix(digits, 16).ok());
    let recording = numbers.next()??;
    let position = numbers.next()??;
    let number = numbers.next()??;
    numbers.next().is_none().then_some(Cursor { recording, position, number })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_cursor_is_read_back_from_its_text() {
        for cursor in [(0, 0, 0), (u64::MAX, 17, 3), (1, u64::MAX, u64::MAX)] {
            let (recording, position, number) = cursor;
            let cursor = Cursor { recording, position, number };
            assert_eq!(cursor.to_string().parse(), Ok(cursor));
        }
    }

    #[test]
    fn an_error_quotes_a_text_that_is_no_cursor() {
        for text in ["", "1", "1-2", "1-2-x", "1-2-3-4", "1--3", "fffffffffffffffff-1-1"] {
            let error = text.parse::<Cursor>().unwrap_err().to_string();
            assert!(error.starts_with(&format!("`{text}` is no cursor")), "{error}");
        }
    }
}
