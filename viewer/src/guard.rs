//! The right to read: the token, the cookie and the host of a request.

use std::net::IpAddr;

use axum::extract::{Request, State};
use axum::http::header::{
    CACHE_CONTROL, CONTENT_SECURITY_POLICY, COOKIE, HOST, LOCATION, REFERRER_POLICY, SET_COOKIE, X_CONTENT_TYPE_OPTIONS,
};
use axum::http::uri::Authority;
use axum::http::{HeaderMap, HeaderName, HeaderValue, StatusCode};
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};

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

/// The token of a server, and the name of the cookie that it is exchanged for.
#[derive(Clone)]
pub(crate) struct Guard {
    token: String,
    cookie: String,
}

impl Guard {
    /// Makes the guard of a port. Browsers send the cookies of a host to all of its ports, so the cookie's name contains
    /// the port.
    pub(crate) fn new(token: String, port: u16) -> Self {
        Self { token, cookie: format!("emitree_view_{port}") }
    }

    pub(crate) fn token(&self) -> &str {
        &self.token
    }

    /// Compares without stopping at the first difference, so that the time does not tell how much of a guess was right.
    fn is_token(&self, guess: &str) -> bool {
        let differences = self.token.bytes().zip(guess.bytes()).fold(0, |all, (a, b)| all | (a ^ b));
        self.token.len() == guess.len() && differences == 0
    }

    fn has_cookie(&self, headers: &HeaderMap) -> bool {
        let cookies = headers.get_all(COOKIE).iter().filter_map(|cookies| cookies.to_str().ok());
        let mut cookies =
            cookies.flat_map(|cookies| cookies.split(';')).filter_map(|cookie| cookie.trim().split_once('='));
        cookies.any(|(name, value)| name == self.cookie && self.is_token(value))
    }

    /// Exchanges the token of the URL for a cookie.
    fn exchange(&self, path: &str) -> Response {
        let cookie = format!("{}={}; HttpOnly; SameSite=Strict; Path=/", self.cookie, self.token);
        (StatusCode::SEE_OTHER, [(SET_COOKIE, cookie), (LOCATION, path.to_owned())]).into_response()
    }
}

/// Lets a request through if its host and its cookie are right, and adds the headers of every answer.
pub(crate) async fn check(State(guard): State<Guard>, request: Request, next: Next) -> Response {
    let mut response = match refusal(&guard, &request) {
        Some(refusal) => refusal,
        None => next.run(request).await,
    };
    let headers = HEADERS.map(|(name, value)| (name, HeaderValue::from_static(value)));
    response.headers_mut().extend(headers);
    response
}

fn refusal(guard: &Guard, request: &Request) -> Option<Response> {
    let host = request.headers().get(HOST).and_then(|host| host.to_str().ok()).unwrap_or_default();
    if !is_address(host) {
        let text =
            format!("the host `{host}` is neither an IP address nor `localhost`; open the address that was printed");
        return Some((StatusCode::FORBIDDEN, text).into_response());
    }
    let query = request.uri().query().unwrap_or_default();
    match query.split('&').find_map(|pair| pair.strip_prefix("token=")) {
        Some(token) if guard.is_token(token) => Some(guard.exchange(request.uri().path())),
        None if guard.has_cookie(request.headers()) => None,
        _ => {
            let text = "the token is missing or wrong; open the address that was printed when the server started";
            Some((StatusCode::UNAUTHORIZED, text).into_response())
        }
    }
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
