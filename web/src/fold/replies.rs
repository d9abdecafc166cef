//! Replies: their texts are compared with the messages that the history keeps.

use std::sync::Arc;

use emitree_agent::{Message, Part as MessagePart};

use crate::fold::{Fold, Held, Steps};
use crate::step::{Content, Owner, Part, Step, TextKind};

impl Fold {
    /// A message of the model has entered the history: the open reply is this message.
    pub(super) fn say(&mut self, owner: &Owner, message: &Message, steps: &mut Steps) {
        let is_open = |held: &Held| held.part.owner == *owner && held.message.is_none();
        if !self.parts.iter().any(is_open) {
            // The agent to which the conversation was transferred has said it already.
            let is_known = self.agents.was_transferred(owner) && self.last_said(owner) == Some(message.text());
            if !is_known {
                self.append(owner, message, steps);
            }
        } else if self.holds(message, is_open) {
            self.close_texts(is_open, steps);
        } else {
            self.put_in_place(owner, message, is_open, steps);
        }
        self.commit(owner);
    }

    /// Another message takes the place of the last one.
    pub(super) fn replace(&mut self, owner: &Owner, message: &Message, steps: &mut Steps) {
        let Some(&number) = self.said.get(owner) else { return };
        let is_of_last = |held: &Held| held.part.owner == *owner && held.message == Some(number);
        if !self.holds(message, is_of_last) {
            self.put_in_place(owner, message, is_of_last, steps);
            self.parts.iter_mut().filter(|held| held.message.is_none() && held.part.owner == *owner).for_each(|held| {
                held.message = Some(number);
            });
        }
    }

    /// Takes the open reply back.
    pub(super) fn drop_reply(&mut self, owner: &Owner, steps: &mut Steps) {
        let is_open = |held: &Held| held.part.owner == *owner && held.message.is_none();
        self.take_back(|held| is_open(held) && (held.is_text() || held.is_open), steps);
    }

    /// Takes parts back, if there are any, and says which hold.
    pub(super) fn take_back(&mut self, is_gone: impl Fn(&Held) -> bool, steps: &mut Steps) {
        if self.parts.iter().any(&is_gone) {
            self.remove(is_gone, steps);
            self.push_reset(steps);
        }
    }

    /// Closes the texts that are removed, and cuts the calls.
    fn remove(&mut self, is_gone: impl Fn(&Held) -> bool, steps: &mut Steps) {
        self.close_texts(&is_gone, steps);
        for held in self.parts.iter().filter(|held| held.is_open && is_gone(held)) {
            if let Some(call) = held.part.call() {
                let (id, owner) = (Arc::clone(&held.part.id), held.part.owner.clone());
                steps.push(Step::CallCut { id, owner, text: call.text.clone() });
            }
        }
        for held in self.parts.iter_mut().rev().filter(|held| is_gone(held)) {
            if let Some(call) = held.part.call() {
                self.calls.forget(&held.part.owner, &call.given, &held.part.id);
            }
            held.blank();
        }
        self.parts.retain(|held| !is_gone(held) || held.is_blank());
    }

    /// Returns `true` if the selected parts have the texts of a message, and all its calls are complete.
    fn holds(&self, message: &Message, of: impl Fn(&Held) -> bool) -> bool {
        let selected = || self.parts.iter().filter(|held| of(held));
        let text = |kind| selected().filter_map(|held| held.part.text_of(kind)).collect::<String>();
        let is_cut = selected().any(|held| held.is_open && held.part.call().is_some());
        !is_cut && text(TextKind::Answer) == message.text() && text(TextKind::Reasoning) == reasoning_of(message)
    }

    /// Puts the texts of a message in the place of the selected texts, before the calls of the reply.
    fn put_in_place(&mut self, owner: &Owner, message: &Message, of: impl Fn(&Held) -> bool, steps: &mut Steps) {
        let first = self.parts.iter().position(&of).unwrap_or(self.parts.len());
        self.remove(|held| of(held) && (held.is_text() || held.is_open), steps);
        self.begin(owner, steps);
        let texts: Vec<_> = texts_of(message).map(|(kind, text)| self.said_text(owner, kind, text)).collect();
        self.parts.splice(first..first, texts);
        self.push_reset(steps);
    }

    fn said_text(&mut self, owner: &Owner, kind: TextKind, text: &str) -> Held {
        let content = Content::Text { kind, text: text.to_owned() };
        let part = Part { id: self.next_id(), owner: owner.clone(), content };
        Held { part, is_open: false, message: None }
    }

    /// Adds the texts of a message of which nothing was streamed.
    fn append(&mut self, owner: &Owner, message: &Message, steps: &mut Steps) {
        for (kind, text) in texts_of(message) {
            self.add_text(owner, text, kind, steps);
        }
        self.close_texts(|held| held.part.owner == *owner, steps);
    }

    fn commit(&mut self, owner: &Owner) {
        let number = self.said.entry(owner.clone()).or_default();
        *number += 1;
        for held in self.parts.iter_mut().filter(|held| held.part.owner == *owner && held.message.is_none()) {
            held.message = Some(*number);
        }
    }

    /// Returns the text of the last message of an agent that has one.
    pub(super) fn last_said(&self, owner: &Owner) -> Option<String> {
        let texts = || self.parts.iter().filter(|held| held.part.owner == *owner && held.is_text());
        let of_last = |held: &&Held| texts().next_back().is_some_and(|last| last.message == held.message);
        let texts: String = texts().filter(of_last).filter_map(|held| held.part.text_of(TextKind::Answer)).collect();
        (!texts.is_empty()).then_some(texts)
    }
}

impl Held {
    /// Removes the text of a reasoning. AG-UI keeps reasoning that a snapshot leaves out, so its id has to stay.
    fn blank(&mut self) {
        if let Content::Text { kind: TextKind::Reasoning, text } = &mut self.part.content {
            text.clear();
            (self.is_open, self.message) = (false, Some(0));
        }
    }

    fn is_blank(&self) -> bool {
        self.part.text_of(TextKind::Reasoning).is_some_and(str::is_empty)
    }
}

/// Returns the texts of a message, in order.
fn texts_of(message: &Message) -> impl Iterator<Item = (TextKind, &str)> {
    message.parts.iter().filter_map(|part| match part {
        MessagePart::Text { content } if !content.is_empty() => Some((TextKind::Answer, &**content)),
        MessagePart::Reasoning { content, .. } if !content.is_empty() => Some((TextKind::Reasoning, &**content)),
        _ => None,
    })
}

fn reasoning_of(message: &Message) -> String {
    texts_of(message).filter(|(kind, _)| *kind == TextKind::Reasoning).map(|(_, text)| text).collect()
}
