//! What is asked: [`Request`], and the hash that its answer is bound to.

use emitree_runtime::{Interrupt, RunContext};
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use sha2::{Digest, Sha256};

use crate::shared::own_events::UserTexts;

/// The kind of an [`Interrupt`] that asks for an approval.
pub const INTERRUPT: &str = "approval";

/// What is asked: may this go on with exactly that input?
///
/// It is the data of an interrupt too, in JSON: `{"by", "kind", "name", "input", "input_hash", "allowed"}`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct Request {
    /// Who asks: `approval`, or what it was [named](super::Approval::named).
    pub by: String,
    /// The kind of what is run: `Tool`.
    pub kind: String,
    /// What that is called: `delete`.
    pub name: String,
    /// What the work would get.
    pub input: Value,
    /// Lower-case hex of the SHA-256 of `{"input":…,"kind":…,"name":…}` as UTF-8, keys sorted by their bytes at every
    /// depth, without space.
    pub input_hash: String,
    /// What may be answered.
    pub allowed: Vec<Choice>,
}

/// What may be answered.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum Choice {
    /// Go on.
    Approve,
    /// Go on with another input.
    Edit,
    /// Do not go on.
    Reject,
}

/// What has been answered.
///
/// In JSON: `"approve"`, `{"edit": …}`, `{"reject": {"reason": …}}`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum Decision {
    /// Go on.
    Approve,
    /// Go on with this input in place of the other.
    Edit(Value),
    /// Do not go on.
    Reject {
        /// Why.
        reason: String,
    },
}

impl Decision {
    /// Do not go on, and why.
    #[must_use]
    pub fn reject(reason: impl Into<String>) -> Self {
        Self::Reject { reason: reason.into() }
    }

    /// Without what it carries.
    #[must_use]
    pub const fn choice(&self) -> Choice {
        match self {
            Self::Approve => Choice::Approve,
            Self::Edit(_) => Choice::Edit,
            Self::Reject { .. } => Choice::Reject,
        }
    }
}

/// Why an interrupt is no [`Request`].
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum RequestError {
    /// It is about something else.
    #[error("an interrupt of the kind `{kind}` asks for no approval: those are of the kind `{INTERRUPT}`")]
    OtherKind {
        /// Its kind.
        kind: String,
    },
    /// Its data are not what they should be.
    #[error("the data of the interrupt `{id}` are not those of a request for an approval")]
    Data {
        /// Its id.
        id: String,
        /// What is wrong with them.
        source: serde_json::Error,
    },
    /// What it shows is not what its id stands for: it was changed.
    #[error("the interrupt `{id}` shows an input that has the id `{shown}`: it was changed since it was made")]
    Changed {
        /// Its id.
        id: String,
        /// The id of what it shows.
        shown: String,
    },
}

impl Request {
    pub(super) fn new(by: &str, run: &RunContext, input: &Value, allowed: &[Choice]) -> Self {
        let (kind, name) = (run.kind(), run.name());
        Self {
            by: by.to_owned(),
            kind: kind.to_owned(),
            name: name.to_owned(),
            input: input.clone(),
            input_hash: hash(kind, name, input),
            allowed: allowed.to_vec(),
        }
    }

    /// What an answer names: the same each time that the same is asked.
    #[must_use]
    pub fn id(&self) -> String {
        format!("{}-{}", self.by, self.input_hash)
    }

    /// The question as a run ends with it, with the same id each time.
    #[must_use]
    pub fn to_interrupt(&self) -> Interrupt {
        // Strings, and JSON: that cannot fail.
        let data = serde_json::to_value(self).unwrap_or_default();
        Interrupt::new(INTERRUPT, data).with_id(self.id())
    }

    /// Reads one back, and checks that it shows what its id stands for.
    ///
    /// # Errors
    ///
    /// If it asks for something else, or was changed since it was made.
    pub fn of_interrupt(interrupt: &Interrupt) -> Result<Self, RequestError> {
        let id = interrupt.id.clone();
        if interrupt.kind != INTERRUPT {
            return Err(RequestError::OtherKind { kind: interrupt.kind.clone() });
        }
        let read: Result<Self, _> = Self::deserialize(&interrupt.data);
        let mut request = read.map_err(|source| RequestError::Data { id: id.clone(), source })?;
        request.input_hash = hash(&request.kind, &request.name, &request.input);
        match request.id() {
            shown if shown == id => Ok(request),
            shown => Err(RequestError::Changed { id, shown }),
        }
    }
}

/// Of the JSON text with sorted keys: `serde_json` may keep the order of insertion, any crate of a build can switch that on.
fn hash(kind: &str, name: &str, input: &Value) -> String {
    let mut hashed = json!({"input": input, "kind": kind, "name": name});
    hashed.sort_all_objects();
    Sha256::digest(hashed.to_string()).iter().map(|byte| format!("{byte:02x}")).collect()
}

impl UserTexts for Request {
    fn user_texts(&mut self, change: &mut dyn FnMut(&mut String)) {
        self.input.user_texts(change);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_hash_is_the_same_in_every_process_and_stands_for_kind_name_and_input() {
        let known = hash("Tool", "delete", &json!({"path": "/tmp", "all": true}));
        // printf '{"input":{"all":true,"path":"/tmp"},"kind":"Tool","name":"delete"}' | sha256sum
        assert_eq!(known, "686cd73936f6b00cd13e8c2bccbd046f8f354fd7b7c2b5c698d3f954ecf65521");
        let others = [
            hash("Tool", "delete", &json!({"path": "/tmp", "all": false})),
            hash("Tool", "read", &json!({"path": "/tmp", "all": true})),
            hash("Agent", "delete", &json!({"path": "/tmp", "all": true})),
            hash("Tool", "delete", &json!({"path": "/tmp", "all": 1})),
        ];
        assert!(!others.contains(&known), "{others:?}");
    }
}
