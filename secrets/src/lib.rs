//! Finds secrets and personal data in text, also in text that arrives in chunks.
//!
//! ```
//! use emitree_secrets::{Kind, Scanner};
//!
//! let scanner = Scanner::new();
//! let text = "maria@mailbox.org sent `password: tide-4-lamp`";
//! let hidden = scanner.replace(text, |kind, _| format!("[{kind}]"));
//! assert_eq!(hidden, "[email] sent `password: [assigned]`");
//! assert_eq!(scanner.find_first(text).map(|found| found.kind), Some(Kind::Email));
//! ```
//!
//! # Concepts
//!
//! - A [`Scanner`] searches a text for all its kinds of secrets in one pass. [`Scanner::keys`] leaves out personal data.
//! - A [`Kind`] is a kind of secret, such as a GitHub token, or of personal data, such as an e-mail address.
//! - A [`Rule`] finds one format of a kind: by its pattern, by keywords near it, and by a [`Check`] such as a check
//!   digit. [`Scanner::table`] has the built-in rules, and [`Scanner::rule`] adds a rule of your own.
//! - [`Chunks`] finds the same secrets in text that arrives in chunks, and holds back only text that may be the
//!   beginning of a secret.
//!
//! The scanner found 86.5 % of the secrets in 400 lines that its authors had not seen: settings, cookies, logins of
//! docker, and bare keys of providers. `tests/corpus/README.md` has all figures, also those after the rules were changed
//! for these lines, and the number of false alarms.
//!
//! The crate depends on no other crate of emitree.

#![cfg_attr(
    not(test),
    warn(
        clippy::unwrap_used,
        clippy::expect_used,
        clippy::panic,
        clippy::print_stdout,
        clippy::print_stderr,
        clippy::missing_errors_doc,
        clippy::missing_panics_doc
    )
)]

mod checks;
mod chunks;
mod engine;
mod kind;
mod match_beginning;
mod rules;
mod table;
mod tail;
mod visible;

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
pub use self::visible::visible;

/// Finds secrets and personal data in text.
///
/// A scanner searches for the patterns of all its [`Kind`]s in one pass, and checks each match: check digits must be
/// valid, and placeholders, version numbers and program expressions do not pass. A finding depends only on the text
/// near it, so it is the same in a text and in [chunks](Self::chunks) of the text. Up to 16 invisible characters in a
/// row, such as zero-width characters and soft hyphens, are ignored inside a secret.
///
/// A search takes time linear in the length of the text. Every repetition is bounded, so a match has at most 640 bytes.
/// A private key, a JSON Web Token or a long base64 text may have up to 16 KiB more.
///
/// ```
/// use emitree_secrets::{Kind, Scanner};
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
    /// The rules, compiled at the first use.
    engine: OnceLock<Arc<Engine>>,
}

/// A secret and its position.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Finding {
    /// The kind of secret.
    pub kind: Kind,
    /// The position of the secret, in bytes.
    pub span: Range<usize>,
    /// The start of the whole match, which may include text before the secret, such as a name or a delimiter.
    start: usize,
}

/// An invalid pattern.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum PatternError {
    /// The pattern is not a valid regex.
    #[error("the pattern `{name}` is not a valid regex")]
    Syntax {
        /// The name of the pattern.
        name: String,
        /// The parser's error.
        source: Box<dyn StdError + Send + Sync>,
    },
    /// The pattern matches the empty text, or cannot match any text.
    #[error(
        "the pattern `{name}` matches empty text, or cannot match any text: every match must have at least one character"
    )]
    Empty {
        /// The name of the pattern.
        name: String,
    },
    /// The pattern may match more than 640 bytes.
    #[error("the pattern `{name}` may match {} bytes, but at most 640 are allowed: limit its repetitions, as in `{{1,64}}`", .longest.map_or_else(|| "any number of".to_owned(), |longest| longest.to_string()))]
    Long {
        /// The name of the pattern.
        name: String,
        /// The length of the longest match, in bytes; `None` if it is unbounded.
        longest: Option<usize>,
    },
    /// The rule does not find its own example.
    #[error("the example of `{name}` is not found by its own pattern, keywords and check")]
    Example {
        /// The name of the pattern.
        name: String,
    },
    /// The compiled pattern is too large.
    #[error("the pattern `{name}` is too large when compiled: use smaller limits for its repetitions")]
    Size {
        /// The name of the pattern.
        name: String,
        /// The compiler's error.
        source: Box<dyn StdError + Send + Sync>,
    },
}

impl Scanner {
    /// Returns a scanner for all kinds.
    #[must_use]
    pub fn new() -> Self {
        static ALL: LazyLock<Scanner> = LazyLock::new(|| Scanner::of(rules::all()));
        ALL.clone()
    }

    /// Returns a scanner that looks only for these kinds.
    pub fn only(kinds: impl IntoIterator<Item = Kind>) -> Self {
        let kinds: Vec<Kind> = kinds.into_iter().collect();
        Self::of(rules::all().into_iter().filter(|rule| kinds.iter().any(|kind| kind.is_of(rule))).collect())
    }

    /// Returns a scanner for keys, tokens and passwords, but not for personal data.
    #[must_use]
    pub fn keys() -> Self {
        static KEYS: LazyLock<Scanner> = LazyLock::new(|| Scanner::new().keep(|kind| !kind.is_personal()));
        KEYS.clone()
    }

    /// Returns a scanner that does not look for these kinds.
    #[must_use]
    pub fn except(&self, kinds: &[Kind]) -> Self {
        self.keep(|kind| !kinds.contains(kind))
    }

    /// Returns a scanner that also looks for these kinds.
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

    /// Returns a scanner with your own pattern, which is tried before all other patterns. Its first group is the
    /// secret; if the group is empty or missing, the whole match is the secret.
    ///
    /// # Errors
    ///
    /// Returns an error if the pattern is not a valid regex, matches the empty text, may match more than 640 bytes, or
    /// is too large when compiled.
    pub fn pattern(&self, name: &str, regex: &str) -> Result<Self, PatternError> {
        self.own(PreparedRule::pattern(name, regex))
    }

    /// Returns a scanner with a rule of your own, which is tried before all other rules. A rule has the form of a row
    /// of the [table](Self::table).
    ///
    /// In the pattern, classes such as `\w` and `\d` and the word boundary `\b` follow Unicode.
    ///
    /// # Errors
    ///
    /// Returns an error if the pattern is not a valid regex, matches the empty text, may match more than 640 bytes, or
    /// is too large when compiled. Also returns an error if the rule does not find its own example.
    pub fn rule(&self, rule: &Rule) -> Result<Self, PatternError> {
        let own = Self::only([]).own(PreparedRule::own(rule))?;
        if !rule.example.is_empty() && own.is_clean(&rule.drawn(0)) {
            return Err(PatternError::Example { name: rule.name.to_owned() });
        }
        self.own(PreparedRule::own(rule))
    }

    /// Returns the table of built-in rules, one row for each format of a kind.
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

    #[expect(
        clippy::expect_used,
        reason = "each pattern compiles by itself, and all of them together have no size limit"
    )]
    fn engine(&self) -> &Arc<Engine> {
        self.0.engine.get_or_init(|| Arc::new(Engine::new(self.0.rules.clone()).expect("patterns that compile")))
    }

    /// Returns all secrets in a text, from left to right. The findings do not overlap.
    #[must_use]
    pub fn find(&self, text: &str) -> Vec<Finding> {
        let engine = self.engine();
        let visible = Visible::of(text);
        let mut from = 0;
        let next = || {
            let finding = engine.next(&visible.text, from)?;
            from = finding.span.end;
            Some(within(&visible, finding))
        };
        std::iter::from_fn(next).collect()
    }

    /// Returns the text with each secret replaced by the result of a function; borrows the text if it contains no
    /// secret.
    pub fn replace<'t>(&self, text: &'t str, mut by: impl FnMut(&Kind, &str) -> String) -> Cow<'t, str> {
        let visible = Visible::of(text);
        let mut replaced: Option<String> = None;
        let mut from = 0;
        let mut done = 0;
        while let Some(Finding { kind, span, .. }) = self.engine().next(&visible.text, from) {
            let out = replaced.get_or_insert_default();
            *out += &text[done..visible.begin(span.start)];
            *out += &by(&kind, &visible.text[span.clone()]);
            (from, done) = (span.end, visible.end(span.end));
        }
        replaced.map_or(Cow::Borrowed(text), |out| Cow::Owned(out + &text[done..]))
    }

    /// Returns the first secret in a text.
    #[must_use]
    pub fn find_first(&self, text: &str) -> Option<Finding> {
        let visible = Visible::of(text);
        Some(within(&visible, self.engine().next(&visible.text, 0)?))
    }

    /// Returns `true` if a text has no secret.
    #[must_use]
    pub fn is_clean(&self, text: &str) -> bool {
        self.find_first(text).is_none()
    }

    /// Returns a searcher for text that arrives in chunks.
    #[must_use]
    pub fn chunks(&self) -> Chunks {
        Chunks::new(Arc::clone(self.engine()))
    }

    /// Returns the maximum number of bytes that [chunks](Self::chunks) hold back.
    #[must_use]
    pub fn window(&self) -> usize {
        self.engine().window()
    }

    /// Returns the kinds that the scanner looks for, each once.
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

    /// Returns the scanner's patterns with their kinds, in the syntax of the crate `regex`. Patterns of
    /// [`Kind::Custom`] match Unicode text; all other patterns match bytes.
    pub fn patterns(&self) -> impl Iterator<Item = (&Kind, &str)> {
        self.engine().rules().map(|rule| (&rule.kind, rule.pattern.as_str()))
    }
}

/// Converts the positions of a finding in visible text to positions in the original text.
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
