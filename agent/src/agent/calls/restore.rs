//! The calls that an earlier run has left open (A22).

use emitree_runtime::{Result, Runnable};
use futures_core::future::BoxFuture;

use crate::agent::calls::questions::{Asked, Edited, edit, load, report};
use crate::agent::calls::{check_call, identify};
use crate::agent::events::RunResumed;
use crate::agent::steps::Loop;
use crate::place::batch::{Batch, GatedCall};
use crate::place::restore::OpenCall;
use crate::session::fold::turn::Call;
use crate::session::turn::TurnHandle;
use crate::{Tool, ToolCall};

/// The result of a call that had begun, and whose tool is not idempotent.
const MAY_HAVE_HAD_EFFECTS: &str = "the run was stopped while the tool was running, and the tool is not idempotent, so it was not called again: it may have had effects";

/// A call that has no result yet.
struct Open {
    position: usize,
    call: ToolCall,
    has_begun: bool,
    /// The reason why the call cannot go on, as a text for the model.
    refused: Option<String>,
}

/// Returns the calls that have no result yet. A call that cannot go on gets an error that says why.
pub(super) fn restore<'a>(agent: &'a Loop<'_>, turn: &'a TurnHandle<'_>) -> BoxFuture<'a, Result<Batch>> {
    // Boxed, so that the future of other turns does not become larger.
    Box::pin(restore_open(agent, turn))
}

async fn restore_open(agent: &Loop<'_>, turn: &TurnHandle<'_>) -> Result<Batch> {
    let mut open = open_calls(agent, turn);
    for open in open.iter_mut().filter(|open| open.refused.is_none() && !turn.is_interjected(open.position)) {
        let mut call = OpenCall::new(open.call.clone(), open.has_begun);
        for chains in agent.chains() {
            call.pass(&chains.restore, agent.ctx).await?;
        }
        open.refused = call.refused().map(str::to_owned);
    }
    if let Some(continues) = agent.continues {
        let ids = |is_refused: bool| {
            let of_kind = open.iter().filter(move |open| open.refused.is_some() == is_refused);
            of_kind.map(|open| open.call.id.clone()).collect()
        };
        let (executed, demoted) = (ids(false), ids(true));
        report(agent, RunResumed { continues, turn: agent.turn(), executed, demoted }).await;
    }
    let mut batch = Batch(Vec::with_capacity(open.len()));
    for open in open {
        batch.0.push(restore_call(agent, turn, open).await?);
    }
    Ok(batch)
}

/// Reads what is known about the open calls, and loads the answers to the questions about them.
fn open_calls(agent: &Loop<'_>, turn: &TurnHandle<'_>) -> Vec<Open> {
    let open = turn.response().tool_calls().enumerate().filter_map(|(position, asked)| {
        let read = |call: &Call| {
            load(call, agent.answers());
            let goes_on = call.kept.is_some();
            (call.result.is_none() || turn.is_interjected(position))
                .then(|| (call.changed.clone(), call.has_begun, goes_on))
        };
        let (changed, has_begun, goes_on) = turn.calls().read(position, read)??;
        let call = changed.unwrap_or_else(|| asked.clone());
        let is_idempotent = agent.tools.find(&call.name).is_some_and(Tool::is_idempotent);
        let refused = (has_begun && !is_idempotent && !goes_on).then(|| MAY_HAVE_HAD_EFFECTS.to_owned());
        Some(Open { position, call, has_begun, refused })
    });
    open.collect()
}

async fn restore_call(agent: &Loop<'_>, turn: &TurnHandle<'_>, open: Open) -> Result<GatedCall> {
    let Open { position, call, refused, .. } = open;
    if refused.is_some() || turn.is_interjected(position) {
        return Ok(GatedCall::new(position, call, refused));
    }
    if let Some(edited) = edit(agent, turn, position, &call).await {
        return Ok(match edited {
            Edited::Call(edited) => GatedCall::new(position, edited, None),
            Edited::Refused(Asked { question, by }) => GatedCall::interrupted(position, call, question, by),
        });
    }
    let mut gated = if turn.calls().is_resolved() {
        let fault = check_call(agent, &call).err();
        GatedCall::new(position, call, fault)
    } else {
        identify(agent, turn, position, call).await?
    };
    gated.passed = turn.calls().read(position, |call| call.passed.clone()).unwrap_or_default();
    Ok(gated)
}
