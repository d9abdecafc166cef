//! The text of one line.

use std::fmt::{self, Write};
use std::time::Duration;

use emitree_runtime::{ErrorReport, Stage};
use serde::{Deserialize, Serialize, Serializer};
use serde_json::{Value, to_string, to_string_pretty};

use super::level::TreePosition;
use super::options::TrajectoryOptions;

/// The parts of a line before its payload.
pub(super) struct Line<'a> {
    pub(super) position: TreePosition,
    pub(super) kind: &'a str,
    pub(super) name: &'a str,
    pub(super) event: &'a str,
    /// `None` for events that are not lifecycle events.
    pub(super) stage: Option<Stage>,
    pub(super) duration: Option<Duration>,
}

impl Line<'_> {
    /// Returns the line without its line feed.
    pub(super) fn render(&self, mut payload: Value, options: &TrajectoryOptions) -> String {
        // Any crate in a build can make `serde_json` keep the order of insertion: sort, so that a line is the same in
        // each build.
        payload.sort_all_objects();
        let explained = if self.stage == Some(Stage::Error) { explain(&payload) } else { None };
        let payload = explained.unwrap_or_else(|| {
            let payload = WithoutNulls(&payload);
            let text = if options.is_pretty { to_string_pretty(&payload) } else { to_string(&payload) };
            text.unwrap_or_default()
        });
        let mut text = String::with_capacity(payload.len() + 128);
        // Writing to a string does not fail.
        _ = self.write_head(&mut text, options);
        text + &payload
    }

    fn write_head(&self, text: &mut String, options: &TrajectoryOptions) -> fmt::Result {
        if !self.position.is_outermost {
            for _ in 1..self.position.level.relative {
                text.push_str("    ");
            }
            text.push_str(if self.stage == Some(Stage::Start) { "--> " } else { "<-- " });
        }
        for part in [options.prefix(self.kind), self.kind, "[", self.name, "][", self.event, "]"] {
            text.push_str(part);
        }
        match self.duration {
            Some(duration) => write!(text, " ({duration:.1?}): "),
            None => text.write_str(": "),
        }
    }
}

/// Explains the payload of `error` from its JSON, so that a replay prints the same text.
fn explain(payload: &Value) -> Option<String> {
    ErrorReport::deserialize(payload.get("error")?).ok().map(|report| report.explain())
}

/// A value without the null members of its objects. Nulls in arrays stay, so that the other items keep their positions.
struct WithoutNulls<'a>(&'a Value);

impl Serialize for WithoutNulls<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        match self.0 {
            Value::Object(members) => {
                let members = members.iter().filter(|(_, member)| !member.is_null());
                serializer.collect_map(members.map(|(key, member)| (key, Self(member))))
            }
            Value::Array(items) => serializer.collect_seq(items.iter().map(Self)),
            plain => plain.serialize(serializer),
        }
    }
}
