//! The builder of an [`OpenAi`] provider.

use std::cmp::Reverse;
use std::fmt;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::Duration;

use base64::prelude::{BASE64_STANDARD, Engine};
use emitree_runtime::{Error, Result};
use hyper_util::client::proxy::matcher::Matcher;
use percent_encoding::percent_decode_str;
use reqwest::header::{ACCEPT_ENCODING, AUTHORIZATION, HeaderMap, HeaderName, HeaderValue};
use reqwest::redirect::Policy;
use reqwest::{Client, Url};
use rustls::{ClientConfig, RootCertStore};
use rustls_platform_verifier::BuilderVerifierExt;

use crate::openai::failure::Server;
use crate::openai::servers::{self, Known};
use crate::openai::{Limits, OpenAi, Shared};

/// Builds an [`OpenAi`]. Created by [`OpenAi::builder`] and [`OpenAi::from_name`].
#[must_use]
pub struct OpenAiBuilder {
    model: String,
    server: &'static Known,
    base_url: Option<String>,
    api_key: Option<String>,
    headers: Vec<(String, String)>,
    stream_usage: bool,
    images: bool,
    sends_trace: bool,
    connect_timeout: Duration,
    limits: Limits,
}

impl OpenAi {
    /// Returns a builder for an OpenAI model. To use a model of another server, set the [base
    /// URL](OpenAiBuilder::base_url) of that server.
    pub fn builder(model: impl Into<String>) -> OpenAiBuilder {
        OpenAiBuilder::new(&servers::OPENAI, model.into())
    }

    /// Returns a builder for the model with this name, `<server>:<model>`, for example `ollama:granite4`. The key and,
    /// for some servers, the base URL are read from environment variables.
    ///
    /// | server | base URL, and the variable that overrides it | variables that may contain the key |
    /// |---|---|---|
    /// | `openai` | `https://api.openai.com/v1`, `OPENAI_BASE_URL` | `OPENAI_API_KEY` |
    /// | `anthropic` | `https://api.anthropic.com/v1` | `ANTHROPIC_API_KEY` |
    /// | `deepseek` | `https://api.deepseek.com/v1` | `DEEPSEEK_API_KEY` |
    /// | `gemini` | `https://generativelanguage.googleapis.com/v1beta/openai` | `GEMINI_API_KEY`, `GOOGLE_API_KEY` |
    /// | `groq` | `https://api.groq.com/openai/v1` | `GROQ_API_KEY` |
    /// | `llamacpp` | `http://localhost:8080/v1` | `LLAMA_API_KEY` |
    /// | `lmstudio` | `http://localhost:1234/v1`, `LM_STUDIO_API_BASE` | `LM_STUDIO_API_KEY` |
    /// | `mistral` | `https://api.mistral.ai/v1` | `MISTRAL_API_KEY` |
    /// | `ollama` | `http://localhost:11434/v1`, `OLLAMA_HOST` | `OLLAMA_API_KEY` |
    /// | `openrouter` | `https://openrouter.ai/api/v1` | `OPENROUTER_API_KEY` |
    /// | `together` | `https://api.together.xyz/v1` | `TOGETHER_API_KEY` |
    /// | `vllm` | `http://localhost:8000/v1`, `HOSTED_VLLM_API_BASE` | `VLLM_API_KEY` |
    /// | `xai` | `https://api.x.ai/v1` | `XAI_API_KEY` |
    ///
    /// `OLLAMA_HOST` may be a host, a port such as `:1234`, or a URL, as in Ollama itself. An empty variable counts as
    /// unset.
    ///
    /// # Errors
    ///
    /// Returns an error if the name has no server or no model, if the server is not known, or if a variable is not
    /// valid Unicode.
    pub fn from_name(name: &str) -> Result<OpenAiBuilder> {
        servers::builder(name, |variable| std::env::var_os(variable))
    }
}

impl OpenAiBuilder {
    pub(super) fn new(server: &'static Known, model: String) -> Self {
        Self {
            model,
            server,
            base_url: None,
            api_key: None,
            headers: Vec::new(),
            stream_usage: true,
            images: true,
            sends_trace: false,
            connect_timeout: Duration::from_secs(10),
            limits: Limits {
                first_byte: Duration::from_secs(600),
                between_chunks: Duration::from_secs(300),
                max_bytes: 64 * 1024 * 1024,
            },
        }
    }

    /// Sets the base URL, to which `/chat/completions` is appended, for example `http://localhost:8000/v1`. If the URL
    /// has a query, the query is sent with each request.
    pub fn base_url(mut self, url: impl Into<String>) -> Self {
        self.base_url = Some(url.into());
        self
    }

    /// Sets the API key, which is sent as `Authorization: Bearer <key>`.
    pub fn api_key(mut self, key: impl Into<String>) -> Self {
        self.api_key = Some(key.into());
        self
    }

    /// Sets a header that is sent with each request. The values of `authorization`, `api-key`, `x-api-key` and
    /// `x-goog-api-key` are kept secret, like [the API key](OpenAi#errors).
    pub fn header(mut self, name: impl Into<String>, value: impl Into<String>) -> Self {
        self.headers.push((name.into(), value.into()));
        self
    }

    /// Sets whether requests for streams ask for token counts, by default `true`. Disable this option for servers that
    /// refuse `stream_options`.
    pub const fn stream_usage(mut self, stream_usage: bool) -> Self {
        self.stream_usage = stream_usage;
        self
    }

    /// Sets whether the model reads images, by default `true`. With `false`, it reads a text such as
    /// `[image/png, 12 KB: not shown]` in the place of each image.
    pub const fn images(mut self, images: bool) -> Self {
        self.images = images;
        self
    }

    /// Sets whether each request names the model's run in the headers `traceparent` and `tracestate`, by default `false`.
    /// A server that takes part in the trace then shows its work below the run. The headers have no secret, but tell the
    /// server which requests belong together.
    pub const fn trace_parent(mut self, is_sent: bool) -> Self {
        self.sends_trace = is_sent;
        self
    }

    /// Sets the timeout for connecting to the server, by default 10 s.
    pub const fn connect_timeout(mut self, timeout: Duration) -> Self {
        self.connect_timeout = timeout;
        self
    }

    /// Sets the timeout from the request to the first byte of the reply, by default 10 min. A server that does not
    /// stream usually sends its first byte only when the answer is complete.
    pub const fn first_byte_timeout(mut self, timeout: Duration) -> Self {
        self.limits.first_byte = timeout;
        self
    }

    /// Sets the timeout between two pieces of a reply, by default 5 min. Comments that servers send to keep a
    /// connection open count as pieces.
    pub const fn chunk_timeout(mut self, timeout: Duration) -> Self {
        self.limits.between_chunks = timeout;
        self
    }

    /// Sets the maximum number of bytes in the body of a reply, by default 64 MiB. A call with a larger reply fails.
    pub const fn max_reply_bytes(mut self, max_bytes: usize) -> Self {
        self.limits.max_bytes = max_bytes;
        self
    }

    /// Builds the provider.
    ///
    /// # Errors
    ///
    /// Returns an error if the model's name is empty, the base URL is not an HTTP URL, or the key or a header is not
    /// valid in HTTP. Also returns an error if the server needs a key and neither a key nor a base URL is set, or if
    /// the system's certificates cannot be read.
    pub fn build(self) -> Result<OpenAi> {
        let Self { model, server, base_url, api_key, headers, stream_usage, images, .. } = self;
        let Self { sends_trace, connect_timeout, limits, .. } = self;
        if model.trim().is_empty() {
            return Err(Error::new("the model's name is empty: use the name that the server uses for the model"));
        }
        let is_own_address = base_url.is_none();
        let base_url = base_url.unwrap_or_else(|| server.base_url.to_owned());
        let url = parse(&base_url)?;
        let api_key = api_key.filter(|key| !key.is_empty());
        if server.needs_key && is_own_address && api_key.is_none() {
            let variables = server.key_variables.join("` or `");
            let name = server.name;
            return Err(Error::new(format!(
                "`{name}` needs an API key: set the environment variable `{variables}` and use `from_name(\"{name}:{model}\")`, or call `api_key`"
            )));
        }
        let (headers, mut secrets) = header_map(&headers, api_key.as_deref())?;
        secrets.extend(secrets_of(&url));
        let proxy = proxy_of(&url).map(|(proxy, password)| {
            secrets.extend(password);
            proxy
        });
        secrets.sort_by_key(|secret| Reverse(secret.len()));
        let client = Client::builder()
            .default_headers(headers)
            .connect_timeout(connect_timeout)
            // A redirect must not send the key to another server.
            .redirect(Policy::none())
            .tls_backend_preconfigured(tls(url.scheme() == "https")?)
            .build()
            .map_err(|error| Error::from(error.without_url()).message("the HTTP client cannot be built"))?;
        let is_official = servers::is_openai(&url);
        let rules = servers::rules(server, &url);
        let server = Server { provider: server.name.to_owned(), address: address(&url), proxy, secrets };
        let url = endpoint(url);
        let server = Arc::new(server);
        let has_warned = AtomicBool::new(false);
        let shared = Shared {
            model,
            server,
            client,
            url,
            is_official,
            stream_usage,
            images,
            sends_trace,
            limits,
            rules,
            has_warned,
        };
        Ok(OpenAi { shared: Arc::new(shared) })
    }
}

/// Parses a base URL. The error contains neither the password nor the query of the URL.
fn parse(text: &str) -> Result<Url> {
    let example = "give an address such as `http://localhost:8000/v1`";
    let text = text.trim();
    let url = Url::parse(text)
        .map_err(|error| Error::new(format!("the base URL `{}` is not a URL ({error}): {example}", quotable(text))))?;
    if !matches!(url.scheme(), "http" | "https") || url.host_str().is_none() {
        let quoted = if url.cannot_be_a_base() { quotable(text).to_owned() } else { address(&url) };
        return Err(Error::new(format!("the base URL `{quoted}` is not an HTTP URL: {example}")));
    }
    Ok(url)
}

/// Returns the part of an invalid URL that contains neither a password nor a query.
fn quotable(text: &str) -> &str {
    let end = text.find(['?', '#']).unwrap_or(text.len());
    match text.rfind('@') {
        // Nothing is quoted, because the password contains `?` or `#`, or the query contains `@`.
        Some(at) if at > end => "…",
        Some(at) => &text[at + 1..end],
        None => &text[..end],
    }
}

/// Returns the secrets of a URL: its password, and the keys and tokens of its query. Each secret is returned as written
/// and as decoded. The password is also returned as it is encoded in the `authorization` header.
fn secrets_of(url: &Url) -> Vec<String> {
    let is_secret = |name: &str| {
        let name = name.to_ascii_lowercase();
        ["key", "token", "secret", "password", "sig"].iter().any(|word| name.contains(word))
    };
    let sent = url.query().into_iter().flat_map(|query| query.split('&').filter_map(|pair| pair.split_once('=')));
    let sent = sent.map(|(name, value)| (name.to_owned(), value.to_owned()));
    let decoded = url.query_pairs().map(|(name, value)| (name.into_owned(), value.into_owned()));
    let values = sent.chain(decoded).filter(|(name, _)| is_secret(name)).map(|(_, value)| value);
    let password = url.password().into_iter().flat_map(|written| {
        let [user, password] = [url.username(), written].map(|text| percent_decode_str(text).decode_utf8_lossy());
        let sent = BASE64_STANDARD.encode(format!("{user}:{password}"));
        [written.to_owned(), password.into_owned(), sent]
    });
    values.chain(password).filter(|secret| !secret.is_empty()).collect()
}

/// Returns the proxy that the environment sets for a URL, and the user and password of the proxy as they are sent. The
/// client reads the same variables when it is built.
fn proxy_of(url: &Url) -> Option<(String, Vec<String>)> {
    let proxy = Matcher::from_system().intercept(&url.as_str().parse().ok()?)?;
    let sent = proxy.basic_auth().and_then(|value| value.to_str().ok()?.strip_prefix("Basic "));
    let decoded = sent.and_then(|sent| String::from_utf8(BASE64_STANDARD.decode(sent).ok()?).ok());
    let password = decoded.as_deref().and_then(|text| text.split_once(':')).map(|(_, password)| password.to_owned());
    let secrets = sent.map(str::to_owned).into_iter().chain(password).filter(|secret| !secret.is_empty());
    Some((proxy.uri().to_string().trim_end_matches('/').to_owned(), secrets.collect()))
}

/// Returns a URL without its user, password, query and fragment.
fn address(url: &Url) -> String {
    let mut url = url.clone();
    let _ = (url.set_username(""), url.set_password(None));
    url.set_query(None);
    url.set_fragment(None);
    url.to_string().trim_end_matches('/').to_owned()
}

/// Returns the URL for chat completions, with the query of the base URL.
fn endpoint(mut url: Url) -> Url {
    let path = format!("{}/chat/completions", url.path().trim_end_matches('/'));
    url.set_path(&path);
    url
}

/// Returns the headers of each request, and the values that must stay secret.
fn header_map(headers: &[(String, String)], api_key: Option<&str>) -> Result<(HeaderMap, Vec<String>)> {
    let mut map = HeaderMap::new();
    let mut secrets = Vec::new();
    // Without this header, a server may choose any compression (<https://www.rfc-editor.org/rfc/rfc9110#section-12.5.3>).
    map.insert(ACCEPT_ENCODING, HeaderValue::from_static("identity"));
    if let Some(key) = api_key {
        let value = HeaderValue::try_from(format!("Bearer {key}"));
        let mut value = value.map_err(|_| {
            Error::new("the API key has characters that are not allowed in a header, such as a line break")
        })?;
        value.set_sensitive(true);
        map.insert(AUTHORIZATION, value);
        secrets.push(key.to_owned());
    }
    for (name, text) in headers {
        let name = HeaderName::try_from(name.as_str())
            .map_err(|_| Error::new(format!("`{name}` is not a valid header name")))?;
        let mut value = HeaderValue::try_from(text.as_str()).map_err(|_| {
            Error::new(format!(
                "the value of the header `{name}` has characters that are not allowed in a header, such as a line break"
            ))
        })?;
        if matches!(name.as_str(), "authorization" | "api-key" | "x-api-key" | "x-goog-api-key") {
            value.set_sensitive(true);
            // A server may send the key back without its scheme, such as `Bearer`, so both forms are secret.
            let key = text.split_whitespace().last().unwrap_or_default();
            secrets.extend([text, key].into_iter().filter(|secret| !secret.is_empty()).map(ToString::to_string));
        }
        map.insert(name, value);
    }
    Ok((map, secrets))
}

/// Returns the TLS settings, with the cryptography of `ring`. The system's certificates are loaded only if TLS is used.
fn tls(is_used: bool) -> Result<ClientConfig> {
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let versions = ClientConfig::builder_with_provider(provider).with_safe_default_protocol_versions();
    let no_tls = |error: rustls::Error| Error::from(error).message("TLS cannot be set up");
    let builder = versions.map_err(no_tls)?;
    // The certificates are not loaded for an `http` URL, so that such a URL works on a machine without certificates.
    let builder = if is_used {
        builder.with_platform_verifier().map_err(no_tls)?
    } else {
        builder.with_root_certificates(RootCertStore::empty())
    };
    Ok(builder.with_no_client_auth())
}

impl fmt::Debug for OpenAiBuilder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("OpenAiBuilder")
            .field("model", &self.model)
            .field("server", &self.server.name)
            .field("has_key", &self.api_key.is_some())
            .finish_non_exhaustive()
    }
}
