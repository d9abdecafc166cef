//! A limit on the spending of a run and all runs below it: [`Budget`].

use std::borrow::Cow;
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use emitree_emitter::Namespace;
use emitree_runtime::{AnyRun, Description, Middleware, Phase, Result, RunContext, Stack};
use uuid::Uuid;

use crate::shared::built_in::{built_in, debug_as};
use crate::shared::own_events::OwnEvents;
use crate::shared::runs::{FilterSpec, Runs};
use crate::shared::selected_below::SelectedBelow;
use account::Account;
use layer::{BudgetLayer, CallCounter};
use options::{BudgetOptions, MaxSpending};

/// The type of costs and prices, from the crate `rust_decimal`.
pub use rust_decimal::Decimal;

pub use charge::{Remaining, charge, expects_usage, remaining, spent};
pub use events::{Amount, BudgetClosed, BudgetLimit, BudgetWarning, Charged, StartDenied};
pub use options::{Spending, UnknownPrice};
pub use usage::{Price, PriceTable, Prices, Usage};

mod account;
mod charge;
mod events;
mod layer;
mod options;
mod usage;

/// A middleware that limits the tokens, money, calls and time that a run and all runs below it spend.
///
/// Each run to which the budget is bound gets its own account. A run draws from the nearest account and from every
/// account above it, so no budget allows more than the budgets above it. The middleware accepts runs of any type and
/// reads no inputs or outputs. Report token usage with [`charge`].
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
/// assert_eq!(error.explain().lines().next(), Some("halted by budget: the budget is exceeded: 12000 tokens (limit: 10000)"));
/// # Ok(())
/// # }
/// ```
///
/// # Options
///
/// | | by default |
/// |---|---|
/// | [`tokens`](BudgetBuilder::tokens), [`cost`](BudgetBuilder::cost), [`calls`](BudgetBuilder::calls), [`wall_time`](BudgetBuilder::wall_time): limits | no limit |
/// | [`runs`](BudgetBuilder::runs), [`of_kind`](BudgetBuilder::of_kind): runs that are counted as calls | all runs below |
/// | [`prices`](BudgetBuilder::prices): prices of usage | none known |
/// | [`unknown_prices`](BudgetBuilder::unknown_prices): effect of an unknown price while cost is limited | [`UnknownPrice::Deny`] |
/// | [`require_reported`](BudgetBuilder::require_reported): after a call that reported no usage, deny the next one | charge an estimate |
/// | [`warn_at`](BudgetBuilder::warn_at): fraction of a limit at which a warning is emitted | 0.8 |
///
/// # When a limit is exceeded
///
/// Spending exactly the limit is allowed. Exceeding the limit closes the account for good. The limits differ in when
/// they are checked:
///
/// - *Usage* has already happened, so it is recorded in the nearest account and in all accounts above. If one of them
///   is then closed, `charge` returns an error.
/// - *A call* over the limit is denied before its work begins, and no account counts it.
/// - *Time* is measured by tokio's clock from the moment the budget is bound, across all attempts.
///
/// When an account closes, the work of the run that holds it is dropped, and all runs below end too. The run that holds
/// the account ends [halted](emitree_runtime::Error::halted) by `budget`, even if its work catches the error, returns the
/// denial of a call, or returns a value in the same poll. Runs that would begin below a closed account are denied.
///
/// An account also closes if a charge cannot be priced. The run that holds it is then denied instead of halted. A
/// charge cannot be priced if the price function fails or panics, if the cost is negative, or if the price is unknown
/// while cost is limited and [`UnknownPrice::Deny`] is set. A sum too large for its type stays at the type's largest
/// value, which exceeds every smaller limit.
///
/// # Its own events
///
/// The budget emits these events in the namespace `middleware.budget`. Listeners of the run that charges or is about
/// to begin also receive them. If a timer causes an event, listeners of the run that holds the budget receive it
/// instead.
///
/// - `charged`, a [`Charged`]: once for each charge, with the cost in the nearest account.
/// - `warning`, a [`BudgetWarning`]: at most once for each limit of an account.
/// - `closed`, a [`BudgetClosed`]: when an account closes.
/// - `denied`, a [`StartDenied`]: when a run would begin below a closed account.
#[derive(Clone)]
pub struct Budget(Arc<BudgetOptions>);

/// An invalid option of a [`Budget`] or a [`Price`].
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum BudgetError {
    /// The cost limit is negative.
    #[error("the cost limit `{0}` is negative: use 0 or more")]
    NegativeCost(Decimal),
    /// A price is negative.
    #[error("the price `{0}` is negative: use 0 or more")]
    NegativePrice(Decimal),
    /// The fraction at which to warn is not between 0 and 1.
    #[error("cannot warn at `{0}` of a limit: use a fraction from 0 to 1, such as 0.8")]
    WarnAt(f64),
}

impl Budget {
    /// Creates a builder of a budget. A budget without options limits nothing.
    pub fn builder() -> BudgetBuilder {
        BudgetBuilder {
            most: MaxSpending::default(),
            warn_at: 0.8,
            runs: FilterSpec::default(),
            prices: None,
            unknown_prices: UnknownPrice::default(),
            requires_reported: false,
        }
    }
}

/// A builder of a [`Budget`]. Created by [`Budget::builder`].
#[must_use = "nothing is limited until it is built"]
pub struct BudgetBuilder {
    most: MaxSpending,
    warn_at: f64,
    runs: FilterSpec,
    prices: Option<Arc<dyn Prices>>,
    unknown_prices: UnknownPrice,
    requires_reported: bool,
}

impl BudgetBuilder {
    /// Limits the sum of input and output tokens.
    pub fn tokens(mut self, most: u64) -> Self {
        self.most.tokens = Some(most);
        self
    }

    /// Limits the sum of all costs, in the currency of the prices.
    pub fn cost(mut self, most: Decimal) -> Self {
        self.most.cost = Some(most);
        self
    }

    /// Limits the number of runs below the run that the budget is bound to. By default each of these runs counts. Use
    /// [`runs`](Self::runs) or [`of_kind`](Self::of_kind) to count only some runs.
    pub fn calls(mut self, most: u64) -> Self {
        self.most.calls = Some(most);
        self
    }

    /// Counts these runs as calls. Calling this method again adds runs. Default: all runs below.
    pub fn runs(mut self, runs: Runs) -> Self {
        self.runs.add(runs);
        self
    }

    /// Counts runs of this kind as calls: short for `runs(Runs::of_kind(kind))`.
    pub fn of_kind(self, kind: impl Into<Cow<'static, str>>) -> Self {
        self.runs(Runs::of_kind(kind))
    }

    /// Limits the time since the budget was bound, across all attempts.
    pub fn wall_time(mut self, most: Duration) -> Self {
        self.most.wall_time = Some(most);
        self
    }

    /// Sets the prices: a [`PriceTable`] or a function. Each account uses the prices of its own budget, not the prices
    /// of budgets above.
    pub fn prices(mut self, prices: impl Prices) -> Self {
        self.prices = Some(Arc::new(prices));
        self
    }

    /// Sets the effect of an unknown price while cost is limited. Default: [`UnknownPrice::Deny`].
    pub fn unknown_prices(self, unknown_prices: UnknownPrice) -> Self {
        Self { unknown_prices, ..self }
    }

    /// Denies calls whose cost would not be known: after a call that reported no usage, the next call is denied, and the
    /// budget closes. By default, an estimate is charged for a call that reported no usage. Has no effect without a
    /// limit on tokens or cost.
    pub fn require_reported(self) -> Self {
        Self { requires_reported: true, ..self }
    }

    /// Sets the fraction of a limit, from 0 to 1, at which `warning` is emitted. Default: 0.8.
    pub fn warn_at(self, part: f64) -> Self {
        Self { warn_at: part, ..self }
    }

    /// Builds the [`Budget`].
    ///
    /// # Errors
    ///
    /// Returns an error if the cost limit is negative, or if the fraction at which to warn is not between 0 and 1.
    pub fn build(self) -> Result<Budget, BudgetError> {
        let Self { most, warn_at, runs, prices, unknown_prices, requires_reported } = self;
        if let Some(negative) = most.cost.filter(|cost| *cost < Decimal::ZERO) {
            return Err(BudgetError::NegativeCost(negative));
        }
        let part = Decimal::try_from(warn_at).ok().filter(|part| (Decimal::ZERO..=Decimal::ONE).contains(part));
        let warn_from = most.part(part.ok_or(BudgetError::WarnAt(warn_at))?);
        let own_events = OwnEvents::new(Namespace::new("middleware.budget"));
        let calls_below = most.calls.and(runs.selection()).map(|runs| SelectedBelow::new("budget", runs.clone()));
        let options =
            BudgetOptions { most, warn_from, runs, calls_below, prices, unknown_prices, requires_reported, own_events };
        Ok(Budget(Arc::new(options)))
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
        // The counter is bound to every run below, but counts only the runs whose nearest account is this one.
        ctx.bind_nested(CallCounter(Arc::clone(&account)));
        if let Some(calls) = &self.0.calls_below {
            calls.bind(ctx)?;
        }
        stack(account).bind(ctx)
    }

    fn name(&self) -> &str {
        "budget"
    }

    fn describe(&self) -> Description<'_> {
        Description::of(self).with_layers(|| stack(Account::new(&self.0, None, Uuid::nil())).layers())
    }
}

fn stack(account: Arc<Account>) -> Stack<AnyRun> {
    // The observe phase is outermost, so the time limit spans all attempts.
    Stack::builder().layer_in(Phase::Observe, BudgetLayer(account)).build()
}

debug_as!(Budget, |this| this.0);
