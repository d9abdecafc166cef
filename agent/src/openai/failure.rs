//! The errors of a server and of the connection to it.

use std::collections::BTreeMap;
use std::time::SystemTime;

use emitree_runtime::Error;
use reqwest::StatusCode;
use reqwest::header::{CONTENT_ENCODING, CONTENT_TYPE, HeaderMap, LOCATION, SET_COOKIE};
use serde_json::Value;
use thiserror::Error as ThisError;

use crate::openai::encoded::decoded;
use crate::openai::retry_after;

/// The maximum number of characters that an error quotes from a server's text, except from error messages.
const QUOTED: usize = 200;
/// The maximum number of these characters in the description of a fault.
const FAULT: usize = 100;
/// The maximum number of characters that an error quotes from an error message of the server, the connection or the
/// stream parser.
const MESSAGE: usize = 1000;

/// The types and codes of errors that are retryable even without a status. Some gateways pass on names of other
/// protocols: of Anthropic (<https://docs.claude.com/en/api/errors>) and of Google
/// (<https://cloud.google.com/apis/design/errors>).
const TRANSIENT: [&str; 12] = [
    "server_error",
    "internal_server_error",
    "InternalServerError",
    "overloaded_error",
    "rate_limit_error",
    "rate_limit_exceeded",
    "timeout_error",
    "unavailable_error",
    "DEADLINE_EXCEEDED",
    "INTERNAL",
    "RESOURCE_EXHAUSTED",
    "UNAVAILABLE",
];

/// The cause of an error of [`OpenAi`](crate::OpenAi). The `Display` output of the cause names only the kind, because
/// the error already contains the message.
#[derive(Clone, Debug, PartialEq, Eq, ThisError)]
#[error("server error of the kind `{}`", kind.as_str())]
#[non_exhaustive]
pub struct ServerError {
    /// The kind of the error.
    pub kind: ServerErrorKind,
    /// The HTTP status of the failure, if the server sent one.
    pub status: Option<u16>,
    /// The server's own message, or details of the failure; empty if there are none.
    pub message: String,
    /// The headers of a redirect or of a response with an error status, with names in lower case. Empty for other
    /// errors.
    pub headers: BTreeMap<String, String>,
}

/// The kind of a [`ServerError`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum ServerErrorKind {
    /// The server could not be reached, or the connection broke.
    Connection,
    /// The server did not answer in time, or paused for too long during a reply.
    Timeout,
    /// The server answered with an error status, or with an error instead of a reply.
    Status,
    /// The server answered with a redirect, which is not followed.
    Redirect,
    /// The reply ended before it was complete.
    Incomplete,
    /// The reply, or a chunk of it, does not match the protocol.
    Malformed,
    /// The reply is larger than [`max_reply_bytes`](crate::OpenAiBuilder::max_reply_bytes).
    TooLarge,
}

impl ServerErrorKind {
    /// Returns the name of the kind, as in the error's detail `kind`.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Connection => "connection",
            Self::Timeout => "timeout",
            Self::Status => "status",
            Self::Redirect => "redirect",
            Self::Incomplete => "incomplete",
            Self::Malformed => "malformed",
            Self::TooLarge => "too_large",
        }
    }
}

/// The name and the address of a server for errors, and the secrets that no error may contain.
pub(super) struct Server {
    pub(super) provider: String,
    /// The base URL without user, password and query.
    pub(super) address: String,
    /// The proxy through which the server is reached, without user and password.
    pub(super) proxy: Option<String>,
    /// The longest secret comes first, because a secret may be part of a longer secret.
    pub(super) secrets: Vec<String>,
}

impl Server {
    /// Replaces each secret in a text from the server with `…`. Returns `None` if the text also contains a secret in an
    /// encoded form, which is not replaced, because it could be encoded in a way that hides its end.
    fn scrub(&self, text: &str) -> Option<String> {
        let scrubbed = self.secrets.iter().fold(text.to_owned(), |text, secret| text.replace(secret.as_str(), "…"));
        // The secret may look like an encoding itself, so both are decoded.
        let plain = decoded(&scrubbed);
        let is_hidden = self.secrets.iter().any(|secret| plain.contains(&*decoded(secret)) || plain.contains(secret));
        (!is_hidden).then_some(scrubbed)
    }

    /// Returns the headers to report, with names in lower case and without secrets.
    pub(super) fn reported(&self, headers: &HeaderMap) -> BTreeMap<String, String> {
        let mut reported = BTreeMap::<String, String>::new();
        for (name, value) in headers {
            let text = String::from_utf8_lossy(value.as_bytes());
            let value = self.scrub(&text).filter(|_| name != SET_COOKIE).unwrap_or_else(|| "…".to_owned());
            // A header may occur several times. Its values are joined with commas.
            reported
                .entry(name.as_str().to_owned())
                .and_modify(|values| *values = format!("{values}, {value}"))
                .or_insert(value);
        }
        reported
    }

    /// Prepares a text from the server for an error: replaces secrets, joins lines, escapes what cannot be printed, and
    /// truncates the text.
    fn quote(&self, text: &str, characters: usize) -> String {
        // Secrets are replaced before the text is truncated, because a truncated secret would not be found.
        let Some(scrubbed) = self.scrub(text) else {
            return "(not quoted, because the text contains the key in an encoded form)".to_owned();
        };
        let mut line = String::new();
        for char in scrubbed.split_whitespace().collect::<Vec<_>>().join(" ").chars() {
            if is_printable(char) {
                line.push(char);
            } else {
                line.extend(char.escape_unicode());
            }
        }
        match line.char_indices().nth(characters) {
            Some((end, _)) => format!("{}…", &line[..end]),
            None => line,
        }
    }

    /// Makes an error. `what` names the failure. `message` is a text that [`quote`](Self::quote) returned, or empty.
    fn error(&self, kind: ServerErrorKind, status: Option<StatusCode>, what: &str, message: String) -> Error {
        let status = status.map(|status| status.as_u16());
        self.error_of(what, ServerError { kind, status, message, headers: BTreeMap::new() })
    }

    fn error_of(&self, what: &str, cause: ServerError) -> Error {
        let ServerError { kind, status, message, .. } = &cause;
        let text = if message.is_empty() { what.to_owned() } else { format!("{what}: {message}") };
        let is_retryable = match kind {
            ServerErrorKind::Connection | ServerErrorKind::Timeout | ServerErrorKind::Incomplete => true,
            ServerErrorKind::Status => status.is_some_and(|status| matches!(status, 408 | 409 | 429 | 500..=599)),
            ServerErrorKind::Redirect | ServerErrorKind::Malformed | ServerErrorKind::TooLarge => false,
        };
        let error = Error::new(format!("`{}` at {} {text}", self.provider, self.address))
            .detail("kind", kind.as_str())
            .retryable(is_retryable);
        let error = match *status {
            Some(status) => error.detail("status", status),
            None => error,
        };
        error.caused_by(cause)
    }

    /// Makes the error for a failed connection. The client's error contains the URL with its query, so the URL is
    /// removed.
    pub(super) fn disconnected(&self, error: reqwest::Error) -> Error {
        if error.is_timeout() && error.is_connect() {
            return self.timed_out(&format!("did not accept a connection in time{}", self.through()));
        }
        let what = if error.is_connect() {
            format!("cannot be reached{}", self.through())
        } else {
            "closed the connection".to_owned()
        };
        let causes = self.quote(&causes(&error.without_url()), MESSAGE);
        self.error(ServerErrorKind::Connection, None, &what, causes)
    }

    /// Returns the words of an error that name the proxy.
    fn through(&self) -> String {
        let named = |proxy| format!(" through the proxy {proxy}, which the environment sets (see `NO_PROXY`)");
        self.proxy.as_ref().map(named).unwrap_or_default()
    }

    pub(super) fn timed_out(&self, what: &str) -> Error {
        self.error(ServerErrorKind::Timeout, None, what, String::new())
    }

    pub(super) fn too_large(&self, max_bytes: usize) -> Error {
        let what = format!("sent a reply of more than {max_bytes} bytes");
        self.error(ServerErrorKind::TooLarge, None, &what, String::new())
    }

    /// Makes the error for bytes that are not a stream of events.
    pub(super) fn unreadable(&self, fault: &str) -> Error {
        let fault = self.quote(fault, MESSAGE);
        self.error(ServerErrorKind::Malformed, None, "sent a stream that cannot be read", fault)
    }

    /// Makes the error for a stream without an end. `ignored` is a text that is no part of a reply, or empty.
    pub(super) fn incomplete(&self, ignored: &str) -> Error {
        let what = "ended the stream without `[DONE]` and without a finish reason";
        self.error(ServerErrorKind::Incomplete, None, what, self.quote(ignored, QUOTED))
    }

    /// Makes the error for a reply that cannot be read because it is compressed.
    pub(super) fn compressed(&self, name: &str) -> Error {
        let what = format!(
            "sent a reply that is compressed with `{name}`, although the request asks for no compression: turn it off in the \
             server, or in a proxy in front of it"
        );
        self.error(ServerErrorKind::Malformed, None, &what, String::new())
    }

    /// Makes the error for a text that is not JSON, or whose JSON does not fit the protocol. If the text was cut off,
    /// the error is retryable, because the next reply may be complete.
    pub(super) fn malformed(&self, what: &str, fault: &serde_json::Error, text: &str, is_cut: bool) -> Error {
        let kind = if is_cut || fault.is_eof() { ServerErrorKind::Incomplete } else { ServerErrorKind::Malformed };
        // The fault may quote a secret from the text, so secrets are replaced in the fault too.
        let fault = self.quote(&fault.to_string(), FAULT);
        let text = self.quote(text, QUOTED.saturating_sub(fault.chars().count()));
        let what = format!("sent {what} that does not match the protocol ({fault})");
        self.error(kind, None, &what, text)
    }

    /// Converts an error that a server sent instead of a reply or a chunk.
    pub(super) fn refused(&self, error: &Value) -> Error {
        // The argument is the error itself, or an object with the error as a field. The status and the code may stand in
        // either.
        let inner = error.get("error").filter(|inner| inner.is_object()).unwrap_or(error);
        let fields = ["code", "status", "status_code", "type"].into_iter();
        let fields = fields.flat_map(|name| [&inner[name], &error[name]]);
        let status = fields.clone().find_map(|field| {
            let number = field.as_u64().or_else(|| field.as_str()?.parse().ok());
            StatusCode::from_u16(u16::try_from(number?).ok()?).ok()
        });
        let message = match message_of(error) {
            Some(message) => self.quote(message, MESSAGE),
            None => self.quote(&error.to_string(), QUOTED),
        };
        let refused = self.error(ServerErrorKind::Status, status, "answered with an error", message);
        let mut names = fields.filter_map(Value::as_str);
        if status.is_none() && names.any(|name| TRANSIENT.contains(&name)) { refused.retryable(true) } else { refused }
    }

    /// Makes the error for a redirect or for a response with an error status.
    pub(super) fn status(&self, status: StatusCode, headers: &HeaderMap, body: &[u8]) -> Error {
        let text = String::from_utf8_lossy(body);
        if status.is_redirection() {
            let to = headers.get(LOCATION).and_then(|to| to.to_str().ok()).unwrap_or("no address");
            let what =
                format!("answered {status}, and redirects are not followed: set the base URL to the new address");
            let kind = ServerErrorKind::Redirect;
            let status = Some(status.as_u16());
            let message = self.quote(to, QUOTED);
            let headers = self.reported(headers);
            return self.error_of(&what, ServerError { kind, status, message, headers });
        }
        let compression = compression(headers, body);
        let json: Option<Value> = serde_json::from_str(&text).ok();
        let message = match json.as_ref().and_then(message_of) {
            Some(message) => self.quote(message, MESSAGE),
            None if compression.is_some() => String::new(),
            None => self.quote(&text, QUOTED),
        };
        let is_html = headers.get(CONTENT_TYPE).is_some_and(|value| value.as_bytes().starts_with(b"text/html"));
        let what = match compression {
            Some(name) => format!("answered {status} with a text that is compressed with `{name}`"),
            None if is_html => format!("answered {status} with an HTML page"),
            None => format!("answered {status}"),
        };
        let kind = ServerErrorKind::Status;
        let status = Some(status.as_u16());
        let error = self.error_of(&what, ServerError { kind, status, message, headers: self.reported(headers) });
        match retry_after::milliseconds(headers, SystemTime::now()) {
            Some(time) => error.detail("retry_after_ms", time),
            None => error,
        }
    }
}

/// Returns the message in a server's error. Servers send the message as a string, or in a field `error`, `message`,
/// `detail` or `msg`, possibly inside other fields or lists.
pub(super) fn message_of(error: &Value) -> Option<&str> {
    match error {
        Value::String(text) => Some(text),
        Value::Array(list) => message_of(list.first()?),
        Value::Object(fields) => {
            ["error", "message", "detail", "msg"].iter().find_map(|name| message_of(fields.get(*name)?))
        }
        _ => None,
    }
}

/// Returns the compression of a body, if it has one. The request asks for none, because a server or proxy that compresses
/// a stream keeps its pieces back until it has a block of them.
///
/// Some gateways compress anyway (<https://github.com/Anionex/agent-vision-toolkit/pull/36>), and some do not say so
/// (<https://github.com/Pasta-Devs/Marinara-Engine/pull/801>). A text never begins with the first byte of `gzip`, so this
/// byte decides, and not the label.
pub(super) fn compression(headers: &HeaderMap, body: &[u8]) -> Option<&'static str> {
    if body.first() == Some(&0x1f) {
        return Some("gzip");
    }
    let label = headers.get(CONTENT_ENCODING)?.as_bytes().trim_ascii();
    ["br", "zstd", "deflate", "compress"].into_iter().find(|name| label.eq_ignore_ascii_case(name.as_bytes()))
}

/// Returns `false` for a character that controls a terminal, or the direction of a text.
fn is_printable(char: char) -> bool {
    let is_format = matches!(char, '\u{200b}' | '\u{200e}' | '\u{200f}' | '\u{2028}'..='\u{202e}' | '\u{2060}'..='\u{2069}' | '\u{feff}');
    !char.is_control() && !is_format
}

/// Returns the texts of an error and its causes. The client's error alone is often just "error sending request".
fn causes(error: &dyn std::error::Error) -> String {
    let causes = std::iter::successors(Some(error), |error| error.source());
    causes.map(ToString::to_string).collect::<Vec<_>>().join(": ")
}
