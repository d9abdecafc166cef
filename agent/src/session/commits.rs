//! The commits of an agent's run whose session is kept by a store (A24 to A27).
//!
//! A run claims its session before it reads it, and goes on only after these commits: its input, or the beginning of
//! another attempt; each response, before its calls; each call, before its function is called; each result, the last one
//! with the end of its turn; the end of the run. The commit that ends the run releases the claim. If the run ends without it,
//! a listener of `finish` releases the claim, so a caller that waits for the run, and a shutdown, wait for this too.

use std::sync::atomic::Ordering;

use emitree_middleware::store::{EntryStatus, StoreError};
use emitree_runtime::{Error, Finish, Outcome, Result, RunContext, Stage};
use futures_core::future::BoxFuture;

use crate::agent::steps::{Loop, PAUSED};
use crate::agent::turn::LoopState;
use crate::session::entry::not_stored;
use crate::session::status::End;
use crate::{AgentInput, AgentOutput};

impl LoopState {
    /// Claims the session, unless the run has the claim. Returns `None` if there is nothing to claim.
    pub(crate) fn claim(&self) -> Option<BoxFuture<'_, Result<()>>> {
        let entry = self.session.own_entry().filter(|_| self.claim.lock().is_none())?;
        Some(Box::pin(async move {
            let claim = match &self.taken {
                Some(taken) => entry.claim_taken(taken).await?,
                None => entry.claim(self.is_in_job).await?,
            };
            *self.claim.lock() = Some(claim);
            self.has_claimed.store(true, Ordering::Relaxed);
            self.go_on_inside();
            Ok(())
        }))
    }

    /// Stores all changes so far. Returns `None` if no store keeps the session. A session that keeps its records in memory
    /// notes the states of middlewares.
    pub(crate) fn commit(&self) -> Option<BoxFuture<'_, Result<()>>> {
        let Some(entry) = self.session.entry() else { return self.session.note_states() };
        Some(Box::pin(entry.commit()))
    }

    /// Stores the answer that the run returns, and releases the claim. Returns `None` if no store keeps the session. Until
    /// the commit has returned, the run holds its answer.
    pub(crate) fn commit_answer(&self) -> Option<BoxFuture<'_, Result<()>>> {
        let Some(entry) = self.session.entry() else { return self.session.note_states() };
        Some(Box::pin(async move {
            let stored = if self.session.own_entry().is_some() {
                let claim = self.claim.lock().take();
                entry.release(claim, Some(ENDED)).await.map_err(not_stored)
            } else {
                entry.commit().await
            };
            stored.inspect_err(|_| self.session.take_back())
        }))
    }
}

impl Loop<'_> {
    /// See [`LoopState::commit`].
    pub(crate) fn commit(&self) -> Option<BoxFuture<'_, Result<()>>> {
        self.state().commit()
    }
}

/// Returns `true` for the error of a commit, after which a call stays open.
pub(crate) fn is_not_stored(error: &Error) -> bool {
    error.is_fatal() && error.find::<StoreError>().is_some()
}

/// Stores how a run has ended, and releases its claim.
pub(crate) fn release_at_end(ctx: &RunContext) -> Result<()> {
    ctx.emitter().on_async(Stage::Finish, |finish: &mut Finish<AgentInput, AgentOutput>, _| {
        let end = end_of(finish.outcome());
        let state = RunContext::current().and_then(|ctx| LoopState::of(&ctx));
        Box::pin(async move {
            if let Some(state) = state {
                release(&state, end).await;
            }
            Ok(())
        })
    })?;
    Ok(())
}

async fn release(state: &LoopState, end: End) {
    state.session.end(false);
    let claim = state.claim.lock().take();
    let Some(entry) = state.session.own_entry() else { return };
    if !state.has_claimed.load(Ordering::Relaxed) || claim.is_none() && end.status == EntryStatus::Ended {
        // The run has not used the session, or its answer was stored before.
        return;
    }
    // A run may be dropped while its answer is being stored.
    let has_ended = end.status == EntryStatus::Running && state.session.has_returned();
    let end = if has_ended { ENDED } else { end };
    let end = state.session.has_begun().then_some(end);
    if let Err(error) = entry.release(claim, end).await {
        tracing::warn!(%error, "the end of a run is not stored");
    }
}

/// The end of a run with an answer.
const ENDED: End = End { status: EntryStatus::Ended, comes_back: false };

/// Returns the end of a run for its session. A run that was stopped from outside can go on, and so can one that has ended
/// because the store or its claim was gone.
fn end_of(outcome: &Outcome<AgentOutput>) -> End {
    let status = match outcome {
        Outcome::Success { .. } => EntryStatus::Ended,
        Outcome::Interrupted { interrupt } if interrupt.kind == PAUSED => EntryStatus::Paused,
        Outcome::Interrupted { .. } => EntryStatus::Waiting,
        Outcome::Aborted { .. } | Outcome::Dropped => EntryStatus::Running,
        Outcome::Failed { error } if is_not_stored(error) => EntryStatus::Running,
        _ => EntryStatus::Failed,
    };
    let comes_back = matches!(outcome, Outcome::Failed { error } if error.is_retryable());
    End { status, comes_back }
}
