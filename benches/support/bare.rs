//! A chat completion without a model library: reqwest, sse-stream, and structs for the parts of a reply that are used.

use std::error::Error;

use futures_util::StreamExt;
use reqwest::Client;
use serde::{Deserialize, Serialize};
use sse_stream::SseByteStream;

type Result<T> = std::result::Result<T, Box<dyn Error + Send + Sync>>;

/// A client for one base URL.
pub(crate) struct Bare {
    client: Client,
    url: String,
    model: String,
}

#[derive(Serialize)]
struct Request<'a> {
    model: &'a str,
    messages: [Prompt<'a>; 1],
    #[serde(skip_serializing_if = "Option::is_none")]
    stream: Option<bool>,
    #[serde(skip_serializing_if = "Option::is_none")]
    stream_options: Option<StreamOptions>,
}

#[derive(Serialize)]
struct Prompt<'a> {
    role: &'a str,
    content: &'a str,
}

#[derive(Serialize)]
struct StreamOptions {
    include_usage: bool,
}

#[derive(Deserialize)]
struct Chunk {
    id: String,
    model: String,
    choices: Vec<Choice>,
    usage: Option<Tokens>,
}

#[derive(Deserialize)]
struct Choice {
    #[serde(alias = "message")]
    delta: Content,
    finish_reason: Option<String>,
}

#[derive(Deserialize)]
struct Content {
    content: Option<String>,
}

#[allow(dead_code, reason = "each bench uses its part")]
#[derive(Deserialize)]
pub(crate) struct Tokens {
    pub(crate) prompt_tokens: u64,
    pub(crate) completion_tokens: u64,
}

/// A received answer.
#[allow(dead_code, reason = "each bench uses its part")]
#[derive(Default)]
pub(crate) struct Answer {
    pub(crate) id: String,
    pub(crate) model: String,
    pub(crate) text: String,
    pub(crate) finish_reason: Option<String>,
    pub(crate) usage: Option<Tokens>,
}

impl Bare {
    pub(crate) fn new(client: Client, base_url: &str, model: &str) -> Self {
        Self { client, url: format!("{base_url}/chat/completions"), model: model.to_owned() }
    }

    /// Receives a stream to its end, and calls a function with each piece of text.
    pub(crate) async fn stream(&self, prompt: &str, mut on_text: impl FnMut(&str)) -> Result<Answer> {
        let stream_options = Some(StreamOptions { include_usage: true });
        let response = self.post(prompt, Some(true), stream_options).await?;
        let mut events = SseByteStream::new(response.bytes_stream());
        let mut answer = Answer::default();
        // Reads past `[DONE]` to the end of the response, so that the connection can be reused.
        while let Some(event) = events.next().await {
            let Some(data) = event?.data.filter(|data| data != "[DONE]") else { continue };
            answer.add(serde_json::from_str(&data)?, &mut on_text);
        }
        Ok(answer)
    }

    /// Receives a whole answer.
    #[allow(dead_code, reason = "each bench uses its part")]
    pub(crate) async fn whole(&self, prompt: &str) -> Result<Answer> {
        let response = self.post(prompt, None, None).await?;
        let mut answer = Answer::default();
        answer.add(serde_json::from_slice(&response.bytes().await?)?, &mut |_| ());
        Ok(answer)
    }

    async fn post(
        &self,
        prompt: &str,
        stream: Option<bool>,
        stream_options: Option<StreamOptions>,
    ) -> Result<reqwest::Response> {
        let messages = [Prompt { role: "user", content: prompt }];
        let request = Request { model: &self.model, messages, stream, stream_options };
        Ok(self.client.post(&self.url).json(&request).send().await?.error_for_status()?)
    }
}

impl Answer {
    fn add(&mut self, chunk: Chunk, on_text: &mut impl FnMut(&str)) {
        let Chunk { id, model, choices, usage } = chunk;
        if self.id.is_empty() {
            (self.id, self.model) = (id, model);
        }
        for Choice { delta, finish_reason } in choices {
            if let Some(text) = delta.content {
                on_text(&text);
                self.text.push_str(&text);
            }
            if finish_reason.is_some() {
                self.finish_reason = finish_reason;
            }
        }
        if usage.is_some() {
            self.usage = usage;
        }
    }
}
