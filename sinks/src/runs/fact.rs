//! The meaning of a record.

use std::collections::BTreeMap;
use std::time::Duration;

use emitree_emitter::EventRecord;
use rust_decimal::Decimal;
use serde::{Deserialize, Deserializer, Serialize, Serializer};
use serde_json::Value;

/// The meaning of a record for the run that it belongs to. In JSON it is an object whose field `fact` has the name of
/// the variant, such as `{"fact": "gap", "lost": 3}`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(tag = "fact", rename_all = "snake_case")]
#[non_exhaustive]
pub enum Fact {
    /// The run has started.
    Start,
    /// The run has an output.
    Success,
    /// The run has failed, or was stopped.
    Error {
        /// The message of the error.
        message: Box<str>,
        /// The kind of the error, and its causes.
        #[serde(skip)]
        details: ErrorDetails,
    },
    /// The run has ended.
    Finish {
        /// The outcome, such as `success`, `failed`, `denied` or `timed_out`. `None` if it cannot be read.
        outcome: Option<Box<str>>,
        /// The duration of the run, in nanoseconds.
        #[serde(rename = "duration_ns", serialize_with = "nanoseconds")]
        duration: Option<Duration>,
    },
    /// The attempt was given up, and another attempt follows.
    Discarded {
        /// The reason.
        reason: Box<str>,
    },
    /// A model has used tokens.
    Usage {
        /// Tokens of the request.
        input_tokens: u64,
        /// Tokens of the answer.
        output_tokens: u64,
        /// Tokens of the request that the provider read from its cache.
        #[serde(skip)]
        cached_input_tokens: u64,
        /// Tokens of the answer that were spent on reasoning.
        #[serde(skip)]
        reasoning_tokens: u64,
        /// The cost, if it is known.
        #[serde(skip_serializing_if = "Option::is_none")]
        cost: Option<Decimal>,
        /// `true` if the numbers are estimates, because the provider reported none.
        #[serde(rename = "estimated", skip_serializing_if = "is_false")]
        is_estimated: bool,
    },
    /// Another event.
    Event,
    /// Events were lost here.
    Gap {
        /// The number of lost events.
        lost: u64,
    },
    /// A line is not a record.
    Malformed {
        /// The reason, with the beginning of the line.
        reason: Box<str>,
    },
}

/// The facts of an error besides its message.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct ErrorDetails {
    /// The kind, such as `failed` or `denied`; empty if it cannot be read.
    pub kind: Box<str>,
    /// The name of the guard or the code that stopped the run.
    pub by: Option<Box<str>>,
    /// The HTTP status that a server answered with.
    pub status: Option<u16>,
    /// The messages of the causes, nearest first.
    pub causes: Box<[Box<str>]>,
}

impl Fact {
    pub(super) fn of(event: &EventRecord) -> Self {
        // Lifecycle events have this flag in their context; other events may have the same names.
        let is_lifecycle = event.context.get("internal") == Some(&Value::Bool(true));
        match (event.name(), is_lifecycle) {
            ("start", true) => Self::Start,
            ("success", true) => Self::Success,
            ("error", true) => Self::error(event),
            ("finish", true) => Self::finish(event),
            ("attempt_discarded", false) => Self::discarded(event).unwrap_or(Self::Event),
            ("usage", false) => Self::usage(event).unwrap_or(Self::Event),
            _ => Self::Event,
        }
    }

    fn error(event: &EventRecord) -> Self {
        let Ok(ErrorPayload { error }) = event.payload() else {
            return Self::Error { message: Box::default(), details: ErrorDetails::default() };
        };
        let (kind, by) = match error.kind {
            Some(Kind::Plain(kind)) => (kind, None),
            Some(Kind::By(kinds)) => kinds.into_iter().next().map_or_else(Default::default, |(kind, by)| (kind, by.by)),
            None => Default::default(),
        };
        let status = error.details.unwrap_or_default().status;
        let causes = error.causes.unwrap_or_default();
        Self::Error { message: error.message, details: ErrorDetails { kind, by, status, causes } }
    }

    fn finish(event: &EventRecord) -> Self {
        let payload: FinishPayload = event.payload().unwrap_or_default();
        let duration = payload.duration_ns.map(Duration::from_nanos);
        Self::Finish { outcome: payload.outcome.map(|outcome| outcome.status), duration }
    }

    fn discarded(event: &EventRecord) -> Option<Self> {
        let Discarded { reason } = event.payload().ok()?;
        Some(Self::Discarded { reason })
    }

    fn usage(event: &EventRecord) -> Option<Self> {
        let UsagePayload { usage, cost } = event.payload().ok()?;
        let Usage { input_tokens, output_tokens, cached_input_tokens, reasoning_tokens, estimated } = usage;
        let is_estimated = estimated.unwrap_or_default();
        Some(Self::Usage { input_tokens, output_tokens, cached_input_tokens, reasoning_tokens, cost, is_estimated })
    }
}

#[derive(Deserialize)]
struct ErrorPayload {
    error: Report,
}

#[derive(Deserialize)]
struct Report {
    message: Box<str>,
    #[serde(default, deserialize_with = "readable")]
    kind: Option<Kind>,
    #[serde(default, deserialize_with = "readable")]
    causes: Option<Box<[Box<str>]>>,
    #[serde(default, deserialize_with = "readable")]
    details: Option<Details>,
}

/// The kind of an error: `"failed"`, or an object such as `{"denied": {"by": "policy"}}`.
#[derive(Deserialize)]
#[serde(untagged)]
enum Kind {
    Plain(Box<str>),
    By(BTreeMap<Box<str>, By>),
}

#[derive(Deserialize)]
struct By {
    by: Option<Box<str>>,
}

#[derive(Default, Deserialize)]
struct Details {
    #[serde(default, deserialize_with = "readable")]
    status: Option<u16>,
}

#[derive(Default, Deserialize)]
struct FinishPayload {
    #[serde(default, deserialize_with = "readable")]
    outcome: Option<Outcome>,
    #[serde(default, deserialize_with = "readable")]
    duration_ns: Option<u64>,
}

#[derive(Deserialize)]
struct Outcome {
    status: Box<str>,
}

#[derive(Deserialize)]
struct Discarded {
    reason: Box<str>,
}

#[derive(Deserialize)]
struct UsagePayload {
    usage: Usage,
    #[serde(default)]
    cost: Option<Decimal>,
}

#[derive(Deserialize)]
struct Usage {
    input_tokens: u64,
    output_tokens: u64,
    #[serde(default)]
    cached_input_tokens: u64,
    #[serde(default)]
    reasoning_tokens: u64,
    #[serde(default, deserialize_with = "readable")]
    estimated: Option<bool>,
}

/// Reads a value, or `None` if it has another type: a recorder may have replaced the value.
fn readable<'de, T: Deserialize<'de>, D: Deserializer<'de>>(deserializer: D) -> Result<Option<T>, D::Error> {
    let value = <&serde_json::value::RawValue>::deserialize(deserializer)?;
    Ok(serde_json::from_str(value.get()).ok())
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde calls it with a reference")]
const fn is_false(value: &bool) -> bool {
    !*value
}

#[expect(clippy::ref_option, reason = "serde calls it with a reference")]
fn nanoseconds<S: Serializer>(duration: &Option<Duration>, serializer: S) -> Result<S::Ok, S::Error> {
    duration.map(|duration| u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX)).serialize(serializer)
}
