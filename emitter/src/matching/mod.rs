//! Selects the listeners that receive an event (E4).
//!
//! A [`Matcher`](crate::Matcher) selects the events of one listener (`matcher`, `glob`, `function`). A `snapshot` finds
//! the listeners of an emitter that take an event. It asks a few listeners one by one; for many listeners, it looks up
//! the event in a `cache`, which is filled with the help of sets of patterns (`pattern`).

pub(crate) mod cache;
pub(crate) mod function;
pub(crate) mod glob;
pub(crate) mod matcher;
pub(crate) mod pattern;
pub(crate) mod snapshot;
