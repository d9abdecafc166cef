//! The search for all patterns at once.
//!
//! 1. Text is read from left to right. At the first byte where a pattern matches, the rules are tried in their order.
//!    The first rule whose match passes its check has found a secret, and the search continues after the secret. If the
//!    rule is vague, the finding of another rule for the same secret may replace its finding. If no rule has found a
//!    secret, the search continues at the next byte.
//! 2. The decision at a byte depends on at most [`BEFORE`] bytes before it and on a bounded number of bytes after it.
//!    The decision is the same in a text and in its chunks, because it is made only when these bytes have arrived.
//! 3. A byte is undecided while all text from that byte on may be the beginning of a match.

use regex_automata::meta::{Config, Regex};
use regex_automata::nfa::thompson::WhichCaptures;
use regex_automata::{Anchored, Input};
use regex_syntax::hir::{Hir, Look};

use super::checks::Candidate;
use super::kind::Kind;
use super::match_beginning::{FirstBytes, beginning};
use super::rules::PreparedRule;
use super::tail::{LONGEST, TailEnd};
use super::{Finding, PatternError};

/// The maximum number of bytes that checks read before a match.
pub(super) const BEFORE: usize = 48;
/// The maximum number of bytes that checks read after a match.
pub(super) const AFTER: usize = 8;
/// The maximum length of a pattern's match, without its tail, in bytes.
pub(super) const LONGEST_MATCH: usize = 640;
/// The maximum size of one compiled pattern, in bytes.
const PROGRAM: usize = 1 << 20;

/// The compiled rules.
#[derive(Debug)]
pub(super) struct Engine {
    rules: Vec<CompiledRule>,
    any: Regex,
    /// Matches at the end of a text if more text could complete a match.
    unfinished: Regex,
    /// The length of the longest match, without its tail.
    longest: usize,
    window: usize,
}

/// A rule with its compiled pattern.
#[derive(Debug)]
struct CompiledRule {
    rule: PreparedRule,
    regex: Regex,
    /// The length of the shortest match, without its tail.
    shortest: usize,
    /// The bytes that a match can begin with. A rule is not tried at other bytes.
    first: FirstBytes,
}

impl CompiledRule {
    fn new(rule: PreparedRule, hir: &Hir) -> Result<Self, PatternError> {
        let regex = compile(&rule, hir)?;
        let shortest = hir.properties().minimum_len().unwrap_or(0);
        Ok(Self { rule, regex, shortest, first: FirstBytes::of(hir) })
    }
}

/// The decision at a byte where a pattern matches.
#[derive(Clone, Debug)]
pub(super) enum MatchState {
    Secret(Finding),
    Nothing,
    /// More text is needed.
    Open,
}

/// Parses a pattern; returns an error if the pattern is invalid, or if it may match the empty text or more than
/// [`LONGEST_MATCH`] bytes.
pub(super) fn parse(rule: &PreparedRule) -> Result<Hir, PatternError> {
    let name = || rule.kind.as_str().to_owned();
    let mut parser = regex_syntax::ParserBuilder::new().unicode(rule.is_unicode).utf8(rule.is_unicode).build();
    let hir =
        parser.parse(&rule.pattern).map_err(|error| PatternError::Syntax { name: name(), source: Box::new(error) })?;
    match (hir.properties().minimum_len(), hir.properties().maximum_len()) {
        (Some(1..), Some(..=LONGEST_MATCH)) => Ok(hir),
        (None | Some(0), _) => Err(PatternError::Empty { name: name() }),
        (_, longest) => Err(PatternError::Long { name: name(), longest }),
    }
}

/// Compiles a pattern; returns an error if the compiled pattern is larger than [`PROGRAM`] bytes.
pub(super) fn compile(rule: &PreparedRule, hir: &Hir) -> Result<Regex, PatternError> {
    let built = Regex::builder().configure(config().nfa_size_limit(Some(PROGRAM))).build_from_hir(hir);
    built.map_err(|error| PatternError::Size { name: rule.kind.as_str().to_owned(), source: Box::new(error) })
}

fn config() -> Config {
    // A byte pattern may match a part of a character. `check_rule` rounds the end of such a match down to a character
    // boundary.
    Config::new().utf8_empty(false)
}

impl Engine {
    /// Compiles rules; returns an error if a pattern is invalid or too large.
    pub(super) fn new(rules: Vec<PreparedRule>) -> Result<Self, PatternError> {
        let hirs: Vec<Hir> = rules.iter().map(parse).collect::<Result<_, _>>()?;
        let all = |error| PatternError::Size { name: "all together".to_owned(), source: Box::new(error) };
        let roomy = || config().nfa_size_limit(None).hybrid_cache_capacity(8 << 20);
        // The search for all patterns needs only the starts of matches; the rule that matches captures its groups
        // afterwards.
        let any = roomy().which_captures(WhichCaptures::Implicit);
        let unfinished =
            Hir::concat(vec![Hir::alternation(hirs.iter().map(beginning).collect()), Hir::look(Look::End)]);
        let longest = hirs.iter().filter_map(|hir| hir.properties().maximum_len()).max().unwrap_or(0);
        let tail = if rules.iter().any(|rule| rule.tail.is_some()) { LONGEST } else { 0 };
        Ok(Self {
            any: Regex::builder().configure(any).build_many_from_hir(&hirs).map_err(all)?,
            unfinished: Regex::builder().configure(roomy()).build_from_hir(&unfinished).map_err(all)?,
            longest,
            window: longest + tail + AFTER,
            rules: rules
                .into_iter()
                .zip(&hirs)
                .map(|(rule, hir)| CompiledRule::new(rule, hir))
                .collect::<Result<_, _>>()?,
        })
    }

    /// Returns the maximum number of bytes that are held back.
    pub(super) const fn window(&self) -> usize {
        self.window
    }

    pub(super) fn rules(&self) -> impl Iterator<Item = &PreparedRule> {
        self.rules.iter().map(|of| &of.rule)
    }

    /// Returns the offset of the next match of any pattern, and the index of that pattern.
    pub(super) fn next_match(&self, text: &str, from: usize) -> Option<(usize, usize)> {
        let found = self.any.search(&Input::new(text).range(from..))?;
        Some((found.start(), found.pattern().as_usize()))
    }

    /// Returns the first secret at or after the offset `from`.
    pub(super) fn next(&self, text: &str, from: usize) -> Option<Finding> {
        let mut at = from;
        while let Some((start, rule)) = self.next_match(text, at) {
            match self.decide(text, (start, rule), true) {
                MatchState::Secret(finding) => return Some(finding),
                MatchState::Nothing | MatchState::Open => at = start + 1,
            }
        }
        None
    }

    /// Returns the first undecided byte (3), or the end of the text if all bytes are decided.
    pub(super) fn undecided(&self, text: &str, from: usize) -> usize {
        // A match that began before this byte would be too long.
        let from = from.max(text.len().saturating_sub(self.longest));
        let found = self.unfinished.search(&Input::new(text).range(from..));
        found.map_or(text.len(), |found| found.start())
    }

    /// Checks whether a secret begins at a byte where a pattern matches.
    pub(super) fn decide(&self, text: &str, (start, first): (usize, usize), is_whole: bool) -> MatchState {
        for of in self.rules[first..].iter().filter(|of| of.first.has(text, start)) {
            match check_rule(of, text, start, is_whole) {
                MatchState::Secret(finding) if of.rule.is_vague => return self.refine(text, finding, is_whole),
                MatchState::Nothing => {}
                decision => return decision,
            }
        }
        MatchState::Nothing
    }

    /// Looks for a better finding: a value that was recognized by its context may also have a known format.
    fn refine(&self, text: &str, vague: Finding, is_whole: bool) -> MatchState {
        let mut at = vague.start + 1;
        while let Some((start, rule)) = self.next_match(text, at).filter(|(start, _)| *start <= vague.span.start) {
            // Personal data inside a password is not a better finding.
            let is_clear = |of: &&CompiledRule| !of.rule.is_vague && !of.rule.kind.is_personal();
            let may_begin = |of: &&CompiledRule| of.first.has(text, start);
            for of in self.rules[rule..].iter().filter(is_clear).filter(may_begin) {
                match check_rule(of, text, start, is_whole) {
                    MatchState::Nothing => {}
                    MatchState::Open => return MatchState::Open,
                    MatchState::Secret(clear) if clear.span.start > vague.span.start => {}
                    MatchState::Secret(clear) => return MatchState::Secret(clear),
                }
            }
            at = start + 1;
        }
        MatchState::Secret(vague)
    }
}

/// Tries a rule at a byte.
fn check_rule(
    CompiledRule { rule, regex, shortest, .. }: &CompiledRule,
    text: &str,
    start: usize,
    is_whole: bool,
) -> MatchState {
    let input = Input::new(text).range(start..).anchored(Anchored::Yes);
    let mut groups = regex.create_captures();
    regex.search_captures(&input, &mut groups);
    let Some(whole) = groups.get_match() else { return MatchState::Nothing };
    // Ignore an empty group: an empty secret would be found again and again.
    let group = groups.get_group(1).filter(|group| !group.is_empty());
    let secret = group.map_or(whole.range(), |group| group.range());
    let end = match rule.tail.map_or(TailEnd::At(whole.end()), |tail| tail.read(text, whole.end(), is_whole)) {
        TailEnd::At(end) => end,
        TailEnd::Never => return MatchState::Nothing,
        TailEnd::Open => return MatchState::Open,
    };
    // A match of a byte pattern that has the maximum length may end inside a character.
    let secret = secret.start..text.floor_char_boundary(if rule.tail.is_some() { end } else { secret.end });
    // The check reads the text after the match: wait for that text (2).
    if !is_whole && end + AFTER > text.len() {
        return MatchState::Open;
    }
    let before = text.ceil_char_boundary(start.saturating_sub(BEFORE));
    let after = text.floor_char_boundary(text.len().min(end + AFTER));
    let candidate = Candidate {
        before: &text[before..secret.start],
        secret: &text[secret.clone()],
        shortest: shortest.saturating_sub(secret.start - start),
        after: &text[secret.end..after.max(secret.end)],
    };
    match rule.check.passes(&candidate) {
        Some(len) => {
            MatchState::Secret(Finding { kind: rule.kind.clone(), start, span: secret.start..secret.start + len })
        }
        None => MatchState::Nothing,
    }
}

impl Kind {
    /// Returns `true` if a rule finds this kind.
    pub(super) fn is_of(&self, rule: &PreparedRule) -> bool {
        rule.kind == *self
    }
}
