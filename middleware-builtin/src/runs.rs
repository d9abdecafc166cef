//! Which runs a middleware is for: [`Runs`].

use std::any::type_name;
use std::fmt;
use std::sync::Arc;

use emitree_runtime::RunContext;

/// Some runs, by what they are runs of: a middleware that is for some runs only asks once for each run, when it is
/// bound.
///
/// ```
/// use emitree_middleware::Runs;
///
/// let deletes = Runs::of_kind("Tool").and(Runs::that(|run| run.emitter().namespace().ends_with("delete")));
/// assert_eq!(format!("{deletes:?}"), r#"of_kind("Tool").and(that(..))"#);
/// ```
#[derive(Clone)]
pub struct Runs {
    says: Arc<dyn Fn(&RunContext) -> bool + Send + Sync>,
    label: String,
}

impl Runs {
    /// Runs of a kind: `Tool`.
    #[must_use]
    pub fn of_kind(kind: impl Into<String>) -> Self {
        let kind = kind.into();
        Self::new(format!("of_kind({kind:?})"), move |run| kind_and_name(run).0 == kind)
    }

    /// Runs of what is called so: `read_file`.
    #[must_use]
    pub fn named(name: impl Into<String>) -> Self {
        let name = name.into();
        Self::new(format!("named({name:?})"), move |run| kind_and_name(run).1 == name)
    }

    /// Runs behind which stands a `T`: the thing that their [`Creator`](emitree_emitter::Creator::of) shares.
    #[must_use]
    pub fn of_type<T: Send + Sync + 'static>() -> Self {
        let is_thing = |run: &RunContext| run.emitter().creator().is_some_and(|creator| creator.thing::<T>().is_some());
        Self::new(format!("of_type::<{}>()", type_name::<T>()), is_thing)
    }

    /// Runs of which a predicate says so; it sees them before their `start`.
    #[must_use]
    pub fn that(predicate: impl Fn(&RunContext) -> bool + Send + Sync + 'static) -> Self {
        Self::new("that(..)".to_owned(), predicate)
    }

    /// Those of them that are also among others.
    #[must_use]
    pub fn and(self, other: Self) -> Self {
        let label = format!("{self:?}.and({other:?})");
        Self::new(label, move |run| self.has(run) && other.has(run))
    }

    fn new(label: String, says: impl Fn(&RunContext) -> bool + Send + Sync + 'static) -> Self {
        Self { says: Arc::new(says), label }
    }

    pub(crate) fn has(&self, run: &RunContext) -> bool {
        (self.says)(run)
    }
}

impl fmt::Debug for Runs {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.label)
    }
}

/// The kind and the name of what a run is of.
pub(crate) fn kind_and_name(run: &RunContext) -> (&str, &str) {
    let creator = run.emitter().creator();
    // A run whose runnable is not called as its emitter's creator is has a creator of its own.
    creator.map_or_else(|| ("Run", run.emitter().namespace()), |creator| (creator.kind(), creator.name()))
}
