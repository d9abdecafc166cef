//! The connection on which the server tells of posts and of work that is due.
//!
//! It is a hint: all tasks that wait look each second anyway. A pooler of transactions, such as pgbouncer, accepts `LISTEN` and
//! delivers nothing, so the listener is first notified by the store.

use std::convert::Infallible;
use std::error::Error as _;
use std::future::poll_fn;
use std::sync::Arc;
use std::time::Duration;

use emitree_middleware::store::Wakes;
use parking_lot::Mutex;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::runtime::Handle;
use tokio::sync::Notify;
use tokio::task::{AbortHandle, JoinHandle};
use tokio::time::{sleep, timeout};
use tokio_postgres::{AsyncMessage, Connection, Error};

use super::connections::Connections;
use super::failure::{Doing, Failure};
use super::server::Server;

/// How often the connection is checked.
const CHECK: Duration = Duration::from_secs(30);
/// How long a listener that is not notified waits before it connects again.
const AGAIN: [Duration; 2] = [Duration::from_secs(1), Duration::from_secs(60)];

/// Listens once a task of this process waits.
pub(super) struct Listener {
    listening: Arc<Listening>,
    task: Mutex<Option<AbortHandle>>,
}

impl Listener {
    /// Creates a listener on a server, which the connections of the store reach, too.
    pub(super) fn new(server: Arc<Server>, connections: Arc<Connections>, channel: &str) -> Self {
        let listening = Listening { server, connections, channel: channel.to_owned(), wakes: Wakes::new() };
        Self { listening: Arc::new(listening), task: Mutex::default() }
    }

    /// Returns the tasks that wait. Listens from the first call on, in the runtime of the caller, and again if that has
    /// ended.
    pub(super) fn wakes(&self) -> &Wakes {
        let mut task = self.task.lock();
        let listens = task.as_ref().is_some_and(|task| !task.is_finished());
        if !listens && let Ok(runtime) = Handle::try_current() {
            *task = Some(runtime.spawn(Arc::clone(&self.listening).go_on()).abort_handle());
        }
        &self.listening.wakes
    }
}

impl Drop for Listener {
    fn drop(&mut self) {
        if let Some(task) = self.task.get_mut() {
            task.abort();
        }
    }
}

struct Listening {
    server: Arc<Server>,
    connections: Arc<Connections>,
    /// The channel, which is the schema.
    channel: String,
    wakes: Wakes,
}

impl Listening {
    /// Listens for ever, on one connection after another.
    async fn go_on(self: Arc<Self>) {
        let [mut wait, longest] = AGAIN;
        let mut has_warned = false;
        loop {
            let mut is_heard = false;
            let Err(failure) = self.listen(&mut is_heard).await;
            // It is unknown which changes were made meanwhile.
            self.wakes.all();
            if is_heard {
                (wait, has_warned) = (AGAIN[0], false);
            }
            let error = failure.into_error(&self.server.name, Doing::Listen, None);
            let cause = error.source().map(ToString::to_string);
            if has_warned {
                tracing::debug!(%error, cause, "work and posts are still looked for each second");
            } else {
                has_warned = true;
                tracing::warn!(%error, cause, "work and posts are looked for each second");
            }
            sleep(wait).await;
            wait = longest.min(wait * 4);
        }
    }

    /// Listens on one connection until it is lost. Sets `is_heard` once it hears.
    async fn listen(&self, is_heard: &mut bool) -> Result<Infallible, Failure> {
        let Server { config, tls, .. } = &*self.server;
        let (client, connection) = self.in_time(config.connect(tls.clone())).await?;
        let heard = Arc::new(Notify::new());
        let mut hears = Aborts(tokio::spawn(hear(connection, self.wakes.clone(), Arc::clone(&heard))));
        self.in_time(client.batch_execute(&format!("LISTEN \"{}\"", self.channel))).await?;
        // By the store, whose changes are to be heard. A pooler would pass on what this connection sends to itself.
        self.connections.notify(&self.channel).await?;
        if timeout(self.deadline(), heard.notified()).await.is_err() {
            let remedy = "behind a pooler of transactions, call `listen` with the URL of the server itself";
            return Err(Failure::Unusable(format!("it does not pass on the notifications of the store: {remedy}")));
        }
        *is_heard = true;
        // It is unknown which changes were made before.
        self.wakes.all();
        loop {
            if let Ok(ended) = timeout(CHECK, &mut hears.0).await {
                return Err(match ended {
                    Ok(Err(error)) => error.into(),
                    _ => Failure::Unusable("it has closed the connection".to_owned()),
                });
            }
            self.in_time(client.batch_execute("")).await?;
        }
    }

    fn deadline(&self) -> Duration {
        self.connections.waits.deadline
    }

    async fn in_time<T>(&self, work: impl Future<Output = Result<T, Error>>) -> Result<T, Failure> {
        let deadline = self.deadline();
        Ok(timeout(deadline, work).await.map_err(|_| Failure::Silent(deadline))??)
    }
}

/// Drives a connection, and wakes for each notification.
async fn hear<S, T>(mut connection: Connection<S, T>, wakes: Wakes, heard: Arc<Notify>) -> Result<(), Error>
where
    S: AsyncRead + AsyncWrite + Unpin,
    T: AsyncRead + AsyncWrite + Unpin,
{
    while let Some(message) = poll_fn(|cx| connection.poll_message(cx)).await.transpose()? {
        let AsyncMessage::Notification(notification) = message else { continue };
        match notification.payload().split_once(' ') {
            Some(("post", id)) => wakes.posted(id),
            Some(("due", queue)) => wakes.due(queue),
            _ => heard.notify_one(),
        }
    }
    Ok(())
}

/// Aborts a task when it is dropped.
struct Aborts<T>(JoinHandle<T>);

impl<T> Drop for Aborts<T> {
    fn drop(&mut self) {
        self.0.abort();
    }
}
