//! Jobs that are submitted to a queue, for a [`Worker`](super::Worker).

use std::time::Duration;

use emitree_emitter::json::to_value_exact;
use emitree_emitter::new_id;
use emitree_runtime::{Error, Result, RunContext};
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::Value;
use tokio::time::sleep;

use super::Durable;
use super::job::Job;
use super::job_layer::other_input;
use super::record::{FORMAT, Record, Submission};
use super::state::JobState;
use crate::shared::difference::quoted;
use crate::store::{EntryStatus, Revision, StoreError};

/// How often the end of a job is looked for: at first, and at last.
const LOOKS: [Duration; 2] = [Duration::from_millis(20), Duration::from_secs(1)];

/// The result of a submission. Returned by [`Durable::submit`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Submitted {
    /// `true` if this call has submitted the job, `false` if it was submitted before.
    pub is_new: bool,
    /// `true` if a worker serves the queue now. Otherwise the job waits until one is started.
    pub is_served: bool,
}

impl Submitted {
    /// Creates a result, for code that submits other entries than jobs.
    #[must_use]
    pub const fn new(is_new: bool, is_served: bool) -> Self {
        Self { is_new, is_served }
    }
}

impl Durable {
    /// Submits the job to a queue, whose [workers](super::Worker) run it. When this returns, the job is stored. A job that
    /// was submitted with this input already stays as it is.
    ///
    /// The names of the guards that the run which calls this hands down are stored: a worker does not begin the job if the
    /// runnable that it serves lacks one of them.
    ///
    /// ```
    /// use emitree_middleware::durable::{Durable, Worker};
    /// use emitree_middleware::store::MemoryStore;
    /// use emitree_runtime::{RunContext, runnable_fn};
    ///
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> emitree_runtime::Result<()> {
    /// let store = MemoryStore::new();
    /// let job = Durable::new(&store, "import-7");
    /// assert!(job.submit("import", &["Ada", "Bob"]).await?.is_new);
    /// assert!(!job.submit("import", &["Ada", "Bob"]).await?.is_new);
    ///
    /// // Later, perhaps on another machine.
    /// let import = runnable_fn("import", |rows: Vec<String>, _: RunContext| async move { Ok(rows.len()) });
    /// let worker = Worker::new(&store).serve("import", import).start().await?;
    /// assert_eq!(job.ended::<usize>().await?, 2);
    /// # worker.shutdown(std::time::Duration::from_secs(30)).await;
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    ///
    /// Returns an error that names both if the job has another input or another queue, and the error of the store.
    ///
    /// # Cancel safety
    ///
    /// If the future is dropped, the job may be submitted.
    pub async fn submit<T: Serialize + ?Sized>(&self, queue: &str, input: &T) -> Result<Submitted> {
        let input = to_value_exact(input).map_err(|error| {
            Error::from(error).message(format!("the input of the job `{}` cannot be stored", self.id))
        })?;
        let id = new_id();
        let guards = RunContext::current().map(|ctx| ctx.nested_guards()).unwrap_or_default();
        let workers = self.store.workers().await?;
        let is_served = workers.iter().any(|worker| worker.serves(queue));
        loop {
            let job = self.open().await?;
            let submission = Submission { queue: queue.to_owned(), by: id, guards: guards.clone() };
            let is_recorded = self.note_submission(&job, submission, &input)?;
            match job.journal.commit().await {
                // Another task has read the job again before this commit, which has replaced the submission.
                Ok(_) if job.state.lock().submission.is_none() => continue,
                Ok(_) => {}
                // Its worker has it.
                Err(StoreError::Held { .. } | StoreError::Lost { .. }) if !is_recorded => {}
                // Another process was faster: the job is read again.
                Err(StoreError::Conflict { current, .. }) if current != Revision::NONE => continue,
                Err(StoreError::Held { .. }) => {
                    sleep(LOOKS[0]).await;
                    continue;
                }
                Err(error) => return Err(error.into()),
            }
            let is_new = job.state.lock().submission.as_ref().is_some_and(|submission| submission.by == id);
            return Ok(Submitted { is_new, is_served });
        }
    }

    /// Records the submission, unless there is one. Returns `true` if it was recorded.
    fn note_submission(&self, job: &Job, submission: Submission, input: &Value) -> Result<bool> {
        let what = || format!("job `{}`", self.id);
        let mut state = job.state.lock();
        match (&state.input, &state.submission) {
            (Some(stored), _) if stored != input => Err(other_input(&what(), stored, input)),
            (Some(_), Some(Submission { queue, .. })) if *queue != submission.queue => Err(Error::new(format!(
                "the {} was submitted to the queue `{queue}`, and is submitted to `{}`: give it another id",
                what(),
                submission.queue
            ))),
            (Some(_), Some(_)) => Ok(false),
            (stored, None) => {
                let is_begun = stored.is_some();
                state.push(Record::Submitted(submission))?;
                if !is_begun {
                    state.push(Record::Input { format: FORMAT, input: input.clone() })?;
                }
                if state.questions().is_empty() {
                    state.status = EntryStatus::Queued;
                }
                Ok(true)
            }
            (None, Some(_)) => Err(Error::new(format!("the {} was submitted without an input", what()))),
        }
    }

    /// Waits until a job that was submitted has ended, and returns its output. While it has an open question, this waits
    /// too. It looks at the store again and again, at most each second.
    ///
    /// # Errors
    ///
    /// Returns the error with which the job has failed, or was aborted; an error if no job with this id was submitted, or
    /// if its output is no `T`; and the error of the store.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future loses nothing.
    pub async fn ended<T: DeserializeOwned>(&self) -> Result<T> {
        let [mut look, longest] = LOOKS;
        loop {
            // From the store: what a run of this process has not stored yet is no end.
            let entry = self.store.load(&self.id).await?.filter(|entry| entry.head.queue.is_some());
            let entry =
                entry.ok_or_else(|| Error::new(format!("the job `{}` was not submitted: submit it first", self.id)))?;
            // The records of a job that goes on are not read.
            let stops = [EntryStatus::Ended, EntryStatus::Failed, EntryStatus::Paused];
            if stops.contains(&entry.head.status) {
                let output = JobState::read(&entry)?.outcome()?;
                return serde_json::from_value(output.clone()).map_err(|error| {
                    let message = format!("the output {} of the job `{}` is of another type", quoted(&output), self.id);
                    Error::from(error).message(message)
                });
            }
            sleep(look).await;
            look = longest.min(look * 2);
        }
    }
}
