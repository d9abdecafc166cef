//! Parsers for texts that a model writes.

mod builder;
mod error;
mod line_prefix;

pub use builder::{LinePrefixParserBuilder, Node, json_object, one_of};
pub use error::{ParserError, ParserErrorKind};
pub use line_prefix::{LinePrefixParser, Parsed, ParserUpdate};
