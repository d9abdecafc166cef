//! What a budget says of itself.

use std::fmt;
use std::time::Duration;

use rust_decimal::Decimal;
use serde::{Serialize, Serializer};
use uuid::Uuid;

use super::Usage;
use crate::shared::own_events::own_events;

/// Which limit it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum BudgetLimit {
    /// The number of tokens.
    Tokens,
    /// What it cost.
    Cost,
    /// The number of runs.
    Calls,
    /// How long it took.
    WallTime,
}

impl BudgetLimit {
    /// The name as it stands in JSON.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Tokens => "tokens",
            Self::Cost => "cost",
            Self::Calls => "calls",
            Self::WallTime => "wall_time",
        }
    }
}

/// So much of what is limited. In JSON: a number; of money a text, of time whole milliseconds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Amount {
    /// Tokens or calls.
    Count(u64),
    /// Money.
    Cost(Decimal),
    /// Time.
    Time(Duration),
}

impl Serialize for Amount {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        match self {
            Self::Count(count) => serializer.serialize_u64(*count),
            Self::Cost(cost) => Serialize::serialize(cost, serializer),
            Self::Time(time) => serializer.serialize_u64(crate::shared::millis::millis(*time)),
        }
    }
}

impl fmt::Display for Amount {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Count(count) => count.fmt(f),
            Self::Cost(cost) => cost.fmt(f),
            Self::Time(time) => write!(f, "{time:?}"),
        }
    }
}

/// Something was charged.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct Charged {
    /// What was used.
    #[serde(flatten)]
    pub usage: Usage,
    /// What the nearest budget was charged for it; none where that is not known.
    pub charged: Option<Decimal>,
}

/// Much of a budget is spent: said once for each limit.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct BudgetWarning {
    /// Which limit it is.
    pub limit: BudgetLimit,
    /// How much is spent.
    pub spent: Amount,
    /// How much may be.
    pub most: Amount,
    /// The run that holds the budget.
    pub holder: Uuid,
}

/// A budget is closed: what it holds for is stopped.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct BudgetClosed {
    /// Why.
    pub reason: String,
    /// The limit that was exceeded, if it was one.
    pub limit: Option<BudgetLimit>,
    /// The run that holds the budget.
    pub holder: Uuid,
}

/// A run may not begin, for a budget above it is closed.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct StartDenied {
    /// Why.
    pub reason: String,
    /// The run that holds the budget.
    pub holder: Uuid,
}

own_events! {
    Charged = "charged";
    BudgetWarning = "warning";
    BudgetClosed = "closed" { reason };
    StartDenied = "denied" { reason };
}
