//! A network between a store and a server, which can be cut.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::tcp::{OwnedReadHalf, OwnedWriteHalf};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;
use tokio::task::{JoinSet, yield_now};

/// The state of the network.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Network {
    Works,
    /// Closes all connections, and new ones.
    Closes,
    SwallowsRequests,
    SwallowsReplies,
    SwallowsBoth,
    /// Swallows the replies to requests that have these bytes, and all replies after them.
    SwallowsRepliesTo(&'static [u8]),
}

/// A proxy before a server. It ends when it is dropped.
pub(crate) struct Proxy {
    /// The URL of the server, by this proxy, without TLS.
    pub(crate) url: String,
    network: watch::Sender<Network>,
    counts: Arc<Counts>,
    _task: JoinSet<()>,
}

/// The numbers of connections.
#[derive(Default)]
struct Counts {
    accepted: AtomicUsize,
    open: AtomicUsize,
}

/// Bytes of the server's first reply, and those that replace them.
type Rewrite = Option<(&'static [u8], &'static [u8])>;

/// An open connection of a client.
struct Open(Arc<Counts>);

impl Drop for Open {
    fn drop(&mut self) {
        self.0.open.fetch_sub(1, Ordering::Relaxed);
    }
}

impl Proxy {
    pub(crate) async fn start(url: &str) -> Self {
        Self::new(url, None).await
    }

    /// Replaces bytes of the server's first reply by as many others.
    pub(crate) async fn rewriting(url: &str, bytes: &'static [u8], by: &'static [u8]) -> Self {
        Self::new(url, Some((bytes, by))).await
    }

    async fn new(url: &str, rewrite: Rewrite) -> Self {
        let (before, rest) = url.split_once('@').expect("a user");
        let (server, database) = rest.split_once('/').expect("a database");
        let listener = TcpListener::bind("localhost:0").await.expect("a port");
        let port = listener.local_addr().expect("an address").port();
        let (network, state) = watch::channel(Network::Works);
        let counts = Arc::<Counts>::default();
        let mut task = JoinSet::new();
        task.spawn(serve(listener, server.to_owned(), state, Arc::clone(&counts), rewrite));
        let url = format!("{before}@localhost:{port}/{database}?sslmode=disable");
        Self { url, network, counts, _task: task }
    }

    pub(crate) fn set(&self, network: Network) {
        self.network.send_replace(network);
    }

    /// Returns the number of connections that clients have open.
    pub(crate) fn open(&self) -> usize {
        self.counts.open.load(Ordering::Relaxed)
    }

    /// Waits until a client connects again.
    pub(crate) async fn until_accepted(&self) {
        let before = self.counts.accepted.load(Ordering::Relaxed);
        while self.counts.accepted.load(Ordering::Relaxed) == before {
            yield_now().await;
        }
    }
}

async fn serve(
    listener: TcpListener,
    server: String,
    state: watch::Receiver<Network>,
    counts: Arc<Counts>,
    rewrite: Rewrite,
) {
    let mut connections = JoinSet::new();
    while let Ok((client, _)) = listener.accept().await {
        counts.accepted.fetch_add(1, Ordering::Relaxed);
        counts.open.fetch_add(1, Ordering::Relaxed);
        let (open, server, mut state) = (Open(Arc::clone(&counts)), server.clone(), state.clone());
        connections.spawn(async move {
            let _open = open;
            // While the server restarts, the connection is closed at once.
            let Ok(server) = TcpStream::connect(server).await else { return };
            let (from_client, to_client) = client.into_split();
            let (from_server, to_server) = server.into_split();
            let link = Link { state: state.clone(), swallows_replies: AtomicBool::new(false) };
            tokio::select! {
                () = link.requests(from_client, to_server) => {}
                () = link.replies(from_server, to_client, rewrite) => {}
                _ = state.wait_for(|network| *network == Network::Closes) => {}
            }
        });
    }
}

/// A connection through the proxy. From the first byte on that a direction swallows, it swallows all, because a
/// connection loses no bytes in the middle.
struct Link {
    state: watch::Receiver<Network>,
    /// `true` once a reply is lost.
    swallows_replies: AtomicBool,
}

impl Link {
    /// Passes requests on, or swallows them, until one end closes the connection.
    async fn requests(&self, mut from: OwnedReadHalf, mut to: OwnedWriteHalf) {
        let mut buffer = vec![0; 64 * 1024];
        let mut is_cut = false;
        while let Ok(length @ 1..) = from.read(&mut buffer).await {
            let bytes = &buffer[..length];
            let network = *self.state.borrow();
            match network {
                Network::SwallowsRequests | Network::SwallowsBoth => is_cut = true,
                // Before the server can reply.
                Network::SwallowsRepliesTo(request) if find(bytes, request).is_some() => {
                    self.swallows_replies.store(true, Ordering::Relaxed);
                }
                _ => {}
            }
            if !is_cut && to.write_all(bytes).await.is_err() {
                return;
            }
        }
    }

    /// Passes replies on, or swallows them, until one end closes the connection.
    async fn replies(&self, mut from: OwnedReadHalf, mut to: OwnedWriteHalf, mut rewrite: Rewrite) {
        let mut buffer = vec![0; 64 * 1024];
        while let Ok(length @ 1..) = from.read(&mut buffer).await {
            let bytes = &mut buffer[..length];
            if let Some((before, after)) = rewrite
                && let Some(at) = find(bytes, before)
            {
                bytes[at..at + after.len()].copy_from_slice(after);
                rewrite = None;
            }
            if matches!(*self.state.borrow(), Network::SwallowsReplies | Network::SwallowsBoth) {
                self.swallows_replies.store(true, Ordering::Relaxed);
            }
            if !self.swallows_replies.load(Ordering::Relaxed) && to.write_all(bytes).await.is_err() {
                return;
            }
        }
    }
}

fn find(bytes: &[u8], text: &[u8]) -> Option<usize> {
    bytes.windows(text.len()).position(|window| window == text)
}
