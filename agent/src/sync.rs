//! Synchronization primitives for the module that has a loom model. The model replaces this module with a module that
//! defines other primitives under the same names.

pub(crate) use std::sync::atomic::{AtomicU8, Ordering};
