//! The same in pieces: text that comes bit by bit.

use std::sync::Arc;

use super::engine::{BEFORE, Decision, Engine};
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
}

/// A part of the text: each byte is in one, in order.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Piece<'t> {
    /// Holds no secret.
    Clean(&'t str),
    /// Is one.
    Secret(&'t Kind, &'t str),
}

impl Chunks {
    pub(super) const fn new(engine: Arc<Engine>) -> Self {
        Self { engine, text: String::new(), held: 0 }
    }

    /// Takes a chunk, and gives what is clear by now.
    pub fn push(&mut self, chunk: &str, give: impl FnMut(Piece<'_>)) {
        self.text.push_str(chunk);
        self.advance(false, give);
    }

    /// Gives what is held: no more is to come. What is pushed later is a text of its own.
    pub fn finish(&mut self, give: impl FnMut(Piece<'_>)) {
        self.advance(true, give);
        self.clear();
    }

    /// Forgets what is held.
    pub fn clear(&mut self) {
        self.text.clear();
        self.held = 0;
    }

    /// What is held.
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
                    give(Piece::Secret(&kind, &self.text[span.clone()]));
                    self.held = span.end;
                }
            }
        };
        self.give_clean(clear, &mut give);
        self.trim();
    }

    fn give_clean(&mut self, until: usize, give: &mut impl FnMut(Piece<'_>)) {
        if until > self.held {
            give(Piece::Clean(&self.text[self.held..until]));
            self.held = until;
        }
    }

    /// The next secret that is clear, or up to where there is none.
    fn look(&self, is_whole: bool) -> Result<Finding, usize> {
        let until = if is_whole { self.text.len() } else { self.engine.undecided(&self.text, self.held) };
        let mut at = self.held;
        while let Some((start, rule)) = self.engine.hit(&self.text, at).filter(|(start, _)| *start < until) {
            match self.engine.decide(&self.text, (start, rule), is_whole) {
                Decision::Secret(finding) => return Ok(finding),
                Decision::Open => return Err(start),
                Decision::Nothing => at = start + 1,
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
        }
    }
}
