//! A reply in OpenAI's protocol, whole or as a stream of chunks.

use std::collections::VecDeque;
use std::fmt;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use bytes::Bytes;
use emitree_runtime::{Error, Result};
use futures_core::Stream;
use futures_util::stream::{self, StreamExt, TryStreamExt};
use reqwest::header::CONTENT_TYPE;
use serde::de::value::SeqAccessDeserializer;
use serde::de::{SeqAccess, Visitor};
use serde::{Deserialize, Deserializer};
use serde_json::Value;
use sse_stream::{Error as EventError, Sse, SseByteStream};
use tokio::time::timeout;

use crate::openai::Shared;
use crate::openai::calls::{Call, Calls};
use crate::openai::failure::{Server, ServerError, ServerErrorKind, message_of};
use crate::openai::frames::{Frames, Seen, is_framed};
use crate::openai::scalar;
use crate::openai::signature::{Peer, Received};
use crate::openai::surrogates::Halves;
use crate::openai::transport::{BytesError, Incoming};
use crate::{Delta, DeltaStream, FinishReason, Usage};

/// The time to wait after `[DONE]` for the end of the response, so that the connection can be reused.
const LINGER: Duration = Duration::from_millis(50);

/// A whole reply, or a chunk of a stream.
#[derive(Deserialize)]
struct Reply {
    #[serde(default, deserialize_with = "scalar::text")]
    id: Option<String>,
    #[serde(default, deserialize_with = "scalar::text")]
    model: Option<String>,
    choices: Option<Vec<Choice>>,
    /// The token counts. They are read apart, because unreadable counts must not fail a reply.
    usage: Option<Value>,
    /// An error instead of a reply. Some servers send the error with a success status.
    error: Option<Value>,
}

/// One of the answers of a reply. Its contents are boxed, because serde allocates memory for several choices at once.
#[derive(Deserialize)]
struct Choice {
    index: Option<u64>,
    /// The message of a whole reply.
    message: Option<Box<Content>>,
    /// The part of the message that a chunk adds.
    delta: Option<Box<Content>>,
    finish_reason: Option<String>,
    /// The error that ended this answer.
    error: Option<Value>,
}

#[derive(Deserialize)]
struct Content {
    content: Option<Text>,
    /// The reasoning. Servers send it in this field, in `reasoning`, or in both.
    reasoning_content: Option<String>,
    reasoning: Option<String>,
    refusal: Option<String>,
    tool_calls: Option<Vec<Call>>,
    /// Data that the server needs back with the message.
    reasoning_details: Option<Value>,
    extra_content: Option<Value>,
}

/// A string, or a list of parts that may contain text.
enum Text {
    Whole(String),
    Parts(Vec<Value>),
}

impl<'de> Deserialize<'de> for Text {
    // An untagged enum would first copy each text into a buffer.
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(TextVisitor)
    }
}

struct TextVisitor;

impl<'de> Visitor<'de> for TextVisitor {
    type Value = Text;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a string or a list of parts")
    }

    fn visit_str<E: serde::de::Error>(self, text: &str) -> Result<Text, E> {
        Ok(Text::Whole(text.to_owned()))
    }

    fn visit_seq<A: SeqAccess<'de>>(self, parts: A) -> Result<Text, A::Error> {
        Vec::deserialize(SeqAccessDeserializer::new(parts)).map(Text::Parts)
    }
}

#[derive(Deserialize)]
struct Tokens {
    prompt_tokens: Option<u64>,
    completion_tokens: Option<u64>,
    prompt_tokens_details: Option<Details>,
    completion_tokens_details: Option<Details>,
}

#[derive(Default, Deserialize)]
struct Details {
    cached_tokens: Option<u64>,
    reasoning_tokens: Option<u64>,
}

/// Returns the pieces of a response: its headers, warnings about the request, then the pieces of the reply. The body is
/// read when the stream is polled, so a reply that breaks off has begun, and is charged (A9).
pub(super) fn deltas(
    incoming: Incoming,
    asked_to_stream: bool,
    warnings: Vec<String>,
    peer: Peer,
    shared: &Arc<Shared>,
) -> DeltaStream {
    let shared = Arc::clone(shared);
    let read = async move { read(incoming, asked_to_stream, warnings, peer, &shared).await };
    Box::pin(stream::once(read).try_flatten())
}

async fn read(
    incoming: Incoming,
    asked_to_stream: bool,
    warnings: Vec<String>,
    peer: Peer,
    shared: &Shared,
) -> Result<DeltaStream> {
    let server = Arc::clone(&shared.server);
    let headers = incoming.response.headers();
    let label = headers.get(CONTENT_TYPE).map(|value| String::from_utf8_lossy(value.as_bytes()).to_ascii_lowercase());
    let mut reply = Assembly::default();
    reply.pending.push_back(Delta::Headers(server.reported(headers)));
    reply.pending.extend(warnings.into_iter().map(Delta::Warning));
    let mut bytes = Box::pin(incoming.bytes(shared));
    let (head, streams) = if label.as_ref().is_some_and(|label| label.starts_with("text/event-stream")) {
        (Bytes::new(), true)
    } else {
        // Some servers return a whole reply although a stream was requested, and some label a stream as something else,
        // or not at all. Lines of JSON are framed as events below.
        let head = begin(&mut bytes).await?;
        let may_stream = match &label {
            Some(label) => label.contains("ndjson") || label.contains("jsonl"),
            None => asked_to_stream,
        };
        let streams = may_stream || is_framed(&head) == Some(true);
        (Bytes::from(head), streams)
    };
    let bytes = stream::iter([Ok(head)]).chain(bytes);
    if !streams {
        reply.receive_whole(&collect(bytes).await?, &server)?;
        reply.sign(&peer);
        return Ok(Box::pin(stream::iter(reply.pending.into_iter().map(Ok))));
    }
    let seen = Arc::new(Seen::default());
    let (framed, ended) = (Arc::clone(&seen), Arc::clone(&seen));
    let mut frames = Frames::default();
    let bytes = bytes.map(move |piece| piece.map(|piece| frames.frame(piece, &framed)));
    // The parser drops an event that is not followed by an empty line. Some servers leave out the last empty line, so
    // it is added here.
    let bytes = bytes.chain(stream::once(async move {
        ended.has_ended.store(true, Ordering::Relaxed);
        Ok(Bytes::from_static(b"\n\n"))
    }));
    let events = Box::pin(SseByteStream::new(Box::pin(bytes)));
    let chunks = Chunks { events, seen, reply, server, peer, is_done: false };
    // The state is boxed, because it is moved for each piece.
    Ok(Box::pin(stream::try_unfold(Box::new(chunks), |mut chunks| async {
        let delta = chunks.next().await?;
        Ok(delta.map(|delta| (delta, chunks)))
    })))
}

/// Reads the beginning of a body, up to the bytes that show whether it is a stream of events.
async fn begin(bytes: &mut (impl Stream<Item = Result<Bytes, BytesError>> + Unpin)) -> Result<Vec<u8>> {
    let mut head = Vec::new();
    while is_framed(&head).is_none()
        && let Some(piece) = bytes.next().await
    {
        head.extend_from_slice(&piece.map_err(|error| error.0)?);
        // Blank space has no meaning here, and some servers keep a connection open with it. It is left out, so that it is
        // read once.
        if head.trim_ascii_start().is_empty() {
            head.clear();
        }
    }
    Ok(head)
}

async fn collect(bytes: impl Stream<Item = Result<Bytes, BytesError>>) -> Result<Vec<u8>> {
    let mut bytes = std::pin::pin!(bytes);
    let mut body = Vec::new();
    while let Some(piece) = bytes.next().await {
        body.extend_from_slice(&piece.map_err(|error| error.0)?);
    }
    Ok(body)
}

type Events = Pin<Box<dyn Stream<Item = Result<Sse, EventError>> + Send>>;

/// The state of a streamed reply: the events of the server, and the reply that is assembled from them.
struct Chunks {
    events: Events,
    seen: Arc<Seen>,
    reply: Assembly,
    server: Arc<Server>,
    peer: Peer,
    is_done: bool,
}

impl Chunks {
    /// Returns the next piece of the reply, or `None` at its end.
    async fn next(&mut self) -> Result<Option<Delta>> {
        loop {
            if let Some(delta) = self.reply.pending.pop_front() {
                return Ok(Some(delta));
            }
            if self.is_done {
                return Ok(None);
            }
            let received = match self.events.next().await {
                Some(Ok(event)) => self.receive(&event).await,
                Some(Err(error)) => Err(self.broken(error)),
                // Some servers do not send `[DONE]`.
                None if self.reply.is_finished => {
                    self.finish();
                    Ok(())
                }
                None => Err(self.incomplete()),
            };
            match received {
                Ok(()) => {}
                // After the finish reason, the message is complete: only the token counts or `[DONE]` may be missing.
                Err(error) if self.reply.is_finished => {
                    self.finish();
                    let what = if is_cut(&error) { "was cut off" } else { "cannot be read" };
                    let warning =
                        format!("the reply {what} after its finish reason, so token counts may be missing: {error}");
                    self.reply.pending.push_back(Delta::Warning(warning));
                }
                Err(error) => return Err(error),
            }
        }
    }

    async fn receive(&mut self, event: &Sse) -> Result<()> {
        let name = event.event.as_deref().unwrap_or_default();
        let data = event.data.as_deref().unwrap_or_default().trim();
        if data == "[DONE]" {
            self.end().await;
            return Ok(());
        }
        if name == "error" {
            let error = serde_json::from_str(data).unwrap_or_else(|_| data.into());
            return Err(self.server.refused(&error));
        }
        if is_keep_alive(name, data) {
            return Ok(());
        }
        let is_cut = self.seen.has_ended.load(Ordering::Relaxed);
        self.reply.read("a chunk", data, is_cut, &self.server)?;
        if !self.reply.has_choices {
            // Only the first text counts.
            let _ = self.seen.ignored.set(data.to_owned());
        }
        Ok(())
    }

    /// Makes the error for a stream without an end. If it contained no piece of a reply, the error quotes what came.
    fn incomplete(&self) -> Error {
        let ignored = self.seen.ignored.get().filter(|_| !self.reply.has_choices);
        self.server.incomplete(ignored.map_or("", String::as_str))
    }

    /// Converts an error of the event parser into an error of the provider.
    fn broken(&self, error: EventError) -> Error {
        match error {
            EventError::Body(error) => match error.downcast::<BytesError>() {
                Ok(error) => error.0,
                Err(error) => self.server.unreadable(&error.to_string()),
            },
            // An error after the last byte means that the stream ended inside a UTF-8 character.
            _ if self.seen.has_ended.load(Ordering::Relaxed) => self.incomplete(),
            error => self.server.unreadable(&error.to_string()),
        }
    }

    /// Ends the reply. The data that the server needs back is complete only now.
    fn finish(&mut self) {
        self.is_done = true;
        self.reply.sign(&self.peer);
    }

    /// Ends the reply at `[DONE]`. The connection returns to the pool only if the response is read to its end.
    async fn end(&mut self) {
        self.finish();
        let rest = async { while let Some(Ok(_)) = self.events.next().await {} };
        // If the server does not end its response in time, the connection is closed.
        let _ = timeout(LINGER, rest).await;
    }
}

/// Returns `true` if an error means that the stream stopped before its end.
fn is_cut(error: &Error) -> bool {
    use ServerErrorKind::{Connection, Incomplete, Timeout};
    error.find::<ServerError>().is_some_and(|cause| matches!(cause.kind, Connection | Incomplete | Timeout))
}

/// Returns `true` if an event only keeps the connection open. Some gateways send the comments of another server as data
/// (<https://github.com/mnfst/llm-gateway/issues/2053>, <https://github.com/anomalyco/opencode/issues/50871>), and some
/// send an event of their own (<https://github.com/lanqian528/chat2api/pull/25>).
fn is_keep_alive(name: &str, data: &str) -> bool {
    const NAMES: [&str; 5] = ["ping", "[ping]", "keepalive", "keep-alive", "heartbeat"];
    let is_name = |text: &str| NAMES.iter().any(|name| text.eq_ignore_ascii_case(name));
    data.starts_with(':')
        || ["", "\"\"", "null", "OPENROUTER PROCESSING"].contains(&data)
        || is_name(name)
        || is_name(data)
}

/// Returns the error that JSON reports, in any of the forms that servers send with a success status: as a field, as an
/// element of a list (Gemini), or as the object itself (vLLM, `FastAPI`).
fn reported(text: &str) -> Option<Value> {
    let mut value: Value = serde_json::from_str(text).ok()?;
    if let Value::Array(list) = &mut value {
        value = list.first_mut()?.take();
    }
    let is_kind = |name: &str| value[name] == "error";
    if is_error(&value["error"]) || is_kind("object") || is_kind("type") {
        return Some(value);
    }
    let has_message = value.is_object() && value["choices"].is_null() && message_of(&value).is_some();
    if has_message { Some(value) } else { None }
}

/// Returns `true` unless a field for an error only says that there is none.
fn is_error(field: &Value) -> bool {
    match field {
        Value::Null | Value::Bool(false) => false,
        Value::String(text) => !text.is_empty(),
        Value::Array(list) => !list.is_empty(),
        Value::Object(fields) => !fields.is_empty(),
        Value::Bool(true) | Value::Number(_) => true,
    }
}

/// Assembles a reply from its chunks, and keeps the pieces that have not been returned yet.
#[derive(Default)]
struct Assembly {
    pending: VecDeque<Delta>,
    calls: Calls,
    received: Received,
    halves: Halves,
    has_choices: bool,
    is_named: bool,
    is_finished: bool,
    has_other_choices: bool,
    has_unreadable_usage: bool,
}

impl Assembly {
    fn receive_whole(&mut self, body: &[u8], server: &Server) -> Result<()> {
        let text = String::from_utf8_lossy(body);
        // Some servers begin UTF-8 with a mark.
        let text = text.trim_start_matches('\u{feff}');
        self.read("a reply", text, false, server)?;
        // JSON of another protocol must not become an empty answer.
        if !self.has_choices {
            let fault = serde::de::Error::missing_field("choices");
            return Err(server.malformed("a reply", &fault, text, false));
        }
        Ok(())
    }

    /// Reads the JSON of a whole reply or of a chunk. `what` names it in an error.
    fn read(&mut self, what: &str, text: &str, is_cut: bool, server: &Server) -> Result<()> {
        let fault = match serde_json::from_str(text) {
            Ok(reply) => return self.receive(reply, text, server),
            Err(fault) => fault,
        };
        // Half a character makes the text unreadable, so whole texts are not searched for it.
        if let Some(mended) = self.halves.mend(text)
            && let Ok(reply) = serde_json::from_str(&mended)
        {
            return self.receive(reply, &mended, server);
        }
        Err(match reported(text) {
            Some(error) => server.refused(&error),
            None => server.malformed(what, &fault, text, is_cut),
        })
    }

    fn receive(&mut self, reply: Reply, text: &str, server: &Server) -> Result<()> {
        let Reply { id, model, choices, usage, error } = reply;
        let may_be_error = error.is_some() || (choices.is_none() && usage.is_none());
        if may_be_error && let Some(error) = reported(text) {
            return Err(server.refused(&error));
        }
        self.has_choices |= choices.is_some();
        // Each chunk repeats the id and the model, so only the first pair is passed on.
        if !self.is_named && (id.is_some() || model.is_some()) {
            self.is_named = true;
            self.pending.push_back(Delta::Response { id, model });
        }
        for choice in choices.into_iter().flatten() {
            // Only the first answer is used.
            let is_first = choice.index.unwrap_or(0) == 0;
            if let Some(error) = choice.error.as_ref()
                && is_first
                && is_error(error)
            {
                return Err(server.refused(error));
            }
            self.receive_choice(choice);
        }
        if let Some(usage) = usage {
            self.receive_usage(&usage, server);
        }
        Ok(())
    }

    fn receive_usage(&mut self, usage: &Value, server: &Server) {
        match Option::<Tokens>::deserialize(usage) {
            Ok(tokens) => self.pending.extend(tokens.and_then(Tokens::usage).map(Delta::Usage)),
            Err(fault) if !self.has_unreadable_usage => {
                self.has_unreadable_usage = true;
                let error = server.malformed("token counts", &fault, &usage.to_string(), false);
                self.pending.push_back(Delta::Warning(format!("token counts are missing: {error}")));
            }
            // A server may repeat the counts in each chunk, so there is only one warning.
            Err(_) => {}
        }
    }

    fn receive_choice(&mut self, choice: Choice) {
        let Choice { index, message, delta, finish_reason, error: _ } = choice;
        if index.is_some_and(|index| index > 0) {
            if !std::mem::replace(&mut self.has_other_choices, true) {
                let warning = "the server sent several answers: only the first is used".to_owned();
                self.pending.push_back(Delta::Warning(warning));
            }
            return;
        }
        let is_whole = delta.is_none();
        if let Some(mut content) = delta.or(message) {
            let Content { reasoning_details, extra_content, tool_calls, .. } = &mut *content;
            self.received.add(reasoning_details.take(), extra_content.take());
            let tool_calls = tool_calls.take();
            self.receive_texts(*content);
            for (place, call) in tool_calls.into_iter().flatten().enumerate() {
                let delta =
                    if is_whole { self.calls.push_whole(call) } else { self.calls.push_piece(call, place == 0) };
                self.pending.push_back(delta);
            }
        }
        if let Some(reason) = finish_reason.filter(|reason| !reason.is_empty()) {
            self.is_finished = true;
            self.pending.push_back(Delta::Finish(FinishReason::from(reason)));
        }
    }

    fn receive_texts(&mut self, content: Content) {
        let Content { content, reasoning_content, reasoning, refusal, .. } = content;
        let texts = |text: String| (!text.is_empty()).then_some(text);
        let reasoning_content = reasoning_content.and_then(texts);
        if reasoning_content.is_some() {
            self.received.add_reasoning_field();
        }
        let reasoning = reasoning_content.or_else(|| reasoning.and_then(texts));
        if let Some(text) = reasoning {
            self.push(Delta::Reasoning(text));
        }
        match content {
            Some(Text::Whole(text)) if text.is_empty() => {}
            Some(Text::Whole(text)) => self.push(Delta::Text(text)),
            Some(Text::Parts(parts)) => {
                for delta in parts.iter().filter_map(part) {
                    self.push(delta);
                }
            }
            None => {}
        }
        if let Some(refusal) = refusal.and_then(texts) {
            let warning = "the model refused the request: the answer contains its refusal".to_owned();
            self.pending.push_back(Delta::Warning(warning));
            self.push(Delta::Text(refusal));
        }
    }

    /// Appends a piece of text or reasoning.
    fn push(&mut self, delta: Delta) {
        match &delta {
            Delta::Text(text) => self.received.text.add(text),
            Delta::Reasoning(text) => self.received.reasoning.add(text),
            _ => {}
        }
        self.pending.push_back(delta);
    }

    /// Appends the data that the server needs back with its calls and its message.
    fn sign(&mut self, peer: &Peer) {
        let calls = self.calls.with_data();
        self.pending.extend(calls.map(|call| Delta::signature(Some(call.key), peer.sign_call(&call))));
        let message = std::mem::take(&mut self.received).sign(peer);
        self.pending.extend(message.map(|extra| Delta::signature(None, extra)));
    }
}

/// Converts a part of the content into a piece of the reply. A part with a list in the field `thinking` becomes
/// reasoning, and any other part with text becomes text. Returns `None` for a part without text.
fn part(part: &Value) -> Option<Delta> {
    let text = |value: &Value| value.as_str().filter(|text| !text.is_empty()).map(str::to_owned);
    match &part["thinking"] {
        Value::Array(parts) => Some(Delta::Reasoning(parts.iter().filter_map(|part| text(&part["text"])).collect())),
        _ => text(&part["text"]).map(Delta::Text),
    }
}

impl Tokens {
    /// Returns the token counts, or `None` if there are none.
    fn usage(self) -> Option<Usage> {
        let Self { prompt_tokens, completion_tokens, prompt_tokens_details, completion_tokens_details } = self;
        if prompt_tokens.is_none() && completion_tokens.is_none() {
            return None;
        }
        Some(Usage {
            input_tokens: prompt_tokens.unwrap_or(0),
            output_tokens: completion_tokens.unwrap_or(0),
            cached_input_tokens: prompt_tokens_details.and_then(|details| details.cached_tokens).unwrap_or(0),
            reasoning_tokens: completion_tokens_details.and_then(|details| details.reasoning_tokens).unwrap_or(0),
            estimated: false,
        })
    }
}
