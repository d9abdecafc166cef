//! The options of a trajectory.

use std::fmt;
use std::io::Write;

use emitree_emitter::{IntoMatcher, Matcher, MatcherError};

use super::Trajectory;
use super::output::{Output, Target};
use crate::shared::runs::{RunInfo, Runs};

/// Builds a [`Trajectory`]. Returned by [`Trajectory::builder`].
#[must_use = "nothing is printed until `build` is called"]
#[derive(Debug, Default)]
pub struct TrajectoryBuilder {
    options: TrajectoryOptions,
    target: Target,
    /// The error of the first invalid matcher.
    error: Option<MatcherError>,
}

impl TrajectoryBuilder {
    /// Writes lines to standard error. Default: standard output.
    pub fn stderr(self) -> Self {
        Self { target: Target::Stderr, ..self }
    }

    /// Writes lines to a writer, such as a file. Each line, including a payload of several lines, is written by one
    /// `write_all`; the writer is not flushed.
    pub fn writer(self, writer: impl Write + Send + 'static) -> Self {
        Self { target: Target::writer(writer), ..self }
    }

    /// Writes lines as `tracing` events at level `INFO`, with the target `emitree::trajectory`. The line is the event's
    /// message.
    pub fn tracing(self) -> Self {
        Self { target: Target::Tracing, ..self }
    }

    /// Shows only these runs. Further calls add runs. Live and recorded runs are selected at their `start`. Default:
    /// all runs.
    pub fn included(mut self, runs: Runs) -> Self {
        self.options.included.push(runs);
        self
    }

    /// Hides these runs, even if they are included; the runs below them move up by one level. Further calls add runs.
    /// Default: no runs.
    pub fn excluded(mut self, runs: Runs) -> Self {
        self.options.excluded.push(runs);
        self
    }

    /// Prints a prefix before `Kind[name]` in the lines of runs of one kind. If several prefixes are set for a kind,
    /// the last is used. Default: no prefix.
    pub fn prefix_by_kind(mut self, kind: impl Into<String>, prefix: impl Into<String>) -> Self {
        self.options.prefixes.push((kind.into(), prefix.into()));
        self
    }

    /// Prints inputs, outputs and payloads as JSON with sorted keys and without members that are `null`; a `success` has
    /// the input too. Default: [text](Trajectory#values).
    pub fn json(mut self) -> Self {
        self.options.is_json = true;
        self
    }

    /// Prints a value on several rows, which are still written together: the lines of a text, or [JSON](Self::json) with
    /// indentation. Default: off.
    pub fn pretty(mut self, is_pretty: bool) -> Self {
        self.options.is_pretty = is_pretty;
        self
    }

    /// Prints the duration of a run, by tokio's clock, on success and error: `Tool[read_file][success] (1.2s): …`.
    /// Default: only on a terminal.
    pub fn timing(mut self, is_timed: bool) -> Self {
        self.options.is_timed = Some(is_timed);
        self
    }

    /// Does not cut values to the width of the terminal. Default: [cut](Trajectory#on-a-terminal).
    pub fn full(mut self) -> Self {
        self.options.is_full = true;
        self
    }

    /// Shows all runs. Default: from the twentieth run of one kind and name below a run, successes are
    /// [counted](Trajectory#many-runs).
    pub fn every(mut self) -> Self {
        self.options.is_every = true;
        self
    }

    /// Prints further events of the shown runs, indented like the lines of their run. An event is matched on the
    /// emitter that emits it, so `"new_token"` matches the event in every run. Default: none.
    pub fn events(mut self, matcher: impl IntoMatcher) -> Self {
        match matcher.into_matcher() {
            Ok(matcher) => self.options.events.push(matcher),
            Err(error) => _ = self.error.get_or_insert(error),
        }
        self
    }

    /// Builds the trajectory.
    ///
    /// # Errors
    ///
    /// Returns an error if a matcher that was passed to [`events`](Self::events) is invalid.
    pub fn build(self) -> Result<Trajectory, MatcherError> {
        match self.error {
            Some(error) => Err(error),
            None => Ok(Trajectory::new(self.options, Output::new(self.target))),
        }
    }
}

/// The options of a trajectory, for live and recorded runs.
#[derive(Default)]
pub(super) struct TrajectoryOptions {
    pub(super) included: Vec<Runs>,
    pub(super) excluded: Vec<Runs>,
    /// Kinds, and the texts that are printed before them.
    pub(super) prefixes: Vec<(String, String)>,
    pub(super) events: Vec<Matcher>,
    pub(super) is_pretty: bool,
    pub(super) is_json: bool,
    /// `None` if durations are printed on a terminal only.
    pub(super) is_timed: Option<bool>,
    pub(super) is_full: bool,
    pub(super) is_every: bool,
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
        f.write_str(if self.is_json { ", as JSON" } else { "" })?;
        f.write_str(if self.is_pretty { ", pretty" } else { "" })?;
        f.write_str(match self.is_timed {
            Some(true) => ", timed",
            Some(false) => ", not timed",
            None => "",
        })?;
        f.write_str(if self.is_full { ", full" } else { "" })?;
        f.write_str(if self.is_every { ", every run" } else { "" })
    }
}
