//! Which runs a middleware is for: [`Runs`].

use std::any::type_name;
use std::borrow::Cow;
use std::fmt;
use std::sync::Arc;

use emitree_emitter::{Context, Creator, Emitter, Trace};
use emitree_runtime::{AsInstance, Error, Result, RunContext};

use crate::shared::panic::caught;

/// Some runs, by what they are runs of. A middleware that is for some runs only asks once for each run: when it is bound,
/// or at its `start`.
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
/// `.runs(...)` says which runs it is about, and `.of_kind("Tool")` is short for `.runs(Runs::of_kind("Tool"))`. What is
/// said again adds runs; where nothing is said, it is about all that it is bound to. What has no such option is bound by
/// [`only`](Self::only).
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

/// A run that may be one of [some](Runs), and what is known of it: that it begins, or that it was recorded.
pub trait RunInfo {
    /// The kind of what it is a run of: `Tool`.
    fn kind(&self) -> &str;

    /// What that is called: `read_file`.
    fn name(&self) -> &str;

    /// The namespace of its events: `tool.read_file`.
    fn namespace(&self) -> &str;

    /// Its context.
    fn context(&self) -> Context;

    /// Its ids.
    fn trace(&self) -> Option<Trace>;

    /// Whether what is run, its input or its output is of the type of that [name](std::any::type_name). A recording keeps
    /// input and output only.
    fn has_type(&self, name: &str) -> bool;

    /// The run itself. A recording has none.
    fn run(&self) -> Option<RunContext>;
}

impl Runs {
    /// All runs.
    #[must_use]
    pub const fn all() -> Self {
        Self(Selection::All)
    }

    /// Runs of a kind: `Tool`.
    #[must_use]
    pub fn of_kind(kind: impl Into<Cow<'static, str>>) -> Self {
        Self(Selection::Kind(kind.into()))
    }

    /// Runs of what is called so: `read_file`.
    #[must_use]
    pub fn named(name: impl Into<Cow<'static, str>>) -> Self {
        Self(Selection::Named(name.into()))
    }

    /// Runs of a `T`, runs whose input or output is a `T`, and those behind which stands a `T`: the thing that their
    /// [`Creator`](emitree_emitter::Creator::of) shares.
    ///
    /// A recording keeps the types of input and output only.
    #[must_use]
    pub fn of_type<T: Send + Sync + 'static>() -> Self {
        Self(Selection::Type { name: type_name::<T>(), is_thing: |creator| creator.thing::<T>().is_some() })
    }

    /// Runs of that very instance. A recording knows none.
    #[must_use]
    pub fn of_instance(instance: &(impl AsInstance + ?Sized)) -> Self {
        Self(Selection::Instance(instance.instance_emitter().clone()))
    }

    /// Runs of which a predicate says so.
    #[must_use]
    pub fn matching(predicate: impl Fn(&dyn RunInfo) -> bool + Send + Sync + 'static) -> Self {
        Self(Selection::Matching(Arc::new(predicate)))
    }

    /// Those of them that are also among others.
    #[must_use]
    pub fn and(self, other: Self) -> Self {
        self.combine(Combinator::And, other)
    }

    /// Them and others.
    #[must_use]
    pub fn or(self, other: Self) -> Self {
        self.combine(Combinator::Or, other)
    }

    /// Them without others.
    #[must_use]
    pub fn except(self, other: Self) -> Self {
        self.combine(Combinator::Except, other)
    }

    fn combine(self, combine: Combinator, other: Self) -> Self {
        Self(Selection::Combined(Arc::new((self, combine, other))))
    }

    /// Whether a run is one of them.
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

    pub(crate) fn guards(&self, run: &RunContext, by: &str) -> Result<bool> {
        caught(|| self.has(run))
            .map_err(|panic| Error::denied(by, format!("what says which runs it is about panicked: {panic}")))
    }

    /// As a part of a larger whole.
    fn part(&self, of: Combinator, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.0 {
            Selection::Combined(two) if two.1 != of || of == Combinator::Except => write!(f, "({self:?})"),
            _ => write!(f, "{self:?}"),
        }
    }
}

/// Such as `of Tool and named read_file`.
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

/// What a builder was told of [runs](Runs#in-builders): nothing yet, or some of them.
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

    /// The same for a guard: a predicate that panics denies (M5).
    #[inline]
    pub(crate) fn guards(&self, run: &RunContext, by: &str) -> Result<bool> {
        self.0.as_ref().map_or(Ok(true), |runs| runs.guards(run, by))
    }

    /// These, after some words; nothing for all of them.
    pub(crate) fn after(&self, words: &str) -> String {
        self.0.as_ref().map_or_else(String::new, |runs| format!("{words}{runs:?}"))
    }
}
