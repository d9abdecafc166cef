//! Giving a caller back what pseudonyms stand for.
//!
//! It stands outside of all that may keep an output for other callers, such as a cache: these have secrets of their own
//! under the same pseudonyms.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use emitree_runtime::{JsonRun, Layer, Next, Result, RunContext, Summary};
use serde_json::Value;

use super::redactor::Redactor;
use crate::shared::json::{Path, strings_mut};

#[derive(Debug)]
pub(super) struct RestoreLayer {
    redactor: Arc<Redactor>,
    /// How many pseudonyms there were before the output: those that it has brought with it stay hidden. All of them, until there
    /// is an output: one that comes from elsewhere brings none.
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
        "restores what pseudonyms stand for".into()
    }
}
