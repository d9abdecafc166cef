//! The primitives of the module that has a loom model; the model brings its own under the same names.

pub(crate) use std::sync::OnceLock;
pub(crate) use std::sync::atomic::{AtomicU8, Ordering};
