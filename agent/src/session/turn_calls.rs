//! The calls of an open turn, which an interjection may close from another task.

use std::future::Future;
use std::mem::replace;
use std::sync::atomic::{AtomicBool, Ordering};

use emitree_runtime::RunContext;
use futures_util::future::{AbortHandle, Abortable};
use parking_lot::Mutex;

use crate::message::ToolResult;
use crate::session::inbox::Taker;
use crate::tool::started::WorkStarted;

/// The reason for which the runs of calls are aborted that an interjection has closed.
const INTERJECTED: &str = "the user interjected";

/// The state of a call.
#[derive(Clone, Debug)]
pub(super) enum CallState {
    Open(WorkStarted),
    Answered(ToolResult),
    /// An interjection has closed the call before it had begun.
    Interjected,
}

/// See the [module](self).
#[derive(Debug)]
pub(crate) struct TurnCalls {
    taker: Taker,
    /// By position. The mutex is needed because calls that run concurrently share the turn.
    states: Mutex<Vec<CallState>>,
    /// The run of the agent, once interjections may close calls.
    agent: Mutex<Option<RunContext>>,
    is_interjected: AtomicBool,
    /// The gates that the calls are waiting in.
    gates: Mutex<Option<AbortHandle>>,
}

impl TurnCalls {
    pub(super) fn new(taker: Taker, count: usize) -> Self {
        let states = (0..count).map(|_| CallState::Open(WorkStarted::in_attempt(taker.attempt))).collect();
        let is_interjected = AtomicBool::new(false);
        Self { taker, states: Mutex::new(states), agent: Mutex::new(None), is_interjected, gates: Mutex::new(None) }
    }

    pub(super) const fn taker(&self) -> Taker {
        self.taker
    }

    /// Returns the state that a call shares with the run of its tool. If the call has a result, returns a closed state.
    pub(super) fn work_started(&self, position: usize) -> WorkStarted {
        match &self.states.lock()[position] {
            CallState::Open(started) => started.clone(),
            CallState::Answered(_) | CallState::Interjected => {
                let closed = WorkStarted::in_attempt(self.taker.attempt);
                closed.close();
                closed
            }
        }
    }

    pub(super) fn answer(&self, position: usize, result: ToolResult) {
        let before = replace(&mut self.states.lock()[position], CallState::Answered(result));
        if let CallState::Open(started) = before {
            started.close();
        }
    }

    pub(super) fn take(&self) -> Vec<CallState> {
        std::mem::take(&mut *self.states.lock())
    }

    /// Lets interjections close the calls of this run of an agent from now on.
    pub(super) fn listen(&self, agent: &RunContext) {
        *self.agent.lock() = Some(agent.clone());
    }

    pub(super) fn is_listening(&self) -> bool {
        self.agent.lock().is_some()
    }

    /// Returns `true` if an interjection has closed the call at this position.
    pub(super) fn is_interjected(&self, position: usize) -> bool {
        self.is_interjected.load(Ordering::Acquire) && matches!(self.states.lock()[position], CallState::Interjected)
    }

    /// Closes the calls that have not begun, and aborts their runs and gates.
    pub(super) fn interject(&self) {
        for state in &mut *self.states.lock() {
            if let CallState::Open(started) = state
                && !started.close()
            {
                *state = CallState::Interjected;
            }
        }
        self.is_interjected.store(true, Ordering::Release);
        let gates = self.gates.lock().take();
        if let Some(gates) = gates {
            gates.abort();
        }
        // A run that begins later finds its call closed.
        let agent = self.agent.lock().clone();
        for run in agent.map(|agent| agent.children()).unwrap_or_default() {
            if run.own_extension::<WorkStarted>().is_some_and(|call| call.is_closed()) {
                run.abort(INTERJECTED);
            }
        }
    }

    /// Polls a future until an interjection closes the calls. Returns `None` if one has.
    pub(super) async fn until_interjected<T>(&self, gates: impl Future<Output = T>) -> Option<T> {
        if !self.is_listening() {
            return Some(gates.await);
        }
        let (abort, registration) = AbortHandle::new_pair();
        *self.gates.lock() = Some(abort);
        // An interjection sets this mark before it looks for the handle.
        if self.is_interjected.load(Ordering::Acquire) {
            return None;
        }
        Abortable::new(gates, registration).await.ok()
    }
}
