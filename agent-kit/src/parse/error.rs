//! The error of a text that does not follow the lines of a parser.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;

use serde_json::Value;

use super::ParserUpdate;

/// The error of a [`LinePrefixParser`](super::LinePrefixParser): the text does not follow the nodes.
///
/// Its message names the prefixes, and does not depend on how the text was cut into chunks.
#[derive(Clone, Debug, PartialEq)]
pub struct ParserError(pub(super) Box<Failed>);

#[derive(Clone, Debug, PartialEq)]
pub(super) struct Failed {
    pub(super) kind: ParserErrorKind,
    pub(super) message: String,
    pub(super) lines: String,
    pub(super) values: BTreeMap<Arc<str>, Value>,
    pub(super) current: Option<(Arc<str>, String)>,
    pub(super) updates: Vec<ParserUpdate>,
}

/// The reason of a [`ParserError`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum ParserErrorKind {
    /// A line begins a node that may not follow the node before it.
    InvalidTransition,
    /// The text does not begin with a start node.
    NotStartNode,
    /// The text ends in a node that is not an end.
    NotEndNode,
    /// A node begins for the second time.
    AlreadyCompleted,
    /// The function of a node does not accept its value.
    DoesNotParse,
    /// No line begins a node.
    NoData,
}

impl ParserError {
    /// Returns the reason.
    #[must_use]
    pub const fn kind(&self) -> ParserErrorKind {
        self.0.kind
    }

    /// Returns the text that belongs to no node: the lines before the first node, or the line with the fault, as far as
    /// it has arrived.
    #[must_use]
    pub fn lines(&self) -> &str {
        &self.0.lines
    }

    /// Returns the values that were complete.
    #[must_use]
    pub const fn values(&self) -> &BTreeMap<Arc<str>, Value> {
        &self.0.values
    }

    /// Returns the key and the text of the node that was not complete, or whose text does not parse.
    #[must_use]
    pub fn incomplete(&self) -> Option<(&str, &str)> {
        self.0.current.as_ref().map(|(key, text)| (&**key, text.as_str()))
    }

    /// Returns the updates that the failed call would have returned without the error.
    #[must_use]
    pub fn updates(&self) -> &[ParserUpdate] {
        &self.0.updates
    }
}

impl fmt::Display for ParserError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0.message)
    }
}

impl std::error::Error for ParserError {}
