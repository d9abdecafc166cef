//! The stored form of a job: its records, as JSON.

use std::collections::BTreeMap;

use bytes::Bytes;
use chrono::{DateTime, Utc};
use emitree_emitter::json::check_depth;
use emitree_runtime::{Answer, Error, ErrorReport, Interrupt, Result};
use serde::{Deserialize, Serialize};
use serde_json::Value;
use uuid::Uuid;

use crate::store::Post;

/// The version of the records.
pub(super) const FORMAT: u32 = 1;

/// The submission of a job to a queue.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Submission {
    pub(super) queue: String,
    /// Random.
    pub(super) by: Uuid,
    /// The guards that the submitting run hands down.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub(super) guards: Vec<String>,
}

/// A change of a job. Each is one part of the job's entry.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", deny_unknown_fields)]
pub(super) enum Record {
    Submitted(Submission),
    /// The job has begun for the first time.
    Input {
        format: u32,
        input: Value,
    },
    Began {
        key: String,
        input: Value,
        at: DateTime<Utc>,
        /// `true` if it is executed again after a kill, without a question.
        #[serde(default, skip_serializing_if = "std::ops::Not::not")]
        may_repeat: bool,
    },
    /// The step has asked, and is executed again once it has its answer.
    Waiting {
        key: String,
    },
    Ended {
        key: String,
        output: Value,
    },
    Failed {
        key: String,
        error: Box<ErrorReport>,
    },
    /// A run sleeps until a time.
    Sleeps {
        key: String,
        until: DateTime<Utc>,
    },
    /// The job goes back to its queue until its sleep is over.
    Asleep {
        until: DateTime<Utc>,
    },
    /// All questions that are open now.
    Questions(Vec<Interrupt>),
    Answered(BTreeMap<String, Answer>),
    /// The first deadlines of questions, and the answers that count then.
    Deadlines(BTreeMap<String, Answer>),
    /// Values for readers, by their names.
    Published(BTreeMap<String, Value>),
    /// A start of a submitted job has failed, or was aborted.
    Stopped(Box<ErrorReport>),
    /// The job has ended.
    Output(Value),
}

impl Record {
    /// Returns the record as JSON.
    ///
    /// # Errors
    ///
    /// Returns an error if the JSON would be nested too deeply to be read again.
    pub(super) fn to_json(&self) -> Result<Bytes> {
        let json = serde_json::to_value(self)?;
        check_depth(&json)?;
        Ok(json.to_string().into())
    }
}

/// A message of another process to the one that works on the job.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", deny_unknown_fields)]
pub(super) enum Sent {
    Answer {
        id: String,
        answer: Answer,
    },
    Abort {
        reason: String,
    },
    /// The job may go on: its wait may be over.
    Wake,
}

impl Sent {
    pub(super) fn to_post(&self) -> Result<Post> {
        let json = serde_json::to_value(self)?;
        check_depth(&json)?;
        Ok(Post::new(json.to_string()))
    }
}

/// The answer to the question about a job whose processes are gone again and again.
#[derive(Debug, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum AfterStuck {
    Again,
    Fail,
}

impl AfterStuck {
    /// Reads an answer: `"again"` or `"fail"`.
    pub(super) fn read(answer: &Answer) -> Result<Self> {
        let read = Self::deserialize(&answer.value);
        read.map_err(|_| {
            let value = &answer.value;
            Error::new(format!(r#"`{value}` is no answer to `{STUCK}`: use `"again"` or `"fail"`"#))
        })
    }
}

/// The kind of the question that a [`Worker`](super::Worker) asks instead of going on with an entry.
pub const STUCK: &str = "worker.stuck";

/// The answer to the question about a step that had begun.
#[derive(Debug, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum AfterBegun {
    Output(Value),
    Again,
}

impl AfterBegun {
    /// Reads an answer: `{"output": …}` or `"again"`.
    pub(super) fn read(answer: &Answer) -> Result<Self> {
        let read = Self::deserialize(&answer.value);
        read.map_err(|_| {
            let value = &answer.value;
            Error::new(format!(r#"`{value}` is no answer to `{BEGAN}`: use `{{"output": …}}` or `"again"`"#))
        })
    }
}

/// The kind of the interrupt with which a job goes back to its queue until its sleep is over. It is no question.
pub(super) const SLEEP: &str = "durable.sleep";

/// The kind of the question about a step that had begun.
pub(super) const BEGAN: &str = "durable.began";
