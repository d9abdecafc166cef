//! What was used, and what is charged for it.

use std::borrow::Cow;
use std::collections::HashMap;

use emitree_runtime::Result;
use rust_decimal::Decimal;
use serde::{Deserialize, Serialize};

use super::BudgetError;

/// What was used, as it is given to [`charge`](super::charge).
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
    /// The model, by the name that it is priced under.
    pub model: Option<Cow<'static, str>>,
    /// Tokens that went in.
    #[serde(default)]
    pub input_tokens: u64,
    /// Tokens that came out.
    #[serde(default)]
    pub output_tokens: u64,
    /// What it cost, where that is known: then no price is asked for.
    #[serde(default)]
    pub cost: Option<Decimal>,
}

impl Usage {
    /// Nothing of no model.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Nothing yet of a model.
    #[must_use]
    pub fn of(model: impl Into<Cow<'static, str>>) -> Self {
        Self { model: Some(model.into()), ..Self::default() }
    }

    /// Tokens that went in.
    #[must_use]
    pub fn input_tokens(self, input_tokens: u64) -> Self {
        Self { input_tokens, ..self }
    }

    /// Tokens that came out.
    #[must_use]
    pub fn output_tokens(self, output_tokens: u64) -> Self {
        Self { output_tokens, ..self }
    }

    /// What it cost, where that is known.
    #[must_use]
    pub fn cost(self, cost: Decimal) -> Self {
        Self { cost: Some(cost), ..self }
    }

    /// All tokens.
    #[must_use]
    pub const fn tokens(&self) -> u64 {
        self.input_tokens.saturating_add(self.output_tokens)
    }
}

/// What usage costs: a [`PriceTable`], or a function `|usage: &Usage| -> Result<Option<Decimal>>`.
pub trait Prices: Send + Sync + 'static {
    /// What it costs; none if that is not known.
    ///
    /// # Errors
    ///
    /// If that cannot be found out: then the budget is closed (M5).
    fn cost(&self, usage: &Usage) -> Result<Option<Decimal>>;
}

impl<F: Fn(&Usage) -> Result<Option<Decimal>> + Send + Sync + 'static> Prices for F {
    fn cost(&self, usage: &Usage) -> Result<Option<Decimal>> {
        self(usage)
    }
}

/// Prices of models, by their names.
///
/// ```
/// use emitree_middleware::budget::{Price, PriceTable, Prices, Usage};
/// use rust_decimal::Decimal;
///
/// # fn main() -> Result<(), Box<dyn std::error::Error + Send + Sync>> {
/// // 0.15 for a million tokens that go in, 0.60 for a million that come out.
/// let table = PriceTable::new().model("small", Price::per_million(Decimal::new(15, 2), Decimal::new(60, 2))?);
/// let usage = Usage::of("small").input_tokens(2_000_000).output_tokens(1_000);
/// assert_eq!(table.cost(&usage)?, Some(Decimal::new(3006, 4)));
/// assert_eq!(table.cost(&Usage::of("large"))?, None);
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Debug, Default)]
pub struct PriceTable(HashMap<Cow<'static, str>, Price>);

/// What tokens of a model cost.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Price {
    input: Decimal,
    output: Decimal,
}

impl Price {
    /// What a million tokens cost that go in, and a million that come out.
    ///
    /// # Errors
    ///
    /// If one of them is negative.
    pub fn per_million(input: Decimal, output: Decimal) -> Result<Self, BudgetError> {
        let negative = [input, output].into_iter().find(|price| *price < Decimal::ZERO);
        negative.map_or(Ok(Self { input, output }), |price| Err(BudgetError::NegativePrice(price)))
    }

    /// None if it is more than can be counted.
    fn of(self, usage: &Usage) -> Option<Decimal> {
        let input = self.input.checked_mul(usage.input_tokens.into())?;
        let output = self.output.checked_mul(usage.output_tokens.into())?;
        input.checked_add(output)?.checked_div(Decimal::from(1_000_000))
    }
}

impl PriceTable {
    /// No prices.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// The price of a model; another of that name goes.
    #[must_use]
    pub fn model(mut self, name: impl Into<Cow<'static, str>>, price: Price) -> Self {
        self.0.insert(name.into(), price);
        self
    }
}

impl Prices for PriceTable {
    fn cost(&self, usage: &Usage) -> Result<Option<Decimal>> {
        let price = usage.model.as_ref().and_then(|model| self.0.get(model));
        Ok(price.map(|price| price.of(usage).unwrap_or(Decimal::MAX)))
    }
}
