//! The viewer: a source behind a server.

use std::fmt;
use std::io;
use std::net::SocketAddr;
use std::sync::Arc;

use emitree_sinks::runs::Source;
use tokio::net::{TcpListener, lookup_host};

use crate::error::ViewerError;
use crate::guard::Guard;
use crate::server;

/// Serves the page of a source. Made by [`Viewer::of`]; see the [crate](crate) for an example.
#[must_use = "the page is not served until `serve` is awaited"]
pub struct Viewer {
    shown: Arc<Shown>,
    listener: TcpListener,
    address: SocketAddr,
    guard: Guard,
}

/// A source and its title.
pub(crate) struct Shown {
    pub(crate) source: Box<dyn Source>,
    pub(crate) title: String,
}

/// The options of a [`Viewer`].
#[must_use = "nothing is served until `bind` is called"]
pub struct ViewerBuilder {
    shown: Shown,
    is_remote: bool,
    token: Option<String>,
}

impl Viewer {
    /// Returns the default options for a source.
    pub fn of(source: impl Source) -> ViewerBuilder {
        let shown = Shown { source: Box::new(source), title: "recording".to_owned() };
        ViewerBuilder { shown, is_remote: false, token: None }
    }

    /// Returns the address of the page, with the token.
    #[must_use]
    pub fn url(&self) -> String {
        format!("http://{}/?token={}", self.address, self.guard.token())
    }

    /// Returns the address that the server listens on.
    #[must_use]
    pub const fn address(&self) -> SocketAddr {
        self.address
    }

    /// Answers requests until the future is dropped.
    ///
    /// # Errors
    ///
    /// Returns an error if the server cannot accept connections.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future closes the listener. Connections that are open end when their runtime ends.
    pub async fn serve(self) -> io::Result<()> {
        axum::serve(self.listener, server::routes(self.shown, self.guard)).await
    }
}

impl ViewerBuilder {
    /// Sets the title of the page. The default is `recording`.
    pub fn title(mut self, title: impl Into<String>) -> Self {
        self.shown.title = title.into();
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

    /// Listens on an address such as `127.0.0.1:0`; port 0 is any free port.
    ///
    /// # Errors
    ///
    /// Returns an error if the address can be reached from other machines and this is not allowed, if nothing can be
    /// bound to it, or if the token has another form.
    pub async fn bind(self, address: &str) -> Result<Viewer, ViewerError> {
        if self.token.as_deref().is_some_and(|token| !is_token(token)) {
            return Err(ViewerError::Token);
        }
        let failed = |source| ViewerError::Listen { address: address.to_owned(), source };
        let addresses: Vec<_> = lookup_host(address).await.map_err(failed)?.collect();
        // Checked before the bind: a listener on a forbidden address must not exist for a moment.
        if let Some(remote) = addresses.iter().find(|address| !address.ip().is_loopback() && !self.is_remote) {
            return Err(ViewerError::Remote(*remote));
        }
        let listener = TcpListener::bind(&*addresses).await.map_err(failed)?;
        let address = listener.local_addr().map_err(failed)?;
        let token = self.token.map_or_else(random_token, Ok)?;
        Ok(Viewer { shown: Arc::new(self.shown), listener, address, guard: Guard::new(token, address.port()) })
    }
}

/// Returns `true` if a token needs no escape in a URL or a cookie, and is hard to guess.
fn is_token(token: &str) -> bool {
    token.len() >= 16 && token.bytes().all(|byte| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_'))
}

fn random_token() -> Result<String, ViewerError> {
    let mut bytes = [0; 16];
    getrandom::fill(&mut bytes).map_err(|error| ViewerError::Random(error.to_string()))?;
    Ok(format!("{:032x}", u128::from_ne_bytes(bytes)))
}

impl fmt::Debug for Viewer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Viewer")
            .field("title", &self.shown.title)
            .field("address", &self.address)
            .finish_non_exhaustive()
    }
}

impl fmt::Debug for ViewerBuilder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { shown, is_remote, token: _ } = self;
        f.debug_struct("ViewerBuilder")
            .field("title", &shown.title)
            .field("is_remote", is_remote)
            .finish_non_exhaustive()
    }
}
