//! The secrets to look for, and the search for them in a text.

use std::fmt;
use std::ops::ControlFlow;
use std::sync::Arc;

use aho_corasick::AhoCorasick;
use emitree_secrets::{Kind, Scanner, visible};
use serde::{Serialize, Serializer};
use thiserror::Error;

use super::decode::{DecodeBudget, Encoding, decoded, texts, utf_16_texts};
use super::hosts::Hosts;

/// The maximum number of nested encodings that are decoded.
const MAX_ENCODINGS: u32 = 2;
/// The minimum length of a known value: shorter values would match by accident.
pub(super) const MIN_KNOWN_LEN: usize = 6;
/// The maximum number of known values, and their maximum length in bytes.
const MAX_KNOWN: usize = 10_000;
const MAX_KNOWN_LEN: usize = 4096;
/// The minimum length of a piece of text in decoded bytes, except after URL decoding and unescaping. Shorter pieces are
/// not searched for formats of secrets.
const MIN_TEXT_LEN: usize = 6;
/// The minimum length at which a part of decoded bytes counts as text, regardless of the bytes around it.
const CERTAIN_TEXT_LEN: usize = 20;
/// The default maximum number of bytes that are decoded for one value.
pub(super) const DEFAULT_MAX_DECODED: usize = 64 << 20;

/// A finding: a secret, a URL to a host that is not allowed, or a value that cannot be checked completely.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum What {
    /// A [known](super::ExfilGuard::known) value.
    Known,
    /// Text in the format of this kind of secret.
    Kind(Kind),
    /// A URL to a host that is not allowed.
    Host,
    /// More encoded text than [`ExfilGuard::decode_at_most`](super::ExfilGuard::decode_at_most) allows. It may contain
    /// a secret.
    TooMuch,
    /// A value that cannot be checked, because it is nested deeper than 127 levels.
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

/// A known value that was rejected. The error does not contain the value.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum KnownError {
    /// The value is so short that it would match by accident.
    #[error("a known value of {len} bytes would match by accident: at least {MIN_KNOWN_LEN} bytes are needed")]
    Short {
        /// The length of the value in bytes.
        len: usize,
    },
    /// There are too many values, or a value is too long.
    #[error("at most {MAX_KNOWN} known values of at most {MAX_KNOWN_LEN} bytes are allowed")]
    Many,
}

/// Searches texts for secrets, and for URLs to hosts that are not allowed.
#[derive(Clone)]
pub(super) struct Detector {
    pub(super) scanner: Scanner,
    values: Arc<[Vec<u8>]>,
    known: Option<AhoCorasick>,
    pub(super) hosts: Option<Hosts>,
    pub(super) max_decoded: usize,
}

impl Detector {
    pub(super) fn new() -> Self {
        Self {
            scanner: Scanner::keys(),
            values: Arc::default(),
            known: None,
            hosts: None,
            max_decoded: DEFAULT_MAX_DECODED,
        }
    }

    /// Adds known values.
    pub(super) fn know(&mut self, values: impl IntoIterator<Item = impl AsRef<[u8]>>) -> Result<(), KnownError> {
        let mut all = self.values.to_vec();
        for value in values {
            let value = value.as_ref();
            match value.len() {
                len @ ..MIN_KNOWN_LEN => return Err(KnownError::Short { len }),
                MIN_KNOWN_LEN..=MAX_KNOWN_LEN => all.push(value.to_owned()),
                _ => return Err(KnownError::Many),
            }
        }
        if all.len() > MAX_KNOWN {
            return Err(KnownError::Many);
        }
        // ASCII values in UTF-16 are found by decoding. Non-ASCII values are searched for as the bytes of their UTF-16
        // form.
        let wide = all.iter().filter_map(|value| std::str::from_utf8(value).ok()).filter(|value| !value.is_ascii());
        let wide: Vec<Vec<u8>> = wide.flat_map(in_utf_16).collect();
        self.known = Some(AhoCorasick::new(all.iter().chain(&wide)).map_err(|_| KnownError::Many)?);
        self.values = all.into();
        Ok(())
    }

    pub(super) fn count(&self) -> usize {
        self.values.len()
    }

    /// Returns the length of the longest known value.
    pub(super) fn longest(&self) -> usize {
        self.values.iter().map(Vec::len).max().unwrap_or(0)
    }

    /// Returns `true` if a text contains a known value as plain bytes.
    pub(super) fn contains_known(&self, text: impl AsRef<[u8]>) -> bool {
        self.known.as_ref().is_some_and(|known| known.is_match(text.as_ref()))
    }

    /// Returns a new decode budget for one value.
    pub(super) const fn budget(&self) -> DecodeBudget {
        DecodeBudget::new(self.max_decoded)
    }

    /// Returns the first finding in a text.
    pub(super) fn find_leak(&self, text: &str, budget: &mut DecodeBudget) -> Option<(What, Encoding)> {
        self.find_leak_with(text, Hosts::text_leads_elsewhere, budget)
    }

    /// Returns the first finding in a part that is not the beginning of a text.
    pub(super) fn find_leak_within(&self, part: &str, budget: &mut DecodeBudget) -> Option<(What, Encoding)> {
        self.find_leak_with(part, Hosts::part_leads_elsewhere, budget)
    }

    fn find_leak_with(
        &self,
        text: &str,
        leads_elsewhere: fn(&Hosts, &str) -> bool,
        budget: &mut DecodeBudget,
    ) -> Option<(What, Encoding)> {
        // The scanner itself ignores invisible characters. Remove them for the search for known values.
        let seen = visible(text);
        let is_known = self.contains_known(&*seen).then_some(What::Known);
        let plain = self.check_plain(text.as_bytes(), text).or(is_known).map(|what| (what, Encoding::Plain));
        let left =
            || self.hosts.as_ref().filter(|hosts| leads_elsewhere(hosts, text)).map(|_| (What::Host, Encoding::Plain));
        let wide = |budget: &mut DecodeBudget| {
            text.contains('\0').then(|| self.check_utf_16(text.as_bytes(), MAX_ENCODINGS, budget)).flatten()
        };
        // Search in order of cost: first plain text, then hosts, and then the decoded forms.
        let leak =
            plain.or_else(left).or_else(|| wide(budget)).or_else(|| self.find_encoded(text, MAX_ENCODINGS, budget));
        // Text that was not decoded may contain a secret, so the search fails closed (M5).
        leak.or_else(|| budget.is_exceeded().then_some((What::TooMuch, Encoding::Plain)))
    }

    /// Returns the first finding in the decoded forms of a text.
    fn find_encoded(&self, text: &str, depth: u32, budget: &mut DecodeBudget) -> Option<(What, Encoding)> {
        let mut leak = None;
        let _is_over = decoded(text, budget, &mut |encoding, bytes: &[u8], budget: &mut DecodeBudget| {
            leak = self.check_decoded(encoding, bytes, depth, budget);
            if leak.is_some() || budget.is_exceeded() { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
        });
        leak
    }

    /// Returns the first finding in decoded bytes, or in their decoded forms.
    fn check_decoded(
        &self,
        encoding: Encoding,
        bytes: &[u8],
        depth: u32,
        budget: &mut DecodeBudget,
    ) -> Option<(What, Encoding)> {
        if self.contains_known(bytes) {
            return Some((What::Known, encoding));
        }
        // URL encoding and escapes replace single characters, so all of their output is text, even short parts.
        let shortest = if matches!(encoding, Encoding::Url | Encoding::Escaped) { 1 } else { MIN_TEXT_LEN };
        let plain = texts(bytes, shortest).find_map(|text| {
            // Binary data contains sequences such as `"//` by chance. Look for hosts and further encodings only in
            // parts that are likely text.
            let is_text = shortest == 1 || text.len() >= CERTAIN_TEXT_LEN || text.len() * 10 >= bytes.len() * 8;
            self.check_text(encoding, text, is_text, depth, budget)
        });
        plain.or_else(|| if bytes.contains(&0) { self.check_utf_16(bytes, depth, budget) } else { None })
    }

    fn check_utf_16(&self, bytes: &[u8], depth: u32, budget: &mut DecodeBudget) -> Option<(What, Encoding)> {
        // Count before decoding. The decoded text is shorter than its source.
        if budget.spend(bytes.len()).is_break() {
            return None;
        }
        utf_16_texts(bytes, MIN_TEXT_LEN)
            .iter()
            .find_map(|text| self.check_text(Encoding::Utf16, text, true, depth, budget))
    }

    /// Returns the first finding in a decoded text. With `is_text`, also searches for hosts and for encoded parts.
    fn check_text(
        &self,
        encoding: Encoding,
        text: &str,
        is_text: bool,
        depth: u32,
        budget: &mut DecodeBudget,
    ) -> Option<(What, Encoding)> {
        let found = self.check_plain(text.as_bytes(), text).map(|what| (what, encoding));
        if found.is_some() || !is_text {
            return found;
        }
        let left =
            || self.hosts.as_ref().filter(|hosts| hosts.text_leads_elsewhere(text)).map(|_| (What::Host, encoding));
        let deeper = || if depth > 1 { self.find_encoded(text, depth - 1, budget) } else { None };
        left().or_else(deeper)
    }

    /// Returns the first known value or secret in plain text.
    fn check_plain(&self, bytes: &[u8], text: &str) -> Option<What> {
        if self.contains_known(bytes) {
            return Some(What::Known);
        }
        self.scanner.find_first(text).map(|finding| What::Kind(finding.kind))
    }
}

/// Returns the bytes of a value in UTF-16, in both byte orders.
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
        detector.find_leak(text, &mut budget);
        budget.spent()
    }

    #[test]
    fn text_in_utf_16_counts_as_decoded() {
        // The text is decoded from UTF-16, and then both forms are decoded from other encodings.
        let wide = "~\0".repeat(1_000);
        let short = "~".repeat(1_000);
        let long = "~".repeat(2_000);
        assert_eq!(decoded_of(&wide), 2_000 + decoded_of(&short) + decoded_of(&long));
    }

    #[test]
    fn ten_times_the_text_decodes_at_most_twelve_times_the_bytes() {
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
            let short = decoded_of(&text(2_000));
            let long = decoded_of(&text(20_000));
            assert!(long <= 12 * short.max(100), "`{part}`: {short} and {long} bytes are decoded");
            assert!(long <= 400 * 20_000, "`{part}`: {long} bytes are decoded");
        }
    }
}
