//! A run of a page that is under way.
//!
//! The run is driven by a task, and its listeners fold its events to steps in a log. Each response reads the log at its
//! own speed, so a page that reads slowly delays neither the run nor another page. The lock is held for the fold and the
//! log only: no code of users is called with it.

mod log;
mod reader;

use std::pin::pin;
use std::sync::Arc;

use emitree_agent::AgentOutput;
use emitree_runtime::{AbortHandle, Error, Result};
use parking_lot::Mutex;
use tokio::sync::Notify;

use crate::encode::Ids;
use crate::fact::Fact;
use crate::fold::Fold;
use crate::live::log::Log;
pub(crate) use crate::live::log::Position;
pub(crate) use crate::live::reader::{Reader, response};
use crate::step::{DROPPED, End, Step};

/// A run, and its steps so far.
#[derive(Debug)]
pub(crate) struct Live {
    pub(crate) ids: Ids,
    pub(crate) abort: AbortHandle,
    state: Mutex<State>,
    /// Wakes those who wait for further steps. They register before they look.
    changed: Notify,
}

#[derive(Debug)]
struct State {
    fold: Fold,
    log: Log,
}

impl Live {
    pub(crate) fn new(ids: Ids, fold: Fold) -> Self {
        let mut log = Log::default();
        log.push(Step::Started);
        Self { ids, abort: AbortHandle::new(), state: Mutex::new(State { fold, log }), changed: Notify::new() }
    }

    pub(crate) fn add(&self, fact: Fact) {
        {
            let state = &mut *self.state.lock();
            if state.log.end().is_some() {
                // A task that a tool has left behind is still at work.
                return;
            }
            let steps = state.fold.add(fact);
            if steps.is_empty() {
                return;
            }
            steps.into_iter().for_each(|step| state.log.push(step));
            if state.log.is_full() {
                let reset = state.fold.reset();
                state.log.shorten(reset);
            }
        }
        self.changed.notify_waiters();
    }

    /// Ends the steps, unless they have ended.
    pub(crate) fn end(&self, result: &Result<AgentOutput>) {
        {
            let state = &mut *self.state.lock();
            if state.log.end().is_some() {
                return;
            }
            let steps = state.fold.end(result);
            steps.into_iter().for_each(|step| state.log.push(step));
        }
        self.changed.notify_waiters();
    }

    pub(crate) fn has_ended(&self) -> bool {
        self.state.lock().log.end().is_some()
    }

    /// Returns `true` if another process has refused the run.
    pub(crate) fn is_refused(&self) -> bool {
        matches!(self.state.lock().log.end(), Some(End::Failed { code: "conflict", .. }))
    }

    /// Waits until the agent has begun, or the run has ended. Returns the error of a run that another process has
    /// refused.
    pub(crate) async fn begun(&self) -> Result<()> {
        loop {
            let mut changed = pin!(self.changed.notified());
            changed.as_mut().enable();
            {
                let state = self.state.lock();
                match state.log.end() {
                    Some(End::Failed { code: "conflict", message }) => return Err(Error::new(message.clone())),
                    Some(_) => return Ok(()),
                    None if state.fold.has_agent() => return Ok(()),
                    None => {}
                }
            }
            changed.await;
        }
    }
}

/// Ends the steps of a run whose task is dropped, such as at the end of the program.
#[derive(Debug)]
pub(crate) struct EndOnDrop(pub(crate) Arc<Live>);

impl Drop for EndOnDrop {
    fn drop(&mut self) {
        self.0.end(&Err(Error::aborted(DROPPED)));
    }
}

#[cfg(test)]
mod tests {
    use serde_json::Value;
    use uuid::Uuid;

    use super::*;
    use crate::fact::News;
    use crate::past::CallIds;

    #[test]
    fn the_end_of_a_run_is_its_last_step() {
        let ids = Ids { thread: "t".into(), run: "r".into(), message: "m".into() };
        let live = Live::new(ids, Fold::new("r".into(), Vec::new(), CallIds::default()));
        live.end(&Err(Error::aborted(DROPPED)));
        let news = News::Shown { id: Uuid::nil(), path: "late".into(), value: Value::Null };
        live.add(Fact { agent: Uuid::nil(), news });
        live.end(&Err(Error::new("twice")));
        assert_eq!(live.state.lock().log.end(), Some(&End::Aborted { reason: DROPPED.to_owned() }));
    }
}
