//! Text on its way past the guard, bit by bit.

use std::sync::Arc;

use emitree_runtime::{Error, Result};

use super::GuardState;
use super::decode::Encoding;
use super::leak::What;
use crate::shared::inspected_place::Place;
use crate::shared::secrets::chunked_events::ChunkFilter;
use crate::shared::secrets::{Chunks, Piece};

/// As long as a word may be that is held whole; of a longer one, a part this long is looked at with each that follows.
const MAX_WORD: usize = 8 * 1024;
/// Of a longer one, parts of this length go on: with each, all that is held and was kept is looked at again.
const STEP: usize = 2 * 1024;

/// Refuses text that holds a secret. A word is held until it is over, because it may be encoded.
pub(super) struct CheckPassage {
    name: String,
    guard: Arc<GuardState>,
    chunks: Chunks,
    /// What has gone on last, and then what is held.
    text: String,
    held: usize,
    /// Where its last word begins, as far as it was `searched` for blanks.
    word: usize,
    searched: usize,
    /// Whether more than blanks stood before it.
    is_begun: bool,
}

impl CheckPassage {
    /// For events of a name.
    pub(super) fn new(name: &str, guard: &Arc<GuardState>) -> Self {
        let chunks = guard.detector.scanner.chunks();
        Self {
            name: name.to_owned(),
            guard: Arc::clone(guard),
            chunks,
            text: String::new(),
            held: 0,
            word: 0,
            searched: 0,
            is_begun: false,
        }
    }

    fn refuse(&self, what: What, encoding: Encoding) -> Error {
        self.guard.block(Place::Event, &self.name, what, encoding)
    }

    /// Refuses a secret that was found, or releases what is clear.
    fn refuse_or_release(&mut self, found: Option<What>, is_whole: bool) -> Result<String> {
        match found {
            Some(what) => Err(self.refuse(what, Encoding::Plain)),
            None => self.release(is_whole),
        }
    }

    /// What is clear goes on to where the last word begins, once that was looked at.
    fn release(&mut self, is_whole: bool) -> Result<String> {
        let until = if is_whole { self.text.len() } else { self.clear_until() };
        if until <= self.held {
            return Ok(String::new());
        }
        // A known value may begin in what goes on and end in what is held.
        if self.guard.detector.contains_known(&self.text) {
            return Err(self.refuse(What::Known, Encoding::Plain));
        }
        // Of a word that is too long, what follows belongs to what goes on.
        let is_cut = self.text[until..].len() + 4 > MAX_WORD;
        let checked = if is_cut { self.text.as_str() } else { &self.text[..until] };
        let detector = &self.guard.detector;
        let budget = &mut detector.budget();
        let leak = if self.is_begun {
            detector.find_leak_within(checked, budget)
        } else {
            detector.find_leak(checked, budget)
        };
        if let Some((what, encoding)) = leak {
            return Err(self.refuse(what, encoding));
        }
        let clear = self.text[self.held..until].to_owned();
        self.held = until;
        self.drop_old_text();
        Ok(clear)
    }

    /// Up to where nothing can be part of what is still to come.
    fn clear_until(&mut self) -> usize {
        let back = |bytes: usize| self.text.floor_char_boundary(self.text.len().saturating_sub(bytes));
        let (known, bound) = (back(self.guard.detector.longest().saturating_sub(1)), back(MAX_WORD));
        if known > self.searched {
            self.word =
                after_last_whitespace(&self.text[self.searched..known]).map_or(self.word, |at| self.searched + at);
            self.searched = known;
        }
        if bound >= self.held + STEP { self.word.max(bound) } else { self.word }
    }

    /// Lets go of words that can be no part of a known value, and of what is too far back in a long one.
    fn drop_old_text(&mut self) {
        let far = self.text.floor_char_boundary(self.held.saturating_sub(self.guard.detector.longest()));
        let too_far = self.text.floor_char_boundary(self.held.saturating_sub(MAX_WORD));
        let keep = after_last_whitespace(&self.text[..far]).unwrap_or(0).max(too_far);
        self.is_begun |= !self.text[..keep].trim().is_empty();
        self.text.drain(..keep);
        self.held -= keep;
        (self.word, self.searched) = (self.word.saturating_sub(keep), self.searched.saturating_sub(keep));
    }
}

/// Where the last word begins, if there is a blank before it.
fn after_last_whitespace(text: &str) -> Option<usize> {
    text.char_indices().rev().find(|(_, c)| c.is_whitespace()).map(|(at, c)| at + c.len_utf8())
}

impl ChunkFilter for CheckPassage {
    fn push(&mut self, text: &str) -> Result<String> {
        let (mut found, clean) = (None, &mut self.text);
        self.chunks.push(text, |piece| collect(piece, clean, &mut found));
        self.refuse_or_release(found, false)
    }

    fn finish(&mut self) -> Result<String> {
        let (mut found, clean) = (None, &mut self.text);
        self.chunks.finish(|piece| collect(piece, clean, &mut found));
        self.refuse_or_release(found, true)
    }

    fn clear(&mut self) {
        self.chunks.clear();
        self.text.clear();
        (self.held, self.word, self.searched, self.is_begun) = (0, 0, 0, false);
    }
}

fn collect(piece: Piece<'_>, clean: &mut String, found: &mut Option<What>) {
    match piece {
        Piece::Clean(text) => *clean += text,
        Piece::Secret(kind, _) => *found = Some(What::Kind(kind.clone())),
    }
}
