//! The selection of listeners: which of them receive an event (E4).
//!
//! A [`Matcher`](crate::Matcher) decides for one listener (`matcher`, `glob`, `function`). A `snapshot` decides for all
//! listeners of an emitter: it asks a few one by one, and looks up many in a `cache` per path, which is filled with the
//! help of sets of patterns (`pattern`).

pub(crate) mod cache;
pub(crate) mod function;
pub(crate) mod glob;
pub(crate) mod matcher;
pub(crate) mod pattern;
pub(crate) mod snapshot;
