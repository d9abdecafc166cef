//! What is shown, and in which words: the same live and from a recording.

use std::fmt;
use std::sync::Arc;

use emitree_emitter::{EventMeta, EventRecord, Matcher, Trace};
use emitree_runtime::{ErrorReport, Stage};
use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;

use super::canonical::Canon;
use super::prefix::{Prefix, most_specific};
use super::pretty::push_pretty;
use super::{Level, Line, Origin, Runs};

#[derive(Debug)]
pub(super) struct Settings {
    pub(super) included: Vec<Runs>,
    pub(super) excluded: Vec<Runs>,
    pub(super) prefixes: Vec<Prefix>,
    pub(super) events: Vec<Matcher>,
    pub(super) layout: Layout,
    pub(super) priority: Option<i32>,
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
            priority: None,
            is_pretty: false,
            leaves_out_nulls: true,
            is_enabled: true,
            is_nested: true,
            is_timed: false,
        }
    }
}

/// What a line is made to be.
pub(super) enum Layout {
    Text,
    Json,
    Custom(Formatter),
}

pub(super) type Formatter = Arc<dyn Fn(&Line<'_>) -> String + Send + Sync>;

impl fmt::Debug for Layout {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Text => "Text",
            Self::Json => "Json",
            Self::Custom(_) => "Custom(..)",
        })
    }
}

/// Buffers that are used again for every line.
#[derive(Debug, Default)]
pub(super) struct Scratch {
    canon: Canon,
    canonical: Vec<u8>,
    /// What is not canonical JSON: explained, or pretty.
    other: String,
    pub(super) message: String,
}

impl Scratch {
    /// What a buffer may keep between two lines.
    pub(super) const KEPT: usize = 1 << 16;

    fn clear(&mut self) {
        self.canonical.clear();
        self.canonical.shrink_to(Self::KEPT);
        self.canon.shrink_to(Self::KEPT);
        for buffer in [&mut self.other, &mut self.message] {
            buffer.clear();
            buffer.shrink_to(Self::KEPT);
        }
    }
}

impl Settings {
    /// Whether a run is shown, told from its `start`.
    pub(super) fn shows(&self, origin: &Origin<'_>) -> bool {
        let has = |runs: &[Runs]| runs.iter().any(|runs| runs.has(origin));
        (self.included.is_empty() || has(&self.included)) && !has(&self.excluded)
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

    /// Puts the message of a line into `scratch`; the payload is JSON text.
    pub(super) fn render(&self, line: Line<'_>, payload: &[u8], scratch: &mut Scratch) {
        scratch.clear();
        let Scratch { canon, canonical, other, message } = scratch;
        let payload = if let Some(explained) = self.explain(line.stage, payload) {
            *other = explained;
            other
        } else {
            canon.push(canonical, payload, self.leaves_out_nulls);
            // JSON is UTF-8.
            let canonical = std::str::from_utf8(canonical).unwrap_or_default();
            if self.is_pretty && !self.is_json() {
                push_pretty(other, canonical);
                other
            } else {
                canonical
            }
        };
        let prefix = match &*self.prefixes {
            [] => "",
            prefixes => most_specific(prefixes, line.origin.kind(), line.origin.name()),
        };
        let line = Line { payload, prefix, ..line };
        match &self.layout {
            // A string takes everything.
            Layout::Text => line.write(message).unwrap_or_default(),
            Layout::Json => message.push_str(&json(&line)),
            Layout::Custom(format) => message.push_str(&format(&line)),
        }
    }

    /// What explains an error, from its payload: so a recording has the same words.
    fn explain(&self, stage: Option<Stage>, payload: &[u8]) -> Option<String> {
        let is_explained = stage == Some(Stage::Error) && !self.is_json();
        let failure: Failure = is_explained.then(|| serde_json::from_slice(payload).ok()).flatten()?;
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
