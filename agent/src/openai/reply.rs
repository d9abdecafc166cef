//! A reply in OpenAI's protocol, whole or as a stream of chunks.

use std::collections::VecDeque;
use std::fmt;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use bytes::Bytes;
use emitree_runtime::{Error, Result};
use futures_core::Stream;
use futures_util::stream::{self, StreamExt};
use reqwest::header::CONTENT_TYPE;
use serde::de::value::SeqAccessDeserializer;
use serde::de::{SeqAccess, Visitor};
use serde::{Deserialize, Deserializer};
use serde_json::Value;
use sse_stream::{Error as EventError, Sse, SseByteStream};
use tokio::time::timeout;

use crate::openai::Shared;
use crate::openai::calls::{Call, Calls};
use crate::openai::failure::{Server, ServerError, ServerErrorKind};
use crate::openai::signature::{Peer, Received};
use crate::openai::transport::{BytesError, Incoming};
use crate::{Delta, DeltaStream, FinishReason, Usage};

/// The time to wait after `[DONE]` for the end of the response, so that the connection can be reused.
const LINGER: Duration = Duration::from_millis(50);

/// A whole reply, or a chunk of a stream.
#[derive(Deserialize)]
struct Reply {
    id: Option<String>,
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

/// Returns the pieces of a response: its headers, warnings about the request, then the pieces of the reply.
pub(super) async fn deltas(
    incoming: Incoming,
    asked_to_stream: bool,
    warnings: Vec<String>,
    peer: Peer,
    shared: &Shared,
) -> Result<DeltaStream> {
    let server = Arc::clone(&shared.server);
    let headers = incoming.response.headers();
    let content_type = headers.get(CONTENT_TYPE).map(|value| value.as_bytes().to_ascii_lowercase());
    // Some servers return a whole reply although a stream was requested, and some omit the content type of a stream.
    let streams = content_type.map_or(asked_to_stream, |value| value.starts_with(b"text/event-stream"));
    let mut reply = Assembly::default();
    reply.pending.push_back(Delta::Headers(server.reported(headers)));
    reply.pending.extend(warnings.into_iter().map(Delta::Warning));
    let bytes = incoming.bytes(shared);
    if !streams {
        reply.receive_whole(&collect(bytes).await?, &server)?;
        reply.sign(&peer);
        return Ok(Box::pin(stream::iter(reply.pending.into_iter().map(Ok))));
    }
    // The parser drops an event that is not followed by an empty line. Some servers leave out the last empty line, so
    // it is added here.
    let has_ended = Arc::new(AtomicBool::new(false));
    let ended = Arc::clone(&has_ended);
    let bytes = bytes.chain(stream::once(async move {
        ended.store(true, Ordering::Relaxed);
        Ok(Bytes::from_static(b"\n\n"))
    }));
    let events = Box::pin(SseByteStream::new(Box::pin(bytes)));
    let chunks = Chunks { events, has_ended, reply, server, peer, is_done: false };
    // The state is boxed, because it is moved for each piece.
    Ok(Box::pin(stream::try_unfold(Box::new(chunks), |mut chunks| async {
        let delta = chunks.next().await?;
        Ok(delta.map(|delta| (delta, chunks)))
    })))
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
    /// `true` after the last byte from the server has been read. An event that is read afterwards was not terminated,
    /// so its text may be cut off.
    has_ended: Arc<AtomicBool>,
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
                None => Err(self.server.incomplete()),
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
        match event.data.as_deref().map(str::trim) {
            Some("[DONE]") => self.end().await,
            Some(data) if event.event.as_deref() == Some("error") => {
                let error = serde_json::from_str(data).unwrap_or_else(|_| data.into());
                return Err(self.server.refused(&error));
            }
            Some(data) if !data.is_empty() => {
                let chunk = serde_json::from_str(data);
                let is_cut = self.has_ended.load(Ordering::Relaxed);
                let chunk = chunk.map_err(|fault| self.server.malformed("a chunk", &fault, data, is_cut))?;
                self.reply.receive(chunk, &self.server)?;
            }
            _ => {}
        }
        Ok(())
    }

    /// Converts an error of the event parser into an error of the provider.
    fn broken(&self, error: EventError) -> Error {
        match error {
            EventError::Body(error) => match error.downcast::<BytesError>() {
                Ok(error) => error.0,
                Err(error) => self.server.unreadable(&error.to_string()),
            },
            // An error after the last byte means that the stream ended inside a UTF-8 character.
            _ if self.has_ended.load(Ordering::Relaxed) => self.server.incomplete(),
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

/// Assembles a reply from its chunks, and keeps the pieces that have not been returned yet.
#[derive(Default)]
struct Assembly {
    pending: VecDeque<Delta>,
    calls: Calls,
    received: Received,
    is_named: bool,
    is_finished: bool,
    has_other_choices: bool,
    has_unreadable_usage: bool,
}

impl Assembly {
    fn receive_whole(&mut self, body: &[u8], server: &Server) -> Result<()> {
        let text = String::from_utf8_lossy(body);
        let malformed = |fault| server.malformed("a reply", &fault, &text, false);
        let reply: Reply = serde_json::from_str(&text).map_err(malformed)?;
        // JSON of another protocol must not become an empty answer.
        if reply.choices.is_none() && reply.error.is_none() {
            return Err(malformed(serde::de::Error::missing_field("choices")));
        }
        self.receive(reply, server)
    }

    fn receive(&mut self, reply: Reply, server: &Server) -> Result<()> {
        let Reply { id, model, choices, usage, error } = reply;
        if let Some(error) = error {
            return Err(server.refused(&error));
        }
        // Each chunk repeats the id and the model, so only the first pair is passed on.
        if !self.is_named && (id.is_some() || model.is_some()) {
            self.is_named = true;
            self.pending.push_back(Delta::Response { id, model });
        }
        for choice in choices.into_iter().flatten() {
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
        let Choice { index, message, delta, finish_reason } = choice;
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
