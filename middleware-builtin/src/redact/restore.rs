//! Replaces pseudonyms with their secrets, for the caller.
//!
//! The layer wraps all layers, such as a cache, that store outputs for other callers, so that these layers store
//! pseudonyms. Each run then replaces the pseudonyms with its own secrets.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use emitree_runtime::{JsonRun, Layer, Next, Result, RunContext, Summary};
use serde_json::Value;

use super::redactor::Redactor;
use crate::shared::json::{Path, strings_mut};

#[derive(Debug)]
pub(super) struct RestoreLayer {
    redactor: Arc<Redactor>,
    /// The number of pseudonyms that existed before the output was redacted. Only these pseudonyms are restored, so
    /// that secrets that first occur in the output stay hidden. `usize::MAX` until the work returns: an output that
    /// does not come from the work adds no pseudonyms.
    known: Arc<AtomicUsize>,
}

impl RestoreLayer {
    pub(super) fn new(redactor: &Arc<Redactor>, known: &Arc<AtomicUsize>) -> Self {
        Self { redactor: Arc::clone(redactor), known: Arc::clone(known) }
    }
}

impl Layer<JsonRun> for RestoreLayer {
    async fn call(&self, input: &Value, _: &RunContext, next: Next<'_, JsonRun>) -> Result<Value> {
        let mut output = next.run(input).await?;
        let known = self.known.load(Ordering::Relaxed);
        strings_mut(&mut output, &Path::Root, &mut |_, text| {
            if let Some(restored) = self.redactor.vault.restore(text, known) {
                *text = restored;
            }
        });
        Ok(output)
    }

    fn name(&self) -> &str {
        "redact"
    }

    fn debug_summary(&self) -> Summary {
        "replaces pseudonyms with their secrets".into()
    }
}
