//! What one run may spend, with all below it.
//!
//! 1. An account stands in the context of the run that holds it, and knows the nearest one above. It does not know its
//!    run, which would keep itself.
//! 2. Usage has happened: it is recorded in the account and in all above, whatever comes of it. Whoever records sees
//!    what is exceeded then, and closes it under the same lock.
//! 3. A call has not happened yet: it is counted in all, or in none. Locks are taken from below upwards, and held until
//!    the last has said yes.
//! 4. What is closed stays closed, and lets nothing begin.

use std::sync::Arc;
use std::time::Duration;

use emitree_runtime::{Error, RunContext};
use parking_lot::Mutex;
use rust_decimal::Decimal;
use tokio::time::Instant;
use uuid::Uuid;

use super::events::{Amount, BudgetClosed, BudgetLimit, BudgetWarning};
use super::options::{BudgetOptions, Spending};
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

/// The account that is nearest to a run, in the run's context.
struct NearestAccount(Arc<Account>);

#[derive(Default)]
struct AccountState {
    spent: Spending,
    warned: Vec<BudgetLimit>,
    closed: Option<BudgetClosed>,
}

/// What came of a look into the books.
#[derive(Default)]
pub(super) struct LimitsReached {
    pub(super) warnings: Vec<BudgetWarning>,
    /// It was closed by this.
    pub(super) closed: Option<BudgetClosed>,
}

/// A run may not begin.
pub(super) struct RefusingAccount {
    pub(super) account: Arc<Account>,
    pub(super) closed: BudgetClosed,
    /// It was closed by this run.
    pub(super) is_new: bool,
}

/// Whether a run counts in an account, and in those above.
struct CountPath<'a> {
    here: bool,
    above: Option<&'a Self>,
}

impl Account {
    /// Opens one for a run.
    pub(super) fn open(options: &Arc<BudgetOptions>, ctx: &RunContext) -> Arc<Self> {
        let account = Self::new(options, Self::of(ctx), ctx.run_id());
        ctx.set_extension(NearestAccount(Arc::clone(&account)));
        account
    }

    pub(super) fn new(options: &Arc<BudgetOptions>, above: Option<Arc<Self>>, holder: Uuid) -> Arc<Self> {
        let (options, stop, state) = (Arc::clone(options), Arc::default(), Mutex::default());
        Arc::new(Self { options, above, stop, holder, began: Instant::now(), state })
    }

    pub(super) fn of(ctx: &RunContext) -> Option<Arc<Self>> {
        ctx.extension::<NearestAccount>().map(|nearest| Arc::clone(&nearest.0))
    }

    /// This one, and those above.
    pub(super) fn upwards(self: &Arc<Self>) -> impl Iterator<Item = &Arc<Self>> {
        std::iter::successors(Some(self), |account| account.above.as_ref())
    }

    pub(super) const fn holder(&self) -> Uuid {
        self.holder
    }

    /// Records what was used. The cost is what the account's own prices say, or why that is not known.
    pub(super) fn record(&self, usage: &Usage, cost: Result<Decimal, String>) -> LimitsReached {
        let mut state = self.state.lock();
        state.spent.tokens = state.spent.tokens.saturating_add(usage.tokens());
        match cost {
            Ok(cost) => state.spent.cost = state.spent.cost.checked_add(cost).unwrap_or(Decimal::MAX),
            Err(reason) if state.closed.is_none() => return self.close_unpriced(&mut state, reason, None),
            Err(_) => {}
        }
        self.find_reached(&mut state)
    }

    /// Counts a run that is about to begin, here and above, or nowhere.
    ///
    /// # Errors
    ///
    /// If what says whether it counts panicked.
    pub(super) fn count_start(
        self: &Arc<Self>,
        run: &RunContext,
    ) -> emitree_runtime::Result<Result<Vec<BudgetWarning>, RefusingAccount>> {
        self.with_count_path(run, &mut |counts| self.count(counts))
    }

    /// Asks here and above whether a run counts: with no lock held, for that may be user code.
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
        if let Some(closed) = self.close_if_late(&mut state) {
            return Err(refusal(&closed, true));
        }
        if let Some(closed) = &state.closed {
            return Err(refusal(closed, false));
        }
        if counts.here && self.options.most.calls == Some(state.spent.calls) {
            let one_more = Amount::Count(state.spent.calls.saturating_add(1));
            let closed = self.close_exceeded(&mut state, BudgetLimit::Calls, one_more);
            return Err(refusal(&closed, true));
        }
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

    /// Looks again, for time has passed.
    pub(super) fn check_limits(&self) -> LimitsReached {
        self.find_reached(&mut self.state.lock())
    }

    /// Time is limited by a timer; whoever comes before the timer has run must not begin.
    fn close_if_late(&self, state: &mut AccountState) -> Option<BudgetClosed> {
        let most = self.options.most.wall_time?;
        let spent = self.began.elapsed();
        (spent > most && state.closed.is_none())
            .then(|| self.close_exceeded(state, BudgetLimit::WallTime, Amount::Time(spent)))
    }

    /// The timer has run: the work was not over when the time was.
    pub(super) fn close_out_of_time(&self) -> Option<BudgetClosed> {
        let mut state = self.state.lock();
        let spent = Amount::Time(self.began.elapsed());
        state.closed.is_none().then(|| self.close_exceeded(&mut state, BudgetLimit::WallTime, spent))
    }

    /// Finds what has come near a limit, or has exceeded one.
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
        let most = self.options.most.of(limit).map(|most| format!(" of {most}")).unwrap_or_default();
        let reason = match limit {
            BudgetLimit::Tokens => format!("the budget is exceeded: {spent} tokens{most}"),
            BudgetLimit::Cost => format!("the budget is exceeded: a cost of {spent}{most}"),
            BudgetLimit::Calls => format!("the budget is exceeded: {spent} calls{most}"),
            BudgetLimit::WallTime => format!("the budget is exceeded: a time{most}"),
        };
        let closed = BudgetClosed { reason, limit: Some(limit), holder: self.holder };
        state.closed.get_or_insert(closed).clone()
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

    /// The moment after such a time; none that no clock shows.
    pub(super) fn deadline(&self, time: Option<Duration>) -> Option<Instant> {
        self.began.checked_add(time?)
    }
}

impl BudgetClosed {
    /// What the run ends with that holds the budget, and what whoever has charged too much gets.
    pub(super) fn error(&self) -> Error {
        match self.limit {
            Some(limit) => Error::halted("budget", self.reason.clone()).context("limit", limit.as_str()),
            None => Error::denied("budget", self.reason.clone()),
        }
    }

    /// What a run ends with that may not begin.
    pub(super) fn denial(&self) -> Error {
        let error = Error::denied("budget", self.reason.clone());
        self.limit.into_iter().fold(error, |error, limit| error.context("limit", limit.as_str()))
    }
}
