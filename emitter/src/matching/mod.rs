//! Which listeners receive an event: matchers, and what is remembered of them for many listeners (E4).

pub(crate) mod cache;
pub(crate) mod function;
pub(crate) mod glob;
pub(crate) mod matcher;
pub(crate) mod pattern;
pub(crate) mod snapshot;
