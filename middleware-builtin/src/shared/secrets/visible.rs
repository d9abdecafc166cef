//! Characters that nobody sees, and that hide a secret from a pattern: they are looked through.
//!
//! Between two characters that are seen, at most so many are: more of them are a text of their own.

use std::borrow::Cow;

/// So many in a row are looked through.
const MOST: usize = 16;

/// Zero-width characters, marks of direction, soft hyphens, variation selectors.
pub(crate) const fn is_invisible(c: char) -> bool {
    matches!(c, '\u{ad}' | '\u{200b}'..='\u{200f}' | '\u{202a}'..='\u{202e}' | '\u{2060}'..='\u{2064}'
        | '\u{2066}'..='\u{206f}' | '\u{fe00}'..='\u{fe0f}' | '\u{feff}')
}

/// Tells quickly, of most texts, that there are none.
pub(super) fn has_invisible(text: &str) -> bool {
    // They begin with these bytes in UTF-8.
    let bytes = text.as_bytes();
    !text.is_ascii()
        && memchr::memchr3_iter(0xc2, 0xe2, 0xef, bytes).any(|at| text[at..].chars().next().is_some_and(is_invisible))
}

/// Sorts out characters as they come.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct InvisibleFilter {
    in_a_row: usize,
}

impl InvisibleFilter {
    /// Returns `true` if a character is to be looked through.
    pub(super) const fn takes(&mut self, c: char) -> bool {
        self.in_a_row = if is_invisible(c) { self.in_a_row + 1 } else { 0 };
        0 < self.in_a_row && self.in_a_row <= MOST
    }
}

/// A text without invisible characters, and where they were.
#[derive(Debug)]
pub(super) struct Visible<'t> {
    pub(super) text: Cow<'t, str>,
    /// A place in the text, and how many bytes are left out before it or there, in order.
    gaps: Vec<(usize, usize)>,
}

impl<'t> Visible<'t> {
    pub(super) fn of(text: &'t str) -> Self {
        if !has_invisible(text) {
            return Self { text: Cow::Borrowed(text), gaps: Vec::new() };
        }
        let (mut seen, mut gaps, mut left_out, mut sieve) = (String::new(), Vec::new(), 0, InvisibleFilter::default());
        for c in text.chars() {
            if sieve.takes(c) {
                left_out += c.len_utf8();
                gaps.push((seen.len(), left_out));
            } else {
                seen.push(c);
            }
        }
        Self { text: Cow::Owned(seen), gaps }
    }

    /// Where a secret begins in the text as it was: behind what is invisible there.
    pub(super) fn begin(&self, at: usize) -> usize {
        at + self.left_out(self.gaps.partition_point(|(gap, _)| *gap <= at))
    }

    /// Where it ends: before what is invisible there.
    pub(super) fn end(&self, at: usize) -> usize {
        at + self.left_out(self.gaps.partition_point(|(gap, _)| *gap < at))
    }

    fn left_out(&self, gaps: usize) -> usize {
        gaps.checked_sub(1).map_or(0, |last| self.gaps[last].1)
    }
}

/// A text without the invisible characters.
#[cfg(feature = "exfil_guard")]
pub(crate) fn visible(text: &str) -> Cow<'_, str> {
    Visible::of(text).text
}
