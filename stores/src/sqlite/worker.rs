//! The thread that owns the connection (S1, S6).
//!
//! 1. Requests are taken in the order in which they were sent.
//! 2. All changes that wait are made in one transaction, and each returns after its commit.
//! 3. A read sees each change that was sent before it: the reads that were taken with changes are done after them.
//! 4. Requests fail once the path no longer leads to the file that was opened: a change would be lost with it.
//! 5. The thread ends when the last sender is dropped, after all requests.

use std::path::{Path, PathBuf};
use std::{iter, thread};

use emitree_middleware::store::StoreError;
use rusqlite::{Connection, Transaction, TransactionBehavior};
use tokio::sync::{mpsc, oneshot};

use super::failure::{Doing, ended, failed, is_locked, unusable};
use super::file::{self, FileId};

/// The maximum number of requests that wait, and the maximum number of changes in one transaction.
const CAPACITY: usize = 256;

/// The result of a request: a failure of the database, or the result that the request returns.
pub(super) type DbResult<T> = rusqlite::Result<Result<T, StoreError>>;

/// A handle to the thread.
pub(super) struct Worker {
    requests: mpsc::Sender<Request>,
    path: PathBuf,
}

/// Reads, or returns the error of a file that is lost.
type Read = dyn FnOnce(Result<&mut Connection, StoreError>) + Send;

enum Request {
    Read(Box<Read>),
    Change(Box<dyn Change>),
}

/// A change, which may be made again if its transaction was rolled back.
trait Change: Send {
    fn make(&mut self, transaction: &Transaction<'_>) -> rusqlite::Result<()>;
    fn finish(self: Box<Self>, failure: Option<StoreError>);
}

struct Sent<T, F> {
    change: F,
    made: Option<Result<T, StoreError>>,
    reply: oneshot::Sender<Result<T, StoreError>>,
}

impl<T: Send, F: FnMut(&Transaction<'_>) -> DbResult<T> + Send> Change for Sent<T, F> {
    fn make(&mut self, transaction: &Transaction<'_>) -> rusqlite::Result<()> {
        self.made = Some((self.change)(transaction)?);
        Ok(())
    }

    fn finish(self: Box<Self>, failure: Option<StoreError>) {
        let Self { made, reply, .. } = *self;
        if let Some(result) = failure.map(Err).or(made) {
            // Nobody waits if the future was dropped.
            reply.send(result).ok();
        }
    }
}

impl Worker {
    /// Starts the thread, and opens the file there.
    pub(super) async fn start(path: &Path, sql: String) -> Result<Self, StoreError> {
        let (requests, queue) = mpsc::channel(CAPACITY);
        let (reply, opened) = oneshot::channel();
        let worker = Self { requests, path: path.to_owned() };
        let path = path.to_owned();
        let run = move || match file::open(&path, &sql) {
            Ok(connection) => {
                if reply.send(Ok(())).is_ok() {
                    Owner::new(connection, path).serve(queue);
                }
            }
            Err(error) => drop(reply.send(Err(error))),
        };
        thread::Builder::new()
            .name("emitree-sqlite".to_owned())
            .spawn(run)
            .map_err(|error| StoreError::failed("the thread of a store cannot be started", error))?;
        opened.await.unwrap_or_else(|_| Err(ended(&worker.path)))?;
        Ok(worker)
    }

    /// Reads from the database, in a transaction of its own.
    pub(super) async fn read<T: Send + 'static>(
        &self,
        read: impl FnOnce(&Transaction<'_>) -> DbResult<T> + Send + 'static,
    ) -> Result<T, StoreError> {
        let path = self.path.clone();
        let (reply, result) = oneshot::channel();
        let read = move |connection: Result<&mut Connection, StoreError>| {
            let found = connection.and_then(|connection| {
                let found = connection.transaction().and_then(|transaction| read(&transaction));
                found.unwrap_or_else(|error| Err(failed(&path, Doing::Read, error)))
            });
            reply.send(found).ok();
        };
        self.send(Request::Read(Box::new(read)), result).await
    }

    /// Changes the database. Once the future has been polled and the queue has room, the change is made even if the
    /// future is dropped.
    pub(super) async fn change<T: Send + 'static>(
        &self,
        change: impl FnMut(&Transaction<'_>) -> DbResult<T> + Send + 'static,
    ) -> Result<T, StoreError> {
        let (reply, result) = oneshot::channel();
        self.send(Request::Change(Box::new(Sent { change, made: None, reply })), result).await
    }

    async fn send<T>(
        &self,
        request: Request,
        result: oneshot::Receiver<Result<T, StoreError>>,
    ) -> Result<T, StoreError> {
        self.requests.send(request).await.map_err(|_| ended(&self.path))?;
        result.await.unwrap_or_else(|_| Err(ended(&self.path)))
    }
}

/// The state of the thread.
struct Owner {
    connection: Connection,
    path: PathBuf,
    /// The file that was opened.
    file: Option<FileId>,
}

impl Owner {
    fn new(connection: Connection, path: PathBuf) -> Self {
        let file = FileId::at(&path);
        Self { connection, path, file }
    }

    fn serve(mut self, mut queue: mpsc::Receiver<Request>) {
        while let Some(first) = queue.blocking_recv() {
            let waiting = iter::from_fn(|| queue.try_recv().ok());
            let mut reads = Vec::new();
            let mut changes = Vec::new();
            for request in iter::once(first).chain(waiting).take(CAPACITY) {
                match request {
                    Request::Read(read) => reads.push(read),
                    Request::Change(change) => changes.push(change),
                }
            }
            // One look for all requests that were taken together.
            let lost = self.lost();
            match &lost {
                None => self.commit(changes),
                Some(lost) => changes.into_iter().for_each(|change| change.finish(Some(lost.clone()))),
            }
            for read in reads {
                read(lost.clone().map_or(Ok(&mut self.connection), Err));
            }
        }
    }

    /// Returns an error if the file is no longer at its path.
    fn lost(&self) -> Option<StoreError> {
        let is_there = self.file.is_some() && FileId::at(&self.path) == self.file;
        (!is_there).then(|| unusable(&self.path, "the file was deleted or replaced while it was open"))
    }

    /// Makes changes in one transaction, and returns their results. If one of them fails, each is made in a transaction
    /// of its own, so that it fails alone.
    fn commit(&mut self, mut changes: Vec<Box<dyn Change>>) {
        if changes.is_empty() {
            return;
        }
        match self.transaction(&mut changes) {
            Ok(()) => changes.into_iter().for_each(|change| change.finish(None)),
            // To try again while another process has the lock would let each change wait in turn.
            Err(error) if changes.len() == 1 || is_locked(&error) => {
                let failure = failed(&self.path, Doing::Write, error);
                changes.into_iter().for_each(|change| change.finish(Some(failure.clone())));
            }
            Err(_) => changes.into_iter().for_each(|change| self.commit(vec![change])),
        }
    }

    fn transaction(&mut self, changes: &mut [Box<dyn Change>]) -> rusqlite::Result<()> {
        let transaction = self.connection.transaction_with_behavior(TransactionBehavior::Immediate)?;
        changes.iter_mut().try_for_each(|change| change.make(&transaction))?;
        transaction.commit()
    }
}

#[cfg(test)]
mod tests {
    use rusqlite::{Error, params};

    use super::*;

    /// Returns the thread's state, and another connection to the same file.
    fn open(folder: &tempfile::TempDir) -> (Owner, Connection) {
        let path = folder.path().join("agents.db");
        let connection = file::open(&path, "CREATE TABLE number (n INTEGER)").expect("a file");
        let other = Connection::open(&path).expect("a connection");
        (Owner::new(connection, path), other)
    }

    fn count(connection: &Connection) -> i64 {
        connection.query_row("SELECT count(*) FROM number", [], |row| row.get(0)).expect("a count")
    }

    type Reply<T> = oneshot::Receiver<Result<T, StoreError>>;

    fn change<T: Send + 'static>(
        change: impl FnMut(&Transaction<'_>) -> DbResult<T> + Send + 'static,
    ) -> (Request, Reply<T>) {
        let (reply, result) = oneshot::channel();
        (Request::Change(Box::new(Sent { change, made: None, reply })), result)
    }

    /// Serves requests that all wait before the first is taken.
    fn serve(owner: Owner, waiting: impl IntoIterator<Item = Request>) {
        let (requests, queue) = mpsc::channel(CAPACITY);
        for request in waiting {
            requests.try_send(request).expect("room");
        }
        drop(requests);
        owner.serve(queue);
    }

    /// S6
    #[test]
    fn all_changes_that_wait_are_one_transaction_and_reads_come_after_it() {
        let folder = tempfile::tempdir().expect("a folder");
        let (owner, other) = open(&folder);
        let (path, (seen, reads)) = (owner.path.clone(), std::sync::mpsc::channel());
        let read = Request::Read(Box::new(move |connection| {
            seen.send(count(connection.expect("the file"))).expect("a receiver");
        }));
        let mut waiting = vec![read];
        let mut replies = Vec::new();
        for n in 0..10 {
            let other = Connection::open(&path).expect("a connection");
            let (request, reply) = change(move |transaction| {
                transaction.execute("INSERT INTO number VALUES (?1)", [n])?;
                // Another connection does not see the changes before.
                Ok(Ok((count(transaction), count(&other))))
            });
            waiting.push(request);
            replies.push(reply);
        }
        serve(owner, waiting);
        let seen: Vec<_> =
            replies.into_iter().map(|mut reply| reply.try_recv().expect("a result").expect("made")).collect();
        assert_eq!(seen, (1..=10).map(|n| (n, 0)).collect::<Vec<_>>());
        assert_eq!((reads.try_recv(), count(&other)), (Ok(10), 10));
    }

    /// S6
    #[test]
    fn a_change_that_fails_is_rolled_back_alone() {
        let folder = tempfile::tempdir().expect("a folder");
        let (owner, other) = open(&folder);
        let path = owner.path.clone();
        let insert = |n: i64, fails: bool| {
            change(move |transaction| {
                transaction.execute("INSERT INTO number VALUES (?1)", params![n])?;
                if fails { Err(Error::InvalidQuery) } else { Ok(Ok(n)) }
            })
        };
        let (waiting, replies): (Vec<_>, Vec<_>) = (0..4).map(|n| insert(n, n == 1)).unzip();
        serve(owner, waiting);
        let results = replies.into_iter().map(|mut reply| reply.try_recv().expect("a result"));
        let results: Vec<_> = results.map(|result| result.map_err(|error| error.to_string())).collect();
        let failed = Err(format!("`{}` cannot be written", path.display()));
        assert_eq!(results, [Ok(0), failed, Ok(2), Ok(3)]);
        assert_eq!(count(&other), 3);
    }
}
