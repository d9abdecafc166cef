//! O4: the attributes of each dialect. The names are pinned here, because the conventions change each month.

use std::collections::BTreeMap;

use emitree_emitter::SinkRecord;
use emitree_otlp::{Dialect, Fact, Form, Otlp, Row, SpanKind};
use serde_json::{Value, json};

use crate::collector::attributes;
use crate::records::{CHILD, TOP, exported, finish, record};

/// A call of a model: a streamed answer that calls a tool, after one that was called before.
fn chat() -> Vec<SinkRecord> {
    let request = json!({
        "system": "Be brief.",
        "messages": [
            {"role": "user", "parts": [{"type": "text", "content": "Weather?"}]},
            {"role": "assistant", "parts": [
                {"type": "reasoning", "content": "Hm.", "extra": [1, 2]},
                {"type": "tool_call", "id": "c1", "name": "weather", "arguments": {"city": "Lima"}, "extra": {"a": 1}},
            ]},
            {"role": "tool", "parts": [
                {"type": "tool_call_response", "id": "c1", "response": "drizzle", "is_error": true},
            ]},
        ],
        "tools": [{"name": "weather", "description": "Reports the weather", "parameters": {"type": "object"}}],
        "options": {"temperature": 0.5, "max_tokens": 100, "seed": 3, "stop": ["END"], "stream": true},
    });
    let answer = json!({
        "message": {
            "role": "assistant", "finish_reason": "stop", "parts": [{"type": "text", "content": "It drizzles."}],
        },
        "id": "r1", "model": "large-2026",
    });
    let usage = json!({
        "usage": {"input_tokens": 30, "output_tokens": 7, "cached_input_tokens": 20, "reasoning_tokens": 2},
        "cost": "0.25",
    });
    let start = json!({
        "provider": "xai", "model": "some", "server_address": "api.x.ai", "server_port": 443,
        "request": {"options": {"temperature": 0.5, "max_tokens": 100}},
    });
    let chat = |second, name: &str, payload| record(second, "ChatModel", CHILD, name, &payload);
    vec![
        chat(1, "run.start", json!({"input": request, "output": null})),
        chat(1, "start", start),
        chat(3, "new_token", json!({"text": "It"})),
        chat(4, "new_token", json!({"text": " drizzles."})),
        chat(5, "usage", usage),
        chat(5, "success", json!({"response": answer})),
        chat(6, "run.success", json!({"input": request, "output": answer})),
        finish(7, "ChatModel", CHILD, 6),
    ]
}

fn tool() -> Vec<SinkRecord> {
    let input = json!({"city": "Lima"});
    let tool = |second, name: &str, payload| record(second, "Tool", CHILD, name, &payload);
    vec![
        tool(1, "run.start", json!({"input": input, "output": null})),
        tool(1, "start", json!({"input": input, "call_id": "c1"})),
        tool(2, "run.success", json!({"input": input, "output": {"content": "drizzle"}})),
        finish(2, "Tool", CHILD, 1),
    ]
}

fn agent() -> Vec<SinkRecord> {
    let question = json!({"role": "user", "parts": [{"type": "text", "content": "Weather?"}]});
    let answer = json!({"role": "assistant", "parts": [{"type": "text", "content": "It drizzles."}]});
    let input = json!({"messages": [question]});
    let agent = |second, name: &str, payload| record(second, "Agent", TOP, name, &payload);
    vec![
        agent(1, "run.start", json!({"input": input, "output": null})),
        agent(2, "run.success", json!({"input": input, "output": {"answer": answer, "messages": [question, answer]}})),
        finish(2, "Agent", TOP, 1),
    ]
}

/// A run of any other kind.
fn other(kind: &str) -> Vec<SinkRecord> {
    let event = |second, name: &str, payload| record(second, kind, TOP, name, &payload);
    vec![
        event(1, "run.start", json!({"input": "a text", "output": null})),
        event(2, "run.success", json!({"input": "a text", "output": [1, 2]})),
        finish(2, kind, TOP, 1),
    ]
}

/// The session of the outermost agent is the conversation of all runs below it.
#[tokio::test(flavor = "multi_thread")]
async fn the_runs_of_an_agent_have_its_session() {
    let start = |run, session| record(1, "Agent", run, "start", &json!({"messages": [], "session": session}));
    let begun = || [record(1, "Agent", TOP, "run.start", &json!({})), start(TOP, "order-17")];
    let sub_agent = || vec![start(CHILD, "order-17/1/0/ask"), finish(2, "Agent", CHILD, 1)];
    let rows = [
        (Dialect::GenAi, chat(), Some("gen_ai.conversation.id"), "gen_ai.conversation.id"),
        (Dialect::GenAi, sub_agent(), Some("gen_ai.conversation.id"), "gen_ai.conversation.id"),
        // The conventions have none for tools.
        (Dialect::GenAi, tool(), None, "gen_ai.conversation.id"),
        (Dialect::OpenInference, chat(), Some("session.id"), "session.id"),
        (Dialect::OpenInference, sub_agent(), Some("session.id"), "session.id"),
        (Dialect::OpenInference, tool(), Some("session.id"), "session.id"),
    ];
    for (dialect, child, below, above) in rows {
        let records = begun().into_iter().chain(child).chain([finish(9, "Agent", TOP, 8)]);
        let spans = exported(records, |otlp| otlp.dialect(dialect)).await;
        let [child, top] = &*spans else { panic!("{spans:?}") };
        assert_eq!(attributes(&top.attributes)[above], "order-17");
        let found = attributes(&child.attributes).get(above).cloned();
        assert_eq!(found, below.map(|_| json!("order-17")), "{dialect:?} {}", child.name);
    }
}

/// The conventions require the provider of an agent, too.
#[tokio::test(flavor = "multi_thread")]
async fn an_agent_has_the_provider_and_the_model_that_it_asks_first() {
    let start = |provider, model| {
        record(2, "ChatModel", CHILD, "start", &json!({"provider": provider, "model": model, "request": {}}))
    };
    let begun = record(1, "Agent", TOP, "run.start", &json!({}));
    let rows = [
        (vec![start("xai", "some"), start("openai", "other")], Some("x_ai"), Some("some")),
        (vec![record(2, "Tool", CHILD, "start", &json!({"call_id": "c1"}))], None, None),
    ];
    for (below, provider, model) in rows {
        // The model's run may still be open when the sink is closed.
        let spans = exported([begun.clone()].into_iter().chain(below), |otlp| otlp).await;
        let facts = attributes(&spans[0].attributes);
        let found =
            ["gen_ai.provider.name", "gen_ai.request.model"].map(|name| facts.get(name).and_then(Value::as_str));
        assert_eq!((&*spans[0].name, found), ("invoke_agent some", [provider, model]));
    }
}

async fn facts(records: Vec<SinkRecord>, set: impl FnOnce(Otlp) -> Otlp) -> BTreeMap<String, Value> {
    let spans = exported(records, set).await;
    assert_eq!(spans.len(), 1);
    attributes(&spans[0].attributes)
}

/// Compares the attributes of a span, without those that all dialects have.
async fn check(dialect: Dialect, content: bool, records: Vec<SinkRecord>, expected: Value) {
    let mut facts = facts(records, |otlp| otlp.dialect(dialect).content(content)).await;
    assert_eq!(facts.remove("emitree.outcome"), Some("success".into()));
    assert!(facts.remove("emitree.kind").is_some());
    // Compared as values, because no order of keys is promised.
    let read = |text: &Value| serde_json::from_str(text.as_str().unwrap_or_default()).unwrap_or_else(|_| text.clone());
    let facts: BTreeMap<_, _> = facts.iter().map(|(name, value)| (name.clone(), read(value))).collect();
    assert_eq!(json!(facts), expected, "{dialect:?}, content {content}");
}

#[tokio::test(flavor = "multi_thread")]
async fn gen_ai_without_content() {
    let expected = json!({
        "gen_ai.operation.name": "chat", "gen_ai.provider.name": "x_ai", "gen_ai.request.model": "some",
        "server.address": "api.x.ai", "server.port": 443,
        "gen_ai.request.temperature": 0.5, "gen_ai.request.max_tokens": 100, "gen_ai.request.stream": true,
        "gen_ai.response.id": "r1", "gen_ai.response.model": "large-2026", "gen_ai.response.finish_reasons": ["stop"],
        "gen_ai.response.time_to_first_chunk": 2.0,
        "gen_ai.usage.input_tokens": 30, "gen_ai.usage.output_tokens": 7, "gen_ai.usage.cost": 0.25,
        "gen_ai.usage.cache_read.input_tokens": 20, "gen_ai.usage.reasoning.output_tokens": 2,
    });
    check(Dialect::GenAi, false, chat(), expected).await;
    let expected = json!({
        "gen_ai.operation.name": "execute_tool", "gen_ai.tool.name": "some", "gen_ai.tool.type": "function",
        "gen_ai.tool.call.id": "c1",
    });
    check(Dialect::GenAi, false, tool(), expected).await;
    let expected = json!({"gen_ai.operation.name": "invoke_agent", "gen_ai.agent.name": "some"});
    check(Dialect::GenAi, false, agent(), expected).await;
    let expected = json!({"gen_ai.operation.name": "invoke_workflow", "gen_ai.agent.name": "some"});
    check(Dialect::GenAi, false, other("Workflow"), expected).await;
    check(Dialect::GenAi, false, other("Step"), json!({})).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn gen_ai_content_is_json_with_the_fields_of_the_conventions() {
    let facts = facts(chat(), |otlp| otlp.content(true)).await;
    let read = |name: &str| -> Value { serde_json::from_str(facts[name].as_str().expect("a string")).expect("JSON") };
    assert_eq!(read("gen_ai.system_instructions"), json!([{"type": "text", "content": "Be brief."}]));
    let messages = json!([
        {"role": "user", "parts": [{"type": "text", "content": "Weather?"}]},
        {"role": "assistant", "parts": [
            {"type": "reasoning", "content": "Hm."},
            {"type": "tool_call", "id": "c1", "name": "weather", "arguments": {"city": "Lima"}},
        ]},
        {"role": "tool", "parts": [{"type": "tool_call_response", "id": "c1", "response": "drizzle"}]},
    ]);
    assert_eq!(read("gen_ai.input.messages"), messages);
    let answer = json!([
        {"role": "assistant", "parts": [{"type": "text", "content": "It drizzles."}], "finish_reason": "stop"},
    ]);
    assert_eq!(read("gen_ai.output.messages"), answer);
    let tools = json!([{
        "type": "function", "name": "weather", "description": "Reports the weather", "parameters": {"type": "object"},
    }]);
    assert_eq!(read("gen_ai.tool.definitions"), tools);

    let expected = json!({
        "gen_ai.operation.name": "execute_tool", "gen_ai.tool.name": "some", "gen_ai.tool.type": "function",
        "gen_ai.tool.call.id": "c1", "gen_ai.tool.call.arguments": {"city": "Lima"},
        "gen_ai.tool.call.result": "drizzle",
    });
    check(Dialect::GenAi, true, tool(), expected).await;
    // An answer without a finish reason has one: Phoenix would show no message otherwise.
    let expected = json!({
        "gen_ai.operation.name": "invoke_agent", "gen_ai.agent.name": "some",
        "gen_ai.input.messages": [{"role": "user", "parts": [{"type": "text", "content": "Weather?"}]}],
        "gen_ai.output.messages": [{
            "role": "assistant", "parts": [{"type": "text", "content": "It drizzles."}], "finish_reason": "unknown",
        }],
    });
    check(Dialect::GenAi, true, agent(), expected).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn results_have_their_parts_and_no_span_has_the_bytes_of_data() {
    let image =
        json!({"type": "uri", "modality": "image", "mime_type": "image/png", "uri": "data:image/png;base64,QUJD"});
    let text = json!({"type": "text", "content": "Of May."});
    let parts = json!([text, image]);
    let messages = json!([
        {"role": "user", "parts": [image]},
        {"role": "tool", "parts": [{"type": "tool_call_response", "id": "c1", "response": "drawn", "parts": parts}]},
    ]);
    let records = |kind: &str, input: &Value, output: &Value| {
        let run = |second, name: &str, payload| record(second, kind, CHILD, name, &payload);
        vec![
            run(1, "run.start", json!({"input": input, "output": null})),
            run(6, "run.success", json!({"input": input, "output": output})),
            finish(7, kind, CHILD, 6),
        ]
    };
    let chat = || records("ChatModel", &json!({"messages": messages}), &json!({"message": messages[0]}));
    let of_chat = facts(chat(), |otlp| otlp.content(true)).await;
    let read: Value = serde_json::from_str(of_chat["gen_ai.input.messages"].as_str().expect("a string")).expect("JSON");
    let cut = json!({"type": "uri", "modality": "image", "mime_type": "image/png", "uri": "data:image/png;base64,…"});
    let result = json!({"type": "tool_call_response", "id": "c1", "response": "drawn", "parts": [text, cut]});
    assert_eq!(read[0]["parts"], json!([cut]));
    assert_eq!(read[1]["parts"], json!([result]));
    let output = json!({"content": "drawn", "parts": parts});
    for kind in ["ChatModel", "Agent", "Tool", "Other"] {
        for dialect in [Dialect::GenAi, Dialect::OpenInference] {
            let records = records(kind, &json!({"messages": messages}), &output);
            let facts = facts(records, |otlp| otlp.content(true).dialect(dialect)).await;
            let bytes = facts.values().any(|value| value.to_string().contains("QUJD"));
            assert!(!bytes, "{kind} {facts:#?}");
        }
    }
}

/// The attributes of a model call in `OpenInference` without content.
fn llm() -> Value {
    json!({
        "openinference.span.kind": "LLM", "llm.system": "xai", "llm.provider": "xai", "llm.model_name": "large-2026",
        "llm.request.model_name": "some", "llm.response.model_name": "large-2026", "llm.finish_reason": "stop",
        "llm.invocation_parameters": {"temperature": 0.5, "max_tokens": 100, "stream": true},
        "llm.token_count.prompt": 30, "llm.token_count.completion": 7, "llm.token_count.total": 37,
        "llm.token_count.prompt_details.cache_read": 20, "llm.token_count.completion_details.reasoning": 2,
        "llm.cost.total": 0.25,
    })
}

#[tokio::test(flavor = "multi_thread")]
async fn open_inference_without_content() {
    check(Dialect::OpenInference, false, chat(), llm()).await;
    let expected = json!({"openinference.span.kind": "TOOL", "tool.name": "some", "tool.id": "c1"});
    check(Dialect::OpenInference, false, tool(), expected).await;
    let expected = json!({"openinference.span.kind": "AGENT", "agent.name": "some"});
    check(Dialect::OpenInference, false, agent(), expected).await;
    for kind in ["Workflow", "Step", "Retriever"] {
        check(Dialect::OpenInference, false, other(kind), json!({"openinference.span.kind": "CHAIN"})).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn open_inference_content_is_flat() {
    let mut expected = llm();
    let content = json!({
        "llm.invocation_parameters": {
            "temperature": 0.5, "max_tokens": 100, "seed": 3, "stop": ["END"], "stream": true,
        },
        "input.value": [{"type": "tool_call_response", "id": "c1", "response": "drizzle"}],
        "input.mime_type": "application/json", "output.value": "It drizzles.", "output.mime_type": "text/plain",
        "llm.input_messages.0.message.role": "system", "llm.input_messages.0.message.content": "Be brief.",
        "llm.input_messages.1.message.role": "user", "llm.input_messages.1.message.content": "Weather?",
        "llm.input_messages.2.message.role": "assistant",
        "llm.input_messages.2.message.tool_calls.0.tool_call.id": "c1",
        "llm.input_messages.2.message.tool_calls.0.tool_call.function.name": "weather",
        "llm.input_messages.2.message.tool_calls.0.tool_call.function.arguments": {"city": "Lima"},
        "llm.input_messages.3.message.role": "tool", "llm.input_messages.3.message.tool_call_id": "c1",
        "llm.input_messages.3.message.content": "drizzle",
        "llm.output_messages.0.message.role": "assistant", "llm.output_messages.0.message.content": "It drizzles.",
        "llm.tools.0.tool.json_schema": {"type": "function", "function": {
            "name": "weather", "description": "Reports the weather", "parameters": {"type": "object"},
        }},
    });
    expected.as_object_mut().unwrap().extend(content.as_object().unwrap().clone());
    check(Dialect::OpenInference, true, chat(), expected).await;
    let expected = json!({
        "openinference.span.kind": "TOOL", "tool.name": "some", "tool.id": "c1",
        "input.value": {"city": "Lima"}, "input.mime_type": "application/json",
        "output.value": "drizzle", "output.mime_type": "text/plain",
    });
    check(Dialect::OpenInference, true, tool(), expected).await;
    let expected = json!({
        "openinference.span.kind": "AGENT", "agent.name": "some", "input.value": "Weather?",
        "input.mime_type": "text/plain", "output.value": "It drizzles.", "output.mime_type": "text/plain",
    });
    check(Dialect::OpenInference, true, agent(), expected).await;
    let expected = json!({
        "openinference.span.kind": "CHAIN", "input.value": "a text", "input.mime_type": "text/plain",
        "output.value": [1, 2], "output.mime_type": "application/json",
    });
    check(Dialect::OpenInference, true, other("Step"), expected).await;
}

/// A count that is a string, or a list that is one, is not read by Phoenix or Langfuse.
#[tokio::test(flavor = "multi_thread")]
async fn values_have_the_types_that_the_conventions_name() {
    let facts = facts(chat(), |otlp| otlp.content(true)).await;
    let ints = ["gen_ai.usage.input_tokens", "gen_ai.request.max_tokens", "gen_ai.request.seed", "server.port"];
    assert!(ints.iter().all(|name| facts[*name].is_i64()), "{facts:?}");
    assert!(facts["gen_ai.request.temperature"].is_f64() && facts["gen_ai.usage.cost"].is_f64());
    assert!(
        facts["gen_ai.request.stop_sequences"].is_array()
            && facts["gen_ai.response.finish_reasons"].is_array()
            && facts["gen_ai.request.stream"].is_boolean()
    );
    // The values of spans that Phoenix shows are texts.
    for answer in [json!(2890), json!("2890")] {
        let result = json!({"input": null, "output": {"content": answer}});
        let records = [record(1, "Tool", TOP, "run.success", &result), finish(2, "Tool", TOP, 1)];
        let spans = exported(records, |otlp| otlp.dialect(Dialect::OpenInference).content(true)).await;
        assert_eq!(attributes(&spans[0].attributes)["output.value"], "2890");
    }
}

/// A name is no longer in use, or belongs to another tool.
#[tokio::test(flavor = "multi_thread")]
async fn a_dialect_sets_no_attribute_that_changes_the_meaning_of_others() {
    let foreign = [
        (Dialect::GenAi, vec!["gen_ai.system", "gen_ai.workflow.name", "gen_ai.agent.id", "llm.", "openinference."]),
        // Phoenix converts `gen_ai.*`, and hides its messages behind ours.
        (Dialect::OpenInference, vec!["gen_ai."]),
    ];
    for (dialect, names) in foreign {
        for row in dialect.rows() {
            let is_foreign =
                |name: &&&str| row.attribute == **name || name.ends_with('.') && row.attribute.starts_with(**name);
            assert_eq!(names.iter().find(is_foreign), None, "{row:?}");
        }
    }
}

#[test]
fn each_row_has_the_version_of_its_name_and_a_place_of_its_own() {
    for dialect in [Dialect::GenAi, Dialect::OpenInference] {
        let mut seen = Vec::new();
        for row in dialect.rows() {
            assert!(!row.since.is_empty() && !row.attribute.is_empty(), "{row:?}");
            let place = (row.kind, row.attribute, row.fact);
            assert!(!seen.contains(&place), "{row:?} is there twice");
            seen.push(place);
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_row_and_a_name_of_the_user_take_precedence() {
    let set = |otlp: Otlp| {
        otlp.dialect(Dialect::OpenInference)
            .row(Row::new("Retriever", Fact::Constant("RETRIEVER"), "openinference.span.kind", ""))
            .row(Row::new("Retriever", Fact::Name, "retriever.names", "").form(Form::Json))
            .span("Retriever", "retrieval {name}", SpanKind::Client)
    };
    let spans = exported(other("Retriever"), set).await;
    let facts = attributes(&spans[0].attributes);
    assert_eq!(
        (&facts["openinference.span.kind"], &facts["retriever.names"]),
        (&json!("RETRIEVER"), &json!("\"some\""))
    );
    assert_eq!((&*spans[0].name, spans[0].kind().as_str_name()), ("retrieval some", "SPAN_KIND_CLIENT"));
    let spans = exported(other("Step"), set).await;
    assert_eq!(
        (&*spans[0].name, &attributes(&spans[0].attributes)["openinference.span.kind"]),
        ("some", &json!("CHAIN"))
    );
}
