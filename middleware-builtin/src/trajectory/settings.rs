//! What is shown, and in which words: the same live and from a recording.

use std::fmt;
use std::sync::Arc;

use emitree_emitter::{EventMeta, EventRecord, Matcher, Trace};
use emitree_runtime::{ErrorReport, Stage};
use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;

use super::payload::Payload;
use super::prefix::{Prefix, most_specific};
use super::{Level, Line, Origin};
use crate::runs::{Candidate, Runs};

pub(super) struct Settings {
    pub(super) included: Vec<Runs>,
    pub(super) excluded: Vec<Runs>,
    pub(super) prefixes: Vec<Prefix>,
    pub(super) events: Vec<Matcher>,
    pub(super) layout: Layout,
    pub(super) is_pretty: bool,
    pub(super) leaves_out_nulls: bool,
    pub(super) is_enabled: bool,
    pub(super) is_nested: bool,
    pub(super) is_timed: bool,
}

impl Default for Settings {
    fn default() -> Self {
        Self {
            included: Vec::new(),
            excluded: Vec::new(),
            prefixes: Vec::new(),
            events: Vec::new(),
            layout: Layout::Text,
            is_pretty: false,
            leaves_out_nulls: true,
            is_enabled: true,
            is_nested: true,
            is_timed: false,
        }
    }
}

/// What is not as by default, each behind a comma.
impl fmt::Debug for Settings {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.included.iter().try_for_each(|runs| write!(f, ", only {runs:?}"))?;
        self.excluded.iter().try_for_each(|runs| write!(f, ", without {runs:?}"))?;
        self.events.iter().try_for_each(|events| write!(f, ", with {events:?}"))?;
        self.prefixes.iter().try_for_each(|prefix| write!(f, ", {prefix:?}"))?;
        let layout = match self.layout {
            Layout::Text => "",
            Layout::Json => "as JSON",
            Layout::Custom(_) => "by a formatter",
        };
        let flags = [
            (!layout.is_empty(), layout),
            (self.is_pretty, "pretty"),
            (!self.leaves_out_nulls, "with nulls"),
            (self.is_timed, "timed"),
            (!self.is_nested, "not nested"),
            (!self.is_enabled, "disabled"),
        ];
        flags.iter().filter(|(is_said, _)| *is_said).try_for_each(|(_, flag)| write!(f, ", {flag}"))
    }
}

/// What a line is made to be.
pub(super) enum Layout {
    Text,
    Json,
    Custom(Formatter),
}

pub(super) type Formatter = Arc<dyn Fn(&Line<'_>) -> String + Send + Sync>;

impl Settings {
    /// Whether a run is shown, told from its `start`.
    #[inline]
    pub(super) fn shows(&self, run: &dyn Candidate) -> bool {
        let has = |runs: &[Runs]| runs.iter().any(|runs| runs.has(run));
        (self.included.is_empty() || has(&self.included)) && !has(&self.excluded)
    }

    /// Whether every run is.
    pub(super) const fn shows_all(&self) -> bool {
        self.included.is_empty() && self.excluded.is_empty()
    }

    /// Whether an event that is none of a run's own four gets a line.
    pub(super) fn shows_event(&self, meta: &EventMeta<'_>) -> bool {
        self.events.iter().any(|matcher| matcher.matches(meta))
    }

    pub(super) fn shows_recorded(&self, record: &EventRecord) -> bool {
        self.events.iter().any(|matcher| matcher.matches_record(record) == Some(true))
    }

    pub(super) const fn times(&self, stage: Option<Stage>) -> bool {
        self.is_timed && matches!(stage, Some(Stage::Success | Stage::Error))
    }

    /// The message of a line.
    pub(super) fn render(&self, line: Line<'_>, payload: Payload<'_>) -> String {
        let explained = self.explain(line.stage, payload);
        let is_pretty = self.is_pretty && !self.is_json();
        let payload = explained.unwrap_or_else(|| payload.sorted(self.leaves_out_nulls, is_pretty));
        let line = Line { prefix: self.prefix(&line.origin), payload: &payload, ..line };
        match &self.layout {
            Layout::Text => line.to_string(),
            Layout::Json => json(&line),
            Layout::Custom(format) => format(&line),
        }
    }

    fn prefix(&self, origin: &Origin<'_>) -> &str {
        match &*self.prefixes {
            [] => "",
            prefixes => most_specific(prefixes, origin.kind(), origin.name()),
        }
    }

    /// What explains an error, from its payload: so a recording has the same words.
    fn explain(&self, stage: Option<Stage>, payload: Payload<'_>) -> Option<String> {
        if stage != Some(Stage::Error) || self.is_json() {
            return None;
        }
        let failure: Failure = serde_json::from_str(&payload.text()).ok()?;
        Some(failure.error.explain())
    }

    const fn is_json(&self) -> bool {
        matches!(self.layout, Layout::Json)
    }

    /// The line that stands where events were lost.
    pub(super) fn gap(&self, lost: u64) -> String {
        match self.layout {
            Layout::Json => format!(r#"{{"gap":{{"lost":{lost}}}}}"#),
            Layout::Text | Layout::Custom(_) => format!("[gap]: events were lost here: {lost}"),
        }
    }
}

/// The payload of `error`, as it is serialised.
#[derive(Deserialize)]
struct Failure {
    error: ErrorReport,
}

/// A line as a record.
#[derive(Serialize)]
struct JsonLine<'a, T> {
    time: T,
    kind: &'a str,
    name: &'a str,
    event: &'a str,
    path: &'a str,
    level: Level,
    trace: Option<Trace>,
    #[serde(skip_serializing_if = "Option::is_none")]
    duration_ns: Option<u128>,
    #[serde(skip_serializing_if = "str::is_empty")]
    prefix: &'a str,
    payload: &'a RawValue,
}

fn json(line: &Line<'_>) -> String {
    let origin = line.origin;
    let record = JsonLine {
        time: origin.created_at(),
        kind: origin.kind(),
        name: origin.name(),
        event: origin.event(),
        path: origin.path(),
        level: line.level,
        trace: origin.trace(),
        duration_ns: line.duration.map(|duration| duration.as_nanos()),
        prefix: line.prefix,
        payload: serde_json::from_str(line.payload).unwrap_or(RawValue::NULL),
    };
    serde_json::to_string(&record).unwrap_or_default()
}
