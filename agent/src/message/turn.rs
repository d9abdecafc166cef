//! The turn of an agent: what its model calls have cost so far.

use rust_decimal::Decimal;
use serde::{Deserialize, Serialize};

use crate::Usage;

/// The state of an agent's loop.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct Turn {
    /// The number of the turn, from 1; 0 before the first turn.
    pub number: u32,
    /// The input and output tokens of the model calls so far.
    pub usage: Usage,
    /// The cost of the model calls so far; `None` if no response has a cost. See
    /// [`ChatModel::price`](crate::ChatModel::price).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cost: Option<Decimal>,
    /// The number of tool calls so far. The calls of the current turn are included after `turn.action`, if its decision
    /// is to execute them.
    pub tool_calls: u32,
}

impl Turn {
    /// Adds the tokens and the cost of a response.
    pub(crate) fn add_response(&mut self, usage: Option<Usage>, cost: Option<Decimal>) {
        if let Some(usage) = usage {
            self.usage += usage;
        }
        if let Some(cost) = cost {
            self.cost = Some(self.cost.unwrap_or_default().saturating_add(cost));
        }
    }
}
