//! The question that interrupts a run (M8).

use std::time::{Duration, SystemTime};

use emitree_emitter::new_id;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::{Answer, Error, KeptValue};

/// A question that ends a run, as data: you can store the question and ask it elsewhere.
///
/// When you have the answer, start the run again, in the same or another process. The code that asked then looks up the
/// answer by the question's [`id`](Self::id). `Approval` of `emitree-middleware` works like this.
///
/// ```
/// use emitree_runtime::{Error, Interrupt};
/// use serde_json::json;
///
/// let interrupt = Interrupt::new("approval", json!({"tool": "delete", "path": "/tmp"}));
/// let stored = serde_json::to_string(&interrupt)?;
/// assert_eq!(serde_json::from_str::<Interrupt>(&stored)?, interrupt);
///
/// let error = Error::interrupted(interrupt.clone());
/// assert_eq!(error.interrupt(), Some(&interrupt));
/// # Ok::<(), serde_json::Error>(())
/// ```
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct Interrupt {
    /// The id of the question, by which its answer is found.
    pub id: String,
    /// The kind of question, such as `"approval"`.
    pub kind: String,
    /// Data for the person or the program that answers the question.
    #[serde(default)]
    pub data: Value,
    /// The answer that counts from its time [`at`](Answer::at) on, if there is no other:
    /// [`with_deadline`](Self::with_deadline).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub deadline: Option<Answer>,
    /// See [`RunContext::ask_keeping`](crate::RunContext::ask_keeping).
    #[serde(skip)]
    pub(crate) kept: Option<KeptValue>,
}

impl Interrupt {
    /// Creates an interrupt with a new id, a version 7 UUID.
    #[must_use]
    pub fn new(kind: impl Into<String>, data: impl Into<Value>) -> Self {
        Self { id: new_id().to_string(), kind: kind.into(), data: data.into(), deadline: None, kept: None }
    }

    /// Sets the id. Give the same question the same id each time, so that its answer is found when the run starts again.
    #[must_use]
    pub fn with_id(mut self, id: impl Into<String>) -> Self {
        self.id = id.into();
        self
    }

    /// Sets a deadline, and the answer that counts then. A job, such as a run with `Durable`, and the session of an agent
    /// keep it from the first time that they ask the question: later starts do not move it. The question interrupts the
    /// run nevertheless, and its lists show the [`deadline`](Self::deadline). If it has no answer when a run goes on after
    /// this time, they store this one. An earlier answer wins, and a later one is an error.
    ///
    /// Other runs only show the deadline.
    ///
    /// ```
    /// use std::time::Duration;
    /// use emitree_runtime::Interrupt;
    /// use serde_json::json;
    ///
    /// let day = Duration::from_secs(86_400);
    /// let question = Interrupt::new("publish", json!({"page": 7})).with_deadline(day, json!(false));
    /// assert_eq!(question.deadline.map(|answer| answer.value), Some(json!(false)));
    /// ```
    #[must_use]
    pub fn with_deadline(mut self, after: Duration, answer: impl Into<Answer>) -> Self {
        let answer = Answer { at: SystemTime::now().checked_add(after), ..answer.into() };
        self.deadline = Some(answer);
        self
    }

    /// Returns the question without its data.
    pub(crate) fn head(&self) -> Self {
        Self { id: self.id.clone(), kind: self.kind.clone(), data: Value::Null, deadline: None, kept: None }
    }

    /// Returns the question of an error, or a question of the kind `unknown` with the error's message.
    pub(crate) fn of_error(error: &Error) -> Self {
        error.interrupt().cloned().unwrap_or_else(|| Self::new("unknown", error.to_string()))
    }
}
