//! The text of one line.

use std::fmt::{self, Write};
use std::time::Duration;

use emitree_runtime::{ErrorReport, Stage};
use serde::{Deserialize, Serialize, Serializer};
use serde_json::{Value, to_string, to_string_pretty};

use super::level::TreePosition;
use super::options::TrajectoryOptions;
use super::terminal;

/// The parts of a line before its payload.
pub(super) struct Line<'a> {
    pub(super) position: TreePosition,
    pub(super) kind: &'a str,
    pub(super) name: &'a str,
    pub(super) event: &'a str,
    /// `None` for events that are not lifecycle events.
    pub(super) stage: Option<Stage>,
    /// The duration of the run, on success and error.
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
        _ = self.write_head(&mut text, options, options.is_timed.unwrap_or(false));
        text + &payload
    }

    /// Returns the rendered text of this line as a terminal shows it. If a listener has changed its head, the text has
    /// neither a color nor a duration.
    pub(super) fn fit(&self, text: &str, options: &TrajectoryOptions, columns: usize) -> String {
        let mut plain = String::new();
        let mut head = String::new();
        // Writing to a string does not fail.
        _ = self.write_head(&mut plain, options, options.is_timed.unwrap_or(false));
        _ = self.write_head(&mut head, options, options.is_timed.unwrap_or(true));
        let (head, value) = text.strip_prefix(&plain).map_or(("", text), |value| (&*head, value));
        let is_whole = options.is_full || options.is_pretty || self.stage == Some(Stage::Error);
        let value = if is_whole { value.into() } else { terminal::cut(head, value, columns) };
        terminal::colored(head, self.event, self.stage) + &value
    }

    fn write_head(&self, text: &mut String, options: &TrajectoryOptions, is_timed: bool) -> fmt::Result {
        if !self.position.is_outermost {
            for _ in 1..self.position.level.relative {
                text.push_str("    ");
            }
            text.push_str(if self.stage == Some(Stage::Start) { "--> " } else { "<-- " });
        }
        for part in [options.prefix(self.kind), self.kind, "[", self.name, "][", self.event, "]"] {
            text.push_str(part);
        }
        match self.duration.filter(|_| is_timed) {
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
