//! Which runs are shown.

use std::any::type_name;
use std::fmt;
use std::sync::Arc;

use super::Origin;

/// Some runs, to be [included](super::TrajectoryBuilder::included) or [excluded](super::TrajectoryBuilder::excluded):
/// asked once for each run, when it starts.
///
/// ```
/// use emitree_middleware::trajectory::{Runs, Trajectory};
///
/// // Tools, except this one:
/// let trajectory = Trajectory::builder().included(Runs::of_kind("Tool")).excluded(Runs::named("think")).build()?;
/// # Ok::<(), emitree_middleware::trajectory::TrajectoryError>(())
/// ```
#[derive(Clone)]
pub struct Runs {
    says: Arc<dyn Fn(&Origin<'_>) -> bool + Send + Sync>,
    label: String,
}

impl Runs {
    /// Runs of a kind: `Tool`.
    #[must_use]
    pub fn of_kind(kind: impl Into<String>) -> Self {
        let kind = kind.into();
        Self::new(format!("of_kind({kind:?})"), move |origin| origin.kind() == kind)
    }

    /// Runs of what is called so: `read_file`.
    #[must_use]
    pub fn named(name: impl Into<String>) -> Self {
        let name = name.into();
        Self::new(format!("named({name:?})"), move |origin| origin.name() == name)
    }

    /// Runs of a `T`, runs whose input or output is a `T`, and those behind which stands a `T`: the thing that their
    /// [`Creator`](emitree_emitter::Creator::of) shares.
    ///
    /// A recording keeps the types of input and output only.
    #[must_use]
    pub fn of_type<T: Send + Sync + 'static>() -> Self {
        let label = format!("of_type::<{}>()", type_name::<T>());
        Self::new(label, |origin| origin.is_of::<T>() || is_input_or_output(origin, type_name::<T>()))
    }

    /// Runs of which a predicate says so; it sees their `start`.
    #[must_use]
    pub fn that(predicate: impl Fn(&Origin<'_>) -> bool + Send + Sync + 'static) -> Self {
        Self::new("that(..)".to_owned(), predicate)
    }

    fn new(label: String, says: impl Fn(&Origin<'_>) -> bool + Send + Sync + 'static) -> Self {
        Self { says: Arc::new(says), label }
    }

    pub(super) fn has(&self, origin: &Origin<'_>) -> bool {
        (self.says)(origin)
    }
}

/// A lifecycle payload is a `Start<I, O>`; a type's name has commas only in brackets of its own.
fn is_input_or_output(origin: &Origin<'_>, name: &str) -> bool {
    let types = origin.payload_type().split_once('<').and_then(|(_, types)| types.strip_suffix('>'));
    types.is_some_and(|types| {
        types.strip_prefix(name).is_some_and(|rest| rest.starts_with(", "))
            || types.strip_suffix(name).is_some_and(|rest| rest.ends_with(", "))
    })
}

impl fmt::Debug for Runs {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Runs::{}", self.label)
    }
}
