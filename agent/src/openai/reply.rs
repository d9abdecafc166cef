//! A reply in OpenAI's protocol, whole or as a stream of chunks.

use std::collections::{BTreeMap, VecDeque};
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use emitree_runtime::{Error, Result};
use futures_core::Stream;
use futures_util::stream::{self, StreamExt};
use reqwest::header::{CONTENT_TYPE, HeaderMap, SET_COOKIE};
use serde::Deserialize;
use serde_json::Value;
use sse_stream::{Error as EventError, Sse, SseByteStream};
use tokio::time::timeout;

use crate::openai::Shared;
use crate::openai::calls::{Call, Calls};
use crate::openai::failure::Server;
use crate::openai::transport::{BytesError, Incoming};
use crate::{Delta, DeltaStream, FinishReason, Usage};

/// The time that a server has to end its response after `[DONE]`, so that the connection can be used again.
const LINGER: Duration = Duration::from_millis(50);

/// A whole reply, or a chunk of a stream.
#[derive(Deserialize)]
struct Reply {
    id: Option<String>,
    model: Option<String>,
    choices: Option<Vec<Choice>>,
    usage: Option<Tokens>,
    /// An error in place of a reply. Some servers send it with a status of success.
    error: Option<Value>,
}

#[derive(Deserialize)]
struct Choice {
    #[serde(default)]
    index: u64,
    /// The message of a whole reply.
    message: Option<Content>,
    /// The part of the message that a chunk adds.
    delta: Option<Content>,
    finish_reason: Option<String>,
}

#[derive(Deserialize)]
struct Content {
    content: Option<Text>,
    /// The reasoning. Servers use one of the two names, or both.
    reasoning_content: Option<String>,
    reasoning: Option<String>,
    refusal: Option<String>,
    tool_calls: Option<Vec<Call>>,
}

/// A text, or a list of parts in which a text may be nested.
#[derive(Deserialize)]
#[serde(untagged)]
enum Text {
    Whole(String),
    Parts(Vec<Value>),
}

#[derive(Deserialize)]
struct Tokens {
    #[serde(default)]
    prompt_tokens: u64,
    #[serde(default)]
    completion_tokens: u64,
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
    shared: &Shared,
) -> Result<DeltaStream> {
    let server = Arc::clone(&shared.server);
    let headers = incoming.response.headers();
    let content_type = headers.get(CONTENT_TYPE).map(|value| value.as_bytes().to_ascii_lowercase());
    // Some servers answer whole although they were asked to stream, and some leave out the type of a stream.
    let streams = content_type.map_or(asked_to_stream, |value| value.starts_with(b"text/event-stream"));
    let mut reply = Assembly::default();
    reply.pending.push_back(Delta::Headers(reported(headers, &server)));
    reply.pending.extend(warnings.into_iter().map(Delta::Warning));
    let bytes = incoming.bytes(shared);
    if !streams {
        reply.receive_whole(&collect(bytes).await?, &server)?;
        return Ok(Box::pin(stream::iter(reply.pending.into_iter().map(Ok))));
    }
    // The parser drops an event without an empty line after it, and some servers leave out the last empty line.
    let bytes = bytes.chain(stream::once(async { Ok(Bytes::from_static(b"\n\n")) }));
    let chunks = Chunks { events: Box::pin(SseByteStream::new(Box::pin(bytes))), reply, server, is_done: false };
    Ok(Box::pin(stream::try_unfold(chunks, |mut chunks| async {
        let delta = chunks.next().await?;
        Ok(delta.map(|delta| (delta, chunks)))
    })))
}

/// Returns the headers that are reported.
fn reported(headers: &HeaderMap, server: &Server) -> BTreeMap<String, String> {
    let text = |name, value: &[u8]| {
        if name == SET_COOKIE { "…".to_owned() } else { server.scrub(&String::from_utf8_lossy(value)) }
    };
    let mut reported = BTreeMap::<String, String>::new();
    for (name, value) in headers {
        let value = text(name, value.as_bytes());
        // A header may occur several times.
        reported
            .entry(name.as_str().to_owned())
            .and_modify(|values| *values = format!("{values}, {value}"))
            .or_insert(value);
    }
    reported
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

/// A stream of chunks.
struct Chunks {
    events: Events,
    reply: Assembly,
    server: Arc<Server>,
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
            match self.events.next().await {
                Some(Ok(event)) => match event.data.as_deref().map(str::trim) {
                    Some("[DONE]") => self.end().await,
                    Some(data) if !data.is_empty() => self.reply.receive_chunk(data, &self.server)?,
                    _ => {}
                },
                Some(Err(error)) => return Err(broken(error, &self.server)),
                None if self.reply.is_finished => self.is_done = true,
                None => return Err(self.server.incomplete()),
            }
        }
    }

    /// Ends the reply at `[DONE]`. The connection returns to the pool only if the response is read to its end.
    async fn end(&mut self) {
        self.is_done = true;
        let rest = async { while let Some(Ok(_)) = self.events.next().await {} };
        // A server that does not end its response loses its connection.
        let _ = timeout(LINGER, rest).await;
    }
}

/// Converts an error of the parser.
fn broken(error: EventError, server: &Server) -> Error {
    match error {
        EventError::Body(error) => match error.downcast::<BytesError>() {
            Ok(error) => error.0,
            Err(error) => server.unreadable(&error.to_string()),
        },
        error => server.unreadable(&error.to_string()),
    }
}

/// The pieces of a reply that have been received and not returned.
#[derive(Default)]
struct Assembly {
    pending: VecDeque<Delta>,
    calls: Calls,
    is_named: bool,
    is_finished: bool,
    has_other_choices: bool,
}

impl Assembly {
    fn receive_whole(&mut self, body: &[u8], server: &Server) -> Result<()> {
        let text = String::from_utf8_lossy(body);
        let reply: Reply = serde_json::from_str(&text).map_err(|fault| server.malformed("a reply", &fault, &text))?;
        self.receive(reply, server)
    }

    fn receive_chunk(&mut self, data: &str, server: &Server) -> Result<()> {
        let chunk = serde_json::from_str(data).map_err(|fault| server.malformed("a chunk", &fault, data))?;
        self.receive(chunk, server)
    }

    fn receive(&mut self, reply: Reply, server: &Server) -> Result<()> {
        let Reply { id, model, choices, usage, error } = reply;
        if let Some(error) = error.filter(|error| !error.is_null()) {
            return Err(server.refused(&error));
        }
        // Each chunk repeats the id and the model.
        if !self.is_named && (id.is_some() || model.is_some()) {
            self.is_named = true;
            self.pending.push_back(Delta::Response { id, model });
        }
        for choice in choices.into_iter().flatten() {
            self.receive_choice(choice);
        }
        if let Some(tokens) = usage {
            self.pending.push_back(Delta::Usage(tokens.into()));
        }
        Ok(())
    }

    fn receive_choice(&mut self, choice: Choice) {
        let Choice { index, message, delta, finish_reason } = choice;
        if index > 0 {
            if !std::mem::replace(&mut self.has_other_choices, true) {
                let warning = "the server sent several answers: only the first is used".to_owned();
                self.pending.push_back(Delta::Warning(warning));
            }
            return;
        }
        let is_whole = message.is_some();
        if let Some(Content { content, reasoning_content, reasoning, refusal, tool_calls }) = message.or(delta) {
            let texts = |text: String| (!text.is_empty()).then_some(text);
            self.pending.extend(reasoning_content.or(reasoning).and_then(texts).map(Delta::Reasoning));
            match content {
                Some(Text::Whole(text)) => self.pending.extend(texts(text).map(Delta::Text)),
                Some(Text::Parts(parts)) => self.pending.extend(parts.iter().filter_map(part)),
                None => {}
            }
            if let Some(refusal) = refusal.and_then(texts) {
                self.pending.push_back(Delta::Warning("the model refused: its answer is the refusal".to_owned()));
                self.pending.push_back(Delta::Text(refusal));
            }
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
}

/// Returns the piece of a part of a content: text, or reasoning in which the text is nested.
fn part(part: &Value) -> Option<Delta> {
    let text = |value: &Value| value.as_str().filter(|text| !text.is_empty()).map(str::to_owned);
    match &part["thinking"] {
        Value::Array(parts) => Some(Delta::Reasoning(parts.iter().filter_map(|part| text(&part["text"])).collect())),
        _ => text(&part["text"]).map(Delta::Text),
    }
}

impl From<Tokens> for Usage {
    fn from(tokens: Tokens) -> Self {
        let Tokens { prompt_tokens, completion_tokens, prompt_tokens_details, completion_tokens_details } = tokens;
        Self {
            input_tokens: prompt_tokens,
            output_tokens: completion_tokens,
            cached_input_tokens: prompt_tokens_details.and_then(|details| details.cached_tokens).unwrap_or(0),
            reasoning_tokens: completion_tokens_details.and_then(|details| details.reasoning_tokens).unwrap_or(0),
        }
    }
}
