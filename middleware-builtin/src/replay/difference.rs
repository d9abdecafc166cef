//! Differences between a replayed run and the journal.

use std::fmt;

use emitree_runtime::Error;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::record::Entry;
use crate::shared::difference::quoted;

/// A difference between a replayed run and the journal.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "what", rename_all = "snake_case")]
#[non_exhaustive]
pub enum Difference {
    /// A run that the journal does not contain.
    Unexpected {
        /// The parent of the run, as `Kind[name]`.
        within: String,
        /// The run that was started.
        came: Call,
        /// The next unmatched entry with the same parent: its id and the expected run.
        expected: Option<(u64, Call)>,
    },
    /// A run that the journal contains with another input.
    OtherInput {
        /// The parent of the run, as `Kind[name]`.
        within: String,
        /// The run that was started.
        came: Call,
        /// The id of the journal's entry.
        entry: u64,
        /// The expected run.
        expected: Call,
        /// The first place where the inputs differ, as a JSON path.
        place: String,
    },
    /// A run of the journal that was not started.
    Missing {
        /// The run in which the missing run should have been started, as `Kind[name]`.
        within: String,
        /// The id of the journal's entry.
        entry: u64,
        /// The expected run.
        expected: Call,
    },
    /// An additional attempt of a run: the journal has no answer for this attempt.
    OneMoreAttempt {
        /// The id of the journal's entry.
        entry: u64,
        /// The run that is attempted.
        came: Call,
        /// The number of attempts in the journal.
        attempts: usize,
    },
    /// The recording ended while this run was under way.
    Ends {
        /// The id of the journal's entry, which has no answer for this attempt.
        entry: u64,
        /// The run that was started.
        came: Call,
    },
}

/// A run and its input.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct Call {
    /// The kind of the instance.
    pub kind: String,
    /// The name of the instance.
    pub name: String,
    /// The input.
    pub input: Value,
}

impl Call {
    pub(super) const fn new(kind: String, name: String, input: Value) -> Self {
        Self { kind, name, input }
    }

    pub(super) fn of(entry: &Entry) -> Self {
        Self::new(entry.kind.clone().into_owned(), entry.name.clone().into_owned(), entry.input.clone())
    }
}

impl Difference {
    pub(super) fn to_error(&self) -> Error {
        let data = serde_json::to_value(self).unwrap_or_default();
        Error::halted("replay", self.to_string()).detail("difference", data)
    }
}

impl fmt::Display for Difference {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Unexpected { within, came, expected: None } => {
                write!(f, "{within} started {came}, but the journal contains no further run there")
            }
            Self::Unexpected { within, came, expected: Some((entry, expected)) } => {
                write!(f, "{within} started {came}, but the journal's next entry there, {entry}, is {expected}")
            }
            Self::OtherInput { within, came, entry, expected, place } => {
                let input = quoted(&came.input);
                write!(
                    f,
                    "in {within}, the journal's entry {entry} is {expected}, but the run has the input {input}: "
                )?;
                write!(f, "the inputs differ at `{place}`")
            }
            Self::Missing { within, entry, expected } => {
                write!(f, "{within} ended without {expected}, the journal's entry {entry}")
            }
            Self::OneMoreAttempt { entry, came, attempts } => {
                write!(
                    f,
                    "{came}, the journal's entry {entry}, is attempted more often than recorded \
                     (attempts in the journal: {attempts})"
                )
            }
            Self::Ends { entry, came } => {
                write!(f, "the journal ends while {came}, its entry {entry}, was under way")
            }
        }
    }
}

impl fmt::Display for Call {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}[{}] with {}", self.kind, self.name, quoted(&self.input))
    }
}
