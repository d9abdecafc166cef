//! The options of a trajectory, for live and recorded runs.

use std::fmt;

use emitree_emitter::Matcher;

use crate::shared::runs::{RunInfo, Runs};

#[derive(Default)]
pub(super) struct TrajectoryOptions {
    pub(super) included: Vec<Runs>,
    pub(super) excluded: Vec<Runs>,
    /// Kinds, and the texts that are printed before them.
    pub(super) prefixes: Vec<(String, String)>,
    pub(super) events: Vec<Matcher>,
    pub(super) is_pretty: bool,
    /// `None` if durations are printed on a terminal only.
    pub(super) is_timed: Option<bool>,
    pub(super) is_full: bool,
}

impl TrajectoryOptions {
    /// Returns `true` if a run is included and not excluded.
    pub(super) fn shows(&self, run: &dyn RunInfo) -> bool {
        let has = |runs: &[Runs]| runs.iter().any(|runs| runs.has(run));
        (self.included.is_empty() || has(&self.included)) && !has(&self.excluded)
    }

    pub(super) fn prefix(&self, kind: &str) -> &str {
        let of_kind = self.prefixes.iter().rev().find(|(of, _)| of == kind);
        of_kind.map_or("", |(_, prefix)| prefix)
    }
}

/// Writes the options that differ from the defaults, each after a comma.
impl fmt::Debug for TrajectoryOptions {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.included.iter().try_for_each(|runs| write!(f, ", only {runs:?}"))?;
        self.excluded.iter().try_for_each(|runs| write!(f, ", without {runs:?}"))?;
        self.events.iter().try_for_each(|events| write!(f, ", with {events:?}"))?;
        self.prefixes.iter().try_for_each(|(kind, prefix)| write!(f, ", prefix {prefix:?} for {kind}"))?;
        f.write_str(if self.is_pretty { ", pretty" } else { "" })?;
        f.write_str(match self.is_timed {
            Some(true) => ", timed",
            Some(false) => ", not timed",
            None => "",
        })?;
        f.write_str(if self.is_full { ", full" } else { "" })
    }
}
