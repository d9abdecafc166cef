//! Drawing from budgets, and reading them.

use std::sync::Arc;
use std::time::Duration;

use emitree_runtime::{Result, RunContext};
use rust_decimal::Decimal;

use super::account::{Account, LimitsReached};
use super::events::{BudgetClosed, BudgetWarning, Charged};
use super::options::Spending;
use super::usage::Usage;

/// Draws what was used from the nearest budget of a run, and from all above it.
///
/// It is recorded in all of them at the first poll, whatever comes of it: it has been used. Then what it did is said, and
/// what it has closed is stopped. A run without a budget is charged nothing, and that is no error.
///
/// # Errors
///
/// If a budget is closed by it, or was closed before: [halted](emitree_runtime::Error::halted) where a limit is exceeded, denied where the
/// price is not known. Of several, the error is that of the nearest.
///
/// # Cancel safety
///
/// Dropped after the first poll, all is recorded, and what is closed is stopped; what was not said yet is not said.
pub async fn charge(ctx: &RunContext, usage: Usage) -> Result<()> {
    let Some(nearest) = Account::of(ctx) else { return Ok(()) };
    // Prices are user code: all are asked before anything is recorded.
    let costs: Vec<_> = nearest.upwards().map(|account| account.options.cost(&usage)).collect();
    let charged = costs.first().and_then(|cost| cost.as_ref().ok().copied());
    let reports =
        nearest.upwards().zip(costs).map(|(account, cost)| LimitReport::of(account, account.record(&usage, cost)));
    let reports: Vec<_> = reports.collect();
    nearest.options.own_events.emit(ctx, || Charged { usage, charged }).await;
    for report in &reports {
        report.emit(ctx).await;
    }
    let closed = nearest.upwards().find_map(|account| account.closed());
    closed.map_or(Ok(()), |closed| Err(closed.error()))
}

/// What is found in an account, to be said; an account that is closed is stopped when this is dropped.
pub(super) struct LimitReport {
    account: Arc<Account>,
    warnings: Vec<BudgetWarning>,
    closed: Option<BudgetClosed>,
}

impl LimitReport {
    pub(super) fn of(account: &Arc<Account>, reached: LimitsReached) -> Self {
        let LimitsReached { warnings, closed } = reached;
        Self { account: Arc::clone(account), warnings, closed }
    }

    pub(super) async fn emit(&self, ctx: &RunContext) {
        let own_events = &self.account.options.own_events;
        for warning in &self.warnings {
            own_events.emit(ctx, || warning.clone()).await;
        }
        if let Some(closed) = &self.closed {
            own_events.emit(ctx, || closed.clone()).await;
        }
    }
}

impl Drop for LimitReport {
    fn drop(&mut self) {
        if let Some(closed) = &self.closed {
            self.account.stop.with(closed.error());
        }
    }
}

/// What a run may still spend: of its nearest budget and all above it, the least. Made by [`remaining`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Remaining {
    /// Tokens; none if they are not limited.
    pub tokens: Option<u64>,
    /// Money; none if it is not limited.
    pub cost: Option<Decimal>,
    /// Runs below; none if they are not limited. Of budgets that count other kinds of runs, the least all the same.
    pub calls: Option<u64>,
    /// Time; none if it is not limited.
    pub wall_time: Option<Duration>,
    /// Whether anything may begin at all: no budget is closed.
    pub is_open: bool,
}

/// What a run may still spend; none without a budget.
#[must_use]
pub fn remaining(ctx: &RunContext) -> Option<Remaining> {
    let nearest = Account::of(ctx)?;
    let all = nearest.upwards().map(|account| Remaining::in_account(account));
    all.reduce(Remaining::least)
}

/// What the nearest budget of a run has been charged; none without one.
#[must_use]
pub fn spent(ctx: &RunContext) -> Option<Spending> {
    Account::of(ctx).map(|account| account.spent())
}

impl Remaining {
    fn in_account(account: &Account) -> Self {
        let (most, spent) = (&account.options.most, account.spent());
        let left = |most: Decimal| most.checked_sub(spent.cost).unwrap_or_default().max(Decimal::ZERO);
        Self {
            tokens: most.tokens.map(|most| most.saturating_sub(spent.tokens)),
            cost: most.cost.map(left),
            calls: most.calls.map(|most| most.saturating_sub(spent.calls)),
            wall_time: most.wall_time.map(|most| most.saturating_sub(spent.wall_time)),
            is_open: account.closed().is_none(),
        }
    }

    fn least(self, other: Self) -> Self {
        Self {
            tokens: least(self.tokens, other.tokens),
            cost: least(self.cost, other.cost),
            calls: least(self.calls, other.calls),
            wall_time: least(self.wall_time, other.wall_time),
            is_open: self.is_open && other.is_open,
        }
    }
}

/// The less of what is limited.
fn least<T: Ord>(one: Option<T>, other: Option<T>) -> Option<T> {
    match (one, other) {
        (Some(one), Some(other)) => Some(one.min(other)),
        (one, other) => one.or(other),
    }
}
