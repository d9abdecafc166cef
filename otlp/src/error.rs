//! Why spans cannot be exported.

use thiserror::Error;

/// The exporter cannot be made from its settings.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum OtlpError {
    /// The endpoint is no HTTP URL. The error quotes neither its password nor its query.
    #[error("the endpoint `{url}` is no HTTP URL ({reason}): give an address such as `http://127.0.0.1:4318`")]
    Endpoint {
        /// The text, without a password and a query.
        url: String,
        /// The reason.
        reason: String,
    },
    /// An environment variable has a value that cannot be used.
    #[error("the environment variable `{name}` is `{value}`: {expected}")]
    Variable {
        /// The name of the variable.
        name: &'static str,
        /// The value; `…` if it may contain a secret.
        value: String,
        /// The values that can be used.
        expected: &'static str,
    },
    /// A header has a name or a value that HTTP does not allow. The error does not quote the value, which may be a
    /// secret.
    #[error("the header `{0}` has characters that are not allowed in HTTP, such as a line break")]
    Header(String),
    /// TLS cannot be set up, for example because the system's certificates cannot be read.
    #[error("TLS cannot be set up")]
    Tls(#[from] rustls::Error),
    /// The HTTP client cannot be built.
    #[error("the HTTP client cannot be built")]
    Client(#[source] reqwest::Error),
}
