//! The connections of the server.
//!
//! 1. A request whose head does not end within 10 s is given up, with its connection. This also limits the time between
//!    two requests.
//! 2. At most 64 connections have sent no valid request. For one more, the oldest of them is closed, so a program that
//!    opens connections without the token keeps nobody else out.
//! 3. The server waits for its connections. They end when the viewer is dropped, after the answers under way.

use std::collections::BTreeMap;
use std::pin::pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use axum::Router;
use axum::http::Request;
use axum::serve::Listener;
use hyper::body::Incoming;
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::{TokioIo, TokioTimer};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;
use tokio::task::{AbortHandle, JoinSet};
use tower_service::Service;

use crate::server::stopped;

/// The longest time in which the head of a request arrives (1).
const HEAD: Duration = Duration::from_secs(10);
/// The most connections that have sent no valid request (2).
const UNKNOWN: usize = 64;

/// A connection, as an extension of its requests.
#[derive(Clone)]
pub(crate) struct Connection {
    number: u64,
    unknown: Unknown,
}

/// The connections that have sent no valid request, by number, which grows with each connection.
#[derive(Clone, Default)]
struct Unknown(Arc<Mutex<BTreeMap<u64, AbortHandle>>>);

impl Connection {
    /// Notes a valid request, or the end: the connection is no longer among those that are closed for newer ones.
    pub(crate) fn admit(&self) {
        self.unknown.lock().remove(&self.number);
    }
}

impl Unknown {
    fn lock(&self) -> MutexGuard<'_, BTreeMap<u64, AbortHandle>> {
        // Poisoning is ignored: nothing under the lock panics between two changes that belong together.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Serves the connections of a listener until the viewer is dropped.
pub(crate) async fn serve(mut listener: TcpListener, routes: Router, stop: watch::Receiver<()>) {
    let mut connections = JoinSet::new();
    let unknown = Unknown::default();
    let mut number = 0;
    loop {
        let stream = tokio::select! {
            // After an error, such as too many open files, this waits before it accepts again.
            (stream, _) = Listener::accept(&mut listener) => stream,
            Some(_) = connections.join_next() => continue,
            () = stopped(stop.clone()) => break,
        };
        number += 1;
        let connection = Connection { number, unknown: unknown.clone() };
        // The lock is held over the spawn, so the connection is added before it can remove itself.
        let mut waiting = unknown.lock();
        waiting.insert(number, connections.spawn(answer(stream, connection, routes.clone(), stop.clone())));
        if waiting.len() > UNKNOWN
            && let Some((_, oldest)) = waiting.pop_first()
        {
            oldest.abort();
        }
    }
    drop(listener);
    while connections.join_next().await.is_some() {}
}

/// Answers the requests of a connection.
async fn answer(stream: TcpStream, connection: Connection, routes: Router, stop: watch::Receiver<()>) {
    let of_request = connection.clone();
    let service = service_fn(move |mut request: Request<Incoming>| {
        request.extensions_mut().insert(of_request.clone());
        // A router is always ready.
        routes.clone().call(request)
    });
    let mut server = http1::Builder::new();
    let server = server.timer(TokioTimer::new()).header_read_timeout(HEAD);
    let mut served = pin!(server.serve_connection(TokioIo::new(stream), service));
    // An error, such as a head that is late, concerns this connection only, and its client is gone or does not listen.
    tokio::select! {
        _ = served.as_mut() => {}
        () = stopped(stop) => {
            served.as_mut().graceful_shutdown();
            let _ = served.await;
        }
    }
    connection.admit();
}
