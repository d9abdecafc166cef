//! The search for secrets in text that arrives in chunks: [`Chunks`].

use std::collections::VecDeque;
use std::sync::Arc;

use super::engine::{BEFORE, Engine, MatchState};
use super::visible::{InvisibleFilter, has_invisible};
use super::{Finding, Kind};

/// Finds secrets in text that arrives in chunks: the same secrets as in the whole text. Returned by
/// [`Scanner::chunks`](super::Scanner::chunks).
///
/// Text that may be the beginning of a secret is held back until the next chunks show whether it is a secret. Usually
/// only the last word is held back, and at most [`Scanner::window`](super::Scanner::window) bytes.
#[derive(Clone, Debug)]
pub struct Chunks {
    engine: Arc<Engine>,
    /// The end of the text that was passed on, for checks that look back, followed by the text that is held back.
    text: String,
    /// The start of the text that is held back.
    held: usize,
    /// The invisible characters that were removed from the text that is held back, with the offsets that they precede.
    gaps: VecDeque<(usize, char)>,
    sieve: InvisibleFilter,
}

/// A piece of the text. All pieces, concatenated, are the text without the invisible characters inside secrets.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Piece<'t> {
    /// Text without a secret.
    Clean(&'t str),
    /// A secret and its kind.
    Secret(&'t Kind, &'t str),
}

impl Chunks {
    pub(super) fn new(engine: Arc<Engine>) -> Self {
        Self { engine, text: String::new(), held: 0, gaps: VecDeque::new(), sieve: InvisibleFilter::default() }
    }

    /// Adds a chunk, and passes the released pieces to `give`.
    pub fn push(&mut self, chunk: &str, give: impl FnMut(Piece<'_>)) {
        self.add(chunk);
        self.advance(false, give);
    }

    fn add(&mut self, chunk: &str) {
        if !has_invisible(chunk) {
            self.text.push_str(chunk);
            // A visible character ends a row of invisible characters, which may have begun in an earlier chunk.
            if !chunk.is_empty() {
                self.sieve = InvisibleFilter::default();
            }
            return;
        }
        for c in chunk.chars() {
            if self.sieve.takes(c) {
                self.gaps.push_back((self.text.len(), c));
            } else {
                self.text.push(c);
            }
        }
    }

    /// Ends the text, and passes the text that is held back to `give` in pieces. A later `push` begins a new text.
    pub fn finish(&mut self, give: impl FnMut(Piece<'_>)) {
        self.advance(true, give);
        self.clear();
    }

    /// Drops the text that is held back.
    pub fn clear(&mut self) {
        self.text.clear();
        self.gaps.clear();
        (self.held, self.sieve) = (0, InvisibleFilter::default());
    }

    /// Returns the text that is held back, without invisible characters.
    #[must_use]
    pub fn held(&self) -> &str {
        &self.text[self.held..]
    }

    fn advance(&mut self, is_whole: bool, mut give: impl FnMut(Piece<'_>)) {
        // Pass on each secret that is certain, and then the text before the first byte that may belong to a secret.
        let clear = loop {
            match self.look(is_whole) {
                Err(until) => break self.text.floor_char_boundary(until),
                Ok(Finding { kind, span, .. }) => {
                    self.give_clean(span.start, &mut give);
                    self.give_gaps(span.start, &mut give);
                    give(Piece::Secret(&kind, &self.text[span.clone()]));
                    self.held = span.end;
                    // Invisible characters inside a secret are removed with the secret.
                    while self.gaps.front().is_some_and(|(at, _)| *at < span.end) {
                        self.gaps.pop_front();
                    }
                }
            }
        };
        self.give_clean(clear, &mut give);
        if is_whole {
            self.give_gaps(clear, &mut give);
        }
        self.trim();
    }

    fn give_clean(&mut self, until: usize, give: &mut impl FnMut(Piece<'_>)) {
        while let Some((at, c)) = self.gaps.pop_front_if(|(at, _)| *at < until) {
            self.give_visible(at, give);
            give(Piece::Clean(c.encode_utf8(&mut [0; 4])));
        }
        self.give_visible(until, give);
    }

    fn give_visible(&mut self, until: usize, give: &mut impl FnMut(Piece<'_>)) {
        if until > self.held {
            give(Piece::Clean(&self.text[self.held..until]));
            self.held = until;
        }
    }

    /// Passes on the invisible characters up to an offset.
    fn give_gaps(&mut self, at: usize, give: &mut impl FnMut(Piece<'_>)) {
        while let Some((_, c)) = self.gaps.pop_front_if(|(gap, _)| *gap <= at) {
            give(Piece::Clean(c.encode_utf8(&mut [0; 4])));
        }
    }

    /// Returns the next secret that is certain, or, as `Err`, the end of the text that is known to contain no secret.
    fn look(&self, is_whole: bool) -> Result<Finding, usize> {
        let until = if is_whole { self.text.len() } else { self.engine.undecided(&self.text, self.held) };
        let mut at = self.held;
        while let Some((start, rule)) = self.engine.next_match(&self.text, at).filter(|(start, _)| *start < until) {
            match self.engine.decide(&self.text, (start, rule), is_whole) {
                MatchState::Secret(finding) => return Ok(finding),
                MatchState::Open => return Err(start),
                MatchState::Nothing => at = start + 1,
            }
        }
        Err(until)
    }

    /// Drops text that is too far back for checks.
    fn trim(&mut self) {
        let keep = self.text.floor_char_boundary(self.held.saturating_sub(BEFORE + 4));
        if keep > 4 * BEFORE {
            self.text.drain(..keep);
            self.held -= keep;
            self.gaps.iter_mut().for_each(|(at, _)| *at -= keep);
        }
    }
}
