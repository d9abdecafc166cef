//! The text of one line.

use std::fmt::{self, Write};
use std::time::Duration;

use emitree_runtime::{ErrorReport, Stage};
use serde::{Deserialize, Serialize, Serializer};
use serde_json::{Value, to_string, to_string_pretty};

use super::escape::{escape_row, escape_rows, further_row};
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
    /// Returns the message of the line, as listeners receive it: without escapes, except for the line feeds of names.
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

    /// Returns a message as it is written: escaped, and with a prefix before each further row.
    ///
    /// This is the last step before the output, so that it also covers what a listener has put into the message. A
    /// terminal with these columns shows the duration and colors, and gets rows that it need not wrap: text that it
    /// wraps could look like another line.
    pub(super) fn written(&self, message: &str, options: &TrajectoryOptions, columns: Option<usize>) -> String {
        let further = further_row(self.position.level);
        let Some(columns) = columns else {
            return escape_rows(message).replace('\n', &format!("\n{further}"));
        };
        // If a listener has changed the head, the line has neither a color nor a duration.
        let plain = self.head(options, options.is_timed.unwrap_or(false));
        let (head, value) = match message.strip_prefix(&plain) {
            Some(value) => (self.head(options, options.is_timed.unwrap_or(true)), value),
            None => (String::new(), message),
        };
        let head = escape_row(&head);
        let value = escape_rows(value);
        let is_whole = options.is_full || value.contains('\n') || self.stage == Some(Stage::Error);
        let value = if is_whole { value } else { terminal::cut(&head, &value, columns).into_owned().into() };
        let rows = terminal::wrap(&format!("{head}{value}"), columns, &further);
        terminal::colored(&rows, &head, self.event, self.stage)
    }

    fn head(&self, options: &TrajectoryOptions, is_timed: bool) -> String {
        let mut head = String::new();
        // Writing to a string does not fail.
        _ = self.write_head(&mut head, options, is_timed);
        head
    }

    fn write_head(&self, text: &mut String, options: &TrajectoryOptions, is_timed: bool) -> fmt::Result {
        if !self.position.is_outermost {
            for _ in 1..self.position.level.relative {
                text.push_str("    ");
            }
            text.push_str(if self.stage == Some(Stage::Start) { "--> " } else { "<-- " });
        }
        // A name has one row, so that it cannot begin a line.
        let one_row = |name: &str| name.replace('\n', "\\n");
        for part in
            [options.prefix(self.kind), &one_row(self.kind), "[", &one_row(self.name), "][", &one_row(self.event), "]"]
        {
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
    let report = ErrorReport::deserialize(payload.get("error")?).ok()?;
    // Each further row gets a prefix, which replaces the indentation.
    Some(report.explain().replace("\n  ", "\n"))
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

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use unicode_width::UnicodeWidthStr;

    use super::*;
    use crate::trajectory::level::Level;

    proptest! {
        #[test]
        fn no_row_is_wider_than_the_terminal_so_that_it_wraps_no_text_to_the_begin_of_a_row(
            name in "[a語]{0,60}",
            message in "[a語 \n]{0,200}",
            columns in 40_usize..100,
            relative in 0_usize..8,
            is_full: bool,
            stage in prop::sample::select(vec![Stage::Start, Stage::Success, Stage::Error]),
        ) {
            let level = Level { relative, absolute: relative };
            let position = TreePosition { level, is_outermost: relative == 0, is_shown: true };
            let line = Line { position, kind: "Tool", name: &name, event: stage.as_str(), stage: Some(stage), duration: None };
            let options = TrajectoryOptions { is_full, ..TrajectoryOptions::default() };
            let message = line.head(&options, false) + &message;
            let written = line.written(&message, &options, Some(columns));
            for (nth, row) in written.split('\n').enumerate() {
                let row = row.replace("\u{1b}[32m", "").replace("\u{1b}[31m", "").replace("\u{1b}[0m", "");
                prop_assert!(row.width() <= columns, "{row}");
                prop_assert!(nth == 0 || row.trim_start().starts_with("| "), "{row}");
            }
        }
    }
}
