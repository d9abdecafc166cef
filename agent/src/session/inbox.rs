//! The messages that were sent to a session, for its history or for a middleware, and that did not arrive yet.
//!
//! Invariants:
//!
//! 1. A message leaves the inbox only in the step that adds it to the history, under the session's lock, or when a hook
//!    drops it. So a message is either in the inbox or in the history. A value for a middleware leaves it when the hooks
//!    of the middleware were called with it.
//! 2. A message is taken by at most one attempt of a run. When that attempt is gone, other runs may take it.
//! 3. Each input has a random id. If the outcome of its commit was unknown, it comes again when the session is read again,
//!    and arrives only if neither the inbox has it nor a run has taken it (A27).

use std::collections::VecDeque;
use std::mem::take;
use std::sync::Arc;

use emitree_emitter::new_id;
use serde::{Deserialize, Serialize};
use serde_json::Value;
use uuid::Uuid;

use crate::Message;
use crate::message::history::check;
use crate::session::turn_calls::TurnCalls;

/// The maximum number of messages that wait in an inbox, and of inputs whose ids are remembered.
pub(crate) const CAPACITY: usize = 1_000;

/// A message that was sent, and its way.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "sent", rename_all = "snake_case")]
pub(crate) enum Sent {
    /// Enters the conversation before the next model call.
    Steer { message: Arc<Message> },
    /// As `Steer`. Calls that have not begun are not executed.
    Interject { message: Arc<Message> },
    /// Enters the conversation when the loop would end.
    FollowUp { message: Arc<Message> },
    /// Goes to a middleware before the next model call.
    Value { to: Arc<str>, value: Value },
}

impl Sent {
    fn message(&self) -> Option<&Arc<Message>> {
        match self {
            Self::Steer { message } | Self::Interject { message } | Self::FollowUp { message } => Some(message),
            Self::Value { .. } => None,
        }
    }

    const fn is_steering(&self) -> bool {
        matches!(self, Self::Steer { .. } | Self::Interject { .. })
    }
}

/// An attempt of a run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Taker {
    /// The address of the run's [`SessionRun`](crate::session::run::SessionRun), which outlives the attempt.
    pub(crate) run: usize,
    pub(crate) attempt: u32,
}

/// A stored message.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(super) struct StoredInput {
    #[serde(default = "new_id")]
    id: Uuid,
    #[serde(flatten)]
    sent: Sent,
}

/// A message that waits.
#[derive(Clone, Debug)]
pub(crate) struct Waiting {
    id: Uuid,
    /// Counts the messages of the session, so that a message that comes back finds its place.
    number: u64,
    sent: Sent,
    taken_by: Option<Taker>,
}

impl Waiting {
    fn is_free_for(&self, taker: Taker) -> bool {
        self.taken_by.is_none_or(|other| other == taker)
    }

    fn take(&mut self, taker: Taker) -> Option<Arc<Message>> {
        self.taken_by = Some(taker);
        self.sent.message().cloned()
    }
}

/// A message to a middleware that an attempt has taken.
pub(crate) struct TakenValue {
    number: u64,
    pub(crate) to: Arc<str>,
    pub(crate) value: Value,
}

/// See the [module](self).
#[derive(Debug, Default)]
pub(crate) struct Inbox {
    waiting: Vec<Waiting>,
    sent: u64,
    /// The ids of the last inputs that a run has taken, pauses included.
    taken: VecDeque<Uuid>,
    /// The turns whose calls an interjection may close, in the order in which they began.
    pub(crate) turns: Vec<Arc<TurnCalls>>,
}

impl Inbox {
    pub(crate) fn len(&self) -> usize {
        self.waiting.len()
    }

    /// Returns the messages for the conversation.
    pub(crate) fn messages(&self) -> impl Iterator<Item = &Arc<Message>> {
        self.waiting.iter().filter_map(|waiting| waiting.sent.message())
    }

    /// Returns the values for a middleware.
    pub(crate) fn values<'a>(&'a self, id: &'a str) -> impl Iterator<Item = &'a Value> {
        self.waiting.iter().filter_map(move |waiting| match &waiting.sent {
            Sent::Value { to, value } if **to == *id => Some(value),
            _ => None,
        })
    }

    /// Returns the number of messages so far, which is the number of the next one.
    pub(super) const fn sent(&self) -> u64 {
        self.sent
    }

    /// Takes over the messages of another inbox that came from a number on, behind its own messages, unless they have
    /// arrived here.
    pub(super) fn take_over(&mut self, other: &mut Self, from: u64) {
        self.turns.append(&mut other.turns);
        for mut waiting in other.waiting.drain(..).filter(|waiting| waiting.number >= from) {
            if self.was_taken(waiting.id) || self.waiting.iter().any(|known| known.id == waiting.id) {
                continue;
            }
            waiting.number = self.sent;
            self.sent += 1;
            self.waiting.push(waiting);
        }
    }

    /// Returns `true` if a run has taken an input.
    pub(super) fn was_taken(&self, id: Uuid) -> bool {
        self.taken.contains(&id)
    }

    /// A run has taken these inputs.
    pub(super) fn take_ids(&mut self, ids: impl IntoIterator<Item = Uuid>) {
        for id in ids {
            if self.was_taken(id) {
                // Another attempt takes it.
                continue;
            }
            if self.taken.len() == CAPACITY {
                self.taken.pop_front();
            }
            self.taken.push_back(id);
        }
    }

    pub(super) fn taken(&self) -> Vec<Uuid> {
        self.taken.iter().copied().collect()
    }

    pub(super) fn to_stored(&self) -> Vec<StoredInput> {
        self.waiting.iter().map(|Waiting { id, sent, .. }| StoredInput { id: *id, sent: sent.clone() }).collect()
    }

    pub(super) fn stored(stored: Vec<StoredInput>, taken: Vec<Uuid>) -> Result<Self, String> {
        let mut inbox = Self::default();
        inbox.take_ids(taken);
        for (place, StoredInput { id, sent }) in stored.into_iter().enumerate() {
            if let Some(message) = sent.message() {
                check(std::slice::from_ref(message))
                    .map_err(|error| format!("at `inbox[{place}].message`: {error}"))?;
            }
            inbox.push_with(id, sent, |sent| sent).map_err(|_| "at `inbox`: too many messages".to_owned())?;
        }
        Ok(inbox)
    }

    /// Adds a message. Returns it if the inbox is full.
    pub(crate) fn push<T>(&mut self, message: T, sent: impl FnOnce(T) -> Sent) -> Result<(), T> {
        self.push_with(new_id(), message, sent)
    }

    fn push_with<T>(&mut self, id: Uuid, message: T, sent: impl FnOnce(T) -> Sent) -> Result<(), T> {
        if self.waiting.len() >= CAPACITY {
            return Err(message);
        }
        self.waiting.push(Waiting { id, number: self.sent, sent: sent(message), taken_by: None });
        self.sent += 1;
        Ok(())
    }

    /// Takes the messages for the next model call, and returns all that this attempt has taken.
    pub(crate) fn take_steering(&mut self, taker: Taker) -> Vec<Arc<Message>> {
        let waiting = self.waiting.iter_mut().filter(|waiting| waiting.sent.is_steering());
        let due = waiting.filter(|waiting| waiting.is_free_for(taker));
        due.filter_map(|waiting| waiting.take(taker)).collect()
    }

    /// Takes the oldest follow-up.
    pub(crate) fn take_follow_up(&mut self, taker: Taker) -> Option<Arc<Message>> {
        let mut waiting = self.waiting.iter_mut().filter(|waiting| matches!(waiting.sent, Sent::FollowUp { .. }));
        waiting.find(|waiting| waiting.is_free_for(taker))?.take(taker)
    }

    /// Takes the values for middlewares.
    pub(crate) fn take_values(&mut self, taker: Taker) -> Vec<TakenValue> {
        let free = self.waiting.iter_mut().filter(|waiting| waiting.is_free_for(taker));
        let taken = free.filter_map(|waiting| match &waiting.sent {
            Sent::Value { to, value } => {
                waiting.taken_by = Some(taker);
                Some(TakenValue { number: waiting.number, to: Arc::clone(to), value: value.clone() })
            }
            _ => None,
        });
        taken.collect()
    }

    /// Takes all interjections that no attempt has taken. Returns `false` if there are none.
    pub(crate) fn take_interjections(&mut self, taker: Taker) -> bool {
        let waiting = self.waiting.iter_mut().filter(|waiting| matches!(waiting.sent, Sent::Interject { .. }));
        let free = waiting.filter(|waiting| waiting.taken_by.is_none());
        free.map(|waiting| waiting.take(taker)).count() > 0
    }

    /// Lets the first turn whose calls are under way take the interjections that wait. Returns this turn.
    pub(crate) fn interrupted_turn(&mut self) -> Option<Arc<TurnCalls>> {
        let turn = Arc::clone(self.turns.first()?);
        self.take_interjections(turn.taker()).then_some(turn)
    }

    /// Removes a value that an attempt has taken.
    pub(crate) fn remove_value(&mut self, taken: &TakenValue) -> Option<Waiting> {
        let place = self.waiting.iter().position(|waiting| waiting.number == taken.number)?;
        let removed = self.waiting.remove(place);
        self.take_ids([removed.id]);
        Some(removed)
    }

    /// Removes what an attempt has taken.
    pub(crate) fn remove(&mut self, taker: Taker) -> Vec<Waiting> {
        let removed: Vec<_> = self.waiting.extract_if(.., |waiting| waiting.taken_by == Some(taker)).collect();
        self.take_ids(removed.iter().map(|waiting| waiting.id));
        removed
    }

    /// Frees what attempts have taken.
    pub(crate) fn free(&mut self, is_gone: impl Fn(Taker) -> bool) {
        for waiting in &mut self.waiting {
            waiting.taken_by = waiting.taken_by.filter(|taker| !is_gone(*taker));
        }
    }

    /// Frees what a run has taken, and ends its turns.
    pub(crate) fn free_run(&mut self, run: usize) {
        self.turns.retain(|turn| turn.taker().run != run);
        self.free(|taker| taker.run == run);
    }

    /// Puts messages back in their places.
    pub(crate) fn put_back(&mut self, mut returned: Vec<Waiting>) {
        if returned.is_empty() {
            return;
        }
        returned.iter_mut().for_each(|waiting| waiting.taken_by = None);
        returned.append(&mut take(&mut self.waiting));
        returned.sort_by_key(|waiting| waiting.number);
        self.waiting = returned;
    }
}
