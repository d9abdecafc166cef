//! What a run and all below it may spend: [`Budget`].

use std::borrow::Cow;
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use emitree_runtime::{AnyRun, LayerInfo, Middleware, Phase, Result, RunContext, Stack};
use rust_decimal::Decimal;
use uuid::Uuid;

use crate::shared::built_in::{built_in, debug_as};
use crate::shared::own_events::OwnEvents;
use crate::shared::runs::{FilterSpec, Runs};
use account::Account;
use layer::{BudgetLayer, CallCounter};
use options::{BudgetOptions, MaxSpending};

pub use charge::{Remaining, charge, remaining, spent};
pub use events::{Amount, BudgetClosed, BudgetLimit, BudgetWarning, Charged, StartDenied};
pub use options::{Spending, UnknownPrice};
pub use usage::{Price, PriceTable, Prices, Usage};

mod account;
mod charge;
mod events;
mod layer;
mod options;
mod usage;

/// What a run and all below it may spend: tokens, money, runs and time.
///
/// Each run that it is bound to has an account of its own, in its context. Runs below draw from the nearest account, and
/// with it from all above: a budget that is bound further down is capped by what is left above. It works on runs of any
/// type and looks at no value: whoever uses tokens says so with [`charge`].
///
/// ```
/// use emitree_middleware::Budget;
/// use emitree_middleware::budget::{Price, PriceTable, Usage, charge, remaining};
/// use emitree_runtime::{RunContext, Runnable, runnable_fn};
/// use rust_decimal::Decimal;
///
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), Box<dyn std::error::Error + Send + Sync>> {
/// let prices = PriceTable::new().model("small", Price::per_million(Decimal::new(15, 2), Decimal::new(60, 2))?);
/// let budget = Budget::builder().tokens(10_000).cost(Decimal::new(1, 2)).prices(prices).build()?;
///
/// let chat = runnable_fn("chat", |tokens: u64, ctx: RunContext| async move {
///     charge(&ctx, Usage::of("small").input_tokens(tokens)).await?;
///     Ok(remaining(&ctx).and_then(|left| left.tokens))
/// })
/// .middleware(budget);
///
/// assert_eq!(chat.run(4_000).await?, Some(6_000));
/// let error = chat.run(12_000).await.unwrap_err();
/// assert_eq!(error.explain().lines().next(), Some("halted by budget: the budget is exceeded: 12000 tokens of 10000"));
/// # Ok(())
/// # }
/// ```
///
/// # Options
///
/// | | by default |
/// |---|---|
/// | [`tokens`](BudgetBuilder::tokens), [`cost`](BudgetBuilder::cost), [`calls`](BudgetBuilder::calls), [`wall_time`](BudgetBuilder::wall_time): how much may be spent | not limited |
/// | [`runs`](BudgetBuilder::runs), [`of_kind`](BudgetBuilder::of_kind): which runs below count as calls | all |
/// | [`prices`](BudgetBuilder::prices): what usage costs | not known |
/// | [`unknown_prices`](BudgetBuilder::unknown_prices): what happens where that is not known, and money is limited | [`UnknownPrice::Deny`] |
/// | [`warn_at`](BudgetBuilder::warn_at): from which part of a limit on it warns | 0.8 |
///
/// # When a limit is exceeded
///
/// To reach a limit is allowed. What exceeds it closes the account for good:
///
/// - *Usage* has happened by then, so it is recorded in the nearest account and in all above. `charge` gives the error.
/// - *A call* that would be one too many is denied before anything of it begins, and is counted nowhere.
/// - *Time* counts from the binding, by tokio's clock, over all attempts; what is under way when it is over is stopped.
///
/// Then the work of the run that holds the account is dropped, and all below it ends with it: the run ends
/// [halted](emitree_runtime::Error::halted) by `budget`, whatever its work makes of the error; also if its work ends well
/// with the charge that was too much. Runs that would begin below a closed account are denied. What cannot be counted
/// closes it likewise, as a denial: a price that is not known, a price function that fails or panics, a negative cost
/// (M5). Sums that are too large for their type stay at its largest value, which exceeds every other limit.
///
/// # Its own events
///
/// Under `middleware.budget`, on the run that charges or begins: `charged`, a [`Charged`], once for each charge, by the
/// nearest account; `warning`, a [`BudgetWarning`], once for each limit of an account; `closed`, a [`BudgetClosed`], when an account
/// is closed; `denied`, a [`StartDenied`], at the start of a run below one that is closed.
#[derive(Clone)]
pub struct Budget(Arc<BudgetOptions>);

/// Why a budget cannot be.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum BudgetError {
    /// Less than nothing cannot be spent.
    #[error("a budget of `{0}` is negative: it may cost 0 or more")]
    NegativeCost(Decimal),
    /// Nobody is paid for using tokens.
    #[error("a price of `{0}` is negative: it is 0 or more")]
    NegativePrice(Decimal),
    /// No part of a limit.
    #[error("it cannot warn at `{0}` of a limit: say a part from 0 to 1, such as 0.8")]
    WarnAt(f64),
}

impl Budget {
    /// Limits nothing yet.
    pub fn builder() -> BudgetBuilder {
        BudgetBuilder {
            most: MaxSpending::default(),
            warn_at: 0.8,
            runs: FilterSpec::default(),
            prices: None,
            unknown_prices: UnknownPrice::default(),
        }
    }
}

/// Options of a [`Budget`]. Made by [`Budget::builder`].
#[must_use = "nothing is limited until it is built"]
pub struct BudgetBuilder {
    most: MaxSpending,
    warn_at: f64,
    runs: FilterSpec,
    prices: Option<Arc<dyn Prices>>,
    unknown_prices: UnknownPrice,
}

impl BudgetBuilder {
    /// So many tokens, in and out together.
    pub fn tokens(mut self, most: u64) -> Self {
        self.most.tokens = Some(most);
        self
    }

    /// So much money, in the currency of the prices.
    pub fn cost(mut self, most: Decimal) -> Self {
        self.most.cost = Some(most);
        self
    }

    /// So many runs below, all unless [some](Self::runs) are said.
    pub fn calls(mut self, most: u64) -> Self {
        self.most.calls = Some(most);
        self
    }

    /// Counts these runs as calls, and others for which this is said; by default all that are below.
    pub fn runs(mut self, runs: Runs) -> Self {
        self.runs.add(runs);
        self
    }

    /// Counts runs of that kind as calls: short for `runs(Runs::of_kind(kind))`.
    pub fn of_kind(self, kind: impl Into<Cow<'static, str>>) -> Self {
        self.runs(Runs::of_kind(kind))
    }

    /// So much time, over all attempts.
    pub fn wall_time(mut self, most: Duration) -> Self {
        self.most.wall_time = Some(most);
        self
    }

    /// What usage costs: a [`PriceTable`], or a function. An account asks its own prices, not those above.
    pub fn prices(mut self, prices: impl Prices) -> Self {
        self.prices = Some(Arc::new(prices));
        self
    }

    /// What happens where a price is not known and money is limited: by default [`UnknownPrice::Deny`].
    pub fn unknown_prices(self, unknown_prices: UnknownPrice) -> Self {
        Self { unknown_prices, ..self }
    }

    /// From which part of a limit on it warns, from 0 to 1.
    pub fn warn_at(self, part: f64) -> Self {
        Self { warn_at: part, ..self }
    }

    /// Builds it.
    ///
    /// # Errors
    ///
    /// If less than nothing may be spent, or it is to warn at what is no part of a limit.
    pub fn build(self) -> Result<Budget, BudgetError> {
        let Self { most, warn_at, runs, prices, unknown_prices } = self;
        if let Some(negative) = most.cost.filter(|cost| *cost < Decimal::ZERO) {
            return Err(BudgetError::NegativeCost(negative));
        }
        let part = Decimal::try_from(warn_at).ok().filter(|part| (Decimal::ZERO..=Decimal::ONE).contains(part));
        let warn_from = most.part(part.ok_or(BudgetError::WarnAt(warn_at))?);
        let own_events = OwnEvents::new("middleware.budget");
        Ok(Budget(Arc::new(BudgetOptions { most, warn_from, runs, prices, unknown_prices, own_events })))
    }
}

impl fmt::Debug for BudgetBuilder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("BudgetBuilder").field("most", &self.most).finish_non_exhaustive()
    }
}

built_in!(Budget, |this| this.0.own_events);

impl Middleware for Budget {
    fn bind(&self, ctx: &RunContext) -> Result<()> {
        let account = Account::open(&self.0, ctx);
        ctx.bind_nested(CallCounter(Arc::clone(&account)));
        stack(account).bind(ctx)
    }

    fn name(&self) -> &str {
        "budget"
    }

    fn layers(&self) -> Vec<LayerInfo> {
        stack(Account::new(&self.0, None, Uuid::nil())).layers()
    }
}

fn stack(account: Arc<Account>) -> Stack<AnyRun> {
    Stack::builder().layer_in(Phase::Observe, BudgetLayer(account)).build()
}

debug_as!(Budget, |this| this.0);
