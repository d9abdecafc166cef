//! One line: what it says, and how it looks unless a formatter says otherwise.

use std::fmt;
use std::time::Duration;

use emitree_runtime::Stage;

use super::{Level, Origin};

/// One line of a trajectory, as a [formatter](super::TrajectoryBuilder::formatter) gets it. Its `Display` is the
/// line as it would stand without one.
#[derive(Clone, Copy, Debug)]
pub struct Line<'a> {
    pub(super) origin: Origin<'a>,
    pub(super) stage: Option<Stage>,
    pub(super) level: Level,
    pub(super) is_outermost: bool,
    pub(super) duration: Option<Duration>,
    pub(super) prefix: &'a str,
    pub(super) payload: &'a str,
}

impl<'a> Line<'a> {
    /// The event that it is about: kind, name, path, time, trace, context.
    #[must_use]
    pub const fn origin(&self) -> &Origin<'a> {
        &self.origin
    }

    /// Which event of a run it is; none for [further events](super::TrajectoryBuilder::events).
    #[must_use]
    pub const fn stage(&self) -> Option<Stage> {
        self.stage
    }

    /// How deep it stands.
    #[must_use]
    pub const fn level(&self) -> Level {
        self.level
    }

    /// How long the run took; on success and error, where timing is on.
    #[must_use]
    pub const fn duration(&self) -> Option<Duration> {
        self.duration
    }

    /// What stands before the kind: see [`prefix_by_kind`](super::TrajectoryBuilder::prefix_by_kind).
    #[must_use]
    pub const fn prefix(&self) -> &'a str {
        self.prefix
    }

    /// The payload: JSON, or what explains the error.
    #[must_use]
    pub const fn payload(&self) -> &'a str {
        self.payload
    }

    /// Four spaces for each level of the parent, then the arrow.
    fn write_indent(&self, out: &mut impl fmt::Write) -> fmt::Result {
        if self.is_outermost {
            return Ok(());
        }
        for _ in 1..self.level.relative {
            out.write_str("    ")?;
        }
        out.write_str(if self.stage == Some(Stage::Start) { "--> " } else { "<-- " })
    }

    /// Writes all that stands before the payload.
    fn write_head(&self, out: &mut impl fmt::Write) -> fmt::Result {
        self.write_indent(out)?;
        let Self { origin, stage, prefix, .. } = self;
        if !prefix.is_empty() {
            out.write_str(prefix)?;
        }
        let (kind, name) = origin.labels();
        out.write_str(kind)?;
        out.write_str("[")?;
        out.write_str(name)?;
        match (stage, self.duration) {
            (Some(stage), None) => out.write_str(rest_of_head(*stage)),
            (Some(stage), Some(duration)) => write!(out, "][{}] ({duration:.1?}): ", stage.as_str()),
            (None, _) => write!(out, "][{}]: ", origin.event()),
        }
    }
}

/// What stands between a name and a payload, at once.
const fn rest_of_head(stage: Stage) -> &'static str {
    match stage {
        Stage::Start => "][start]: ",
        Stage::Success => "][success]: ",
        Stage::Error => "][error]: ",
        Stage::Finish => "][finish]: ",
    }
}

impl fmt::Display for Line<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.write_head(f)?;
        f.write_str(self.payload)
    }
}
