//! Secrets and personal data in text: [`Scanner`], and [`Chunks`] for text that comes bit by bit.

mod checks;
#[cfg(any(feature = "redact", feature = "exfil_guard"))]
pub(crate) mod chunked_events;
mod chunks;
mod engine;
#[cfg(any(feature = "redact", feature = "exfil_guard"))]
pub(crate) mod error_text;
mod kind;
mod match_beginning;
mod rules;
mod table;
mod tail;
pub(crate) mod visible;

use std::borrow::Cow;
use std::error::Error as StdError;
use std::fmt;
use std::ops::Range;
use std::sync::{Arc, LazyLock, OnceLock};

use thiserror::Error;

use self::engine::Engine;
use self::rules::PreparedRule;
use self::visible::Visible;

pub use self::chunks::{Chunks, Piece};
pub use self::kind::{Kind, Service};
pub use self::rules::{Check, Rule};

/// Finds secrets and personal data in text.
///
/// It has patterns for each [`Kind`], all looked for in one pass, and checks what they match: check digits, and whether
/// it is a placeholder, a version or an expression of a program. What is found depends on the text near it only, so it
/// is the same in a text and in [chunks](Self::chunks) of it. Zero-width characters and soft hyphens inside a secret are
/// looked through, up to 16 in a row.
///
/// Nothing can make it run away: its automata take linear time, every repetition is bounded, a match has at most 640
/// bytes, and a private key or a JSON Web Token at most 16 KiB more.
///
/// ```
/// use emitree_middleware::secrets::{Kind, Scanner};
///
/// let text = "write to maria@mailbox.org, not to @maria";
/// let found = Scanner::new().find(text);
/// assert_eq!((&found[0].kind, &text[found[0].span.clone()]), (&Kind::Email, "maria@mailbox.org"));
/// assert_eq!(found.len(), 1);
/// ```
#[derive(Clone)]
pub struct Scanner(Arc<RuleSet>);

struct RuleSet {
    rules: Vec<PreparedRule>,
    /// Made when it is first used.
    engine: OnceLock<Arc<Engine>>,
}

/// A secret, and where it is.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Finding {
    /// What sort of secret it is.
    pub kind: Kind,
    /// Where it is, in bytes.
    pub span: Range<usize>,
    /// Where what it is known by begins: its name, or the character before it.
    start: usize,
}

/// A pattern that was not taken.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum PatternError {
    /// It is no regex.
    #[error("the pattern `{name}` is no regex")]
    Syntax {
        /// What it was to be called.
        name: String,
        /// Where it is wrong.
        source: Box<dyn StdError + Send + Sync>,
    },
    /// It matches where nothing is.
    #[error("the pattern `{name}` matches the empty text, or nothing: give it at least one character")]
    Empty {
        /// What it was to be called.
        name: String,
    },
    /// It may match without end.
    #[error("the pattern `{name}` may match {} bytes, and 640 at most are taken: bound it, as in `{{1,64}}`", .longest.map_or_else(|| "any number of".to_owned(), |longest| longest.to_string()))]
    Long {
        /// What it was to be called.
        name: String,
        /// How many bytes it may match; none if there is no bound.
        longest: Option<usize>,
    },
    /// Its example is none: the pattern, the keywords or the check do not take it.
    #[error("the example of `{name}` is not found by its own pattern, keywords and check")]
    Example {
        /// What it was to be called.
        name: String,
    },
    /// Its program is too large.
    #[error("the pattern `{name}` becomes too large: bound its repetitions more narrowly")]
    Size {
        /// What it was to be called.
        name: String,
        /// What it exceeds.
        source: Box<dyn StdError + Send + Sync>,
    },
}

impl Scanner {
    /// Looks for all kinds.
    #[must_use]
    pub fn new() -> Self {
        static ALL: LazyLock<Scanner> = LazyLock::new(|| Scanner::of(rules::all()));
        ALL.clone()
    }

    /// Looks for these kinds.
    pub fn only(kinds: impl IntoIterator<Item = Kind>) -> Self {
        let kinds: Vec<Kind> = kinds.into_iter().collect();
        Self::of(rules::all().into_iter().filter(|rule| kinds.iter().any(|kind| kind.is_of(rule))).collect())
    }

    /// Looks for keys, tokens and passwords, and not for personal data.
    #[must_use]
    pub fn keys() -> Self {
        static KEYS: LazyLock<Scanner> = LazyLock::new(|| Scanner::new().keep(|kind| !kind.is_personal()));
        KEYS.clone()
    }

    /// Does not look for these kinds.
    #[must_use]
    pub fn except(&self, kinds: &[Kind]) -> Self {
        self.keep(|kind| !kinds.contains(kind))
    }

    /// Looks for these kinds too.
    #[must_use]
    pub fn with(&self, kinds: &[Kind]) -> Self {
        let own = self.0.rules.iter().filter(|rule| matches!(rule.kind, Kind::Custom(_))).cloned();
        let known = self.kinds();
        let others = rules::all().into_iter().filter(|rule| known.contains(&rule.kind) || kinds.contains(&rule.kind));
        Self::of(own.chain(others).collect())
    }

    fn keep(&self, keep: impl Fn(&Kind) -> bool) -> Self {
        Self::of(self.0.rules.iter().filter(|rule| keep(&rule.kind)).cloned().collect())
    }

    /// Looks for a pattern of one's own too, before all others: its first group is the secret, or all that it matches
    /// where that is empty.
    ///
    /// # Errors
    ///
    /// If it is no regex, matches the empty text, may match more than 640 bytes, or becomes too large.
    pub fn pattern(&self, name: &str, regex: &str) -> Result<Self, PatternError> {
        self.own(PreparedRule::pattern(name, regex))
    }

    /// Looks for a kind of your own too, before all others, by a line as the [table](Self::table) has.
    ///
    /// Its letters, digits and boundaries are those of Unicode.
    ///
    /// # Errors
    ///
    /// If its pattern is no regex, matches the empty text, may match more than 640 bytes, or becomes too large, or if its
    /// example is not found by it.
    pub fn rule(&self, rule: &Rule) -> Result<Self, PatternError> {
        let own = Self::only([]).own(PreparedRule::own(rule))?;
        if !rule.example.is_empty() && own.is_clean(&rule.drawn(0)) {
            return Err(PatternError::Example { name: rule.name.to_owned() });
        }
        self.own(PreparedRule::own(rule))
    }

    /// Returns the table of all kinds that are known, a line for each of their formats.
    #[must_use]
    pub const fn table() -> &'static [Rule] {
        table::TABLE
    }

    fn own(&self, rule: PreparedRule) -> Result<Self, PatternError> {
        engine::compile(&rule, &engine::parse(&rule)?)?;
        Ok(Self::of(std::iter::once(rule).chain(self.0.rules.iter().cloned()).collect()))
    }

    fn of(rules: Vec<PreparedRule>) -> Self {
        Self(Arc::new(RuleSet { rules, engine: OnceLock::new() }))
    }

    #[expect(clippy::expect_used, reason = "each pattern was tried by itself, and together they have no bound")]
    fn engine(&self) -> &Arc<Engine> {
        self.0.engine.get_or_init(|| Arc::new(Engine::new(self.0.rules.clone()).expect("patterns that were tried")))
    }

    /// All secrets in a text, from left to right. None overlaps another.
    #[must_use]
    pub fn find(&self, text: &str) -> Vec<Finding> {
        let (engine, visible, mut from) = (self.engine(), Visible::of(text), 0);
        let next = || {
            let finding = engine.next(&visible.text, from)?;
            from = finding.span.end;
            Some(within(&visible, finding))
        };
        std::iter::from_fn(next).collect()
    }

    /// The text with each secret replaced; as it is if there is none.
    pub fn replace<'t>(&self, text: &'t str, mut by: impl FnMut(&Kind, &str) -> String) -> Cow<'t, str> {
        let visible = Visible::of(text);
        let mut replaced: Option<String> = None;
        let (mut from, mut done) = (0, 0);
        while let Some(Finding { kind, span, .. }) = self.engine().next(&visible.text, from) {
            let out = replaced.get_or_insert_default();
            *out += &text[done..visible.begin(span.start)];
            *out += &by(&kind, &visible.text[span.clone()]);
            (from, done) = (span.end, visible.end(span.end));
        }
        replaced.map_or(Cow::Borrowed(text), |out| Cow::Owned(out + &text[done..]))
    }

    /// The first secret in a text.
    #[must_use]
    pub fn find_first(&self, text: &str) -> Option<Finding> {
        let visible = Visible::of(text);
        Some(within(&visible, self.engine().next(&visible.text, 0)?))
    }

    /// Tells whether there is none.
    #[must_use]
    pub fn is_clean(&self, text: &str) -> bool {
        self.find_first(text).is_none()
    }

    /// Looks at text that comes bit by bit.
    #[must_use]
    pub fn chunks(&self) -> Chunks {
        Chunks::new(Arc::clone(self.engine()))
    }

    /// As many bytes of [chunks](Self::chunks) may be held back.
    #[must_use]
    pub fn window(&self) -> usize {
        self.engine().window()
    }

    /// The kinds that it looks for, each once.
    #[must_use]
    pub fn kinds(&self) -> Vec<Kind> {
        let mut kinds: Vec<Kind> = Vec::new();
        for rule in &self.0.rules {
            if !kinds.contains(&rule.kind) {
                kinds.push(rule.kind.clone());
            }
        }
        kinds
    }

    /// The patterns that it looks for, in the syntax of the crate `regex`. Those of [`Kind::Custom`] are Unicode's, the
    /// others of bytes.
    pub fn patterns(&self) -> impl Iterator<Item = (&Kind, &str)> {
        self.engine().rules().map(|rule| (&rule.kind, rule.pattern.as_str()))
    }
}

/// A finding in the text as it was.
fn within(visible: &Visible<'_>, finding: Finding) -> Finding {
    let Finding { kind, span, start } = finding;
    Finding { kind, span: visible.begin(span.start)..visible.end(span.end), start: visible.begin(start) }
}

impl Default for Scanner {
    fn default() -> Self {
        Self::new()
    }
}

impl fmt::Debug for Scanner {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_list().entries(self.kinds().iter().map(Kind::as_str)).finish()
    }
}
