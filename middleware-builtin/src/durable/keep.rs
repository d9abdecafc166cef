//! What a job keeps for its runs: the ends of their sleeps, and the values that they publish.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use chrono::{DateTime, Datelike, TimeDelta, Utc};
use emitree_runtime::{Error, Interrupt, Keep, Result, RunContext, RunKey};
use futures_core::future::BoxFuture;
use serde_json::{Value, json};
use tokio::time::timeout;

use super::OwnSteps;
use super::job::Job;
use super::job_layer::JobRun;
use super::record::{Record, SLEEP};
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

    /// Sleeps. `is_own` is `true` if the job itself sleeps, and no run below it.
    async fn sleep(&self, key: &RunKey, duration: Duration, scope: &Scope, is_own: bool) -> Result<()> {
        let job = self.job_at_work()?;
        let stored = job.state.lock().sleep(key);
        let until = match (stored, scope.stopped()) {
            (Some(until), None) => until,
            // A sleep that is over is answered, like a step that is stored.
            (Some(until), Some(stop)) => return if until <= job.now() { Ok(()) } else { Err(stop) },
            (None, Some(stop)) => return Err(stop),
            (None, None) => {
                let until = end_of(key, duration, job.now())?;
                job.commit(|state| state.push(Record::Sleeps { key: key.to_string(), until })).await?;
                until
            }
        };
        let goes_back = is_own && self.durable.is_queued;
        let _asleep = Asleep::new(job, key, until);
        loop {
            let left = (until - job.now()).to_std().unwrap_or_default();
            let lease = Some(self.durable.lease.time).filter(|lease| goes_back && *lease < left);
            match (timeout(lease.unwrap_or(left), scope.stops()).await, lease) {
                (Ok(stop), _) => return Err(stop),
                (Err(_), None) => return Ok(()),
                // The job goes back to its queue, unless it works.
                (Err(_), Some(_)) if self.live.load(Ordering::Relaxed) > 0 => {}
                (Err(_), Some(_)) => {
                    let until = job.state.lock().fall_asleep()?;
                    return Err(Error::interrupted(Interrupt::new(SLEEP, json!({"until": until})).about(key)));
                }
            }
        }
    }
}

/// A sleep under way.
struct Asleep<'a> {
    job: &'a Job,
    key: &'a RunKey,
}

impl<'a> Asleep<'a> {
    fn new(job: &'a Job, key: &'a RunKey, until: DateTime<Utc>) -> Self {
        job.state.lock().start.sleeping.insert(key.to_string(), until);
        Self { job, key }
    }
}

impl Drop for Asleep<'_> {
    fn drop(&mut self) {
        self.job.state.lock().start.sleeping.remove(self.key.as_str());
    }
}

impl Keep for JobRun {
    fn sleep<'a>(&'a self, key: RunKey, duration: Duration, run: &'a RunContext) -> BoxFuture<'a, Result<()>> {
        Box::pin(async move {
            let scope = Scope::of(run);
            let is_own = OwnSteps::are_of(run, &self.durable);
            self.sleep(&key, duration, &scope, is_own).await.inspect_err(|error| scope.note(error))
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

/// Returns the time at which a sleep ends.
fn end_of(key: &RunKey, duration: Duration, now: DateTime<Utc>) -> Result<DateTime<Utc>> {
    let end = TimeDelta::from_std(duration).ok().and_then(|duration| now.checked_add_signed(duration));
    // The text of a time has four digits for the year.
    let end = end.filter(|end| end.year() <= 9999);
    end.ok_or_else(|| Error::new(format!("the sleep `{key}` of {duration:?} is too long: it ends after the year 9999")))
}
