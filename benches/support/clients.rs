//! The clients that the benches of models compare, with equal settings.

use std::sync::Arc;
use std::time::Duration;

use emitree::agent::{ChatModel, ChatRequest, OpenAi};
use futures_util::StreamExt;
use genai::adapter::AdapterKind;
use genai::chat::{ChatMessage, ChatOptions, ChatStreamEvent, StreamEnd};
use genai::resolver::{AuthData, Endpoint};
use genai::{ModelIden, ServiceTarget};
use reqwest::redirect::Policy;
use rustls::crypto::ring;
use rustls::{ClientConfig, RootCertStore};

use crate::bare::Bare;

const MODEL: &str = "SmolLM2-135M-Instruct";
pub(crate) const PROMPT: &str = "Say hello, and offer your help with any questions.";

/// Returns the HTTP client of a peer, with the settings of emitree's client.
fn http() -> reqwest::Client {
    let tls = ClientConfig::builder_with_provider(Arc::new(ring::default_provider()));
    let tls = tls.with_safe_default_protocol_versions().expect("versions of TLS");
    let tls = tls.with_root_certificates(RootCertStore::empty()).with_no_client_auth();
    let builder = reqwest::Client::builder().connect_timeout(Duration::from_secs(10)).redirect(Policy::none());
    builder.tls_backend_preconfigured(tls).build().expect("an HTTP client")
}

pub(crate) fn emitree(url: &str) -> ChatModel {
    let provider = OpenAi::builder(MODEL).base_url(url).build().expect("a provider");
    ChatModel::new(provider).expect("a model")
}

/// Returns the request for a stream.
pub(crate) fn streamed() -> ChatRequest {
    let mut request = ChatRequest::from(PROMPT);
    request.options.stream = Some(true);
    request
}

pub(crate) fn bare(url: &str) -> Bare {
    Bare::new(http(), url, MODEL)
}

/// genai's client for one base URL.
pub(crate) struct GenAi {
    client: genai::Client,
    target: ServiceTarget,
    options: ChatOptions,
}

impl GenAi {
    pub(crate) fn new(url: &str) -> Self {
        let target = ServiceTarget {
            endpoint: Endpoint::from_owned(format!("{url}/")),
            auth: AuthData::from_single("none"),
            model: ModelIden::new(AdapterKind::OpenAI, MODEL),
        };
        let client = genai::Client::builder().with_reqwest(http()).build().expect("a client");
        let options = ChatOptions::default().with_capture_content(true).with_capture_usage(true);
        Self { client, target, options }
    }

    /// Receives a stream to its end, and calls a function with each piece of text.
    pub(crate) async fn stream(&self, mut on_text: impl FnMut(&str)) -> genai::Result<StreamEnd> {
        let request = genai::chat::ChatRequest::new(vec![ChatMessage::user(PROMPT)]);
        let response = self.client.exec_chat_stream(self.target.clone(), request, Some(&self.options)).await?;
        let (mut events, mut end) = (response.stream, None);
        while let Some(event) = events.next().await {
            match event? {
                ChatStreamEvent::Chunk(chunk) => on_text(&chunk.content),
                ChatStreamEvent::End(answer) => end = Some(answer),
                _ => {}
            }
        }
        Ok(end.expect("an end of the stream"))
    }

    /// Receives a whole answer.
    #[allow(dead_code, reason = "each bench uses its part")]
    pub(crate) async fn whole(&self) -> genai::Result<genai::chat::ChatResponse> {
        let request = genai::chat::ChatRequest::new(vec![ChatMessage::user(PROMPT)]);
        self.client.exec_chat(self.target.clone(), request, Some(&self.options)).await
    }
}
