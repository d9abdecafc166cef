//! Invisible characters. The search ignores them, because they would hide a secret from a pattern.
//!
//! Only the first 16 invisible characters in a row are ignored. Further invisible characters stay in the text.

use std::borrow::Cow;

/// The maximum number of invisible characters in a row that are ignored.
const MOST: usize = 16;

/// Returns `true` for zero-width characters, direction marks, soft hyphens and variation selectors.
pub(crate) const fn is_invisible(c: char) -> bool {
    matches!(c, '\u{ad}' | '\u{200b}'..='\u{200f}' | '\u{202a}'..='\u{202e}' | '\u{2060}'..='\u{2064}'
        | '\u{2066}'..='\u{206f}' | '\u{fe00}'..='\u{fe0f}' | '\u{feff}')
}

/// Returns `true` if a text has invisible characters. The check is fast for texts without them.
pub(super) fn has_invisible(text: &str) -> bool {
    // The first bytes of these characters in UTF-8.
    let bytes = text.as_bytes();
    !text.is_ascii()
        && memchr::memchr3_iter(0xc2, 0xe2, 0xef, bytes).any(|at| text[at..].chars().next().is_some_and(is_invisible))
}

/// Selects the characters that are ignored.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct InvisibleFilter {
    in_a_row: usize,
}

impl InvisibleFilter {
    /// Takes the next character; returns `true` if it is ignored.
    pub(super) const fn takes(&mut self, c: char) -> bool {
        self.in_a_row = if is_invisible(c) { self.in_a_row + 1 } else { 0 };
        0 < self.in_a_row && self.in_a_row <= MOST
    }
}

/// A text without the invisible characters that are ignored, and their positions.
#[derive(Debug)]
pub(super) struct Visible<'t> {
    pub(super) text: Cow<'t, str>,
    /// Offsets in the text, with the number of bytes that were removed up to each offset, in order.
    gaps: Vec<(usize, usize)>,
}

impl<'t> Visible<'t> {
    pub(super) fn of(text: &'t str) -> Self {
        if !has_invisible(text) {
            return Self { text: Cow::Borrowed(text), gaps: Vec::new() };
        }
        let mut seen = String::new();
        let mut gaps = Vec::new();
        let mut left_out = 0;
        let mut sieve = InvisibleFilter::default();
        for c in text.chars() {
            if sieve.takes(c) {
                left_out += c.len_utf8();
                // Store the total so far, so that `begin` and `end` need one binary search.
                gaps.push((seen.len(), left_out));
            } else {
                seen.push(c);
            }
        }
        Self { text: Cow::Owned(seen), gaps }
    }

    /// Returns the start of a secret in the original text, after invisible characters at that place.
    pub(super) fn begin(&self, at: usize) -> usize {
        at + self.left_out(self.gaps.partition_point(|(gap, _)| *gap <= at))
    }

    /// Returns the end of a secret in the original text, before invisible characters at that place.
    pub(super) fn end(&self, at: usize) -> usize {
        at + self.left_out(self.gaps.partition_point(|(gap, _)| *gap < at))
    }

    fn left_out(&self, gaps: usize) -> usize {
        gaps.checked_sub(1).map_or(0, |last| self.gaps[last].1)
    }
}

/// Returns a text without the invisible characters that a [`Scanner`](super::Scanner) ignores; borrows the text if it
/// has none.
#[must_use]
pub fn visible(text: &str) -> Cow<'_, str> {
    Visible::of(text).text
}
