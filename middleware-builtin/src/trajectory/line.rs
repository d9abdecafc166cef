//! The text of one line.

use std::borrow::Cow;
use std::fmt::{self, Write};
use std::time::Duration;

use emitree_runtime::{ErrorReport, Stage};
use serde::Deserialize;
use serde_json::{Value, to_string, to_string_pretty};

use super::builder::TrajectoryOptions;
use super::escape::{escape_row, escape_rows, further_row};
use super::kinds;
use super::terminal;
use super::tree::{Folded, PlacedRun};

/// The characters of an input that an error repeats.
const SHORT: usize = 60;

/// The event that a line shows.
#[derive(Clone, Copy)]
pub(super) enum LineEvent<'a> {
    Stage(Stage),
    /// An event that is not a lifecycle event, and was selected by its name.
    Further(&'a str),
    /// Something that happened in a run, told in the words of the line.
    Note,
}

/// The payload of an event, as far as its line shows it.
pub(super) enum Payload {
    Whole(Value),
    /// The output of a `success`.
    Output(Value),
}

/// The parts of a line before its value.
#[derive(Clone, Copy)]
pub(super) struct LineParts<'a> {
    pub(super) run: &'a PlacedRun,
    pub(super) kind: &'a str,
    pub(super) name: &'a str,
    pub(super) event: LineEvent<'a>,
    /// The duration of the run, on success and error.
    pub(super) duration: Option<Duration>,
}

/// A line of which the value is still to come.
pub(super) struct Line<'a> {
    pub(super) parts: LineParts<'a>,
    /// The head of the message.
    head: String,
}

impl<'a> Line<'a> {
    pub(super) fn new(parts: LineParts<'a>, options: &TrajectoryOptions) -> Self {
        Self { parts, head: parts.head(options, options.is_timed.unwrap_or(false)) }
    }

    /// Returns the message of the line, as listeners receive it: with line feeds only where rows end, but otherwise
    /// without escapes.
    pub(super) fn message(&self, payload: Payload, input: &str, options: &TrajectoryOptions) -> String {
        let text = self.value(payload, options);
        let is_error = self.parts.stage() == Some(Stage::Error);
        if !is_error && !options.is_pretty {
            return self.with_head(&one_row(&text));
        }
        let mut message = self.with_head(&text);
        if is_error && !input.is_empty() && !options.is_json {
            message.push_str("\ninput: ");
            message.push_str(input);
        }
        message
    }

    /// Returns the message of a note.
    pub(super) fn note(&self, text: &str) -> String {
        self.with_head(&one_row(text))
    }

    /// Returns the message of folded runs.
    pub(super) fn folded(&self, folded: &Folded) -> String {
        let Folded { count, longest, .. } = folded;
        self.with_head(&format!("{count} more, p50 {:.1?}, max {longest:.1?}", folded.median()))
    }

    fn with_head(&self, text: &str) -> String {
        let mut message = String::with_capacity(self.head.len() + text.len() + 8);
        message.push_str(&self.head);
        if !text.is_empty() {
            message.push_str(": ");
            message.push_str(text);
        }
        message
    }

    fn value(&self, payload: Payload, options: &TrajectoryOptions) -> String {
        let mut payload = match payload {
            Payload::Output(mut output) => {
                output.sort_all_objects();
                return kinds::output(self.parts.kind, &output);
            }
            Payload::Whole(payload) => payload,
        };
        // Any crate in a build can make `serde_json` keep the order of insertion: sort, so that a line is the same in
        // each build.
        payload.sort_all_objects();
        let text = match (self.parts.stage(), &payload) {
            (Some(Stage::Error), _) => explain(&payload),
            (_, _) if options.is_json => {
                let payload = kinds::without_nulls(&payload);
                if options.is_pretty { to_string_pretty(&payload) } else { to_string(&payload) }.ok()
            }
            (Some(Stage::Start), Value::Object(members)) => {
                let input = kinds::input(self.parts.kind, members.get("input").unwrap_or(&Value::Null));
                match members.get("output") {
                    // A listener of `start` has set the output: the work is not done.
                    Some(output) if !output.is_null() => {
                        Some(format!("{input} => {}", kinds::output(self.parts.kind, output)))
                    }
                    _ => Some(input),
                }
            }
            (Some(Stage::Finish), _) => payload.pointer("/outcome/status").map(kinds::text),
            _ => None,
        };
        text.unwrap_or_else(|| kinds::text(&payload))
    }

    /// Returns the beginning of the value of this line's message, as other lines repeat it. If a listener has changed the
    /// head, there is none: what it has removed must not come back.
    pub(super) fn short_value(&self, message: &str) -> String {
        let Some(value) = message.strip_prefix(&*self.head).and_then(|value| value.strip_prefix(": ")) else {
            return String::new();
        };
        match value.char_indices().nth(SHORT) {
            Some((end, _)) => one_row(&value[..end]).into_owned() + "…",
            None => one_row(value).into_owned(),
        }
    }

    /// Returns a message as it is written: escaped, and with a prefix before each further row.
    ///
    /// This is the last step before the output, so that it also covers what a listener has put into the message. A
    /// terminal with these columns shows the duration and colors, and gets rows that it need not wrap: text that it
    /// wraps could look like another line.
    pub(super) fn written(&self, message: &str, options: &TrajectoryOptions, columns: Option<usize>) -> String {
        let Some(columns) = columns else {
            let escaped = escape_rows(message);
            if !escaped.contains('\n') {
                return escaped.into_owned();
            }
            return escaped.replace('\n', &format!("\n{}", further_row(self.parts.run.position.level)));
        };
        // If a listener has changed the head, the line has neither a color nor a duration.
        let (head, value) = match message.strip_prefix(&*self.head) {
            Some(value) => (self.parts.head(options, options.is_timed.unwrap_or(true)), value),
            None => (String::new(), message),
        };
        let stage = self.parts.stage();
        let head = escape_row(&head);
        let value = escape_rows(value);
        let is_whole = options.is_full || value.contains('\n') || stage == Some(Stage::Error);
        let value = if is_whole { value } else { terminal::cut(&head, &value, columns).into_owned().into() };
        let rows = terminal::wrap(&format!("{head}{value}"), columns, &further_row(self.parts.run.position.level));
        match stage {
            Some(stage) => terminal::colored(&rows, &head, stage),
            None => rows,
        }
    }
}

impl LineParts<'_> {
    fn stage(&self) -> Option<Stage> {
        match self.event {
            LineEvent::Stage(stage) => Some(stage),
            LineEvent::Further(_) | LineEvent::Note => None,
        }
    }

    fn head(&self, options: &TrajectoryOptions, is_timed: bool) -> String {
        let mut head = String::with_capacity(64);
        // Writing to a string does not fail.
        _ = self.write_head(&mut head, options, is_timed);
        head
    }

    fn write_head(&self, text: &mut String, options: &TrajectoryOptions, is_timed: bool) -> fmt::Result {
        let position = self.run.position;
        if !position.is_outermost {
            for _ in 1..position.level.relative {
                text.push_str("    ");
            }
            text.push_str(match self.event {
                LineEvent::Stage(Stage::Start) => "--> ",
                LineEvent::Note => "... ",
                LineEvent::Stage(_) | LineEvent::Further(_) => "<-- ",
            });
        }
        // A name has one row, so that it cannot begin a line.
        for part in [options.prefix(self.kind), &one_row(self.kind), "[", &one_row(self.name), "]"] {
            text.push_str(part);
        }
        let event = match self.event {
            LineEvent::Stage(stage) => stage.as_str(),
            LineEvent::Further(name) => name,
            LineEvent::Note => "",
        };
        if !event.is_empty() {
            for part in ["[", &one_row(event), "]"] {
                text.push_str(part);
            }
        }
        text.push_str(&self.run.number);
        match self.duration {
            Some(duration) if is_timed => write!(text, " ({duration:.1?})"),
            _ => Ok(()),
        }
    }
}

fn one_row(text: &str) -> Cow<'_, str> {
    if text.contains('\n') { text.replace('\n', "\\n").into() } else { text.into() }
}

/// Explains the payload of `error` from its JSON, so that a replay prints the same text.
fn explain(payload: &Value) -> Option<String> {
    let report = ErrorReport::deserialize(payload.get("error")?).ok()?;
    // Each further row gets a prefix, which replaces the indentation.
    Some(report.explain().replace("\n  ", "\n"))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use unicode_width::UnicodeWidthStr;

    use super::*;
    use crate::trajectory::tree::{Level, TreePosition};

    proptest! {
        #[test]
        fn no_row_is_wider_than_the_terminal_which_would_wrap_it_to_a_row_that_begins_with_any_text(
            name in "[a語]{0,60}",
            message in "[a語 \n]{0,200}",
            columns in 40_usize..100,
            relative in 0_usize..8,
            is_full: bool,
            stage in prop::sample::select(vec![Stage::Start, Stage::Success, Stage::Error]),
        ) {
            let level = Level { relative, absolute: relative };
            let position = TreePosition { level, is_outermost: relative == 0, is_shown: true };
            let run = PlacedRun::without_start(position);
            let options = TrajectoryOptions { is_full, ..TrajectoryOptions::default() };
            let parts = LineParts { run: &run, kind: "Tool", name: &name, event: LineEvent::Stage(stage), duration: None };
            let line = Line::new(parts, &options);
            let message = line.with_head(&message);
            let written = line.written(&message, &options, Some(columns));
            for (nth, row) in written.split('\n').enumerate() {
                let row = row.replace("\u{1b}[32m", "").replace("\u{1b}[31m", "").replace("\u{1b}[0m", "");
                prop_assert!(row.width() <= columns, "{row}");
                prop_assert!(nth == 0 || row.trim_start().starts_with("| "), "{row}");
            }
        }
    }
}
