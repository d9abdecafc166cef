//! The messages of the inbox that a run takes: those for the conversation, the values for middlewares, and the pause (A15).

use std::sync::Arc;

use serde_json::Value;

use crate::Message;
use crate::session::fold::Waiting;
use crate::session::log::{Local, LogState, View};
use crate::session::record::{Input, Record};
use crate::session::run::SessionRun;
use crate::session::turn::By;

/// A value for a middleware that an attempt has taken.
pub(crate) struct TakenValue {
    number: u64,
    pub(crate) to: Arc<str>,
    pub(crate) value: Value,
}

impl SessionRun {
    /// Returns `true` if the inbox has messages, also those that another run has taken.
    pub(crate) fn has_waiting(&self) -> bool {
        self.view().has_waiting()
    }

    /// Returns `true` if the session has a pause.
    pub(crate) fn is_paused(&self) -> bool {
        self.has_waiting() && self.lock().session(self.view()).paused.is_some()
    }

    /// Takes the pause of the session. Returns `false` if there is none.
    pub(crate) fn take_pause(&self) -> bool {
        if !self.has_waiting() {
            return false;
        }
        let state = &mut *self.lock();
        state.session(self.view()).paused.is_some() && self.push(state, self.attempt(), |run| Record::Stopped { run })
    }

    /// Takes messages of the inbox, and returns those that this attempt has taken.
    fn take<T>(&self, attempt: u32, mut take: impl FnMut(&Waiting) -> Option<T>) -> Vec<T> {
        let state = &mut *self.lock();
        let Some(run) = self.find(state).map(|run| run.number) else { return Vec::new() };
        let inbox: Vec<_> = state.session(self.view()).inbox.clone();
        let Some(local) = state.local(self.view()) else { return Vec::new() };
        let mut taken = Vec::new();
        for waiting in &inbox {
            if local.is_free(waiting.number, run)
                && let Some(value) = take(waiting)
            {
                claim(local, run, waiting.number, attempt);
                taken.push(value);
            }
        }
        taken
    }

    /// Takes the values for middlewares.
    pub(crate) fn take_values(&self, attempt: u32) -> Vec<TakenValue> {
        self.take(attempt, |waiting| match &waiting.sent {
            Input::Value { to, value } => {
                Some(TakenValue { number: waiting.number, to: Arc::clone(to), value: value.clone() })
            }
            _ => None,
        })
    }

    /// Removes a value with which the hooks of its middleware were called in an attempt.
    pub(crate) fn remove_value(&self, taken: &TakenValue, attempt: u32) {
        let state = &mut *self.lock();
        let numbers = vec![taken.number];
        if self.push(state, attempt, |run| Record::Taken { run, numbers, messages: Some(Vec::new()) }) {
            self.live(state).into_iter().for_each(|live| live.taken.retain(|(number, _)| *number != taken.number));
        }
    }

    /// Takes the messages that enter before a model call.
    pub(crate) fn take_steering(&self, attempt: u32) -> Vec<Arc<Message>> {
        self.take(attempt, |waiting| match &waiting.sent {
            Input::Steer(message) | Input::Interject(message) => Some(Arc::clone(message)),
            _ => None,
        })
    }

    /// Takes the messages that enter where the loop would end: those for the next model call, or else a follow-up.
    pub(crate) fn take_at_end(&self, attempt: u32) -> Vec<Arc<Message>> {
        let taken = self.take_steering(attempt);
        if !taken.is_empty() {
            return taken;
        }
        let mut has_one = false;
        self.take(attempt, |waiting| match &waiting.sent {
            Input::FollowUp(message) if !has_one => {
                has_one = true;
                Some(Arc::clone(message))
            }
            _ => None,
        })
    }

    /// Replaces the messages that an attempt has taken, in the inbox, by these messages, in the history. They must be
    /// valid by themselves.
    pub(crate) fn enter(&self, messages: Vec<Arc<Message>>, attempt: u32) {
        let state = &mut *self.lock();
        let Some(live) = self.live(state) else { return };
        let of_attempt = |taken: &&(u64, u32)| taken.1 == attempt;
        let numbers: Vec<_> = live.taken.iter().filter(of_attempt).map(|(number, _)| *number).collect();
        let inbox = &state.session(self.view()).inbox;
        let sent = inbox.iter().filter(|waiting| numbers.contains(&waiting.number));
        let is_as_sent = sent.filter_map(|waiting| waiting.sent.message()).eq(&messages);
        let record = |run| Record::Taken { run, numbers, messages: (!is_as_sent).then(|| messages.clone()) };
        if self.push(state, attempt, record) {
            self.live(state).into_iter().for_each(|live| live.taken.clear());
            self.add(state, messages);
        }
    }

    /// Frees the messages that an attempt has taken, and that it has not added.
    pub(crate) fn free_taken(&self, attempt: u32) {
        if self.has_waiting() {
            let state = &mut *self.lock();
            self.live(state).into_iter().for_each(|live| live.taken.retain(|(_, by)| *by != attempt));
        }
    }
}

/// Lets a run take a message.
fn claim(local: &mut Local, run: u32, number: u64, attempt: u32) {
    if let Some(live) = local.live(run) {
        live.taken.retain(|(taken, _)| *taken != number);
        live.taken.push((number, attempt));
    }
}

/// Lets a turn take the interjections that no attempt has taken. Returns `false` if there are none.
pub(in crate::session) fn take_interjections(state: &mut LogState, view: &View, by: By) -> bool {
    let inbox = state.session(view).inbox.iter();
    let interjections = inbox.filter(|waiting| matches!(waiting.sent, Input::Interject(_)));
    let numbers: Vec<_> = interjections.map(|waiting| waiting.number).collect();
    let Some(local) = state.local(view) else { return false };
    let is_free = |number: &u64| local.live.iter().all(|live| live.taken.iter().all(|(taken, _)| taken != number));
    let free: Vec<_> = numbers.into_iter().filter(is_free).collect();
    free.iter().for_each(|number| claim(local, by.run, *number, by.attempt));
    !free.is_empty()
}
