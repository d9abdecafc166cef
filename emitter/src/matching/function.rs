//! Functions as matchers, and what they promise about the events that they take.

use std::fmt;
use std::sync::Arc;

use crate::matching::matcher::MatcherKind;
use crate::name::{NameRef, bit};
use crate::{AsName, EventMeta, EventName, IntoMatcher, Matcher, MatcherError};

/// A function as a matcher, with an identity: its clones are equal, so that
/// [`off_matching`](crate::Emitter::off_matching) finds what was registered with it.
///
/// A typed listener is only called for events of its type. Under a function that is [`named`](Self::named), an own event of
/// another type is an error, as it is under an exact name; [`of_types`](Self::of_types) leaves such events out.
#[derive(Clone)]
pub struct FnMatcher {
    function: Arc<dyn Fn(&EventMeta<'_>) -> bool + Send + Sync>,
    /// None for any.
    names: Option<Arc<[EventName]>>,
    /// Those of the names.
    pub(crate) bits: u64,
    pub(crate) exact: Exact,
}

/// Where a listener's meeting an event of another type is a bug (E7).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Exact {
    Nowhere,
    /// Where the event is an own one.
    Own,
    /// Wherever the event is not nested.
    NotNested,
}

/// Lifts a function of an event's meta into a matcher that can be kept and compared.
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
    /// Takes only events that are emitted under one of these names, which may have a dot; the function is asked about no
    /// others.
    ///
    /// With names it is exact: an own event that it takes, and whose payload is not of the listener's type, fails the
    /// emit with an error that names both types. Where [`nested`](crate::Options::nested) events are asked for as well,
    /// or [`of_types`](Self::of_types) was called, a typed listener filters by its type instead.
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

    /// Is exact about every event that is not nested, own or not: for a function that takes events of one source only, wherever the
    /// listener is registered.
    #[must_use]
    pub const fn of_one_source(mut self) -> Self {
        self.exact = Exact::NotNested;
        self
    }

    /// Filters by the listener's type: events of other types are left out, own ones too.
    #[must_use]
    pub const fn of_types(mut self) -> Self {
        self.exact = Exact::Nowhere;
        self
    }

    /// Whether it takes events under that name, as far as the function says so.
    pub(crate) fn takes_name(&self, name: &NameRef<'_>) -> bool {
        let is_named = |names: &Arc<[EventName]>| names.iter().any(|one| one.as_str() == name.as_str());
        self.bits & name.bit() != 0 && self.names.as_ref().is_none_or(is_named)
    }

    /// Calls the function.
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
