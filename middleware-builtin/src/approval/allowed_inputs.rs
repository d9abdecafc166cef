//! Two layers that keep the work from receiving an input that `ApprovalLayer` has not passed on.
//!
//! The first layer records each input that `ApprovalLayer` passes on. The second layer denies every input that was not
//! recorded.

use std::sync::Arc;

use emitree_runtime::{Error, JsonRun, Layer, Next, Result, RunContext, Summary};
use parking_lot::Mutex;
use serde_json::Value;

/// The inputs that the work of one run may receive: approved inputs, edited inputs, and inputs that need no approval.
#[derive(Clone, Debug, Default)]
pub(super) struct AllowedInputs(Arc<Mutex<Vec<Value>>>);

impl AllowedInputs {
    fn add(&self, input: &Value) {
        // Store each input once: further attempts with the same input add nothing.
        let mut inputs = self.0.lock();
        if !inputs.contains(input) {
            inputs.push(input.clone());
        }
    }

    fn contains(&self, input: &Value) -> bool {
        self.0.lock().contains(input)
    }
}

/// Records the input that `ApprovalLayer` passes on. This layer is bound directly inside `ApprovalLayer`. An edited
/// input is recorded after its conversion to the run's input type.
#[derive(Debug)]
pub(super) struct RecordInputLayer {
    pub(super) by: Arc<str>,
    pub(super) allowed_inputs: AllowedInputs,
}

/// The innermost guard: denies an input that was not recorded.
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
        "records the inputs that the work may receive".into()
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
        "denies an input that was changed after its approval".into()
    }
}
