//! Matchers select the events that a listener takes (E4). Matching is a sync function of a matcher and an event.
//! Matcher functions are called without a lock, just before the listener. Other matchers may be asked under the lock of
//! the registry.

use std::fmt;
use std::sync::Arc;

use regex::Regex;

use crate::matching::function::Exact;
use crate::matching::glob::{GlobText, slashed};
use crate::name::{AsName, bit, check};
use crate::panic::{caught_or, logged};
use crate::registry::listener::EventView;
use crate::{EventMeta, EventName, EventRecord, FnMatcher, MatcherError};

/// Selects the events that a listener takes.
///
/// | matcher | matches | nested events by default |
/// |---|---|---|
/// | `"new_token"`: no dot | *own* events of that name | no |
/// | `"backend.chat.start"`: a dot, no wildcard | exactly that path | yes |
/// | `"*"` | every own event | no |
/// | `"*.*"` | every event that reaches the emitter | yes |
/// | `"new_*"`, `"{start,finish}"`: glob, no dot | names of own events | no |
/// | `"backend.**.start"`: glob with a dot | paths; `*` stays in one segment, `**` spans any number | yes |
/// | [`Matcher::regex`], [`Regex`] | anywhere in the path | yes |
/// | `Fn(&EventMeta) -> bool`, [`matcher_fn`](crate::matcher_fn) | where it returns `true` | no |
///
/// An event is an emitter's *own* if it is emitted under a name without a dot on the emitter itself or on one of its
/// runs. A `()` child of a run's emitter counts as that run. A name with a dot, such as the name `run.start` of a
/// lifecycle event, belongs to a sub-namespace. A lifecycle event also matches its plain name, such as `start`, but only
/// for listeners that take exactly its type.
///
/// Globs and regexes are at most 16 KiB long. Many patterns on one emitter are matched as sets. Compiling a set takes
/// some tens of microseconds per pattern, and the first emit that needs the set waits for it. If 2,048 patterns are
/// registered before that emit, the registration of the last pattern waits instead.
///
/// Matchers are equal if their strings are equal, if their regexes have the same pattern, or if they are clones of the
/// same [`FnMatcher`].
///
/// ```
/// use emitree_emitter::{Emitter, Matcher};
///
/// let app = Emitter::new().child("app")?;
/// app.on("{start,stop}", |n: &mut u32, _| *n += 1)?;
/// app.on(Matcher::regex("st.p$")?, |n: &mut u32, _| *n += 10)?;
///
/// let mut n = 0_u32;
/// app.emit_now("start", &mut n)?;
/// app.emit_now("stop", &mut n)?;
/// assert_eq!(n, 12);
/// # Ok::<(), Box<dyn std::error::Error + Send + Sync>>(())
/// ```
///
/// # Nested events
///
/// Events of a run that was started in another run are *nested* for that other run, for every run above it, and for the
/// instances of these runs. Events of an instance's own run are never nested for that instance. For an emitter that has
/// no runs and is in no run, such as a namespace or the root, no event is nested.
///
/// [`Options::nested`](crate::Options::nested) overrides the default, and does not change which events are own. The
/// table describes a run of an instance. The run was started in a run above, and a nested run was started in it. A
/// listener takes *own* events (of the run), *all* events (of the run and the nested run), or *none*:
///
/// | matcher | nested | on the run | on its instance | on a namespace above | on the root | on the run above |
/// |---|---|---|---|---|---|---|
/// | `"new_token"`, `"*"`, `"new_*"` | default, true, false | own | own | none | none | none |
/// | `matcher_fn` | default, false | own | own | all | all | none |
/// | `matcher_fn` | true | all | all | all | all | all |
/// | `"tool.new_token"`, `"*.*"`, `"**.new_*"`, `Regex` | default, true | all | all | all | all | all |
/// | `"tool.new_token"`, `"*.*"`, `"**.new_*"`, `Regex` | false | own | own | all | all | none |
#[derive(Clone, PartialEq)]
pub struct Matcher(pub(crate) MatcherKind);

#[derive(Clone)]
pub(crate) enum MatcherKind {
    /// `"*"`
    Own,
    /// `"*.*"`
    Every,
    Name {
        text: Arc<str>,
        hash: u64,
    },
    Path(Arc<str>),
    NameGlob(Arc<GlobText>),
    PathGlob(Arc<GlobText>),
    /// Compiled from text, so that many can be matched as one set.
    RegexText(Regex),
    /// Compiled by the user, perhaps with options that its pattern does not show. Matched on its own.
    RegexValue(Regex),
    Function(FnMatcher),
}

impl Matcher {
    /// Matches every event that reaches the emitter: `"*.*"`.
    #[must_use]
    pub const fn every() -> Self {
        Self(MatcherKind::Every)
    }

    /// Matches every own event: `"*"`.
    #[must_use]
    pub const fn own() -> Self {
        Self(MatcherKind::Own)
    }

    /// Matches a regex anywhere in the path.
    ///
    /// Many such regexes on one emitter are matched together, as sets. A ready-made [`Regex`] is matched on its own,
    /// because its pattern does not show the options it was built with. Write options into the pattern instead:
    /// `(?i)token`.
    ///
    /// # Errors
    ///
    /// Returns an error if the pattern is empty, too long, or does not compile.
    pub fn regex(pattern: &str) -> Result<Self, MatcherError> {
        check_pattern(pattern)?;
        Regex::new(pattern)
            .map(|regex| Self(MatcherKind::RegexText(regex)))
            .map_err(|error| MatcherError::Regex { pattern: pattern.to_owned(), fault: error.to_string() })
    }

    fn parse(text: &str) -> Result<Self, MatcherError> {
        let dotted = text.contains('.');
        Ok(Self(match text {
            "" => return Err(MatcherError::Empty),
            "*" => MatcherKind::Own,
            "*.*" => MatcherKind::Every,
            // Text that contains a special character of globs is a glob. All other text has to be a valid name or path
            // (E2).
            _ if text.contains(['*', '?', '[', ']', '{', '}', '\\']) => {
                check_pattern(text)?;
                let glob = Arc::new(GlobText::parse(text)?);
                if dotted { MatcherKind::PathGlob(glob) } else { MatcherKind::NameGlob(glob) }
            }
            _ => {
                check(text)?;
                if dotted { MatcherKind::Path(text.into()) } else { Self::name(text) }
            }
        }))
    }

    /// Matches events that are emitted under exactly this name on the listener's emitter or one of its runs. The name
    /// may have a dot.
    #[doc(hidden)]
    #[must_use]
    pub fn emitted(name: EventName) -> Self {
        Self(Self::name(name.as_str()))
    }

    fn name(text: &str) -> MatcherKind {
        MatcherKind::Name { text: text.into(), hash: text.as_name().hash() }
    }

    /// Returns `true` if a listener with this matcher takes nested events by default. `Options::nested` overrides the
    /// default.
    pub(crate) const fn nested_by_default(&self) -> bool {
        match self.0 {
            MatcherKind::Own | MatcherKind::Name { .. } | MatcherKind::NameGlob(_) | MatcherKind::Function(_) => false,
            MatcherKind::Every
            | MatcherKind::Path(_)
            | MatcherKind::PathGlob(_)
            | MatcherKind::RegexText(_)
            | MatcherKind::RegexValue(_) => true,
        }
    }

    /// Returns the events that make a listener with this matcher fail if they are not of its type (E7).
    pub(crate) const fn exact(&self) -> Exact {
        match &self.0 {
            MatcherKind::Name { .. } | MatcherKind::Path(_) => Exact::Own,
            MatcherKind::Function(function) => function.exact,
            _ => Exact::Nowhere,
        }
    }

    /// Returns the bits of the names that the matcher may take: one bit for each name, or all bits if the matcher is
    /// not limited to names.
    pub(crate) const fn name_bits(&self) -> u64 {
        match &self.0 {
            MatcherKind::Name { hash, .. } => bit(*hash),
            MatcherKind::Function(function) => function.bits,
            _ => u64::MAX,
        }
    }

    /// Returns `true` for a pattern that is compiled from text and can be matched in a set.
    pub(crate) const fn is_pattern(&self) -> bool {
        matches!(self.0, MatcherKind::NameGlob(_) | MatcherKind::PathGlob(_) | MatcherKind::RegexText(_))
    }

    /// Returns `true` if the matcher takes an event, judged by path and source alone. A matcher function is called
    /// later, for each event.
    #[inline(always)]
    pub(crate) fn takes(&self, view: &EventView<'_>) -> bool {
        match &self.0 {
            // A name is the usual case and is compared inline: first the hash, then the text.
            MatcherKind::Name { text, hash } => view.here && view.meta.emit.name.is(text, *hash),
            _ => self.takes_others(view),
        }
    }

    /// Implements [`takes`](Self::takes) for all matchers except names.
    fn takes_others(&self, view: &EventView<'_>) -> bool {
        let meta = view.meta;
        match &self.0 {
            MatcherKind::Own => view.own(),
            MatcherKind::Every => true,
            MatcherKind::Function(function) => function.takes_name(&meta.emit.name),
            MatcherKind::NameGlob(glob) => view.own() && glob.is_match(meta.emitted_name()),
            _ => self.takes_path(meta),
        }
    }

    /// Implements [`takes`](Self::takes) for matchers of the whole path.
    fn takes_path(&self, meta: &EventMeta<'_>) -> bool {
        match &self.0 {
            MatcherKind::Path(text) => meta.source().joins_to(meta.emitted_name(), text),
            MatcherKind::PathGlob(glob) => glob.is_match(&slashed(meta.path())),
            MatcherKind::RegexText(regex) | MatcherKind::RegexValue(regex) => regex.is_match(meta.path()),
            _ => true,
        }
    }

    /// Returns `true` if the matcher takes the event on the emitter where the event was emitted. Every event counts as
    /// an own event there: a name or name glob only has to match the last segment of the path.
    ///
    /// ```
    /// use emitree_emitter::{AnyEvent, Emitter, IntoMatcher};
    ///
    /// let root = Emitter::new();
    /// let tokens = "new_token".into_matcher()?;
    /// root.observe("*.*", move |_: &dyn AnyEvent, meta| assert!(tokens.matches(meta)))?;
    /// root.child("model")?.emit_now("new_token", &mut "to")?;
    /// assert_eq!(root.isolated_failures(), 0);
    /// # Ok::<(), Box<dyn std::error::Error + Send + Sync>>(())
    /// ```
    #[must_use]
    pub fn matches(&self, meta: &EventMeta<'_>) -> bool {
        match &self.0 {
            MatcherKind::Function(function) => function.takes_name(&meta.emit.name) && function.accepts(meta),
            _ => self.matches_path(meta.path()).unwrap_or(false),
        }
    }

    /// Returns `true` if the matcher takes a recorded event, by the same rule as [`matches`](Self::matches). Returns
    /// `None` for a function, which needs the event's meta.
    #[must_use]
    pub fn matches_record(&self, record: &EventRecord) -> Option<bool> {
        self.matches_path(&record.path)
    }

    fn matches_path(&self, path: &str) -> Option<bool> {
        let name = path.rsplit_once('.').map_or(path, |(_, name)| name);
        // The event is an own event where it was emitted, so a name or a name glob only needs the last segment.
        Some(match &self.0 {
            MatcherKind::Own | MatcherKind::Every => true,
            MatcherKind::Name { text, .. } => **text == *name,
            MatcherKind::Path(text) => **text == *path,
            MatcherKind::NameGlob(glob) => glob.is_match(name),
            MatcherKind::PathGlob(glob) => glob.is_match(&slashed(path)),
            MatcherKind::RegexText(regex) | MatcherKind::RegexValue(regex) => regex.is_match(path),
            MatcherKind::Function(_) => return None,
        })
    }

    /// Returns `true` for a function, which has to be called for each event.
    pub(crate) const fn is_function(&self) -> bool {
        matches!(self.0, MatcherKind::Function(_))
    }

    /// Calls the matcher function for an event. Returns `true` for other matchers, which `takes` has already checked.
    #[inline]
    pub(crate) fn accepts(&self, meta: &EventMeta<'_>) -> bool {
        match &self.0 {
            MatcherKind::Function(function) => function.accepts(meta),
            _ => true,
        }
    }

    /// Calls the matcher function outside the loop that calls listeners. If the function panics, the panic is logged,
    /// and the event is not accepted.
    pub(crate) fn accepts_or_logs(&self, meta: &EventMeta<'_>) -> bool {
        let no = |panic: String| {
            logged(|| tracing::error!(path = meta.path(), panic, "a matcher panicked"));
            false
        };
        caught_or(|| self.accepts(meta), no)
    }
}

/// The maximum length of a glob or regex. The most expensive glob of this length compiles to a sixth of the size that
/// globset allows.
const MAX_PATTERN_BYTES: usize = 16 * 1024;

/// Returns an error if a pattern is empty, or so long that compiling it might fail.
fn check_pattern(pattern: &str) -> Result<(), MatcherError> {
    match pattern.len() {
        0 => Err(MatcherError::Empty),
        length if length > MAX_PATTERN_BYTES => {
            let prefix = pattern.chars().take(40).collect();
            Err(MatcherError::TooLong { prefix, length, limit: MAX_PATTERN_BYTES })
        }
        _ => Ok(()),
    }
}

/// A value that converts into a [`Matcher`]: text, an [`EventName`], a [`Regex`], or a function of the event's meta.
#[diagnostic::on_unimplemented(
    message = "`{Self}` is not a matcher",
    label = "expected a name, a glob, a `Regex`, or a function `|meta: &EventMeta<'_>| -> bool`"
)]
pub trait IntoMatcher {
    /// Converts the value.
    ///
    /// # Errors
    ///
    /// Returns an error if the value is not a valid matcher.
    fn into_matcher(self) -> Result<Matcher, MatcherError>;
}

impl IntoMatcher for &str {
    fn into_matcher(self) -> Result<Matcher, MatcherError> {
        Matcher::parse(self)
    }
}

impl IntoMatcher for String {
    fn into_matcher(self) -> Result<Matcher, MatcherError> {
        Matcher::parse(&self)
    }
}

impl IntoMatcher for &String {
    fn into_matcher(self) -> Result<Matcher, MatcherError> {
        Matcher::parse(self)
    }
}

impl IntoMatcher for EventName {
    fn into_matcher(self) -> Result<Matcher, MatcherError> {
        let text = self.as_str();
        Ok(Matcher(if text.contains('.') { MatcherKind::Path(text.into()) } else { Matcher::name(text) }))
    }
}

impl IntoMatcher for Regex {
    fn into_matcher(self) -> Result<Matcher, MatcherError> {
        check_pattern(self.as_str())?;
        Ok(Matcher(MatcherKind::RegexValue(self)))
    }
}

impl IntoMatcher for Matcher {
    fn into_matcher(self) -> Result<Matcher, MatcherError> {
        Ok(self)
    }
}

impl IntoMatcher for &Matcher {
    fn into_matcher(self) -> Result<Matcher, MatcherError> {
        Ok(self.clone())
    }
}

impl PartialEq for MatcherKind {
    fn eq(&self, other: &Self) -> bool {
        match (self, other) {
            (Self::Own, Self::Own) | (Self::Every, Self::Every) => true,
            (Self::Name { text: a, .. }, Self::Name { text: b, .. }) | (Self::Path(a), Self::Path(b)) => a == b,
            (Self::NameGlob(a), Self::NameGlob(b)) | (Self::PathGlob(a), Self::PathGlob(b)) => a.text == b.text,
            (Self::RegexText(a) | Self::RegexValue(a), Self::RegexText(b) | Self::RegexValue(b)) => {
                a.as_str() == b.as_str()
            }
            (Self::Function(a), Self::Function(b)) => a == b,
            _ => false,
        }
    }
}

impl fmt::Debug for Matcher {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.0 {
            MatcherKind::Own => f.write_str("\"*\""),
            MatcherKind::Every => f.write_str("\"*.*\""),
            MatcherKind::Name { text, .. } | MatcherKind::Path(text) => write!(f, "{text:?}"),
            MatcherKind::NameGlob(glob) | MatcherKind::PathGlob(glob) => write!(f, "{:?}", glob.text),
            MatcherKind::RegexText(regex) | MatcherKind::RegexValue(regex) => write!(f, "/{regex}/"),
            MatcherKind::Function(function) => function.fmt(f),
        }
    }
}
