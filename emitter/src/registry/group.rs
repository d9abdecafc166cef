//! The key of a listener among the listeners of its emitter: the group in which an event looks it up, and its place in
//! the order of calls.

use std::any::TypeId;
use std::cmp::{Ordering, Reverse};
use std::hash::BuildHasher;
use std::ops::Range;

use rustc_hash::FxBuildHasher;

use crate::Matcher;
use crate::matching::matcher::MatcherKind;
use crate::registry::listener::Listener;

/// The place of a listener on its emitter: higher priority first, then oldest first (E5).
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Place(Reverse<i32>, u64);

impl Place {
    pub(crate) fn of(listener: &Listener) -> Self {
        Self(Reverse(listener.priority), listener.id)
    }
}

/// Listeners that are looked up together. The group follows from a listener's matcher and type. Texts are compared by
/// their hashes, so a group may also contain listeners of another text.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Group {
    Name(u64),
    Path(u64),
    /// `"*"`, for one type or for any type.
    Own(Option<TypeId>),
    /// `"*.*"`, for one type or for any type.
    Every(Option<TypeId>),
    /// Globs and regexes that are compiled from text. Events find them through sets.
    Pattern(u64),
    /// Functions and `Regex` values, which are checked one by one.
    Other(u64),
}

impl Group {
    pub(crate) fn name(text: &str) -> Self {
        Self::Name(hash(text))
    }

    pub(crate) fn path(text: &str) -> Self {
        Self::Path(hash(text))
    }

    pub(crate) fn of(listener: &Listener) -> Self {
        let of_type = listener.expected.map(|expected| expected.id);
        match &listener.matcher.0 {
            MatcherKind::Name { text, .. } => Self::name(text),
            MatcherKind::Path(text) => Self::path(text),
            MatcherKind::Own => Self::Own(of_type),
            MatcherKind::Every => Self::Every(of_type),
            MatcherKind::NameGlob(glob) | MatcherKind::PathGlob(glob) => Self::Pattern(hash(&glob.text)),
            MatcherKind::RegexText(regex) => Self::Pattern(hash(regex.as_str())),
            MatcherKind::RegexValue(regex) => Self::Other(hash(regex.as_str())),
            MatcherKind::Function(function) => Self::Other(function.address()),
        }
    }

    /// Returns the range of the keys of all paths.
    pub(crate) const fn paths() -> Range<Key> {
        Key::first(Self::Path(0))..Key::after(Self::Path(u64::MAX))
    }

    /// Returns the range of the keys of all functions and `Regex` values.
    pub(crate) const fn others() -> Range<Key> {
        Key::first(Self::Other(0))..Key::after(Self::Other(u64::MAX))
    }

    /// Returns the range of the keys of this group.
    pub(crate) const fn keys(self) -> Range<Key> {
        Key::first(self)..Key::after(self)
    }

    /// Returns the ranges of the keys of all listeners that may have an equal matcher.
    pub(crate) fn keys_of(matcher: &Matcher) -> Vec<Range<Key>> {
        match &matcher.0 {
            MatcherKind::Name { text, .. } => vec![Self::name(text).keys()],
            MatcherKind::Path(text) => vec![Self::path(text).keys()],
            // The groups of all types: up to the first group that sorts after them.
            MatcherKind::Own => vec![Key::first(Self::Own(None))..Key::first(Self::Every(None))],
            MatcherKind::Every => vec![Key::first(Self::Every(None))..Key::first(Self::Pattern(0))],
            MatcherKind::NameGlob(glob) | MatcherKind::PathGlob(glob) => vec![Self::Pattern(hash(&glob.text)).keys()],
            // A regex is equal to another of the same text, whether it was compiled here or by the caller.
            MatcherKind::RegexText(regex) | MatcherKind::RegexValue(regex) => {
                let hash = hash(regex.as_str());
                vec![Self::Pattern(hash).keys(), Self::Other(hash).keys()]
            }
            MatcherKind::Function(function) => vec![Self::Other(function.address()).keys()],
        }
    }
}

/// The group and the place of a listener. No two listeners have equal keys.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Key {
    group: Group,
    place: Place,
}

impl Key {
    pub(crate) fn of(listener: &Listener) -> Self {
        Self { group: Group::of(listener), place: Place::of(listener) }
    }

    pub(crate) const fn place(&self) -> Place {
        self.place
    }

    /// Returns a key that is not greater than any key of a group.
    const fn first(group: Group) -> Self {
        Self { group, place: Place(Reverse(i32::MAX), 0) }
    }

    /// Returns a key that is greater than any key of a group. No listener has this id.
    const fn after(group: Group) -> Self {
        Self { group, place: Place(Reverse(i32::MIN), u64::MAX) }
    }

    /// Returns the id of the listener.
    pub(crate) const fn id(&self) -> u64 {
        self.place.1
    }
}

impl Ord for Key {
    fn cmp(&self, other: &Self) -> Ordering {
        #[cfg(test)]
        crate::registry::listeners::tests::count_step();
        (self.group, self.place).cmp(&(other.group, other.place))
    }
}

impl PartialOrd for Key {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

fn hash(text: &str) -> u64 {
    FxBuildHasher.hash_one(text)
}
