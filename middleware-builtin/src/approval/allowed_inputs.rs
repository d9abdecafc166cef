//! What was approved is what is executed: two layers that compare the input behind the answer with what the work gets.

use std::sync::Arc;

use emitree_runtime::{Error, JsonRun, Layer, Next, Result, RunContext, Summary};
use parking_lot::Mutex;
use serde_json::Value;

/// The inputs of one run that may be executed: approved, edited, or not asked about.
#[derive(Clone, Debug, Default)]
pub(super) struct AllowedInputs(Arc<Mutex<Vec<Value>>>);

impl AllowedInputs {
    fn add(&self, input: &Value) {
        let mut inputs = self.0.lock();
        if !inputs.contains(input) {
            inputs.push(input.clone());
        }
    }

    fn contains(&self, input: &Value) -> bool {
        self.0.lock().contains(input)
    }
}

/// Stands directly inside of the layer that asks, and notes what that lets pass: an edited input as the run's type takes it.
#[derive(Debug)]
pub(super) struct RecordInputLayer {
    pub(super) by: Arc<str>,
    pub(super) allowed_inputs: AllowedInputs,
}

/// Stands inside of all other guards, and refuses what was not noted.
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
