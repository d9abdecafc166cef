//! The state of an agent's loop, which every place can read.

use std::sync::Arc;

use emitree_runtime::RunContext;
use parking_lot::Mutex;
use serde::{Deserialize, Serialize};

use crate::Usage;

/// The state of an agent's loop.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct Turn {
    /// The number of the turn, from 1; 0 before the first.
    pub number: u32,
    /// The tokens of the model calls so far.
    pub usage: Usage,
    /// The number of tool calls so far, those of this turn included once the model has asked for them.
    pub tool_calls: u32,
}

/// The turn of an agent's run, shared with the runs below it as an extension.
#[derive(Debug, Default)]
pub(crate) struct CurrentTurn(Mutex<Turn>);

impl CurrentTurn {
    pub(crate) fn get(&self) -> Turn {
        *self.0.lock()
    }

    pub(crate) fn change(&self, change: impl FnOnce(&mut Turn)) {
        change(&mut self.0.lock());
    }
}

/// The methods of a [`RunContext`] in an agent's run.
pub trait AgentContext {
    /// Returns the state of the loop of the nearest agent: of this run, or of a run above it. `None` outside of agents.
    fn turn(&self) -> Option<Turn>;
}

impl AgentContext for RunContext {
    fn turn(&self) -> Option<Turn> {
        self.extension::<CurrentTurn>().map(|turn: Arc<CurrentTurn>| turn.get())
    }
}
