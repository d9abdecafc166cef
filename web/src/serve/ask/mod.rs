//! Requests of pages: what a body asks for. From it come the last message of the user and answers to questions, and
//! nothing else: the history is the session.

mod ag_ui;
mod message;
mod ui_messages;

use std::sync::Arc;
use std::time::Duration;

use axum::body::{Body, to_bytes};
use axum::http::header::{CONTENT_LENGTH, CONTENT_TYPE};
use axum::http::{HeaderMap, StatusCode};
use emitree_agent::Message;
use serde_json::Value;
use tokio::time::timeout;

use crate::encode::Protocol;
use crate::serve::failure::Refusal;

/// The largest body of a request.
const MAX_BYTES: usize = 1024 * 1024;
/// The time in which a body has to arrive.
const TIME: Duration = Duration::from_secs(30);

/// A request of a page.
#[derive(Debug)]
pub(crate) struct Asked {
    pub(crate) thread: String,
    /// The id of the run, if the page has chosen one.
    pub(crate) run: Option<Arc<str>>,
    pub(crate) asks: Asks,
}

#[derive(Debug)]
pub(crate) enum Asks {
    /// A message of the user, with its id on the page.
    Message { id: Option<Arc<str>>, message: Message },
    /// Answers to questions.
    Answers {
        answers: Vec<(String, Reply)>,
        /// `true` if the request has to answer all open questions.
        are_all: bool,
        /// The message that the page goes on with, and the calls that it shows.
        continues: Option<Continued>,
    },
}

/// The reply to a question.
#[derive(Debug)]
pub(crate) enum Reply {
    Value(Value),
    Cancelled,
}

/// The message of the page that a run goes on with.
#[derive(Debug)]
pub(crate) struct Continued {
    pub(crate) id: Arc<str>,
    pub(crate) calls: Vec<String>,
}

impl Asked {
    /// Reads the body of a request.
    pub(crate) async fn read(protocol: Protocol, headers: &HeaderMap, body: Body) -> Result<Self, Refusal> {
        // A page of another site can send other types without asking the browser.
        let media_type = headers.get(CONTENT_TYPE).and_then(|value| value.to_str().ok()).unwrap_or_default();
        if media_type.split(';').next().map(str::trim) != Some("application/json") {
            let text = format!("the content type is {media_type:?}: send JSON as `application/json`");
            return Err(Refusal::new(StatusCode::UNSUPPORTED_MEDIA_TYPE, text));
        }
        let body: Value = serde_json::from_slice(&bytes_of(headers, body).await?)
            .map_err(|error| Refusal::bad(format!("the body is not JSON: {error}")))?;
        match protocol {
            Protocol::AgUi => ag_ui::read(&body),
            Protocol::UiMessages => ui_messages::read(&body),
        }
    }
}

async fn bytes_of(headers: &HeaderMap, body: Body) -> Result<axum::body::Bytes, Refusal> {
    let too_large = || {
        let text = format!("the body is too large: at most {MAX_BYTES} bytes are allowed");
        Refusal::new(StatusCode::PAYLOAD_TOO_LARGE, text)
    };
    let length = headers.get(CONTENT_LENGTH).and_then(|length| length.to_str().ok()?.parse::<usize>().ok());
    if length.is_some_and(|length| length > MAX_BYTES) {
        return Err(too_large());
    }
    match timeout(TIME, to_bytes(body, MAX_BYTES)).await {
        Ok(Ok(bytes)) => Ok(bytes),
        // The limit is the only error besides a connection that is closed.
        Ok(Err(_)) => Err(too_large()),
        Err(_) => Err(Refusal::new(StatusCode::REQUEST_TIMEOUT, format!("the body has not arrived in {TIME:?}"))),
    }
}

/// Returns a text field of a body.
fn text_of<'a>(value: &'a Value, field: &str) -> Result<&'a str, Refusal> {
    value[field].as_str().ok_or_else(|| Refusal::bad(format!("`{field}` is {}, and not a text", value[field])))
}

/// Returns the messages of a body.
fn messages_of(body: &Value) -> Result<&[Value], Refusal> {
    let messages = body["messages"].as_array();
    messages.map(Vec::as_slice).ok_or_else(|| Refusal::bad("`messages` is not a list"))
}

/// Returns the refusal of a body that asks for nothing.
fn asks_nothing() -> Refusal {
    Refusal::new(
        StatusCode::UNPROCESSABLE_ENTITY,
        "the request asks for nothing: its last message is not one of the user, and it answers no question",
    )
}
