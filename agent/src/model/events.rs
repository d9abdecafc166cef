//! A model's own events.

use std::collections::BTreeMap;
use std::time::Duration;

use emitree_emitter::{Event, EventName};
use emitree_runtime::ErrorReport;
use rust_decimal::Decimal;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json, to_value};

use crate::{ChatOptions, ChatRequest, ChatResponse, Usage};

/// The event `start`: a request is about to be sent. The event is emitted for each attempt.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct ChatStart {
    /// The request. Changes by a listener have no effect, because the guards have already decided on the request.
    pub request: ChatRequest,
    /// The name of the provider.
    #[serde(default)]
    pub provider: String,
    /// The name of the model that is asked: the model of the run, or one of its [alternatives](crate::ChatModel::or).
    #[serde(default)]
    pub model: String,
    /// The host name or the IP address of the server, if the provider states it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub server_address: Option<String>,
    /// The port of the server, if the provider states it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub server_port: Option<u16>,
}

impl Event for ChatStart {
    const NAME: EventName = EventName::new("start");

    fn head(&self) -> Option<Value> {
        let Self { request, provider, model, server_address, server_port } = self;
        let ChatOptions { temperature, max_tokens, .. } = &request.options;
        let options = json!({"temperature": temperature, "max_tokens": max_tokens});
        Some(json!({
            "request": {"options": options},
            "provider": provider,
            "model": model,
            "server_address": server_address,
            "server_port": server_port,
        }))
    }
}

/// The event `new_token`: a piece of a streamed answer has arrived.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct NewToken {
    /// The piece of text. If a listener changes it, the response contains the changed text.
    pub text: String,
    /// `true` if the text is reasoning, and not part of the answer.
    #[serde(default, skip_serializing_if = "crate::message::is_false")]
    pub is_reasoning: bool,
    #[serde(default, skip_serializing_if = "crate::message::is_false")]
    stops: bool,
}

impl NewToken {
    pub(crate) const fn new(text: String, is_reasoning: bool) -> Self {
        Self { text, is_reasoning, stops: false }
    }

    /// Returns the piece of text, or an empty string if the text is reasoning.
    #[must_use]
    pub fn text(&self) -> &str {
        if self.is_reasoning { "" } else { &self.text }
    }

    /// Stops the stream after this token. The response contains the answer so far, including this token, and has the
    /// finish reason [`Stopped`](crate::FinishReason::Stopped). Incomplete tool calls are dropped.
    pub const fn stop(&mut self) {
        self.stops = true;
    }

    pub(crate) const fn stops(&self) -> bool {
        self.stops
    }
}

/// The event `response_headers`: the provider has begun to answer.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct ResponseHeaders {
    /// The headers that the provider reports, with names in lower case.
    pub headers: BTreeMap<String, String>,
    /// The rate limits that the headers report.
    pub rate_limits: RateLimits,
}

impl ResponseHeaders {
    pub(crate) fn new(headers: BTreeMap<String, String>) -> Self {
        let rate_limits = RateLimits::of(&headers);
        Self { headers, rate_limits }
    }
}

/// Rate limits, read from the headers `x-ratelimit-{limit,remaining,reset}-{requests,tokens}` of OpenAI's protocol. If
/// a header is missing or cannot be parsed, its field is `None`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
#[non_exhaustive]
pub struct RateLimits {
    /// The maximum number of requests in a period.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub limit_requests: Option<u64>,
    /// The number of requests that are left.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub remaining_requests: Option<u64>,
    /// The time in milliseconds until all requests are available again.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub reset_requests_ms: Option<u64>,
    /// The maximum number of tokens in a period.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub limit_tokens: Option<u64>,
    /// The number of tokens that are left.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub remaining_tokens: Option<u64>,
    /// The time in milliseconds until all tokens are available again.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub reset_tokens_ms: Option<u64>,
}

impl RateLimits {
    fn of(headers: &BTreeMap<String, String>) -> Self {
        let text = |name: &str| headers.get(&format!("x-ratelimit-{name}")).map(|text| text.trim());
        let number = |name: &str| text(name).and_then(|text| text.parse().ok());
        let time = |name: &str| text(name).and_then(milliseconds);
        Self {
            limit_requests: number("limit-requests"),
            remaining_requests: number("remaining-requests"),
            reset_requests_ms: time("reset-requests"),
            limit_tokens: number("limit-tokens"),
            remaining_tokens: number("remaining-tokens"),
            reset_tokens_ms: time("reset-tokens"),
        }
    }
}

/// Parses a duration in OpenAI's format: `1s`, `6m0s`, `120ms`, `1h2m3.5s`. A number without a unit is in seconds.
fn milliseconds(text: &str) -> Option<u64> {
    let mut rest = text;
    let mut total = 0.0;
    while !rest.is_empty() {
        let digits = rest.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(rest.len());
        let number: f64 = rest[..digits].parse().ok()?;
        let unit = rest[digits..]
            .find(|c: char| c.is_ascii_digit())
            .map_or(&rest[digits..], |end| &rest[digits..digits + end]);
        let seconds = match unit {
            "ms" => 0.001,
            "s" | "" => 1.0,
            "m" => 60.0,
            "h" => 3600.0,
            "d" => 86400.0,
            _ => return None,
        };
        total += number * seconds;
        rest = &rest[digits + unit.len()..];
    }
    let time = Duration::try_from_secs_f64(total).ok().filter(|_| !text.is_empty())?;
    u64::try_from(time.as_millis()).ok()
}

/// The event `usage`: the reply is complete or has failed, and the tokens that the provider reported have been charged.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct UsageReported {
    /// The tokens.
    pub usage: Usage,
    /// The cost of these tokens, if the model has a [price](crate::ChatModel::price).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cost: Option<Decimal>,
    /// The name of the model that used the tokens: the model of the run, or one of its
    /// [alternatives](crate::ChatModel::or).
    #[serde(default)]
    pub model: String,
}

impl Event for UsageReported {
    const NAME: EventName = EventName::new("usage");

    /// Returns the whole event: counts are no values of the work.
    fn head(&self) -> Option<Value> {
        to_value(self).ok()
    }
}

impl UsageReported {
    pub(crate) fn new(usage: Usage, cost: Option<Decimal>, model: &str) -> Self {
        Self { usage, cost, model: model.to_owned() }
    }
}

/// The event `fell_back`: a model has failed, and the next [alternative](crate::ChatModel::or) is about to be asked. It
/// follows `attempt_discarded`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct ModelFellBack {
    /// The name of the model that failed.
    pub from: String,
    /// The name of the model that is asked next.
    pub to: String,
    /// The failure as data.
    pub error: ErrorReport,
}

impl Event for ModelFellBack {
    const NAME: EventName = EventName::new("fell_back");

    fn head(&self) -> Option<Value> {
        Some(json!({"from": self.from, "to": self.to}))
    }
}

impl ModelFellBack {
    pub(crate) fn new(from: &str, to: &str, error: ErrorReport) -> Self {
        Self { from: from.to_owned(), to: to.to_owned(), error }
    }
}

/// The event `success`: an attempt has succeeded.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct ChatSuccess {
    /// The response. A listener may change it.
    pub response: ChatResponse,
}

impl ChatSuccess {
    pub(crate) const fn new(response: ChatResponse) -> Self {
        Self { response }
    }
}

impl Event for ChatSuccess {
    const NAME: EventName = EventName::new("success");

    fn head(&self) -> Option<Value> {
        let ChatResponse { id, model, message, .. } = &self.response;
        let message = json!({"finish_reason": message.finish_reason});
        Some(json!({"response": {"id": id, "model": model, "message": message}}))
    }
}

/// The event `error`: an attempt has failed.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct ChatError {
    /// The error as data.
    pub error: ErrorReport,
}

impl ChatError {
    pub(crate) const fn new(error: ErrorReport) -> Self {
        Self { error }
    }
}

/// The event `finish`: an attempt has ended, after `success` or `error`. An attempt that is dropped before it emits
/// `success` or `error` does not emit `finish` either; its run still emits [`Finish`](emitree_runtime::Finish).
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct ChatFinish {}

macro_rules! named {
    ($($event:ty = $name:literal;)*) => {
        $(impl Event for $event {
            const NAME: EventName = EventName::new($name);
        })*
    };
}

named! {
    NewToken = "new_token";
    ResponseHeaders = "response_headers";
    ChatError = "error";
    ChatFinish = "finish";
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn durations_of_rate_limits_are_read_in_every_form_that_servers_write() {
        let table = [
            ("1s", Some(1000)),
            ("6m0s", Some(360_000)),
            ("120ms", Some(120)),
            ("1h2m3.5s", Some(3_723_500)),
            ("0.25", Some(250)),
            ("", None),
            ("soon", None),
            ("1 s", None),
            ("1e9999s", None),
        ];
        for (text, expected) in table {
            assert_eq!(milliseconds(text), expected, "{text:?}");
        }
    }
}
