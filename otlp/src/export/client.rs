//! One request to a collector, over HTTP with protobuf.

use std::borrow::Cow;
use std::fmt;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use bytes::Bytes;
use opentelemetry_proto::tonic::collector::trace::v1::ExportTraceServiceResponse;
use percent_encoding::percent_decode_str;
use prost::Message as _;
use reqwest::header::{CONTENT_TYPE, HeaderMap};
use reqwest::redirect::Policy;
use reqwest::{Response, StatusCode, Url};
use rustls::{ClientConfig, RootCertStore};
use rustls_platform_verifier::BuilderVerifierExt;

use super::delivery::Partial;
use super::retry_after;
use crate::OtlpError;

/// The exporter, its version and its language, unless the user sets the header.
const USER_AGENT: &str = concat!("emitree-otlp/", env!("CARGO_PKG_VERSION"), " (Rust)");
/// The most bytes of an answer that are read.
const MOST_ANSWER: usize = 64 * 1024;
/// The most characters of an answer that an error quotes.
const MOST_QUOTED: usize = 200;
/// The fewest bytes of a secret. Headers also have values such as a version, which any answer may contain.
const LEAST_SECRET: usize = 4;

/// The collector.
#[derive(Clone)]
pub(crate) struct Target {
    pub(crate) url: Url,
    pub(crate) headers: HeaderMap,
    pub(crate) timeout: Duration,
}

pub(super) struct Client {
    target: Target,
    client: reqwest::Client,
}

/// A request has failed.
pub(super) enum Failure {
    /// The same request may succeed later: after the delay that the collector wants, if it names one.
    Retry { error: String, after: Option<Duration> },
    /// The same request would fail again.
    Final(String),
}

/// Checks that a client for an URL can be made.
pub(crate) fn check(url: &Url) -> Result<(), OtlpError> {
    client(url).map(drop)
}

fn client(url: &Url) -> Result<reqwest::Client, OtlpError> {
    reqwest::Client::builder()
        .user_agent(USER_AGENT)
        // A redirect must not send the headers to another server.
        .redirect(Policy::none())
        .tls_backend_preconfigured(tls(url.scheme() == "https")?)
        .build()
        .map_err(|error| OtlpError::Client(error.without_url()))
}

/// Returns the TLS settings, with the cryptography of `ring`. The system's certificates are loaded only if TLS is used.
fn tls(is_used: bool) -> Result<ClientConfig, OtlpError> {
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let builder = ClientConfig::builder_with_provider(provider).with_safe_default_protocol_versions()?;
    let builder = if is_used {
        builder.with_platform_verifier()?
    } else {
        builder.with_root_certificates(RootCertStore::empty())
    };
    Ok(builder.with_no_client_auth())
}

impl Client {
    pub(super) fn new(target: Target) -> Result<Self, OtlpError> {
        Ok(Self { client: client(&target.url)?, target })
    }

    /// Posts a request. Returns the spans that the collector has rejected, or its warning.
    pub(super) async fn post(&self, body: Bytes) -> Result<Option<Partial>, Failure> {
        let Target { url, headers, timeout } = &self.target;
        let request = self.client.post(url.clone()).headers(headers.clone()).timeout(*timeout);
        let request = request.header(CONTENT_TYPE, "application/x-protobuf").body(body);
        let response = request.send().await.map_err(|error| self.disconnected(error))?;
        let status = response.status();
        let after = retry_after::delay(response.headers(), SystemTime::now());
        // No `?` yet: if the collector refuses the request, its status decides, even if the body cannot be read.
        // After a success the body matters, because it may report rejected spans.
        let answer = self.read(response).await;
        if status.is_success() {
            return self.accepted(&answer?);
        }
        let error = self.refused(status, &answer.unwrap_or_default());
        let can_retry = [
            StatusCode::TOO_MANY_REQUESTS,
            StatusCode::BAD_GATEWAY,
            StatusCode::SERVICE_UNAVAILABLE,
            StatusCode::GATEWAY_TIMEOUT,
        ];
        Err(if can_retry.contains(&status) { Failure::Retry { error, after } } else { Failure::Final(error) })
    }

    /// Reads the body of an answer, unless it is too large.
    async fn read(&self, mut response: Response) -> Result<Vec<u8>, Failure> {
        let mut body = Vec::new();
        while let Some(bytes) = response.chunk().await.map_err(|error| self.disconnected(error))? {
            body.extend_from_slice(&bytes);
            if body.len() > MOST_ANSWER {
                let error = format!("the collector at {self} sent an answer of more than {MOST_ANSWER} bytes");
                return Err(Failure::Final(error));
            }
        }
        Ok(body)
    }

    /// Reads the answer to a request that was accepted. An answer that is no protobuf is none: some servers send JSON.
    fn accepted(&self, answer: &[u8]) -> Result<Option<Partial>, Failure> {
        let partial = ExportTraceServiceResponse::decode(answer).ok().and_then(|answer| answer.partial_success);
        let Some(partial) = partial else { return Ok(None) };
        let message = self.quoted(&partial.error_message);
        let rejected = usize::try_from(partial.rejected_spans).unwrap_or(0);
        let message = match rejected {
            0 if message.is_empty() => return Ok(None),
            0 => format!("the collector at {self} warns: {message}"),
            _ => format!("the collector at {self} rejected {rejected} spans: {message}"),
        };
        Ok(Some(Partial { rejected, message }))
    }

    fn disconnected(&self, error: reqwest::Error) -> Failure {
        // A request that cannot be built would fail again. The error loses its URL, which may contain a password or
        // a key (O9); `{self}` prints it without them.
        let is_final = error.is_builder();
        let error = error.without_url();
        let causes = std::iter::successors(Some(&error as &dyn std::error::Error), |error| error.source());
        let causes: Vec<String> = causes.map(ToString::to_string).collect();
        let error = format!("no answer of the collector at {self}: {}", causes.join(": "));
        if is_final { Failure::Final(error) } else { Failure::Retry { error, after: None } }
    }

    fn refused(&self, status: StatusCode, answer: &[u8]) -> String {
        let answer = self.quoted(&String::from_utf8_lossy(answer));
        let colon = if answer.is_empty() { "" } else { ": " };
        format!("the collector at {self} answered {status}{colon}{answer}")
    }

    /// Returns the readable beginning of a text of the collector. A text that contains a secret is not quoted.
    fn quoted(&self, text: &str) -> String {
        // A server may send a header back in its answer (O9). This is checked before the text is cut, because the
        // first half of a secret would not be recognized.
        if self.target.secrets().any(|secret| secret.len() >= LEAST_SECRET && text.contains(&*secret)) {
            return "…".to_owned();
        }
        text.chars().filter(|char| !char.is_control()).take(MOST_QUOTED).collect()
    }
}

impl Target {
    /// Returns what may be a key: the values of the headers, the password, and the values of the query.
    fn secrets(&self) -> impl Iterator<Item = Cow<'_, str>> {
        // Of `Bearer <key>`, only the key is a secret: the word before it occurs in harmless answers.
        let headers = self.headers.values().filter_map(|value| value.to_str().ok()?.split_whitespace().last());
        let password = self.url.password();
        let decoded = password.map(|password| percent_decode_str(password).decode_utf8_lossy());
        let query = self.url.query_pairs().map(|(_, value)| value);
        headers.chain(password).map(Cow::from).chain(decoded).chain(query)
    }
}

/// Prints the URL without its user, password and query.
impl fmt::Display for Client {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.target.fmt(f)
    }
}

impl fmt::Display for Target {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut url = self.url.clone();
        let _ = (url.set_username(""), url.set_password(None));
        url.set_query(None);
        url.fmt(f)
    }
}

/// Prints the names of the headers only.
impl fmt::Debug for Target {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let headers: Vec<&str> = self.headers.keys().map(|name| name.as_str()).collect();
        let url = self.to_string();
        f.debug_struct("Target").field("url", &url).field("headers", &headers).field("timeout", &self.timeout).finish()
    }
}
