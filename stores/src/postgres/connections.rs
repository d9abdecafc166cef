//! A few connections, over which statements are pipelined.
//!
//! 1. Each try of a statement has a deadline. When it has passed, the task of its connection is aborted, which closes
//!    the socket: tokio-postgres would wait for the reply for ever, also without its client. All other statements on the
//!    connection fail, and are tried again.
//! 2. A connection is owned by its slot, and by the statements that use it. When the last owner is dropped, its task is
//!    aborted.
//! 3. At most `PIPELINED` statements wait on a connection, so the deadline of a statement does not pass while others are
//!    before it.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use emitree_middleware::store::StoreError;
use futures_util::{StreamExt, pin_mut};
use tokio::sync::{Mutex, Semaphore};
use tokio::task::AbortHandle;
use tokio::time::{Instant, sleep, timeout};
use tokio_postgres::types::{ToSql, Type};
use tokio_postgres::{Client, Row};

use super::failure::{Doing, Failure};
use super::server::Server;

/// The number of connections of a store.
const CONNECTIONS: usize = 4;
/// The maximum number of statements that wait on one connection, on average.
const PIPELINED: usize = 16;
/// The first and the longest delay between two tries.
const DELAYS: [Duration; 2] = [Duration::from_millis(10), Duration::from_secs(1)];
/// The slowest network on which parts are sent before the deadline, in bytes per second.
const SLOWEST: usize = 1024 * 1024;
/// The oldest version of the server.
const OLDEST: u32 = 13;

/// How long the server may not answer.
#[derive(Clone, Copy, Debug)]
pub(super) struct Waits {
    /// The deadline of one try.
    pub(super) deadline: Duration,
    /// The time in which a statement is tried again.
    pub(super) patience: Duration,
}

/// One call of a function of the schema. It may be sent several times: a change is made at most once, by its id or its
/// revision.
pub(super) struct Call<'a> {
    pub(super) doing: Doing,
    pub(super) sql: &'a str,
    pub(super) values: &'a [(&'a (dyn ToSql + Sync), Type)],
    /// The length of the values, if they are long.
    pub(super) bytes: usize,
}

/// The connections of a store.
pub(super) struct Connections {
    pub(super) server: Arc<Server>,
    allows_data_loss: bool,
    pub(super) waits: Waits,
    slots: [Slot; CONNECTIONS],
    permits: Semaphore,
}

#[derive(Default)]
struct Slot {
    connection: Mutex<Option<Connection>>,
    statements: AtomicUsize,
}

/// An open connection.
#[derive(Clone)]
pub(super) struct Connection(Arc<Owned>);

struct Owned {
    client: Client,
    task: AbortHandle,
}

impl Drop for Owned {
    fn drop(&mut self) {
        self.task.abort();
    }
}

impl Connection {
    pub(super) fn client(&self) -> &Client {
        &self.0.client
    }
}

/// Counts a statement on a slot.
struct Counted<'a>(&'a AtomicUsize);

impl Drop for Counted<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}

impl Connections {
    pub(super) fn new(server: Arc<Server>, allows_data_loss: bool, waits: Waits) -> Self {
        let permits = Semaphore::new(CONNECTIONS * PIPELINED);
        Self { server, allows_data_loss, waits, slots: Default::default(), permits }
    }

    /// Opens a first connection. Waits for a server that is about to start or is full, and for no other.
    pub(super) async fn open_first(&self) -> Result<Connection, StoreError> {
        let mut tries = Tries::new(self.waits.patience);
        loop {
            let failure = match self.open_in_time().await {
                Ok(connection) => return Ok(connection),
                Err(failure) => failure,
            };
            if !failure.refuses_for_now() || !tries.waits().await {
                return Err(tries.error(failure, &self.server.name, Doing::Connect));
            }
        }
    }

    /// Keeps a connection for statements.
    pub(super) async fn keep(&self, connection: Connection) {
        *self.slots[0].connection.lock().await = Some(connection);
    }

    /// Calls a function, and returns its rows. Tries again while failures pass, for the time of the patience.
    pub(super) async fn call(&self, call: Call<'_>) -> Result<Vec<Row>, StoreError> {
        self.call_counted(call).await.map(|(rows, _)| rows)
    }

    /// Calls a function as [`call`](Self::call) does. Also returns `true` if it was tried more than once.
    pub(super) async fn call_counted(&self, call: Call<'_>) -> Result<(Vec<Row>, bool), StoreError> {
        let mut tries = Tries::new(self.waits.patience);
        loop {
            let failure = match self.try_call(&call).await {
                Ok(rows) => return Ok((rows, tries.count > 1)),
                Err(failure) => failure,
            };
            // A second take would take more. The entries of a lost reply come back after a lease.
            let repeats = failure.passes() && (call.doing != Doing::Take || failure.is_rolled_back());
            if !repeats || !tries.waits().await {
                return Err(tries.error(failure, &self.server.name, call.doing));
            }
        }
    }

    /// Notifies the listeners of a channel.
    pub(super) async fn notify(&self, channel: &str) -> Result<(), Failure> {
        let values = &[(&channel as _, Type::TEXT)];
        let sql = "SELECT pg_notify($1, '')";
        self.try_call(&Call { doing: Doing::Listen, sql, values, bytes: 0 }).await.map(drop)
    }

    async fn try_call(&self, call: &Call<'_>) -> Result<Vec<Row>, Failure> {
        // The semaphore is never closed.
        let _permit = self.permits.acquire().await.ok();
        let slot = self.slots.iter().min_by_key(|slot| slot.statements.load(Ordering::Relaxed));
        let slot = slot.unwrap_or(&self.slots[0]);
        slot.statements.fetch_add(1, Ordering::Relaxed);
        let _counted = Counted(&slot.statements);
        let connection = self.connection(slot).await?;
        let deadline = self.waits.deadline + Duration::from_secs((call.bytes / SLOWEST) as u64);
        let rows = rows_in_time(connection.client(), call, deadline).await;
        if rows.as_ref().is_err_and(Failure::needs_another_connection) {
            connection.0.task.abort();
        }
        rows
    }

    /// Returns the connection of a slot, and opens another if it is lost.
    async fn connection(&self, slot: &Slot) -> Result<Connection, Failure> {
        let open = async {
            let mut connection = slot.connection.lock().await;
            match &*connection {
                Some(connection) if !connection.client().is_closed() => Ok(connection.clone()),
                _ => Ok(connection.insert(self.open().await?).clone()),
            }
        };
        self.in_time(open).await
    }

    async fn open_in_time(&self) -> Result<Connection, Failure> {
        self.in_time(self.open()).await
    }

    async fn in_time<T>(&self, work: impl Future<Output = Result<T, Failure>>) -> Result<T, Failure> {
        let deadline = self.waits.deadline;
        timeout(deadline, work).await.unwrap_or(Err(Failure::Silent(deadline)))
    }

    /// Opens a connection, and checks the server.
    async fn open(&self) -> Result<Connection, Failure> {
        let (client, connection) = self.server.config.connect(self.server.tls.clone()).await?;
        let version = connection.parameter("server_version").unwrap_or_default().to_owned();
        let task = tokio::spawn(async move {
            if let Err(error) = connection.await {
                tracing::debug!(%error, "a connection to PostgreSQL was lost");
            }
        });
        let connection = Connection(Arc::new(Owned { client, task: task.abort_handle() }));
        check_version(&version)?;
        let settings = "SELECT pg_is_in_recovery(), current_setting('fsync'), current_setting('server_encoding')";
        let settings = connection.client().query_typed_one(settings, &[]).await?;
        if settings.try_get(0)? {
            return Err(Failure::Standby);
        }
        let (fsync, encoding): (&str, &str) = (settings.try_get(1)?, settings.try_get(2)?);
        if fsync == "off" && !self.allows_data_loss {
            let remedy = "switch it on, or call `allow_data_loss` for a server whose data may be lost";
            return Err(Failure::Unusable(format!("it has `fsync=off`, so a crash loses what was stored: {remedy}")));
        }
        if encoding != "UTF8" {
            let remedy = "create a database with `ENCODING 'UTF8'`";
            return Err(Failure::Unusable(format!("its database has the encoding {encoding}: {remedy}")));
        }
        Ok(connection)
    }
}

fn check_version(version: &str) -> Result<(), Failure> {
    let number: String = version.chars().take_while(char::is_ascii_digit).collect();
    match number.parse::<u32>() {
        Ok(number) if number >= OLDEST => Ok(()),
        _ => Err(Failure::Unusable(format!(
            "it has the version `{version}`, and version {OLDEST} is the oldest that works: update the server"
        ))),
    }
}

/// Sends a statement, and returns its rows. The deadline begins again with each row.
async fn rows_in_time(client: &Client, call: &Call<'_>, deadline: Duration) -> Result<Vec<Row>, Failure> {
    let silent = |_| Failure::Silent(deadline);
    let values = call.values.iter().map(|(value, of)| (*value, of.clone()));
    let stream = timeout(deadline, client.query_typed_raw(call.sql, values)).await.map_err(silent)??;
    pin_mut!(stream);
    let mut rows = Vec::new();
    while let Some(row) = timeout(deadline, stream.next()).await.map_err(silent)? {
        rows.push(row?);
    }
    Ok(rows)
}

/// The tries of one call.
struct Tries {
    patience: Duration,
    count: u32,
    /// When the first try had failed.
    since: Option<Instant>,
}

impl Tries {
    fn new(patience: Duration) -> Self {
        Self { patience, count: 1, since: None }
    }

    /// Waits before the next try, for a random time, so that callers do not come back together. Returns `false` if no
    /// time is left.
    async fn waits(&mut self) -> bool {
        let since = *self.since.get_or_insert_with(Instant::now);
        let left = self.patience.saturating_sub(since.elapsed());
        if left.is_zero() {
            return false;
        }
        let [first, longest] = DELAYS;
        let delay = longest.min(first * 2_u32.pow(self.count.min(10) - 1));
        sleep(delay.mul_f64(0.5 + fastrand::f64() / 2.0).min(left)).await;
        self.count += 1;
        true
    }

    fn error(&self, failure: Failure, server: &str, doing: Doing) -> StoreError {
        let tried = self.since.filter(|_| self.count > 1).map(|since| (self.count, since.elapsed()));
        failure.into_error(server, doing, tried)
    }
}
