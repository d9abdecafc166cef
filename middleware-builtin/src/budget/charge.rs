//! Charging usage to budgets, and reading the remaining amounts.

use std::sync::Arc;
use std::time::Duration;

use emitree_runtime::{Result, RunContext};
use rust_decimal::Decimal;

use super::account::{Account, LimitsReached};
use super::events::{BudgetClosed, BudgetWarning, Charged};
use super::options::Spending;
use super::usage::Usage;

/// Charges usage to the nearest budget of a run and to all budgets above it.
///
/// The first poll records the usage in all these budgets, because the usage has already happened. Then the budgets emit
/// their own events, and the work of each run whose budget closed is stopped. Without a budget, nothing is charged and
/// the result is `Ok`.
///
/// # Errors
///
/// Returns an error if one of the budgets is closed, by this charge or before it. The error is
/// [halted](emitree_runtime::Error::halted) if a limit was exceeded, and denied if a charge could not be priced. If
/// several budgets are closed, the error comes from the nearest closed budget.
///
/// # Cancel safety
///
/// If the future is dropped after its first poll, the usage is recorded and the work of each run whose budget closed is
/// stopped, but own events that were not emitted yet are lost.
pub async fn charge(ctx: &RunContext, usage: Usage) -> Result<()> {
    let Some(nearest) = Account::of(ctx) else { return Ok(()) };
    // Prices are user code: compute all costs before any usage is recorded.
    let costs: Vec<_> = nearest.upwards().map(|account| account.options.cost(&usage)).collect();
    let charged = costs.first().and_then(|cost| cost.as_ref().ok().copied());
    // `collect` consumes the iterator, so all accounts record the usage before the first await (account.rs, 2).
    let reports =
        nearest.upwards().zip(costs).map(|(account, cost)| LimitReport::of(account, account.record(&usage, cost)));
    let reports: Vec<_> = reports.collect();
    // If this future is dropped while a listener is awaited, the drop of `reports` still stops the work of the runs
    // whose accounts closed.
    nearest.options.own_events.emit(ctx, || Charged { usage, charged }).await;
    for report in &reports {
        report.emit(ctx).await;
    }
    let closed = nearest.upwards().find_map(|account| account.closed());
    closed.map_or(Ok(()), |closed| Err(closed.error()))
}

/// Returns `true` if a budget of the run limits tokens or cost. A call below must then be charged in any case: if its
/// provider reports no usage, charge an [estimate](Usage::estimated). Call this function before each call of a model.
///
/// # Errors
///
/// Returns a denial if a budget [requires reported usage](super::BudgetBuilder::require_reported), and an earlier call
/// was charged an estimate. The budget is then closed, and the work of the run that holds it is stopped.
///
/// # Cancel safety
///
/// As for [`charge`].
pub async fn expects_usage(ctx: &RunContext) -> Result<bool> {
    let Some(nearest) = Account::of(ctx) else { return Ok(false) };
    if !nearest.upwards().any(|account| account.options.limits_usage()) {
        return Ok(false);
    }
    let mut denial = None;
    for account in nearest.upwards() {
        let report = LimitReport::of(account, account.close_unreported());
        report.emit(ctx).await;
        if let Some(closed) = &report.closed {
            denial.get_or_insert_with(|| closed.denial());
        }
    }
    denial.map_or(Ok(true), Err)
}

/// The events to emit for one account: warnings, and `closed`. If the account closed, dropping the report stops the
/// work of the run that holds the account.
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
            // Stop the work only after the events, so that the end of the run does not cut off their listeners.
            self.account.stop.with(closed.error());
        }
    }
}

/// The amounts that a run may still spend. Each amount is the smallest that is left in the nearest budget or any budget
/// above it. Returned by [`remaining`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Remaining {
    /// Tokens; `None` if not limited.
    pub tokens: Option<u64>,
    /// Cost; `None` if not limited.
    pub cost: Option<Decimal>,
    /// Calls; `None` if not limited. The smallest number that is left in any budget is used, even if the budgets count
    /// different runs.
    pub calls: Option<u64>,
    /// Time; `None` if not limited.
    pub wall_time: Option<Duration>,
    /// `true` if no budget is closed.
    pub is_open: bool,
}

/// Returns the amounts that a run may still spend, or `None` if the run has no budget.
#[must_use]
pub fn remaining(ctx: &RunContext) -> Option<Remaining> {
    let nearest = Account::of(ctx)?;
    let all = nearest.upwards().map(|account| Remaining::in_account(account));
    all.reduce(Remaining::least)
}

/// Returns the amounts spent from the nearest budget of a run, or `None` if the run has no budget.
#[must_use]
pub fn spent(ctx: &RunContext) -> Option<Spending> {
    Account::of(ctx).map(|account| account.spent())
}

impl Remaining {
    fn in_account(account: &Account) -> Self {
        let most = &account.options.most;
        let spent = account.spent();
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

/// Returns the smaller limit, where `None` means no limit.
fn least<T: Ord>(one: Option<T>, other: Option<T>) -> Option<T> {
    match (one, other) {
        (Some(one), Some(other)) => Some(one.min(other)),
        (one, other) => one.or(other),
    }
}
