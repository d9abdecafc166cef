//! The conventions of `OpenInference`, 0.1.32.
//!
//! Source: `spec/semantic_conventions.md`, `spec/llm_spans.md` and `spec/tool_calling.md` of Arize-ai/openinference.

use super::{Form, Row};
use crate::spans::Fact;

/// The version of the conventions.
const V0_1: &str = "0.1.32";

pub(super) const ROWS: &[Row] = &[
    Row::new("Agent", Fact::Constant("AGENT"), "openinference.span.kind", V0_1).required(),
    Row::new("Agent", Fact::Name, "agent.name", V0_1),
    Row::new("Agent", Fact::InputText, "input.value", V0_1).form(Form::Text),
    Row::new("Agent", Fact::InputText, "input.mime_type", V0_1).form(Form::MimeType),
    Row::new("Agent", Fact::OutputText, "output.value", V0_1).form(Form::Text),
    Row::new("Agent", Fact::OutputText, "output.mime_type", V0_1).form(Form::MimeType),
    Row::new("ChatModel", Fact::Constant("LLM"), "openinference.span.kind", V0_1).required(),
    Row::new("ChatModel", Fact::Provider, "llm.system", V0_1).form(Form::Provider).required(),
    Row::new("ChatModel", Fact::Provider, "llm.provider", V0_1).form(Form::Provider),
    Row::new("ChatModel", Fact::ResponseModel, "llm.model_name", V0_1).required(),
    Row::new("ChatModel", Fact::RequestModel, "llm.model_name", V0_1).required(),
    Row::new("ChatModel", Fact::RequestModel, "llm.request.model_name", V0_1),
    Row::new("ChatModel", Fact::ResponseModel, "llm.response.model_name", V0_1),
    Row::new("ChatModel", Fact::Options, "llm.invocation_parameters", V0_1).form(Form::Json),
    Row::new("ChatModel", Fact::FinishReasons, "llm.finish_reason", V0_1).form(Form::First),
    Row::new("ChatModel", Fact::InputTokens, "llm.token_count.prompt", V0_1),
    Row::new("ChatModel", Fact::OutputTokens, "llm.token_count.completion", V0_1),
    Row::new("ChatModel", Fact::TotalTokens, "llm.token_count.total", V0_1),
    Row::new("ChatModel", Fact::CachedInputTokens, "llm.token_count.prompt_details.cache_read", V0_1),
    Row::new("ChatModel", Fact::ReasoningTokens, "llm.token_count.completion_details.reasoning", V0_1),
    Row::new("ChatModel", Fact::Cost, "llm.cost.total", V0_1),
    Row::new("ChatModel", Fact::InputText, "input.value", V0_1).form(Form::Text),
    Row::new("ChatModel", Fact::InputText, "input.mime_type", V0_1).form(Form::MimeType),
    // Without it, Phoenix shows the response's id and model as the output.
    Row::new("ChatModel", Fact::OutputText, "output.value", V0_1).form(Form::Text),
    Row::new("ChatModel", Fact::OutputText, "output.mime_type", V0_1).form(Form::MimeType),
    Row::new("ChatModel", Fact::OutputMessages, "llm.output_messages", V0_1).form(Form::FlatMessages),
    Row::new("ChatModel", Fact::Conversation, "llm.input_messages", V0_1).form(Form::FlatMessages),
    Row::new("ChatModel", Fact::Tools, "llm.tools", V0_1).form(Form::FlatTools),
    Row::new("Tool", Fact::Constant("TOOL"), "openinference.span.kind", V0_1).required(),
    Row::new("Tool", Fact::Name, "tool.name", V0_1).required(),
    Row::new("Tool", Fact::CallId, "tool.id", V0_1),
    Row::new("Tool", Fact::Result, "output.value", V0_1).form(Form::Text),
    Row::new("Tool", Fact::Result, "output.mime_type", V0_1).form(Form::MimeType),
    Row::new("*", Fact::SessionId, "session.id", V0_1),
    Row::new("*", Fact::Constant("CHAIN"), "openinference.span.kind", V0_1).required(),
    Row::new("*", Fact::Input, "input.value", V0_1).form(Form::Text),
    Row::new("*", Fact::Input, "input.mime_type", V0_1).form(Form::MimeType),
    Row::new("*", Fact::Output, "output.value", V0_1).form(Form::Text),
    Row::new("*", Fact::Output, "output.mime_type", V0_1).form(Form::MimeType),
];

/// The values of `llm.system` and `llm.provider` that differ from the names of emitree.
pub(super) const PROVIDERS: &[(&str, &str)] = &[("gemini", "google"), ("mistral", "mistralai")];
