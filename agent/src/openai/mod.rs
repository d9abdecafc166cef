//! A provider for servers that speak OpenAI's protocol.

mod builder;
mod calls;
mod content;
mod encoded;
mod failure;
mod frames;
#[cfg(test)]
mod histories;
mod reply;
mod request;
mod retry_after;
mod rules;
mod scalar;
mod schema;
pub(crate) mod servers;
mod signature;
mod surrogates;
mod transport;

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::Duration;

use emitree_runtime::{Error, Result, RunContext, TraceParent};
use reqwest::{Client, RequestBuilder, Url};

pub use crate::openai::builder::OpenAiBuilder;
use crate::openai::failure::Server;
pub use crate::openai::failure::{ServerError, ServerErrorKind};
use crate::openai::rules::Rules;
use crate::{ChatRequest, DeltaStream, Provider, ResponseHeaders, ToolSpec};

/// A [`Provider`] for OpenAI and for all servers that speak its chat completions protocol, such as Ollama, vLLM,
/// llama.cpp and `OpenRouter`.
///
/// ```no_run
/// use emitree_agent::{Agent, ChatModel, OpenAi};
///
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> emitree_runtime::Result<()> {
/// let provider = OpenAi::builder("granite4").base_url("http://localhost:11434/v1").build()?;
/// let agent = Agent::builder("helper", ChatModel::new(provider)?).build()?;
/// println!("{}", agent.ask("Why is the sky blue?").await?.text());
/// # Ok(())
/// # }
/// ```
///
/// [`OpenAi::from_name`] and [`ChatModel::from_name`](crate::ChatModel::from_name) use the base URLs and the
/// environment variables of common servers. Clones share one pool of connections.
///
/// # Proxies
///
/// Requests are sent through the proxy that the environment variables `HTTP_PROXY`, `HTTPS_PROXY` or `ALL_PROXY` set for
/// the scheme of the base URL, also in lower case. `NO_PROXY` lists hosts and networks that are reached directly, such as
/// `localhost,10.0.0.0/8`. The variables are read when the provider is built. If the proxy cannot be reached, the error
/// names the proxy.
///
/// # Requests
///
/// - A message that has only text is sent as a string. An image in a user or system message is sent as `image_url`.
///   Any other attachment in such a message makes the call fail.
/// - Texts of a tool result are a part of its message. So are its images, if the server reads images there; for any
///   other server, they follow in one message of the user behind all results of the turn. In the place of sounds and
///   files, and of all images with [`images(false)`](OpenAiBuilder::images), the model reads a text such as
///   `[image/png, 12 KB: not shown]`.
/// - Attachments of an earlier answer are not sent back. Its reasoning is sent back in `reasoning_content`, if it came in
///   this field; see [below](#data-that-a-server-needs-back).
/// - Arguments of an earlier tool call that are not a JSON object are sent as `{"malformed": "<text>"}`, because many
///   servers refuse a conversation with them; `null` is sent as `{}`.
/// - `max_tokens` is sent as `max_completion_tokens` to OpenAI itself, and as `max_tokens` to any other server.
/// - `options.extra` is merged into the request last. Its values replace fields of the same name, and `null` removes
///   the field.
/// - A tool choice without tools is not sent, and the response has a warning.
///
/// Requests are adapted to what their server accepts, as far as it is known, and the history is not changed. The server
/// is known by its base URL, or else by the name in [`OpenAi::from_name`]:
///
/// - An id of a call that the server refuses is replaced, in the call and in its result. A name of a call that a model
///   invented goes back with `_` in place of other characters than letters, digits and `-`.
/// - A message of the model without text, calls and data that the server needs back is left out.
/// - If the server refuses an order of roles, neighbours of one role are joined, with a blank line between their texts,
///   and a fixed text stands between a result and a message of the user, and before a model's message at the beginning.
///   A system message that must not stand behind others is sent as a message of the user.
/// - The schema of a tool is written in the dialect of the server. A keyword that the server does not know moves as text
///   into the description. A schema that cannot be expressed is an error, which names the tool and the keyword: when an
///   agent with the tool is built, or else before the request.
///
/// # Replies
///
/// Some servers deviate from the protocol. The provider also accepts reasoning in `reasoning_content` or `reasoning`,
/// content in parts, tool calls without an index or with a repeated index, arguments as an object, and a whole reply to
/// a request for a stream. The body of a reply decides whether it is a stream of events, and not its label. An error in any
/// form fails the call, and comments that keep a connection open are ignored. The guide to models lists what servers send,
/// with sources. A refusal becomes the text of the answer, and the response has a warning. All headers of a response are
/// reported, even for an error status; the values of `set-cookie` are replaced by `…`.
///
/// # Data that a server needs back
///
/// Some servers need data of an earlier answer back: `DeepSeek` its `reasoning_content`, Gemini the `extra_content` of
/// calls and texts, and `OpenRouter` its `reasoning_details`. These fields are kept in `extra` of
/// [`Part::Reasoning`](crate::Part::Reasoning) and of [`ToolCall`](crate::ToolCall), also in stored sessions. They are
/// sent back unchanged, but only to the server (its base URL) and the requested model that they came from. For calls of
/// another model, `DeepSeek` receives an empty `reasoning_content`, and Gemini receives the signature
/// `skip_thought_signature_validator` on the first call of each message after the last user message.
///
/// If middleware has changed the reasoning, text or call that a field belongs to, the field is not sent back. The first
/// response for which this happens has a warning. The parts of a reply keep the order in which they arrived, and the
/// arguments of a call the text that the model wrote, until they are edited.
///
/// # Errors
///
/// The cause of an error of the server or of the connection is a [`ServerError`], which `error.find::<ServerError>()`
/// returns. The error's message contains the server's own message, if there is one. The details `kind`, `status` and
/// `retry_after_ms` contain the kind, the HTTP status and the delay that the server requested. Errors of the
/// connection, timeouts, the statuses 408, 409, 429 and 5xx, and a reply that ends too early are
/// [`retryable`](emitree_runtime::Error::is_retryable). Redirects are not followed, so that the key does not reach another
/// server.
///
/// A stream with a finish reason is complete, and nothing after it fails the reply: if the connection breaks before
/// `[DONE]`, or if a chunk cannot be read, the response has a warning. Token counts that cannot be read, such as `-1`, are
/// a warning in any reply.
///
/// Errors, reported headers and `Debug` output do not contain the API key. If a server sends the key back in an error
/// or a header, the key is replaced by `…`; the text of an answer is not changed. A text or a header that contains the
/// key in JSON escapes, percent-encoding or HTML entities, in any nesting, is not quoted at all. The same applies to a
/// password in the base URL, and to keys and tokens in its query.
///
/// # Cancel safety
///
/// If a run of the model is dropped or aborted during its request, the connection is closed immediately.
#[derive(Clone)]
pub struct OpenAi {
    shared: Arc<Shared>,
}

struct Shared {
    model: String,
    server: Arc<Server>,
    client: Client,
    /// The URL for chat completions.
    url: Url,
    /// `true` if the server is OpenAI itself.
    is_official: bool,
    stream_usage: bool,
    /// `true` if the model reads images.
    images: bool,
    sends_trace: bool,
    limits: Limits,
    /// What the server accepts.
    rules: Rules,
    /// `true` if a response has had the warning about data that is not sent back.
    has_warned: AtomicBool,
}

/// The limits of a reply.
#[derive(Clone, Copy, Debug)]
struct Limits {
    first_byte: Duration,
    between_chunks: Duration,
    max_bytes: usize,
}

impl Provider for OpenAi {
    fn name(&self) -> &str {
        &self.shared.server.provider
    }

    fn server(&self) -> Option<(&str, u16)> {
        let url = &self.shared.url;
        // An IPv6 address has brackets in a URL only.
        let host = url.host_str()?.trim_matches(['[', ']']);
        Some((host, url.port_or_known_default()?))
    }

    fn model(&self) -> &str {
        &self.shared.model
    }

    fn check(&self, tools: &[ToolSpec]) -> Result<()> {
        let dialect = self.shared.rules.with_model(&self.shared.model).dialect;
        for spec in tools {
            schema::adapted(spec, dialect)?;
        }
        Ok(())
    }

    async fn chat(&self, request: &ChatRequest, ctx: &RunContext) -> Result<DeltaStream> {
        let shared = &self.shared;
        let (body, peer, warnings) = request::body(shared, request)?;
        let mut post = shared.client.post(shared.url.clone()).json(&body);
        if shared.sends_trace {
            post = traced(post, &ctx.trace_parent());
        }
        let response = match transport::send(post, shared).await {
            Ok(response) => response,
            Err(error) => {
                report_headers(&error, ctx).await;
                return Err(error);
            }
        };
        Ok(reply::deltas(response, request.options.stream == Some(true), warnings, peer, shared))
    }
}

/// Names the run as the parent of the server's work (R16).
fn traced(post: RequestBuilder, parent: &TraceParent) -> RequestBuilder {
    let post = post.header("traceparent", parent.to_string());
    match parent.state() {
        Some(state) => post.header("tracestate", state),
        None => post,
    }
}

/// Emits the headers of a response that became an error, because there is no reply that could contain them.
async fn report_headers(error: &Error, ctx: &RunContext) {
    let Some(ServerError { headers, .. }) = error.find::<ServerError>() else { return };
    if headers.is_empty() || !ctx.has_listeners() {
        return;
    }
    // The error of the server is returned, so the error of a listener is logged.
    if let Err(error) = ctx.emitter().emit_event(&mut ResponseHeaders::new(headers.clone())).await {
        tracing::warn!(%error, "a listener of `response_headers` failed after the request had failed");
    }
}

impl fmt::Debug for OpenAi {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Shared { model, server, limits, .. } = &*self.shared;
        f.debug_struct("OpenAi")
            .field("provider", &server.provider)
            .field("model", model)
            .field("server", &server.address)
            .field("limits", limits)
            .finish_non_exhaustive()
    }
}
