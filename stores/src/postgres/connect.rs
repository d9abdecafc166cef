//! The options of a store, and its connection: [`ConnectPostgres`].

use std::fmt;
use std::future::IntoFuture;
use std::sync::Arc;
use std::time::Duration;

use emitree_middleware::store::{StoreError, StoreId};
use futures_util::future::BoxFuture;
use tokio::time::timeout;

use super::connections::{Connections, Waits};
use super::entries::Entries;
use super::failure::{Doing, Failure};
use super::listen::Listener;
use super::posts::Posts;
use super::schema::Schema;
use super::server::Server;
use super::values::Values;
use super::{Inner, PostgresStore};

/// The deadline for the tables, which another process may change meanwhile.
const SCHEMA_DEADLINE: Duration = Duration::from_secs(30);

/// A connection to a server with options, which [`PostgresStore::connect`] returns. Await it.
///
/// ```no_run
/// use std::time::Duration;
/// use emitree_stores::PostgresStore;
///
/// # async fn example() -> Result<(), emitree_middleware::store::StoreError> {
/// let store = PostgresStore::connect("postgres://app@db/app?sslmode=verify-full")
///     .schema("agents")
///     .manage_schema(false)
///     .patience(Duration::from_secs(60))
///     .await?;
/// # Ok(())
/// # }
/// ```
#[derive(Clone)]
#[must_use = "nothing is connected until it is awaited"]
pub struct ConnectPostgres {
    url: String,
    listens_to: Option<String>,
    schema: String,
    manages_schema: bool,
    allows_data_loss: bool,
    waits: Waits,
}

impl ConnectPostgres {
    pub(super) fn new(url: String) -> Self {
        let waits = Waits { deadline: Duration::from_secs(5), patience: Duration::from_secs(30) };
        let schema = "emitree".to_owned();
        Self { url, listens_to: None, schema, manages_schema: true, allows_data_loss: false, waits }
    }

    /// Sets the schema with the tables, by default `emitree`.
    pub fn schema(mut self, name: impl Into<String>) -> Self {
        self.schema = name.into();
        self
    }

    /// If `false`, the store never creates or changes tables: the owner of the database executes the SQL of
    /// [`PostgresStore::schema`], and the role of the store needs fewer rights. By default `true`.
    pub fn manage_schema(mut self, manages: bool) -> Self {
        self.manages_schema = manages;
        self
    }

    /// Sets the URL of the server itself, for notifications: a pooler of transactions, such as pgbouncer, does not pass them
    /// on. By default, it is the URL of the store.
    pub fn listen(mut self, url: impl Into<String>) -> Self {
        self.listens_to = Some(url.into());
        self
    }

    /// Accepts a server with `fsync=off`, which loses data when its machine crashes, such as a server for tests.
    pub fn allow_data_loss(mut self) -> Self {
        self.allows_data_loss = true;
        self
    }

    /// Sets for how long the server may not answer a statement, by default 5 s. Then the connection is closed, and the
    /// statement is sent again on another. Long parts have more time to be sent.
    pub fn deadline(mut self, deadline: Duration) -> Self {
        self.waits.deadline = deadline;
        self
    }

    /// Sets for how long a statement is sent again after the first failure that may pass, by default 30 s. Failures that
    /// may pass are lost connections, a server that restarts, is full or does not answer, and conflicts of transactions.
    pub fn patience(mut self, patience: Duration) -> Self {
        self.waits.patience = patience;
        self
    }

    async fn connect(self) -> Result<PostgresStore, StoreError> {
        let schema = Schema::new(&self.schema)?;
        let server = Arc::new(Server::parse(&self.url)?);
        let listens_to =
            self.listens_to.map_or_else(|| Ok(Arc::clone(&server)), |url| Server::parse(&url).map(Arc::new));
        let connections = Arc::new(Connections::new(server, self.allows_data_loss, self.waits));
        let listener = Listener::new(listens_to?, Arc::clone(&connections), &schema.name);
        let first = connections.open_first().await?;
        let prepared = timeout(SCHEMA_DEADLINE, schema.prepare(first.client(), self.manages_schema)).await;
        let prepared = prepared.unwrap_or(Err(Failure::Silent(SCHEMA_DEADLINE)));
        // If this fails, the connection is closed, and its transaction is rolled back.
        prepared.map_err(|failure| failure.into_error(&connections.server.name, Doing::Connect, None))?;
        connections.keep(first).await;
        let entries = Entries::new(&schema);
        let posts = Posts::new(&schema);
        let values = Values::new(&schema);
        let id = StoreId::new();
        Ok(PostgresStore(Arc::new(Inner { id, schema, connections, listener, entries, posts, values })))
    }
}

impl IntoFuture for ConnectPostgres {
    type Output = Result<PostgresStore, StoreError>;
    type IntoFuture = BoxFuture<'static, Self::Output>;

    fn into_future(self) -> Self::IntoFuture {
        Box::pin(self.connect())
    }
}

/// Shows the options without the URL, which may have a password.
impl fmt::Debug for ConnectPostgres {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ConnectPostgres")
            .field("schema", &self.schema)
            .field("manages_schema", &self.manages_schema)
            .field("allows_data_loss", &self.allows_data_loss)
            .field("waits", &self.waits)
            .finish_non_exhaustive()
    }
}
