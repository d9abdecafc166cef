//! The history as spans: messages that entered it together. What a run has added or replaced is undone span by span, so
//! an undo cannot make the history invalid (A7).

use std::mem::take;
use std::ops::Range;
use std::sync::Arc;

use serde::{Deserialize, Serialize};

use crate::message::is_false;
use crate::session::fold::{Conversation, Fault, valid};
use crate::{Message, Role};

/// Messages that entered the history together, and that are valid by themselves.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Span {
    pub(crate) len: usize,
    /// The run that can still undo it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) run: Option<u32>,
    /// The turn of its response and results.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) turn: Option<u64>,
    /// The turn to which a later run has added these messages.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) behind: Option<u64>,
    /// `true` if its last message of a model is the answer of the turn, and not the response.
    #[serde(default, skip_serializing_if = "is_false")]
    pub(crate) ends: bool,
    /// What a hook has replaced by this span, until the hook's run is over.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub(crate) replaced: Vec<Part>,
}

impl Span {
    fn is_of(&self, turn: u64) -> bool {
        self.turn == Some(turn) || self.behind == Some(turn)
    }
}

/// A span with its messages.
pub(crate) type Part = (Span, Vec<Arc<Message>>);

impl Conversation {
    /// Adds messages, which are valid by themselves.
    pub(super) fn push(&mut self, messages: Vec<Arc<Message>>, run: Option<u32>, turn: Option<u64>) {
        self.spans.push(Span { len: messages.len(), run, turn, ..Span::default() });
        Arc::make_mut(&mut self.messages).extend(messages);
    }

    /// Returns the messages, which are about to be changed.
    pub(super) fn messages_mut(&mut self) -> &mut Vec<Arc<Message>> {
        self.edits.0 += 1;
        Arc::make_mut(&mut self.messages)
    }

    pub(super) fn take_messages(&mut self) -> Vec<Arc<Message>> {
        self.edits.0 += 1;
        Arc::unwrap_or_clone(take(&mut self.messages))
    }

    /// Results stand directly behind their calls, and nothing else does.
    pub(crate) fn is_boundary(&self, at: usize) -> bool {
        at <= self.messages.len() && self.messages.get(at).is_none_or(|message| message.role != Role::Tool)
    }

    /// Returns the span with the response and the results of a turn, and the position of the response.
    pub(crate) fn turn_at(&self, turn: u64) -> Option<(usize, usize)> {
        self.last_span(|span| span.turn == Some(turn))
    }

    /// Returns the last span that fits, and its position. Turns are near the end.
    fn last_span(&self, fits: impl Fn(&Span) -> bool) -> Option<(usize, usize)> {
        let mut at = self.messages.len();
        for (number, span) in self.spans.iter().enumerate().rev() {
            at -= span.len;
            if fits(span) {
                return Some((number, at));
            }
        }
        None
    }

    /// Returns the span and the position of the answer of a turn: its response, or another message of a model that the
    /// turn ends with.
    pub(crate) fn answer_at(&self, turn: u64) -> Option<(usize, usize)> {
        let mut to = self.messages.len();
        for (number, span) in self.spans.iter().enumerate().rev() {
            let from = to - span.len;
            let is_of_model = |at: &usize| self.messages[*at].role == Role::Assistant;
            let at = match span {
                Span { ends: true, .. } if span.is_of(turn) => (from..to).rev().find(is_of_model),
                Span { turn: Some(of), .. } if *of == turn => (from..to).next().filter(is_of_model),
                _ => None,
            };
            if let Some(at) = at {
                return Some((number, at));
            }
            to = from;
        }
        None
    }

    /// Adds messages of another run behind a turn that is in the history.
    pub(super) fn push_behind(&mut self, turn: u64, messages: Vec<Arc<Message>>, run: u32, ends: bool) {
        let (place, end) = match self.last_span(|span| span.is_of(turn)) {
            Some((last, at)) => (last + 1, at + self.spans[last].len),
            None => (self.spans.len(), self.messages.len()),
        };
        let span = Span { len: messages.len(), run: Some(run), behind: Some(turn), ends, ..Span::default() };
        self.spans.insert(place, span);
        self.messages_mut().splice(end..end, messages);
    }

    /// Returns the messages of a turn that is in the history, or in a part that a hook has replaced.
    pub(super) fn messages_of(&mut self, turn: u64) -> Option<&mut [Arc<Message>]> {
        match self.turn_at(turn) {
            Some((span, at)) => {
                let end = at + self.spans[span].len;
                self.messages_mut().get_mut(at..end)
            }
            None => replaced_turn(&mut self.spans, turn),
        }
    }

    /// Replaces messages between two boundaries.
    pub(super) fn rewrite(&mut self, run: u32, at: usize, removed: usize, add: Vec<Arc<Message>>) -> Result<(), Fault> {
        self.live(run)?;
        let end = at.checked_add(removed).filter(|end| *end <= self.messages.len());
        let end = end.ok_or_else(|| format!("the history has {} messages", self.messages.len()))?;
        if !self.is_boundary(at) || !self.is_boundary(end) {
            return Err("the part that is replaced begins or ends inside a turn".to_owned());
        }
        valid(&add)?;
        let (mut before, mut replaced, mut after, mut from) = (Vec::new(), Vec::new(), Vec::new(), 0);
        for (span, messages) in split(take(&mut self.spans), self.take_messages()) {
            let to = from + span.len;
            if span.len == 0 {
                // It has only an undo.
                let into = if from <= at {
                    &mut before
                } else if from < end {
                    &mut replaced
                } else {
                    &mut after
                };
                into.push((span, messages));
                continue;
            }
            let cuts = [at.clamp(from, to), end.clamp(from, to)];
            let is_cut = cuts.iter().any(|cut| *cut != from && *cut != to);
            let piece = |range: Range<usize>, into: &mut Vec<Part>| {
                if range.is_empty() {
                    return;
                }
                let mut part = Span { len: range.len(), ..span.clone() };
                if is_cut {
                    // Each piece is valid by itself. The first one has the response and its results, so they still get
                    // the results of calls under way, unless the turn has lost its answer.
                    let turn = part.turn.filter(|_| range.start == from && !part.ends);
                    (part.turn, part.behind, part.ends, part.replaced) = (turn, None, false, Vec::new());
                }
                into.push((part, messages[range.start - from..range.end - from].to_vec()));
            };
            if at == end && from == at {
                piece(from..to, &mut after);
            } else {
                piece(from..cuts[0], &mut before);
                piece(cuts[0]..cuts[1], &mut replaced);
                piece(cuts[1]..to, &mut after);
            }
            from = to;
        }
        let span = Span { len: add.len(), run: Some(run), replaced, ..Span::default() };
        let parts = before.into_iter().chain([(span, add)]).chain(after);
        let (spans, messages): (Vec<_>, Vec<_>) = parts.unzip();
        (self.spans, self.messages) = (spans, Arc::new(messages.into_iter().flatten().collect()));
        self.forget_empty_spans();
        Ok(())
    }

    /// Forgets spans that have nothing, and replace nothing.
    pub(super) fn forget_empty_spans(&mut self) {
        self.spans.retain(|span| span.len > 0 || !span.replaced.is_empty());
    }
}

fn replaced_turn(spans: &mut [Span], turn: u64) -> Option<&mut [Arc<Message>]> {
    spans.iter_mut().flat_map(|span| &mut span.replaced).find_map(|(span, messages)| {
        if span.turn == Some(turn) {
            return Some(&mut messages[..]);
        }
        replaced_turn(std::slice::from_mut(span), turn)
    })
}

/// Gives each span its messages.
pub(super) fn split(spans: Vec<Span>, messages: Vec<Arc<Message>>) -> Vec<Part> {
    let mut messages = messages.into_iter();
    let part = |span: Span| {
        let part = messages.by_ref().take(span.len).collect();
        (span, part)
    };
    spans.into_iter().map(part).collect()
}

/// Leaves out what a run has added, and puts back what it has replaced, also inside of what others have replaced.
pub(super) fn undo_spans(parts: Vec<Part>, run: u32, spans: &mut Vec<Span>, messages: &mut Vec<Arc<Message>>) {
    for (mut span, of_span) in parts {
        if span.run == Some(run) {
            undo_spans(take(&mut span.replaced), run, spans, messages);
            continue;
        }
        if !span.replaced.is_empty() {
            let (mut inner, mut inside) = (Vec::new(), Vec::new());
            undo_spans(take(&mut span.replaced), run, &mut inner, &mut inside);
            span.replaced = split(inner, inside);
        }
        if span.len > 0 || !span.replaced.is_empty() {
            spans.push(span);
            messages.extend(of_span);
        }
    }
}

/// A run is over: what it has added stays, and what it has replaced is gone.
pub(super) fn forget_undo(spans: &mut Vec<Span>, run: u32) {
    for span in spans.iter_mut() {
        forget_undo_of(span, run);
    }
    spans.retain(|span| span.len > 0 || !span.replaced.is_empty());
}

fn forget_undo_of(span: &mut Span, run: u32) {
    if span.run == Some(run) {
        (span.run, span.replaced) = (None, Vec::new());
    }
    span.replaced.iter_mut().for_each(|(inner, _)| forget_undo_of(inner, run));
}
