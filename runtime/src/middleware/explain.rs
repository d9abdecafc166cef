//! What a run goes through, for people and for machines (M2).

use std::fmt;
use std::sync::Arc;

use serde::{Deserialize, Serialize};

use crate::chain::erased::LayerEntry;
use crate::context::current::enter;
use crate::middleware::order::in_order;
use crate::{Middleware, Phase, RunContext, Summary};

/// What a run goes through: what is bound to it, and what its values pass, outermost first.
///
/// Given by [`Run::explain`](crate::Run::explain) for a run that has not begun, and by [`RunContext::explain`] inside.
/// It prints as a list.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct Explanation {
    /// What the runnable is called.
    pub runnable: String,
    /// What is bound to the run, in order.
    pub middlewares: Vec<MiddlewareInfo>,
    /// What its values pass, from the caller to the work; output middlewares come last.
    pub chain: Vec<LayerInfo>,
    /// What may be a mistake: layers that are bound to a run above as well, and say that it matters
    /// ([`Layer::nesting_warning`](crate::Layer::nesting_warning)). They are known once the run is bound, so only
    /// [`RunContext::explain`] finds them.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub warnings: Vec<String>,
}

/// A middleware, as it is listed.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct MiddlewareInfo {
    /// What it is called.
    pub name: String,
    /// What it says of itself.
    pub summary: Summary,
    /// What it adds to the chain, as far as it tells.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub layers: Vec<LayerInfo>,
}

/// What values of a run pass, as it is listed.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct LayerInfo {
    /// What it is called.
    pub name: String,
    /// Where it stands.
    pub place: Place,
    /// What it says of itself.
    pub summary: Summary,
}

/// Where something stands in the chain of a run, outermost first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum Place {
    /// A [`map_input`](crate::map_input), before all layers.
    Input,
    /// A `map_input` that is a guard.
    InputGuard,
    /// A layer of [`Phase::Observe`].
    Observe,
    /// A layer of [`Phase::Retry`].
    Retry,
    /// A layer of [`Phase::Transform`].
    Transform,
    /// A layer of [`Phase::Guard`].
    Guard,
    /// A [`map_output`](crate::map_output), after all layers.
    Output,
    /// A `map_output` that is a guard.
    OutputGuard,
}

impl Place {
    pub(crate) const fn as_str(self) -> &'static str {
        match self {
            Self::Input => "input",
            Self::InputGuard => "input_guard",
            Self::Observe => "observe",
            Self::Retry => "retry",
            Self::Transform => "transform",
            Self::Guard => "guard",
            Self::Output => "output",
            Self::OutputGuard => "output_guard",
        }
    }
}

impl From<Phase> for Place {
    fn from(phase: Phase) -> Self {
        match phase {
            Phase::Observe => Self::Observe,
            Phase::Retry => Self::Retry,
            Phase::Transform => Self::Transform,
            Phase::Guard => Self::Guard,
        }
    }
}

impl LayerInfo {
    /// Tells of a layer.
    pub fn new(name: impl Into<String>, place: impl Into<Place>, summary: impl Into<Summary>) -> Self {
        Self { name: name.into(), place: place.into(), summary: summary.into() }
    }

    pub(crate) fn of<I, O>(entry: &LayerEntry<I, O>) -> Self {
        let layer = entry.layer.description();
        Self::new(layer.name(), entry.phase, layer.summary())
    }
}

impl MiddlewareInfo {
    fn of(middleware: &Arc<dyn Middleware>) -> Self {
        let (name, summary) = (middleware.name().to_owned(), middleware.debug_summary());
        Self { name, summary, layers: middleware.layers() }
    }
}

impl Explanation {
    /// What a run will go through to which these are bound.
    pub(crate) fn of<'a>(runnable: &str, bound: impl Iterator<Item = &'a Arc<dyn Middleware>>) -> Self {
        let given: Vec<_> = bound.collect();
        // What cannot be put in order is shown as it was given: the run will say why.
        let in_order = in_order(given.iter().copied()).unwrap_or_else(|_| given.into());
        let middlewares: Vec<_> = in_order.into_iter().map(MiddlewareInfo::of).collect();
        let mut chain: Vec<_> = middlewares.iter().flat_map(|middleware| middleware.layers.clone()).collect();
        chain.sort_by_key(|layer| layer.place);
        Self { runnable: runnable.to_owned(), middlewares, chain, warnings: Vec::new() }
    }
}

impl RunContext {
    /// What this run goes through: all that is bound to it, inherited or its own. Nothing once the run has ended.
    #[must_use]
    pub fn explain(&self) -> Explanation {
        // Inside of it: if the run ends meanwhile, on another thread, what was bound to it is dropped here (R14).
        enter(self, || {
            let existing = self.bindings().existing();
            let chain = existing.map(|chain| chain.describe()).unwrap_or_default();
            let warnings = existing.map(|chain| chain.warnings(self)).unwrap_or_default();
            Explanation { chain, warnings, ..Explanation::of(self.name(), self.bindings().bound().iter()) }
        })
    }
}

impl fmt::Display for LayerInfo {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:<9} {}", self.place.as_str(), NameAndSummary(&self.name, &self.summary))
    }
}

impl fmt::Display for MiddlewareInfo {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        NameAndSummary(&self.name, &self.summary).fmt(f)
    }
}

/// A line for each middleware, and for each station of the chain.
impl fmt::Display for Explanation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}\n  bound:", self.runnable)?;
        self.middlewares.iter().try_for_each(|middleware| write!(f, "\n    {middleware}"))?;
        write!(f, "\n  passes:")?;
        self.chain.iter().try_for_each(|layer| write!(f, "\n    {layer}"))?;
        if self.warnings.is_empty() {
            return Ok(());
        }
        write!(f, "\n  warns:")?;
        self.warnings.iter().try_for_each(|warning| write!(f, "\n    {warning}"))
    }
}

/// A name, and a summary that says more than it.
struct NameAndSummary<'a>(&'a str, &'a Summary);

impl fmt::Display for NameAndSummary<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self(name, summary) = self;
        let summary = summary.to_string();
        if summary == *name { f.write_str(name) } else { write!(f, "{name}: {summary}") }
    }
}
