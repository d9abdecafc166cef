//! The question of an approval: [`Request`], and the hash that its answer is bound to.

use emitree_runtime::{Interrupt, RunContext};
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use sha2::{Digest, Sha256};

use crate::shared::own_events::UserTexts;

/// The kind of an [`Interrupt`] that asks for an approval.
pub const INTERRUPT: &str = "approval";

/// A question to a responder: may a run begin its work with exactly this input?
///
/// A request is also the data of the interrupt, as JSON: `{"by", "kind", "name", "input", "input_hash", "allowed"}`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct Request {
    /// The name of the approval: `approval`, or the name set by [`Approval::named`](super::Approval::named).
    pub by: String,
    /// The run's kind, such as `Tool`.
    pub kind: String,
    /// The run's name, such as `delete`.
    pub name: String,
    /// The input that the work would receive.
    pub input: Value,
    /// The SHA-256 of `{"input":…,"kind":…,"name":…}` in lowercase hex. The JSON is UTF-8 without spaces, and keys are
    /// sorted by their bytes at every depth.
    pub input_hash: String,
    /// The kinds of answers that are allowed.
    pub allowed: Vec<Choice>,
}

/// A kind of answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum Choice {
    /// Begin the work with the original input.
    Approve,
    /// Begin the work with another input.
    Edit,
    /// Deny the run.
    Reject,
}

/// An answer to a [`Request`].
///
/// As JSON: `"approve"`, `{"edit": …}` or `{"reject": {"reason": …}}`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum Decision {
    /// Begin the work with the original input.
    Approve,
    /// Begin the work with this input instead.
    Edit(Value),
    /// Deny the run.
    Reject {
        /// The reason for the denial.
        reason: String,
    },
}

impl Decision {
    /// Returns a [`Reject`](Self::Reject) with a reason.
    #[must_use]
    pub fn reject(reason: impl Into<String>) -> Self {
        Self::Reject { reason: reason.into() }
    }

    /// Returns the kind of this answer.
    #[must_use]
    pub const fn choice(&self) -> Choice {
        match self {
            Self::Approve => Choice::Approve,
            Self::Edit(_) => Choice::Edit,
            Self::Reject { .. } => Choice::Reject,
        }
    }
}

/// An [`Interrupt`] that does not hold a valid [`Request`].
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum RequestError {
    /// The interrupt's kind is not [`INTERRUPT`].
    #[error("an interrupt of the kind `{kind}` is not a request for an approval: its kind must be `{INTERRUPT}`")]
    OtherKind {
        /// The interrupt's kind.
        kind: String,
    },
    /// The data cannot be read as a [`Request`].
    #[error("the data of the interrupt `{id}` is not a request for an approval")]
    Data {
        /// The interrupt's id.
        id: String,
        /// The error from deserializing the data.
        source: serde_json::Error,
    },
    /// The request does not match the interrupt's id: the request or the id was changed.
    #[error("the request in the interrupt `{id}` has the id `{shown}`: the request or the id was changed")]
    Changed {
        /// The interrupt's id.
        id: String,
        /// The id computed from the request's kind, name and input.
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

    /// Returns the id that an answer refers to. Equal questions have equal ids.
    #[must_use]
    pub fn id(&self) -> String {
        format!("{}-{}", self.by, self.input_hash)
    }

    /// Returns the interrupt that ends a run with this question. The interrupt's id is [`id`](Self::id).
    #[must_use]
    pub fn to_interrupt(&self) -> Interrupt {
        // Serializing strings and JSON values cannot fail.
        let data = serde_json::to_value(self).unwrap_or_default();
        Interrupt::new(INTERRUPT, data).with_id(self.id())
    }

    /// Reads the request of an interrupt, and verifies that it matches the interrupt's id.
    ///
    /// # Errors
    ///
    /// Returns an error if the interrupt's kind is not [`INTERRUPT`], if its data is not a request, or if the request
    /// does not match the id.
    pub fn of_interrupt(interrupt: &Interrupt) -> Result<Self, RequestError> {
        let id = interrupt.id.clone();
        if interrupt.kind != INTERRUPT {
            return Err(RequestError::OtherKind { kind: interrupt.kind.clone() });
        }
        let read: Result<Self, _> = Self::deserialize(&interrupt.data);
        // Compute the hash from the input that a person will see, and never take it from the data: otherwise a forged
        // input could pass under an approved id.
        let mut request = read.map_err(|source| RequestError::Data { id: id.clone(), source })?;
        request.input_hash = hash(&request.kind, &request.name, &request.input);
        match request.id() {
            shown if shown == id => Ok(request),
            shown => Err(RequestError::Changed { id, shown }),
        }
    }
}

/// Hashes the JSON text with sorted keys. Without sorting, the hash would depend on `serde_json`'s feature
/// `preserve_order`, which any crate in a build may enable.
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
    fn the_hash_is_the_same_in_every_process_and_depends_on_kind_name_and_input() {
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
