//! The account of one run and all runs below it.
//!
//! 1. An account is stored as an extension of the run that holds it, and refers to the nearest account above. It holds
//!    no reference to its run, because that would keep the run alive.
//! 2. Usage has already happened: it is recorded in this account and all accounts above, even if it exceeds a limit.
//!    The account's lock is held throughout the recording, the check and the closing.
//! 3. A call has not happened yet: if one account refuses it, no account counts it. Locks are taken from the nearest
//!    account upwards, and are held until the topmost account has accepted the call.
//! 4. A closed account stays closed, and no run begins below it.

use std::sync::Arc;
use std::time::Duration;

use emitree_runtime::{Error, RunContext};
use parking_lot::Mutex;
use rust_decimal::Decimal;
use tokio::time::Instant;
use uuid::Uuid;

use super::events::{Amount, BudgetClosed, BudgetLimit, BudgetWarning};
use super::options::{BudgetOptions, Spending, model_name};
use super::usage::Usage;
use crate::shared::stop::Stop;

pub(super) struct Account {
    pub(super) options: Arc<BudgetOptions>,
    pub(super) above: Option<Arc<Self>>,
    pub(super) stop: Arc<Stop>,
    holder: Uuid,
    began: Instant,
    state: Mutex<AccountState>,
}

/// The account nearest to a run, as an extension of the run.
struct NearestAccount(Arc<Account>);

#[derive(Default)]
struct AccountState {
    spent: Spending,
    warned: Vec<BudgetLimit>,
    closed: Option<BudgetClosed>,
    /// The reason why the next call is denied: an earlier call has reported no usage, and the budget requires it.
    unreported: Option<String>,
}

/// The events to emit after a check of the limits.
#[derive(Default)]
pub(super) struct LimitsReached {
    pub(super) warnings: Vec<BudgetWarning>,
    /// Set if this check closed the account.
    pub(super) closed: Option<BudgetClosed>,
}

/// An account that refuses a run, and the reason.
pub(super) struct RefusingAccount {
    pub(super) account: Arc<Account>,
    pub(super) closed: BudgetClosed,
    /// `true` if the refused run itself closed the account.
    pub(super) is_new: bool,
}

/// The results of the filters for one run: `here` is `true` if the run counts as a call in this account, and `above`
/// holds the results of the accounts above.
struct CountPath<'a> {
    here: bool,
    above: Option<&'a Self>,
}

impl Account {
    /// Opens an account for a run. The new account refers to the run's nearest account so far, if any.
    pub(super) fn open(options: &Arc<BudgetOptions>, ctx: &RunContext) -> Arc<Self> {
        let account = Self::new(options, Self::of(ctx), ctx.run_id());
        ctx.set_extension(NearestAccount(Arc::clone(&account)));
        account
    }

    pub(super) fn new(options: &Arc<BudgetOptions>, above: Option<Arc<Self>>, holder: Uuid) -> Arc<Self> {
        let options = Arc::clone(options);
        let stop = Arc::default();
        let state = Mutex::default();
        Arc::new(Self { options, above, stop, holder, began: Instant::now(), state })
    }

    pub(super) fn of(ctx: &RunContext) -> Option<Arc<Self>> {
        ctx.extension::<NearestAccount>().map(|nearest| Arc::clone(&nearest.0))
    }

    /// Returns this account and all accounts above it.
    pub(super) fn upwards(self: &Arc<Self>) -> impl Iterator<Item = &Arc<Self>> {
        std::iter::successors(Some(self), |account| account.above.as_ref())
    }

    pub(super) const fn holder(&self) -> Uuid {
        self.holder
    }

    /// Records usage. `cost` is computed from the account's own prices. An `Err` is the reason why the usage cannot be
    /// priced.
    pub(super) fn record(&self, usage: &Usage, cost: Result<Decimal, String>) -> LimitsReached {
        let mut state = self.state.lock();
        if usage.estimated && self.options.limits_usage() && self.options.requires_reported {
            let model = model_name(usage);
            let reason = format!("the usage of {model} is not known: its last call reported none (`require_reported`)");
            state.unreported.get_or_insert(reason);
            return LimitsReached::default();
        }
        state.spent.tokens = state.spent.tokens.saturating_add(usage.tokens());
        match cost {
            // A sum that overflows becomes the largest `Decimal`, which exceeds every smaller limit.
            Ok(cost) => state.spent.cost = state.spent.cost.checked_add(cost).unwrap_or(Decimal::MAX),
            Err(reason) if state.closed.is_none() => return self.close_unpriced(&mut state, reason, None),
            // If the account is already closed, the first reason stays (4).
            Err(_) => {}
        }
        self.find_reached(&mut state)
    }

    /// Counts a run that is about to begin. The run is counted in each account whose filter selects it, from this
    /// account upwards, or in no account (3).
    ///
    /// # Errors
    ///
    /// Returns an error if a predicate of the options panics.
    pub(super) fn count_start(
        self: &Arc<Self>,
        run: &RunContext,
    ) -> emitree_runtime::Result<Result<Vec<BudgetWarning>, RefusingAccount>> {
        self.with_count_path(run, &mut |counts| self.count(counts))
    }

    /// Evaluates the predicates of this account and all accounts above, and then calls `then` with the results. The
    /// predicates are called without a lock, because they are user code.
    fn with_count_path<T>(
        &self,
        run: &RunContext,
        then: &mut dyn FnMut(&CountPath<'_>) -> T,
    ) -> emitree_runtime::Result<T> {
        let here = self.options.runs.guards(run, "budget")?;
        match &self.above {
            None => Ok(then(&CountPath { here, above: None })),
            Some(above) => above.with_count_path(run, &mut |above| then(&CountPath { here, above: Some(above) })),
        }
    }

    fn count(self: &Arc<Self>, counts: &CountPath<'_>) -> Result<Vec<BudgetWarning>, RefusingAccount> {
        let mut state = self.state.lock();
        let refusal = |closed: &BudgetClosed, is_new| RefusingAccount {
            account: Arc::clone(self),
            closed: closed.clone(),
            is_new,
        };
        // Check the clock, because the timer may not have fired yet and no run may begin after the deadline.
        if let Some(closed) = self.close_if_late(&mut state) {
            return Err(refusal(&closed, true));
        }
        if let Some(closed) = &state.closed {
            return Err(refusal(closed, false));
        }
        // If this call would exceed the limit, close the account, and do not count the call (3).
        if counts.here && self.options.most.calls == Some(state.spent.calls) {
            let one_more = Amount::Count(state.spent.calls.saturating_add(1));
            let closed = self.close_exceeded(&mut state, BudgetLimit::Calls, one_more);
            return Err(refusal(&closed, true));
        }
        // Keep this account's lock until the accounts above have accepted the call, and count the call only then (3).
        let mut warnings = match (&self.above, counts.above) {
            (Some(above), Some(counts)) => above.count(counts)?,
            _ => Vec::new(),
        };
        if counts.here {
            state.spent.calls = state.spent.calls.saturating_add(1);
            warnings.extend(self.find_reached(&mut state).warnings);
        }
        Ok(warnings)
    }

    /// Checks the limits when the warning about the time is due.
    pub(super) fn check_limits(&self) -> LimitsReached {
        self.find_reached(&mut self.state.lock())
    }

    /// Closes the account if its time is over but its timer has not fired yet.
    fn close_if_late(&self, state: &mut AccountState) -> Option<BudgetClosed> {
        let most = self.options.most.wall_time?;
        let spent = self.began.elapsed();
        (spent > most && state.closed.is_none())
            .then(|| self.close_exceeded(state, BudgetLimit::WallTime, Amount::Time(spent)))
    }

    /// Closes the account, because its timer has fired. Returns `None` if the account had already been closed.
    pub(super) fn close_out_of_time(&self) -> Option<BudgetClosed> {
        let mut state = self.state.lock();
        let spent = Amount::Time(self.began.elapsed());
        state.closed.is_none().then(|| self.close_exceeded(&mut state, BudgetLimit::WallTime, spent))
    }

    /// Returns the warnings that are due, and marks them as emitted. Closes the account if charges have exceeded a
    /// limit.
    fn find_reached(&self, state: &mut AccountState) -> LimitsReached {
        let spent = Spending { wall_time: self.began.elapsed(), ..state.spent };
        let near = self.options.near_limits(&spent).filter(|(limit, ..)| !state.warned.contains(limit));
        let near: Vec<_> = near.collect();
        state.warned.extend(near.iter().map(|(limit, ..)| *limit));
        let holder = self.holder;
        let warnings =
            near.into_iter().map(|(limit, spent, most)| BudgetWarning { limit, spent, most, holder }).collect();
        let exceeded = self.options.exceeded(&spent).filter(|_| state.closed.is_none());
        LimitsReached { warnings, closed: exceeded.map(|(limit, spent)| self.close_exceeded(state, limit, spent)) }
    }

    fn close_exceeded(&self, state: &mut AccountState, limit: BudgetLimit, spent: Amount) -> BudgetClosed {
        let most = self.options.most.of(limit).map(|most| format!(" (limit: {most})")).unwrap_or_default();
        let reason = match limit {
            BudgetLimit::Tokens => format!("the budget is exceeded: {spent} tokens{most}"),
            BudgetLimit::Cost => format!("the budget is exceeded: a cost of {spent}{most}"),
            BudgetLimit::Calls => format!("the budget is exceeded: {spent} calls{most}"),
            BudgetLimit::WallTime => format!("the budget is exceeded: the time has run out{most}"),
        };
        let closed = BudgetClosed { reason, limit: Some(limit), holder: self.holder };
        // If the account is already closed, keep the first reason (4).
        state.closed.get_or_insert(closed).clone()
    }

    /// Closes the account if an earlier call reported no usage, and the budget requires it.
    pub(super) fn close_unreported(&self) -> LimitsReached {
        let mut state = self.state.lock();
        match state.unreported.clone() {
            Some(reason) if state.closed.is_none() => self.close_unpriced(&mut state, reason, None),
            _ => LimitsReached::default(),
        }
    }

    fn close_unpriced(&self, state: &mut AccountState, reason: String, limit: Option<BudgetLimit>) -> LimitsReached {
        let closed = BudgetClosed { reason, limit, holder: self.holder };
        state.closed = Some(closed.clone());
        LimitsReached { closed: Some(closed), ..self.find_reached(state) }
    }

    pub(super) fn closed(&self) -> Option<BudgetClosed> {
        self.state.lock().closed.clone()
    }

    pub(super) fn spent(&self) -> Spending {
        Spending { wall_time: self.began.elapsed(), ..self.state.lock().spent }
    }

    /// Returns the instant at which `time` has passed since the budget was bound, or `None` if there is no limit or the
    /// clock cannot represent the instant.
    pub(super) fn deadline(&self, time: Option<Duration>) -> Option<Instant> {
        self.began.checked_add(time?)
    }
}

impl BudgetClosed {
    /// Returns the error for `charge`. The same error ends the run that holds the budget.
    pub(super) fn error(&self) -> Error {
        match self.limit {
            Some(limit) => Error::halted("budget", self.reason.clone()).detail("limit", limit.as_str()),
            None => Error::denied("budget", self.reason.clone()),
        }
    }

    /// Returns the denial of a run that would begin below the closed account.
    pub(super) fn denial(&self) -> Error {
        let error = Error::denied("budget", self.reason.clone());
        self.limit.into_iter().fold(error, |error, limit| error.detail("limit", limit.as_str()))
    }
}
