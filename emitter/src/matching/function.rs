//! Functions as matchers, with an identity and optional names.

use std::fmt;
use std::sync::Arc;

use crate::matching::matcher::MatcherKind;
use crate::name::{NameRef, bit};
use crate::{AsName, EventMeta, EventName, IntoMatcher, Matcher, MatcherError};

/// A function as a matcher, created by [`matcher_fn`]. Its clones are equal, so that
/// [`off_matching`](crate::Emitter::off_matching) finds the listeners that were registered with a clone.
///
/// A typed listener is only called for events of its type. After [`named`](Self::named), the listener fails if the
/// function accepts an event of another type that was emitted on the listener's emitter or one of its runs. After
/// [`of_types`](Self::of_types), the listener skips such events.
#[derive(Clone)]
pub struct FnMatcher {
    function: Arc<dyn Fn(&EventMeta<'_>) -> bool + Send + Sync>,
    /// `None` if the matcher takes any name.
    names: Option<Arc<[EventName]>>,
    /// The bits of the names, or all bits if the matcher takes any name.
    pub(crate) bits: u64,
    pub(crate) exact: Exact,
}

/// The events that make a listener fail if they are not of its type (E7). The listener skips all other events that are
/// not of its type.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Exact {
    Nowhere,
    /// Events emitted on the listener's emitter or one of its runs, including events under names with a dot.
    Own,
    /// All events that are not nested.
    NotNested,
}

/// Converts a function of an event's meta into a matcher that can be stored and compared.
///
/// ```
/// use emitree_emitter::{AnyEvent, Emitter, matcher_fn};
///
/// let emitter = Emitter::new();
/// let short = matcher_fn(|meta| meta.name().len() < 4);
/// emitter.on(short.clone(), |_: &mut dyn AnyEvent, _| ())?;
/// assert_eq!(emitter.off_matching(short)?, 1);
/// # Ok::<(), Box<dyn std::error::Error + Send + Sync>>(())
/// ```
pub fn matcher_fn(f: impl Fn(&EventMeta<'_>) -> bool + Send + Sync + 'static) -> FnMatcher {
    FnMatcher { function: Arc::new(f), names: None, bits: u64::MAX, exact: Exact::Nowhere }
}

impl FnMatcher {
    /// Limits the matcher to events emitted under one of these names, which may have a dot. The function is not called
    /// for other events.
    ///
    /// The matcher is then exact: if the function accepts an event that was emitted on the listener's emitter or one of
    /// its runs, but is not of the listener's type, the listener fails with an error that names both types. With
    /// [`nested(true)`](crate::Options::nested), or after [`of_types`](Self::of_types), a typed listener skips events
    /// of other types instead.
    ///
    /// ```
    /// use emitree_emitter::{Emitter, EventName, matcher_fn};
    ///
    /// let emitter = Emitter::new();
    /// let counts = matcher_fn(|_| true).named([EventName::new("count")]);
    /// emitter.on(counts.clone().of_types(), |_: &mut String, _| ())?;
    /// emitter.emit_now("count", &mut 1_u32)?;
    ///
    /// emitter.on(counts, |_: &mut String, _| ())?;
    /// assert!(emitter.emit_now("count", &mut 1_u32).is_err());
    /// # Ok::<(), Box<dyn std::error::Error + Send + Sync>>(())
    /// ```
    #[must_use]
    pub fn named(mut self, names: impl IntoIterator<Item = EventName>) -> Self {
        let names: Arc<[EventName]> = names.into_iter().collect();
        self.bits = names.iter().fold(0, |bits, name| bits | bit(name.as_name().hash()));
        self.names = Some(names);
        self.exact = Exact::Own;
        self
    }

    /// Makes a typed listener fail if the function accepts an event of another type, no matter where the event was
    /// emitted. Nested events of another type are still skipped. Use this method for a function that accepts the events
    /// of only one source.
    #[must_use]
    pub const fn of_one_source(mut self) -> Self {
        self.exact = Exact::NotNested;
        self
    }

    /// Makes a typed listener skip all events of another type instead of failing.
    #[must_use]
    pub const fn of_types(mut self) -> Self {
        self.exact = Exact::Nowhere;
        self
    }

    /// Returns `true` if the matcher has no names, or if `name` is one of its names.
    pub(crate) fn takes_name(&self, name: &NameRef<'_>) -> bool {
        let is_named = |names: &Arc<[EventName]>| names.iter().any(|one| one.as_str() == name.as_str());
        // The bit rules out most names without a comparison.
        self.bits & name.bit() != 0 && self.names.as_ref().is_none_or(is_named)
    }

    /// Returns the address of the function. Equal matchers have the same address.
    pub(crate) fn address(&self) -> u64 {
        Arc::as_ptr(&self.function).addr() as u64
    }

    /// Calls the function, without checking the names.
    #[inline]
    pub(crate) fn accepts(&self, meta: &EventMeta<'_>) -> bool {
        (self.function)(meta)
    }
}

impl IntoMatcher for FnMatcher {
    fn into_matcher(self) -> Result<Matcher, MatcherError> {
        Ok(Matcher(MatcherKind::Function(self)))
    }
}

impl<F: Fn(&EventMeta<'_>) -> bool + Send + Sync + 'static> IntoMatcher for F {
    fn into_matcher(self) -> Result<Matcher, MatcherError> {
        matcher_fn(self).into_matcher()
    }
}

impl PartialEq for FnMatcher {
    fn eq(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.function, &other.function)
    }
}

impl fmt::Debug for FnMatcher {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("matcher_fn(..)")
    }
}
