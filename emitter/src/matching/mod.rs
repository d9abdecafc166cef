//! Selects the listeners that receive an event (E4).
//!
//! A [`Matcher`](crate::Matcher) decides for one listener (`matcher`, `glob`, `function`). A `snapshot` decides for all
//! listeners of an emitter: it asks a few listeners one by one. For many listeners, it looks up the path in a `cache`,
//! which is filled with the help of sets of patterns (`pattern`).

pub(crate) mod cache;
pub(crate) mod function;
pub(crate) mod glob;
pub(crate) mod matcher;
pub(crate) mod pattern;
pub(crate) mod snapshot;
