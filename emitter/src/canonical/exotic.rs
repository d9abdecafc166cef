//! What is not written in canonical form.

use std::fmt;

use serde::ser;

/// A payload that was not written in canonical form: it holds JSON text of its own, or keys that are neither text nor
/// whole numbers, or cannot be serialised at all. Its [`write_json`](crate::AnyEvent::write_json) says more.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Exotic;

impl fmt::Display for Exotic {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("the payload has no canonical form of its own")
    }
}

impl std::error::Error for Exotic {}

impl ser::Error for Exotic {
    fn custom<T: fmt::Display>(_: T) -> Self {
        Self
    }
}
