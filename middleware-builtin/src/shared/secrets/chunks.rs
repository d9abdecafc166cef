//! The same in pieces: text that comes bit by bit.

use std::collections::VecDeque;
use std::sync::Arc;

use super::engine::{BEFORE, Engine, MatchState};
use super::visible::{InvisibleFilter, has_invisible};
use super::{Finding, Kind};

/// Looks for secrets in text that comes in pieces, and finds what it would find in all of it. Made by
/// [`Scanner::chunks`](super::Scanner::chunks).
///
/// What could be the beginning of a secret is held back until it is clear: mostly the last word. At most
/// [`Scanner::window`](super::Scanner::window) bytes are.
#[derive(Clone, Debug)]
pub struct Chunks {
    engine: Arc<Engine>,
    /// What was given on last, because it stands before what is held; and what is held.
    text: String,
    /// Where the held part begins.
    held: usize,
    /// Invisible characters that are left out of the held part, and before what they stand.
    gaps: VecDeque<(usize, char)>,
    sieve: InvisibleFilter,
}

/// A part of the text: each byte is in one, in order, but for invisible characters inside of a secret, which are in none.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Piece<'t> {
    /// Holds no secret.
    Clean(&'t str),
    /// Is one.
    Secret(&'t Kind, &'t str),
}

impl Chunks {
    pub(super) fn new(engine: Arc<Engine>) -> Self {
        Self { engine, text: String::new(), held: 0, gaps: VecDeque::new(), sieve: InvisibleFilter::default() }
    }

    /// Takes a chunk, and gives what is clear by now.
    pub fn push(&mut self, chunk: &str, give: impl FnMut(Piece<'_>)) {
        self.add(chunk);
        self.advance(false, give);
    }

    fn add(&mut self, chunk: &str) {
        if !has_invisible(chunk) {
            self.text.push_str(chunk);
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

    /// Gives what is held: no more is to come. What is pushed later is a text of its own.
    pub fn finish(&mut self, give: impl FnMut(Piece<'_>)) {
        self.advance(true, give);
        self.clear();
    }

    /// Forgets what is held.
    pub fn clear(&mut self) {
        self.text.clear();
        self.gaps.clear();
        (self.held, self.sieve) = (0, InvisibleFilter::default());
    }

    /// What is held, without invisible characters.
    #[must_use]
    pub fn held(&self) -> &str {
        &self.text[self.held..]
    }

    fn advance(&mut self, is_whole: bool, mut give: impl FnMut(Piece<'_>)) {
        let clear = loop {
            match self.look(is_whole) {
                Err(until) => break self.text.floor_char_boundary(until),
                Ok(Finding { kind, span, .. }) => {
                    self.give_clean(span.start, &mut give);
                    self.give_gaps(span.start, &mut give);
                    give(Piece::Secret(&kind, &self.text[span.clone()]));
                    self.held = span.end;
                    // Those inside of it go with it.
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

    /// Gives those that stand there.
    fn give_gaps(&mut self, at: usize, give: &mut impl FnMut(Piece<'_>)) {
        while let Some((_, c)) = self.gaps.pop_front_if(|(gap, _)| *gap <= at) {
            give(Piece::Clean(c.encode_utf8(&mut [0; 4])));
        }
    }

    /// The next secret that is clear, or up to where there is none.
    fn look(&self, is_whole: bool) -> Result<Finding, usize> {
        let until = if is_whole { self.text.len() } else { self.engine.undecided(&self.text, self.held) };
        let mut at = self.held;
        while let Some((start, rule)) = self.engine.hit(&self.text, at).filter(|(start, _)| *start < until) {
            match self.engine.decide(&self.text, (start, rule), is_whole) {
                MatchState::Secret(finding) => return Ok(finding),
                MatchState::Open => return Err(start),
                MatchState::Nothing => at = start + 1,
            }
        }
        Err(until)
    }

    /// Lets go of what is too far back to be looked at.
    fn trim(&mut self) {
        let keep = self.text.floor_char_boundary(self.held.saturating_sub(BEFORE + 4));
        if keep > 4 * BEFORE {
            self.text.drain(..keep);
            self.held -= keep;
            self.gaps.iter_mut().for_each(|(at, _)| *at -= keep);
        }
    }
}
