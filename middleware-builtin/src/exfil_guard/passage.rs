//! Checks text that arrives in chunks, in the events of a run.

use std::sync::Arc;

use emitree_runtime::{Error, Result, TextFilter};
use emitree_secrets::{Chunks, Piece};

use super::GuardState;
use super::decode::Encoding;
use super::leak::What;
use crate::shared::run_part::RunPart;

/// The number of bytes that are held back at the end of a long word. With each further part, up to this number of
/// passed bytes are checked again.
const MAX_WORD: usize = 8 * 1024;
/// The minimum length of the parts in which a long word is passed on. With smaller parts, the same bytes would be
/// checked more often.
const STEP: usize = 2 * 1024;

/// Refuses text that contains a secret. Holds a word back until it ends, because it may be encoded.
pub(super) struct CheckPassage {
    name: String,
    guard: Arc<GuardState>,
    chunks: Chunks,
    /// The text that was passed last, followed by the text that is held back, which begins at `held`.
    text: String,
    held: usize,
    /// The start of the last word in `text[..searched]`. This part was already searched for whitespace.
    word: usize,
    searched: usize,
    /// `true` if text other than whitespace was dropped from the front of `text`.
    is_begun: bool,
}

impl CheckPassage {
    /// Creates the check for events with this name.
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
        self.guard.block(RunPart::Event, &self.name, what, encoding)
    }

    /// Returns an error if the scanner found a secret; otherwise returns the text that is clear.
    fn refuse_or_release(&mut self, found: Option<What>, is_whole: bool) -> Result<String> {
        match found {
            Some(what) => Err(self.refuse(what, Encoding::Plain)),
            None => self.release(is_whole),
        }
    }

    /// Checks the text that is held back, and returns its clear part, or all of it if `is_whole` is `true`.
    fn release(&mut self, is_whole: bool) -> Result<String> {
        let until = if is_whole { self.text.len() } else { self.clear_until() };
        if until <= self.held {
            return Ok(String::new());
        }
        // Search the whole text, because a known value may begin in the part to pass and end in the part that is held
        // back.
        if self.guard.detector.contains_known(&self.text) {
            return Err(self.refuse(What::Known, Encoding::Plain));
        }
        // In the middle of a long word, the part that is held back belongs to the same word: check it together with the
        // part to pass.
        let is_cut = self.text[until..].len() + 4 > MAX_WORD;
        let checked = if is_cut { self.text.as_str() } else { &self.text[..until] };
        let detector = &self.guard.detector;
        let budget = &mut detector.budget();
        // At the real beginning of the text, `//` is more likely to begin a URL than where the front was dropped.
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

    /// Returns the end of the clear part of the text: the part that further text cannot turn into a secret.
    fn clear_until(&mut self) -> usize {
        let back = |bytes: usize| self.text.floor_char_boundary(self.text.len().saturating_sub(bytes));
        // A known value that begins before `known` is already complete, so `release` finds it. `bound` leaves
        // `MAX_WORD` bytes held back: a longer word passes up to `bound`.
        let known = back(self.guard.detector.longest().saturating_sub(1));
        let bound = back(MAX_WORD);
        // Search only bytes that were not searched before, so that a word in many small chunks takes linear time.
        if known > self.searched {
            self.word =
                after_last_whitespace(&self.text[self.searched..known]).map_or(self.word, |at| self.searched + at);
            self.searched = known;
        }
        if bound >= self.held + STEP { self.word.max(bound) } else { self.word }
    }

    /// Drops passed text that later checks do not need. Keeps text that may belong to a known value or to the last
    /// word, but at most `MAX_WORD` bytes.
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

/// Returns the position after the last whitespace character.
fn after_last_whitespace(text: &str) -> Option<usize> {
    text.char_indices().rev().find(|(_, c)| c.is_whitespace()).map(|(at, c)| at + c.len_utf8())
}

impl TextFilter for CheckPassage {
    fn push(&mut self, text: &str) -> Result<String> {
        let mut found = None;
        let clean = &mut self.text;
        self.chunks.push(text, |piece| collect(piece, clean, &mut found));
        self.refuse_or_release(found, false)
    }

    fn finish(&mut self) -> Result<String> {
        let mut found = None;
        let clean = &mut self.text;
        self.chunks.finish(|piece| collect(piece, clean, &mut found));
        self.refuse_or_release(found, true)
    }
}

fn collect(piece: Piece<'_>, clean: &mut String, found: &mut Option<What>) {
    match piece {
        Piece::Clean(text) => *clean += text,
        Piece::Secret(kind, _) => *found = Some(What::Kind(kind.clone())),
    }
}
