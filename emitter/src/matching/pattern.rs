//! Matches many globs and regexes at once.
//!
//! 1. Compiling takes tens of microseconds per pattern, so sets are compiled in steps and kept. Patterns that no set
//!    covers are matched one by one. When there are more than a few of them, they become a new set, together with
//!    existing sets that are not much larger. A set is merged only with at least half as many other patterns, so that a
//!    pattern is seldom compiled again.
//! 2. A set is compiled when it is first used. If `CHUNK` patterns are registered without an emit in between, the
//!    thread that registers the last pattern compiles the sets instead. New patterns thus never make an emit compile
//!    many more than `CHUNK` patterns.
//! 3. A pattern that fits into no set is matched on its own, so that no listener is lost.

use std::cmp::Reverse;
use std::sync::{Arc, OnceLock};

use globset::{Glob, GlobSet, GlobSetBuilder};
use regex::RegexSet;
use rustc_hash::{FxHashMap, FxHashSet};

use crate::Matcher;
use crate::matching::glob::slashed;
use crate::matching::matcher::MatcherKind;
use crate::registry::listener::{EventView, Listener};

/// With at most this many patterns, no set is kept.
const MAX_WITHOUT_SETS: usize = 8;
/// The largest number of patterns that are matched one by one because no set covers them. A set is dropped once it has
/// lost more than this many members plus a quarter of its original members.
const SLACK: usize = 2 * MAX_WITHOUT_SETS;
/// The largest number of members of a set.
pub(crate) const CHUNK: usize = 2048;

/// The id of a listener, and its pattern.
type Member = (u64, Matcher);

/// Patterns of an emitter's listeners, to be compiled as sets. Keeps no listener alive.
pub(crate) struct PatternSet {
    members: Vec<Member>,
    compiled: OnceLock<CompiledSets>,
}

impl PatternSet {
    const fn new(members: Vec<Member>) -> Self {
        Self { members, compiled: OnceLock::new() }
    }

    /// Brings the sets up to date with the listeners (invariant 1).
    pub(crate) fn renew(sets: &mut Vec<Arc<Self>>, listeners: &[Arc<Listener>]) {
        let patterns: FxHashMap<u64, &Matcher> = listeners
            .iter()
            .filter(|listener| listener.matcher.is_pattern())
            .map(|listener| (listener.id, &listener.matcher))
            .collect();
        if patterns.len() <= MAX_WITHOUT_SETS {
            return sets.clear();
        }
        // A set that has lost many members is dropped. Its remaining patterns are then not covered by any set.
        sets.retain(|set| {
            let left = set.members.iter().filter(|(id, _)| patterns.contains_key(id)).count();
            set.members.len() - left <= SLACK + set.members.len() / 4
        });
        let covered: FxHashSet<u64> = sets.iter().flat_map(|set| &set.members).map(|(id, _)| *id).collect();
        let uncovered = patterns.iter().filter(|(id, _)| !covered.contains(id));
        let mut members: Vec<Member> = uncovered.map(|(&id, &matcher)| (id, matcher.clone())).collect();
        if members.len() <= SLACK {
            return;
        }
        sets.sort_by_key(|set| Reverse(set.members.len()));
        // The smallest set is last. Only sets that are not much larger than the new set are merged, so that a pattern
        // is seldom compiled again.
        while let Some(set) = sets.pop_if(|set| set.should_merge_with(members.len())) {
            members.extend(set.members.iter().filter(|(id, _)| patterns.contains_key(id)).cloned());
        }
        members.sort_unstable_by_key(|(id, _)| *id);
        sets.extend(members.chunks(CHUNK).map(|chunk| Arc::new(Self::new(chunk.to_vec()))));
    }

    /// Returns `true` if the set should be merged with this number of other patterns.
    fn should_merge_with(&self, others: usize) -> bool {
        self.members.len() <= 2 * others && self.members.len() + others <= CHUNK
    }

    /// Compiles the set, unless it has already been compiled.
    pub(crate) fn compile(&self) -> &CompiledSets {
        self.compiled.get_or_init(|| CompiledSets::new(&self.members))
    }

    /// Calls `found` with the index of each member whose pattern takes an event.
    fn find(&self, view: &EventView<'_>, found: &mut impl FnMut(u32)) {
        let compiled = self.compile();
        compiled.find(view, found);
        for &at in &compiled.alone {
            if self.members[at as usize].1.takes(view) {
                found(at);
            }
        }
    }
}

/// Pattern sets, and the positions of their members in one snapshot.
pub(crate) struct PatternIndex {
    sets: Box<[(Arc<PatternSet>, Positions)]>,
}

/// The position of each member, or `None` if its listener was removed.
type Positions = Box<[Option<u32>]>;

impl PatternIndex {
    pub(crate) fn new(sets: &[Arc<PatternSet>], listeners: &[Arc<Listener>]) -> Self {
        let by_id: FxHashMap<u64, u32> = listeners.iter().map(|listener| listener.id).zip(0..).collect();
        let positions = |set: &PatternSet| set.members.iter().map(|(id, _)| by_id.get(id).copied()).collect();
        Self { sets: sets.iter().map(|set| (Arc::clone(set), positions(set))).collect() }
    }

    /// Returns the positions of the listeners whose patterns are in a set.
    pub(crate) fn covered(&self) -> FxHashSet<u32> {
        self.sets.iter().flat_map(|(_, positions)| positions).copied().flatten().collect()
    }

    /// Adds to `found` the positions of the covered listeners that take an event.
    pub(crate) fn find(&self, listeners: &[Arc<Listener>], view: &EventView<'_>, found: &mut Vec<u32>) {
        // The set has matched the pattern. Nesting and type remain to be checked.
        let takes = |at: &u32| {
            let listener = &listeners[*at as usize];
            (listener.takes_nested || !view.nested) && listener.may_take_type(view)
        };
        for (set, positions) in &self.sets {
            set.find(view, &mut |member| found.extend(positions[member as usize].filter(takes)));
        }
    }
}

/// The compiled sets of each kind of pattern.
pub(crate) struct CompiledSets {
    names: Sets<GlobSet>,
    paths: Sets<GlobSet>,
    regexes: Sets<RegexSet>,
    /// Members that fit into no set (invariant 3).
    alone: Vec<u32>,
}

/// Sets, each with the indices of its members. There are several sets only if a single set would be too large.
type Sets<S> = Vec<(S, Vec<u32>)>;

impl CompiledSets {
    fn new(members: &[Member]) -> Self {
        let mut names = Vec::new();
        let mut paths = Vec::new();
        let mut regexes = Vec::new();
        for (at, (_, matcher)) in (0..).zip(members) {
            match &matcher.0 {
                MatcherKind::NameGlob(glob) => names.push((at, &glob.glob)),
                MatcherKind::PathGlob(glob) => paths.push((at, &glob.glob)),
                MatcherKind::RegexText(regex) => regexes.push((at, regex.as_str())),
                _ => {}
            }
        }
        let mut alone = Vec::new();
        let names = compile(&names, glob_set, &mut alone);
        let paths = compile(&paths, glob_set, &mut alone);
        let regexes = compile(&regexes, regex_set, &mut alone);
        Self { names, paths, regexes, alone }
    }

    fn find(&self, view: &EventView<'_>, found: &mut impl FnMut(u32)) {
        let meta = view.meta;
        for (set, members) in self.names.iter().filter(|_| view.own()) {
            set.matches(meta.emitted_name()).into_iter().for_each(|i| found(members[i]));
        }
        if !self.paths.is_empty() {
            let path = slashed(meta.path());
            for (set, members) in &self.paths {
                set.matches(&path).into_iter().for_each(|i| found(members[i]));
            }
        }
        for (set, members) in &self.regexes {
            set.matches(meta.path()).into_iter().for_each(|i| found(members[i]));
        }
    }
}

fn glob_set(globs: &[(u32, &Glob)]) -> Option<GlobSet> {
    let mut builder = GlobSetBuilder::new();
    for (_, glob) in globs {
        builder.add((*glob).clone());
    }
    builder.build().ok()
}

fn regex_set(patterns: &[(u32, &str)]) -> Option<RegexSet> {
    RegexSet::new(patterns.iter().map(|(_, pattern)| pattern)).ok()
}

/// Compiles patterns as one set. If the set would be too large, its two halves are compiled instead, in the same way. A
/// pattern that is too large on its own is added to `alone`.
fn compile<P, S>(
    patterns: &[(u32, P)],
    build: impl Fn(&[(u32, P)]) -> Option<S> + Copy,
    alone: &mut Vec<u32>,
) -> Sets<S> {
    match (patterns, build(patterns)) {
        ([], _) => Vec::new(),
        (_, Some(set)) => vec![(set, patterns.iter().map(|(at, _)| *at).collect())],
        ([(at, _)], None) => {
            alone.push(*at);
            Vec::new()
        }
        (_, None) => {
            let (left, right) = patterns.split_at(patterns.len() / 2);
            let mut sets = compile(left, build, alone);
            sets.extend(compile(right, build, alone));
            sets
        }
    }
}

#[cfg(test)]
mod tests {
    use super::compile;

    /// E4: a set that is too large is halved, and a pattern that fits into no set is matched on its own.
    #[test]
    fn each_pattern_is_in_one_set_or_alone() {
        for (largest, misfits, expected) in [
            (8, &[][..], (vec![vec![0, 1, 2, 3, 4, 5, 6, 7]], vec![])),
            (2, &[], (vec![vec![0, 1], vec![2, 3], vec![4, 5], vec![6, 7]], vec![])),
            (4, &[3], (vec![vec![0, 1], vec![2], vec![4, 5, 6, 7]], vec![3])),
            (0, &[], (vec![], (0..8).collect())),
        ] {
            let patterns: Vec<(u32, u32)> = (0..8).map(|at| (at, at)).collect();
            let build = |patterns: &[(u32, u32)]| {
                let fits = patterns.len() <= largest && !patterns.iter().any(|(_, pattern)| misfits.contains(pattern));
                fits.then_some(())
            };
            let mut alone = Vec::new();
            let sets: Vec<_> = compile(&patterns, build, &mut alone).into_iter().map(|((), members)| members).collect();
            assert_eq!((sets, alone), expected, "at most {largest}, without {misfits:?}");
        }
    }
}
