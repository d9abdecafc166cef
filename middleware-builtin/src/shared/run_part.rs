//! The parts of a run that guards and redactions inspect.

use serde::Serialize;

/// A part of a run that is inspected.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum RunPart {
    /// The input.
    Input,
    /// The output.
    Output,
    /// The message, the causes and the details of the error that the run fails with.
    Error,
    /// The context of the run: the values that the run begins with, and the values that are set later.
    Context,
    /// The run's own events: text, JSON, and events whose type or text was registered.
    Event,
}

impl RunPart {
    /// All parts.
    pub const ALL: [Self; 5] = [Self::Input, Self::Output, Self::Error, Self::Context, Self::Event];

    pub(crate) const fn as_str(self) -> &'static str {
        match self {
            Self::Input => "input",
            Self::Output => "output",
            Self::Error => "error",
            Self::Context => "context",
            Self::Event => "event",
        }
    }
}
