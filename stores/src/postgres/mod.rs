//! A store on a PostgreSQL server: [`PostgresStore`] (S1 to S5, F8).

mod connect;
mod connections;
mod entries;
mod failure;
mod listen;
mod posts;
mod schema;
mod server;
mod tls;
mod values;

use std::fmt;
use std::sync::Arc;
use std::time::SystemTime;

use bytes::Bytes;
use emitree_middleware::store::{
    Append, Entry, EntryHead, Filter, Post, Posted, Revision, Store, StoreError, StoreId, Take, Wakes, WorkerHead,
    check_id,
};
use emitree_middleware::values::{KeyValues, ValueKey};
use emitree_runtime::Result as RunResult;
use futures_util::future::BoxFuture;
use serde_json::Value;

use self::connections::Connections;
use self::entries::Entries;
use self::listen::Listener;
use self::posts::Posts;
use self::schema::Schema;
use self::values::Values;
use crate::shared::{from_json, to_json};

pub use self::connect::ConnectPostgres;

/// A [`Store`] on a PostgreSQL server, version 13 or later, which is also a [`KeyValues`]. Clones share the connections.
///
/// Processes on several machines may use one database. Each call is one call of an SQL function, which is a transaction
/// of its own. When a change has returned, it is on the server's disk.
///
/// ```no_run
/// use emitree_middleware::store::{Filter, Store};
/// use emitree_stores::PostgresStore;
///
/// # async fn example() -> Result<(), emitree_middleware::store::StoreError> {
/// let store = PostgresStore::connect("postgres://app:secret@db/app").await?;
/// let unfinished = store.list(&Filter::unfinished().limit(50)).await?;
/// # Ok(())
/// # }
/// ```
///
/// # Connections
///
/// A store opens up to four connections when it needs them, and opens another when one is lost. Statements that wait are
/// sent without waiting for each other's replies. Statements are not prepared, so pgbouncer may pool transactions. When
/// the last clone is dropped, the connections are closed. The store needs a tokio runtime with I/O and a clock.
///
/// Once the process has worked on an entry, or had a worker, one more connection listens for posts and for work that is due.
/// If the server does not notify it, a warning says so, and they are found by looking, each second.
///
/// # When the server does not answer
///
/// A statement that is not answered for the [deadline](ConnectPostgres::deadline) closes its connection. It is sent again
/// for the [patience](ConnectPostgres::patience), as after a lost connection, a restart of the server, or a conflict of
/// transactions. So calls wait while the server restarts, and a run goes on. A change of an entry keeps its id meanwhile,
/// so it is made once. A value has no id: a write that was cut off may take effect after a later write to its key.
///
/// # Tables
///
/// The tables and functions are in a schema of their own, `emitree` by default. They are created when the first store
/// connects. Heads and values are JSON text. Each part, head and value has a checksum: if it was changed, reading it is
/// an error. Stored sessions contain secrets, so limit access to the schema.
///
/// # Errors
///
/// [`StoreError::Failed`] names the server without the password, the cause and a remedy.
#[derive(Clone)]
pub struct PostgresStore(Arc<Inner>);

struct Inner {
    id: StoreId,
    schema: Schema,
    connections: Arc<Connections>,
    listener: Listener,
    entries: Entries,
    posts: Posts,
    values: Values,
}

impl PostgresStore {
    /// Connects to the server of a URL such as `postgres://user:password@host:port/database`, and creates the tables if
    /// there are none. The options of [`ConnectPostgres`] can be set before it is awaited.
    ///
    /// The URL has the settings of tokio-postgres, and `sslmode` and `sslrootcert` as libpq has them. With
    /// `sslmode=verify-full` and without `sslrootcert`, the certificates of the system are used.
    ///
    /// # Errors
    ///
    /// Returns [`StoreError::Failed`] if the server cannot be reached or used: for a standby, a version before 13, a
    /// database without the encoding UTF8, `fsync=off`, and a schema that another program or a newer version of this
    /// crate has written. Nothing is changed then.
    ///
    /// # Cancel safety
    ///
    /// If the future is dropped, the tables are created as a whole or not at all.
    pub fn connect(url: impl Into<String>) -> ConnectPostgres {
        ConnectPostgres::new(url.into())
    }

    /// Returns the SQL that creates a schema, or changes one of an earlier version, and gives a role the rights to use it,
    /// for [`manage_schema(false)`](ConnectPostgres::manage_schema).
    ///
    /// ```
    /// let sql = emitree_stores::PostgresStore::schema("emitree", "app")?;
    /// assert!(sql.contains(r#"GRANT USAGE ON SCHEMA "emitree" TO "app";"#));
    /// # Ok::<(), emitree_middleware::store::StoreError>(())
    /// ```
    ///
    /// # Errors
    ///
    /// Returns [`StoreError::Failed`] for a name with other characters than letters and digits of ASCII, `_` and `-`.
    pub fn schema(schema: &str, role: &str) -> Result<String, StoreError> {
        Schema::new(schema)?.sql(role)
    }
}

impl Store for PostgresStore {
    fn store_id(&self) -> StoreId {
        self.0.id
    }

    fn load<'a>(&'a self, id: &'a str) -> BoxFuture<'a, Result<Option<Entry>, StoreError>> {
        Box::pin(async move {
            check_id(id)?;
            self.0.entries.load(&self.0.connections, id).await
        })
    }

    fn append<'a>(&'a self, append: &'a Append) -> BoxFuture<'a, Result<Revision, StoreError>> {
        Box::pin(async move {
            let head = append.check()?;
            self.0.entries.append(&self.0.connections, append, &head).await
        })
    }

    fn post<'a>(&'a self, id: &'a str, post: &'a Post) -> BoxFuture<'a, Result<Posted, StoreError>> {
        Box::pin(async move {
            post.check(id)?;
            self.0.posts.post(&self.0.connections, id, post).await
        })
    }

    fn posts<'a>(&'a self, id: &'a str) -> BoxFuture<'a, Result<Vec<Post>, StoreError>> {
        Box::pin(async move {
            check_id(id)?;
            self.0.posts.posts(&self.0.connections, id).await
        })
    }

    fn older_parts<'a>(&'a self, id: &'a str, before: Revision) -> BoxFuture<'a, Result<Vec<Bytes>, StoreError>> {
        Box::pin(async move {
            check_id(id)?;
            self.0.entries.older_parts(&self.0.connections, id, before).await
        })
    }

    fn list<'a>(&'a self, filter: &'a Filter) -> BoxFuture<'a, Result<Vec<EntryHead>, StoreError>> {
        Box::pin(self.0.entries.list(&self.0.connections, filter))
    }

    fn take<'a>(&'a self, take: &'a Take) -> BoxFuture<'a, Result<Vec<EntryHead>, StoreError>> {
        Box::pin(async move {
            take.check()?;
            self.0.entries.take(&self.0.connections, take).await
        })
    }

    fn workers(&self) -> BoxFuture<'_, Result<Vec<WorkerHead>, StoreError>> {
        Box::pin(self.0.entries.workers(&self.0.connections))
    }

    fn now(&self) -> BoxFuture<'_, Result<SystemTime, StoreError>> {
        Box::pin(Entries::now(&self.0.connections))
    }

    fn wakes(&self) -> Option<&Wakes> {
        Some(self.0.listener.wakes())
    }

    fn remove<'a>(&'a self, id: &'a str, after: Revision) -> BoxFuture<'a, Result<(), StoreError>> {
        Box::pin(async move {
            check_id(id)?;
            self.0.entries.remove(&self.0.connections, id, after).await
        })
    }
}

impl KeyValues for PostgresStore {
    fn read<'a>(&'a self, key: &'a ValueKey) -> BoxFuture<'a, RunResult<Option<Value>>> {
        Box::pin(async move {
            let json = self.0.values.read(&self.0.connections, key).await?;
            json.map(|json| from_json(key, &json)).transpose()
        })
    }

    fn write<'a>(&'a self, key: &'a ValueKey, value: &'a Value) -> BoxFuture<'a, RunResult<()>> {
        Box::pin(async move {
            let json = to_json(key, value)?;
            Ok(self.0.values.write(&self.0.connections, key, &json).await?)
        })
    }

    fn remove<'a>(&'a self, key: &'a ValueKey) -> BoxFuture<'a, RunResult<()>> {
        Box::pin(async move { Ok(self.0.values.remove(&self.0.connections, key).await?) })
    }

    fn keys<'a>(&'a self, prefix: Option<&'a ValueKey>) -> BoxFuture<'a, RunResult<Vec<ValueKey>>> {
        Box::pin(async move { Ok(self.0.values.keys(&self.0.connections, prefix).await?) })
    }
}

/// Shows the server without the password, and the schema.
impl fmt::Debug for PostgresStore {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Inner { schema, connections, .. } = &*self.0;
        let mut shown = f.debug_struct("PostgresStore");
        shown.field("server", &connections.server.name).field("schema", &schema.name).finish_non_exhaustive()
    }
}
