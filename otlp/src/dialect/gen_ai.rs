//! The GenAI conventions of OpenTelemetry, v0.1.0.
//!
//! Source: `docs/gen-ai/gen-ai-spans.md` and `gen-ai-agent-spans.md` of open-telemetry/semantic-conventions-genai.
//! Per its changelog, v0.1.0 names a workflow in `gen_ai.agent.name`, and its operation stays `invoke_workflow`.

use super::{Form, Row};
use crate::spans::Fact;

/// The version of the conventions. All of them are in development.
const V0_1: &str = "v0.1.0";

pub(super) const ROWS: &[Row] = &[
    Row::new("Agent", Fact::Constant("invoke_agent"), "gen_ai.operation.name", V0_1).required(),
    Row::new("Agent", Fact::Name, "gen_ai.agent.name", V0_1),
    Row::new("Agent", Fact::Provider, "gen_ai.provider.name", V0_1).form(Form::Provider).required(),
    Row::new("Agent", Fact::RequestModel, "gen_ai.request.model", V0_1),
    Row::new("Agent", Fact::SessionId, "gen_ai.conversation.id", V0_1),
    Row::new("Agent", Fact::Temperature, "gen_ai.request.temperature", V0_1),
    Row::new("Agent", Fact::MaxTokens, "gen_ai.request.max_tokens", V0_1),
    Row::new("Agent", Fact::Seed, "gen_ai.request.seed", V0_1),
    Row::new("Agent", Fact::StopSequences, "gen_ai.request.stop_sequences", V0_1),
    Row::new("Agent", Fact::InputTokens, "gen_ai.usage.input_tokens", V0_1),
    Row::new("Agent", Fact::OutputTokens, "gen_ai.usage.output_tokens", V0_1),
    Row::new("Agent", Fact::CachedInputTokens, "gen_ai.usage.cache_read.input_tokens", V0_1),
    Row::new("Agent", Fact::ReasoningTokens, "gen_ai.usage.reasoning.output_tokens", V0_1),
    Row::new("Agent", Fact::InputMessages, "gen_ai.input.messages", V0_1).form(Form::Messages),
    Row::new("Agent", Fact::OutputMessages, "gen_ai.output.messages", V0_1).form(Form::OutputMessages),
    Row::new("Workflow", Fact::Constant("invoke_workflow"), "gen_ai.operation.name", V0_1).required(),
    Row::new("Workflow", Fact::Name, "gen_ai.agent.name", V0_1),
    Row::new("ChatModel", Fact::Constant("chat"), "gen_ai.operation.name", V0_1).required(),
    Row::new("ChatModel", Fact::Provider, "gen_ai.provider.name", V0_1).form(Form::Provider).required(),
    Row::new("ChatModel", Fact::RequestModel, "gen_ai.request.model", V0_1).required(),
    Row::new("ChatModel", Fact::SessionId, "gen_ai.conversation.id", V0_1),
    Row::new("ChatModel", Fact::ServerAddress, "server.address", V0_1),
    Row::new("ChatModel", Fact::ServerPort, "server.port", V0_1),
    Row::new("ChatModel", Fact::Temperature, "gen_ai.request.temperature", V0_1),
    Row::new("ChatModel", Fact::MaxTokens, "gen_ai.request.max_tokens", V0_1),
    Row::new("ChatModel", Fact::Seed, "gen_ai.request.seed", V0_1),
    Row::new("ChatModel", Fact::StopSequences, "gen_ai.request.stop_sequences", V0_1),
    Row::new("ChatModel", Fact::IsStream, "gen_ai.request.stream", V0_1),
    Row::new("ChatModel", Fact::ResponseModel, "gen_ai.response.model", V0_1),
    Row::new("ChatModel", Fact::ResponseId, "gen_ai.response.id", V0_1),
    Row::new("ChatModel", Fact::FinishReasons, "gen_ai.response.finish_reasons", V0_1),
    Row::new("ChatModel", Fact::TimeToFirstChunk, "gen_ai.response.time_to_first_chunk", V0_1),
    Row::new("ChatModel", Fact::InputTokens, "gen_ai.usage.input_tokens", V0_1),
    Row::new("ChatModel", Fact::OutputTokens, "gen_ai.usage.output_tokens", V0_1),
    Row::new("ChatModel", Fact::CachedInputTokens, "gen_ai.usage.cache_read.input_tokens", V0_1),
    Row::new("ChatModel", Fact::ReasoningTokens, "gen_ai.usage.reasoning.output_tokens", V0_1),
    Row::new("ChatModel", Fact::Cost, "gen_ai.usage.cost", "not in the conventions; Langfuse reads it"),
    Row::new("ChatModel", Fact::SystemPrompt, "gen_ai.system_instructions", V0_1).form(Form::Instructions),
    Row::new("ChatModel", Fact::InputMessages, "gen_ai.input.messages", V0_1).form(Form::Messages),
    Row::new("ChatModel", Fact::OutputMessages, "gen_ai.output.messages", V0_1).form(Form::OutputMessages),
    Row::new("ChatModel", Fact::Tools, "gen_ai.tool.definitions", V0_1).form(Form::ToolDefinitions),
    Row::new("Tool", Fact::Constant("execute_tool"), "gen_ai.operation.name", V0_1).required(),
    Row::new("Tool", Fact::Name, "gen_ai.tool.name", V0_1).required(),
    Row::new("Tool", Fact::Constant("function"), "gen_ai.tool.type", V0_1),
    Row::new("Tool", Fact::CallId, "gen_ai.tool.call.id", V0_1),
    Row::new("Tool", Fact::Input, "gen_ai.tool.call.arguments", V0_1).form(Form::Json),
    Row::new("Tool", Fact::Result, "gen_ai.tool.call.result", V0_1).form(Form::Json),
];

/// The values of `gen_ai.provider.name` that differ from the names of emitree.
pub(super) const PROVIDERS: &[(&str, &str)] = &[("gemini", "gcp.gemini"), ("mistral", "mistral_ai"), ("xai", "x_ai")];
