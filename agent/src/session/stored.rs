//! The stored form of a session.

use std::collections::BTreeMap;
use std::sync::Arc;

use serde::ser::Error as _;
use serde::{Deserialize, Serialize, Serializer};
use serde_json::Value;

use crate::message::history::History;
use crate::place::state::Slices;
use crate::session::Session;

/// The version of the format of [`Stored`]. Version 1 is the same without the `extra` of reasoning and of calls.
const VERSION: u32 = 2;

/// A stored session.
#[derive(Serialize, Deserialize)]
pub(super) struct Stored {
    version: u32,
    history: History,
    /// The state of each middleware, by the middleware's id.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    state: BTreeMap<Arc<str>, Value>,
}

impl Serialize for Session {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let state = self.slices.snapshot().map_err(S::Error::custom)?;
        Stored { version: VERSION, history: self.history(), state }.serialize(serializer)
    }
}

impl TryFrom<Stored> for Session {
    type Error = String;

    fn try_from(Stored { version, history, state }: Stored) -> Result<Self, String> {
        if !(1..=VERSION).contains(&version) {
            return Err(format!(
                "the session is stored in version {version}, but only the versions 1 to {VERSION} can be read"
            ));
        }
        Ok(Self::restore(history, Slices::stored(state)))
    }
}
