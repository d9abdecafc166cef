//! The question of an approval: [`Request`], and the hash that its answer is bound to.

use emitree_runtime::{Answer, Interrupt, RunContext, RunKey};
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
/// `{"by", "kind", "name", "input", "input_hash", "allowed"}`. The JSON of a request by itself has the `id` as well.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct Request {
    /// The id of the question. In a run with a [key](RunContext::key) it is the id of [`Interrupt::about`], so each call
    /// has its own question. In other runs it is `by`, a `-` and the `input_hash`, and equal questions have equal ids. If
    /// a run above has a key, this key and the run's name come before.
    pub id: String,
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
    /// Return a result without executing the run.
    Respond,
}

/// An answer to a [`Request`].
///
/// As JSON: `"approve"`, `{"edit": …}`, `{"reject": {"reason": …}}` or `{"respond": …}`.
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
    /// Return this result, and do not execute the run. The value must fit the run's output type, or be the content of an
    /// agent's tool.
    Respond(Value),
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
            Self::Respond(_) => Choice::Respond,
        }
    }
}

/// The answer's value is the decision as JSON.
impl From<Decision> for Answer {
    fn from(decision: Decision) -> Self {
        // Serializing strings and JSON values cannot fail.
        serde_json::to_value(decision).unwrap_or_default().into()
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
        /// The id computed from the request.
        shown: String,
    },
}

impl Request {
    pub(super) fn new(by: &str, run: &RunContext, input: &Value, allowed: &[Choice]) -> Self {
        let request = Self {
            id: String::new(),
            by: by.to_owned(),
            kind: run.kind().to_owned(),
            name: run.name().to_owned(),
            input: Value::Null,
            input_hash: String::new(),
            allowed: allowed.to_vec(),
        };
        let place = match (run.key(), run.key_around()) {
            (Some(key), _) => QuestionPlace::Run(key),
            (None, Some(above)) => QuestionPlace::Shared(format!("{above}/{}/", run.name())),
            (None, None) => QuestionPlace::Shared(String::new()),
        };
        request.about(input.clone(), &place)
    }

    /// Returns the same question about another input, for the same run. Hashing recurses into the input.
    ///
    /// To get the id for a run with another key, call [`Interrupt::about`] on the [interrupt](Self::to_interrupt).
    #[must_use]
    pub fn with_input(&self, input: Value) -> Self {
        self.clone().about(input, &self.place())
    }

    fn about(mut self, input: Value, place: &QuestionPlace) -> Self {
        self.input_hash = hash(&self.kind, &self.name, &input);
        self.input = input;
        self.id = match place {
            QuestionPlace::Run(key) => self.to_interrupt().about(key).id,
            QuestionPlace::Shared(above) => format!("{above}{}", self.shared_id()),
        };
        self
    }

    /// Returns the last part of the id of the question in a run without a key.
    fn shared_id(&self) -> String {
        format!("{}-{}", self.by, self.input_hash)
    }

    /// Reads the place from the id.
    fn place(&self) -> QuestionPlace {
        let above = self.id.strip_suffix(&self.shared_id()).filter(|above| above.is_empty() || above.ends_with('/'));
        match (above, key_of(&self.id)) {
            (None, Some(key)) => QuestionPlace::Run(key),
            (above, _) => QuestionPlace::Shared(above.unwrap_or_default().to_owned()),
        }
    }

    /// Returns an interrupt that carries this request. The interrupt's id is [`id`](Self::id).
    #[must_use]
    pub fn to_interrupt(&self) -> Interrupt {
        // Serializing strings and JSON values cannot fail.
        let mut data = serde_json::to_value(self).unwrap_or_default();
        data.as_object_mut().and_then(|data| data.remove("id"));
        Interrupt::new(INTERRUPT, data).with_id(&*self.id)
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
        let mut data = interrupt.data.clone();
        if let Some(data) = data.as_object_mut() {
            data.insert("id".to_owned(), id.as_str().into());
        }
        let read: Result<Self, _> = serde_json::from_value(data);
        // Compute the hash from the input that a person will see, and never take it from the data: otherwise a forged
        // input could pass under an approved id.
        let mut request = read.map_err(|source| RequestError::Data { id: id.clone(), source })?;
        request.input_hash = hash(&request.kind, &request.name, &request.input);
        let shown = match request.place() {
            QuestionPlace::Run(key) => interrupt.clone().about(&key).id,
            QuestionPlace::Shared(above) => format!("{above}{}", request.shared_id()),
        };
        if shown == id { Ok(request) } else { Err(RequestError::Changed { id, shown }) }
    }

    /// Reads all requests of an interrupt, and verifies that each request matches the id of its interrupt. An agent's
    /// run combines the interrupts of its tool calls into one interrupt of the kind `agent.batch`. For such an
    /// interrupt, the result has the requests in the order of the calls, including the calls of sub-agents. Calls with
    /// interrupts of other kinds are left out. For any other interrupt, the result is the request that
    /// [`of_interrupt`](Self::of_interrupt) returns.
    ///
    /// ```
    /// use emitree_middleware::approval::{Decision, Request};
    /// use emitree_runtime::{Answers, Error};
    ///
    /// /// Approves all requests of a run that was interrupted.
    /// fn approve(error: &Error, answers: &Answers) -> emitree_runtime::Result<()> {
    ///     let interrupt = error.interrupt().ok_or_else(|| error.clone())?;
    ///     for request in Request::all_of(interrupt)? {
    ///         answers.answer(request.id, Decision::Approve);
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

/// The runs that share the answer to a question.
enum QuestionPlace {
    /// The run with this key.
    Run(RunKey),
    /// Runs without a key. The text comes before the id: the key of a run above and the run's name.
    Shared(String),
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

/// Returns the key in the id of a question: the part before the last `/`.
fn key_of(id: &str) -> Option<RunKey> {
    let mut parts = id.rsplit_once('/')?.0.split('/');
    let first = RunKey::new(parts.next()?).ok()?;
    parts.try_fold(first, |key, part| key.child(part).ok())
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
        let by = "approval".to_owned();
        let kind = "Tool".to_owned();
        let name = "delete".to_owned();
        let id = format!("approval-{input_hash}");
        Request { id, by, kind, name, input, input_hash, allowed: vec![Choice::Approve] }
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
        let forged = request("/etc").to_interrupt().with_id(request("/tmp").id);
        let refused = Request::all_of(&batch([request("/tmp").to_interrupt(), batch([forged])]));
        assert!(matches!(refused, Err(RequestError::Changed { .. })), "{refused:?}");
        for data in [json!(null), json!({"pending": [{"call": {}}]})] {
            let refused = Request::all_of(&Interrupt::new(BATCH, data));
            assert!(matches!(refused, Err(RequestError::Data { .. })), "{refused:?}");
        }
    }
}
