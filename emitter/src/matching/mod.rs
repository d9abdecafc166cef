//! Selects the listeners that receive an event (E4).
//!
//! A [`Matcher`](crate::Matcher) selects the events of one listener (`matcher`, `glob`, `function`). Among the
//! listeners of an emitter, a `snapshot` finds the listeners that take an event. It checks a few listeners one by one.
//! For many listeners, it looks up the event in a `cache`. An event that is not in the cache is matched against all
//! listeners, with their patterns in sets (`pattern`).

pub(crate) mod cache;
pub(crate) mod function;
pub(crate) mod glob;
pub(crate) mod matcher;
pub(crate) mod pattern;
pub(crate) mod snapshot;
