//! What a breaker says that it did.

use emitree_emitter::{Event, EventName};
use serde::{Deserialize, Serialize};

use crate::shared::own_events::Texts;

/// It was closed, or half-open, and has opened.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct Opened {
    /// For which calls, if they are told apart.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub key: Option<String>,
    /// After how many failures; a probe's is one.
    pub failures: u32,
    /// For how long, in milliseconds.
    pub cool_down_ms: u64,
    /// The last failure.
    pub cause: String,
}

impl Event for Opened {
    const NAME: EventName = EventName::new("opened");
}

impl Texts for Opened {
    fn texts(&mut self, change: &mut dyn FnMut(&mut String)) {
        self.key.iter_mut().for_each(&mut *change);
        change(&mut self.cause);
    }
}

/// It was open, and lets one call pass as a probe.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct HalfOpened {
    /// For which calls, if they are told apart.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub key: Option<String>,
}

impl Event for HalfOpened {
    const NAME: EventName = EventName::new("half_opened");
}

impl Texts for HalfOpened {
    fn texts(&mut self, change: &mut dyn FnMut(&mut String)) {
        self.key.iter_mut().for_each(change);
    }
}

/// A probe has succeeded: calls pass again.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct Closed {
    /// For which calls, if they are told apart.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub key: Option<String>,
}

impl Event for Closed {
    const NAME: EventName = EventName::new("closed");
}

impl Texts for Closed {
    fn texts(&mut self, change: &mut dyn FnMut(&mut String)) {
        self.key.iter_mut().for_each(change);
    }
}

/// A call was denied.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct Denied {
    /// For which calls, if they are told apart.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub key: Option<String>,
    /// For how long it is still open, in milliseconds, if that is known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub retry_after_ms: Option<u64>,
    /// Why.
    pub reason: String,
}

impl Event for Denied {
    const NAME: EventName = EventName::new("denied");
}

impl Texts for Denied {
    fn texts(&mut self, change: &mut dyn FnMut(&mut String)) {
        self.key.iter_mut().for_each(&mut *change);
        change(&mut self.reason);
    }
}
