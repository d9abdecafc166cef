//! Decodes the encoded parts of a text: base64, base32, hex, percent-encoding, escapes, UTF-16.
//!
//! 1. Each sequence of an encoding's characters is decoded from each offset at which its groups could begin, so that
//!    characters before a secret cannot hide it.
//! 2. Each decoder takes linear time. Decoded text is never longer than its source. The caller limits how often decoded
//!    text is decoded again.
//! 3. All decoded bytes are counted. Decoding stops when the [`DecodeBudget`] is exceeded; the caller checks
//!    `is_exceeded`.

use std::ops::ControlFlow;

use serde::Serialize;

use super::leak::MIN_KNOWN_LEN;

/// The encoding in which a secret or a URL was found.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum Encoding {
    /// Plain text.
    Plain,
    /// Base64 in either alphabet, with or without padding and whitespace.
    Base64,
    /// Base32 (RFC 4648), in upper or lower case.
    Base32,
    /// Hexadecimal digits, in one piece or in groups: `73 65`, `73:65`, `0x73, 0x65`.
    Hex,
    /// Percent-encoding as in URLs, or as in forms, where a plus is a space.
    Url,
    /// Escapes, as in JSON strings and source code: `\"`, `\u0073`, `\x73`, `&#115;`.
    Escaped,
    /// UTF-16.
    Utf16,
}

impl Encoding {
    /// Returns the words for this encoding in a denial's message, such as `, base64-encoded,`.
    pub(super) const fn written(self) -> &'static str {
        match self {
            Self::Plain => "",
            Self::Base64 => ", base64-encoded,",
            Self::Base32 => ", base32-encoded,",
            Self::Hex => ", hex-encoded,",
            Self::Url => ", percent-encoded,",
            Self::Escaped => ", escaped,",
            Self::Utf16 => ", in UTF-16,",
        }
    }
}

/// The minimum lengths of base64, base32 and hex sequences: the lengths of an encoded value of `MIN_KNOWN_LEN` bytes.
/// Shorter sequences are not decoded.
const MIN_BASE64: usize = (MIN_KNOWN_LEN * 8).div_ceil(6);
const MIN_BASE32: usize = (MIN_KNOWN_LEN * 8).div_ceil(5);
const MIN_HEX: usize = MIN_KNOWN_LEN * 2;

/// The number of bytes that may be decoded, and the number decoded so far.
#[derive(Debug)]
pub(super) struct DecodeBudget {
    most: usize,
    spent: usize,
}

impl DecodeBudget {
    pub(super) const fn new(most: usize) -> Self {
        Self { most, spent: 0 }
    }

    /// Counts bytes. Returns `Break` if the budget is exceeded.
    pub(super) const fn spend(&mut self, bytes: usize) -> ControlFlow<()> {
        self.spent = self.spent.saturating_add(bytes);
        if self.is_exceeded() { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
    }

    /// Returns `true` if more bytes were counted than allowed.
    pub(super) const fn is_exceeded(&self) -> bool {
        self.spent > self.most
    }

    #[cfg(test)]
    pub(super) const fn spent(&self) -> usize {
        self.spent
    }
}

/// A function called with decoded bytes. It returns `Break` to stop the decoding.
pub(super) trait OnDecoded: FnMut(Encoding, &[u8], &mut DecodeBudget) -> ControlFlow<()> {}

impl<F: FnMut(Encoding, &[u8], &mut DecodeBudget) -> ControlFlow<()>> OnDecoded for F {}

/// Decodes a text from each encoding except UTF-16, and calls `on_decoded` with each result. Stops when `on_decoded`
/// returns `Break` or the budget is exceeded.
pub(super) fn decoded(text: &str, budget: &mut DecodeBudget, on_decoded: &mut impl OnDecoded) -> ControlFlow<()> {
    let mut pass = DecodePass { budget, on_decoded };
    if text.contains('%') {
        pass.try_decoding(Encoding::Url, text.len(), || percent(text))?;
    }
    // In forms, a plus is a space.
    if text.contains('+') {
        pass.try_decoding(Encoding::Url, text.len(), || {
            let spaced = text.replace('+', " ");
            Some(percent(&spaced).unwrap_or(spaced.into_bytes()))
        })?;
    }
    if text.contains(['\\', '&', '%']) {
        pass.try_decoding(Encoding::Escaped, text.len(), || unescaped(text))?;
    }
    pass.runs(text)?;
    pass.groups(text)?;
    // Base64, base32 and hex may be wrapped: decode once more without whitespace.
    if text.contains(char::is_whitespace) {
        pass.budget.spend(text.len())?;
        pass.runs(&text.split_whitespace().collect::<String>())?;
    }
    ControlFlow::Continue(())
}

/// The state while one text is decoded.
struct DecodePass<'a, S> {
    budget: &'a mut DecodeBudget,
    on_decoded: &'a mut S,
}

impl<S: OnDecoded> DecodePass<'_, S> {
    /// If the budget allows `most` bytes, calls `decode` and passes the bytes, if any, to `on_decoded`. `decode` must
    /// return at most `most` bytes.
    fn try_decoding(&mut self, by: Encoding, most: usize, decode: impl FnOnce() -> Option<Vec<u8>>) -> ControlFlow<()> {
        // Count before decoding, so that the time spent on decoding is limited too.
        self.budget.spend(most)?;
        match decode() {
            Some(bytes) => (self.on_decoded)(by, &bytes, self.budget),
            None => ControlFlow::Continue(()),
        }
    }

    /// Decodes each sequence of base64 characters as base64, and each word in it as hex, base32 and base64.
    fn runs(&mut self, text: &str) -> ControlFlow<()> {
        let is_base64 = |c: char| c.is_ascii_alphanumeric() || matches!(c, '+' | '/' | '-' | '_');
        for run in text.split(|c| !is_base64(c)).filter(|run| run.len() >= MIN_BASE64) {
            self.base64(run)?;
            // The alphabet for URLs contains `-` and `_`, which also join words: decode the parts as well.
            for word in run.split(['-', '_', '+', '/']).filter(|word| word.len() >= MIN_BASE64) {
                self.hexadecimal(word)?;
                self.base32(word)?;
                if word.len() < run.len() {
                    self.base64(word)?;
                }
            }
        }
        ControlFlow::Continue(())
    }

    fn base64(&mut self, run: &str) -> ControlFlow<()> {
        // A base64 group has four characters and may begin at each of four positions (1).
        (0..4).try_for_each(|from| {
            let run = &run.as_bytes()[from..];
            self.try_decoding(Encoding::Base64, run.len() / 4 * 3 + 2, || Some(base64(run)))
        })
    }

    fn base32(&mut self, word: &str) -> ControlFlow<()> {
        let is_base32 = |c: char| c.is_ascii_alphabetic() || matches!(c, '2'..='7');
        for run in word.split(|c| !is_base32(c)).filter(|run| run.len() >= MIN_BASE32) {
            // A base32 group has eight characters (1).
            (0..8).try_for_each(|from| {
                let run = &run.as_bytes()[from..];
                self.try_decoding(Encoding::Base32, run.len() / 8 * 5 + 4, || Some(base32(run)))
            })?;
        }
        ControlFlow::Continue(())
    }

    fn hexadecimal(&mut self, word: &str) -> ControlFlow<()> {
        for run in word.split(|c: char| !c.is_ascii_hexdigit()).filter(|run| run.len() >= MIN_HEX) {
            // A byte has two digits (1).
            (0..2).try_for_each(|from| {
                let run = &run.as_bytes()[from..];
                self.try_decoding(Encoding::Hex, run.len() / 2, || Some(hex(run)))
            })?;
        }
        ControlFlow::Continue(())
    }

    /// Decodes hexadecimal digits in groups: `73 65`, `73:65`, `0x73, 0x65`.
    fn groups(&mut self, text: &str) -> ControlFlow<()> {
        self.budget.spend(text.len() / 2)?;
        let bytes = text.as_bytes();
        let mut out = Vec::new();
        let mut at = 0;
        while at < bytes.len() {
            let group = HexGroup::read(bytes, at);
            match &group {
                Some(group) => out.extend(hex(&bytes[group.digits.clone()])),
                // The sequence of groups ends here: pass its bytes on if there are enough.
                None if out.len() >= MIN_KNOWN_LEN => (self.on_decoded)(Encoding::Hex, &out, self.budget)?,
                None => {}
            }
            if group.is_none() {
                out.clear();
            }
            at = group.map_or_else(|| next_word(bytes, at), |group| group.next);
        }
        if out.len() >= MIN_KNOWN_LEN {
            (self.on_decoded)(Encoding::Hex, &out, self.budget)
        } else {
            ControlFlow::Continue(())
        }
    }
}

/// A group of an even number of hexadecimal digits, and the position at which the next group may begin.
struct HexGroup {
    digits: std::ops::Range<usize>,
    next: usize,
}

impl HexGroup {
    fn read(bytes: &[u8], at: usize) -> Option<Self> {
        let is_prefix = matches!(bytes.get(at..at + 2), Some([b'0' | b'\\', b'x' | b'X']));
        let begin = if is_prefix { at + 2 } else { at };
        let end = begin + bytes[begin..].iter().take_while(|byte| byte.is_ascii_hexdigit()).count();
        let goes_on = bytes.get(end).is_some_and(u8::is_ascii_alphanumeric);
        if end == begin || (end - begin) % 2 == 1 || goes_on {
            return None;
        }
        let is_between =
            |byte: &&u8| byte.is_ascii_whitespace() || matches!(**byte, b',' | b':' | b';' | b'-' | b'_' | b'.');
        let next = end + bytes[end..].iter().take(3).take_while(is_between).count();
        Some(Self { digits: begin..end, next })
    }
}

/// Returns the position after the word at `at`, or after one byte if no word begins there.
fn next_word(bytes: &[u8], at: usize) -> usize {
    let word = bytes[at..].iter().take_while(|byte| byte.is_ascii_alphanumeric()).count();
    at + word.max(1)
}

fn base32(text: &[u8]) -> Vec<u8> {
    let value = |byte: &u8| -> u64 {
        u64::from(match byte {
            b'A'..=b'Z' => byte - b'A',
            b'a'..=b'z' => byte - b'a',
            _ => byte - b'2' + 26,
        })
    };
    let mut out = Vec::with_capacity(text.len() / 8 * 5 + 4);
    for eight in text.chunks(8) {
        let bits = eight.iter().fold(0, |bits, byte| bits << 5 | value(byte)) << (5 * (8 - eight.len()));
        out.extend_from_slice(&bits.to_be_bytes()[3..3 + eight.len() * 5 / 8]);
    }
    out
}

fn base64(text: &[u8]) -> Vec<u8> {
    let value = |byte: u8| -> u32 {
        u32::from(match byte {
            b'A'..=b'Z' => byte - b'A',
            b'a'..=b'z' => byte - b'a' + 26,
            b'0'..=b'9' => byte - b'0' + 52,
            b'+' | b'-' => 62,
            _ => 63,
        })
    };
    let mut out = Vec::with_capacity(text.len() / 4 * 3 + 2);
    for quad in text.chunks(4) {
        let bits = quad.iter().fold(0, |bits, byte| bits << 6 | value(*byte)) << (6 * (4 - quad.len()));
        out.extend_from_slice(&bits.to_be_bytes()[1..quad.len().max(1)]);
    }
    out
}

fn hex(text: &[u8]) -> Vec<u8> {
    let value = |byte: u8| char::from(byte).to_digit(16).and_then(|value| u8::try_from(value).ok()).unwrap_or(0);
    text.chunks_exact(2).map(|pair| value(pair[0]) << 4 | value(pair[1])).collect()
}

/// Decodes percent-encoding. Returns `None` if the text has no percent-encoding.
fn percent(text: &str) -> Option<Vec<u8>> {
    let bytes = text.as_bytes();
    let encoded = |at: usize| {
        let pair =
            bytes.get(at + 1..at + 3).filter(|pair| bytes[at] == b'%' && pair.iter().all(u8::is_ascii_hexdigit))?;
        hex(pair).first().copied()
    };
    let first = (0..bytes.len()).find(|at| encoded(*at).is_some())?;
    let mut out = bytes[..first].to_vec();
    let mut at = first;
    while at < bytes.len() {
        let byte = encoded(at);
        out.push(byte.unwrap_or(bytes[at]));
        at += if byte.is_some() { 3 } else { 1 };
    }
    Some(out)
}

/// Decodes escapes of JSON, source code and HTML. Returns `None` if the text has no escapes.
fn unescaped(text: &str) -> Option<Vec<u8>> {
    let bytes = text.as_bytes();
    let mut out = Vec::with_capacity(bytes.len());
    let mut at = 0;
    let mut is_any = false;
    while at < bytes.len() {
        let escape = match bytes[at] {
            b'\\' => escape(bytes, at),
            b'&' | b'%' => numbered(bytes, at),
            _ => None,
        };
        match escape {
            Some((Escape::Byte(byte), len)) => {
                out.push(byte);
                at += len;
                is_any = true;
            }
            Some((Escape::Char(c), len)) => {
                out.extend_from_slice(c.encode_utf8(&mut [0; 4]).as_bytes());
                at += len;
                is_any = true;
            }
            None => {
                out.push(bytes[at]);
                at += 1;
            }
        }
    }
    is_any.then_some(out)
}

enum Escape {
    Byte(u8),
    Char(char),
}

/// Reads an escape that begins with a backslash. Returns the escape and its length.
fn escape(bytes: &[u8], at: usize) -> Option<(Escape, usize)> {
    let byte = |byte: u8| Some((Escape::Byte(byte), 2));
    match *bytes.get(at + 1)? {
        b'n' => byte(b'\n'),
        b'r' => byte(b'\r'),
        b't' => byte(b'\t'),
        quoted @ (b'"' | b'\'' | b'\\' | b'/' | b'`') => byte(quoted),
        b'x' => Some((Escape::Byte(u8::try_from(number(bytes, at + 2, 2, 16)?).ok()?), 4)),
        b'u' if bytes.get(at + 2) == Some(&b'{') => {
            let len = bytes[at + 3..].iter().take(7).position(|byte| *byte == b'}')?;
            Some((Escape::Char(char::from_u32(number(bytes, at + 3, len, 16)?)?), len + 4))
        }
        b'u' => {
            let unit = number(bytes, at + 2, 4, 16)?;
            // A surrogate pair takes two escapes.
            let low = (bytes.get(at + 6..at + 8) == Some(b"\\u")).then(|| number(bytes, at + 8, 4, 16)).flatten();
            let pair = low.filter(|_| (0xd800..0xdc00).contains(&unit)).filter(|low| (0xdc00..0xe000).contains(low));
            let (code, len) = pair.map_or((unit, 6), |low| (0x1_0000 + ((unit - 0xd800) << 10) + (low - 0xdc00), 12));
            Some((Escape::Char(char::from_u32(code).unwrap_or(char::REPLACEMENT_CHARACTER)), len))
        }
        b'U' => Some((Escape::Char(char::from_u32(number(bytes, at + 2, 8, 16)?)?), 10)),
        b'0'..=b'3' => Some((Escape::Byte(u8::try_from(number(bytes, at + 1, 3, 8)?).ok()?), 4)),
        _ => None,
    }
}

/// Reads a character that is written as a number: `&#115;`, `&#x73;`, `%u0073`.
fn numbered(bytes: &[u8], at: usize) -> Option<(Escape, usize)> {
    if bytes.get(at..at + 2) == Some(b"%u") {
        return Some((Escape::Char(char::from_u32(number(bytes, at + 2, 4, 16)?)?), 6));
    }
    let (begin, radix) = match bytes.get(at..at + 3)? {
        [b'&', b'#', b'x' | b'X'] => (at + 3, 16),
        [b'&', b'#', _] => (at + 2, 10),
        _ => return None,
    };
    let len = bytes[begin..].iter().take(8).position(|byte| *byte == b';')?;
    Some((Escape::Char(char::from_u32(number(bytes, begin, len, radix)?)?), begin + len + 1 - at))
}

fn number(bytes: &[u8], at: usize, len: usize, radix: u32) -> Option<u32> {
    let digits = bytes.get(at..at + len).filter(|digits| digits.iter().all(u8::is_ascii_alphanumeric))?;
    u32::from_str_radix(std::str::from_utf8(digits).ok()?, radix).ok()
}

/// Returns the parts of `bytes` that are UTF-8 text of at least `shortest` bytes.
pub(super) fn texts(bytes: &[u8], shortest: usize) -> impl Iterator<Item = &str> {
    let is_text = |c: char| !c.is_control() || c.is_ascii_whitespace();
    let stretches = bytes.utf8_chunks().flat_map(move |chunk| chunk.valid().split(move |c| !is_text(c)));
    stretches.filter(move |stretch| stretch.len() >= shortest)
}

/// Returns the parts of `bytes` that are ASCII characters in UTF-16, in either byte order, and at least `shortest`
/// characters long.
pub(super) fn utf_16_texts(bytes: &[u8], shortest: usize) -> Vec<String> {
    let is_text = |byte: u8| matches!(byte, b' '..=b'~' | b'\t' | b'\r' | b'\n');
    let mut texts = Vec::new();
    let mut text = String::new();
    let mut at = 0;
    while at < bytes.len() {
        let is_wide = is_text(bytes[at]) && bytes.get(at + 1).is_none_or(|next| *next == 0);
        // In big-endian order, no zero byte follows the last character.
        let is_last = is_text(bytes[at]) && at > 0 && bytes[at - 1] == 0 && !text.is_empty();
        if is_wide || is_last {
            text.push(char::from(bytes[at]));
        }
        if !is_wide && text.len() >= shortest {
            texts.push(std::mem::take(&mut text));
        }
        if !is_wide {
            text.clear();
        }
        at += if is_wide { 2 } else { 1 };
    }
    if text.len() >= shortest {
        texts.push(text);
    }
    texts
}

#[cfg(test)]
mod tests {
    use super::*;

    fn says(text: &str, encoding: Encoding, expected: &str) -> bool {
        let mut is_seen = false;
        let _ = decoded(text, &mut DecodeBudget::new(usize::MAX), &mut |by, bytes: &[u8], _: &mut DecodeBudget| {
            is_seen |= by == encoding && bytes.windows(expected.len()).any(|window| window == expected.as_bytes());
            ControlFlow::Continue(())
        });
        is_seen
    }

    #[test]
    fn each_encoding_is_decoded_wherever_it_begins_in_the_text() {
        let rows = [
            ("c2VjcmV0LXZhbHVlIQ==", Encoding::Base64, "secret-value!"),
            ("xc2VjcmV0LXZhbHVlIQ==", Encoding::Base64, "secret-value!"),
            ("a_b-c2VjcmV0LXZhbHVlIQ", Encoding::Base64, "secret-value!"),
            ("c2VjcmV0\nLXZhbHVl\r\nIQ==", Encoding::Base64, "secret-value!"),
            ("so c2Vj cmV0 LXZh bHVl IQ== it is", Encoding::Base64, "secret-value!"),
            ("xONSWG4TFOQWXMYLMOVSSC===", Encoding::Base32, "secret-value!"),
            ("onswg4tfoqwxmylmovssc", Encoding::Base32, "secret-value!"),
            ("id=7365637265742d76616c756521", Encoding::Hex, "secret-value!"),
            ("f7365637265742D76616C756521", Encoding::Hex, "secret-value!"),
            ("as 73 65 63 72 65 74 2d 76 61 6c 75 65 21 it is", Encoding::Hex, "secret-value!"),
            ("73:65:63:72:65:74:2d:76:61:6c:75:65:21", Encoding::Hex, "secret-value!"),
            ("{0x73, 0x65, 0x63, 0x72, 0x65, 0x74, 0x2D}", Encoding::Hex, "secret-"),
            ("7365 6372 6574 2d76 616c 7565 21", Encoding::Hex, "secret-value!"),
            (r"\x73\x65\x63\x72et", Encoding::Escaped, "secret"),
            (r"\u0073\u{65}\143ret\ud83d\ude00", Encoding::Escaped, "secret😀"),
            (r#"a \"secret\/\\value\n"#, Encoding::Escaped, "a \"secret/\\value\n"),
            ("&#115;&#x65;%u0063ret", Encoding::Escaped, "secret"),
            ("q=secret%2Dvalue%21&x", Encoding::Url, "secret-value!"),
            ("q=%73ecret%2dvalue!%", Encoding::Url, "secret-value!"),
            ("q=a+secret+value%21&x", Encoding::Url, "a secret value!"),
            ("a+secret+value", Encoding::Url, "a secret value"),
        ];
        for (text, encoding, expected) in rows {
            assert!(says(text, encoding, expected), "{text} says {expected} in {encoding:?}");
        }
    }

    #[test]
    fn utf_16_is_decoded_in_either_byte_order_wherever_it_begins() {
        let little: Vec<u8> = "secret".encode_utf16().flat_map(u16::to_le_bytes).collect();
        let big: Vec<u8> = "secret".encode_utf16().flat_map(u16::to_be_bytes).collect();
        for bytes in [&little, &big] {
            for before in [&b""[..], b"\xff", b"\xff\xfe", b"x", b"\0\0\0"] {
                for behind in [&b""[..], b"\xff", b"\0\0"] {
                    let all = [before, bytes, behind].concat();
                    assert!(utf_16_texts(&all, 6).iter().any(|text| text.contains("secret")), "{all:?}");
                }
            }
        }
        assert!(utf_16_texts(b"no secret at all", 6).is_empty());
    }
}
