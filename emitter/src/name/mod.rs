//! Names of events and emitters. A name is checked once, when the caller passes it (E2).

pub(crate) mod namespace;

use std::borrow::Cow;

use thiserror::Error;

/// A checked event name.
///
/// A name built in a `const` costs neither a check nor a hash when it is used to emit:
///
/// ```
/// use emitree_emitter::EventName;
///
/// const NEW_TOKEN: EventName = EventName::new("new_token");
/// assert_eq!(NEW_TOKEN.as_str(), "new_token");
/// ```
///
/// A name has one or more segments of `[A-Za-z0-9_]+`. A name with a dot (`"run.start"`) names an event of a
/// sub-namespace: the event's path ends with the whole name, and the event is not an *own* event of any emitter.
#[derive(Clone, Copy, Debug)]
pub struct EventName(HashedName<'static>);

/// A name with its hash.
#[derive(Clone, Copy, Debug)]
struct HashedName<'a> {
    text: &'a str,
    hash: u64,
    dotted: bool,
}

impl EventName {
    /// Creates a checked name in a `const`.
    ///
    /// # Panics
    ///
    /// Panics if the name is not valid. In a `const`, the panic is a compile error. Use [`try_new`](Self::try_new) for
    /// names that are only known at run time.
    #[must_use]
    #[expect(clippy::panic, reason = "evaluated in a const, where the panic is the intended compile error")]
    pub const fn new(name: &'static str) -> Self {
        match NameFault::of(name) {
            None => Self::unchecked(name),
            Some(_) => panic!("an event name is made of [A-Za-z0-9_]+ segments joined by dots"),
        }
    }

    /// Creates a checked name at run time.
    ///
    /// # Errors
    ///
    /// Returns an error if a segment is empty or has a character outside `[A-Za-z0-9_]`.
    pub fn try_new(name: &'static str) -> Result<Self, NameError> {
        check(name)?;
        Ok(Self::unchecked(name))
    }

    const fn unchecked(name: &'static str) -> Self {
        let bytes = name.as_bytes();
        Self(HashedName { text: name, hash: fingerprint(bytes), dotted: classes(bytes) & DOT != 0 })
    }

    /// Returns the name as text.
    #[must_use]
    pub const fn as_str(&self) -> &'static str {
        self.0.text
    }
}

impl PartialEq for EventName {
    fn eq(&self, other: &Self) -> bool {
        self.0.text == other.0.text
    }
}

impl Eq for EventName {}

/// A namespace that is checked in a `const`, so that [`Emitter::child_of`](crate::Emitter::child_of) cannot fail.
///
/// ```
/// use emitree_emitter::{Emitter, Namespace};
///
/// const CHAT: Namespace = Namespace::new("backend.chat");
/// assert_eq!(Emitter::new().child_of(CHAT).namespace(), "backend.chat");
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Namespace(&'static str);

impl Namespace {
    /// Creates a checked namespace in a `const`.
    ///
    /// # Panics
    ///
    /// Panics if the namespace is not valid. In a `const`, the panic is a compile error.
    #[must_use]
    #[expect(clippy::panic, reason = "evaluated in a const, where the panic is the intended compile error")]
    pub const fn new(namespace: &'static str) -> Self {
        match NameFault::of(namespace) {
            None => Self(namespace),
            Some(_) => panic!("a namespace is made of [A-Za-z0-9_]+ segments joined by dots"),
        }
    }

    /// Returns the namespace as text.
    #[must_use]
    pub const fn as_str(&self) -> &'static str {
        self.0
    }
}

/// A value that names an event: an [`EventName`], or text, which is checked on every emit.
#[diagnostic::on_unimplemented(
    message = "`{Self}` is not the name of an event",
    label = "expected text or an `EventName`",
    note = "a payload that carries its name is emitted by `emit_event`"
)]
pub trait AsName: Send + Sync {
    /// Returns the name with its hash.
    fn as_name(&self) -> NameRef<'_>;
}

/// A borrowed event name with its hash.
#[derive(Clone, Copy, Debug)]
pub struct NameRef<'a> {
    name: HashedName<'a>,
    /// `true` if the name is known to be valid.
    checked: bool,
}

impl<'a> NameRef<'a> {
    /// Returns the name as text.
    #[must_use]
    pub const fn as_str(&self) -> &'a str {
        self.name.text
    }

    pub(crate) const fn hash(&self) -> u64 {
        self.name.hash
    }

    /// Returns `true` if the name is `text`, whose hash is `hash`.
    #[inline(always)]
    pub(crate) fn is(&self, text: &str, hash: u64) -> bool {
        self.name.hash == hash && is_same(text, self.name.text)
    }

    /// Returns the bit that stands for the name in a 64-bit filter.
    pub(crate) const fn bit(&self) -> u64 {
        bit(self.name.hash)
    }

    pub(crate) const fn is_dotted(&self) -> bool {
        self.name.dotted
    }

    /// Checks the name unless it is known to be valid (E2).
    #[inline]
    pub(crate) fn check(&self) -> Result<(), NameError> {
        if self.checked { Ok(()) } else { check(self.name.text) }
    }
}

impl AsName for EventName {
    #[inline]
    fn as_name(&self) -> NameRef<'_> {
        NameRef { name: self.0, checked: true }
    }
}

impl AsName for str {
    #[inline]
    fn as_name(&self) -> NameRef<'_> {
        let bytes = self.as_bytes();
        let classes = classes(self.as_bytes());
        let name = HashedName { text: self, hash: fingerprint(bytes), dotted: classes & DOT != 0 };
        // The classes show whether a name of one segment is valid. `check` validates all other names.
        NameRef { name, checked: is_plain(bytes, classes) }
    }
}

impl AsName for String {
    #[inline]
    fn as_name(&self) -> NameRef<'_> {
        self.as_str().as_name()
    }
}

impl<N: AsName + ?Sized> AsName for &N {
    #[inline]
    fn as_name(&self) -> NameRef<'_> {
        (**self).as_name()
    }
}

/// The error returned for a name that is not valid.
#[derive(Clone, Debug, Error, PartialEq, Eq)]
#[error("`{name}` is not a valid name: {fault}; use segments of [A-Za-z0-9_]+ joined by dots")]
pub struct NameError {
    name: Cow<'static, str>,
    fault: NameFault,
}

impl NameError {
    /// Returns the invalid name.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.name
    }
}

#[derive(Clone, Copy, Debug, Error, PartialEq, Eq)]
enum NameFault {
    #[error("it is empty")]
    Empty,
    #[error("the segment at byte {at} is empty")]
    EmptySegment { at: usize },
    #[error("the character at byte {at} is not allowed")]
    Character { at: usize },
}

impl NameFault {
    /// Returns the first fault in a dotted name, if it has one.
    const fn of(name: &str) -> Option<Self> {
        let bytes = name.as_bytes();
        if bytes.is_empty() {
            return Some(Self::Empty);
        }
        let mut start = 0;
        let mut at = 0;
        while at < bytes.len() {
            match bytes[at] {
                b'a'..=b'z' | b'A'..=b'Z' | b'0'..=b'9' | b'_' => {}
                b'.' if at == start => return Some(Self::EmptySegment { at }),
                b'.' => start = at + 1,
                _ => return Some(Self::Character { at }),
            }
            at += 1;
        }
        if start == bytes.len() { Some(Self::EmptySegment { at: start }) } else { None }
    }
}

/// Checks a dotted name.
pub(crate) fn check(name: &str) -> Result<(), NameError> {
    match NameFault::of(name) {
        None => Ok(()),
        Some(fault) => Err(NameError { name: Cow::Owned(name.to_owned()), fault }),
    }
}

/// The class of a dot. Word characters have no class bit.
const DOT: u8 = 1;
/// The class of a character that no name may contain.
const FOREIGN: u8 = 2;

/// The class of each byte.
const CLASSES: [u8; 256] = {
    let mut classes = [FOREIGN; 256];
    let mut byte = 0;
    while byte < 128 {
        if (byte as u8).is_ascii_alphanumeric() || byte as u8 == b'_' {
            classes[byte] = 0;
        }
        byte += 1;
    }
    classes[b'.' as usize] = DOT;
    classes
};

/// Returns the classes of all bytes of a name, in one pass without an early exit. Usually no bit is set, because all
/// bytes are word characters. If the dot's bit is set, the name contains a dot.
#[inline]
const fn classes(name: &[u8]) -> u8 {
    let mut at = 0;
    let mut classes = 0;
    while at < name.len() {
        classes |= CLASSES[name[at] as usize];
        at += 1;
    }
    classes
}

/// Returns `true` for a valid name of one segment.
#[inline]
const fn is_plain(name: &[u8], classes: u8) -> bool {
    classes == 0 && !name.is_empty()
}

/// Hashes only the length and both ends of a name, so that hashing is cheap. Names with equal hashes are compared in
/// full.
#[inline]
pub(crate) const fn fingerprint(text: &[u8]) -> u64 {
    const SPREAD: u64 = 0x9E37_79B9_7F4A_7C15;
    let n = text.len();
    // Texts of fewer than 4 bytes are read byte by byte, because they are shorter than the shortest word.
    let (head, tail) = match n {
        0 => (0, 0),
        1..4 => (text[0] as u64, ((text[n / 2] as u64) << 8) | text[n - 1] as u64),
        4..8 => (word4(text, 0), word4(text, n - 4)),
        _ => (word8(text, 0), word8(text, n - 8)),
    };
    let mixed =
        (head ^ (n as u64).wrapping_mul(SPREAD)).wrapping_mul(SPREAD) ^ tail.wrapping_mul(SPREAD).rotate_left(29);
    mixed ^ (mixed >> 32)
}

/// Compares two names. Names of 8 to 16 bytes fit into two overlapping words, which are compared without a call.
#[inline]
pub(crate) fn is_same(a: &str, b: &str) -> bool {
    let a = a.as_bytes();
    let b = b.as_bytes();
    match a.len() {
        8..=16 => a.len() == b.len() && head_and_tail(a) == head_and_tail(b),
        _ => a == b,
    }
}

#[inline]
fn head_and_tail(text: &[u8]) -> (Option<&[u8; 8]>, Option<&[u8; 8]>) {
    (text.first_chunk(), text.last_chunk())
}

/// Returns the bit that stands for a hash in a 64-bit filter. Equal names have the same bit, and different names may
/// share a bit.
pub(crate) const fn bit(hash: u64) -> u64 {
    1 << (hash >> 58)
}

#[inline]
const fn word4(text: &[u8], at: usize) -> u64 {
    u32::from_le_bytes([text[at], text[at + 1], text[at + 2], text[at + 3]]) as u64
}

#[inline]
const fn word8(text: &[u8], at: usize) -> u64 {
    word4(text, at) | word4(text, at + 4) << 32
}

#[cfg(test)]
mod tests {
    use super::*;

    /// E2: each segment of a name is `[A-Za-z0-9_]+`. The error quotes an invalid name.
    #[test]
    fn names_are_segments_of_word_characters() {
        for good in ["a", "new_token", "A9_", "backend.chat.start", "_"] {
            assert_eq!(check(good), Ok(()), "{good}");
        }
        for (bad, fault) in [
            ("", NameFault::Empty),
            (".", NameFault::EmptySegment { at: 0 }),
            (".a", NameFault::EmptySegment { at: 0 }),
            ("a..b", NameFault::EmptySegment { at: 2 }),
            ("a.", NameFault::EmptySegment { at: 2 }),
            ("new token", NameFault::Character { at: 3 }),
            ("*", NameFault::Character { at: 0 }),
            ("größe", NameFault::Character { at: 2 }),
        ] {
            let error = check(bad).expect_err(bad);
            assert_eq!(error.fault, fault, "{bad}");
            assert!(error.to_string().contains(&format!("`{bad}`")), "{error}");
        }
    }

    #[test]
    fn a_name_hashes_the_same_in_a_const_and_at_run_time() {
        for text in ["a", "ab", "abc", "abcd", "abcdefg", "abcdefgh", "a_much_longer_event_name"] {
            assert_eq!(EventName::new(text).0.hash, text.as_name().hash(), "{text}");
        }
    }

    #[test]
    fn names_are_equal_if_and_only_if_all_their_bytes_are_equal() {
        let text = "a_name_of_twenty_four_bs";
        for length in 0..=text.len() {
            let name = &text[..length];
            assert!(is_same(name, name), "{name}");
            assert!(!is_same(name, &format!("{name}b")) && !is_same(&format!("{name}b"), name), "{name}");
            for at in 0..length {
                let mut other = name.to_owned();
                other.replace_range(at..=at, "X");
                assert!(!is_same(name, &other), "{name}, {other}");
            }
        }
    }
}
