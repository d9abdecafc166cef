//! The head of an entry, which is listed: [`EntryHead`].

use std::fmt;
use std::time::SystemTime;

use chrono::SecondsFormat;
use emitree_emitter::json::check_depth;
use emitree_runtime::Interrupt;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value, json};

use super::StoreError;

/// The maximum length of the JSON of a head, in bytes.
pub const MAX_HEAD_BYTES: usize = 64 * 1024;
/// The maximum number of questions that a head lists.
pub(super) const MAX_QUESTIONS: usize = 50;
/// The maximum length of the JSON of the ids and kinds of the questions that a head lists, in bytes.
const MAX_QUESTION_BYTES: usize = 32 * 1024;
/// The maximum length of the id of an entry, in bytes.
pub const MAX_ID_BYTES: usize = 1024;

/// The head of an entry: what is listed without loading the parts.
///
/// As JSON, without the fields that a store keeps beside it, and without empty fields:
///
/// ```json
/// {
///     "id": "order-17",
///     "kind": "session",
///     "status": "waiting",
///     "questions": [{"id": "order-17/1/0/pay-3f", "kind": "approval"}],
///     "meta": {"user": "ada"}
/// }
/// ```
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct EntryHead {
    /// The id of the entry, which [`check_id`] accepts.
    pub id: String,
    /// The revision at which the head was read, and [`Revision::NONE`] for an entry that is not stored yet.
    #[serde(skip)]
    pub revision: Revision,
    /// The kind of the entry, which the code above the store defines, such as `session`.
    pub kind: String,
    /// The state of the entry's work.
    pub status: EntryStatus,
    /// The process that holds the entry, if its lease is not over by the clock of the store. A store sets it where a
    /// head is read, and ignores it in an [`Append`](super::Append).
    #[serde(skip)]
    pub holder: Option<Holder>,
    /// The queue whose workers do the work, if there is one. An append without a queue leaves it.
    #[serde(skip)]
    pub queue: Option<String>,
    /// How often workers have [taken](super::Store::take) the entry since its work last got on. An append sets it.
    #[serde(skip)]
    pub attempts: u32,
    /// The number of [posts](super::Store::post) that wait. A store sets it where a head is read, and ignores it in an
    /// [`Append`](super::Append).
    #[serde(skip)]
    pub posts: u32,
    /// The first questions that wait for answers.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub questions: Vec<OpenQuestion>,
    /// The number of further questions, which the parts have. A [`Journal`](super::Journal) lists at most 50.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub more_questions: u64,
    /// Other data to list.
    #[serde(default, skip_serializing_if = "Map::is_empty")]
    pub meta: Map<String, Value>,
    /// The length of the parts that have last replaced all parts, in bytes. A [`Journal`](super::Journal) sets it, to
    /// decide when it replaces them again.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub whole_bytes: u64,
}

/// The state of an entry's work.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum EntryStatus {
    /// The work was submitted, and has not begun.
    Queued,
    /// The work is under way, or its process was killed.
    Running,
    /// The work waits for the answers to questions. A job of a queue without a question waits for the end of a sleep.
    Waiting,
    /// The work was paused, and can be resumed.
    Paused,
    /// The work has ended.
    Ended,
    /// The work has failed.
    Failed,
}

/// The process that works on an entry, until a time: its lease.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Holder {
    /// The name of the process. No other process has it.
    pub by: String,
    /// The end of the lease, by the clock of the store.
    pub until: SystemTime,
}

/// A question that waits for an answer.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct OpenQuestion {
    /// The id of the question.
    pub id: String,
    /// The kind of the question.
    pub kind: String,
    /// The time at which the question gets the answer of its [deadline](Interrupt::with_deadline).
    #[serde(default, with = "rfc3339::option", skip_serializing_if = "Option::is_none")]
    pub deadline: Option<SystemTime>,
}

impl From<&Interrupt> for OpenQuestion {
    fn from(question: &Interrupt) -> Self {
        let deadline = question.deadline.as_ref().and_then(|answer| answer.at);
        Self { id: question.id.clone(), kind: question.kind.clone(), deadline }
    }
}

/// The revision of an entry: a number that grows with each change. It can be compared with the revisions of the same id
/// only.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Revision(u64);

impl Revision {
    /// The revision of an entry that is not stored.
    pub const NONE: Self = Self(0);

    /// Creates a revision, for code that implements a store. Revisions of stored entries are greater than 0.
    #[must_use]
    pub const fn new(number: u64) -> Self {
        Self(number)
    }

    /// Returns the number.
    #[must_use]
    pub const fn get(self) -> u64 {
        self.0
    }
}

impl fmt::Display for Revision {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

impl EntryStatus {
    /// Returns the name of the status, as the JSON of a head has it.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Queued => "queued",
            Self::Running => "running",
            Self::Waiting => "waiting",
            Self::Paused => "paused",
            Self::Ended => "ended",
            Self::Failed => "failed",
        }
    }
}

impl EntryHead {
    /// Creates the head of an entry that is not stored yet, with the status [`EntryStatus::Running`].
    #[must_use]
    pub fn new(id: impl Into<String>, kind: impl Into<String>) -> Self {
        Self {
            id: id.into(),
            revision: Revision::NONE,
            kind: kind.into(),
            status: EntryStatus::Running,
            holder: None,
            queue: None,
            attempts: 0,
            posts: 0,
            questions: Vec::new(),
            more_questions: 0,
            meta: Map::new(),
            whole_bytes: 0,
        }
    }

    /// Lists the first questions, and counts the others.
    pub(super) fn list_questions(&mut self, mut questions: Vec<OpenQuestion>) {
        let mut bytes = 0;
        let fits = |question: &&OpenQuestion| {
            bytes += json!([question.id, question.kind]).to_string().len();
            bytes <= MAX_QUESTION_BYTES
        };
        let listed = questions.iter().take(MAX_QUESTIONS).take_while(fits).count();
        let more = questions.len() - listed;
        questions.truncate(listed);
        (self.questions, self.more_questions) = (questions, u64::try_from(more).unwrap_or(u64::MAX));
    }

    /// Reads the JSON that [`Append::check`](super::Append::check) has returned, for code that implements a store.
    ///
    /// # Errors
    ///
    /// Returns [`StoreError::Damaged`] if the text is not the head of an entry with this id.
    pub fn from_json(id: &str, revision: Revision, json: &str) -> Result<Self, StoreError> {
        let head: Self = serde_json::from_str(json)
            .map_err(|error| StoreError::damaged(id, format!("its head cannot be read: {error}")))?;
        if head.id != id {
            return Err(StoreError::damaged(id, format!("its head belongs to the entry `{}`", head.id)));
        }
        Ok(Self { revision, ..head })
    }

    /// Checks the head, and returns it as JSON.
    pub(super) fn check(&self) -> Result<String, StoreError> {
        check_id(&self.id)?;
        // Serializing recurses: data that is nested too deeply would overflow the stack.
        let is_shallow = self.meta.values().try_for_each(check_depth);
        let json = is_shallow.and_then(|()| serde_json::to_string(self));
        // The head adds two levels to the depth of `meta`, so it may be too deep to be read.
        let json = json.and_then(|json| serde_json::from_str::<Self>(&json).map(|_| json));
        let json = json.map_err(|error| StoreError::invalid(&self.id, format!("its head: {error}")))?;
        let bytes = json.len();
        if bytes <= MAX_HEAD_BYTES {
            return Ok(json);
        }
        let hint = "keep large data in the parts";
        let problem = format!("its head has {bytes} bytes as JSON, and at most {MAX_HEAD_BYTES} are allowed: {hint}");
        Err(StoreError::invalid(&self.id, problem))
    }
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde passes a reference")]
fn is_zero(bytes: &u64) -> bool {
    *bytes == 0
}

/// Checks the id of an entry: it has 1 to [`MAX_ID_BYTES`] bytes, and no control characters.
///
/// # Errors
///
/// Returns [`StoreError::Invalid`], which quotes the id.
pub fn check_id(id: &str) -> Result<(), StoreError> {
    if id.is_empty() {
        return Err(StoreError::invalid(id, "its id is empty: give it a text such as `order-17`"));
    }
    if id.len() > MAX_ID_BYTES {
        let problem = format!("its id has {} bytes, and at most {MAX_ID_BYTES} are allowed", id.len());
        return Err(StoreError::invalid(id, problem));
    }
    match id.chars().find(|c| c.is_control()) {
        Some(control) => Err(StoreError::invalid(id, format!("its id has the control character {control:?}"))),
        None => Ok(()),
    }
}

/// Returns a time as text, for errors.
pub(super) fn time_text(at: SystemTime) -> String {
    match rfc3339::date_time(at) {
        Ok(at) => at.to_rfc3339_opts(SecondsFormat::Millis, true),
        Err(_) => format!("{at:?}"),
    }
}

/// Times as text, as the records of events have them.
mod rfc3339 {
    use std::time::{SystemTime, UNIX_EPOCH};

    use chrono::{DateTime, Utc};
    use serde::ser::Error;
    use serde::{Deserialize, Deserializer, Serialize, Serializer};

    pub(super) fn date_time(at: SystemTime) -> Result<DateTime<Utc>, String> {
        let since = at.duration_since(UNIX_EPOCH).map_err(|error| error.to_string())?;
        // The conversion of chrono would panic for a time that it cannot represent.
        let seconds = i64::try_from(since.as_secs()).map_err(|error| error.to_string())?;
        let at = DateTime::<Utc>::from_timestamp(seconds, since.subsec_nanos());
        at.ok_or_else(|| "the time is too far in the future".to_owned())
    }

    pub(super) fn serialize<S: Serializer>(at: &SystemTime, serializer: S) -> Result<S::Ok, S::Error> {
        date_time(*at).map_err(S::Error::custom)?.serialize(serializer)
    }

    pub(super) fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<SystemTime, D::Error> {
        Ok(DateTime::<Utc>::deserialize(deserializer)?.into())
    }

    pub(super) mod option {
        use super::{Deserializer, Serializer, SystemTime};

        pub(in super::super) fn serialize<S: Serializer>(
            at: &Option<SystemTime>,
            serializer: S,
        ) -> Result<S::Ok, S::Error> {
            match at {
                Some(at) => super::serialize(at, serializer),
                None => serializer.serialize_none(),
            }
        }

        pub(in super::super) fn deserialize<'de, D: Deserializer<'de>>(
            deserializer: D,
        ) -> Result<Option<SystemTime>, D::Error> {
            super::deserialize(deserializer).map(Some)
        }
    }
}
