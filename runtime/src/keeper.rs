//! What a job keeps for its runs: the ends of their sleeps, and the values that they publish (M13).

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use emitree_emitter::json::to_value_exact;
use futures_core::future::BoxFuture;
use serde::Serialize;
use serde_json::Value;

use crate::{Error, Result, RunContext, RunKey};

/// Keeps the sleeps and the published values of runs, for a middleware that stores jobs, as `Durable` of `emitree-middleware` does.
pub trait Keep: Send + Sync + 'static {
    /// Sleeps for a duration since the first call with this key, also in another process. The key is part of the key of
    /// the run, and no other sleep of this attempt has it.
    ///
    /// # Errors
    ///
    /// Return an error if the end of the sleep cannot be stored, or if the run is to end before it.
    fn sleep<'a>(&'a self, key: RunKey, duration: Duration, run: &'a RunContext) -> BoxFuture<'a, Result<()>>;

    /// Keeps a value for readers, in place of the value that was published with this name before.
    ///
    /// # Errors
    ///
    /// Return an error if the value cannot be stored.
    fn publish(&self, name: &str, value: Value) -> Result<()>;
}

/// The extension of a job's run through which the runs below it reach a [`Keep`].
#[derive(Clone)]
pub struct Keeper(Arc<dyn Keep>);

impl Keeper {
    /// Creates the extension.
    #[must_use]
    pub fn new(keep: Arc<dyn Keep>) -> Self {
        Self(keep)
    }
}

impl fmt::Debug for Keeper {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Keeper").finish_non_exhaustive()
    }
}

impl RunContext {
    /// Sleeps. In a job, such as a run with `Durable`, the end of the sleep is stored before it begins, so if the process
    /// is killed, the next start sleeps for the rest only, whatever `duration` it is called with. The job's process holds
    /// its claim meanwhile. An abort or a timeout of the run ends the sleep at once, and so does a question or an error of
    /// the store that stops the job or the step in which it is.
    ///
    /// A job that a worker runs goes back to its queue if it sleeps for longer than a lease, and no run below it is under
    /// way: then this returns an interrupt, which the job has to return, and the job is run again when the first of its
    /// sleeps is over. A future beside the sleep that is no run is dropped meanwhile.
    ///
    /// Without a job, this sleeps for the whole `duration`, and stores nothing.
    ///
    /// The key names the sleep within the nearest run that has a [key](Self::key), as the keys of runs do. The end is a
    /// time of the clock of the job's store; from the call on, tokio's clock is used.
    ///
    /// ```
    /// use std::time::Duration;
    /// use emitree_runtime::{RunContext, Runnable, runnable_fn};
    ///
    /// # #[tokio::main(flavor = "current_thread", start_paused = true)]
    /// # async fn main() -> emitree_runtime::Result<()> {
    /// let remind = runnable_fn("remind", |name: String, ctx: RunContext| async move {
    ///     ctx.sleep("a day", Duration::from_secs(86_400)).await?;
    ///     Ok(format!("Dear {name}, …"))
    /// });
    /// assert_eq!(remind.run("Ada".to_owned()).await?, "Dear Ada, …");
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    ///
    /// Returns an error that quotes the key if it cannot be [part of a key](RunKey::child), or if this attempt of the run
    /// has slept with it already. In a job, also returns the error of the store, and the interrupt or the error that stops
    /// the job.
    ///
    /// # Cancel safety
    ///
    /// If the future is dropped, the sleep ends. In a job, its end may be stored.
    pub async fn sleep(&self, key: &str, duration: Duration) -> Result<()> {
        let key = self.take_sleep(key)?;
        match (self.extension::<Keeper>(), key) {
            (Some(keeper), Some(key)) => keeper.0.sleep(key, duration, self).await,
            _ => {
                tokio::time::sleep(duration).await;
                Ok(())
            }
        }
    }

    /// Publishes a value of the job for readers, such as its progress: `Durable::published` of `emitree-middleware` returns
    /// the last value of each name, in any process. The names belong to the job, so its steps share them.
    ///
    /// The value is stored with the next commit of the job, and after a second at the latest. Of the values of one name
    /// that come until then, the last one is stored. After a kill, a value may go back: the next start publishes its values
    /// again.
    ///
    /// Without a job, this does nothing.
    ///
    /// # Errors
    ///
    /// Returns an error that names the value if JSON cannot represent it, and an error if the job is not under way.
    pub fn publish<T: Serialize + ?Sized>(&self, name: &str, value: &T) -> Result<()> {
        let Some(keeper) = self.extension::<Keeper>() else { return Ok(()) };
        let value = to_value_exact(value)
            .map_err(|error| Error::from(error).message(format!("the value {name:?} cannot be published")))?;
        keeper.0.publish(name, value)
    }
}
