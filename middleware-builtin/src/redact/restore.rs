//! Giving a caller back what pseudonyms stand for.
//!
//! It stands outside of all that may keep an output for other callers, such as a cache: these have secrets of their own
//! under the same pseudonyms.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use emitree_runtime::{JsonRun, Layer, Next, Result, RunContext, Summary};
use serde_json::Value;

use super::core::Redactor;
use crate::shared::json::{Path, strings_mut};

/// How many pseudonyms there were before the output: those that it has brought with it stay hidden.
#[derive(Debug)]
pub(super) struct KnownPseudonyms(AtomicUsize);

#[derive(Debug)]
pub(super) struct RestoreLayer {
    redactor: Arc<Redactor>,
    known: Arc<KnownPseudonyms>,
}

impl KnownPseudonyms {
    pub(super) fn set(&self, known: usize) {
        self.0.store(known, Ordering::Relaxed);
    }

    fn get(&self) -> usize {
        self.0.load(Ordering::Relaxed)
    }
}

/// All of them, until there is an output: one that comes from elsewhere brings none.
impl Default for KnownPseudonyms {
    fn default() -> Self {
        Self(AtomicUsize::new(usize::MAX))
    }
}

impl RestoreLayer {
    pub(super) fn new(redactor: &Arc<Redactor>, known: &Arc<KnownPseudonyms>) -> Self {
        Self { redactor: Arc::clone(redactor), known: Arc::clone(known) }
    }
}

impl Layer<JsonRun> for RestoreLayer {
    async fn call(&self, input: &Value, _: &RunContext, next: Next<'_, JsonRun>) -> Result<Value> {
        let mut output = next.run(input).await?;
        let known = self.known.get();
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
