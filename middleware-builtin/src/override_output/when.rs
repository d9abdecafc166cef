//! Which runs are answered.

use std::fmt;
use std::sync::Arc;

use emitree_emitter::{EventMeta, Matcher};
use emitree_runtime::{AnyStart, RunContext};
use serde_json::Value;

type Predicate = dyn Fn(&Value) -> bool + Send + Sync;

/// What a run has to be for it to be answered.
#[derive(Clone)]
pub(super) enum Condition {
    Kind(String),
    Named(String),
    Matches(Matcher),
    Input(Arc<Predicate>),
}

impl Condition {
    /// Whether a run that has not started may meet it.
    pub(super) fn may_be_met(&self, ctx: &RunContext) -> bool {
        let creator = ctx.emitter().creator();
        match self {
            Self::Kind(kind) => creator.is_some_and(|creator| creator.kind() == kind),
            Self::Named(name) => creator.is_some_and(|creator| creator.name() == name),
            Self::Matches(_) | Self::Input(_) => true,
        }
    }

    /// Whether a run that starts meets it, if it might.
    pub(super) fn is_met(&self, start: &dyn AnyStart, meta: &EventMeta<'_>) -> bool {
        match self {
            Self::Kind(_) | Self::Named(_) => true,
            Self::Matches(matcher) => matcher.matches(meta),
            Self::Input(predicate) => predicate(&start.input_json()),
        }
    }
}

impl fmt::Debug for Condition {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Kind(kind) => write!(f, "of kind {kind}"),
            Self::Named(name) => write!(f, "named {name}"),
            Self::Matches(matcher) => write!(f, "when {matcher:?}"),
            Self::Input(_) => f.write_str("by input"),
        }
    }
}
