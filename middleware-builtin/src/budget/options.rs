//! What may be spent, and what was.

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

/// What happens where the price of what was used is not known.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum UnknownPrice {
    /// It is denied, and the budget closed: what is left is not known any more.
    #[default]
    Deny,
    /// It costs nothing.
    Free,
}

/// What was spent.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct Spending {
    /// Tokens, those that went in and those that came out.
    pub tokens: u64,
    /// Money.
    pub cost: Decimal,
    /// Runs below.
    pub calls: u64,
    /// Time, since the budget was bound.
    #[serde(rename = "wall_time_ms", serialize_with = "in_millis")]
    pub wall_time: Duration,
}

fn in_millis<S: serde::Serializer>(time: &Duration, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.serialize_u64(crate::shared::millis::millis(*time))
}

/// What may be spent, where it is limited.
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

    /// These, where that part of them is spent: a count and a time that are not whole are the next whole ones.
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

pub(super) struct BudgetOptions {
    pub(super) most: MaxSpending,
    /// From where on it warns.
    pub(super) warn_from: MaxSpending,
    pub(super) runs: FilterSpec,
    pub(super) prices: Option<Arc<dyn Prices>>,
    pub(super) unknown_prices: UnknownPrice,
    pub(super) own_events: OwnEvents,
}

impl BudgetOptions {
    /// What it costs, or why that is not known.
    pub(super) fn cost(&self, usage: &Usage) -> Result<Decimal, String> {
        let cost = match usage.cost {
            Some(cost) => Some(cost),
            None => self.price(usage)?,
        };
        match cost {
            Some(cost) if cost < Decimal::ZERO => {
                Err(format!("the cost of {} is negative: `{cost}`", model_name(usage)))
            }
            Some(cost) => Ok(cost),
            // Where money is not limited, nobody asks.
            None if self.most.cost.is_none() || self.unknown_prices == UnknownPrice::Free => Ok(Decimal::ZERO),
            None => Err(format!("the price of {} is not known", model_name(usage))),
        }
    }

    fn price(&self, usage: &Usage) -> Result<Option<Decimal>, String> {
        let Some(prices) = &self.prices else { return Ok(None) };
        match caught(|| prices.cost(usage)) {
            Ok(cost) => cost.map_err(|error| format!("the price of {} was not found out: {error}", model_name(usage))),
            Err(panic) => Err(format!("the price of {} was not found out: {panic}", model_name(usage))),
        }
    }

    /// Which limits are near, how much is spent, and how much may be.
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

    /// What charges can exceed: to reach it is allowed.
    pub(super) fn exceeded(&self, spent: &Spending) -> Option<(BudgetLimit, Amount)> {
        if self.most.tokens.is_some_and(|most| spent.tokens > most) {
            return Some((BudgetLimit::Tokens, Amount::Count(spent.tokens)));
        }
        self.most.cost.is_some_and(|most| spent.cost > most).then_some((BudgetLimit::Cost, Amount::Cost(spent.cost)))
    }
}

fn model_name(usage: &Usage) -> String {
    usage.model.as_ref().map_or_else(|| "what has no model".to_owned(), |model| format!("`{model}`"))
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
