//! The calls that an earlier run has left open.

use emitree_runtime::{Result, Runnable};

use crate::agent::calls::{check_call, identify};
use crate::agent::steps::Loop;
use crate::place::batch::{Batch, GatedCall};
use crate::session::open_turn::OpenTurn;
use crate::{Tool, ToolCall};

/// The result of a call that had begun, and whose tool is not idempotent.
const MAY_HAVE_HAD_EFFECTS: &str = "the run was stopped while the tool was running, and the tool is not idempotent, so it was not called again: it may have had effects";

/// Returns the calls that have no result yet. A call that cannot go on gets an error that says why.
pub(super) async fn restore(agent: &Loop<'_>, turn: &OpenTurn<'_>) -> Result<Batch> {
    let mut batch = Batch(Vec::new());
    for (position, asked) in turn.response().tool_calls().enumerate() {
        if turn.calls().settled_before(position).is_some() {
            continue;
        }
        let call = turn.calls().change(position, |open| open.call.clone()).unwrap_or_else(|| asked.clone());
        let mut gated = if turn.calls().is_resolved() {
            let fault = check_call(agent, &call).err();
            GatedCall::new(position, call, fault)
        } else {
            identify(agent, turn, position, call).await?
        };
        gated.passed = turn.calls().change(position, |open| open.passed.clone());
        if let Some(reason) = refuse(agent, turn, position, &gated.call) {
            gated.fault = Some(reason);
        }
        batch.0.push(gated);
    }
    Ok(batch)
}

/// Returns the reason why a call cannot go on, as a text for the model.
fn refuse(agent: &Loop<'_>, turn: &OpenTurn<'_>, position: usize, call: &ToolCall) -> Option<String> {
    let has_begun = turn.calls().change(position, |open| open.has_begun);
    let is_idempotent = agent.tools.find(&call.name).is_some_and(Tool::is_idempotent);
    (has_begun && !is_idempotent).then(|| MAY_HAVE_HAD_EFFECTS.to_owned())
}
