//! A string of a JSON text, whose text arrives in pieces.

use std::mem::replace;

/// A string that is open, after its first quote.
#[derive(Clone, Debug)]
pub(super) struct Text {
    /// `true` if the decoded text is kept.
    pub(super) is_kept: bool,
    pub(super) status: Status,
    escape: Escape,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Status {
    Open,
    Ended,
    Broken,
}

/// The part of an escape that has arrived.
#[derive(Clone, Copy, Debug)]
enum Escape {
    None,
    Backslash,
    /// Digits of `\uXXXX`, after the first half of a character if it has two.
    Digits {
        half: Option<u32>,
        value: u32,
        count: u8,
    },
    /// The second half of a character must follow: its backslash, and then its `u`.
    Half {
        half: u32,
        has_backslash: bool,
    },
}

impl Text {
    pub(super) const fn new(is_kept: bool) -> Self {
        Self { is_kept, status: Status::Open, escape: Escape::None }
    }

    /// Takes text from the front of `rest`, up to the end of the string, and appends to `kept` what is certain of it:
    /// only an incomplete escape waits.
    pub(super) fn take(&mut self, rest: &mut &str, kept: &mut String) {
        while self.status == Status::Open && !rest.is_empty() {
            let used = match self.escape {
                Escape::None => self.take_plain(rest, kept),
                _ => self.take_escaped(rest, kept),
            };
            *rest = &rest[used..];
        }
    }

    /// Takes the text before the next escape, or before the end of the string. Returns the number of bytes.
    fn take_plain(&mut self, rest: &str, kept: &mut String) -> usize {
        let end = rest.find(['"', '\\']).unwrap_or(rest.len());
        if self.is_kept {
            kept.push_str(&rest[..end]);
        }
        match rest.as_bytes().get(end) {
            None => return end,
            Some(b'"') => self.status = Status::Ended,
            Some(_) => self.escape = Escape::Backslash,
        }
        end + 1
    }

    /// Takes a character of an escape. Returns the number of bytes.
    fn take_escaped(&mut self, rest: &str, kept: &mut String) -> usize {
        let Some(char) = rest.chars().next() else { return 0 };
        match self.escaped(char) {
            Ok(Some(decoded)) if self.is_kept => kept.push(decoded),
            Ok(_) => {}
            Err(()) => self.status = Status::Broken,
        }
        char.len_utf8()
    }

    /// Takes a character of an escape. Returns the character that the escape means, when it is complete.
    fn escaped(&mut self, char: char) -> Result<Option<char>, ()> {
        let digits = |half| Escape::Digits { half, value: 0, count: 0 };
        let (escape, decoded) = match (replace(&mut self.escape, Escape::None), char) {
            (Escape::Backslash, 'u') => (digits(None), None),
            (Escape::Backslash, char) => (Escape::None, Some(short(char).ok_or(())?)),
            (Escape::Half { half, has_backslash: false }, '\\') => (Escape::Half { half, has_backslash: true }, None),
            (Escape::Half { half, has_backslash: true }, 'u') => (digits(Some(half)), None),
            (Escape::Digits { half, value, count }, char) => {
                let value = value * 16 + char.to_digit(16).ok_or(())?;
                match (half, value) {
                    _ if count < 3 => (Escape::Digits { half, value, count: count + 1 }, None),
                    (None, 0xD800..=0xDBFF) => (Escape::Half { half: value, has_backslash: false }, None),
                    (None, value) => (Escape::None, Some(char::from_u32(value).ok_or(())?)),
                    (Some(half), 0xDC00..=0xDFFF) => {
                        let char = char::from_u32(0x1_0000 + ((half - 0xD800) << 10) + (value - 0xDC00));
                        (Escape::None, Some(char.ok_or(())?))
                    }
                    (Some(_), _) => return Err(()),
                }
            }
            (Escape::None | Escape::Half { .. }, _) => return Err(()),
        };
        self.escape = escape;
        Ok(decoded)
    }
}

/// Returns the character that a backslash and this character mean.
const fn short(char: char) -> Option<char> {
    Some(match char {
        '"' | '\\' | '/' => char,
        'b' => '\u{8}',
        'f' => '\u{c}',
        'n' => '\n',
        'r' => '\r',
        't' => '\t',
        _ => return None,
    })
}
