//! Selections of runs: [`Runs`].

use std::any::type_name;
use std::borrow::Cow;
use std::fmt;
use std::sync::Arc;

use emitree_emitter::{Context, Creator, Emitter, Trace};
use emitree_runtime::{AsInstance, Error, Result, RunContext};

use crate::shared::panic::caught;
use crate::shared::spelling::is_near;

/// A selection of runs. A middleware checks a run against its selection once: when the middleware is bound, or at the
/// run's `start`.
///
/// ```
/// use emitree_middleware::Runs;
///
/// let deletes = Runs::of_kind("Tool").and(Runs::matching(|run| run.namespace().ends_with("delete")));
/// let quiet = Runs::all().except(Runs::named("think").or(Runs::of_type::<String>()));
/// # drop(quiet);
/// assert_eq!(format!("{deletes:?}"), "of Tool and by a function");
/// ```
///
/// # In builders
///
/// `.runs(...)` selects the runs that a middleware handles; `.of_kind("Tool")` is short for
/// `.runs(Runs::of_kind("Tool"))`. Further calls add runs. Without a call, the middleware handles all runs that it is
/// bound to. To bind a middleware that lacks these methods to selected runs, use [`only`](Self::only).
#[derive(Clone)]
pub struct Runs(Selection);

type RunPredicate = dyn Fn(&dyn RunInfo) -> bool + Send + Sync;

#[derive(Clone)]
enum Selection {
    All,
    Kind(Cow<'static, str>),
    Named(Cow<'static, str>),
    Type { name: &'static str, is_thing: fn(&Creator) -> bool },
    Instance(Emitter),
    Matching(Arc<RunPredicate>),
    Combined(Arc<(Runs, Combinator, Runs)>),
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Combinator {
    And,
    Or,
    Except,
}

/// The properties of a run that a selection ([`Runs`]) depends on. The run may be live or recorded.
pub trait RunInfo {
    /// Returns the kind of the run's instance, such as `Tool`.
    fn kind(&self) -> &str;

    /// Returns the name of the run's instance, such as `read_file`.
    fn name(&self) -> &str;

    /// Returns the namespace of the run's events, such as `tool.read_file`.
    fn namespace(&self) -> &str;

    /// Returns the context of the run.
    fn context(&self) -> Context;

    /// Returns the ids of the run, if they are known.
    fn trace(&self) -> Option<Trace>;

    /// Returns `true` if the runnable, its input or its output has the type with this [name](std::any::type_name). For
    /// a recorded run, only the types of the input and the output are known.
    fn has_type(&self, name: &str) -> bool;

    /// Returns the run itself; `None` for a recorded run.
    fn run(&self) -> Option<RunContext>;
}

impl Runs {
    /// Selects all runs.
    #[must_use]
    pub const fn all() -> Self {
        Self(Selection::All)
    }

    /// Selects runs of a kind, such as `Tool`.
    #[must_use]
    pub fn of_kind(kind: impl Into<Cow<'static, str>>) -> Self {
        Self(Selection::Kind(kind.into()))
    }

    /// Selects runs of instances with this name, such as `read_file`.
    #[must_use]
    pub fn named(name: impl Into<Cow<'static, str>>) -> Self {
        Self(Selection::Named(name.into()))
    }

    /// Selects runs whose runnable, input or output is a `T`, and runs whose [`Creator`](emitree_emitter::Creator::of)
    /// shares a `T`.
    ///
    /// Recorded runs are matched by the types of input and output only.
    #[must_use]
    pub fn of_type<T: Send + Sync + 'static>() -> Self {
        Self(Selection::Type { name: type_name::<T>(), is_thing: |creator| creator.thing::<T>().is_some() })
    }

    /// Selects runs of one instance. This selection contains no recorded runs.
    #[must_use]
    pub fn of_instance(instance: &(impl AsInstance + ?Sized)) -> Self {
        Self(Selection::Instance(instance.instance_emitter().clone()))
    }

    /// Selects runs for which a predicate returns `true`.
    #[must_use]
    pub fn matching(predicate: impl Fn(&dyn RunInfo) -> bool + Send + Sync + 'static) -> Self {
        Self(Selection::Matching(Arc::new(predicate)))
    }

    /// Selects runs that are in both selections.
    #[must_use]
    pub fn and(self, other: Self) -> Self {
        self.combine(Combinator::And, other)
    }

    /// Selects runs that are in either selection.
    #[must_use]
    pub fn or(self, other: Self) -> Self {
        self.combine(Combinator::Or, other)
    }

    /// Selects runs that are in this selection and not in the other.
    #[must_use]
    pub fn except(self, other: Self) -> Self {
        self.combine(Combinator::Except, other)
    }

    fn combine(self, combine: Combinator, other: Self) -> Self {
        Self(Selection::Combined(Arc::new((self, combine, other))))
    }

    /// Returns `true` if the selection contains a run.
    #[must_use]
    pub fn has(&self, run: &dyn RunInfo) -> bool {
        match &self.0 {
            Selection::All => true,
            Selection::Kind(kind) => run.kind() == kind,
            Selection::Named(name) => run.name() == name,
            Selection::Type { name, is_thing } => {
                run.has_type(name) || run.run().is_some_and(|run| run.creator().is_some_and(is_thing))
            }
            Selection::Instance(instance) => run.run().is_some_and(|run| run.instance_emitter() == instance),
            Selection::Matching(predicate) => predicate(run),
            Selection::Combined(two) => match &**two {
                (some, Combinator::And, others) => some.has(run) && others.has(run),
                (some, Combinator::Or, others) => some.has(run) || others.has(run),
                (some, Combinator::Except, others) => some.has(run) && !others.has(run),
            },
        }
    }

    /// Returns `false` if the kind and the name show that the selection does not contain a run. A part of the selection
    /// by type, by instance or by a predicate may contain the run or not.
    ///
    /// A middleware with a selection returns this value from [`handles`](emitree_runtime::Middleware::handles).
    ///
    /// ```
    /// use emitree_middleware::Runs;
    ///
    /// let runs = Runs::of_kind("Tool").and(Runs::matching(|run| run.context().get("user").is_some()));
    /// assert!(runs.may_have("Tool", "delete"));
    /// assert!(!runs.may_have("ChatModel", "small"));
    /// ```
    #[must_use]
    pub fn may_have(&self, kind: &str, name: &str) -> bool {
        self.decide(kind, name) != Some(false)
    }

    /// Decides by kind and name alone. Returns `None` if they do not decide.
    fn decide(&self, kind: &str, name: &str) -> Option<bool> {
        match &self.0 {
            Selection::All => Some(true),
            Selection::Kind(selected) => Some(kind == selected),
            Selection::Named(selected) => Some(name == selected),
            Selection::Type { .. } | Selection::Instance(_) | Selection::Matching(_) => None,
            Selection::Combined(two) => {
                let (some, combine, others) = &**two;
                let some = some.decide(kind, name);
                let others = others.decide(kind, name);
                let not = |answer: Option<bool>| answer.map(|is_in| !is_in);
                match combine {
                    Combinator::And => both(some, others),
                    // A run is in one of two selections unless it is in neither.
                    Combinator::Or => not(both(not(some), not(others))),
                    Combinator::Except => both(some, not(others)),
                }
            }
        }
    }

    /// Returns a kind or name in the selection that was probably meant to be this kind or name: both differ only in
    /// upper and lower case, in `-` and `_`, or in two letters. In short names fewer letters may differ: one letter if
    /// they have less than six, and none if they have less than four. Swapped neighbours count as one letter.
    ///
    /// A middleware with a selection passes this method to
    /// [`with_near_miss`](emitree_runtime::Description::with_near_miss).
    ///
    /// ```
    /// use emitree_middleware::Runs;
    ///
    /// assert_eq!(Runs::named("delte").near_miss("Tool", "delete").as_deref(), Some("delte"));
    /// assert_eq!(Runs::named("delete").near_miss("Tool", "delete"), None);
    /// assert_eq!(Runs::named("delete").near_miss("Tool", "read"), None);
    /// ```
    #[must_use]
    pub fn near_miss(&self, kind: &str, name: &str) -> Option<String> {
        match &self.0 {
            Selection::Kind(selected) => is_near(selected, kind).then(|| selected.to_string()),
            Selection::Named(selected) => is_near(selected, name).then(|| selected.to_string()),
            Selection::Combined(two) => {
                let (some, combine, others) = &**two;
                let others = Some(others).filter(|_| *combine != Combinator::Except);
                some.near_miss(kind, name).or_else(|| others?.near_miss(kind, name))
            }
            Selection::All | Selection::Type { .. } | Selection::Instance(_) | Selection::Matching(_) => None,
        }
    }

    pub(crate) fn guards(&self, run: &RunContext, by: &str) -> Result<bool> {
        caught(|| self.has(run))
            .map_err(|panic| Error::denied(by, format!("the predicate that selects runs panicked: {panic}")))
    }

    /// Writes a selection inside a larger selection, in parentheses where the order of operations needs them.
    fn part(&self, of: Combinator, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.0 {
            Selection::Combined(two) if two.1 != of || of == Combinator::Except => write!(f, "({self:?})"),
            _ => write!(f, "{self:?}"),
        }
    }
}

/// Returns `Some(true)` if both answers are yes, and `Some(false)` if one of them is no, even if the other is unknown.
fn both(one: Option<bool>, other: Option<bool>) -> Option<bool> {
    match (one, other) {
        (Some(false), _) | (_, Some(false)) => Some(false),
        (Some(true), Some(true)) => Some(true),
        _ => None,
    }
}

/// Writes a selection like `of Tool and named read_file`.
impl fmt::Debug for Runs {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.0 {
            Selection::All => f.write_str("all"),
            Selection::Kind(kind) => write!(f, "of {kind}"),
            Selection::Named(name) => write!(f, "named {name}"),
            Selection::Type { name, .. } => write!(f, "of type {name}"),
            Selection::Instance(instance) => write!(f, "of instance {}", instance.namespace()),
            Selection::Matching(_) => f.write_str("by a function"),
            Selection::Combined(two) => {
                let (some, combine, others) = &**two;
                some.part(*combine, f)?;
                f.write_str(match combine {
                    Combinator::And => " and ",
                    Combinator::Or => " or ",
                    Combinator::Except => " except ",
                })?;
                others.part(*combine, f)
            }
        }
    }
}

impl RunInfo for RunContext {
    fn kind(&self) -> &str {
        Self::kind(self)
    }

    fn name(&self) -> &str {
        Self::name(self)
    }

    fn namespace(&self) -> &str {
        self.instance_emitter().namespace()
    }

    fn context(&self) -> Context {
        self.context()
    }

    fn trace(&self) -> Option<Trace> {
        Some(self.trace())
    }

    fn has_type(&self, name: &str) -> bool {
        let types = self.types();
        [types.runnable, types.input, types.output].contains(&name)
    }

    fn run(&self) -> Option<RunContext> {
        Some(self.clone())
    }
}

/// The runs that a builder's [`runs`](Runs#in-builders) selected; all runs if `runs` was not called.
#[derive(Clone, Default)]
pub(crate) struct FilterSpec(Option<Runs>);

impl FilterSpec {
    pub(crate) fn add(&mut self, runs: Runs) {
        self.0 = Some(match self.0.take() {
            Some(known) => known.or(runs),
            None => runs,
        });
    }

    pub(crate) fn has(&self, run: &dyn RunInfo) -> bool {
        self.0.as_ref().is_none_or(|runs| runs.has(run))
    }

    /// Returns `false` if the kind and the name show that the selection does not contain a run.
    pub(crate) fn may_have(&self, kind: &str, name: &str) -> bool {
        self.0.as_ref().is_none_or(|runs| runs.may_have(kind, name))
    }

    /// Returns a kind or name in the selection that was probably meant to be this kind or name.
    pub(crate) fn near_miss(&self, kind: &str, name: &str) -> Option<String> {
        self.0.as_ref()?.near_miss(kind, name)
    }

    /// Returns the selection, or `None` for all runs.
    pub(crate) const fn selection(&self) -> Option<&Runs> {
        self.0.as_ref()
    }

    /// Returns `true` if a guard applies to a run; returns a denial if the predicate panics (M5).
    #[inline]
    pub(crate) fn guards(&self, run: &RunContext, by: &str) -> Result<bool> {
        self.0.as_ref().map_or(Ok(true), |runs| runs.guards(run, by))
    }

    /// Returns the words followed by the selection, or an empty text for all runs.
    pub(crate) fn after(&self, words: &str) -> String {
        self.0.as_ref().map_or_else(String::new, |runs| format!("{words}{runs:?}"))
    }
}
