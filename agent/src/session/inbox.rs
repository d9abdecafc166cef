//! The messages that were sent to a session, for its history or for a middleware, and that did not arrive yet.
//!
//! Invariants:
//!
//! 1. A message leaves the inbox only in the step that adds it to the history, under the session's lock, or when a hook
//!    drops it. So a message is either in the inbox or in the history. A value for a middleware leaves it when the hooks
//!    of the middleware were called with it.
//! 2. A message is taken by at most one attempt of a run. When that attempt is gone, other runs may take it.

use std::mem::take;
use std::sync::Arc;

use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::Message;
use crate::message::history::check;
use crate::session::turn_calls::TurnCalls;

/// The maximum number of messages that wait in an inbox.
pub(crate) const CAPACITY: usize = 1_000;

/// A message that was sent, and its way.
#[derive(Clone, Debug, Serialize, Deserialize)]
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

/// A message that waits.
#[derive(Clone, Debug)]
pub(crate) struct Waiting {
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

    /// Takes over the messages of another inbox that came from a number on, behind its own messages.
    pub(super) fn take_over(&mut self, other: &mut Self, from: u64) {
        self.turns.append(&mut other.turns);
        for mut waiting in other.waiting.drain(..).filter(|waiting| waiting.number >= from) {
            waiting.number = self.sent;
            self.sent += 1;
            self.waiting.push(waiting);
        }
    }

    pub(super) fn to_stored(&self) -> Vec<Sent> {
        self.waiting.iter().map(|waiting| waiting.sent.clone()).collect()
    }

    pub(super) fn stored(stored: Vec<Sent>) -> Result<Self, String> {
        let mut inbox = Self::default();
        for (place, sent) in stored.into_iter().enumerate() {
            if let Some(message) = sent.message() {
                check(std::slice::from_ref(message))
                    .map_err(|error| format!("at `inbox[{place}].message`: {error}"))?;
            }
            inbox.push(sent, |sent| sent).map_err(|_| "at `inbox`: too many messages".to_owned())?;
        }
        Ok(inbox)
    }

    /// Adds a message. Returns it if the inbox is full.
    pub(crate) fn push<T>(&mut self, message: T, sent: impl FnOnce(T) -> Sent) -> Result<(), T> {
        if self.waiting.len() >= CAPACITY {
            return Err(message);
        }
        self.waiting.push(Waiting { number: self.sent, sent: sent(message), taken_by: None });
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
        Some(self.waiting.remove(place))
    }

    /// Removes what an attempt has taken.
    pub(crate) fn remove(&mut self, taker: Taker) -> Vec<Waiting> {
        self.waiting.extract_if(.., |waiting| waiting.taken_by == Some(taker)).collect()
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
