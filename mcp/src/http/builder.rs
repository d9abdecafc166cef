//! The settings of a server over HTTP.

use std::fmt;
use std::sync::Arc;

use emitree_runtime::{Result, RunContext};
use reqwest::header::{HeaderName, HeaderValue};
use reqwest::redirect::{Attempt, Policy};
use reqwest::{Client, Url};
use rustls::{ClientConfig, RootCertStore};
use rustls_platform_verifier::BuilderVerifierExt;

use crate::connection::slot::Link;
use crate::error::Fault;
use crate::http::pool::{Pool, Source, Value};
use crate::server::McpServer;
use crate::server::builder::McpServerBuilder;

/// A server at an address.
pub struct Http {
    url: String,
    headers: Vec<(String, Value)>,
    is_anonymous: bool,
}

impl McpServer {
    /// Returns a builder for a server at an address: `https://wiki.example/mcp`.
    pub fn http(url: impl Into<String>) -> McpServerBuilder<Http> {
        let url = url.into();
        let host = Url::parse(&url).ok().and_then(|url| url.host_str().map(str::to_owned)).unwrap_or_default();
        McpServerBuilder::new(Http { url, headers: Vec::new(), is_anonymous: false }, &host)
    }
}

impl McpServerBuilder<Http> {
    /// Adds a header to all requests.
    pub fn header(mut self, name: impl Into<String>, value: impl Into<String>) -> Self {
        self.over.headers.push((name.into(), Value::Fixed(value.into())));
        self
    }

    /// Adds a header whose value depends on the run, for example on its user. `value` is called for each turn and for
    /// each call of a tool.
    ///
    /// A connection belongs to exactly one set of header values, so two users never share one. At most 64 connections
    /// are kept, and each for 5 idle minutes. [`connect`](Self::connect) then sends nothing. If `value` returns `None`,
    /// the turn or the call fails, unless [`anonymous`](Self::anonymous) is set.
    pub fn header_from(
        mut self,
        name: impl Into<String>,
        value: impl Fn(&RunContext) -> Option<String> + Send + Sync + 'static,
    ) -> Self {
        self.over.headers.push((name.into(), Value::OfRun(Arc::new(value))));
        self
    }

    /// Leaves out headers that have no value for a run.
    pub const fn anonymous(mut self) -> Self {
        self.over.is_anonymous = true;
        self
    }

    /// Connects to the server, and reads its list of tools. If a header [depends on the run](Self::header_from), nothing
    /// is sent before the first turn of an agent.
    ///
    /// # Errors
    ///
    /// Returns an [`McpError`](crate::McpError) if the address or a header is invalid, or if the server cannot be
    /// reached, refuses the credentials, does not answer in time, or supports no version of the protocol in common.
    ///
    /// # Cancel safety
    ///
    /// If the future is dropped, the connection is closed.
    pub async fn connect(self) -> Result<McpServer> {
        let source = source(&self.over).map_err(|fault| self.error(fault))?;
        let server = self.build(|_| Link::Http(Pool::new(source)))?;
        let Some(slot) = server.shared.only_slot() else { return Ok(server) };
        slot.tools(&server.shared.setup).await.map_err(|fault| server.shared.error(fault))?;
        Ok(server)
    }
}

/// Checks the address and the headers.
fn source(http: &Http) -> Result<Source, Fault> {
    let wrong = |fault: String| Fault::Setting(fault);
    let url = Url::parse(&http.url).ok().filter(|url| matches!(url.scheme(), "http" | "https") && url.has_host());
    let url = url.ok_or_else(|| wrong("its address has to be like `https://wiki.example/mcp`".to_owned()))?;
    let mut headers = Vec::new();
    for (name, value) in &http.headers {
        let parsed = name.parse::<HeaderName>().map_err(|_| wrong(format!("`{name}` is no name of a header")))?;
        if let Value::Fixed(value) = value {
            HeaderValue::from_str(value).map_err(|_| wrong(format!("the value of the header `{name}` is invalid")))?;
        }
        headers.push((parsed, value.clone()));
    }
    let client = Client::builder()
        .redirect(Policy::custom(within_origin))
        .tls_backend_preconfigured(tls(url.scheme() == "https")?)
        .build()
        .map_err(|error| wrong(format!("the HTTP client cannot be built: {}", error.without_url())))?;
    Ok(Source { client, url: url.as_str().into(), headers, is_anonymous: http.is_anonymous })
}

/// Follows a redirect that repeats the request at the same origin. No other one: it would send the headers elsewhere.
fn within_origin(attempt: Attempt<'_>) -> reqwest::redirect::Action {
    let is_same = attempt.previous().first().is_some_and(|first| first.origin() == attempt.url().origin());
    if is_same && matches!(attempt.status().as_u16(), 307 | 308) && attempt.previous().len() < 5 {
        attempt.follow()
    } else {
        attempt.stop()
    }
}

pub(super) fn tls(is_used: bool) -> Result<ClientConfig, Fault> {
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let versions = ClientConfig::builder_with_provider(provider).with_safe_default_protocol_versions();
    let no_tls = |error: rustls::Error| Fault::Setting(format!("TLS cannot be set up: {error}"));
    let builder = versions.map_err(no_tls)?;
    // The certificates are not loaded for `http`, so that such an address works on a machine without certificates.
    let builder = if is_used {
        builder.with_platform_verifier().map_err(no_tls)?
    } else {
        builder.with_root_certificates(RootCertStore::empty())
    };
    Ok(builder.with_no_client_auth())
}

impl fmt::Debug for Http {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let names: Vec<_> = self.headers.iter().map(|(name, _)| name).collect();
        f.debug_struct("Http").field("headers", &names).finish_non_exhaustive()
    }
}
