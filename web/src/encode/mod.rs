//! Encoders: how steps are written for a page. An encoder keeps nothing, so a page that reconnects gets the same events.

mod ag_ui;
mod cut_json;
mod ui_messages;

use std::sync::Arc;

use serde_json::Value;

use crate::step::Step;

/// The protocols of pages.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Protocol {
    AgUi,
    UiMessages,
}

/// The ids that the events of a run have.
#[derive(Clone, Debug)]
pub(crate) struct Ids {
    pub(crate) thread: Arc<str>,
    /// The id of the run, as the page has chosen it.
    pub(crate) run: Arc<str>,
    /// The id of the message that the run writes.
    pub(crate) message: Arc<str>,
}

/// The part of a run that a page shows when it begins to read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Reads {
    /// It shows the conversation, and goes on with it.
    On,
    /// It knows nothing of the message.
    Anew,
}

impl Protocol {
    /// Returns the events of a step, as JSON.
    pub(crate) fn encode(self, step: &Step, ids: &Ids, reads: Reads) -> Vec<Value> {
        match self {
            Self::AgUi => ag_ui::events(step, ids),
            Self::UiMessages => ui_messages::chunks(step, ids, reads),
        }
    }
}
