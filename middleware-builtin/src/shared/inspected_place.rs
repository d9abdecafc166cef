//! Where guards and redactions look.

use serde::Serialize;

/// A part of a run that is looked at.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum Place {
    /// The input of the work.
    Input,
    /// The output.
    Output,
    /// The message, the causes and the details of the error that the run fails with.
    Error,
    /// The context of the run: what it has when it begins, and what is set later.
    Context,
    /// The run's own events: text, JSON, and those whose type or text was declared.
    Event,
}

impl Place {
    /// All of them.
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
