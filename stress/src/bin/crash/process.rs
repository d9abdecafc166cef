//! The process that gets a signal: it runs an agent on a session in a database, and a job, sends messages to the session,
//! and goes on where another process was killed.

use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use emitree::agent::{Agent, AgentRun, AnswerError, Session};
use emitree::middleware::approval::Decision;
use emitree::middleware::store::{Filter, Holder, Lease, Store, StoreError};
use emitree::{Error, Result};
use emitree_stores::SqliteStore;

use crate::log::{Log, Stop};
use crate::points::{Flaws, Points};
use crate::send::send;
use crate::target::Target;
use crate::{agents, job};

const ID: &str = "order";
/// The time for which a process that was killed holds the session.
pub(crate) const LEASE: Duration = Duration::from_millis(200);

/// Waits until the lease of a process that was killed has run out.
pub(crate) async fn wait_for(holder: &Holder) {
    tokio::time::sleep(holder.until.duration_since(SystemTime::now()).unwrap_or_default()).await;
}

/// Opens the store of a run. The checker reads its tables.
async fn open(folder: &Path) -> Result<Arc<dyn Store>> {
    Ok(Arc::new(SqliteStore::open(folder.join("agents.db")).await?))
}

/// A process, and what it shares with the others.
struct Process {
    store: Points,
    log: Arc<Log>,
    target: Target,
    agent: Agent,
    session: Session,
}

/// Goes on until the agent has answered all messages, and the job has ended.
pub(crate) async fn live(folder: &Path, stop: Option<Stop>, flaws: Flaws) -> Result<()> {
    let log = Log::open(folder, stop, flaws.swallowed.is_none())?;
    log.add(&["start"]);
    let store = Points::new(open(folder).await?, &log, flaws);
    let target = Target::new(folder);
    let agent = agents::main(&target, &log)?;
    let session = Session::open(&store, ID).lease(Lease::new().time(LEASE)).await?;
    let process = Process { store, log, target, agent, session };
    let (worked, sent) = tokio::join!(process.work(), send(&process.session, &process.log));
    worked.and(sent)?;
    // A message may have come after the end.
    process.work().await
}

impl Process {
    async fn work(&self) -> Result<()> {
        while !self.is_over(ID).await? {
            self.ends(self.go_on().await).await?;
        }
        while !self.is_over(job::ID).await? {
            self.ends(job::go_on(&self.store, &self.target, &self.log).await).await?;
        }
        Ok(())
    }

    /// Returns `true` if no list has an entry any more: what no list has would never go on.
    async fn is_over(&self, id: &str) -> Result<bool> {
        let is_listed = self.store.list(&Filter::unfinished()).await?.iter().any(|head| head.id == id);
        Ok(!is_listed && self.store.load(id).await?.is_some())
    }

    /// Takes the end of a run that may go on, and waits for another process that works on it.
    async fn ends(&self, end: Result<()>) -> Result<()> {
        let Err(error) = end else { return Ok(()) };
        match error.find::<StoreError>() {
            Some(StoreError::Held { holder, .. }) => wait_for(holder).await,
            // The process was stopped for too long, and waits like the others from now on.
            Some(StoreError::Lost { .. } | StoreError::Conflict { .. }) => self.log.add(&["lost"]),
            None if error.is_aborted() => self.log.add(&["lost"]),
            None if error.is_interrupted() => {}
            _ => return Err(error),
        }
        Ok(())
    }

    /// Answers the questions of the session, and runs the agent.
    async fn go_on(&self) -> Result<()> {
        let Self { agent, session, .. } = self;
        session.refresh().await?;
        for question in session.questions() {
            match session.answer(&question.id, Decision::Approve).await {
                Err(AnswerError::NotStored { error, .. }) => return Err(Error::from(error)),
                // Another process was first.
                Err(AnswerError::Answered { .. } | AnswerError::Unknown { .. }) => {}
                answered => answered?,
            }
        }
        let ended = if session.history().messages().is_empty() {
            agent.ask("Work.").session(session).once("work").await
        } else {
            agent.resume(session).await
        };
        match ended {
            // Another process has answered meanwhile.
            Err(error) if error.to_string().contains("there is nothing to resume") => Ok(()),
            ended => ended.map(drop),
        }
    }
}
