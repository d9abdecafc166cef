//! The rules that find secrets: [`Rule`].

use std::fmt;

use super::checks::{self, Candidate};
use super::kind::Kind;
use super::table::TABLE;
use super::tail::Tail;

/// A rule that finds one format of a kind of secret: a row of the built-in table, or your own rule.
///
/// ```
/// use emitree_secrets::{Check, Rule, Scanner};
///
/// const ACME: Rule = Rule {
///     name: "acme_key",
///     pattern: r"\bacme_[a-z0-9]{24}\b",
///     near: &[],
///     check: Check::RANDOM,
///     source: "https://acme.example/docs/keys",
///     example: "acme_‹l24›",
/// };
///
/// let scanner = Scanner::new().rule(&ACME)?;
/// let text = format!("the key is {}", ACME.drawn(7));
/// assert_eq!(scanner.find(&text)[0].kind.as_str(), "acme_key");
/// # Ok::<(), emitree_secrets::PatternError>(())
/// ```
#[derive(Clone, Copy, Debug)]
pub struct Rule {
    /// The name of the kind, as events and replacements show it.
    pub name: &'static str,
    /// The pattern, in the syntax of the crate `regex`. Its first group is the secret; without a group, the whole match
    /// is the secret.
    pub pattern: &'static str,
    /// Patterns of keywords, which ignore the case of letters. A keyword must come before the secret, on the same line
    /// and at most about 40 characters away. Empty if the format needs no keyword. With keywords, `pattern` matches
    /// only the secret and has no group.
    pub near: &'static [&'static str],
    /// The check that a match must pass.
    pub check: Check,
    /// The address of a page that documents the format.
    pub source: &'static str,
    /// A template for a made-up example. In a template, `‹a36›` stands for 36 letters and digits; see
    /// [`drawn`](Self::drawn). With keywords, the secret is the text after the last space.
    pub example: &'static str,
}

impl Rule {
    /// Returns the example with random characters in its holes. The same seed gives the same characters.
    ///
    /// A hole, such as `‹a36›`, consists of a letter for an alphabet and the number of characters. The alphabets are
    /// `a` (letters and digits), `b` (letters, digits and `-_`), `s` (letters, digits and `+/`), `l` (lower-case
    /// letters), `U` (upper-case letters and digits), `u` (upper-case letters and `2` to `7`), `B` (the characters of
    /// Bech32), `x` and `X` (lower-case and upper-case hexadecimal digits), and `d` (digits). An empty hole is removed.
    #[must_use]
    pub fn drawn(&self, seed: u64) -> String {
        let mut state = seed ^ 0x9e37_79b9_7f4a_7c15;
        let mut drawn = String::new();
        for (nth, part) in self.example.split(['‹', '›']).enumerate() {
            if nth % 2 == 0 {
                drawn += part;
                continue;
            }
            let (class, count) = part.split_at(part.len().min(1));
            let alphabet = alphabet(class).as_bytes();
            let count = if alphabet.is_empty() { 0 } else { count.parse().unwrap_or(0) };
            (0..count).for_each(|_| drawn.push(char::from(alphabet[next(&mut state) % alphabet.len()])));
        }
        drawn
    }
}

fn alphabet(class: &str) -> &'static str {
    match class {
        "a" => "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789",
        "b" => "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_",
        "s" => "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/",
        "l" => "abcdefghijklmnopqrstuvwxyz",
        "U" => "ABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789",
        "u" => "ABCDEFGHIJKLMNOPQRSTUVWXYZ234567",
        "B" => "QPZRY9X8GF2TVDW0S3JN54KHCE6MUA7L",
        "x" => "0123456789abcdef",
        "X" => "0123456789ABCDEF",
        "d" => "0123456789",
        _ => "",
    }
}

/// Returns the next xorshift number. Xorshift is random enough for examples.
fn next(state: &mut u64) -> usize {
    *state ^= *state << 13;
    *state ^= *state >> 7;
    *state ^= *state << 17;
    usize::try_from(*state >> 33).unwrap_or_default()
}

/// A check that a match must pass in addition to its pattern.
#[derive(Clone, Copy)]
pub struct Check {
    test: Test,
    tail: Option<Tail>,
    /// `true` if the rule recognizes its secret by the text before it. Rules that recognize the secret itself are
    /// preferred.
    is_vague: bool,
}

#[derive(Clone, Copy)]
enum Test {
    Of(checks::CheckFn),
    Own(fn(&str) -> bool),
}

impl Check {
    /// Accepts every match.
    pub const ANY: Self = Self::of(checks::any);
    /// Accepts a random token: it has at least eight different characters, and is not a placeholder.
    pub const RANDOM: Self = Self::of(checks::token);
    /// Accepts a random token of letters of both cases, usually with digits, or of hexadecimal digits only. No further
    /// characters of a token may follow. Use this check for secrets with a fixed length and no prefix.
    pub const MIXED: Self = Self::of(checks::mixed);

    pub(super) const BLOCK: Self = Self::of(checks::any).with_tail(Tail::Block);
    pub(super) const JWT: Self = Self::of(checks::any).with_tail(Tail::Jwt);
    pub(super) const RUN: Self = Self::of(checks::token).with_tail(Tail::Run);
    pub(super) const ASSIGNED: Self = Self::of(checks::assigned).vague();
    pub(super) const QUOTED: Self = Self::of(checks::quoted).vague();
    pub(super) const LETTERS: Self = Self::of(checks::letters).vague();
    pub(super) const ENTRY: Self = Self::of(checks::entry).vague();
    pub(super) const COOKIE: Self = Self::of(checks::cookie).vague();
    pub(super) const SESSION: Self = Self::of(checks::session).vague();
    pub(super) const DOCKER_AUTH: Self = Self::of(checks::docker_auth).with_tail(Tail::Run).vague();
    pub(super) const DOCKER_CONFIG: Self = Self::of(checks::docker_config).with_tail(Tail::Run);
    pub(super) const PAIR: Self = Self::of(checks::pair).vague();
    pub(super) const ELEMENT: Self = Self::of(checks::element).vague();
    pub(super) const SETTING: Self = Self::of(checks::setting).vague();
    pub(super) const LOGIN: Self = Self::of(checks::login).vague();
    pub(super) const ENTIRE: Self = Self::of(checks::entire).vague();
    pub(super) const URL_PASSWORD: Self = Self::of(checks::url_password).vague();
    pub(super) const EMAIL: Self = Self::of(checks::email);
    pub(super) const IBAN: Self = Self::of(checks::iban);
    pub(super) const CARD: Self = Self::of(checks::card);
    pub(super) const PHONE: Self = Self::of(checks::phone);
    pub(super) const IP: Self = Self::of(checks::ip);
    pub(super) const SSN: Self = Self::of(checks::ssn);

    const fn of(test: checks::CheckFn) -> Self {
        Self { test: Test::Of(test), tail: None, is_vague: false }
    }

    /// Returns a check that accepts a match if the function returns `true` for its secret.
    #[must_use]
    pub const fn by(is_secret: fn(&str) -> bool) -> Self {
        Self { test: Test::Own(is_secret), tail: None, is_vague: false }
    }

    const fn with_tail(self, tail: Tail) -> Self {
        Self { tail: Some(tail), ..self }
    }

    const fn vague(self) -> Self {
        Self { is_vague: true, ..self }
    }

    /// Returns the length of the secret in bytes, or `None` if the match does not pass.
    pub(super) fn passes(self, candidate: &Candidate<'_>) -> Option<usize> {
        match self.test {
            Test::Of(check) => check(candidate),
            Test::Own(is_secret) => is_secret(candidate.secret).then_some(candidate.secret.len()),
        }
    }
}

impl fmt::Debug for Check {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Check").field("tail", &self.tail).field("is_vague", &self.is_vague).finish_non_exhaustive()
    }
}

/// A rule in the form that the engine compiles.
#[derive(Clone, Debug)]
pub(super) struct PreparedRule {
    pub(super) kind: Kind,
    pub(super) pattern: String,
    /// `true` if the pattern matches the letters, digits and word boundaries of Unicode.
    pub(super) is_unicode: bool,
    pub(super) check: Check,
    /// The text after the match that belongs to the secret.
    pub(super) tail: Option<Tail>,
    pub(super) is_vague: bool,
}

impl PreparedRule {
    fn new(kind: Kind, rule: &Rule) -> Self {
        let Rule { pattern, near, check, .. } = *rule;
        let pattern = if near.is_empty() { pattern.to_owned() } else { after_keyword(near, pattern) };
        let is_vague = check.is_vague || !near.is_empty();
        Self { kind, pattern, is_unicode: false, check, tail: check.tail, is_vague }
    }

    /// Creates a rule from a user's pattern.
    pub(super) fn pattern(name: &str, pattern: &str) -> Self {
        let kind = Kind::Custom(name.into());
        Self { kind, pattern: pattern.to_owned(), is_unicode: true, check: Check::ANY, tail: None, is_vague: false }
    }

    /// Prepares a user's rule for the engine.
    pub(super) fn own(rule: &Rule) -> Self {
        Self { is_unicode: true, ..Self::new(Kind::Custom(rule.name.into()), rule) }
    }
}

/// Returns a pattern for a secret that follows a keyword on the same line. Some text, such as the rest of a name, may
/// be between the keyword and the secret.
fn after_keyword(near: &[&str], secret: &str) -> String {
    format!(r"(?i:{})(?:[^a-z\n][^\n]{{0,40}}?)?[^0-9A-Za-z\n]({secret})", near.join("|"))
}

/// Returns the rules of the table, in their order.
pub(super) fn all() -> Vec<PreparedRule> {
    TABLE.iter().map(|rule| PreparedRule::new(Kind::of_line(rule.name), rule)).collect()
}
