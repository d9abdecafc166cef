//! What must not leave, and whether a text tells it.

use std::fmt;
use std::ops::ControlFlow;
use std::sync::Arc;

use aho_corasick::AhoCorasick;
use serde::{Serialize, Serializer};
use thiserror::Error;

use super::decode::{DecodeBudget, Encoding, decoded, texts, wide};
use super::hosts::Hosts;
use crate::shared::secrets::visible::visible;
use crate::shared::secrets::{Kind, Scanner};

/// So often is decoded what was decoded.
const DEPTH: u32 = 2;
/// Values that are shorter would be met by accident.
const SHORTEST: usize = 6;
/// As many values may be known, and as many bytes of them.
const MOST: usize = 10_000;
const LONGEST: usize = 4096;
/// Parts of what was decoded that are shorter hold no secret.
const SHORTEST_TEXT: usize = 6;
/// Parts that are longer are text, whatever stands around them.
const LONG_TEXT: usize = 20;
/// As many bytes are decoded of one value, unless something else is said.
pub(super) const DECODED: usize = 64 << 20;

/// What was about to leave.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum What {
    /// One of the values that were given.
    Known,
    /// Something that looks like a secret of a kind.
    Kind(Kind),
    /// A URL to a host that is not allowed.
    Host,
    /// More than is decoded: [`ExfilGuard::decode_at_most`](super::ExfilGuard::decode_at_most). Whether a secret is in it
    /// is not known.
    TooMuch,
    /// A value that is nested deeper than 128 levels: it cannot be looked at.
    TooDeep,
}

impl fmt::Display for What {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Known => f.write_str("known_value"),
            Self::Kind(kind) => kind.fmt(f),
            Self::Host => f.write_str("host"),
            Self::TooMuch => f.write_str("too_much"),
            Self::TooDeep => f.write_str("too_deep"),
        }
    }
}

impl Serialize for What {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

/// A known value that was not taken. It is not repeated.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum KnownError {
    /// It would be met by accident.
    #[error("a known value of {len} bytes would be met by accident: at least {SHORTEST} are taken")]
    Short {
        /// How many bytes it has.
        len: usize,
    },
    /// There are too many, or they are too long.
    #[error("at most {MOST} known values of at most {LONGEST} bytes are taken")]
    Many,
}

/// Looks for it.
#[derive(Clone)]
pub(super) struct Detector {
    pub(super) scanner: Scanner,
    values: Arc<[Vec<u8>]>,
    known: Option<AhoCorasick>,
    pub(super) hosts: Option<Hosts>,
    pub(super) decoded: usize,
}

impl Detector {
    pub(super) fn new() -> Self {
        Self { scanner: Scanner::keys(), values: Arc::default(), known: None, hosts: None, decoded: DECODED }
    }

    /// Knows these too.
    pub(super) fn know(&mut self, values: impl IntoIterator<Item = impl AsRef<[u8]>>) -> Result<(), KnownError> {
        let mut all = self.values.to_vec();
        for value in values {
            let value = value.as_ref();
            match value.len() {
                len @ ..SHORTEST => return Err(KnownError::Short { len }),
                SHORTEST..=LONGEST => all.push(value.to_owned()),
                _ => return Err(KnownError::Many),
            }
        }
        if all.len() > MOST {
            return Err(KnownError::Many);
        }
        // What is not ASCII is found in UTF-16 as bytes.
        let wide = all.iter().filter_map(|value| std::str::from_utf8(value).ok()).filter(|value| !value.is_ascii());
        let wide: Vec<Vec<u8>> = wide.flat_map(in_utf_16).collect();
        self.known = Some(AhoCorasick::new(all.iter().chain(&wide)).map_err(|_| KnownError::Many)?);
        self.values = all.into();
        Ok(())
    }

    pub(super) fn count(&self) -> usize {
        self.values.len()
    }

    /// How long the longest known value is.
    pub(super) fn longest(&self) -> usize {
        self.values.iter().map(Vec::len).max().unwrap_or(0)
    }

    /// Whether a known value stands in it as it is.
    pub(super) fn tells_known(&self, text: impl AsRef<[u8]>) -> bool {
        self.known.as_ref().is_some_and(|known| known.is_match(text.as_ref()))
    }

    /// What may be decoded of one value.
    pub(super) const fn budget(&self) -> DecodeBudget {
        DecodeBudget::new(self.decoded)
    }

    /// The first thing in a text that must not leave.
    pub(super) fn leak(&self, text: &str, budget: &mut DecodeBudget) -> Option<(What, Encoding)> {
        self.leak_in(text, Hosts::are_left, budget)
    }

    /// The same of a part that is not the beginning of a text.
    pub(super) fn leak_within(&self, part: &str, budget: &mut DecodeBudget) -> Option<(What, Encoding)> {
        self.leak_in(part, Hosts::are_left_within, budget)
    }

    fn leak_in(
        &self,
        text: &str,
        are_left: fn(&Hosts, &str) -> bool,
        budget: &mut DecodeBudget,
    ) -> Option<(What, Encoding)> {
        // A pattern looks through invisible characters by itself, a known value does not.
        let seen = visible(text);
        let is_known = self.tells_known(&*seen).then_some(What::Known);
        let plain = self.found(text.as_bytes(), text).or(is_known).map(|what| (what, Encoding::Plain));
        let left = || self.hosts.as_ref().filter(|hosts| are_left(hosts, text)).map(|_| (What::Host, Encoding::Plain));
        let wide = |budget: &mut DecodeBudget| {
            text.contains('\0').then(|| self.wide(text.as_bytes(), DEPTH, budget)).flatten()
        };
        let leak = plain.or_else(left).or_else(|| wide(budget)).or_else(|| self.encoded(text, DEPTH, budget));
        // What was not decoded may be a secret.
        leak.or_else(|| budget.is_exceeded().then_some((What::TooMuch, Encoding::Plain)))
    }

    /// Not as it stands there, but in another encoding.
    fn encoded(&self, text: &str, depth: u32, budget: &mut DecodeBudget) -> Option<(What, Encoding)> {
        let mut leak = None;
        let _is_over = decoded(text, budget, &mut |encoding, bytes: &[u8], budget: &mut DecodeBudget| {
            leak = self.written(encoding, bytes, depth, budget);
            if leak.is_some() || budget.is_exceeded() { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
        });
        leak
    }

    /// What bytes tell that were decoded from text, and what can be decoded from them.
    fn written(
        &self,
        encoding: Encoding,
        bytes: &[u8],
        depth: u32,
        budget: &mut DecodeBudget,
    ) -> Option<(What, Encoding)> {
        if self.tells_known(bytes) {
            return Some((What::Known, encoding));
        }
        // These leave text as it is all around.
        let shortest = if matches!(encoding, Encoding::Url | Encoding::Escaped) { 1 } else { SHORTEST_TEXT };
        let plain = texts(bytes, shortest).find_map(|text| {
            // Bytes of a picture say `"//` now and then.
            let is_text = shortest == 1 || text.len() >= LONG_TEXT || text.len() * 10 >= bytes.len() * 8;
            self.text(encoding, text, is_text, depth, budget)
        });
        plain.or_else(|| if bytes.contains(&0) { self.wide(bytes, depth, budget) } else { None })
    }

    fn wide(&self, bytes: &[u8], depth: u32, budget: &mut DecodeBudget) -> Option<(What, Encoding)> {
        wide(bytes, SHORTEST_TEXT).iter().find_map(|text| self.text(Encoding::Utf16, text, true, depth, budget))
    }

    /// What a text tells that was decoded, or that can be decoded once more.
    fn text(
        &self,
        encoding: Encoding,
        text: &str,
        is_text: bool,
        depth: u32,
        budget: &mut DecodeBudget,
    ) -> Option<(What, Encoding)> {
        let found = self.found(text.as_bytes(), text).map(|what| (what, encoding));
        if found.is_some() || !is_text {
            return found;
        }
        let left = || self.hosts.as_ref().filter(|hosts| hosts.are_left(text)).map(|_| (What::Host, encoding));
        let deeper = || if depth > 1 { self.encoded(text, depth - 1, budget) } else { None };
        left().or_else(deeper)
    }

    fn found(&self, bytes: &[u8], text: &str) -> Option<What> {
        if self.tells_known(bytes) {
            return Some(What::Known);
        }
        self.scanner.find_first(text).map(|finding| What::Kind(finding.kind))
    }
}

fn in_utf_16(value: &str) -> [Vec<u8>; 2] {
    let units = || value.encode_utf16();
    [units().flat_map(u16::to_le_bytes).collect(), units().flat_map(u16::to_be_bytes).collect()]
}

#[cfg(test)]
mod tests {
    use super::*;

    fn decoded_of(text: &str) -> usize {
        let mut detector = Detector::new();
        detector.hosts = Some(Hosts::new(["example.org"]));
        let mut budget = DecodeBudget::new(usize::MAX);
        detector.leak(text, &mut budget);
        budget.spent()
    }

    #[test]
    fn ten_times_the_text_decodes_at_most_twelve_times_the_bytes_whatever_the_text() {
        let parts = [
            "/",
            "%",
            "=",
            "\\u",
            "%25",
            "%41",
            "\\u0041",
            "\\\\",
            "A",
            "QUFB",
            "MFRG",
            "41",
            "41 ",
            "0x41,",
            "QUFB ",
            "+",
            "\0A",
            "&#65;",
            "Q%55FB",
            "UVVGQlFVRkI=",
            "JTQxJTQx",
            "a/b-c_d+e",
            "the words of a text, ",
            "-----BEGIN ",
            "eyJ",
        ];
        for part in parts {
            let text = |len: usize| part.repeat(len / part.len());
            let (short, long) = (decoded_of(&text(2_000)), decoded_of(&text(20_000)));
            assert!(long <= 12 * short.max(100), "`{part}`: {short} and {long} bytes are decoded");
            assert!(long <= 400 * 20_000, "`{part}`: {long} bytes are decoded");
        }
    }
}
