//! Two layers that verify that the work receives an input that was approved.
//!
//! The first records each input behind the answer, the second denies every other input.

use std::sync::Arc;

use emitree_runtime::{Error, JsonRun, Layer, Next, Result, RunContext, Summary};
use parking_lot::Mutex;
use serde_json::Value;

/// The inputs with which the work of one run may begin: approved, edited, or not asked about.
#[derive(Clone, Debug, Default)]
pub(super) struct AllowedInputs(Arc<Mutex<Vec<Value>>>);

impl AllowedInputs {
    fn add(&self, input: &Value) {
        // One input for each distinct answer: further attempts with the same input add nothing.
        let mut inputs = self.0.lock();
        if !inputs.contains(input) {
            inputs.push(input.clone());
        }
    }

    fn contains(&self, input: &Value) -> bool {
        self.0.lock().contains(input)
    }
}

/// Records the input that the asking layer lets through, directly inside of it. An edited input is recorded in the form
/// that the run's input type gives it.
#[derive(Debug)]
pub(super) struct RecordInputLayer {
    pub(super) by: Arc<str>,
    pub(super) allowed_inputs: AllowedInputs,
}

/// Denies an input that was not recorded, inside of all other guards.
#[derive(Debug)]
pub(super) struct VerifyInputLayer {
    pub(super) by: Arc<str>,
    pub(super) allowed_inputs: AllowedInputs,
}

impl Layer<JsonRun> for RecordInputLayer {
    async fn call(&self, input: &Value, _: &RunContext, next: Next<'_, JsonRun>) -> Result<Value> {
        self.allowed_inputs.add(input);
        next.run(input).await
    }

    fn name(&self) -> &str {
        &self.by
    }

    fn debug_summary(&self) -> Summary {
        "notes what may be executed".into()
    }
}

impl Layer<JsonRun> for VerifyInputLayer {
    async fn call(&self, input: &Value, _: &RunContext, next: Next<'_, JsonRun>) -> Result<Value> {
        if !self.allowed_inputs.contains(input) {
            return Err(Error::denied(&*self.by, "the input was changed after it was approved"));
        }
        next.run(input).await
    }

    fn name(&self) -> &str {
        &self.by
    }

    fn debug_summary(&self) -> Summary {
        "refuses what was changed after it was approved".into()
    }
}
