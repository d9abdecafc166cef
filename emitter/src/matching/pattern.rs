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
use std::collections::{BTreeMap, BTreeSet};
use std::mem::take;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock};

use globset::{Glob, GlobSet, GlobSetBuilder};
use regex::RegexSet;
use rustc_hash::FxHashMap;

use crate::Matcher;
use crate::matching::glob::slashed;
use crate::matching::matcher::MatcherKind;
use crate::registry::group::Key;
use crate::registry::listener::{EventView, Listener};

/// With at most this many patterns, no set is kept.
const MAX_WITHOUT_SETS: usize = 8;
/// The largest number of patterns that are matched one by one because no set covers them. A set is dropped once it has
/// lost more than this many members plus a quarter of its original members.
const SLACK: usize = 2 * MAX_WITHOUT_SETS;
/// The largest number of members of a set.
const CHUNK: usize = 2048;

/// The patterns of an emitter's listeners. Each is covered by one set, or by none.
#[derive(Default)]
pub(crate) struct Patterns {
    sets: Vec<Arc<PatternSet>>,
    /// The sets of the covered patterns, by the ids of their listeners.
    set_of: FxHashMap<u64, Arc<PatternSet>>,
    uncovered: BTreeSet<Key>,
}

/// Patterns that are compiled as sets. The members never change, so emits read them without a lock. Keeps no listener
/// alive.
pub(crate) struct PatternSet {
    members: Vec<(Key, Matcher)>,
    /// The number of members whose listeners were removed.
    lost: AtomicUsize,
    compiled: OnceLock<CompiledSets>,
}

impl Patterns {
    pub(crate) fn add(&mut self, key: Key) {
        self.uncovered.insert(key);
    }

    /// Removes the pattern of a listener. A set that has lost many members is dropped.
    pub(crate) fn remove(&mut self, key: &Key) {
        match self.set_of.remove(&key.id()) {
            None => {
                self.uncovered.remove(key);
            }
            Some(set) => {
                let lost = set.lost.fetch_add(1, Ordering::Relaxed) + 1;
                if lost > SLACK + set.members.len() / 4 {
                    self.sets.retain(|other| !Arc::ptr_eq(other, &set));
                    self.uncover(&set);
                }
            }
        }
        if self.set_of.len() + self.uncovered.len() <= MAX_WITHOUT_SETS {
            for set in take(&mut self.sets) {
                self.uncover(&set);
            }
        }
    }

    /// Makes the remaining patterns of a set, which was dropped, patterns that no set covers.
    fn uncover(&mut self, set: &PatternSet) {
        for (key, _) in &set.members {
            if self.set_of.remove(&key.id()).is_some() {
                self.uncovered.insert(*key);
            }
        }
    }

    pub(crate) const fn uncovered(&self) -> &BTreeSet<Key> {
        &self.uncovered
    }

    /// Returns `true` if the patterns that no set covers would fill a set.
    pub(crate) fn has_many_uncovered(&self) -> bool {
        self.uncovered.len() >= CHUNK
    }

    /// Covers patterns by sets, unless few are uncovered, and returns all sets (invariant 1).
    pub(crate) fn renew(&mut self, listeners: &BTreeMap<Key, Arc<Listener>>) -> &[Arc<PatternSet>] {
        if self.uncovered.len() <= SLACK {
            return &self.sets;
        }
        let mut keys: Vec<Key> = take(&mut self.uncovered).into_iter().collect();
        self.sets.sort_by_key(|set| Reverse(set.members.len()));
        // The smallest set is last. Only sets that are not much larger than the new set are merged, so that a pattern
        // is seldom compiled again.
        while let Some(set) = self.sets.pop_if(|set| set.should_merge_with(keys.len())) {
            keys.extend(set.members.iter().map(|(key, _)| *key).filter(|key| self.set_of.contains_key(&key.id())));
        }
        keys.sort_unstable_by_key(Key::id);
        for chunk in keys.chunks(CHUNK) {
            let matcher = |key: &Key| Some((*key, listeners.get(key)?.matcher.clone()));
            let set = Arc::new(PatternSet::new(chunk.iter().filter_map(matcher).collect()));
            self.set_of.extend(chunk.iter().map(|key| (key.id(), Arc::clone(&set))));
            self.sets.push(set);
        }
        &self.sets
    }
}

impl PatternSet {
    const fn new(members: Vec<(Key, Matcher)>) -> Self {
        Self { members, lost: AtomicUsize::new(0), compiled: OnceLock::new() }
    }

    /// Returns `true` if the set should be merged with this number of other patterns.
    fn should_merge_with(&self, others: usize) -> bool {
        self.members.len() <= 2 * others && self.members.len() + others <= CHUNK
    }

    /// Compiles the set, unless it has already been compiled.
    pub(crate) fn compile(&self) -> &CompiledSets {
        self.compiled.get_or_init(|| CompiledSets::new(&self.members))
    }

    /// Adds to `matched` the members whose patterns take an event.
    pub(crate) fn find(&self, view: &EventView<'_>, matched: &mut Vec<Key>) {
        let compiled = self.compile();
        compiled.find(view, |member| matched.push(self.members[member as usize].0));
        for &member in &compiled.alone {
            let (key, matcher) = &self.members[member as usize];
            if matcher.takes(view) {
                matched.push(*key);
            }
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
    fn new(members: &[(Key, Matcher)]) -> Self {
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

    /// Calls `found` with the index of each member, except those that are alone, whose pattern takes an event.
    fn find(&self, view: &EventView<'_>, mut found: impl FnMut(u32)) {
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
