//! What a line of the table says, and how one's own is said: [`Rule`].

use std::fmt;

use super::checks::{self, Candidate};
use super::kind::Kind;
use super::table::TABLE;
use super::tail::Tail;

/// How a kind of secret is found: one line of the table of kinds, or one of your own.
///
/// ```
/// use emitree_middleware::secrets::{Check, Rule, Scanner};
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
/// # Ok::<(), emitree_middleware::secrets::PatternError>(())
/// ```
#[derive(Clone, Copy, Debug)]
pub struct Rule {
    /// The name of the kind, as it stands in events and in place of a secret.
    pub name: &'static str,
    /// A pattern in the syntax of the crate `regex`. The first group is the secret, or all that it matches.
    pub pattern: &'static str,
    /// Patterns of keywords, in any case: one of them stands before the secret, in the same line and at most 40 bytes
    /// before it. Empty if the format is known by itself. With keywords, `pattern` is the secret alone, without a group.
    pub near: &'static [&'static str],
    /// What a match has to pass besides.
    pub check: Check,
    /// A page where the format is documented.
    pub source: &'static str,
    /// An example that is not real, as a template: `‹a36›` stands for 36 letters and digits, see [`drawn`](Self::drawn).
    /// With keywords, the secret is what follows the last blank.
    pub example: &'static str,
}

impl Rule {
    /// Returns the example with its holes filled, the same for the same seed.
    ///
    /// A hole is a letter for an alphabet and a number of characters: `a` letters and digits, `b` these and `-_`, `s` these
    /// and `+/`, `l` lower-case letters and digits, `U` upper-case letters and digits, `u` upper-case letters and `2` to
    /// `7`, `B` those of Bech32, `x` and `X` hexadecimal digits, `d` digits. An empty hole is nothing.
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

/// Xorshift: examples are not secret.
fn next(state: &mut u64) -> usize {
    *state ^= *state << 13;
    *state ^= *state >> 7;
    *state ^= *state << 17;
    usize::try_from(*state >> 33).unwrap_or_default()
}

/// What a match has to pass besides its pattern.
#[derive(Clone, Copy)]
pub struct Check {
    test: Test,
    tail: Option<Tail>,
    /// It knows its secret by what stands before it: a rule that knows the secret itself is asked first.
    is_vague: bool,
}

#[derive(Clone, Copy)]
enum Test {
    Of(checks::CheckFn),
    Own(fn(&str) -> bool),
}

impl Check {
    /// Nothing.
    pub const ANY: Self = Self::of(checks::any);
    /// It looks drawn at random: eight different characters, and no word that says it is a placeholder.
    pub const RANDOM: Self = Self::of(checks::token);
    /// It also has letters of both cases and digits, or is in hexadecimal digits, and nothing follows that could belong to
    /// it: for secrets of a certain length that have no prefix.
    pub const MIXED: Self = Self::of(checks::mixed);

    pub(super) const BLOCK: Self = Self::of(checks::any).with_tail(Tail::Block);
    pub(super) const JWT: Self = Self::of(checks::any).with_tail(Tail::Jwt);
    pub(super) const RUN: Self = Self::of(checks::token).with_tail(Tail::Run);
    pub(super) const ASSIGNED: Self = Self::of(checks::assigned).vague();
    pub(super) const QUOTED: Self = Self::of(checks::quoted).vague();
    pub(super) const LETTERS: Self = Self::of(checks::letters).vague();
    pub(super) const PAIR: Self = Self::of(checks::pair).vague();
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

    /// A function that says whether a match is a secret.
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

    /// How many bytes of what is seen are a secret.
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

/// A rule as the engine takes it.
#[derive(Clone, Debug)]
pub(super) struct PreparedRule {
    pub(super) kind: Kind,
    pub(super) pattern: String,
    /// Letters, digits and boundaries are those of Unicode.
    pub(super) is_unicode: bool,
    pub(super) check: Check,
    /// What follows the match and belongs to it.
    pub(super) tail: Option<Tail>,
    pub(super) is_vague: bool,
}

impl PreparedRule {
    fn new(kind: Kind, rule: &Rule) -> Self {
        let Rule { pattern, near, check, .. } = *rule;
        let pattern = if near.is_empty() { pattern.to_owned() } else { behind(near, pattern) };
        let is_vague = check.is_vague || !near.is_empty();
        Self { kind, pattern, is_unicode: false, check, tail: check.tail, is_vague }
    }

    /// One's own, as a pattern only.
    pub(super) fn pattern(name: &str, pattern: &str) -> Self {
        let kind = Kind::Custom(name.into());
        Self { kind, pattern: pattern.to_owned(), is_unicode: true, check: Check::ANY, tail: None, is_vague: false }
    }

    /// One's own.
    pub(super) fn own(rule: &Rule) -> Self {
        Self { is_unicode: true, ..Self::new(Kind::Custom(rule.name.into()), rule) }
    }
}

/// A secret behind a keyword: more of the keyword's name, and what stands between, in one line.
fn behind(near: &[&str], secret: &str) -> String {
    format!(r"(?i:{})(?:[^a-z\n][^\n]{{0,40}}?)?[^0-9A-Za-z\n]({secret})", near.join("|"))
}

/// The rules of the table, in the order in which they are asked.
pub(super) fn all() -> Vec<PreparedRule> {
    TABLE.iter().map(|rule| PreparedRule::new(Kind::of_line(rule.name), rule)).collect()
}
