//! The right to read: the host of each request, and the token of a request for records.
//!
//! The files of the page need no token: they are the same for every recording. The page takes the token from the
//! fragment of its address, which no browser sends, and sends it as a header. A cookie would not do, because browsers
//! send the cookies of a host to all of its ports.

use std::net::IpAddr;
use std::sync::Arc;

use axum::extract::{Request, State};
use axum::http::header::{
    AUTHORIZATION, CACHE_CONTROL, CONTENT_SECURITY_POLICY, HOST, REFERRER_POLICY, X_CONTENT_TYPE_OPTIONS,
};
use axum::http::uri::Authority;
use axum::http::{HeaderMap, HeaderName, HeaderValue, StatusCode};
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};

use crate::connections::Connection;

/// The page loads only its own files, and no other site may show it in a frame.
const POLICY: &str = "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; img-src data:; \
                      base-uri 'none'; form-action 'none'; frame-ancestors 'none'";

const HEADERS: [(HeaderName, &str); 5] = [
    (CONTENT_SECURITY_POLICY, POLICY),
    (X_CONTENT_TYPE_OPTIONS, "nosniff"),
    (REFERRER_POLICY, "no-referrer"),
    (CACHE_CONTROL, "no-store"),
    (HeaderName::from_static("cross-origin-resource-policy"), "same-origin"),
];

/// The token of a server.
#[derive(Clone)]
pub(crate) struct Token(pub(crate) Arc<str>);

impl Token {
    /// Returns `true` if a request has the token, as `Authorization: Bearer <token>`.
    fn is_in(&self, headers: &HeaderMap) -> bool {
        let mut values = headers.get_all(AUTHORIZATION).iter();
        // Two headers could be read differently elsewhere.
        let (Some(value), None) = (values.next(), values.next()) else { return false };
        value.to_str().ok().and_then(|value| value.strip_prefix("Bearer ")).is_some_and(|guess| self.is(guess))
    }

    /// Compares without stopping at the first difference, so that the time does not tell how much of a guess was right.
    fn is(&self, guess: &str) -> bool {
        let differences = self.0.bytes().zip(guess.bytes()).fold(0, |all, (a, b)| all | (a ^ b));
        self.0.len() == guess.len() && differences == 0
    }
}

/// Lets a request for records through if it has the token.
pub(crate) async fn check_token(State(token): State<Token>, request: Request, next: Next) -> Response {
    if !token.is_in(request.headers()) {
        let text = "the token is missing or wrong; open the address that was printed when the server started";
        return (StatusCode::UNAUTHORIZED, text).into_response();
    }
    if let Some(connection) = request.extensions().get::<Connection>() {
        connection.admit();
    }
    next.run(request).await
}

/// Lets a request through if its host is right, and adds the headers of every answer.
pub(crate) async fn check_host(request: Request, next: Next) -> Response {
    let host = request.headers().get(HOST).and_then(|host| host.to_str().ok()).unwrap_or_default();
    let mut response = if is_address(host) {
        next.run(request).await
    } else {
        let text =
            format!("the host `{host}` is neither an IP address nor `localhost`; open the address that was printed");
        (StatusCode::FORBIDDEN, text).into_response()
    };
    let headers = HEADERS.map(|(name, value)| (name, HeaderValue::from_static(value)));
    response.headers_mut().extend(headers);
    response
}

/// Returns `true` for an IP address or `localhost`, with or without a port. A page of another site that has resolved its
/// own name to this address sends that name.
fn is_address(host: &str) -> bool {
    let Ok(authority) = host.parse::<Authority>() else { return false };
    let name = authority.host();
    let name = name.strip_prefix('[').and_then(|name| name.strip_suffix(']')).unwrap_or(name);
    name.eq_ignore_ascii_case("localhost") || name.parse::<IpAddr>().is_ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_addresses_and_localhost_are_hosts_of_the_page() {
        for host in ["127.0.0.1", "127.0.0.1:80", "localhost:1", "LOCALHOST", "[::1]:40123", "192.168.1.7:9"] {
            assert!(is_address(host), "{host}");
        }
        for host in ["", "evil.example", "evil.example:80", "127.0.0.1.evil.example", "localhost.evil.example", "a b"] {
            assert!(!is_address(host), "{host}");
        }
    }
}
