//! The limits of a budget, and the amounts spent.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use rust_decimal::Decimal;
use serde::{Deserialize, Serialize};

use super::events::{Amount, BudgetLimit};
use super::usage::{Prices, Usage};
use crate::shared::own_events::OwnEvents;
use crate::shared::panic::caught;
use crate::shared::runs::FilterSpec;
use crate::shared::selected_below::SelectedBelow;

/// The effect of an unknown price while cost is limited. Without a limit on cost, an unknown price counts as zero.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum UnknownPrice {
    /// The charge is denied, and the budget closes, because the remaining money is unknown from then on.
    #[default]
    Deny,
    /// The charge costs nothing.
    Free,
}

/// The amounts spent from a budget. Returned by [`spent`](super::spent).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct Spending {
    /// Input and output tokens.
    pub tokens: u64,
    /// Cost, in the currency of the prices.
    pub cost: Decimal,
    /// Number of runs that were counted as calls.
    pub calls: u64,
    /// Time since the budget was bound.
    #[serde(rename = "wall_time_ms", serialize_with = "in_millis")]
    pub wall_time: Duration,
}

fn in_millis<S: serde::Serializer>(time: &Duration, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.serialize_u64(crate::shared::millis::millis(*time))
}

/// The limits of a budget; `None` where an amount is not limited.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct MaxSpending {
    pub(super) tokens: Option<u64>,
    pub(super) cost: Option<Decimal>,
    pub(super) calls: Option<u64>,
    pub(super) wall_time: Option<Duration>,
}

impl MaxSpending {
    pub(super) fn of(&self, limit: BudgetLimit) -> Option<Amount> {
        match limit {
            BudgetLimit::Tokens => self.tokens.map(Amount::Count),
            BudgetLimit::Cost => self.cost.map(Amount::Cost),
            BudgetLimit::Calls => self.calls.map(Amount::Count),
            BudgetLimit::WallTime => self.wall_time.map(Amount::Time),
        }
    }

    /// Returns the fraction `part` of each limit. Counts and times are rounded up.
    pub(super) fn part(&self, part: Decimal) -> Self {
        let of_count = |most: u64| round_up(part.checked_mul(most.into())).and_then(|part| part.try_into().ok());
        let of_time = |most: Duration| {
            let nanos = u64::try_from(most.as_nanos()).ok()?;
            of_count(nanos).map(Duration::from_nanos)
        };
        Self {
            tokens: self.tokens.and_then(of_count),
            cost: self.cost.and_then(|most| part.checked_mul(most)),
            calls: self.calls.and_then(of_count),
            wall_time: self.wall_time.and_then(of_time),
        }
    }
}

fn round_up(part: Option<Decimal>) -> Option<Decimal> {
    part.map(|part| part.ceil())
}

/// The options of a budget, shared by its accounts.
pub(super) struct BudgetOptions {
    pub(super) most: MaxSpending,
    /// The amounts at which a warning is due.
    pub(super) warn_from: MaxSpending,
    pub(super) runs: FilterSpec,
    /// Warns if the selection of calls is misspelled (M12).
    pub(super) calls_below: Option<SelectedBelow>,
    pub(super) prices: Option<Arc<dyn Prices>>,
    pub(super) unknown_prices: UnknownPrice,
    /// `true` if an estimate is not charged, and the next call is denied instead.
    pub(super) requires_reported: bool,
    pub(super) own_events: OwnEvents,
}

impl BudgetOptions {
    /// Returns the cost of usage, or the reason why it cannot be priced.
    pub(super) fn cost(&self, usage: &Usage) -> Result<Decimal, String> {
        // A cost that the caller knows takes precedence over the prices.
        let cost = match usage.cost {
            Some(cost) => Some(cost),
            None => self.price(usage)?,
        };
        match cost {
            Some(cost) if cost < Decimal::ZERO => {
                Err(format!("the cost of {} is negative: `{cost}`", model_name(usage)))
            }
            Some(cost) => Ok(cost),
            // Without a limit on cost, an unknown cost exceeds no limit.
            None if self.most.cost.is_none() || self.unknown_prices == UnknownPrice::Free => Ok(Decimal::ZERO),
            None => Err(format!("the price of {} is not known", model_name(usage))),
        }
    }

    /// Returns `true` if tokens or cost are limited.
    pub(super) const fn limits_usage(&self) -> bool {
        self.most.tokens.is_some() || self.most.cost.is_some()
    }

    /// Calls the price function, which is user code: a panic becomes a failure (M5).
    fn price(&self, usage: &Usage) -> Result<Option<Decimal>, String> {
        let Some(prices) = &self.prices else { return Ok(None) };
        match caught(|| prices.cost(usage)) {
            Ok(cost) => {
                cost.map_err(|error| format!("the price of {} could not be determined: {error}", model_name(usage)))
            }
            Err(panic) => Err(format!("the price of {} could not be determined: {panic}", model_name(usage))),
        }
    }

    /// Returns the limits whose warning amounts are reached, each with the amount spent and the maximum.
    pub(super) fn near_limits(&self, spent: &Spending) -> impl Iterator<Item = (BudgetLimit, Amount, Amount)> {
        let from = &self.warn_from;
        let near = [
            (BudgetLimit::Tokens, from.tokens.is_some_and(|from| spent.tokens >= from), Amount::Count(spent.tokens)),
            (BudgetLimit::Cost, from.cost.is_some_and(|from| spent.cost >= from), Amount::Cost(spent.cost)),
            (BudgetLimit::Calls, from.calls.is_some_and(|from| spent.calls >= from), Amount::Count(spent.calls)),
            (
                BudgetLimit::WallTime,
                from.wall_time.is_some_and(|from| spent.wall_time >= from),
                Amount::Time(spent.wall_time),
            ),
        ];
        let most = self.most;
        let near = near.into_iter().filter(|(_, is_near, _)| *is_near);
        near.filter_map(move |(limit, _, spent)| Some((limit, spent, most.of(limit)?)))
    }

    /// Returns the limit that charges have exceeded: tokens or cost. `Account` checks calls and time itself. Reaching a
    /// limit does not exceed it.
    pub(super) fn exceeded(&self, spent: &Spending) -> Option<(BudgetLimit, Amount)> {
        if self.most.tokens.is_some_and(|most| spent.tokens > most) {
            return Some((BudgetLimit::Tokens, Amount::Count(spent.tokens)));
        }
        self.most.cost.is_some_and(|most| spent.cost > most).then_some((BudgetLimit::Cost, Amount::Cost(spent.cost)))
    }
}

pub(super) fn model_name(usage: &Usage) -> String {
    usage.model.as_ref().map_or_else(|| "usage without a model".to_owned(), |model| format!("`{model}`"))
}

impl fmt::Debug for BudgetOptions {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let MaxSpending { tokens, cost, calls, wall_time } = &self.most;
        let limits = [
            tokens.map(|most| format!("{most} tokens")),
            cost.map(|most| format!("cost {most}")),
            calls.map(|most| format!("{most} calls{}", self.runs.after(" "))),
            wall_time.map(|most| format!("{most:?}")),
        ];
        let limits: Vec<_> = limits.into_iter().flatten().collect();
        if limits.is_empty() { f.write_str("no limits") } else { f.write_str(&limits.join(", ")) }
    }
}
