//! What a job keeps for its runs: the ends of their sleeps, and the values that they publish.

use std::sync::Arc;
use std::time::Duration;

use chrono::{DateTime, Datelike, TimeDelta, Utc};
use emitree_runtime::{Error, Keep, Result, RunContext, RunKey};
use futures_core::future::BoxFuture;
use serde_json::Value;
use tokio::time::timeout;

use super::job::Job;
use super::job_layer::JobRun;
use super::record::Record;
use super::scope::Scope;

/// The time after which a value is stored that was published.
const PUBLISH_AFTER: Duration = Duration::from_secs(1);

impl JobRun {
    /// Returns the job.
    ///
    /// # Errors
    ///
    /// Returns an error if this run does not work on it: it has not begun, or it has ended.
    fn job_at_work(&self) -> Result<&Arc<Job>> {
        let job = self.job.get().filter(|job| job.state.lock().start.run.is_some());
        job.ok_or_else(|| Error::new(format!("{:?} keeps nothing, because it is not under way", self.durable)))
    }

    async fn sleep(&self, key: &RunKey, duration: Duration, scope: &Scope) -> Result<()> {
        let job = self.job_at_work()?;
        let stored = job.state.lock().sleep(key);
        let until = match (stored, scope.stopped()) {
            (Some(until), None) => until,
            // A sleep that is over is answered, like a step that is stored.
            (Some(until), Some(stop)) => return if until <= Utc::now() { Ok(()) } else { Err(stop) },
            (None, Some(stop)) => return Err(stop),
            (None, None) => {
                let until = end_of(key, duration)?;
                job.commit(|state| state.push(Record::Sleeps { key: key.to_string(), until })).await?;
                until
            }
        };
        let left = (until - Utc::now()).to_std().unwrap_or_default();
        match timeout(left, scope.stops()).await {
            Ok(stop) => Err(stop),
            Err(_) => Ok(()),
        }
    }
}

impl Keep for JobRun {
    fn sleep<'a>(&'a self, key: RunKey, duration: Duration, run: &'a RunContext) -> BoxFuture<'a, Result<()>> {
        Box::pin(async move {
            let scope = Scope::of(run);
            self.sleep(&key, duration, &scope).await.inspect_err(|error| scope.note(error))
        })
    }

    fn publish(&self, name: &str, value: Value) -> Result<()> {
        let job = self.job_at_work()?;
        if job.state.lock().publish(name, value)? {
            job.journal.commit_within(PUBLISH_AFTER);
        }
        Ok(())
    }
}

/// Returns the time at which a sleep ends that begins now.
fn end_of(key: &RunKey, duration: Duration) -> Result<DateTime<Utc>> {
    let end = TimeDelta::from_std(duration).ok().and_then(|duration| Utc::now().checked_add_signed(duration));
    // The text of a time has four digits for the year.
    let end = end.filter(|end| end.year() <= 9999);
    end.ok_or_else(|| Error::new(format!("the sleep `{key}` of {duration:?} is too long: it ends after the year 9999")))
}
