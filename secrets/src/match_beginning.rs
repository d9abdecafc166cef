//! Patterns that match the beginnings of another pattern's matches.

use regex_syntax::hir::{Capture, Class, Hir, HirKind, Repetition};

/// The maximum number of repetitions that are counted. Counting more repetitions would need thousands of states.
const COUNTED: u32 = 8;

/// Returns a pattern that matches every beginning of a match, including the empty text and the whole match. It ignores
/// assertions about the surrounding text and does not count long repetitions, so it may match further texts as well.
pub(super) fn beginning(of: &Hir) -> Hir {
    match of.kind() {
        HirKind::Empty | HirKind::Look(_) => Hir::empty(),
        HirKind::Literal(literal) => literal
            .0
            .iter()
            .rev()
            .fold(Hir::empty(), |rest, byte| optional(Hir::concat(vec![Hir::literal([*byte]), rest]))),
        HirKind::Class(class) => optional(Hir::class(class.clone())),
        HirKind::Capture(capture) => beginning(&capture.sub),
        HirKind::Alternation(all) => Hir::alternation(all.iter().map(beginning).collect()),
        // A beginning of a sequence ends in its first part, or is that part followed by a beginning of the rest.
        HirKind::Concat(all) => all.iter().rev().fold(Hir::empty(), |rest, part| {
            Hir::alternation(vec![Hir::concat(vec![bare(part), rest]), beginning(part)])
        }),
        HirKind::Repetition(repetition) => repeated(repetition),
    }
}

/// Returns a pattern that matches complete repetitions, followed by the beginning of one more repetition.
fn repeated(repetition: &Repetition) -> Hir {
    let unfinished = beginning(&repetition.sub);
    let sub = bare(&repetition.sub);
    let max = counted(repetition.max).map(|max| max.saturating_sub(1));
    let before = Hir::repetition(Repetition { min: 0, max, greedy: true, sub: Box::new(sub) });
    Hir::concat(vec![before, unfinished])
}

fn counted(max: Option<u32>) -> Option<u32> {
    max.filter(|max| *max <= COUNTED)
}

fn optional(hir: Hir) -> Hir {
    Hir::repetition(Repetition { min: 0, max: Some(1), greedy: true, sub: Box::new(hir) })
}

/// Returns the pattern without groups and without assertions about the surrounding text. Repetitions beyond
/// [`COUNTED`] are not counted.
fn bare(hir: &Hir) -> Hir {
    match hir.kind() {
        HirKind::Look(_) => Hir::empty(),
        HirKind::Capture(Capture { sub, .. }) => bare(sub),
        HirKind::Concat(all) => Hir::concat(all.iter().map(bare).collect()),
        HirKind::Alternation(all) => Hir::alternation(all.iter().map(bare).collect()),
        HirKind::Repetition(repetition) => {
            let min = repetition.min.min(COUNTED);
            let max = counted(repetition.max);
            Hir::repetition(Repetition { min, max, greedy: true, sub: Box::new(bare(&repetition.sub)) })
        }
        HirKind::Empty | HirKind::Literal(_) | HirKind::Class(_) => hir.clone(),
    }
}

/// The bytes that a match can begin with.
#[derive(Clone, Debug)]
pub(super) struct FirstBytes([u128; 2]);

impl FirstBytes {
    pub(super) fn of(hir: &Hir) -> Self {
        let mut bytes = Self([0; 2]);
        if bytes.add(hir) {
            bytes = Self([u128::MAX; 2]);
        }
        bytes
    }

    /// Returns `true` if a match can begin at an offset.
    pub(super) fn has(&self, text: &str, at: usize) -> bool {
        text.as_bytes().get(at).is_some_and(|byte| self.0[usize::from(byte >> 7)] >> (byte & 127) & 1 == 1)
    }

    fn add_range(&mut self, from: u8, to: u8) {
        (from..=to).for_each(|byte| self.0[usize::from(byte >> 7)] |= 1 << (byte & 127));
    }

    /// Adds the first bytes of a pattern. Returns `true` if the pattern may match the empty text, because a match may
    /// then begin with the next part.
    fn add(&mut self, hir: &Hir) -> bool {
        match hir.kind() {
            HirKind::Empty | HirKind::Look(_) => true,
            HirKind::Literal(literal) => literal.0.first().is_none_or(|byte| {
                self.add_range(*byte, *byte);
                false
            }),
            HirKind::Class(Class::Bytes(class)) => {
                class.iter().for_each(|range| self.add_range(range.start(), range.end()));
                false
            }
            HirKind::Class(Class::Unicode(class)) => {
                for range in class.iter() {
                    match (u8::try_from(range.start()), u8::try_from(range.end())) {
                        (Ok(from), Ok(to)) if to < 128 => self.add_range(from, to),
                        (Ok(from), _) if from < 128 => self.add_range(from, 255),
                        _ => self.add_range(128, 255),
                    }
                }
                false
            }
            HirKind::Capture(capture) => self.add(&capture.sub),
            HirKind::Repetition(repetition) => self.add(&repetition.sub) || repetition.min == 0,
            // `all` stops at the first part that cannot be empty.
            HirKind::Concat(parts) => parts.iter().all(|part| self.add(part)),
            HirKind::Alternation(parts) => {
                let mut may_be_empty = false;
                for part in parts {
                    may_be_empty |= self.add(part);
                }
                may_be_empty
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use regex_automata::meta::Regex;

    use super::*;

    fn begins(pattern: &str, text: &str) -> bool {
        let hir = regex_syntax::parse(pattern).expect("a pattern");
        let look = |look| Hir::look(look);
        let whole = [look(regex_syntax::hir::Look::Start), beginning(&hir), look(regex_syntax::hir::Look::End)];
        Regex::builder().build_from_hir(&Hir::concat(whole.into())).expect("a pattern").is_match(text)
    }

    #[test]
    fn beginnings_of_a_match_are_recognized_and_repetitions_counted_up_to_eight() {
        let rows = [
            ("abc", vec!["", "a", "ab", "abc"], vec!["b", "abcd", "ac"]),
            ("a{2,3}b", vec!["a", "aa", "aaa", "aab", "aaab"], vec!["aaaa", "b"]),
            ("(?:ab|cd)e", vec!["a", "ab", "abe", "c", "cd", "cde"], vec!["e", "ad"]),
            (r"\bx(y[0-9]){1,2}\b", vec!["x", "xy", "xy1", "xy1y", "xy1y2"], vec!["xy1y2y", "y"]),
            ("a{9,10}b", vec!["a", "aaaaaaaaaaaaab"], vec!["aab", "ba"]),
            ("é?f", vec!["", "é", "f", "éf"], vec!["e"]),
        ];
        for (pattern, beginnings, others) in rows {
            for text in beginnings {
                assert!(begins(pattern, text), "`{text}` begins `{pattern}`");
            }
            for text in others {
                assert!(!begins(pattern, text), "`{text}` does not begin `{pattern}`");
            }
        }
    }
}
