//! The sleeps of runs in a job, whose ends are stored.

use std::sync::Arc;
use std::time::Duration;

use chrono::{DateTime, Datelike, TimeDelta, Utc};
use emitree_runtime::{Error, Keep, Result, RunContext, RunKey};
use futures_core::future::BoxFuture;
use tokio::time::timeout;

use super::job::Job;
use super::job_layer::JobRun;
use super::record::Record;
use super::scope::Scope;

impl JobRun {
    /// Returns the job if this process works on it.
    fn job_at_work(&self) -> Option<&Arc<Job>> {
        self.job.get().filter(|job| job.state.lock().start.run.is_some())
    }

    async fn sleep(&self, key: &RunKey, duration: Duration, scope: &Scope) -> Result<()> {
        let Some(job) = self.job_at_work() else {
            let durable = &self.durable;
            return Err(Error::new(format!(
                "the sleep `{key}` cannot be stored, because {durable:?} is not under way"
            )));
        };
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
}

/// Returns the time at which a sleep ends that begins now.
fn end_of(key: &RunKey, duration: Duration) -> Result<DateTime<Utc>> {
    let end = TimeDelta::from_std(duration).ok().and_then(|duration| Utc::now().checked_add_signed(duration));
    // The text of a time has four digits for the year.
    let end = end.filter(|end| end.year() <= 9999);
    end.ok_or_else(|| Error::new(format!("the sleep `{key}` of {duration:?} is too long: it ends after the year 9999")))
}
