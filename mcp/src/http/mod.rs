//! Servers over HTTP.

mod builder;
pub(crate) mod pool;

use std::collections::HashMap;
use std::error::Error as StdError;
use std::sync::Arc;

use parking_lot::Mutex;
use reqwest::header::{HeaderName, HeaderValue};
use rmcp::transport::DynamicTransportError;
use rmcp::transport::streamable_http_client::{
    StreamableHttpClientTransport, StreamableHttpClientTransportConfig, StreamableHttpError,
};

pub use self::builder::Http;
use crate::connection::signals::Signals;
use crate::error::Fault;
use crate::server::Setup;
use crate::tools::list::ToolList;

/// The headers of a connection, which belongs to exactly these values.
pub(crate) type Headers = Vec<(HeaderName, HeaderValue)>;

/// The bytes of an error's body that are read.
const MAX_ERROR: usize = 4 << 10;

/// The address of a server, and the headers of one connection.
pub(crate) struct Endpoint {
    client: reqwest::Client,
    url: Arc<str>,
    headers: Headers,
    /// A list that the server has declared public, for the connections of all users.
    public: Arc<Mutex<Option<Arc<ToolList>>>>,
}

impl Endpoint {
    /// Makes a transport. Nothing is sent yet.
    pub(crate) fn open(&self, setup: &Setup) -> StreamableHttpClientTransport<reqwest::Client> {
        let headers: HashMap<_, _> = self.headers.iter().cloned().collect();
        let config = StreamableHttpClientTransportConfig::with_uri(Arc::clone(&self.url))
            .custom_headers(headers)
            .max_concurrent_requests(64)
            .max_sse_event_size(setup.limits.message_bytes)
            .max_json_response_size(setup.limits.message_bytes)
            .max_error_response_size(MAX_ERROR);
        StreamableHttpClientTransport::with_client(self.client.clone(), config)
    }

    /// Returns the values that no error and no event may have.
    pub(crate) fn secrets(&self) -> Vec<String> {
        let values = self.headers.iter().filter_map(|(_, value)| value.to_str().ok());
        values.flat_map(|value| value.split_whitespace().filter(|part| part.len() > 5)).map(str::to_owned).collect()
    }

    /// Returns the list that all users may see, if it is fresh.
    pub(crate) fn public(&self) -> Option<Arc<ToolList>> {
        self.public.lock().as_ref().filter(|list| list.is_fresh()).map(Arc::clone)
    }

    pub(crate) fn share(&self, list: &Arc<ToolList>) {
        if list.is_shareable() {
            *self.public.lock() = Some(Arc::clone(list));
        }
    }
}

/// Returns the fault of a message that could not be sent or answered.
pub(crate) fn fault(error: &DynamicTransportError, signals: &Signals) -> Fault {
    let Some(error) = error.error.downcast_ref::<StreamableHttpError<reqwest::Error>>() else {
        return Fault::Unreachable(signals.quoted(&error.error.to_string()));
    };
    match error {
        StreamableHttpError::AuthRequired(required) => {
            Fault::Unauthorized { status: 401, challenge: Some(signals.quoted(&required.www_authenticate_header)) }
        }
        StreamableHttpError::InsufficientScope(scope) => {
            Fault::Unauthorized { status: 403, challenge: Some(signals.quoted(&scope.www_authenticate_header)) }
        }
        StreamableHttpError::HttpStatus(status) => Fault::Status { status: status.status },
        StreamableHttpError::ResponseBodyTooLarge { max_size } => Fault::TooLong { limit: *max_size },
        // The text of this error has the address, whose query may have a key.
        StreamableHttpError::Client(error) => match error.status() {
            Some(status) => of_status(status.as_u16(), "", signals),
            None => Fault::Unreachable(signals.quoted(&innermost(error))),
        },
        StreamableHttpError::UnexpectedServerResponse(text) => {
            let status = text.strip_prefix("HTTP ").and_then(|text| text.get(..3)?.parse().ok());
            status.map_or_else(|| Fault::Unreachable(signals.quoted(text)), |status| of_status(status, text, signals))
        }
        error => Fault::Unreachable(signals.quoted(&error.to_string())),
    }
}

fn of_status(status: u16, text: &str, signals: &Signals) -> Fault {
    match status {
        401 | 403 => Fault::Unauthorized { status, challenge: None },
        429 | 500..=599 => Fault::Status { status },
        _ => Fault::Unreachable(if text.is_empty() { format!("the status is {status}") } else { signals.quoted(text) }),
    }
}

fn innermost(error: &dyn StdError) -> String {
    let mut innermost = error;
    while let Some(source) = innermost.source() {
        innermost = source;
    }
    innermost.to_string()
}
