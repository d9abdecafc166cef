//! What a middleware or a layer says of itself where they are listed (M2).

use std::fmt::{self, Debug, Write};

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

/// What a middleware or a layer says of itself: a text, or named values.
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
    /// How many bytes [`of`](Self::of) takes at most.
    pub const MAX_BYTES: usize = 512;

    /// What `Debug` says, cut at [`MAX_BYTES`](Self::MAX_BYTES), or before the character that would pass them.
    pub fn of<T: Debug + ?Sized>(value: &T) -> Self {
        let mut text = TruncatedText(String::new());
        // An error says that the text is full: what is there stays.
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

/// The text, or the values as `name=value`.
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

/// Takes no more than fits, so that a long `Debug` ends early.
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
    fn a_debug_is_cut_at_its_size_between_characters() {
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
