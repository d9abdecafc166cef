//! Which runs are answered.

use std::fmt;
use std::sync::Arc;

use emitree_emitter::{EventMeta, Matcher};
use emitree_runtime::AnyStart;
use serde_json::Value;

type Predicate = dyn Fn(&Value) -> bool + Send + Sync;

/// What a run has to be for it to be answered.
#[derive(Clone)]
pub(super) enum Condition {
    Matches(Matcher),
    Input(Arc<Predicate>),
}

impl Condition {
    /// Whether a run that starts meets it.
    pub(super) fn is_met(&self, start: &dyn AnyStart, meta: &EventMeta<'_>) -> bool {
        match self {
            Self::Matches(matcher) => matcher.matches(meta),
            Self::Input(predicate) => predicate(&start.input_json()),
        }
    }
}

impl fmt::Debug for Condition {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Matches(matcher) => write!(f, "when {matcher:?}"),
            Self::Input(_) => f.write_str("by input"),
        }
    }
}
