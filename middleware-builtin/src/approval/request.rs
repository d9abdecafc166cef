//! The question of an approval: [`Request`], and the hash that its answer is bound to.

use emitree_runtime::{Interrupt, RunContext};
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use sha2::{Digest, Sha256};

use crate::shared::own_events::UserTexts;

/// The kind of an [`Interrupt`] that asks for an approval.
pub const INTERRUPT: &str = "approval";

/// The kind of the [`Interrupt`] that combines the interrupts of an agent's tool calls. Its data is
/// `{"pending": [{"call": …, "interrupt": …}]}`.
const BATCH: &str = "agent.batch";

/// A question to a responder: may a run begin its work with exactly this input?
///
/// The interrupt of an approval carries the request as JSON:
/// `{"by", "kind", "name", "input", "input_hash", "allowed"}`.
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

/// The error of [`Request::of_interrupt`] and [`Request::all_of`]: the [`Interrupt`] holds no valid request.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum RequestError {
    /// The interrupt's kind is not [`INTERRUPT`].
    #[error("an interrupt of the kind `{kind}` is not a request for an approval: its kind must be `{INTERRUPT}`")]
    OtherKind {
        /// The interrupt's kind.
        kind: String,
    },
    /// The data cannot be read as a [`Request`], or as the questions of several calls.
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

    /// Returns the id of the question. Pass this id to [`Approvals::answer`](super::Approvals::answer). Equal questions
    /// have equal ids.
    #[must_use]
    pub fn id(&self) -> String {
        format!("{}-{}", self.by, self.input_hash)
    }

    /// Returns an interrupt that carries this request. The interrupt's id is [`id`](Self::id).
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

    /// Reads all requests of an interrupt, and verifies that each request matches the id of its interrupt. An agent's
    /// run combines the interrupts of its tool calls into one interrupt of the kind `agent.batch`. For such an
    /// interrupt, the result has the requests in the order of the calls, including the calls of sub-agents. Calls with
    /// interrupts of other kinds are left out. For any other interrupt, the result is the request that
    /// [`of_interrupt`](Self::of_interrupt) returns.
    ///
    /// ```
    /// use emitree_middleware::approval::{Approvals, Decision, Request};
    /// use emitree_runtime::Error;
    ///
    /// /// Approves all requests of a run that was interrupted.
    /// fn approve(error: &Error, approvals: &Approvals) -> emitree_runtime::Result<()> {
    ///     let interrupt = error.interrupt().ok_or_else(|| error.clone())?;
    ///     for request in Request::all_of(interrupt)? {
    ///         approvals.answer(request.id(), Decision::Approve);
    ///     }
    ///     Ok(())
    /// }
    /// ```
    ///
    /// # Errors
    ///
    /// Returns the first error of [`of_interrupt`](Self::of_interrupt), or an error if the data of an interrupt of the
    /// kind `agent.batch` cannot be read.
    pub fn all_of(interrupt: &Interrupt) -> Result<Vec<Self>, RequestError> {
        if interrupt.kind != BATCH {
            return Self::of_interrupt(interrupt).map(|request| vec![request]);
        }
        let read = BatchData::deserialize(&interrupt.data);
        let batch = read.map_err(|source| RequestError::Data { id: interrupt.id.clone(), source })?;
        let mut requests = Vec::new();
        for Pending { interrupt } in batch.pending {
            // A sub-agent's interrupt is a batch inside this batch.
            if [INTERRUPT, BATCH].contains(&&*interrupt.kind) {
                requests.extend(Self::all_of(&interrupt)?);
            }
        }
        Ok(requests)
    }
}

/// The data of an interrupt of the kind [`BATCH`].
#[derive(Deserialize)]
struct BatchData {
    pending: Vec<Pending>,
}

/// A tool call that waits for an answer.
#[derive(Deserialize)]
struct Pending {
    interrupt: Interrupt,
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

    fn request(path: &str) -> Request {
        let input = json!({ "path": path });
        let input_hash = hash("Tool", "delete", &input);
        let (by, kind, name) = ("approval".to_owned(), "Tool".to_owned(), "delete".to_owned());
        Request { by, kind, name, input, input_hash, allowed: vec![Choice::Approve] }
    }

    fn batch(interrupts: impl IntoIterator<Item = Interrupt>) -> Interrupt {
        let pending: Vec<_> = interrupts.into_iter().map(|it| json!({"call": {}, "interrupt": it})).collect();
        Interrupt::new(BATCH, json!({ "pending": pending }))
    }

    #[test]
    fn all_requests_of_nested_batches_are_read_in_order_and_other_questions_are_left_out() {
        let [a, b, c] = ["a", "b", "c"].map(request);
        let other = Interrupt::new("payment", json!({"amount": 50}));
        let inner = batch([b.to_interrupt(), other.clone()]);
        let table = [
            (a.to_interrupt(), vec![a.clone()]),
            (batch([a.to_interrupt(), inner, other.clone(), c.to_interrupt()]), vec![a.clone(), b, c]),
            (batch([other.clone()]), vec![]),
        ];
        for (interrupt, expected) in table {
            assert_eq!(Request::all_of(&interrupt).expect("requests"), expected);
        }
        assert!(matches!(Request::all_of(&other), Err(RequestError::OtherKind { .. })));
    }

    #[test]
    fn a_batch_that_cannot_be_read_or_has_a_changed_request_is_refused() {
        let forged = request("/etc").to_interrupt().with_id(request("/tmp").id());
        let refused = Request::all_of(&batch([request("/tmp").to_interrupt(), batch([forged])]));
        assert!(matches!(refused, Err(RequestError::Changed { .. })), "{refused:?}");
        for data in [json!(null), json!({"pending": [{"call": {}}]})] {
            let refused = Request::all_of(&Interrupt::new(BATCH, data));
            assert!(matches!(refused, Err(RequestError::Data { .. })), "{refused:?}");
        }
    }
}
