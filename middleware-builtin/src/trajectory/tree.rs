//! The runs that are under way, and their places in the printed tree.
//!
//! 1. A run is kept from `start` to `finish`, and with it all that is known about the runs below it. Memory grows with
//!    the runs that are under way, not with all runs.
//! 2. Siblings are runs of one kind and name with the same shown run above. While they overlap, they are told apart by
//!    numbers, which the runs below them show too.
//! 3. From the [`FOLDED_FROM`]th sibling on, a run and the runs below it are folded: they have lines only for errors.

use std::collections::BTreeMap;
use std::fmt::Write;
use std::hash::{Hash, Hasher};
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use rustc_hash::{FxHashMap, FxHasher};
use serde::{Deserialize, Serialize};

/// The number of the first sibling that is folded.
const FOLDED_FROM: u64 = 20;
/// The names below one run that are told apart. Runs of further names have neither numbers nor folds.
const NAMES: usize = 1000;

/// The depth of a line's run.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct Level {
    /// The depth of the run in the printed tree, not counting hidden runs; 0 for the run that the trajectory is bound
    /// to. This number sets the indentation of the run's lines.
    pub relative: usize,
    /// The number of runs that this run is nested in, including runs above the bound run and hidden runs:
    /// [`RunContext::depth`](emitree_runtime::RunContext::depth).
    pub absolute: usize,
}

/// The position of a run in the printed tree, fixed when the run starts.
#[derive(Clone, Copy, Debug)]
pub(super) struct TreePosition {
    /// A hidden run has the relative level of the run above it.
    pub(super) level: Level,
    pub(super) is_outermost: bool,
    pub(super) is_shown: bool,
}

impl TreePosition {
    /// Creates the position of a run below another run, or of the outermost run.
    pub(super) fn new(above: Option<Self>, absolute: usize, is_shown: bool) -> Self {
        // A hidden run adds no level, so that the runs below it move up.
        let relative = above.map_or(0, |above| above.level.relative + usize::from(is_shown));
        Self { level: Level { relative, absolute }, is_outermost: above.is_none(), is_shown }
    }
}

/// How much of a run is printed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Fold {
    /// All lines.
    Open,
    /// Errors. The run is counted where its siblings are folded; it is the first one if this is `true`.
    Counted { is_first: bool },
    /// Errors. A run above is counted.
    Inside,
}

/// A run as its lines need it.
#[derive(Debug)]
pub(super) struct PlacedRun {
    pub(super) position: TreePosition,
    pub(super) fold: Fold,
    /// The numbers of the run and of the runs above, such as ` #2.1`; empty if no siblings overlap.
    pub(super) number: String,
}

impl PlacedRun {
    /// Creates the place of a run that had started before the trajectory was bound.
    pub(super) const fn without_start(position: TreePosition) -> Self {
        Self { position, fold: Fold::Open, number: String::new() }
    }

    /// Returns the place of a line that sums up runs below.
    pub(super) fn one_below(&self) -> Self {
        let position = TreePosition::new(Some(self.position), self.position.level.absolute + 1, true);
        Self { position, fold: self.fold, number: self.number.clone() }
    }
}

/// The runs of one trajectory that are under way.
#[derive(Debug)]
pub(super) struct Tree<K> {
    runs: FxHashMap<K, KnownRun<K>>,
    /// The outermost runs, also those of other trees of the trajectory.
    outermost: Arc<Mutex<Siblings>>,
}

#[derive(Debug)]
struct KnownRun<K> {
    position: TreePosition,
    fold: Fold,
    /// The nearest run above that is shown or outermost: siblings have it in common.
    above: Option<K>,
    place: SiblingPlace,
    below: Siblings,
    notes: RunNotes,
}

/// What later lines of a run repeat or depend on.
#[derive(Debug, Default)]
pub(super) struct RunNotes {
    /// The beginning of the input, as the line of `start` shows it.
    pub(super) input: String,
    /// `true` for an agent whose loop has begun.
    pub(super) has_begun: bool,
    /// The names of runs directly below that have failed, and their errors. Emptied in each turn of an agent.
    pub(super) failed: Vec<(String, String)>,
}

/// A run that starts.
pub(super) struct Starting<'a, K> {
    pub(super) run: K,
    /// `None` for an outermost run.
    pub(super) parent: Option<K>,
    pub(super) depth: usize,
    pub(super) is_shown: bool,
    pub(super) kind: &'a str,
    pub(super) name: &'a str,
    pub(super) folds: bool,
}

impl<K: Copy + Eq + Hash> Tree<K> {
    pub(super) fn new(outermost: Arc<Mutex<Siblings>>) -> Self {
        Self { runs: FxHashMap::default(), outermost }
    }

    /// Adds a run.
    pub(super) fn start(&mut self, starting: &Starting<'_, K>) -> PlacedRun {
        let Starting { run, parent, depth, is_shown, kind, name, folds } = *starting;
        let parent_known = parent.and_then(|parent| self.runs.get(&parent));
        // If the parent started before the subscription, show the run directly below the bound run.
        let unknown = parent.map(|_| TreePosition::new(None, 0, true));
        let position = TreePosition::new(parent_known.map(|known| known.position).or(unknown), depth, is_shown);
        let is_inside = parent_known.is_some_and(|known| known.fold != Fold::Open);
        let above = match parent_known {
            Some(known) if !known.position.is_shown && !known.position.is_outermost => known.above,
            Some(_) => parent,
            None => None,
        };
        let mut place = SiblingPlace::default();
        let mut fold = if is_inside { Fold::Inside } else { Fold::Open };
        // Hidden runs have no lines to tell apart, and runs inside of a folded run have lines only for errors.
        if is_shown && !is_inside {
            let group = group(kind, name);
            match above.and_then(|above| self.runs.get_mut(&above)) {
                Some(above) => {
                    place = above.below.start(group);
                    if folds && place.nth >= FOLDED_FROM {
                        fold = Fold::Counted { is_first: place.nth == FOLDED_FROM };
                    }
                }
                None if position.is_outermost => place = self.outermost.lock().start(group),
                None => {}
            }
        }
        let (below, notes) = (Siblings::default(), RunNotes::default());
        self.runs.insert(run, KnownRun { position, fold, above, place, below, notes });
        PlacedRun { position, fold, number: self.number(run) }
    }

    pub(super) fn has(&self, run: K) -> bool {
        self.runs.contains_key(&run)
    }

    /// Returns a run, if its start is known.
    pub(super) fn find(&self, run: K) -> Option<PlacedRun> {
        let KnownRun { position, fold, .. } = *self.runs.get(&run)?;
        Some(PlacedRun { position, fold, number: self.number(run) })
    }

    pub(super) fn notes_mut(&mut self, run: K) -> Option<&mut RunNotes> {
        self.runs.get_mut(&run).map(|known| &mut known.notes)
    }

    /// Returns the run above whose siblings a run is one of.
    pub(super) fn above(&self, run: K) -> Option<K> {
        self.runs.get(&run)?.above
    }

    /// Removes a run that has ended.
    pub(super) fn end(&mut self, run: K) {
        let Some(KnownRun { position, above, place, .. }) = self.runs.remove(&run) else { return };
        match above.and_then(|above| self.runs.get_mut(&above)) {
            Some(above) => above.below.end(place),
            None if position.is_outermost => self.outermost.lock().end_last(place),
            None => {}
        }
    }

    /// Counts the success of a run that is folded.
    pub(super) fn count(&mut self, run: K, kind: &str, name: &str, duration: Duration) {
        let Some(KnownRun { above: Some(above), place, .. }) = self.runs.get(&run) else { return };
        let (above, place) = (*above, *place);
        if let Some(above) = self.runs.get_mut(&above) {
            above.below.count(place, kind, name, duration);
        }
    }

    /// Takes the counts of folded runs below a run, in the order in which the folds began.
    pub(super) fn take_folded(&mut self, run: K) -> Vec<Folded> {
        self.runs.get_mut(&run).map_or_else(Vec::new, |known| known.below.take_folded())
    }

    /// Returns the numbers of a run and of the runs above that have one (2).
    fn number(&self, run: K) -> String {
        let mut numbers = Vec::new();
        let mut next = self.runs.get(&run);
        while let Some(known) = next {
            let above = known.above.and_then(|above| self.runs.get(&above));
            let number = match above {
                Some(above) => above.below.number(known.place),
                None => self.outermost.lock().number(known.place),
            };
            numbers.extend(number);
            next = above;
        }
        if numbers.is_empty() {
            return String::new();
        }
        let mut text = String::new();
        for (nth, number) in numbers.iter().rev().enumerate() {
            // Writing to a string does not fail.
            _ = write!(text, "{}{number}", if nth == 0 { " #" } else { "." });
        }
        text
    }

    #[cfg(test)]
    pub(super) fn len(&self) -> usize {
        self.runs.len()
    }
}

/// The runs with one run above, in groups of one kind and name.
#[derive(Debug, Default)]
pub(super) struct Siblings(FxHashMap<u64, Group>);

/// The siblings of one kind and name.
#[derive(Debug, Default)]
struct Group {
    under_way: u32,
    /// The number of the sibling that started last. It begins again when no sibling is under way.
    latest: u32,
    all: u64,
    folded: Option<Box<Folded>>,
}

/// The place of a run among its siblings.
#[derive(Clone, Copy, Debug, Default)]
struct SiblingPlace {
    group: u64,
    /// The number of the run; 0 for a run without a group.
    number: u32,
    /// `true` if a sibling was under way when the run started.
    overlaps: bool,
    /// The count of all siblings so far, with this one.
    nth: u64,
}

/// Folded runs of one kind and name.
#[derive(Debug)]
pub(super) struct Folded {
    pub(super) kind: String,
    pub(super) name: String,
    pub(super) count: u64,
    pub(super) longest: Duration,
    /// The order in which the folds of a run began.
    nth: usize,
    /// Counts of durations that differ by at most a 32nd, and the first duration of each.
    durations: BTreeMap<u64, (u64, Duration)>,
}

fn group(kind: &str, name: &str) -> u64 {
    let mut hasher = FxHasher::default();
    (kind, name).hash(&mut hasher);
    hasher.finish()
}

impl Siblings {
    fn start(&mut self, group: u64) -> SiblingPlace {
        if self.0.len() >= NAMES && !self.0.contains_key(&group) {
            return SiblingPlace::default();
        }
        let known = self.0.entry(group).or_default();
        if known.under_way == 0 {
            known.latest = 0;
        }
        let overlaps = known.under_way > 0;
        known.under_way += 1;
        known.latest = known.latest.saturating_add(1);
        known.all += 1;
        SiblingPlace { group, number: known.latest, overlaps, nth: known.all }
    }

    fn end(&mut self, place: SiblingPlace) {
        if let Some(known) = self.0.get_mut(&place.group)
            && place.number > 0
        {
            known.under_way = known.under_way.saturating_sub(1);
        }
    }

    /// Ends an outermost run. Its group is forgotten with the last run that is under way, because no run above keeps it
    /// only for some time.
    fn end_last(&mut self, place: SiblingPlace) {
        self.end(place);
        if self.0.get(&place.group).is_some_and(|known| known.under_way == 0) {
            self.0.remove(&place.group);
        }
    }

    /// Returns the number of a run that is under way, if it overlaps with a sibling.
    fn number(&self, place: SiblingPlace) -> Option<u32> {
        let known = self.0.get(&place.group)?;
        // A later number belongs to a sibling that started while this run was under way.
        let is_shown = place.number > 0 && (place.overlaps || known.latest > place.number);
        if is_shown { Some(place.number) } else { None }
    }

    fn count(&mut self, place: SiblingPlace, kind: &str, name: &str, duration: Duration) {
        let nth = self.0.values().filter(|known| known.folded.is_some()).count();
        let Some(known) = self.0.get_mut(&place.group) else { return };
        let new = || Box::new(Folded::new(nth, kind, name));
        known.folded.get_or_insert_with(new).add(duration);
    }

    fn take_folded(&mut self) -> Vec<Folded> {
        let mut folded: Vec<_> =
            self.0.values_mut().filter_map(|known| known.folded.take()).map(|folded| *folded).collect();
        folded.sort_by_key(|folded| folded.nth);
        folded
    }
}

impl Folded {
    fn new(nth: usize, kind: &str, name: &str) -> Self {
        let (kind, name) = (kind.to_owned(), name.to_owned());
        Self { kind, name, count: 0, longest: Duration::ZERO, nth, durations: BTreeMap::new() }
    }

    fn add(&mut self, duration: Duration) {
        self.count += 1;
        self.longest = self.longest.max(duration);
        // The highest 6 bits of a duration and their position: there are at most 2,048 classes.
        let nanos = u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX);
        let shift = (u64::BITS - nanos.leading_zeros()).saturating_sub(6);
        let class = u64::from(shift) << 6 | nanos >> shift;
        self.durations.entry(class).or_insert((0, duration)).0 += 1;
    }

    /// Returns the duration that half of the runs did not exceed, or one that differs by at most a 32nd.
    pub(super) fn median(&self) -> Duration {
        let mut before = 0;
        for (count, duration) in self.durations.values() {
            before += count;
            if 2 * before >= self.count {
                return *duration;
            }
        }
        self.longest
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_median_differs_from_the_exact_one_by_at_most_a_32nd_and_classes_are_few() {
        let mut folded = Folded::new(0, "Tool", "fetch");
        let mut exact = Vec::new();
        let mut next = 7_u64;
        for _ in 0..10_001 {
            next = next.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            let duration = Duration::from_nanos(next >> (next % 40 + 10));
            folded.add(duration);
            exact.push(duration);
        }
        exact.sort();
        let median = exact[5_000].as_secs_f64();
        assert!((folded.median().as_secs_f64() - median).abs() <= median / 32.0);
        assert_eq!((folded.count, folded.longest), (10_001, exact[10_000]));
        assert!(folded.durations.len() < 2_048);
    }

    #[test]
    fn more_names_than_are_told_apart_take_no_memory() {
        fn starting(run: u32, parent: Option<u32>, name: &str) -> Starting<'_, u32> {
            Starting { run, parent, depth: 0, is_shown: true, kind: "Tool", name, folds: true }
        }
        let mut tree = Tree::new(Arc::default());
        tree.start(&starting(0, None, "top"));
        for n in 1..3_000_u32 {
            let name = n.to_string();
            tree.start(&starting(n, Some(0), &name));
            tree.end(n);
        }
        assert_eq!((tree.len(), tree.runs[&0].below.0.len()), (1, NAMES));
        tree.end(0);
        assert_eq!((tree.len(), tree.outermost.lock().0.len()), (0, 0));
    }
}
