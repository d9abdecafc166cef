//! The ids of questions: the same question of the same run has the same id each time it is asked.

use std::fmt::Write;

use emitree_emitter::json::check_depth;
use serde_json::{Value, json};
use sha2::{Digest, Sha256};

use super::Answer;
use crate::{Interrupt, RunContext, RunKey};

/// The member of a question's data that has the last answer that did not fit.
const REFUSED: &str = "refused";

impl Interrupt {
    /// Sets the id of a question about a run: the run's key, a `/`, and a hash of the question's kind and data.
    ///
    /// The hash is the first 16 hex digits of the SHA-256 of `{"data":…,"kind":…}`. The JSON is UTF-8 without spaces,
    /// and keys are sorted by their bytes at every depth. The member `refused` of the data is left out, so a question
    /// that is open again after an [answer that does not fit](crate::Answers::refuse) keeps its id. Hashing recurses
    /// into the data.
    ///
    /// ```
    /// use emitree_runtime::{Interrupt, RunKey};
    /// use serde_json::json;
    ///
    /// # fn main() -> emitree_runtime::Result<()> {
    /// let key = RunKey::new("order-17")?.child("paint")?;
    /// let question = Interrupt::new("colour", json!({"choices": ["red", "blue"]})).about(&key);
    /// // printf '{"data":{"choices":["red","blue"]},"kind":"colour"}' | sha256sum
    /// assert_eq!(question.id, "order-17/paint/e856c6101c622a5f");
    /// # Ok(())
    /// # }
    /// ```
    #[must_use]
    pub fn about(self, key: &RunKey) -> Self {
        let id = format!("{key}/{}", self.hash(json!({})));
        self.with_id(id)
    }

    /// Sets the id of a question that a run asks. Without a key, runs of equal kind and name share their questions, below
    /// the nearest run that has a key.
    pub(super) fn asked_by(self, run: &RunContext) -> Self {
        if let Some(key) = run.key() {
            return self.about(&key);
        }
        let id = format!("{}-{}", self.kind, self.hash(json!({"run": [run.kind(), run.name()]})));
        match run.key_around() {
            Some(key) => self.with_id(format!("{key}/{}/{id}", run.name())),
            None => self.with_id(id),
        }
    }

    /// Returns the first 16 hex digits of the hash of the kind, the data, and the members of `more`.
    fn hash(&self, mut more: Value) -> String {
        let mut data = as_object(self.data.clone());
        data.as_object_mut().and_then(|data| data.remove(REFUSED));
        more["data"] = data;
        more["kind"] = self.kind.as_str().into();
        // Without the sort, the hash would depend on `serde_json`'s feature `preserve_order`, which any crate in a build
        // may enable.
        more.sort_all_objects();
        let digest = Sha256::digest(more.to_string());
        digest[..8].iter().fold(String::new(), |mut hex, byte| {
            // Writing to a string cannot fail.
            _ = write!(hex, "{byte:02x}");
            hex
        })
    }

    /// Adds a refused answer to the data.
    pub(super) fn with_refused(mut self, answer: &Answer, reason: &str) -> Self {
        let mut answer = answer.clone();
        if check_depth(&answer.value).is_err() {
            // Converting it to JSON again recurses; the reason names the fault.
            answer.value = "…".into();
        }
        self.data = as_object(self.data);
        self.data[REFUSED] = json!({"answer": answer, "reason": reason});
        self
    }
}

/// Returns data that may have the member `refused`: other data than an object becomes the member `data`.
fn as_object(data: Value) -> Value {
    if data.is_object() { data } else { json!({ "data": data }) }
}
