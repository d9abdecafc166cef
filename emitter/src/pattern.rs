//! Many globs and regexes matched at once.
//!
//! A set takes milliseconds to compile, so it is compiled when it is first asked, and kept while few of the
//! emitter's patterns change: those that it does not cover are asked one by one.

use std::sync::{Arc, OnceLock};

use globset::{Glob, GlobSet, GlobSetBuilder};
use regex::RegexSet;
use rustc_hash::{FxHashMap, FxHashSet};

use crate::glob::slashed;
use crate::listener::{Listener, Sighting};
use crate::matcher::Kind;

/// As many patterns as are asked one by one.
const FEW: usize = 8;

/// The patterns of an emitter's listeners, to be compiled as sets. It keeps no listener alive.
pub(crate) struct PatternSet {
    /// Listeners' ids with their patterns.
    members: Vec<(u64, Kind)>,
    compiled: OnceLock<Compiled>,
}

impl PatternSet {
    /// The set that there is, if it still covers most of the patterns and not many others; or else a new one.
    pub(crate) fn renew(old: Option<Arc<Self>>, listeners: &[Arc<Listener>]) -> Option<Arc<Self>> {
        let patterns: FxHashMap<u64, &Kind> = listeners
            .iter()
            .filter(|listener| listener.matcher.is_pattern())
            .map(|listener| (listener.id, &listener.matcher.0))
            .collect();
        if patterns.len() <= FEW {
            return None;
        }
        let still_fits = |set: &Arc<Self>| {
            let covered = set.members.iter().filter(|(id, _)| patterns.contains_key(id)).count();
            let slack = 2 * FEW + set.members.len() / 4;
            patterns.len() - covered <= slack && set.members.len() - covered <= slack
        };
        let anew = || Self {
            members: patterns.iter().map(|(&id, &kind)| (id, kind.clone())).collect(),
            compiled: OnceLock::new(),
        };
        Some(old.filter(still_fits).unwrap_or_else(|| Arc::new(anew())))
    }

    fn compiled(&self) -> &Compiled {
        self.compiled.get_or_init(|| Compiled::new(&self.members))
    }
}

/// A set, and where its members stand in one snapshot.
pub(crate) struct PatternIndex {
    set: Arc<PatternSet>,
    /// By member; none if it has been removed.
    positions: Box<[Option<u32>]>,
    covered: FxHashSet<u32>,
}

impl PatternIndex {
    pub(crate) fn new(set: Arc<PatternSet>, listeners: &[Arc<Listener>]) -> Self {
        let by_id: FxHashMap<u64, u32> = listeners.iter().map(|listener| listener.id).zip(0..).collect();
        let positions: Box<[_]> = set.members.iter().map(|(id, _)| by_id.get(id).copied()).collect();
        let covered = positions.iter().copied().flatten().collect();
        Self { set, positions, covered }
    }

    /// Whether the listener at that position is asked through the set.
    pub(crate) fn covers(&self, position: u32) -> bool {
        self.covered.contains(&position)
    }

    /// Adds the positions of the covered listeners that take an event.
    pub(crate) fn find(&self, listeners: &[Arc<Listener>], sighting: &Sighting<'_>, found: &mut Vec<u32>) {
        let takes = |at: &u32| {
            let listener = &listeners[*at as usize];
            (listener.takes_nested || !sighting.nested) && listener.may_take_type(sighting)
        };
        let mut found_by_set = |member: u32| found.extend(self.positions[member as usize].filter(takes));
        self.set.compiled().find(sighting, &mut found_by_set);
    }
}

/// The sets of each sort.
struct Compiled {
    names: Sets<GlobSet>,
    paths: Sets<GlobSet>,
    regexes: Sets<RegexSet>,
}

/// Sets, each with the members that its patterns belong to. More than one only where one would be too large.
type Sets<S> = Vec<(S, Vec<u32>)>;

impl Compiled {
    fn new(members: &[(u64, Kind)]) -> Self {
        let (mut names, mut paths, mut regexes) = (Vec::new(), Vec::new(), Vec::new());
        for (at, (_, kind)) in (0..).zip(members) {
            match kind {
                Kind::NameGlob(glob) => names.push((at, &glob.glob)),
                Kind::PathGlob(glob) => paths.push((at, &glob.glob)),
                Kind::RegexText(regex) => regexes.push((at, regex.as_str())),
                _ => {}
            }
        }
        Self {
            names: compile(&names, glob_set),
            paths: compile(&paths, glob_set),
            regexes: compile(&regexes, |patterns| RegexSet::new(patterns.iter().map(|(_, pattern)| pattern)).ok()),
        }
    }

    fn find(&self, sighting: &Sighting<'_>, found: &mut impl FnMut(u32)) {
        let meta = sighting.meta;
        for (set, members) in self.names.iter().filter(|_| sighting.own()) {
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

/// Compiles patterns as one set, or as halves where that is too large. One by one they did compile.
fn compile<P, S>(patterns: &[(u32, P)], build: impl Fn(&[(u32, P)]) -> Option<S> + Copy) -> Sets<S> {
    match build(patterns) {
        _ if patterns.is_empty() => Vec::new(),
        Some(set) => vec![(set, patterns.iter().map(|(at, _)| *at).collect())],
        None if patterns.len() == 1 => Vec::new(),
        None => {
            let (left, right) = patterns.split_at(patterns.len() / 2);
            let mut sets = compile(left, build);
            sets.extend(compile(right, build));
            sets
        }
    }
}
