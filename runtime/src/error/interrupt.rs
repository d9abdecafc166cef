//! What a run is interrupted by (M8).

use emitree_emitter::new_id;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::Error;

/// A question that a run ends with, as data: it can be stored, and asked elsewhere. Then the run is started again, in another process
/// too, with the answer at hand: so `Approval` does, of `emitree-middleware`.
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
    /// Which one it is: an answer names it.
    pub id: String,
    /// What sort of question it is.
    pub kind: String,
    /// What whoever answers has to know.
    #[serde(default)]
    pub data: Value,
}

impl Interrupt {
    /// An interrupt with an id of its own, a version 7 UUID.
    #[must_use]
    pub fn new(kind: impl Into<String>, data: impl Into<Value>) -> Self {
        Self { id: new_id().to_string(), kind: kind.into(), data: data.into() }
    }

    /// Gives it another id, which has to be the same each time that the same question is asked.
    #[must_use]
    pub fn with_id(mut self, id: impl Into<String>) -> Self {
        self.id = id.into();
        self
    }

    /// That of an error; without one, what the error says is all that is known.
    pub(crate) fn of_error(error: &Error) -> Self {
        error.interrupt().cloned().unwrap_or_else(|| Self::new("unknown", error.to_string()))
    }
}
