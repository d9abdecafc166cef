//! Which events a listener takes (E4): `(matcher, event) -> bool`, without lock or await.

use std::fmt;
use std::sync::Arc;

use regex::Regex;

use crate::matching::function::Exact;
use crate::matching::glob::{GlobText, slashed};
use crate::name::{AsName, bit, check};
use crate::panic::{catch_or, log_catching};
use crate::registry::listener::EventView;
use crate::{EventMeta, EventName, EventRecord, FnMatcher, MatcherError};

/// What a listener listens to.
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
/// | `Fn(&EventMeta) -> bool`, [`matcher_fn`](crate::matcher_fn) | what it says | no |
///
/// *Own* events are those emitted on the emitter itself, on a run of it, or on a `()` child of a run's emitter, under a name without a dot: one with a dot
/// is emitted as if by a sub-namespace, as the lifecycle events of runs are (`run.start`).
///
/// Globs and regexes are at most 16 KiB long. Many on one emitter are matched as sets, which are compiled in steps: some tens of
/// microseconds for each pattern. The next emit waits for that, or, after each 2,048 new patterns, whoever registers the last
/// of them.
///
/// Two matchers are equal when their strings are, when their regexes have the same pattern, or when they are the
/// same function handle.
///
/// # Nested events
///
/// Events of runs that were started in a run are *nested* for that run, for every run above it, and for the instance of each of these;
/// but events of an instance's own runs never are for that instance. On an emitter that has no runs and is in none, a
/// namespace's or the root, no event is nested.
///
/// [`Options::nested`](crate::Options::nested) overrides the default. A run of an instance is started in a run above, and
/// starts one in turn. Of the events of the two, a listener on an emitter takes its *own*, those of the run; or *all*, those of
/// the nested run as well; or *none*:
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
    /// Compiled by the user, perhaps with options that its pattern does not show: always matched by itself.
    RegexValue(Regex),
    Function(FnMatcher),
}

impl Matcher {
    /// Every event that reaches the emitter: `"*.*"`.
    #[must_use]
    pub const fn every() -> Self {
        Self(MatcherKind::Every)
    }

    /// Every own event: `"*"`.
    #[must_use]
    pub const fn own() -> Self {
        Self(MatcherKind::Own)
    }

    /// A regex, matched anywhere in the path.
    ///
    /// However many there are on one emitter, they are matched as one set; a ready-made [`Regex`] is matched by
    /// itself, because its pattern does not show with which options it was built. Options go into the pattern:
    /// `(?i)token`.
    ///
    /// # Errors
    ///
    /// If the pattern is empty, too long, or does not compile.
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

    /// Events emitted here under exactly that name, which may have a dot.
    #[doc(hidden)]
    #[must_use]
    pub fn emitted(name: EventName) -> Self {
        Self(Self::name(name.as_str()))
    }

    fn name(text: &str) -> MatcherKind {
        MatcherKind::Name { text: text.into(), hash: text.as_name().hash() }
    }

    /// Whether events of other runs are taken unless the options say otherwise.
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

    /// Where an event of another type than the listener's is a bug and not filtered out (E7).
    pub(crate) const fn exact(&self) -> Exact {
        match &self.0 {
            MatcherKind::Name { .. } | MatcherKind::Path(_) => Exact::Own,
            MatcherKind::Function(function) => function.exact,
            _ => Exact::Nowhere,
        }
    }

    /// The bits of the names that it may take: of one, if it takes no other.
    pub(crate) const fn name_bits(&self) -> u64 {
        match &self.0 {
            MatcherKind::Name { hash, .. } => bit(*hash),
            MatcherKind::Function(function) => function.bits,
            _ => u64::MAX,
        }
    }

    /// Whether it has to be compiled, and so is better matched in a set.
    pub(crate) const fn is_pattern(&self) -> bool {
        matches!(self.0, MatcherKind::NameGlob(_) | MatcherKind::PathGlob(_) | MatcherKind::RegexText(_))
    }

    /// Whether it takes an event, as far as that is fixed by path and source. A function is asked for each event.
    #[inline(always)]
    pub(crate) fn takes(&self, view: &EventView<'_>) -> bool {
        match &self.0 {
            MatcherKind::Name { text, hash } => view.here && view.meta.emit.name.is(text, *hash),
            _ => self.takes_others(view),
        }
    }

    /// The same of one that is no name.
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

    /// The same of one that looks at the whole path.
    fn takes_path(&self, meta: &EventMeta<'_>) -> bool {
        match &self.0 {
            MatcherKind::Path(text) => meta.source().joins_to(meta.emitted_name(), text),
            MatcherKind::PathGlob(glob) => glob.is_match(&slashed(meta.path())),
            MatcherKind::RegexText(regex) | MatcherKind::RegexValue(regex) => regex.is_match(meta.path()),
            _ => true,
        }
    }

    /// Whether it takes an event at the place where that is emitted: there every event is an own one, and a name is
    /// the last segment of the path.
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

    /// The same of a recorded event. None if only a function of the event's meta could say.
    #[must_use]
    pub fn matches_record(&self, record: &EventRecord) -> Option<bool> {
        self.matches_path(&record.path)
    }

    fn matches_path(&self, path: &str) -> Option<bool> {
        let name = path.rsplit_once('.').map_or(path, |(_, name)| name);
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

    /// Whether it has to be asked for each event.
    pub(crate) const fn is_function(&self) -> bool {
        matches!(self.0, MatcherKind::Function(_))
    }

    /// What a function says; everything else has said it already.
    #[inline]
    pub(crate) fn accepts(&self, meta: &EventMeta<'_>) -> bool {
        match &self.0 {
            MatcherKind::Function(function) => function.accepts(meta),
            _ => true,
        }
    }

    /// The same, where no listener answers for a panic: it is logged, and means no.
    pub(crate) fn accepts_or_logs(&self, meta: &EventMeta<'_>) -> bool {
        let no = |panic: String| {
            log_catching(|| tracing::error!(path = meta.path(), panic, "a matcher panicked"));
            false
        };
        catch_or(|| self.accepts(meta), no)
    }
}

/// Bytes of a glob or regex at most. The costliest glob of that length compiles to a sixth of what globset allows.
const MAX_PATTERN_BYTES: usize = 16 * 1024;

/// Refuses a pattern that is empty, or longer than is sure to compile.
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

/// What can be made a [`Matcher`]: text, an [`EventName`], a [`Regex`], a function of the event's meta.
#[diagnostic::on_unimplemented(
    message = "`{Self}` is not a matcher",
    label = "expected a name, a glob, a `Regex`, or a function `|meta: &EventMeta<'_>| -> bool`"
)]
pub trait IntoMatcher {
    /// Makes the matcher.
    ///
    /// # Errors
    ///
    /// If it is empty or does not compile.
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
