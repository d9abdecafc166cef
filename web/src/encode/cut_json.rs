//! The end of JSON that was cut: a call that is taken back has to be closed with arguments that can be read.

/// Returns the text that makes the beginning of a JSON value a whole value. Text that is no JSON gets none.
pub(super) fn rest_of(cut: &str) -> String {
    let mut scan = Scan::default();
    cut.chars().for_each(|c| scan.add(c));
    scan.rest()
}

/// The place at which a JSON text ends.
#[derive(Default)]
struct Scan {
    /// The closing brackets of the open objects and lists.
    open: Vec<char>,
    string: Option<Escape>,
    /// The number or the word that ends the text.
    word: String,
    last: Last,
}

/// The progress of an escape in a string.
#[derive(Clone, Copy, PartialEq)]
enum Escape {
    None,
    Begun,
    /// The number of hexadecimal digits that are missing.
    Digits(usize),
}

/// The last token.
#[derive(Clone, Copy, Default, PartialEq)]
enum Last {
    #[default]
    Nothing,
    Opened,
    Comma,
    Colon,
    /// A string at the place of a key.
    Key,
    Value,
}

impl Scan {
    fn add(&mut self, c: char) {
        if let Some(escape) = self.string {
            self.string = match (escape, c) {
                (Escape::None, '"') => None,
                (Escape::None, '\\') => Some(Escape::Begun),
                (Escape::Begun, 'u') => Some(Escape::Digits(4)),
                (Escape::Digits(2..), _) => Some(Escape::Digits(self.missing() - 1)),
                _ => Some(Escape::None),
            };
            return;
        }
        if c.is_ascii_alphanumeric() || "+-.".contains(c) {
            self.word.push(c);
            self.last = Last::Value;
            return;
        }
        let closed = std::mem::take(&mut self.word);
        match c {
            '"' => {
                let is_key = self.open.last() == Some(&'}') && matches!(self.last, Last::Opened | Last::Comma);
                self.last = if is_key { Last::Key } else { Last::Value };
                self.string = Some(Escape::None);
            }
            '{' | '[' => {
                self.open.push(if c == '{' { '}' } else { ']' });
                self.last = Last::Opened;
            }
            '}' | ']' => {
                self.open.pop();
                self.last = Last::Value;
            }
            ',' => self.last = Last::Comma,
            ':' => self.last = Last::Colon,
            // A space ends no word, if nothing follows: `1 ` is a whole number.
            _ => self.word = closed,
        }
    }

    const fn missing(&self) -> usize {
        match self.string {
            Some(Escape::Digits(missing)) => missing,
            _ => 0,
        }
    }

    fn rest(&self) -> String {
        let mut rest = match self.string {
            Some(Escape::None) => "\"".to_owned(),
            Some(Escape::Begun) => "\\\"".to_owned(),
            Some(Escape::Digits(missing)) => "0".repeat(missing) + "\"",
            None => self.rest_of_word().to_owned(),
        };
        let is_object = self.open.last() == Some(&'}');
        rest.push_str(match self.last {
            Last::Nothing | Last::Colon => "null",
            Last::Comma if is_object => "\"\":null",
            Last::Comma => "null",
            Last::Key => ":null",
            Last::Opened | Last::Value => "",
        });
        rest.extend(self.open.iter().rev());
        rest
    }

    /// Returns the end of a number or a word.
    fn rest_of_word(&self) -> &'static str {
        let word = self.word.trim();
        if word.ends_with(['-', '+', '.', 'e', 'E']) && word.starts_with(|c: char| c == '-' || c.is_ascii_digit()) {
            return "0";
        }
        ["true", "false", "null"]
            .into_iter()
            .find_map(|whole| whole.strip_prefix(word))
            .filter(|_| !word.is_empty())
            .unwrap_or("")
    }
}

#[cfg(test)]
mod tests {
    use serde_json::Value;

    use super::rest_of;

    #[test]
    fn json_that_is_cut_at_any_character_becomes_whole() {
        let whole = r#" {"a\"\\": [1, -2.5e+3, tr"#.to_owned()
            + r#"ue, false ,null, {}, [ ], "\u00e9\n"], "b" : {"c": "ü", "": [[0.5], {"d":1E5}]} } "#;
        for (end, _) in whole.char_indices().skip(1) {
            let text = format!("{}{}", &whole[..end], rest_of(&whole[..end]));
            assert!(serde_json::from_str::<Value>(&text).is_ok(), "{text}");
        }
    }
}
