//! The order of layers (M2).

use serde::{Deserialize, Serialize};

/// The position of a layer in a chain; the variants are listed from the outermost to the innermost. Within a phase, the
/// layer that was registered first is the outermost, except for layers that are registered as innermost: a time-out per
/// attempt is inside all guards, so it does not measure their waits.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Phase {
    /// Layers that look at values. They see the input before any other layer changes it, and the output after all other
    /// layers have changed it.
    Observe,
    /// Layers that may call the layers inside again.
    Retry,
    /// Layers that change values, and layers that are registered without a phase.
    #[default]
    Transform,
    /// Layers that may deny the call. They see the input that the work receives, and the output that the work returns.
    /// They do not see the output of a layer outside that answers without calling `next`, such as a cache, unless that
    /// layer passes it to [`Next::check_output`](crate::Next::check_output). A model's call in an agent does so for its
    /// guards.
    Guard,
}

impl Phase {
    /// Returns the name of the phase in JSON and in the span of a layer.
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
