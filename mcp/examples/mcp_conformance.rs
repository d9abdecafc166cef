//! The client that the conformance suite of MCP tests. `scripts/mcp-conformance` runs it.
//!
//! The suite passes the address of its server as the last argument, the scenario in `MCP_CONFORMANCE_SCENARIO`, and calls
//! in `MCP_CONFORMANCE_CONTEXT`. Without calls there, an agent calls each tool that the server lists, once, with arguments
//! that fit its schema. The suite starts many clients at once, so a slow answer says nothing about the era: the client
//! takes it from `MCP_CONFORMANCE_PROTOCOL_VERSION`, if that is set.

use std::env;
use std::process::ExitCode;

use emitree_agent::{Agent, ChatModel, Reply, ScriptedModel, ToolSpec};
use emitree_emitter::BoxError;
use emitree_mcp::{ElicitAnswer, ElicitQuestion, Era, McpServer};
use serde_json::{Map, Value, json};

const HELP: &str = "\
The client that the conformance suite of MCP tests; scripts/mcp-conformance runs it.

    cargo run -p emitree-mcp --features http --example mcp_conformance -- [--era old|new] ADDRESS";

#[tokio::main]
async fn main() -> Result<ExitCode, BoxError> {
    let args: Vec<_> = env::args().skip(1).collect();
    let (era, address) = match args.iter().map(String::as_str).collect::<Vec<_>>()[..] {
        [address] if address.starts_with("http") => (None, address),
        ["--era", "old", address] => (Some(Era::Old), address),
        ["--era", "new", address] => (Some(Era::New), address),
        _ => {
            println!("{HELP}");
            return Ok(ExitCode::from(if args.iter().any(|arg| arg == "--help") { 0 } else { 2 }));
        }
    };
    let era = era.or_else(|| {
        let version = env::var("MCP_CONFORMANCE_PROTOCOL_VERSION").ok()?;
        Some(if &*version < "2026-07-28" { Era::Old } else { Era::New })
    });
    let mut server = McpServer::http(address).name("conformance").elicit(answer);
    if let Some(era) = era {
        server = server.era(era);
    }
    let server = server.connect().await?;
    let context = env::var("MCP_CONFORMANCE_CONTEXT").unwrap_or_default();
    let context: Value = serde_json::from_str(&context).unwrap_or_default();
    let calls = context["toolCalls"].as_array().cloned();
    let model = ScriptedModel::by("scripted", move |request| {
        let has_called = request.messages.iter().any(|message| message.tool_results().next().is_some());
        if has_called || request.tools.is_empty() {
            return Reply::text("done");
        }
        Reply::calls(match &calls {
            Some(calls) => calls.iter().map(|call| (text(&call["name"]), without_nulls(&call["arguments"]))).collect(),
            None => request.tools.iter().map(|tool| (tool.name.clone(), arguments(tool))).collect::<Vec<_>>(),
        })
    });
    let agent = Agent::builder("client", ChatModel::new(model)?).with(server.tools()).parallel_tools(false).build()?;
    let answer = agent.ask("Call all tools.").await?;
    for result in answer.messages.iter().flat_map(|message| message.tool_results()) {
        eprintln!("{}: {}", if result.is_error { "error" } else { "result" }, result.response);
    }
    server.close().await;
    Ok(ExitCode::SUCCESS)
}

fn text(value: &Value) -> String {
    value.as_str().unwrap_or_default().to_owned()
}

/// Leaves out arguments that are `null`: the schemas of the suite do not allow them.
fn without_nulls(arguments: &Value) -> Value {
    let arguments = arguments.as_object().cloned().unwrap_or_default();
    Value::from(arguments.into_iter().filter(|(_, value)| !value.is_null()).collect::<Map<_, _>>())
}

/// Makes arguments that fit a schema of simple values.
fn arguments(tool: &ToolSpec) -> Value {
    let properties = tool.parameters["properties"].as_object().cloned().unwrap_or_default();
    let required = tool.parameters["required"].as_array().cloned().unwrap_or_default();
    let value = |schema: &Value| match schema["type"].as_str() {
        Some("number" | "integer") => json!(5),
        Some("boolean") => json!(true),
        Some("array") => json!([]),
        Some("object") => json!({}),
        _ => json!("text"),
    };
    // A tool without required arguments is called without any: their schemas may be more than simple.
    let given = properties.iter().filter(|(name, _)| required.iter().any(|required| required == *name));
    Value::from(given.map(|(name, schema)| (name.clone(), value(schema))).collect::<Map<_, _>>())
}

/// Accepts each question with the defaults of its schema, and gives required fields a value.
async fn answer(question: ElicitQuestion) -> emitree_runtime::Result<ElicitAnswer> {
    let schema = question.schema.unwrap_or_default();
    let mut content = Map::new();
    for name in schema["required"].as_array().into_iter().flatten().filter_map(Value::as_str) {
        let property = &schema["properties"][name];
        let value = match property["type"].as_str() {
            _ if !property["default"].is_null() => continue,
            Some("boolean") => json!(true),
            Some("number" | "integer") => property.get("minimum").cloned().unwrap_or_else(|| json!(1)),
            _ if property["enum"].is_array() => property["enum"][0].clone(),
            _ => json!("text"),
        };
        content.insert(name.to_owned(), value);
    }
    Ok(ElicitAnswer::accept(content))
}
