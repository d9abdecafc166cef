//! A store in a SQLite file: [`SqliteStore`] (S1 to S6).

mod entries;
mod failure;
mod file;
mod posts;
mod values;
mod work;
mod worker;

use std::fmt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use bytes::Bytes;
use emitree_middleware::store::{
    Append, Entry, EntryHead, Filter, Post, Posted, Revision, Store, StoreError, StoreId, Take, Wakes, WorkerHead,
    check_id,
};
use emitree_middleware::values::{KeyValues, ValueKey};
use emitree_runtime::Result as RunResult;
use futures_util::future::BoxFuture;
use serde_json::Value;

use self::worker::Worker;
use crate::shared::{encode, from_json, to_json};

/// A [`Store`] in a SQLite file, which is also a [`KeyValues`]. Clones share the connection.
///
/// Several processes may use one file. A thread owns the connection: all changes that wait are made in one transaction,
/// in the order in which they were sent. When a change has returned, it is on the disk, and survives a kill of the
/// process and a power failure. A read sees the changes that were sent before it. A change that fails is rolled back
/// alone.
///
/// # Dropping
///
/// When the last clone is dropped, the thread makes the changes that were sent, and then closes the file.
///
/// # The file
///
/// SQLite keeps two more files beside it, `-wal` and `-shm`, in which recent changes are: copy a file only while no
/// process has it open. The write-ahead log needs a local disk. The tables are `entry`, `part`, `post` and `value`; heads and
/// values are JSON text. Each part, head and value has a checksum: if it was changed, reading it is an error. Stored
/// sessions contain secrets, so limit read access to the file.
///
/// # Errors
///
/// [`StoreError::Failed`] names the file, the cause and a remedy. If another process has locked the file, a change
/// waits for at most 5 s. Once the file was deleted, moved or replaced, all calls fail until it is opened again.
#[derive(Clone)]
pub struct SqliteStore(Arc<Inner>);

struct Inner {
    id: StoreId,
    path: PathBuf,
    worker: Worker,
    wakes: Wakes,
}

impl SqliteStore {
    /// Opens a file, and creates it if it does not exist.
    ///
    /// # Errors
    ///
    /// Returns [`StoreError::Failed`] if the file cannot be opened, if it is a database of another program, or if a
    /// newer version of this crate has written it. The file stays as it was.
    pub async fn open(path: impl AsRef<Path>) -> Result<Self, StoreError> {
        Self::open_with(path, "").await
    }

    /// Opens a file as [`open`](Self::open) does, and then executes SQL on its connection, such as
    /// `PRAGMA cache_size = -65536` or `PRAGMA max_page_count = 262144`.
    ///
    /// # Errors
    ///
    /// As [`open`](Self::open), and if the SQL cannot be executed.
    pub async fn open_with(path: impl AsRef<Path>, sql: &str) -> Result<Self, StoreError> {
        let path = path.as_ref();
        // An absolute path is never one of the special names of SQLite, such as `:memory:`.
        let path = std::path::absolute(path)
            .map_err(|error| StoreError::failed(format!("`{}` is not a path of a file", path.display()), error))?;
        let worker = Worker::start(&path, sql.to_owned()).await?;
        Ok(Self(Arc::new(Inner { id: StoreId::new(), path, worker, wakes: Wakes::new() })))
    }
}

impl Store for SqliteStore {
    fn store_id(&self) -> StoreId {
        self.0.id
    }

    fn load<'a>(&'a self, id: &'a str) -> BoxFuture<'a, Result<Option<Entry>, StoreError>> {
        Box::pin(async move {
            check_id(id)?;
            let id = id.to_owned();
            self.0.worker.read(move |connection| entries::load(connection, &id)).await
        })
    }

    fn append<'a>(&'a self, append: &'a Append) -> BoxFuture<'a, Result<Revision, StoreError>> {
        Box::pin(async move {
            let head = append.check()?;
            let made = append.clone();
            let revision = self.0.worker.change(move |connection| entries::append(connection, &made, &head)).await?;
            if let (None, Some(queue)) = (append.lease, &append.head.queue) {
                self.0.wakes.due(queue);
            }
            Ok(revision)
        })
    }

    fn post<'a>(&'a self, id: &'a str, post: &'a Post) -> BoxFuture<'a, Result<Posted, StoreError>> {
        Box::pin(async move {
            post.check(id)?;
            let to = id.to_owned();
            let post = post.clone();
            let (posted, due) = self.0.worker.change(move |connection| posts::post(connection, &to, &post)).await?;
            match due {
                Some(queue) => self.0.wakes.due(&queue),
                None => self.0.wakes.posted(id),
            }
            Ok(posted)
        })
    }

    fn posts<'a>(&'a self, id: &'a str) -> BoxFuture<'a, Result<Vec<Post>, StoreError>> {
        Box::pin(async move {
            check_id(id)?;
            let id = id.to_owned();
            self.0.worker.read(move |connection| posts::posts(connection, &id)).await
        })
    }

    fn older_parts<'a>(&'a self, id: &'a str, before: Revision) -> BoxFuture<'a, Result<Vec<Bytes>, StoreError>> {
        Box::pin(async move {
            check_id(id)?;
            let id = id.to_owned();
            self.0.worker.read(move |connection| entries::older_parts(connection, &id, before)).await
        })
    }

    fn list<'a>(&'a self, filter: &'a Filter) -> BoxFuture<'a, Result<Vec<EntryHead>, StoreError>> {
        let filter = filter.clone();
        Box::pin(self.0.worker.read(move |connection| entries::list(connection, &filter)))
    }

    fn take<'a>(&'a self, take: &'a Take) -> BoxFuture<'a, Result<Vec<EntryHead>, StoreError>> {
        Box::pin(async move {
            take.check()?;
            let take = take.clone();
            self.0.worker.change(move |connection| work::take(connection, &take)).await
        })
    }

    fn workers(&self) -> BoxFuture<'_, Result<Vec<WorkerHead>, StoreError>> {
        Box::pin(self.0.worker.read(work::workers))
    }

    /// Changes of other processes wake nobody: they are found by looking.
    fn wakes(&self) -> Option<&Wakes> {
        Some(&self.0.wakes)
    }

    fn remove<'a>(&'a self, id: &'a str, after: Revision) -> BoxFuture<'a, Result<(), StoreError>> {
        Box::pin(async move {
            check_id(id)?;
            let id = id.to_owned();
            self.0.worker.change(move |connection| entries::remove(connection, &id, after)).await
        })
    }
}

impl KeyValues for SqliteStore {
    fn read<'a>(&'a self, key: &'a ValueKey) -> BoxFuture<'a, RunResult<Option<Value>>> {
        Box::pin(async move {
            let bytes = encode(key);
            let json = self.0.worker.read(move |connection| values::read(connection, &bytes)).await?;
            json.map(|json| from_json(key, &json)).transpose()
        })
    }

    fn write<'a>(&'a self, key: &'a ValueKey, value: &'a Value) -> BoxFuture<'a, RunResult<()>> {
        Box::pin(async move {
            let bytes = encode(key);
            let json = to_json(key, value)?;
            Ok(self.0.worker.change(move |connection| values::write(connection, &bytes, &json)).await?)
        })
    }

    fn remove<'a>(&'a self, key: &'a ValueKey) -> BoxFuture<'a, RunResult<()>> {
        Box::pin(async move {
            let bytes = encode(key);
            Ok(self.0.worker.change(move |connection| values::remove(connection, &bytes)).await?)
        })
    }

    fn keys<'a>(&'a self, prefix: Option<&'a ValueKey>) -> BoxFuture<'a, RunResult<Vec<ValueKey>>> {
        Box::pin(async move {
            let prefix = prefix.map(encode).unwrap_or_default();
            Ok(self.0.worker.read(move |connection| values::keys(connection, &prefix)).await?)
        })
    }
}

/// Shows the path.
impl fmt::Debug for SqliteStore {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SqliteStore").field("path", &self.0.path).finish_non_exhaustive()
    }
}
