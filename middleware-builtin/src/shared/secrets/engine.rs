//! All patterns at once: where the next secret is, and how much of a text is too short to tell.
//!
//! 1. Text is read from left to right. At the first byte where a pattern matches, the rules are asked in their order; the
//!    first whose match passes its check has found a secret, and reading goes on behind it. If none passes, it goes on at
//!    the next byte.
//! 2. What is found at a byte depends on at most [`BEFORE`] bytes before it and a bounded number behind it. So it is the
//!    same in a text and in the pieces of that text, provided that nothing is decided before that number is there.
//! 3. A byte from which on all that there is could be the beginning of a match is not decided.

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

/// So many bytes before a match are looked at.
pub(super) const BEFORE: usize = 48;
/// And behind it.
pub(super) const AFTER: usize = 8;
/// The longest match of a pattern without its tail.
pub(super) const LONGEST_MATCH: usize = 640;
/// As large as the program of one pattern may become.
const PROGRAM: usize = 1 << 20;

/// Rules, ready to be used.
#[derive(Debug)]
pub(super) struct Engine {
    rules: Vec<CompiledRule>,
    any: Regex,
    /// What is at the end of a text and could be the beginning of a match.
    begun: Regex,
    /// How long a match can be, without its tail.
    longest: usize,
    window: usize,
}

/// A rule, ready to be used.
#[derive(Debug)]
struct CompiledRule {
    rule: PreparedRule,
    regex: Regex,
    /// How short a match can be, without its tail.
    shortest: usize,
    /// The bytes that a match can begin with: most rules are not asked at most places.
    first: FirstBytes,
}

impl CompiledRule {
    fn new(rule: PreparedRule, hir: &Hir) -> Result<Self, PatternError> {
        let (regex, shortest) = (compile(&rule, hir)?, hir.properties().minimum_len().unwrap_or(0));
        Ok(Self { rule, regex, shortest, first: FirstBytes::of(hir) })
    }
}

/// What is known of a byte at which a pattern matches.
#[derive(Clone, Debug)]
pub(super) enum MatchState {
    Secret(Finding),
    Nothing,
    /// The text is too short.
    Open,
}

/// Reads a pattern, and refuses one that could run on.
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

/// The program of a pattern.
pub(super) fn compile(rule: &PreparedRule, hir: &Hir) -> Result<Regex, PatternError> {
    let built = Regex::builder().configure(config().nfa_size_limit(Some(PROGRAM))).build_from_hir(hir);
    built.map_err(|error| PatternError::Size { name: rule.kind.as_str().to_owned(), source: Box::new(error) })
}

fn config() -> Config {
    // Patterns of bytes may match in the middle of a character: what they find is looked at by its group.
    Config::new().utf8_empty(false)
}

impl Engine {
    /// Of rules that were checked.
    pub(super) fn new(rules: Vec<PreparedRule>) -> Result<Self, PatternError> {
        let hirs: Vec<Hir> = rules.iter().map(parse).collect::<Result<_, _>>()?;
        let all = |error| PatternError::Size { name: "all together".to_owned(), source: Box::new(error) };
        let roomy = || config().nfa_size_limit(None).hybrid_cache_capacity(8 << 20);
        let any = roomy().which_captures(WhichCaptures::Implicit);
        let begun = Hir::concat(vec![Hir::alternation(hirs.iter().map(beginning).collect()), Hir::look(Look::End)]);
        let longest = hirs.iter().filter_map(|hir| hir.properties().maximum_len()).max().unwrap_or(0);
        let tail = if rules.iter().any(|rule| rule.tail.is_some()) { LONGEST } else { 0 };
        Ok(Self {
            any: Regex::builder().configure(any).build_many_from_hir(&hirs).map_err(all)?,
            begun: Regex::builder().configure(roomy()).build_from_hir(&begun).map_err(all)?,
            longest,
            window: longest + tail + AFTER,
            rules: rules
                .into_iter()
                .zip(&hirs)
                .map(|(rule, hir)| CompiledRule::new(rule, hir))
                .collect::<Result<_, _>>()?,
        })
    }

    /// At most so many bytes are held back.
    pub(super) const fn window(&self) -> usize {
        self.window
    }

    pub(super) fn rules(&self) -> impl Iterator<Item = &PreparedRule> {
        self.rules.iter().map(|of| &of.rule)
    }

    /// The first byte from there on at which a pattern matches, and which one.
    pub(super) fn hit(&self, text: &str, from: usize) -> Option<(usize, usize)> {
        let found = self.any.search(&Input::new(text).range(from..))?;
        Some((found.start(), found.pattern().as_usize()))
    }

    /// The first secret from there on.
    pub(super) fn next(&self, text: &str, from: usize) -> Option<Finding> {
        let mut at = from;
        while let Some((start, rule)) = self.hit(text, at) {
            match self.decide(text, (start, rule), true) {
                MatchState::Secret(finding) => return Some(finding),
                MatchState::Nothing | MatchState::Open => at = start + 1,
            }
        }
        None
    }

    /// The first byte from there on that is not decided before more text comes.
    pub(super) fn undecided(&self, text: &str, from: usize) -> usize {
        // What began before that is too long to be a match.
        let from = from.max(text.len().saturating_sub(self.longest));
        let found = self.begun.search(&Input::new(text).range(from..));
        found.map_or(text.len(), |found| found.start())
    }

    /// What is at a byte where a pattern matches.
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

    /// A value that is known by its name may be known by itself, and better.
    fn refine(&self, text: &str, vague: Finding, is_whole: bool) -> MatchState {
        let mut at = vague.start + 1;
        while let Some((start, rule)) = self.hit(text, at).filter(|(start, _)| *start <= vague.span.start) {
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

/// What a rule says of a byte.
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
    // An empty secret would be found again and again.
    let group = groups.get_group(1).filter(|group| !group.is_empty());
    let secret = group.map_or(whole.range(), |group| group.range());
    let end = match rule.tail.map_or(TailEnd::At(whole.end()), |tail| tail.read(text, whole.end(), is_whole)) {
        TailEnd::At(end) => end,
        TailEnd::Never => return MatchState::Nothing,
        TailEnd::Open => return MatchState::Open,
    };
    // A pattern of bytes that is cut at its bound may end in the middle of a character.
    let secret = secret.start..text.floor_char_boundary(if rule.tail.is_some() { end } else { secret.end });
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
    /// The rules that find it.
    pub(super) fn is_of(&self, rule: &PreparedRule) -> bool {
        rule.kind == *self
    }
}
