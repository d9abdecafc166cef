//! The question that interrupts a run (M8).

use emitree_emitter::new_id;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::Error;

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
}

impl Interrupt {
    /// Creates an interrupt with a new id, a version 7 UUID.
    #[must_use]
    pub fn new(kind: impl Into<String>, data: impl Into<Value>) -> Self {
        Self { id: new_id().to_string(), kind: kind.into(), data: data.into() }
    }

    /// Sets the id. Give the same question the same id each time, so that its answer is found when the run starts again.
    #[must_use]
    pub fn with_id(mut self, id: impl Into<String>) -> Self {
        self.id = id.into();
        self
    }

    /// Returns the question without its data.
    pub(crate) fn head(&self) -> Self {
        Self { id: self.id.clone(), kind: self.kind.clone(), data: Value::Null }
    }

    /// Returns the question of an error, or a question of the kind `unknown` with the error's message.
    pub(crate) fn of_error(error: &Error) -> Self {
        error.interrupt().cloned().unwrap_or_else(|| Self::new("unknown", error.to_string()))
    }
}
