//! The options of [`Metrics`].

use std::fmt;
use std::sync::Arc;

use emitree_runtime::RunContext;
use metrics::SharedString;

use super::Metrics;
use super::names::MetricNames;
use super::series::call_user_code;

const PREFIX: &str = "emitree";
const MAX_COMBINATIONS: usize = 1_000;
/// The reserved label names: `kind`, `name` and `outcome`, which this middleware sets, and `le` and `quantile`, which
/// recorders add to histograms.
const TAKEN: [&str; 5] = ["kind", "name", "outcome", "le", "quantile"];

/// Invalid options of [`Metrics`].
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum MetricsError {
    /// No metric name can begin with this prefix.
    #[error(
        "`{prefix}` is not a valid prefix of metric names: use letters, digits, `_` and `:`, and begin with a non-digit"
    )]
    Prefix {
        /// The given prefix.
        prefix: String,
    },
    /// No label can have this name.
    #[error("`{label}` is not a valid label name: use letters, digits and `_`, and do not begin with a digit or `__`")]
    Label {
        /// The given name.
        label: String,
    },
    /// A label with this name exists already, or the name is reserved.
    #[error("the label `{label}` exists already or is reserved: choose another name")]
    Taken {
        /// The given name.
        label: String,
    },
    /// The maximum number of label combinations is 0: all runs would be counted as `other`.
    #[error("with at most 0 combinations of labels, all runs would be counted as `other`: allow 1 or more")]
    NoCombinations,
}

/// Builds [`Metrics`]. Returned by [`Metrics::builder`].
///
/// ```
/// use emitree_middleware::Metrics;
///
/// let metrics = Metrics::builder()
///     .prefix("shop")
///     .names()
///     .label("tenant", |run| run.get("tenant").map_or_else(String::new, |tenant| tenant.to_string()))
///     .max_combinations(200)
///     .build()?;
/// assert_eq!(format!("{metrics:?}"), "shop_*: kind, name, tenant, outcome; at most 200 combinations");
/// # Ok::<(), emitree_middleware::metrics::MetricsError>(())
/// ```
#[derive(Debug, Default)]
#[must_use = "options do nothing until they are built"]
pub struct MetricsBuilder {
    prefix: Option<String>,
    max_combinations: Option<usize>,
    by_name: bool,
    own: Vec<OwnLabel>,
}

impl MetricsBuilder {
    /// Sets the prefix of all metric names, without the underscore after it. Default: `emitree`.
    pub fn prefix(mut self, prefix: impl Into<String>) -> Self {
        self.prefix = Some(prefix.into());
        self
    }

    /// Adds the label `name`, whose value is the name of the instance. Use this label only if instances have few
    /// different names: each name adds a series.
    pub const fn names(mut self) -> Self {
        self.by_name = true;
        self
    }

    /// Adds a label. The function is called when the middleware is bound to a run, and returns the value. Use a label
    /// only if it has few values: each value adds a series. If the function panics, the value is `unknown`.
    pub fn label<V>(mut self, name: impl Into<String>, value: impl Fn(&RunContext) -> V + Send + Sync + 'static) -> Self
    where
        V: Into<String>,
    {
        self.own.push(OwnLabel { name: name.into().into(), value: Arc::new(move |run| value(run).into()) });
        self
    }

    /// Sets the maximum number of label combinations. Beyond the maximum, runs with new combinations are counted with
    /// the value `other` for every label except `outcome`. Default: 1,000.
    pub const fn max_combinations(mut self, most: usize) -> Self {
        self.max_combinations = Some(most);
        self
    }

    /// Builds the [`Metrics`].
    ///
    /// # Errors
    ///
    /// Returns an error if the prefix or the name of a label is invalid, if a label is added twice, if a label is
    /// reserved, or if the maximum number of combinations is 0.
    pub fn build(self) -> Result<Metrics, MetricsError> {
        let prefix = self.prefix.unwrap_or_else(|| PREFIX.to_owned());
        if !is_name(&prefix, &['_', ':']) {
            return Err(MetricsError::Prefix { prefix });
        }
        check_labels(&self.own)?;
        let max_combinations = self.max_combinations.unwrap_or(MAX_COMBINATIONS);
        if max_combinations == 0 {
            return Err(MetricsError::NoCombinations);
        }
        let options =
            MetricsOptions { by_name: self.by_name, own: self.own, max_combinations, ..MetricsOptions::of(prefix) };
        Ok(Metrics::with(options))
    }
}

/// Returns `true` if a text is a valid name in Prometheus, the strictest of the common recorders. `beside` lists the
/// characters that are allowed besides letters and digits.
fn is_name(text: &str, beside: &[char]) -> bool {
    let takes = |c: char| c.is_ascii_alphanumeric() || beside.contains(&c);
    text.starts_with(|c: char| takes(c) && !c.is_ascii_digit()) && text.chars().all(takes)
}

fn check_labels(labels: &[OwnLabel]) -> Result<(), MetricsError> {
    labels.iter().enumerate().try_for_each(|(i, OwnLabel { name, .. })| {
        let label = (**name).to_owned();
        if !is_name(name, &['_']) || name.starts_with("__") {
            return Err(MetricsError::Label { label });
        }
        let is_taken = TAKEN.contains(&&**name) || labels[..i].iter().any(|other| other.name == *name);
        if is_taken { Err(MetricsError::Taken { label }) } else { Ok(()) }
    })
}

/// A label that the user has added.
struct OwnLabel {
    name: Arc<str>,
    value: Arc<dyn Fn(&RunContext) -> String + Send + Sync>,
}

impl fmt::Debug for OwnLabel {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.name)
    }
}

/// The options of [`Metrics`], validated and with defaults filled in.
pub(super) struct MetricsOptions {
    prefix: String,
    pub(super) names: Arc<MetricNames>,
    by_name: bool,
    own: Vec<OwnLabel>,
    pub(super) max_combinations: usize,
}

impl MetricsOptions {
    fn of(prefix: String) -> Self {
        let names = Arc::new(MetricNames::with_prefix(&prefix));
        Self { prefix, names, by_name: false, own: Vec::new(), max_combinations: MAX_COMBINATIONS }
    }

    /// Returns the names of the labels other than `kind` and `outcome`.
    pub(super) fn label_names(&self) -> impl Iterator<Item = SharedString> {
        let own = self.own.iter().map(|label| SharedString::from(Arc::clone(&label.name)));
        self.by_name.then(|| SharedString::const_str("name")).into_iter().chain(own)
    }

    /// Returns the values of the labels other than `kind` and `outcome` for a run. Without such labels, nothing is
    /// allocated.
    pub(super) fn values(&self, name: &str, run: &RunContext) -> Vec<String> {
        let value = |label: &OwnLabel| call_user_code(|| (label.value)(run)).unwrap_or_else(|| "unknown".to_owned());
        self.by_name.then(|| name.to_owned()).into_iter().chain(self.own.iter().map(value)).collect()
    }
}

impl Default for MetricsOptions {
    fn default() -> Self {
        Self::of(PREFIX.to_owned())
    }
}

impl fmt::Debug for MetricsOptions {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let labels: Vec<_> = self.label_names().collect();
        let labels: String = labels.iter().map(|label| format!("{label}, ")).collect();
        write!(f, "{}_*: kind, {labels}outcome; at most {} combinations", self.prefix, self.max_combinations)
    }
}
