//! Lists of the middlewares and layers of a run, for people and for programs (M2).

use std::fmt;
use std::sync::Arc;

use serde::{Deserialize, Serialize};

use crate::chain::erased::LayerEntry;
use crate::context::current::enter;
use crate::middleware::order::in_order;
use crate::{Middleware, Phase, RunContext, Summary};

/// The middlewares of a run, and the layers and functions that its values pass through.
///
/// Returned by [`Run::explain`](crate::Run::explain) for a run that has not begun, and by [`RunContext::explain`]
/// inside a run. The `Display` output is a list.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct Explanation {
    /// The name of the runnable.
    pub runnable: String,
    /// The middlewares, in the order in which they are bound.
    pub middlewares: Vec<MiddlewareInfo>,
    /// The layers and functions that values pass through, in this order: `map_input` functions, layers from the
    /// outermost to the innermost, `map_output` functions.
    pub chain: Vec<LayerInfo>,
    /// Warnings of layers that are also bound to a run above
    /// ([`Layer::nesting_warning`](crate::Layer::nesting_warning)). They are known only once the middlewares are bound,
    /// so [`Run::explain`](crate::Run::explain) returns no warnings.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub warnings: Vec<String>,
}

/// A middleware in an [`Explanation`].
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct MiddlewareInfo {
    /// The name of the middleware.
    pub name: String,
    /// The description of the middleware.
    pub summary: Summary,
    /// `true` if the middleware does nothing in this run, because it does not [handle](Middleware::handles) runs of this
    /// kind and name. Its layers are then not part of the chain. The `Display` output begins with `never: `.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub is_never_called: bool,
    /// The layers that the middleware adds, as [`Middleware::describe`] returns them.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub layers: Vec<LayerInfo>,
    /// The hooks that the middleware registers, as [`Middleware::describe`] returns them.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub hooks: Vec<HookInfo>,
}

/// A hook in an [`Explanation`]: what a middleware registers at a named place of a runnable's work, such as a place of an
/// agent's loop. It is a listener or a layer.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct HookInfo {
    /// The name of the hook.
    pub name: String,
    /// `true` if the hook is a guard: other hooks cannot replace it.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub is_guard: bool,
}

impl HookInfo {
    /// Creates the description of a hook, for [`Description::with_hooks`](crate::Description::with_hooks).
    pub fn new(name: impl Into<String>, is_guard: bool) -> Self {
        Self { name: name.into(), is_guard }
    }
}

/// A layer, `map_input` or `map_output` in an [`Explanation`].
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct LayerInfo {
    /// The name of the layer.
    pub name: String,
    /// The position of the layer in the chain.
    pub position: Position,
    /// The description of the layer.
    pub summary: Summary,
}

/// The position of a layer or function in the chain of a run. An [`Explanation`] lists layers and functions in the
/// order of these variants.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum Position {
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
    /// A layer that was added as [innermost](crate::StackBuilder::innermost), inside all other layers.
    InnermostGuard,
    /// A [`map_output`](crate::map_output), after all layers.
    Output,
    /// A `map_output` that is a guard.
    OutputGuard,
}

impl Position {
    pub(crate) const fn as_str(self) -> &'static str {
        match self {
            Self::Input => "input",
            Self::InputGuard => "input_guard",
            Self::Observe => "observe",
            Self::Retry => "retry",
            Self::Transform => "transform",
            Self::Guard => "guard",
            Self::InnermostGuard => "innermost_guard",
            Self::Output => "output",
            Self::OutputGuard => "output_guard",
        }
    }

    /// Returns `true` for the positions of guards.
    #[must_use]
    pub const fn is_guard(self) -> bool {
        matches!(self, Self::InputGuard | Self::Guard | Self::InnermostGuard | Self::OutputGuard)
    }
}

impl From<Phase> for Position {
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
    /// Creates the description of a layer or function, for [`Description::with_layers`](crate::Description::with_layers).
    pub fn new(name: impl Into<String>, position: impl Into<Position>, summary: impl Into<Summary>) -> Self {
        Self { name: name.into(), position: position.into(), summary: summary.into() }
    }

    pub(crate) fn of<I, O>(entry: &LayerEntry<I, O>) -> Self {
        let layer = entry.layer.description();
        let position = if entry.is_innermost { Position::InnermostGuard } else { entry.phase.into() };
        Self::new(layer.name(), position, layer.summary())
    }
}

impl MiddlewareInfo {
    fn of(middleware: &Arc<dyn Middleware>, kind: &str, runnable: &str) -> Self {
        let description = middleware.describe();
        Self {
            name: middleware.name().to_owned(),
            summary: description.summary(),
            is_never_called: !middleware.handles(kind, runnable),
            layers: description.layers(),
            hooks: description.hooks(),
        }
    }
}

impl Explanation {
    /// Describes a run of this kind and name with these middlewares. The described chain consists of the layers that
    /// [`Description::layers`](crate::Description::layers) returns, except for middlewares that do not handle the run.
    pub(crate) fn of<'a>(
        kind: &str,
        runnable: &str,
        bound: impl Iterator<Item = &'a Arc<dyn Middleware>>,
        ctx: Option<&RunContext>,
    ) -> Self {
        let given: Vec<_> = bound.collect();
        // If the orders contradict each other, list the middlewares in the order of registration: the run itself fails
        // with an error that names the cycle.
        let in_order = in_order(given.iter().copied()).unwrap_or_else(|_| given.into());
        let mut middlewares: Vec<_> = in_order.iter().map(|it| MiddlewareInfo::of(it, kind, runnable)).collect();
        // Some summaries depend on the other middlewares, so they are computed when the list is complete.
        for (at, middleware) in in_order.into_iter().enumerate() {
            if let Some(summary) = middleware.describe().summary_in_run(&middlewares, ctx) {
                middlewares[at].summary = summary;
            }
        }
        let called = middlewares.iter().filter(|middleware| !middleware.is_never_called);
        let mut chain: Vec<_> = called.flat_map(|middleware| middleware.layers.clone()).collect();
        chain.sort_by_key(|layer| layer.position);
        Self { runnable: runnable.to_owned(), middlewares, chain, warnings: Vec::new() }
    }
}

impl RunContext {
    /// Returns the middlewares that are bound to this run, including inherited middlewares, and the layers and
    /// functions of its chain. The lists are empty once the run has ended.
    #[must_use]
    pub fn explain(&self) -> Explanation {
        // If the run ends meanwhile on another thread, this call may hold the last references to its middlewares. Enter
        // the run, so that it is the current run while they are dropped (R14).
        enter(self, || {
            let existing = self.existing_chain();
            let chain = existing.map(|chain| chain.describe()).unwrap_or_default();
            let bound =
                self.shared().bindings.middlewares.as_ref().map(|bound| bound.lock().clone()).unwrap_or_default();
            let warnings = existing.map(|chain| chain.warnings(self)).unwrap_or_default();
            Explanation { chain, warnings, ..Explanation::of(self.kind(), self.name(), bound.iter(), Some(self)) }
        })
    }

    /// Returns `true` if `is_wanted` accepts the name of a middleware that is bound to this run, or inherited by it. Once
    /// the run has ended, it has no middlewares. This costs much less than [`explain`](Self::explain).
    #[must_use]
    pub fn has_middleware(&self, mut is_wanted: impl FnMut(&str) -> bool) -> bool {
        let Some(bound) = self.shared().bindings.middlewares.as_ref() else { return false };
        // Names and the function are user code: call them without the lock. Enter the run, as in `explain`.
        enter(self, || {
            let bound = bound.lock().clone();
            bound.iter().any(|middleware| is_wanted(middleware.name()))
        })
    }
}

impl fmt::Display for LayerInfo {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:<9} {}", self.position.as_str(), NameAndSummary(&self.name, &self.summary))
    }
}

impl fmt::Display for MiddlewareInfo {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(if self.is_never_called { "never: " } else { "" })?;
        NameAndSummary(&self.name, &self.summary).fmt(f)?;
        let mut names: Vec<_> = self.hooks.iter().map(|hook| hook.name.as_str()).collect();
        names.dedup();
        if names.is_empty() { Ok(()) } else { write!(f, "; hooks: {}", names.join(", ")) }
    }
}

/// Displays a line for each middleware, for each layer of the chain, and for each warning.
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

/// Displays a name and a summary, or the name alone if both are the same.
struct NameAndSummary<'a>(&'a str, &'a Summary);

impl fmt::Display for NameAndSummary<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self(name, summary) = self;
        let summary = summary.to_string();
        if summary == *name { f.write_str(name) } else { write!(f, "{name}: {summary}") }
    }
}
