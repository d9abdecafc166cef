//! Descriptions of middlewares and layers for lists (M2).

use std::fmt::{self, Debug, Write};

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

/// The description of a middleware or layer: a text, or named values.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(untagged)]
#[non_exhaustive]
pub enum Summary {
    /// A text for people.
    Text(String),
    /// Named values.
    Fields(Map<String, Value>),
}

impl Summary {
    /// The maximum length of a text that [`of`](Self::of) returns, in bytes.
    pub const MAX_BYTES: usize = 512;

    /// Returns the `Debug` output of a value, truncated to at most [`MAX_BYTES`](Self::MAX_BYTES), at a character
    /// boundary.
    ///
    /// ```
    /// use emitree_runtime::Summary;
    ///
    /// assert_eq!(Summary::of(&[1, 2]), Summary::Text("[1, 2]".to_owned()));
    /// ```
    pub fn of<T: Debug + ?Sized>(value: &T) -> Self {
        let mut text = TruncatedText(String::new());
        // An error only means that the text is full, or that `Debug` failed.
        write!(text, "{value:?}").ok();
        Self::Text(text.0)
    }
}

impl From<&str> for Summary {
    fn from(text: &str) -> Self {
        Self::Text(text.to_owned())
    }
}

impl From<String> for Summary {
    fn from(text: String) -> Self {
        Self::Text(text)
    }
}

impl From<Map<String, Value>> for Summary {
    fn from(fields: Map<String, Value>) -> Self {
        Self::Fields(fields)
    }
}

/// Displays the text, or the values as `name=value`.
impl fmt::Display for Summary {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Text(text) => f.write_str(text),
            Self::Fields(fields) => fields.iter().enumerate().try_for_each(|(i, (name, value))| {
                let comma = if i == 0 { "" } else { ", " };
                write!(f, "{comma}{name}={value}")
            }),
        }
    }
}

/// A text of at most [`Summary::MAX_BYTES`]. Writing to a full text fails, so that a long `Debug` output stops early.
struct TruncatedText(String);

impl Write for TruncatedText {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        let room = Summary::MAX_BYTES - self.0.len();
        let fits = text.floor_char_boundary(room);
        self.0.push_str(&text[..fits]);
        if fits < text.len() { Err(fmt::Error) } else { Ok(()) }
    }
}

#[cfg(test)]
mod tests {
    use super::Summary;

    #[test]
    fn debug_output_is_cut_at_a_character_boundary_within_the_maximum_length() {
        let rows = [
            ("a".repeat(510), 512, 'a'),
            ("a".repeat(511), 512, 'a'),
            ("a".repeat(9_000), 512, 'a'),
            (format!("{}é", "a".repeat(510)), 511, 'a'),
        ];
        for (text, len, last) in rows {
            let Summary::Text(cut) = Summary::of(&text) else { panic!("a text") };
            assert_eq!(cut.len(), len, "{cut}");
            assert!(cut.trim_end_matches('"').ends_with(last), "{cut}");
        }
        assert_eq!(Summary::of(&"short"), Summary::Text("\"short\"".to_owned()));
    }
}
