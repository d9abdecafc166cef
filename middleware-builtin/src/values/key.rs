//! The keys of a store: paths.

use std::fmt;
use std::sync::Arc;

use thiserror::Error;

/// A key of a store: a path of one or more segments, such as `["user", "ada", "language"]`.
///
/// A segment is any text that is not empty, so it may contain dots and slashes. Keys are ordered segment by segment,
/// each segment by its UTF-8 bytes: `["a"]` comes before `["a", "b"]`, and that before `["a-b"]`. Clones are cheap.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ValueKey(Arc<[String]>);

/// An error of [`ValueKey::new`], which quotes the path.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum InvalidKey {
    /// The path has no segments.
    #[error("the key `[]` has no segments: a key has at least one, such as `[\"user\", \"language\"]`")]
    NoSegments,
    /// A segment is empty.
    #[error("segment {position} of the key `{path:?}` is empty: leave it out, or give it a text")]
    EmptySegment {
        /// The path.
        path: Vec<String>,
        /// The position of the first empty segment, from 0.
        position: usize,
    },
}

impl ValueKey {
    /// Makes a key from its segments.
    ///
    /// ```
    /// use emitree_middleware::values::ValueKey;
    ///
    /// assert_eq!(ValueKey::new(["user", "ada"])?.to_string(), r#"["user", "ada"]"#);
    /// let error = ValueKey::new(["user", ""]).unwrap_err().to_string();
    /// assert_eq!(error, r#"segment 1 of the key `["user", ""]` is empty: leave it out, or give it a text"#);
    /// # Ok::<(), emitree_middleware::values::InvalidKey>(())
    /// ```
    ///
    /// # Errors
    ///
    /// Returns an error if there are no segments, or if a segment is empty.
    pub fn new<S: Into<String>>(segments: impl IntoIterator<Item = S>) -> Result<Self, InvalidKey> {
        let path: Vec<String> = segments.into_iter().map(Into::into).collect();
        if path.is_empty() {
            return Err(InvalidKey::NoSegments);
        }
        match path.iter().position(String::is_empty) {
            Some(position) => Err(InvalidKey::EmptySegment { path, position }),
            None => Ok(Self(path.into())),
        }
    }

    /// Returns the segments.
    #[must_use]
    pub fn segments(&self) -> &[String] {
        &self.0
    }

    /// Returns `true` if the key begins with all segments of another key, or is equal to it.
    #[must_use]
    pub fn starts_with(&self, prefix: &Self) -> bool {
        self.0.starts_with(&prefix.0)
    }
}

/// Shows the segments as a list of strings.
impl fmt::Display for ValueKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?}", self.0)
    }
}

impl fmt::Debug for ValueKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?}", self.0)
    }
}
