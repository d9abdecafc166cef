//! A process that works, until its parent closes its standard input, or kills it.

use std::io;
use std::path::Path;
use std::time::Duration;

use emitree::Result;
use emitree::middleware::durable::Worker;
use emitree::middleware::store::{Lease, StoreError};
use emitree_stores::PostgresStore;
use tokio::task::spawn_blocking;
use tokio::time::sleep;

use crate::jobs::{QUEUE, job};
use crate::sessions::{self, agent};

/// The number of jobs and sessions that a worker goes on with at a time.
const CONCURRENCY: usize = 8;
/// How often a process tries to connect.
const CONNECTIONS: usize = 5;
/// How long a worker waits until it tries again to begin.
const AGAIN: Duration = Duration::from_millis(100);

/// Connects to the tables that the parent has created.
pub(crate) async fn connect(url: &str, lease: Duration) -> Result<PostgresStore, StoreError> {
    let connect = PostgresStore::connect(url).manage_schema(false).deadline(lease / 3);
    // A busy server may need longer.
    for _ in 1..CONNECTIONS {
        if let Ok(store) = connect.clone().await {
            return Ok(store);
        }
    }
    connect.await
}

pub(crate) async fn work(url: &str, folder: &Path, lease: Duration) -> Result<()> {
    let worker = loop {
        let started = async {
            let worker = Worker::new(&connect(url, lease).await?).serve(QUEUE, job(folder));
            let worker = worker.serve(sessions::QUEUE, agent(folder)?);
            worker.lease(Lease::new().time(lease)).concurrency(CONCURRENCY).start().await
        };
        match started.await {
            Ok(worker) => break worker,
            // Without a network, it begins later.
            Err(error) => eprintln!("it cannot begin: {}", error.explain()),
        }
        sleep(AGAIN).await;
    };
    let closed = spawn_blocking(|| io::copy(&mut io::stdin(), &mut io::sink()));
    closed.await.map_err(io::Error::other)??;
    worker.shutdown(lease / 4).await;
    Ok(())
}
