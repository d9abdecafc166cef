//! Token usage, and the prices of tokens.

use std::borrow::Cow;
use std::collections::HashMap;

use emitree_runtime::Result;
use rust_decimal::Decimal;
use serde::{Deserialize, Serialize};

use super::BudgetError;

/// The tokens used by one call. [`charge`](super::charge) charges them to the budgets of a run.
///
/// ```
/// use emitree_middleware::budget::Usage;
///
/// let usage = Usage::of("small").input_tokens(1_200).output_tokens(80);
/// assert_eq!(usage.tokens(), 1_280);
/// ```
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct Usage {
    /// The name under which the model is priced.
    pub model: Option<Cow<'static, str>>,
    /// Number of input tokens.
    #[serde(default)]
    pub input_tokens: u64,
    /// Number of output tokens.
    #[serde(default)]
    pub output_tokens: u64,
    /// Number of input tokens that the provider read from its cache. They are included in `input_tokens`.
    #[serde(default)]
    pub cached_input_tokens: u64,
    /// The cost, if the caller knows it. It takes precedence over the prices.
    #[serde(default)]
    pub cost: Option<Decimal>,
    /// `true` if the numbers are an estimate, because the provider reported none.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub estimated: bool,
}

impl Usage {
    /// Creates an empty usage without a model.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Creates an empty usage of a model.
    #[must_use]
    pub fn of(model: impl Into<Cow<'static, str>>) -> Self {
        Self { model: Some(model.into()), ..Self::default() }
    }

    /// Sets the number of input tokens.
    #[must_use]
    pub fn input_tokens(self, input_tokens: u64) -> Self {
        Self { input_tokens, ..self }
    }

    /// Sets the number of output tokens.
    #[must_use]
    pub fn output_tokens(self, output_tokens: u64) -> Self {
        Self { output_tokens, ..self }
    }

    /// Sets the number of input tokens that the provider read from its cache. They are included in the input tokens.
    #[must_use]
    pub fn cached_input_tokens(self, cached_input_tokens: u64) -> Self {
        Self { cached_input_tokens, ..self }
    }

    /// Marks the numbers as an estimate, because the provider reported none.
    #[must_use]
    pub fn estimated(self) -> Self {
        Self { estimated: true, ..self }
    }

    /// Sets the cost, which takes precedence over the prices.
    #[must_use]
    pub fn cost(self, cost: Decimal) -> Self {
        Self { cost: Some(cost), ..self }
    }

    /// Returns the sum of input and output tokens.
    #[must_use]
    pub const fn tokens(&self) -> u64 {
        self.input_tokens.saturating_add(self.output_tokens)
    }
}

/// A source of prices: a [`PriceTable`], or a function `|usage: &Usage| -> Result<Option<Decimal>>`.
pub trait Prices: Send + Sync + 'static {
    /// Returns the cost of the usage, or `None` if its price is unknown.
    ///
    /// # Errors
    ///
    /// Returns an error if the cost cannot be determined. The error closes the budget.
    fn cost(&self, usage: &Usage) -> Result<Option<Decimal>>;
}

impl<F: Fn(&Usage) -> Result<Option<Decimal>> + Send + Sync + 'static> Prices for F {
    fn cost(&self, usage: &Usage) -> Result<Option<Decimal>> {
        self(usage)
    }
}

/// A table that maps the names of models to prices.
///
/// ```
/// use emitree_middleware::budget::{Price, PriceTable, Prices, Usage};
/// use rust_decimal::Decimal;
///
/// # fn main() -> Result<(), Box<dyn std::error::Error + Send + Sync>> {
/// // 0.15 for a million input tokens, 0.60 for a million output tokens.
/// let table = PriceTable::new().model("small", Price::per_million(Decimal::new(15, 2), Decimal::new(60, 2))?);
/// let usage = Usage::of("small").input_tokens(2_000_000).output_tokens(1_000);
/// assert_eq!(table.cost(&usage)?, Some(Decimal::new(3006, 4)));
/// assert_eq!(table.cost(&Usage::of("large"))?, None);
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Debug, Default)]
pub struct PriceTable(HashMap<Cow<'static, str>, Price>);

/// The price of a model's input and output tokens.
///
/// ```
/// use emitree_middleware::budget::{Decimal, Price, Usage};
///
/// # fn main() -> Result<(), Box<dyn std::error::Error + Send + Sync>> {
/// // A million input tokens cost 2, a million output tokens 8, and a million cached input tokens 0.5.
/// let price = Price::per_million(2.into(), 8.into())?.cached_input_per_million(Decimal::new(5, 1))?;
/// let usage = Usage::new().input_tokens(3_000_000).cached_input_tokens(2_000_000).output_tokens(1_000_000);
/// assert_eq!(price.cost(&usage), Decimal::from(11));
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Price {
    input: Decimal,
    output: Decimal,
    cached_input: Decimal,
}

impl Price {
    /// Creates a price from the cost of a million input tokens and of a million output tokens.
    ///
    /// # Errors
    ///
    /// Returns an error if one of the two prices is negative.
    pub fn per_million(input: Decimal, output: Decimal) -> Result<Self, BudgetError> {
        Ok(Self { input: not_negative(input)?, output: not_negative(output)?, cached_input: input })
    }

    /// Sets the cost of a million input tokens that the provider read from its cache. Default: the price of input
    /// tokens.
    ///
    /// # Errors
    ///
    /// Returns an error if the price is negative.
    pub fn cached_input_per_million(self, cached_input: Decimal) -> Result<Self, BudgetError> {
        Ok(Self { cached_input: not_negative(cached_input)?, ..self })
    }

    /// Returns the cost of the usage. A cost that is too large for a [`Decimal`] becomes [`Decimal::MAX`], which
    /// exceeds every smaller limit. The fields `model` and `cost` of the usage are ignored.
    #[must_use]
    pub fn cost(&self, usage: &Usage) -> Decimal {
        self.checked_cost(usage).unwrap_or(Decimal::MAX)
    }

    fn checked_cost(&self, usage: &Usage) -> Option<Decimal> {
        // Some servers report more cached tokens than input tokens.
        let cached = usage.cached_input_tokens.min(usage.input_tokens);
        let input = self.input.checked_mul((usage.input_tokens - cached).into())?;
        let cached = self.cached_input.checked_mul(cached.into())?;
        let output = self.output.checked_mul(usage.output_tokens.into())?;
        input.checked_add(cached)?.checked_add(output)?.checked_div(Decimal::from(1_000_000))
    }
}

fn not_negative(price: Decimal) -> Result<Decimal, BudgetError> {
    if price < Decimal::ZERO { Err(BudgetError::NegativePrice(price)) } else { Ok(price) }
}

impl PriceTable {
    /// Creates an empty table.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Sets the price of a model, and replaces an earlier price.
    #[must_use]
    pub fn model(mut self, name: impl Into<Cow<'static, str>>, price: Price) -> Self {
        self.0.insert(name.into(), price);
        self
    }
}

impl Prices for PriceTable {
    fn cost(&self, usage: &Usage) -> Result<Option<Decimal>> {
        let price = usage.model.as_ref().and_then(|model| self.0.get(model));
        Ok(price.map(|price| price.cost(usage)))
    }
}
