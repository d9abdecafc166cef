//! A budget's own events.

use std::fmt;
use std::time::Duration;

use rust_decimal::Decimal;
use serde::{Serialize, Serializer};
use uuid::Uuid;

use super::Usage;
use crate::shared::own_events::own_events;

/// A limit of a budget.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum BudgetLimit {
    /// The limit on tokens.
    Tokens,
    /// The limit on cost.
    Cost,
    /// The limit on calls.
    Calls,
    /// The limit on time.
    WallTime,
}

impl BudgetLimit {
    /// Returns the name used in JSON, such as `wall_time`.
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

/// An amount of tokens, calls, money or time. As JSON, counts are numbers, money is a string and time is a number of
/// whole milliseconds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Amount {
    /// A number of tokens or calls.
    Count(u64),
    /// An amount of money.
    Cost(Decimal),
    /// A duration.
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

/// Usage was charged.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct Charged {
    /// The usage.
    #[serde(flatten)]
    pub usage: Usage,
    /// The cost of the usage in the nearest budget; `None` if the usage cannot be priced.
    pub charged: Option<Decimal>,
}

/// The warning threshold of a limit is reached. Emitted once for each limit, when the fraction set by
/// [`warn_at`](super::BudgetBuilder::warn_at) is spent.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct BudgetWarning {
    /// The limit.
    pub limit: BudgetLimit,
    /// The amount spent.
    pub spent: Amount,
    /// The maximum amount.
    pub most: Amount,
    /// The id of the run that holds the budget.
    pub holder: Uuid,
}

/// A budget was closed. The work of the run that holds the budget is stopped after this event.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct BudgetClosed {
    /// The reason.
    pub reason: String,
    /// The limit that was exceeded; `None` if a charge could not be priced.
    pub limit: Option<BudgetLimit>,
    /// The id of the run that holds the budget.
    pub holder: Uuid,
}

/// A run was denied because a budget above it is closed.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct StartDenied {
    /// The reason.
    pub reason: String,
    /// The id of the run that holds the budget.
    pub holder: Uuid,
}

own_events! {
    Charged = "charged";
    BudgetWarning = "warning";
    BudgetClosed = "closed" { reason };
    StartDenied = "denied" { reason };
}
