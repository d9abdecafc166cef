//! What can be said of a trajectory before it is made.

use std::path::PathBuf;
use std::sync::Arc;

use emitree_emitter::{IntoMatcher, MatcherError};
use thiserror::Error;

use super::prefix::Prefix;
use super::settings::{Layout, Settings};
use super::target::{Output, Target};
use super::{Line, Trajectory};
use crate::runs::Runs;

/// Builds a [`Trajectory`]. Made by [`Trajectory::builder`].
#[must_use = "nothing is made before `build`"]
#[derive(Debug, Default)]
pub struct TrajectoryBuilder {
    settings: Settings,
    target: Target,
    /// The first that was wrong.
    fault: Option<MatcherError>,
}

/// A trajectory that could not be made.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum TrajectoryError {
    /// The file could not be opened.
    #[error("could not open `{path}` for a trajectory")]
    Open {
        /// The file.
        path: PathBuf,
        /// What the operating system says.
        source: std::io::Error,
    },
    /// What was given to [`events`](TrajectoryBuilder::events) is no matcher.
    #[error(transparent)]
    Events(#[from] MatcherError),
}

impl TrajectoryBuilder {
    fn set(mut self, change: impl FnOnce(&mut Settings)) -> Self {
        change(&mut self.settings);
        self
    }

    /// Where lines go. Default: the standard output.
    pub fn target(mut self, target: Target) -> Self {
        self.target = target;
        self
    }

    /// Writes to whatever can be written to: [`Target::Writer`].
    pub fn writer(self, writer: impl std::io::Write + Send + 'static) -> Self {
        self.target(Target::writer(writer))
    }

    /// Appends to a file: [`Target::File`].
    pub fn file(self, path: impl Into<PathBuf>) -> Self {
        self.target(Target::File(path.into()))
    }

    /// Shows these runs, and others that were included. They are asked at their `start`, live or recorded. Default: all.
    pub fn included(self, runs: Runs) -> Self {
        self.set(|settings| settings.included.push(runs))
    }

    /// Does not show these runs, whether included or not; what is below them moves up by their level. Default: none.
    pub fn excluded(self, runs: Runs) -> Self {
        self.set(|settings| settings.excluded.push(runs))
    }

    /// Whether JSON stands over several lines, which are still written at once. Default: off.
    pub fn pretty(self, is_pretty: bool) -> Self {
        self.set(|settings| settings.is_pretty = is_pretty)
    }

    /// Puts a text before a kind. The kind may be `Tool`, `Tool[read_file]` for one thing of that kind, or `To*` for
    /// kinds that begin so; the most specific wins, in this order: with a name, whole, longer, said later. Default:
    /// none.
    pub fn prefix_by_kind(self, kind: impl AsRef<str>, prefix: impl Into<String>) -> Self {
        self.set(|settings| settings.prefixes.push(Prefix::parse(kind.as_ref(), prefix.into())))
    }

    /// Whether members of objects that are `null` are left out. Default: on.
    pub fn exclude_none(self, is_excluded: bool) -> Self {
        self.set(|settings| settings.leaves_out_nulls = is_excluded)
    }

    /// Whether it does anything. Default: on.
    pub fn enabled(self, is_enabled: bool) -> Self {
        self.set(|settings| settings.is_enabled = is_enabled)
    }

    /// Whether runs below the bound run are shown. Default: on.
    pub fn nested(self, is_nested: bool) -> Self {
        self.set(|settings| settings.is_nested = is_nested)
    }

    /// Makes the line of what it says; [`json`](Self::json) and this replace each other. Default: the line's
    /// `Display`.
    ///
    /// ```
    /// use emitree_middleware::Trajectory;
    ///
    /// let trajectory = Trajectory::builder().formatter(|line| format!("{} {line}", line.origin().created_at())).build()?;
    /// # Ok::<(), emitree_middleware::trajectory::TrajectoryError>(())
    /// ```
    pub fn formatter(self, format: impl Fn(&Line<'_>) -> String + Send + Sync + 'static) -> Self {
        self.set(|settings| settings.layout = Layout::Custom(Arc::new(format)))
    }

    /// Whether each line is a JSON record, on one line: `time`, `kind`, `name`, `event`, `path`, `level`, `trace`,
    /// `duration_ns` (whole nanoseconds, with [`timing`](Self::timing)), `prefix` (if there is one) and `payload`.
    /// Default: off.
    pub fn json(self, is_json: bool) -> Self {
        self.set(|settings| match settings.layout {
            _ if is_json => settings.layout = Layout::Json,
            Layout::Json => settings.layout = Layout::Text,
            Layout::Text | Layout::Custom(_) => {}
        })
    }

    /// Whether success and error tell how long the run took, by tokio's clock: `Tool[read_file][success] (1.2s): …`.
    /// Default: off.
    pub fn timing(self, is_timed: bool) -> Self {
        self.set(|settings| settings.is_timed = is_timed)
    }

    /// Gives further events of the runs shown lines of their own, at the place of their run. Each is matched where it
    /// is emitted: `"new_token"` takes those of every run. Default: none.
    pub fn events(mut self, matcher: impl IntoMatcher) -> Self {
        match matcher.into_matcher() {
            Ok(matcher) => self.settings.events.push(matcher),
            Err(fault) => {
                self.fault.get_or_insert(fault);
            }
        }
        self
    }

    /// Makes the trajectory, and opens its file.
    ///
    /// # Errors
    ///
    /// If the file cannot be opened, or what was given to [`events`](Self::events) is no matcher.
    pub fn build(self) -> Result<Trajectory, TrajectoryError> {
        match self.fault {
            Some(fault) => Err(fault.into()),
            None => Ok(Trajectory::of(self.settings, Output::open(self.target)?)),
        }
    }
}
