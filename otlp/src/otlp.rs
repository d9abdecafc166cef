//! The settings of an exporter.

use std::env;
use std::time::Duration;

use emitree_emitter::Overflow;
use opentelemetry_proto::tonic::common::v1::KeyValue;
use reqwest::Url;
use reqwest::header::{HeaderMap, HeaderName, HeaderValue};

use crate::dialect::{Dialect, Row};
use crate::encode::{self, Attributes, Encoder, Limits, Names, SpanKind};
use crate::error::OtlpError;
use crate::export::{Exporter, Settings, Target, check};
use crate::sampler::Sampler;
use crate::sink::{Active, OtlpSink};
use crate::spans::Spans;

/// An exporter of runs as OpenTelemetry spans. Made by [`Otlp::from_env`] or [`Otlp::to`].
///
/// Requests are sent through the proxy that `HTTP_PROXY`, `HTTPS_PROXY` or `ALL_PROXY` set, also in lower case,
/// except to the hosts of `NO_PROXY`. Redirects are not followed, so that no header reaches another server.
///
/// ```no_run
/// use std::time::Duration;
///
/// use emitree_emitter::Emitter;
/// use emitree_otlp::{Dialect, Otlp};
///
/// let otlp = Otlp::to("http://127.0.0.1:4318")?.dialect(Dialect::OpenInference);
/// let traces = Emitter::root().pipe_to(otlp.sink())?;
/// // …
/// traces.close_blocking(Duration::from_secs(10)).complete()?;
/// # Ok::<(), Box<dyn std::error::Error + Send + Sync>>(())
/// ```
#[derive(Clone, Debug)]
#[must_use = "nothing is exported until the sink receives records"]
pub struct Otlp {
    target: Target,
    resource: Vec<(String, String)>,
    attributes: Attributes,
    names: Names,
    sampler: Sampler,
    with_content: bool,
    asked_for: Vec<String>,
    retry_for: Duration,
    pending_bytes: usize,
    overflow: Overflow,
    is_disabled: bool,
}

impl Otlp {
    /// Makes an exporter from the environment variables of OpenTelemetry. An empty variable counts as unset.
    ///
    /// | variable | meaning | default |
    /// |---|---|---|
    /// | `OTEL_EXPORTER_OTLP_ENDPOINT` | the base URL, as for [`to`](Self::to) | `http://localhost:4318` |
    /// | `OTEL_EXPORTER_OTLP_TRACES_ENDPOINT` | the whole URL | |
    /// | `OTEL_EXPORTER_OTLP_HEADERS` | headers, as `name=value,…` with percent-encoded values | |
    /// | `OTEL_EXPORTER_OTLP_TIMEOUT` | [`timeout`](Self::timeout), in milliseconds above 0 | 10000 |
    /// | `OTEL_EXPORTER_OTLP_PROTOCOL` | `http/protobuf` | |
    /// | `OTEL_EXPORTER_OTLP_COMPRESSION` | `none` | |
    /// | `OTEL_SERVICE_NAME` | the attribute `service.name` of the resource | `unknown_service:` and the program's name |
    /// | `OTEL_RESOURCE_ATTRIBUTES` | further attributes of the resource, with percent-encoded names and values | |
    /// | `OTEL_TRACES_SAMPLER` | `parentbased_always_on`, or `parentbased_traceidratio` with a share of the traces | all traces |
    /// | `OTEL_TRACES_SAMPLER_ARG` | the share, from 0 to 1 | 1 |
    /// | `OTEL_INSTRUMENTATION_GENAI_CAPTURE_MESSAGE_CONTENT` | [`content`](Self::content) | `false` |
    /// | `OTEL_SDK_DISABLED` | `true`: the sink ignores all records, and no other variable is read | `false` |
    ///
    /// Each `OTEL_EXPORTER_OTLP_…` may also be `OTEL_EXPORTER_OTLP_TRACES_…`, which takes precedence.
    ///
    /// # Errors
    ///
    /// Returns an error that quotes the variable if it has another value, or if it would change how spans are sent
    /// and is not supported, such as `OTEL_EXPORTER_OTLP_CERTIFICATE`. Values of headers are not quoted.
    pub fn from_env() -> Result<Self, OtlpError> {
        crate::env::read(&|name| env::var(name))
    }

    /// Makes an exporter that sends spans to `<base>/v1/traces`, as OTLP over HTTP with protobuf.
    ///
    /// # Errors
    ///
    /// Returns an error if the text is no HTTP URL, or if the HTTP client cannot be made.
    pub fn to(base: &str) -> Result<Self, OtlpError> {
        let mut url = parse(base)?;
        let path = format!("{}/v1/traces", url.path().trim_end_matches('/'));
        url.set_path(&path);
        Self::to_url(url)
    }

    /// Makes an exporter that sends spans to a URL, to which nothing is appended.
    ///
    /// # Errors
    ///
    /// Returns an error if the text is no HTTP URL, or if the HTTP client cannot be made.
    pub fn to_exactly(url: &str) -> Result<Self, OtlpError> {
        Self::to_url(parse(url)?)
    }

    fn to_url(url: Url) -> Result<Self, OtlpError> {
        // A client that cannot be made is an error here, and not later on the thread that sends.
        check(&url)?;
        let attributes = Attributes { dialect: Dialect::default(), own: Vec::new(), limits: Limits::default() };
        Ok(Self {
            target: Target { url, headers: HeaderMap::new(), timeout: Duration::from_secs(10) },
            resource: Vec::new(),
            attributes,
            names: Names::default(),
            sampler: Sampler::ALWAYS,
            with_content: false,
            asked_for: Vec::new(),
            retry_for: Duration::from_secs(60),
            pending_bytes: 64 << 20,
            overflow: Overflow::DropOldest,
            is_disabled: false,
        })
    }

    /// Sets the names of the attributes. The default is [`Dialect::GenAi`]. An exporter has one dialect: for two
    /// tools that read different names, attach two sinks.
    pub const fn dialect(mut self, dialect: Dialect) -> Self {
        self.attributes.dialect = dialect;
        self
    }

    /// Exports inputs, outputs and messages too. By default, spans have no content: the sink asks for heads, so no value
    /// is serialized for it, and no span has an input, an output, a message, or a payload of an own event. The data that
    /// a provider needs back is in no span.
    ///
    /// Content may contain secrets: `redact.sink(otlp.sink())` redacts the records first.
    pub const fn content(mut self, with_content: bool) -> Self {
        self.with_content = with_content;
        self
    }

    /// Adds an attribute to the spans of a kind of runs. It takes precedence over an attribute of the dialect.
    ///
    /// ```
    /// use emitree_otlp::{Fact, Otlp, Row};
    ///
    /// let span_kind = Row::new("Retriever", Fact::Constant("RETRIEVER"), "openinference.span.kind", "");
    /// let otlp = Otlp::to("http://127.0.0.1:4318")?.row(span_kind);
    /// # Ok::<(), emitree_otlp::OtlpError>(())
    /// ```
    pub fn row(mut self, row: Row) -> Self {
        self.attributes.own.push(row);
        self
    }

    /// Sets the name of the spans of a kind of runs, in which `{name}` is the name of the run, and their kind.
    ///
    /// ```
    /// use emitree_otlp::{Otlp, SpanKind};
    ///
    /// let otlp = Otlp::to("http://127.0.0.1:4318")?.span("Retriever", "retrieval {name}", SpanKind::Client);
    /// # Ok::<(), emitree_otlp::OtlpError>(())
    /// ```
    pub fn span(mut self, kind: impl Into<String>, name: impl Into<String>, span: SpanKind) -> Self {
        self.names.own.push((kind.into(), name.into(), span));
        self
    }

    /// Adds an own event of runs, by the end of its path, to the events of their spans. The events that explain how a
    /// run went, such as retries, are always there. The event of the span has no attributes.
    pub fn event(mut self, name: impl Into<String>) -> Self {
        self.asked_for.push(name.into());
        self
    }

    /// Sets the limits of the attributes of a span.
    pub const fn limits(mut self, limits: Limits) -> Self {
        self.attributes.limits = limits;
        self
    }

    /// Adds an attribute of the resource, such as `deployment.environment.name`. A later value takes precedence.
    pub fn resource(mut self, name: &str, value: &str) -> Self {
        self.resource.retain(|(known, _)| known != name);
        self.resource.push((name.to_owned(), value.to_owned()));
        self
    }

    /// Sets a header that is sent with each request. Its value is kept out of errors and of `Debug`.
    ///
    /// # Errors
    ///
    /// Returns an error if HTTP does not allow the name or the value.
    pub fn header(mut self, name: &str, value: &str) -> Result<Self, OtlpError> {
        let invalid = || OtlpError::Header(name.to_owned());
        let key = HeaderName::try_from(name).map_err(|_| invalid())?;
        let mut value = HeaderValue::try_from(value).map_err(|_| invalid())?;
        value.set_sensitive(true);
        self.target.headers.insert(key, value);
        Ok(self)
    }

    /// Sets the time after which a request without an answer has failed. The default is 10 s.
    pub const fn timeout(mut self, timeout: Duration) -> Self {
        self.target.timeout = timeout;
        self
    }

    /// Sets the time in which a request is repeated while the collector is not ready. The default is 60 s.
    pub const fn retry_for(mut self, time: Duration) -> Self {
        self.retry_for = time;
        self
    }

    /// Sets the most bytes of spans that wait for the collector. Above them, the oldest spans fail. The default is 64
    /// MB.
    pub const fn pending_bytes(mut self, bytes: usize) -> Self {
        self.pending_bytes = bytes;
        self
    }

    /// Sets what happens to an event while the queue of the sink is full. By default, the oldest event is lost. With
    /// [`Overflow::Block`], emits wait until the sink has read the events before, and no event is lost.
    pub const fn overflow(mut self, overflow: Overflow) -> Self {
        self.overflow = overflow;
        self
    }

    pub(crate) const fn sampler(mut self, sampler: Sampler) -> Self {
        self.sampler = sampler;
        self
    }

    pub(crate) const fn disabled(mut self) -> Self {
        self.is_disabled = true;
        self
    }

    /// Makes a sink. Each sink sends the spans of its records on a thread of its own, which starts with the first span.
    #[must_use = "a sink exports nothing until an emitter pipes to it"]
    pub fn sink(&self) -> OtlpSink {
        let active = || {
            let spans = Spans::new(self.sampler, self.with_content, self.asked_for.clone());
            let encoder = Encoder { attributes: self.attributes.clone(), names: self.names.clone() };
            Active { spans, encoder, exporter: Exporter::new(self.settings()), overflow: self.overflow }
        };
        OtlpSink::new((!self.is_disabled).then(active))
    }

    fn settings(&self) -> Settings {
        let Self { target, retry_for, pending_bytes, .. } = self;
        let resource = self.resource_attributes();
        Settings { target: target.clone(), resource, retry_for: *retry_for, pending_bytes: *pending_bytes }
    }

    /// Returns the attributes of the resource: the default ones first, unless the user has set them.
    fn resource_attributes(&self) -> Vec<KeyValue> {
        let defaults = [
            ("service.name", default_service()),
            ("telemetry.sdk.name", "emitree".to_owned()),
            ("telemetry.sdk.language", "rust".to_owned()),
            ("telemetry.sdk.version", env!("CARGO_PKG_VERSION").to_owned()),
        ];
        let is_set = |name: &str| self.resource.iter().any(|(known, _)| known == name);
        let defaults = defaults.iter().filter(|(name, _)| !is_set(name)).map(|(name, value)| encode::text(name, value));
        defaults.chain(self.resource.iter().map(|(name, value)| encode::text(name, value))).collect()
    }
}

/// Returns the name of a service that has none, as OpenTelemetry defines it.
fn default_service() -> String {
    let program = env::current_exe().ok();
    let name = program.as_deref().and_then(|path| path.file_name()).map(|name| name.to_string_lossy());
    name.map_or_else(|| "unknown_service".to_owned(), |name| format!("unknown_service:{name}"))
}

/// Parses the URL of a collector.
fn parse(text: &str) -> Result<Url, OtlpError> {
    let invalid = |url: &str, reason: &str| OtlpError::Endpoint { url: url.to_owned(), reason: reason.to_owned() };
    let url = Url::parse(text.trim()).map_err(|error| invalid(quotable(text), &error.to_string()))?;
    if !matches!(url.scheme(), "http" | "https") || url.host_str().is_none() {
        let reason = format!("its scheme is `{}`", url.scheme());
        return Err(invalid(quotable(text), &reason));
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
