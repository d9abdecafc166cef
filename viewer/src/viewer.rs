//! The viewer: a source behind a server.

use std::fmt;
use std::io;
use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::Arc;

use emitree_sinks::runs::Source;
use tokio::net::{TcpListener, lookup_host};
use tokio::sync::watch;
use tokio::task::JoinHandle;

use crate::connections;
use crate::error::ViewerError;
use crate::guard::Token;
use crate::ring::Ring;
use crate::server;

/// A server of the page. Made by [`Viewer::bind`].
///
/// The page shows the events of the program itself, which [`sink`](Self::sink) receives, or another
/// [source](ViewerBuilder::source).
///
/// The server is a task of the runtime in which the viewer was made, and begins at once. A program that blocks all
/// threads of this runtime blocks the page too.
///
/// The viewer owns the task: dropping the viewer closes the listener and ends the feeds of open pages, which keep what
/// they show. A request that is under way is still answered. A program that ends takes its page with it: to look at it
/// longer, await [`serve`](Self::serve) at the end.
///
/// ```
/// use std::time::Duration;
///
/// use emitree_emitter::Emitter;
/// use emitree_viewer::Viewer;
///
/// # #[tokio::main]
/// # async fn main() -> Result<(), Box<dyn std::error::Error + Send + Sync>> {
/// let app = Emitter::new();
/// let viewer = Viewer::bind("127.0.0.1:0").title("app").await?;
/// let recording = app.pipe_to(viewer.sink())?;
/// app.emit("ready", &mut 1).await?;
/// recording.close(Duration::from_secs(5)).await.complete()?;
/// assert!(viewer.url().starts_with("http://127.0.0.1:"));
/// # Ok(())
/// # }
/// ```
#[must_use = "dropping the viewer stops its server"]
pub struct Viewer<S = Ring> {
    source: Arc<S>,
    title: String,
    address: SocketAddr,
    token: Token,
    server: JoinHandle<()>,
    /// Dropping it stops the server and the feeds.
    stop: watch::Sender<()>,
}

/// A source and its title.
pub(crate) struct Shown {
    pub(crate) source: Arc<dyn Source>,
    pub(crate) title: String,
    pub(crate) stop: watch::Receiver<()>,
}

/// The options of a [`Viewer`]. Awaiting them starts the server.
#[must_use = "nothing is served until the options are awaited"]
pub struct ViewerBuilder<S = Ring> {
    address: String,
    source: S,
    title: String,
    is_remote: bool,
    token: Option<String>,
}

impl Viewer {
    /// Returns the default options for an address such as `127.0.0.1:0`; port 0 is any free port. Await them to listen
    /// and to start the server.
    ///
    /// # Errors
    ///
    /// Awaiting the options returns an error if the address can be reached from other machines and this is not
    /// [allowed](ViewerBuilder::allow_remote), if nothing can be bound to it, or if the token has another form.
    pub fn bind(address: impl Into<String>) -> ViewerBuilder {
        let source = Ring::new();
        let title = "recording".to_owned();
        ViewerBuilder { address: address.into(), source, title, is_remote: false, token: None }
    }

    /// Returns a sink for the events that the page shows. All sinks of a viewer share its records; see [`Ring`] for what
    /// it keeps, and for what closing it does.
    ///
    /// Records may contain secrets: `redact.sink(viewer.sink())` redacts them first.
    #[must_use]
    pub fn sink(&self) -> Ring {
        Ring::clone(&self.source)
    }
}

impl<S> Viewer<S> {
    /// Returns the address of the page, with the token in its fragment.
    #[must_use]
    pub fn url(&self) -> String {
        format!("http://{}/#token={}", self.address, self.token.0)
    }

    /// Returns the address that the server listens on.
    #[must_use]
    pub const fn address(&self) -> SocketAddr {
        self.address
    }

    /// Keeps the page until the future is dropped: at the end of a program that is stopped by Ctrl-C, for example.
    ///
    /// # Errors
    ///
    /// Returns an error if the task of the server was lost, because its runtime shuts down.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future drops the viewer, which stops the server.
    pub async fn serve(self) -> io::Result<()> {
        // The sender is kept until the server has ended.
        let Self { server, stop: _stop, .. } = self;
        Ok(server.await?)
    }
}

impl<S> ViewerBuilder<S> {
    /// Sets the source that the page shows, such as a [`RecordingFile`](emitree_sinks::runs::RecordingFile). The default
    /// is a [`Ring`], for the events of the program itself.
    pub fn source<T: Source>(self, source: T) -> ViewerBuilder<T> {
        let Self { address, source: _, title, is_remote, token } = self;
        ViewerBuilder { address, source, title, is_remote, token }
    }

    /// Sets the title of the page. The default is `recording`.
    pub fn title(mut self, title: impl Into<String>) -> Self {
        self.title = title.into();
        self
    }

    /// Allows addresses that other machines can reach. The connection is not encrypted: who reads the traffic can read
    /// the recording.
    pub const fn allow_remote(mut self) -> Self {
        self.is_remote = true;
        self
    }

    /// Sets the token, so that a page that is open continues after a restart of the server on the same port. It has at
    /// least 16 characters, which are letters, digits, `-` or `_`. The default is random.
    pub fn token(mut self, token: impl Into<String>) -> Self {
        self.token = Some(token.into());
        self
    }
}

impl<S: Source> ViewerBuilder<S> {
    async fn start(self) -> Result<Viewer<S>, ViewerError> {
        let Self { address, source, title, is_remote, token } = self;
        if token.as_deref().is_some_and(|token| !is_token(token)) {
            return Err(ViewerError::Token);
        }
        let (listener, address) = listen(&address, is_remote).await?;
        let token = Token(token.map_or_else(random_token, Ok)?.into());
        let source = Arc::new(source);
        let (stop, stopped) = watch::channel(());
        let shown = Shown { source: source.clone(), title: title.clone(), stop: stopped.clone() };
        let routes = server::routes(Arc::new(shown), token.clone());
        let server = tokio::spawn(connections::serve(listener, routes, stopped));
        Ok(Viewer { source, title, address, token, server, stop })
    }
}

impl<S: Source> IntoFuture for ViewerBuilder<S> {
    type Output = Result<Viewer<S>, ViewerError>;
    type IntoFuture = Pin<Box<dyn Future<Output = Self::Output> + Send>>;

    fn into_future(self) -> Self::IntoFuture {
        Box::pin(self.start())
    }
}

async fn listen(address: &str, is_remote: bool) -> Result<(TcpListener, SocketAddr), ViewerError> {
    let failed = |source| ViewerError::Listen { address: address.to_owned(), source };
    let addresses: Vec<_> = lookup_host(address).await.map_err(failed)?.collect();
    // Checked before the bind: a listener on a forbidden address must not exist for a moment.
    if let Some(remote) = addresses.iter().find(|address| !address.ip().is_loopback() && !is_remote) {
        return Err(ViewerError::Remote(*remote));
    }
    let listener = TcpListener::bind(&*addresses).await.map_err(failed)?;
    let address = listener.local_addr().map_err(failed)?;
    Ok((listener, address))
}

/// Returns `true` if a token needs no escape in a URL or a header, and is hard to guess.
fn is_token(token: &str) -> bool {
    token.len() >= 16 && token.bytes().all(|byte| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_'))
}

fn random_token() -> Result<String, ViewerError> {
    let mut bytes = [0; 16];
    getrandom::fill(&mut bytes).map_err(|error| ViewerError::Random(error.to_string()))?;
    Ok(format!("{:032x}", u128::from_ne_bytes(bytes)))
}

impl<S> fmt::Debug for Viewer<S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Viewer").field("title", &self.title).field("address", &self.address).finish_non_exhaustive()
    }
}

impl<S> fmt::Debug for ViewerBuilder<S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ViewerBuilder")
            .field("address", &self.address)
            .field("title", &self.title)
            .field("is_remote", &self.is_remote)
            .finish_non_exhaustive()
    }
}
