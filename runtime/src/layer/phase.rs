//! Where a layer stands among the others (M2).

use serde::{Deserialize, Serialize};

/// Where a layer stands among the others, outermost first; within a phase, what was registered first is outside.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Phase {
    /// Sees what the caller sees.
    Observe,
    /// Calls what is inside of it again.
    Retry,
    /// Changes what goes in and what comes out; where layers stand that were registered without a phase.
    #[default]
    Transform,
    /// Sees what the work gets and gives, and may say no.
    Guard,
}

impl Phase {
    /// The name as it stands in JSON and in the span of a layer.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Observe => "observe",
            Self::Retry => "retry",
            Self::Transform => "transform",
            Self::Guard => "guard",
        }
    }
}
